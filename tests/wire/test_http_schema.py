"""The stored HTTP schema of our own addresses: complete, up to date, and true of a running gateway."""

import asyncio
import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.open_gateway import CATALOG, OpenGateway, open_gateway
from watchbill.catalog import Lane, ProcessType
from watchbill.units import Millis

ROOT = Path(__file__).resolve().parents[2]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
#: How often each address is asked, in each way.
EXAMPLES = 6
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
#: Nobody waits long here, so that a load that is refused is refused in time.
BRIEF = replace(
    CATALOG,
    lanes={"default": Lane("default", max_wait_ms=Millis(200))},
    process={"look": ProcessType("look", "a")},
)
#: Names that exist, so that not every answer is a 404.
KNOWN = {"name": "a", "model": "a", "device": "ram", "type": "look"}


def stored() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "openapi.json").read_text())


def test_the_stored_schema_is_the_one_of_its_table() -> None:
    """LANE-09: a change of the interface shows in a file that is reviewed."""
    table = runpy.run_path(str(ROOT / "tools" / "openapi.py"))
    assert (ROOT / "docs" / "openapi.json").read_text() == table["text"](), "run: python tools/openapi.py"


async def test_every_address_is_in_the_schema_and_no_other() -> None:
    """LANE-09: compared with the router itself."""
    async with open_gateway() as opened:
        served = {
            (method.lower(), re.sub(r":[^{}]*\}", "}", path))
            for method, path, *_ in opened.gateway.routes()
            if method != "HEAD"  # a GET without its body
        }
    described = {(method, path) for path, methods in stored()["paths"].items() for method in methods}
    assert described == served


def with_known_names(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of our own addresses, for a gateway whose names are known: half of what is asked exists."""
    own = {
        path: {method: told for method, told in methods.items() if "x-protocol" not in told}
        for path, methods in schema["paths"].items()
    }
    schema["paths"] = {path: methods for path, methods in own.items() if methods}
    for methods in schema["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                known = KNOWN.get(parameter["name"])
                if known:
                    parameter["schema"] = {"anyOf": [{"enum": [known]}, parameter["schema"]]}
            content = operation.get("requestBody", {}).get("content", {})
            for field, shape in (
                content.get("application/json", {}).get("schema", {}).get("properties", {}).items()
            ):
                if field in KNOWN:
                    shape |= {"enum": [KNOWN[field], "nobody"]}
    return schema


def can_be_wrong(operation: dict[str, Any]) -> bool:
    """Whether there is anything to say wrongly: every text is a legal part of a path or a query."""
    return "requestBody" in operation


def ask_everything(opened: OpenGateway, mode: GenerationMode) -> set[int]:
    """Asks every address, and has every answer judged. Returns the statuses that came."""
    seen: set[int] = set()
    schema = schemathesis.openapi.from_dict(with_known_names(stored()))
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path in ("/wb/v1/events", "/wb/v1/live"):
                continue  # they never end
            if mode is GenerationMode.NEGATIVE and not can_be_wrong(operation.definition.raw):
                continue

            @SETTINGS
            @given(case=operation.as_strategy(mode))
            def one(case: schemathesis.Case) -> None:
                answer = case.call(base_url=opened.url, session=session, timeout=10)
                seen.add(answer.status_code)
                case.validate_response(answer, checks=CHECKS)

            one()
    return seen


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", list(GenerationMode))
async def test_the_gateway_answers_as_its_schema_says(mode: GenerationMode) -> None:
    """LANE-09: good requests and bad ones: never a 500, and every answer has its shape."""
    async with open_gateway(catalog=BRIEF) as opened:

        async def reload() -> list[str]:
            return []

        opened.gateway.reload = reload
        seen = await asyncio.to_thread(ask_everything, opened, mode)
        assert 200 in seen or mode is GenerationMode.NEGATIVE
        assert seen & {400, 404, 415}
