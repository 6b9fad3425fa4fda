"""Companion sets over HTTP: the header, what the answer says, and what is refused (RES-13)."""

import asyncio
from dataclasses import replace

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, open_gateway
from watchbill.catalog import Catalog, Model
from watchbill.errors import RequestError
from watchbill.gateway.options import CallerOptions
from watchbill.units import Bytes

CHAT = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
B = "b/with:slash"


def catalog(**more: object) -> Catalog:
    models = {
        **CATALOG.models,
        "huge": Model("huge", "peer", memory={"ram": Bytes(2**30 - 2**20)}),
        "one": Model("one", "peer", memory={"ram": Bytes(2**20)}, group="g"),
        "two": Model("two", "peer", memory={"ram": Bytes(2**20)}, group="g"),
    }
    return replace(CATALOG, models=models, sets={"see": ("a", B)}, **more)


@pytest.mark.parametrize(
    ("asked", "meant", "degraded"),
    [
        (B, (B,), 0),
        ("see", (B,), 0),
        (f" see ,, {B} , a", (B,), 0),
        ("alias/of-a", (), 0),
        (f"nobody, {B}", (B,), 1),
        ("", (), 0),
    ],
)
def test_companions_are_models_or_sets(asked: str, meant: tuple[str, ...], degraded: int) -> None:
    """RES-13, api.md: names, aliases and sets; the model itself is no companion; an unknown name is counted."""
    caller_options = CallerOptions()
    submission = caller_options.read({"x-watchbill-with": asked}, {"model": "a"}, catalog(), None)
    assert (submission.companions, caller_options.degraded) == (meant, degraded)


def test_members_of_one_group_are_refused() -> None:
    """RES-08, RES-13: they can never be there together, so the request is wrong."""
    with pytest.raises(RequestError, match="one and two exclude each other on ram"):
        CallerOptions().read({"x-watchbill-with": "two"}, {"model": "one"}, catalog(), None)


async def test_a_request_waits_for_its_companions_and_the_answer_names_them() -> None:
    """RES-13: both are loaded, then it runs; while it does the companion is in use."""
    async with open_gateway(catalog=catalog()) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT, headers={"X-Watchbill-With": "see"})
        assert (answer.status, answer.headers["x-watchbill-with"]) == (200, B)
        models = opened.driver.status()["models"]
        assert isinstance(models, dict)
        assert {name for name, view in models.items() if view["state"] == "ready"} == {"a", B}
        alone = await opened.ask("/v1/chat/completions", CHAT)
        assert "x-watchbill-with" not in alone.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/rerank"])
@pytest.mark.parametrize("beside", [None, B])
async def test_a_refusal_that_never_ends_invites_no_retry(path: str, beside: str | None) -> None:
    """RES-13: a model or a set that can never fit is refused without a time to come back at."""
    vast = Model("vast", "peer", memory={"ram": Bytes(2**40)})
    known = replace(CATALOG, models={**CATALOG.models, "vast": vast})
    said = {**CHAT, "model": "vast", "max_tokens": 1, "stream": False}
    headers = {} if beside is None else {"X-Watchbill-With": beside}
    async with open_gateway(catalog=known) as opened:
        answer = await opened.ask(path, said, headers=headers)
        assert (answer.status, answer.headers.get("x-should-retry")) == (503, "false")
        assert "retry-after" not in answer.headers


async def test_a_set_that_can_never_fit_is_told_so_at_once() -> None:
    """RES-13: 503 never_fits with the sizes, and no advice to try again."""
    async with open_gateway(catalog=catalog()) as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT, headers={"X-Watchbill-With": f"huge, {B}"})
        assert (answer.status, answer.code) == (503, "never_fits")
        assert b"a 1.0 MiB + huge" in answer.body or b"+ huge" in answer.body
        assert answer.headers["x-should-retry"] == "false"
        await eventually(lambda: not opened.driver.requests())


async def test_a_caller_who_leaves_while_a_companion_loads_leaves_nothing_behind() -> None:
    """LANE-07, RES-13: the set is released, and the requests list is empty."""
    async with open_gateway(catalog=catalog()) as opened:
        opened.engine.gate.clear()
        asking = asyncio.create_task(
            opened.ask("/v1/chat/completions", CHAT, headers={"X-Watchbill-With": B})
        )
        await opened.until_waiting()
        view = opened.driver.requests()[0]
        assert (view["companions"], view["model"]) == ([B], "a")
        assert "in memory together" in str(view["reason"])
        asking.cancel()
        await asyncio.wait([asking])
        await eventually(lambda: not opened.driver.requests())
        opened.engine.gate.set()


async def test_a_set_is_explained() -> None:
    """RES-11, RES-13: /wb/v1/explain?model=a&with=see."""
    async with open_gateway(catalog=catalog()) as opened:
        answer = await opened.ask("/wb/v1/explain?model=a&with=see")
        assert (answer.status, answer.json["companions"], answer.json["verdict"]) == (
            200,
            {B: "absent"},
            "fits",
        )
        wrong = await opened.ask("/wb/v1/explain?model=a&with=see,sea")
        assert (wrong.status, wrong.code) == (400, "invalid_request") and "is called 'sea'" in str(wrong.json)
