"""Python's frameworks against a gateway whose model calls tools, each with what it made of the answers.

Those of the development lock always run. litellm and instructor need an older `openai` than the one that the other
tests are written for, and litellm is large: they live in an environment of their own, built by `make check-clients`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from clients.rig import ANIMAL, hears, run
from support.open_gateway import CATALOG, open_gateway
from watchbill.catalog import ApiKey, Server

HERE = Path(__file__).parent
APART = HERE.parents[1] / ".cache/clients/bin/python"
SERVER = Server(
    keys=(
        ApiKey("user", "user"),
        ApiKey("spent", "spent", tokens_per_minute=1),
        ApiKey("brief", "brief", lane="brief"),
    )
)


async def told_by(scenario: str, folder: Path, python: Path | str = sys.executable) -> dict[str, Any]:
    """What a client's program printed. The key `spent` has used its tokens when the program begins."""
    never = asyncio.Event()
    async with open_gateway(hears(never), catalog=CATALOG, server=SERVER) as opened:
        chat = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
        await opened.ask("/v1/chat/completions", chat, headers={"Authorization": "Bearer spent"})
        await opened.until_idle()
        program = HERE / "python" / f"ask_{scenario}.py"
        out = await run(str(python), str(program), folder=folder, BASE=opened.url.rstrip("/"))
        await opened.until_idle()
        return json.loads(out)


HEARD = "I see a cow in the field"
#: What every framework makes of plain questions, of a tool and its result.
PLAIN = {"plain": "hello there", "tokens": 2, "streamed": ["hello there", True]}
CALLED = {"call": ["look", {"at": "field"}], "result": HEARD}
VECTORS = [[0.25, 0.5, 0.0], [0.25, 0.5, 1.0]]


async def test_langchain(tmp_path: Path) -> None:
    """LANE-01, LANE-03: four APIs, all ways to a schema; its own errors for unknown, too long, too much, late."""
    told = await told_by("langchain", tmp_path)
    assert told.pop("openai vectors") == told.pop("ollama vectors") == VECTORS
    of_openai = {
        "unknown": ["OpenAIModelNotFoundError", 404, False], "too long": ["OpenAIContextOverflowError", 400, False],
        "spent": ["OpenAIRateLimitError", 429, True], "late": ["OpenAIAPIError", 503, True],
    }  # fmt: skip
    of_anthropic = {
        "unknown": ["AnthropicModelNotFoundError", 404, False],
        "too long": ["AnthropicContextOverflowError", 400, False],
        "spent": ["AnthropicRateLimitError", 429, True], "late": ["AnthropicAPIError", 503, True],
    }  # fmt: skip
    of_ollama = {  # its client keeps no headers
        "unknown": ["ResponseError", 404, False], "too long": ["ResponseError", 400, False],
        "spent": ["ResponseError", 503, False], "late": ["ResponseError", 503, False],
    }  # fmt: skip
    same = {**PLAIN, **CALLED, "streamed tokens": 2, "json_schema": ANIMAL, "function_calling": ANIMAL}
    assert told == {
        "chat": {**same, "json_mode": ANIMAL, **of_openai},
        "responses": {**same, **of_openai},
        "anthropic": {**same, **of_anthropic},
        "ollama": {**same, "json_mode": ANIMAL, **of_ollama},
    }


async def test_pydantic_ai(tmp_path: Path) -> None:
    """LANE-01: three APIs; it runs the tool itself, asks for a schema in three ways, and names errors its own way."""
    told = await told_by("pydantic_ai", tmp_path)
    assert told.pop("vectors") == VECTORS
    same = {
        **PLAIN, "result": HEARD, "streamed result": HEARD, "second turn": ["hello there", 4],
        "ToolOutput": ANIMAL, "NativeOutput": ANIMAL, "PromptedOutput": ANIMAL,
        "unknown": ["ModelNotFoundError", 404, False], "too long": ["ModelContextWindowExceededError", 400, False],
        "spent": ["ModelRateLimitError", 429, True], "late": ["ModelUnavailableError", 503, True],
    }  # fmt: skip
    assert told == {
        "chat": same,
        "responses": same,
        "anthropic": {**same, "late": ["ModelOverloadedError", 503, True]},
    }


async def test_openai_agents(tmp_path: Path) -> None:
    """LANE-01: over responses and chat; tools, schemas, both, forced calls, handoffs, a kept response."""
    told = await told_by("openai_agents", tmp_path)
    assert told.pop("previous response") == {"second": "hello there", "other": True}
    same = {
        **PLAIN, "streamed": ["hello there", True, "hello there"], "result": HEARD, "streamed result": HEARD,
        "streamed items": ["tool_call_item", "tool_call_output_item", "message_output_item"], "schema": ANIMAL,
        "tool and schema": ANIMAL, "required": HEARD, "handoff": ["plain", 'I see {"assistant": "plain"}'],
        "second turn": "hello there",
        "unknown": ["NotFoundError", 404, "model_not_found", False],
        "too long": ["BadRequestError", 400, "context_length_exceeded", False],
        "spent": ["RateLimitError", 429, "lane_full", True], "late": ["InternalServerError", 503, "run_timeout", True],
    }  # fmt: skip
    assert told == {"responses": same, "chat": same}


apart = pytest.mark.skipif(not APART.exists(), reason="run: make check-clients")


@apart
async def test_litellm(tmp_path: Path) -> None:
    """LANE-01, LANE-03: as OpenAI's, Ollama's and Anthropic's client; errors of the classes that fallbacks look for."""
    told = await told_by("litellm", tmp_path, APART)
    assert told.pop("vectors") == VECTORS and told.pop("response") == "hello there"
    assert told.pop("events") == ["response.created", "response.completed"]
    assert told.pop("ollama vectors") == ["AuthenticationError", 401, False]
    same = {
        **PLAIN, **CALLED, "streamed call": ["look", {"at": "field"}], "schema": ANIMAL,
        "unknown": ["NotFoundError", 404, False], "too long": ["ContextWindowExceededError", 400, False],
        "spent": ["RateLimitError", 429, True], "late": ["ServiceUnavailableError", 503, True],
    }  # fmt: skip
    of_ollama = {"too long": ["BadRequestError", 400, False], "spent": ["ServiceUnavailableError", 503, True]}
    assert told == {
        "openai": same,
        "ollama": {**same, **of_ollama},
        "anthropic": {
            **same,
            "late": ["InternalServerError", 500, True],
        },  # it makes this of any 5xx of Anthropic
    }


@apart
async def test_instructor(tmp_path: Path) -> None:
    """LANE-01: its modes for OpenAI and Anthropic, whole and in pieces; a model that does not comply is asked again."""
    told = await told_by("instructor", tmp_path, APART)
    same = {
        "schema": ANIMAL, "in pieces": ANIMAL, "asked again": "InstructorRetryException",
        "unknown": ["NotFoundError", 404], "too long": ["BadRequestError", 400], "spent": ["RateLimitError", 429],
        "late": ["InternalServerError", 503],
    }  # fmt: skip
    modes = dict.fromkeys(("tools", "tools_strict", "json_schema", "json"), same)
    assert told == {**modes, "anthropic_tools": {**same, "late": ["ServiceUnavailableError", 503]}}
