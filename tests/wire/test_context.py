"""A model's context: never more than it was trained on, wherever it is promised or paid for."""

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_models import CONTEXT, GgufFiles
from support.open_gateway import CATALOG, open_gateway
from watchbill.catalog import Model
from watchbill.engines.llamacpp import check_source
from watchbill.footprint import predict_model, usable_context
from watchbill.gguf import read_header


async def test_every_door_tells_the_context_that_requests_get(gguf_files: GgufFiles) -> None:
    """RES-02: a `context` beyond the training is neither promised, nor charged, nor asked of the engine."""
    source = gguf_files.chat("5MB")
    model = replace(CATALOG.models["a"], source=str(source), context=4 * CONTEXT)
    header = read_header(source)
    assert predict_model(model, header) == predict_model(replace(model, context=CONTEXT), header)
    assert check_source(model) == (source, CONTEXT)
    async with open_gateway(catalog=replace(CATALOG, models={"a": model})) as opened:
        assert (await opened.ask("/v1/models/a")).json["meta"] == {"n_ctx": CONTEXT, "continues": False}
        [listed] = (await opened.ask("/api/tags")).json["models"]  # pyright: ignore[reportGeneralTypeIssues]  any JSON
        assert listed["details"]["context_length"] == CONTEXT
        assert str(CONTEXT) in str((await opened.ask("/api/show", {"model": "a"})).json["parameters"])


@pytest.mark.parametrize(
    ("asked", "arguments", "context"),
    [
        (512, (), 512),
        (2 * CONTEXT, (), CONTEXT),
        (2 * CONTEXT, ("--rope-scaling", "yarn"), 2 * CONTEXT),
    ],
)
def test_a_context_is_capped_unless_the_operator_stretches_the_model(
    gguf_files: GgufFiles, asked: int, arguments: tuple[str, ...], context: int
) -> None:
    """RES-02: arguments that stretch a model are the operator's own responsibility."""
    path: Path = gguf_files.chat("5MB")
    model = Model("a", "llamacpp", source=str(path), context=asked, arguments=arguments)
    assert usable_context(model, read_header(path)) == context
