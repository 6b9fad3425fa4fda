"""Clients of npm against a gateway whose model calls a tool: `make check-clients`.

Each scenario is a program of its own that asks as a user's would and prints what the client made of the answers. They
need node and the packages of package.json; where these are not installed the tests are skipped.
"""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from clients.rig import BEFORE, CALL, delta, run, send_events
from support.open_gateway import CATALOG, open_gateway
from support.peer import Asked, chat_events

HERE = Path(__file__).parent
SEEN = "I see a cow"
THOUGHT = "what is it?"
#: Tools of agents that run a command, and how they are asked to say a word.
WORD = "watch-42"
SHELLS = {
    "exec_command": {"cmd": f"echo {WORD}"},
    "shell": {"command": ["echo", WORD]},
    "Bash": {"command": f"echo {WORD}", "description": "says a word"},
}
pytestmark = pytest.mark.skipif(
    not (HERE / "node_modules").is_dir() or shutil.which("node") is None,
    reason="clients of npm are not installed; run: make check-clients",
)


async def working(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A model that has an agent say a word in its shell, and tells whether that came back."""
    body = asked.json
    tools, messages = body.get("tools") or [], body["messages"]
    assert isinstance(tools, list) and isinstance(messages, list)
    offered = {tool["function"]["name"] for tool in tools} & SHELLS.keys()
    results = [str(message.get("content")) for message in messages if message.get("role") == "tool"]
    if offered and not results:
        name = offered.pop()
        function = {"name": name, "arguments": json.dumps(SHELLS[name])}
        events = [*CALL[:1], delta({"tool_calls": [{**BEFORE, "function": function}]}), *CALL[-1:]]
    else:
        events = chat_events("It came back" if any(WORD in result for result in results) else "It did not")
    send_events(writer, *events)


async def looking(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A model that calls the tool it is offered, and says what the tool returned."""
    body = asked.json
    messages = body.get("messages")
    assert isinstance(messages, list)
    has_looked = any(message.get("role") == "tool" for message in messages)
    calls = bool(body.get("tools")) and not has_looked
    thoughts = [delta({"reasoning_content": THOUGHT})] if "Think." in str(messages) else []
    send_events(writer, *thoughts, *CALL if calls else chat_events(SEEN))


async def told_by(scenario: str, folder: Path) -> dict[str, object]:
    """What a client's program printed."""
    async with open_gateway(looking, catalog=CATALOG) as opened:
        out = await run("node", str(HERE / f"{scenario}.mjs"), folder=folder, BASE=opened.url.rstrip("/"))
        await opened.until_idle()
        return json.loads(out)


async def test_openai(tmp_path: Path) -> None:
    """LANE-01: a tool and its result, streams, responses, the list of models, an error by its code."""
    told = await told_by("openai", tmp_path)
    assert told == {
        "call": ["look", {}], "streamed": SEEN, "response": SEEN,
        "events": ["response.created", "response.completed"],
        "models": ["a", "b/with:slash"], "error": [404, "model_not_found"],
    }  # fmt: skip


async def test_vercels_ai_sdk(tmp_path: Path) -> None:
    """LANE-01: its default is the Responses API; it runs the tool itself, in a second step, and shows thoughts."""
    assert await told_by("vercel", tmp_path) == {
        "responses": [SEEN, 2, SEEN], "chat": [SEEN, 2, SEEN], "thoughts": [THOUGHT, THOUGHT],
    }  # fmt: skip


async def test_anthropic(tmp_path: Path) -> None:
    """LANE-01: a tool and its result, a stream, a count of tokens, an error by its type."""
    told = await told_by("anthropic", tmp_path)
    assert told == {
        "call": ["look", {}, "tool_use"], "streamed": SEEN, "tokens": True, "error": [404, "not_found_error"],
    }  # fmt: skip


async def test_ollama(tmp_path: Path) -> None:
    """LANE-03: a tool, a stream, a pull, names that are made, copied and deleted, an error."""
    told = await told_by("ollama", tmp_path)
    assert told.pop("version") == "0.32.0"
    assert told == {
        "call": ["look", {}], "streamed": SEEN, "pulled": ["pulling manifest", "success"], "context": True,
        "names": ["a:latest", "b/with:slash", "mine:latest", "other:latest"], "shown": "Be brief.",
        "error": [404, "model 'nope' not found"],
    }  # fmt: skip


async def test_codex_cli(tmp_path: Path) -> None:
    """LANE-01: Codex runs a command that the model asks for, over the Responses API."""
    async with open_gateway(working, catalog=CATALOG) as opened:
        provider = (
            f'{{name="wb",base_url="{opened.url.rstrip("/")}/v1",wire_api="responses",env_key="WB_KEY",'
            "request_max_retries=0,stream_max_retries=0}"
        )
        # Codex's own sandbox fails beside Debian's bubblewrap; the command that the scripted model asks for is an echo.
        unguarded = ["--sandbox", "danger-full-access"]
        out = await run(
            str(HERE / "node_modules/.bin/codex"), "exec", "--skip-git-repo-check", *unguarded, "-m", "a", "-c",
            'model_provider="wb"', "-c", f"model_providers.wb={provider}", "-C", str(tmp_path), f"Say {WORD}",
            folder=tmp_path, WB_KEY="x", CODEX_HOME=str(tmp_path),
        )  # fmt: skip
        assert out.strip() == "It came back"


async def test_claude_code(tmp_path: Path) -> None:
    """LANE-01: Claude Code runs a command that the model asks for, over the Messages API."""
    async with open_gateway(working, catalog=CATALOG) as opened:
        out = await run(
            str(HERE / "node_modules/.bin/claude"), "-p", f"Say {WORD}", "--allowedTools", "Bash(echo:*)",
            "--model", "a", folder=tmp_path, ANTHROPIC_BASE_URL=opened.url.rstrip("/"), ANTHROPIC_API_KEY="x",
            ANTHROPIC_MODEL="a", ANTHROPIC_SMALL_FAST_MODEL="a", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )  # fmt: skip
        assert out.strip() == "It came back"
