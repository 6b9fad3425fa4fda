"""POST /process: typed work, its prompts and its fallbacks, and the bot that thinks of the newest only."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eventually import eventually
from support.open_gateway import CATALOG, GatewayClient, RawAnswer, open_gateway
from support.peer import Asked, chat_events, sse, stream_of
from support.running import running
from watchbill.catalog import Catalog, Lane, Model, ProcessType, WorkClass
from watchbill.config import parse
from watchbill.errors import ConfigError, RequestError
from watchbill.gateway.fallback import summarize
from watchbill.templates import Template
from watchbill.units import Bytes, Millis

KEYS = {"id", "type", "thought", "fallback", "error", "model", "lane", "created_at", "wait_ms"}
LANES = {
    "default": Lane("default"),
    "seen": Lane("seen", policy="latest-wins", fallback="I keep my eyes open."),
    "brief": Lane("brief", timeout_ms=Millis(150), fallback="Later."),
    "narrow": Lane("narrow", queue_max=1, fallback="Too much."),
}
TYPES = {
    "observation": ProcessType(
        "observation",
        "bot",
        "seen",
        "You see: {summary}. {payload.mood} {{json}} {id}",
        "I notice {summary}.",
        9,
    ),
    "plain": ProcessType("plain", "bot"),
    "brief": ProcessType("brief", "bot", "brief"),
    "narrow": ProcessType("narrow", "bot", "narrow"),
}
BOT = replace(
    CATALOG, models={"bot": Model("bot", "peer", memory={"ram": Bytes(2**20)})}, lanes=LANES, process=TYPES
)
SEEN = {"type": "observation", "payload": {"summary": "a {payload.mood} cow", "mood": "calm"}}


async def test_a_type_whose_model_cannot_speak_loads_nothing() -> None:
    """LANE-05: the answer has the keys of every other, says why, and no engine was asked."""
    vectors = replace(BOT.models["bot"], embedding=True)
    async with open_gateway(catalog=replace(BOT, models={"bot": vectors})) as opened:
        told = (await opened.ask("/process", SEEN)).json
        assert told.keys() == KEYS and (told["fallback"], told["error"]) == (True, "invalid_request")
        assert not opened.peer.asked


async def test_a_thought_comes_with_the_keys_that_every_answer_has() -> None:
    """LANE-05: type to lane, model, prompt; exactly these keys."""
    async with open_gateway(stream_of(sse(*chat_events(" Moo. "))), catalog=BOT) as opened:
        answer = await opened.ask("/process", {**SEEN, "id": "o-1"})
        assert answer.status == 200 and answer.json.keys() == KEYS
        told = answer.json
        assert (told["id"], told["type"], told["thought"]) == ("o-1", "observation", "Moo.")
        assert (told["fallback"], told["error"], told["model"], told["lane"]) == (False, None, "bot", "seen")
        assert answer.headers["x-watchbill-lane"] == "seen" and isinstance(told["wait_ms"], int)
        sent = opened.peer.asked[0].json
        # The summary's own braces are not read again.
        assert sent["messages"] == [
            {"role": "user", "content": "You see: a {payload.mood} cow. calm {json} o-1"}
        ]
        assert sent["max_tokens"] == 9
        again = await opened.ask("/process", {**SEEN, "id": 7})
        assert again.json["id"] == "7"


async def test_a_lane_of_the_header_does_not_take_work_out_of_its_types_lane() -> None:
    """LANE-05: the type decides."""
    async with open_gateway(catalog=BOT) as opened:
        answer = await opened.ask("/process", SEEN, headers={"X-Watchbill-Lane": "default"})
        assert answer.json["lane"] == answer.headers["x-watchbill-lane"] == "seen"


async def test_failures_are_fallbacks_with_their_own_names() -> None:
    """LANE-04: stale and timeout are names of their own; HTTP 200, the same keys, no model."""

    async def broken(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def silent(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    for talk, kind, error, thought in (
        (broken, "plain", "engine_failed", "I notice rain."),
        (broken, "narrow", "engine_failed", "Too much."),
        (silent, "brief", "timeout", "Later."),
    ):
        async with open_gateway(talk, catalog=BOT) as opened:
            answer = await opened.ask("/process", {"type": kind, "payload": {"summary": "rain"}})
            assert answer.status == 200 and answer.json.keys() == KEYS
            told = answer.json
            assert (told["fallback"], told["error"], told["model"]) == (True, error, None)
            assert told["thought"] == thought
            assert answer.headers["x-watchbill-fallback"] == error


async def test_a_full_lane_and_a_missed_wait_are_fallbacks_too() -> None:
    """LANE-04, LANE-08"""
    async with open_gateway(catalog=BOT) as opened:
        opened.engine.gate.clear()
        work = {"type": "narrow", "payload": {}}
        first = asyncio.create_task(opened.ask("/process", work))
        await opened.until_waiting()
        full = await opened.ask("/process", work)
        assert (full.status, full.json["error"]) == (200, "lane_full")
        late = await opened.ask("/process", {"type": "plain"}, headers={"X-Watchbill-Deadline-Ms": "1"})
        assert (late.status, late.json["error"]) == (200, "timeout")
        opened.engine.gate.set()
        assert (await first).json["fallback"] is False


@pytest.mark.parametrize(
    "body",
    [
        {}, {"type": "odd"}, {"type": 7}, {"type": "plain", "payload": []}, {"type": "plain", "payload": None},
        {"type": "plain", "id": "a b"}, {"type": "plain", "id": ["x"]}, {"type": "plain", "id": "x" * 129},
        {"type": "observation", "payload": {"summary": "x"}}, b"[]", b"{",
    ],
    ids=str,
)  # fmt: skip
async def test_nonsense_is_refused(body: object) -> None:
    """R42: what the caller did wrong is an error, not a thought."""
    async with open_gateway(catalog=BOT) as opened:
        answer = await opened.ask("/process", body)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert opened.peer.asked == []


async def test_only_json_is_taken() -> None:
    """pitfalls: /process demands JSON, so that a web page's form cannot post to it."""
    async with open_gateway(catalog=BOT) as opened:
        answer = await opened.ask("/process", SEEN, headers={"Content-Type": "text/plain"})
        assert answer.status == 415


