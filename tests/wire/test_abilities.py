"""What a model cannot do is refused before anything is loaded for it."""

import asyncio
from dataclasses import replace

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, MIB, OpenGateway, open_gateway
from support.peer import Asked
from watchbill.catalog import Catalog, Device, EngineRules, Model
from watchbill.gateway.abilities import has_image
from watchbill.gateway.options import CallerOptions
from watchbill.runtime.changes import awaiting_restart, changes

#: Models of our own llama.cpp, of which everything is known, and one of an engine that is not.
KNOWN = Catalog(
    CATALOG.devices,
    {"peer": EngineRules("peer", "llamacpp"), "other": EngineRules("other", "process")},
    {
        "text": Model("text", "peer", memory=MIB),
        "eyes": Model("eyes", "peer", memory=MIB, arguments=("--mmproj", "/models/eyes.gguf")),
        "vectors": Model("vectors", "peer", memory=MIB, embedding=True),
        "unknown": Model("unknown", "other", memory=MIB),
    },
    CATALOG.lanes,
)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LOOK = [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, IMAGE]}]
SAID = [{"role": "user", "content": "hi"}]
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [BLOCK]}


def loads(opened: OpenGateway) -> int:
    models = opened.driver.status()["models"]
    assert isinstance(models, dict)
    return sum(model["state"] != "absent" for model in models.values())


REFUSED = [
    ("/v1/chat/completions", {"model": "text", "messages": LOOK}),
    ("/v1/chat/completions", {"model": "text", "messages": LOOK, "stream": True}),
    ("/v1/chat/completions", {"model": "vectors", "messages": SAID}),
    ("/v1/completions", {"model": "vectors", "prompt": "hi"}),
    ("/v1/embeddings", {"model": "text", "input": "hi"}),
    ("/v1/embeddings", {"model": "eyes", "input": "hi"}),
    ("/v1/messages", {"model": "text", "max_tokens": 5, "messages": [{"role": "user", "content": [BLOCK]}]}),
    ("/v1/messages", {"model": "text", "max_tokens": 5, "messages": [{"role": "user", "content": [RESULT]}]}),
    ("/api/chat", {"model": "text", "messages": [{"role": "user", "content": "hi", "images": ["AAAA"]}]}),
    ("/api/generate", {"model": "text", "prompt": "hi", "images": ["AAAA"]}),
    ("/api/generate", {"model": "vectors", "prompt": "hi"}),
    ("/api/embed", {"model": "text", "input": "hi"}),
]


async def test_what_a_model_cannot_do_is_refused_before_any_load() -> None:
    """LANE-01: an image never reaches a text model, and no model is loaded to say so, at any door."""
    async with open_gateway(catalog=KNOWN) as opened:
        for path, body in REFUSED:
            answer = await opened.ask(path, body)
            assert answer.status == (501 if path == "/api/embed" else 400), (path, body, answer.body)
            assert str(body["model"]) in answer.body.decode()
        assert not opened.peer.asked
        assert loads(opened) == 0


@pytest.mark.parametrize(
    ("model", "messages"), [("eyes", LOOK), ("unknown", LOOK), ("text", SAID), ("eyes", SAID)]
)
async def test_what_a_model_can_do_or_may_do_passes(model: str, messages: list[object]) -> None:
    """LANE-01: what is not known is left to the engine."""
    async with open_gateway(catalog=KNOWN) as opened:
        answer = await opened.ask("/v1/chat/completions", {"model": model, "messages": messages})
        assert answer.status == 200, answer.body
        assert opened.peer.asked[-1].json["messages"] == messages


async def test_capabilities_are_listed_with_the_models() -> None:
    """LANE-01: a client can choose a model that sees. What only the engine knows is left out."""
    async with open_gateway(catalog=KNOWN) as opened:
        listed = (await opened.ask("/v1/models")).json["data"]
        assert isinstance(listed, list)
        assert {item["id"]: item["capabilities"] for item in listed} == {
            "text": ["completion"],
            "eyes": ["completion", "vision"],
            "vectors": ["embedding"],
            "unknown": ["completion"],
        }
        assert (await opened.ask("/v1/models/eyes")).json["capabilities"] == ["completion", "vision"]
        assert (await opened.ask("/api/show", {"model": "eyes"})).json["capabilities"] == [
            "completion",
            "vision",
        ]


async def test_a_reload_changes_what_a_model_can_do() -> None:
    """LANE-01: what was worked out for an old definition is not believed of a new one."""
    async with open_gateway(catalog=KNOWN) as opened:
        body = {"model": "text", "messages": LOOK}
        assert (await opened.ask("/v1/chat/completions", body)).status == 400
        text = replace(KNOWN.models["text"], arguments=("--mmproj", "/models/eyes.gguf"))
        changed = await opened.driver.reload(replace(KNOWN, models={**KNOWN.models, "text": text}))
        assert changed == ["model text changed"]
        assert (await opened.ask("/v1/chat/completions", body)).status == 200