# ------------------------------------------------------------------ stale answers on the other doors


@pytest.mark.parametrize("stream", [False, True])
async def test_a_superseded_chat_is_a_normal_completion(stream: bool) -> None:
    """LANE-03: 200, the lane's text, a header and an object; never a top-level error; no model is asked."""
    async with open_gateway(catalog=BOT) as opened:
        opened.engine.gate.clear()
        body = {"model": "bot", "messages": [{"role": "user", "content": "x"}], "stream": stream}
        lane = {"X-Watchbill-Lane": "seen"}
        older = [
            asyncio.create_task(opened.ask(path, body, headers=lane))
            for path in ("/v1/chat/completions", "/api/chat")
        ]
        await eventually(older[0].done)  # the second took its place
        newest = asyncio.create_task(opened.ask("/v1/chat/completions", body, headers=lane))
        await eventually(older[1].done)
        openai, ollama = await older[0], await older[1]
        for answer in (openai, ollama):
            assert (answer.status, answer.headers["x-watchbill-fallback"]) == (200, "stale")
            assert b'"watchbill":{"fallback":true,"error":"stale"}' in answer.body
            assert b"I keep my eyes open." in answer.body
        if not stream:
            assert "error" not in openai.json and openai.json["choices"][0]["finish_reason"] == "stop"
            assert "error" not in ollama.json and ollama.json["done"] is True
        opened.engine.gate.set()
        assert (await newest).status == 200
        assert len(opened.peer.asked) == 1