async def test_an_alias_that_moves_to_a_blind_model_takes_no_image_any_more() -> None:
    """LANE-01: what was worked out for a name is believed of the model it means now."""

    def looking(seer: str) -> Catalog:
        models = {
            name: replace(model, aliases=("seer",) if name == seer else ())
            for name, model in KNOWN.models.items()
        }
        return replace(KNOWN, models=models)

    async with open_gateway(catalog=looking("eyes")) as opened:
        body = {"model": "seer", "messages": LOOK}
        for seer, status in (("eyes", 200), ("text", 400), ("eyes", 200)):
            await opened.driver.reload(looking(seer))
            for _ in range(2):  # worked out, then known
                assert (await opened.ask("/v1/chat/completions", body)).status == status, seer


def test_a_reload_says_what_only_a_restart_can_do() -> None:
    """RES-10: nothing looks as if it had worked."""
    card = replace(KNOWN, devices={**KNOWN.devices, "gpu:0": Device("gpu:0")})
    moved = replace(KNOWN, server=replace(KNOWN.server, port=1))
    silent = replace(KNOWN, journal=replace(KNOWN.journal, traffic=False))
    traced = replace(KNOWN, traces=replace(KNOWN.traces, endpoint="http://127.0.0.1:4318"))
    for changed, part, told in (
        (card, "devices", "the first card in the config needs a restart: cards are not probed yet"),
        (moved, "server", "the new address needs a restart"),
        (silent, "journal", "the change of [journal] needs a restart"),
        (traced, "traces", "the change of [traces] needs a restart"),
    ):
        assert changes(KNOWN, changed) == [f"{part} changed"]
        assert awaiting_restart(KNOWN, changed) == [told]
    assert changes(KNOWN, KNOWN) == awaiting_restart(KNOWN, KNOWN) == []


def test_images_are_found_wherever_a_protocol_puts_them() -> None:
    """LANE-01: OpenAI's parts, Anthropic's blocks and results, Ollama's lists; texts about images are texts."""
    assert has_image(LOOK)
    assert has_image([{"role": "user", "content": [RESULT]}])
    assert has_image([{"role": "user", "content": "x", "images": ["AAAA"]}])
    assert has_image([{"type": "message", "content": [{"type": "input_image", "image_url": "x"}]}])
    assert not has_image([{"role": "user", "content": "image_url"}])
    for odd in (None, 1, "x", {}, [None], [1], [{"content": 1}], [{"content": [None, 1]}], [{"images": []}]):
        assert not has_image(odd)


@pytest.mark.parametrize(
    ("said", "exact", "degraded"),
    [(None, False, 0), ("exact", True, 0), ("family", False, 0), ("x", False, 1)],
)
def test_a_caller_may_insist_on_the_very_model(said: str | None, exact: bool, degraded: int) -> None:
    """RES-27: X-Watchbill-Tier: exact. A value that makes no sense is the default, and is counted."""
    caller_options = CallerOptions()
    headers = {} if said is None else {"x-watchbill-tier": said}
    assert caller_options.read(headers, {"model": "a"}, CATALOG, None).exact is exact
    assert caller_options.degraded == degraded


async def test_wishes_reach_the_scheduler() -> None:
    """RES-07, RES-27: keep_alive and the tier arrive in the request that the core sees; no engine sees them."""
    hold = asyncio.Event()

    async def talk(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
        await hold.wait()

    async with open_gateway(talk) as opened:
        seen = []
        submit = opened.driver.submit
        opened.gateway.driver.submit = lambda submission: seen.append(submit(submission)) or seen[-1]  # type: ignore[method-assign]
        body = {"model": "a", "messages": SAID, "keep_alive": "7m"}
        asking = asyncio.create_task(
            opened.ask("/v1/chat/completions", body, headers={"X-Watchbill-Tier": "exact"})
        )
        await opened.peer.until(lambda peer: bool(peer.asked))
        assert (seen[0].request.exact, seen[0].request.keep_alive_ms) == (True, 420_000)
        assert "keep_alive" not in opened.peer.asked[0].json
        asking.cancel()
        await asyncio.wait([asking])
        await eventually(lambda: not opened.driver.requests())


async def test_status_shows_what_each_driver_can_do() -> None:
    """RES-10: what the contract suite skips for a driver, an operator can see."""
    async with open_gateway() as opened:
        engines = (await opened.ask("/wb/v1/status")).json["engines"]
        assert isinstance(engines, dict)
        assert engines["peer"]["driver"] == "process"
        assert engines["peer"]["capabilities"]["measures_memory"] is False
        assert engines["peer"]["capabilities"]["owned"] is True