async def test_a_supersede_key_culls_only_its_own() -> None:
    """LANE-03: of a supersede key, where given."""
    async with open_gateway(catalog=BOT) as opened:
        opened.engine.gate.clear()

        def post(key: str) -> "asyncio.Task[RawAnswer]":
            return asyncio.create_task(
                opened.ask("/process", SEEN, headers={"X-Watchbill-Supersede-Key": key})
            )

        cow, pig = post("cow"), post("pig")
        await opened.until_waiting(2)
        newer = post("cow")
        await eventually(cow.done)
        assert (await cow).json["error"] == "stale"
        opened.engine.gate.set()
        assert (await pig).json["error"] is None and (await newer).json["error"] is None


# ------------------------------------------------------------------ the bot of seed 002


EXAMPLE = (Path(__file__).parents[2] / "examples" / "cognition.toml").read_text()


def rehearsal() -> Catalog:
    """The example's lanes and types around a scripted model."""
    told = parse(EXAMPLE, base=Path("/"))
    script = {"service": "1500ms", "text": "I think."}
    model = Model("thinker", "scripted", script=script, permanent=True, memory={"ram": Bytes(2**20)})
    engines = parse('[models.x]\nengine = "scripted"', base=Path("/")).engines
    ram = replace(told.devices["ram"], reserve=Bytes(0))
    return replace(told, models={"thinker": model}, engines=engines, devices={"ram": ram})


async def test_forty_observations_during_a_run_cost_one_more_call(tmp_path: Path) -> None:
    """LANE-03: thirty-nine are told at once that they are stale; the newest is thought about; chat is not delayed."""
    async with running(tmp_path, rehearsal()) as (serving, driver):
        await eventually(lambda: driver.status()["models"]["thinker"]["state"] == "ready")
        opened = GatewayClient(serving)
        arrived: dict[int, float] = {}
        ended: dict[int, float] = {}

        async def observe(number: int) -> RawAnswer:
            work = {"type": "environmental_awareness", "id": f"o-{number}"}
            arrived[number] = time.monotonic()
            answer = await opened.ask("/process", {**work, "payload": {"entities": [f"cow {number}"]}})
            ended[number] = time.monotonic()
            return answer

        def ids(state: str) -> list[object]:
            return [request["id"] for request in driver.requests() if request["state"] == state]

        running_one = asyncio.create_task(observe(0))
        await eventually(lambda: ids("running"))
        tasks = []
        for number in range(1, 41):
            tasks.append(asyncio.create_task(observe(number)))
            await eventually(lambda seen=number: len(driver.requests()) == 2 and len(arrived) == seen + 1)
        chat = asyncio.create_task(
            opened.ask("/process", {"type": "social_interaction", "payload": {"summary": "hello"}})
        )
        stale = [json.loads((await task).body) for task in tasks[:-1]]
        assert not running_one.done(), "a stale answer must not wait for the backend"
        assert [told["error"] for told in stale] == ["stale"] * 39
        assert all(
            told["fallback"] and told["model"] is None and told["lane"] == "observation" for told in stale
        )
        assert stale[6]["thought"] == "I notice cow 7."
        newest, first = (await tasks[-1]).json, (await running_one).json
        assert (newest["id"], newest["error"], newest["model"]) == ("o-40", None, "thinker")
        assert first["error"] is None
        # The chat came last and went before the observation that waited.
        assert (await chat).json["wait_ms"] < newest["wait_ms"]
        counted = driver.metrics.render().decode()
        assert 'watchbill_requests_total{lane="observation",outcome="ok"} 2.0' in counted
        assert 'watchbill_requests_total{lane="observation",outcome="stale"} 39.0' in counted
        # How soon each was told after the next one superseded it; printed, and bounded generously.
        spans = sorted(ended[number] - arrived[number + 1] for number in range(1, 40))
        print(f"stale answers: median {spans[20] * 1000:.1f} ms, last {spans[-1] * 1000:.1f} ms")


def test_the_example_is_the_bot_of_the_lanes() -> None:
    """LANE-05: the types of the seed, each in a lane that exists."""
    told = parse(EXAMPLE, base=Path("/"))
    assert set(told.process) == {
        "environmental_awareness", "environmental_event", "intrusion", "social_interaction",
    }  # fmt: skip
    lane = told.lanes[told.process["environmental_awareness"].lane]
    assert lane.policy == "latest-wins" and lane.fallback
    assert told.lanes[told.process["social_interaction"].lane].work_class is WorkClass.INTERACTIVE


# ------------------------------------------------------------------ texts


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_value_is_put_in_as_it_is_and_never_read_again(summary: str, mood: str) -> None:
    """R51: no second expansion, whatever a value looks like."""
    values = {"summary": summary, "type": "{id}", "id": "{payload.mood}"}
    told = Template("<{summary}|{type}|{id}|{payload.mood}>").fill(values, {"mood": mood})
    assert told == f"<{summary}|{{id}}|{{payload.mood}}|{mood}>"


@given(st.text(alphabet="{}ab.", max_size=40))
def test_a_template_of_braces_is_read_or_refused_and_never_anything_else(text: str) -> None:
    """R51"""
    try:
        template = Template(text)
    except ConfigError:
        return
    assert template.places == []
    assert len(template.fill({}, {})) <= len(text)


def test_braces_that_are_no_places_stand_for_themselves() -> None:
    text = 'Answer as {"mood": "x"} or { } or {{summary}}: {summary}'
    told = Template(text).fill({"summary": "S", "type": "", "id": ""}, {})
    assert told == 'Answer as {"mood": "x"} or { } or {summary}: S'


@pytest.mark.parametrize("text", ["{sumary}", "{payload}", "{summary.__class__}", "{id.x}", "{_x}"])
def test_a_place_that_does_not_exist_is_refused_in_the_config(text: str) -> None:
    """R51: an unknown field is an error."""
    with pytest.raises(ConfigError, match=r"1: process.t.prompt: there is no"):
        parse(
            f"process.t = {{ model = 'a', prompt = '{text}' }}\n[models.a]\nengine = 'scripted'",
            base=Path("/"),
        )


def test_every_key_of_a_type_reaches_the_catalog() -> None:
    """LANE-05: type to lane, model, prompt template and fallback."""
    text = "model = 'a'\nlane = 'seen'\nprompt = '{type}'\nfallback = '{summary}'\nmax_tokens = 5"
    told = parse(f"[process.t]\n{text}\n[models.a]\nengine = 'scripted'\n[lanes.seen]", base=Path("/"))
    assert told.process == {"t": ProcessType("t", "a", "seen", "{type}", "{summary}", 5)}


def test_what_a_type_names_must_exist() -> None:
    with pytest.raises(ConfigError) as wrong:
        parse(
            "[process.t]\nmodel = 'bott'\nlane = 'sen'\n[models.bot]\nengine = 'scripted'\n[lanes.seen]",
            base=Path("/"),
        )
    assert [str(problem).partition(": ")[2] for problem in wrong.value.problems] == [
        "process.t.model: there is no model bott; did you mean bot?",
        "process.t.lane: there is no lane sen; did you mean seen?",
    ]


def test_what_the_payload_lacks_is_refused() -> None:
    for place in ("{payload.a}", "{payload.b.c}", "{payload.b.c.d}"):
        with pytest.raises(RequestError):
            Template(place).fill({}, {"b": {"x": 1}})
    assert Template("{payload.b.x} {payload.l}").fill({}, {"b": {"x": 1}, "l": [1, None]}) == "1 [1,null]"


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        ({"summary": " two\nlines "}, "two lines"),
        ({"entities": ["cow", "cow", {"type": "zombie", "distance": 3}], "events": [{"description": "dusk"}]},
         "2 x cow, zombie, dusk"),
        ({"entities": [{"odd": 1}], "events": "no list"}, '{"odd":1}'),
        ({"summary": "", "entities": [None, ""]}, "nothing of note"),
        ({}, "nothing of note"),
        ({"entities": list(range(25))}, ", ".join(map(str, range(20))) + ", and 5 more"),
    ],
)  # fmt: skip
def test_a_summary_is_one_line(payload: dict[str, object], line: str) -> None:
    """LANE-05: the payload's own, else built from entities and events."""
    assert summarize(payload) == line
