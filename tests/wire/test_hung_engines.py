"""RES-20: an engine that hangs is found by how its runs end, whoever ends them, in every lane and dialect."""

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.eventually import eventually
from support.open_gateway import raw
from support.running import running
from support.stopping import stop
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, ProcessType, WorkClass
from watchbill.core.model_state import ModelState
from watchbill.gateway.server import Serving
from watchbill.runtime.driver import Driver
from watchbill.units import Bytes, Millis

BRIEF_MS = 300
#: What a check of a warm model may take here; a minute in reality.
CHECK_MS = 500
MESSAGES = [{"role": "user", "content": "Hi"}]
LANES = {
    "default": Lane("default", timeout_ms=Millis(BRIEF_MS)),
    "kind": Lane("kind", timeout_ms=Millis(BRIEF_MS), fallback="I am not well."),
    "batch": Lane("batch", WorkClass.BACKGROUND, timeout_ms=Millis(BRIEF_MS)),
    "patient": Lane("patient"),
    "hasty": Lane("hasty", max_wait_ms=Millis(50)),
}
MODEL = Model("a", "scripted", memory={"ram": Bytes(2**20)}, concurrency=2, script={"tokens": 2})
PROCESS = {"thought": ProcessType("thought", "a", "kind", "{summary}")}
CATALOG = Catalog(
    {"ram": Device("ram")},
    {"scripted": EngineRules("scripted", "scripted")},
    {"a": MODEL},
    LANES,
    process=PROCESS,
)

CALLS: dict[str, tuple[str, dict[str, object], str]] = {
    "openai": ("/v1/chat/completions", {"messages": MESSAGES}, "default"),
    "openai streamed": ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, "default"),
    "completions": ("/v1/completions", {"prompt": "Hi"}, "default"),
    "embeddings": ("/v1/embeddings", {"input": "Hi"}, "default"),
    "fallback": ("/v1/chat/completions", {"messages": MESSAGES}, "kind"),
    "background": ("/v1/chat/completions", {"messages": MESSAGES}, "batch"),
    "ollama": ("/api/chat", {"messages": MESSAGES}, "default"),
    "ollama whole": ("/api/generate", {"prompt": "Hi", "stream": False}, "default"),
    "anthropic": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}, "default"),
    "anthropic streamed": (
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 2, "stream": True},
        "default",
    ),
    "process": ("/process", {"type": "thought", "payload": {"summary": "a cat"}}, ""),
}


class Place:
    """A gateway with a real engine that can be stopped as a debugger stops it."""

    def __init__(self, serving: Serving, driver: Driver) -> None:
        self.serving, self.driver = serving, driver

    @property
    def model(self) -> ModelState:
        return self.driver._core.state.models["a"]

    async def open(
        self, path: str, body: dict[str, object], lane: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        content = json.dumps(body if "type" in body else {"model": "a", **body}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.serving.port, limit=2**20)
        submission = f"X-Watchbill-Lane: {lane}\r\n" if lane else ""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.serving.port}\r\n{submission}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        return reader, writer

    async def ask(self, path: str, body: dict[str, object], lane: str) -> tuple[int, bytes]:
        reader, writer = await self.open(path, body, lane)
        try:
            answer = await raw(reader)
            return answer.status, answer.body
        finally:
            writer.close()

    async def freeze(self) -> int:
        """Brings the model up and stops its process."""
        assert (await self.ask(*CALLS["openai"][:2], "patient"))[0] == 200
        pid = self.driver._engines.warm["a"].pid
        assert pid is not None
        stop(pid)
        return pid

    def outcomes(self) -> set[str]:
        lines = self.driver.metrics.render().decode().splitlines()
        found = [line for line in lines if line.startswith("watchbill_requests_total{")]
        return {line.split('outcome="')[1].split('"')[0] for line in found}

    async def until_reset(self) -> None:
        try:
            await eventually(lambda: self.model.resets >= 1 or self.model.loads >= 2, 60)
        except AssertionError as error:  # what the scheduler knew of the engine
            names = ("stage", "is_suspect", "bad_answers", "stalled", "unheard_ms", "lingering", "running")
            error.add_note(str({name: getattr(self.model, name) for name in names}))
            error.add_note((self.driver.root / "events.jsonl").read_text())
            raise


@asynccontextmanager
async def place_of(
    root: Path, monkeypatch: pytest.MonkeyPatch, catalog: Catalog = CATALOG
) -> AsyncIterator[Place]:
    monkeypatch.setattr("watchbill.engines.limits.PROBE_MS_MAX", CHECK_MS)
    monkeypatch.setattr("watchbill.engines.connection.UPSTREAM_LET_GO_MS", 200)
    async with running(root, catalog) as (serving, driver):
        yield Place(serving, driver)


@pytest.mark.parametrize("call", CALLS)
async def test_three_runs_that_time_out_lead_to_the_question_and_the_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """RES-20, LANE-04: whichever door and lane: the run that timed out counts, under its own name, and the model is
    reset without anybody's hand. Seen: 64 of 64 requests failed over ten minutes, counted as cancelled."""
    async with place_of(tmp_path, monkeypatch) as place:
        await place.freeze()
        # One that never lets go of what was cut is asked earlier: on a busy machine after the first.
        bodies = [(await place.ask(*CALLS[call]))[1] for _ in range(3)]
        assert b"timeout" in bodies[0] or b"not well" in bodies[0], bodies
        await place.until_reset()
        # The last may run on the new engine, and on a busy machine its time may be over in the middle of its answer.
        assert {"ok", "run_timeout"} <= place.outcomes() <= {"ok", "run_timeout", "stalled"}
        assert (await place.ask(*CALLS["openai"][:2], "patient"))[0] == 200


async def test_who_waited_for_a_suspect_model_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20, LANE-08: the model is in memory, but `ready` would say that the caller need not have waited."""
    async with place_of(tmp_path, monkeypatch) as place:
        monkeypatch.setattr("watchbill.engines.limits.PROBE_MS_MAX", 60_000)
        pid = await place.freeze()
        for _ in range(3):
            if not place.model.is_doubted:
                await place.ask(*CALLS["openai"])
        await eventually(lambda: place.model.is_doubted)
        status, body = await place.ask(*CALLS["openai"][:2], "hasty")
        os.kill(pid, signal.SIGCONT)
        assert status == 503 and json.loads(body)["loading"]["state"] == "suspect"


async def test_callers_who_leave_because_nothing_comes_raise_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20: a client's own time limit ends a run as a caller who left; a long silence without a byte is a sign."""
    async with place_of(tmp_path, monkeypatch) as place:
        await place.freeze()
        for _ in range(12):
            if place.model.loads != 1 or place.model.is_suspect:
                break
            _, writer = await place.open(*CALLS["openai streamed"][:2], "patient")
            await eventually(lambda: place.model.running or place.model.is_suspect)
            await asyncio.sleep(place.model.silence_ms / 2000)  # the client's patience
            writer.transport.abort()
            await eventually(lambda: not place.model.running)
        await place.until_reset()
        assert place.outcomes() == {"ok", "cancelled"}


async def test_callers_who_leave_a_model_that_is_well_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20: who has heard something and leaves says nothing against its engine."""
    slow = dataclasses.replace(MODEL, script={"tokens": 200, "service": "20s"})
    async with place_of(tmp_path, monkeypatch, dataclasses.replace(CATALOG, models={"a": slow})) as place:
        for _ in range(5):
            reader, writer = await place.open(*CALLS["openai streamed"][:2], "patient")
            async with asyncio.timeout(60):
                await reader.readuntil(b"data: ")
            writer.transport.abort()
            await eventually(lambda: not place.model.running)
        assert (place.model.bad_answers, place.model.loads) == (0, 1)


async def test_an_engine_whose_words_still_come_is_slow_and_not_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20: a lane's time may be too short for a model; its timeouts cost nobody else the model."""
    slow = dataclasses.replace(MODEL, script={"tokens": 400, "service": "20s"})
    async with place_of(tmp_path, monkeypatch, dataclasses.replace(CATALOG, models={"a": slow})) as place:
        for _ in range(4):
            assert b"run_timeout" in (await place.ask(*CALLS["openai"]))[1]
        assert (place.model.bad_answers, place.model.loads) == (0, 1)


@pytest.mark.parametrize("probe", ["http", "none"])
async def test_an_engine_that_can_only_be_asked_for_its_health_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probe: str
) -> None:
    """RES-20: a stopped process does not answer its health address; where nothing can be asked, time must tell."""
    monkeypatch.setattr("watchbill.core.watchdog.UNASKED_MS", 1_000)
    monkeypatch.setattr("watchbill.core.watchdog.WELL_MS", 300)
    plain = dataclasses.replace(MODEL, probe=probe)
    async with place_of(tmp_path, monkeypatch, dataclasses.replace(CATALOG, models={"a": plain})) as place:
        if probe == "none":
            await until_up(place)
        await place.freeze()
        for _ in range(12):
            if place.model.loads != 1 or place.model.resets:
                break
            await place.ask(*CALLS["openai"])
        await place.until_reset()


async def until_up(place: Place) -> None:
    """A model without a probe counts as warm before its port is open."""

    async def is_up() -> bool:
        return (await place.ask(*CALLS["openai"][:2], "patient"))[0] == 200

    await eventually(is_up, 60)


async def test_a_model_that_is_healthy_and_slow_is_not_reset_for_three_quick_timeouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20: its health is good, nothing else can be asked, and three timeouts took no minute: that proves nothing."""
    slow = dataclasses.replace(MODEL, probe="http", script={"tokens": 1, "service": "3s"})
    async with place_of(tmp_path, monkeypatch, dataclasses.replace(CATALOG, models={"a": slow})) as place:
        assert (await place.ask(*CALLS["openai"][:2], "patient"))[0] == 200
        for _ in range(4):
            await place.ask(*CALLS["openai"])
        assert place.model.bad_answers >= 3
        assert (await place.ask(*CALLS["openai"][:2], "patient"))[0] == 200
        assert (place.model.loads, place.model.bad_answers) == (1, 0)


# ------------------------------------------------------------------ answers that stop in the middle


STALLING = dict(LANES, default=Lane("default", timeout_ms=Millis(1_500)))


def stalling(fail: str, tokens: int) -> Catalog:
    broken = dataclasses.replace(MODEL, script={"tokens": tokens, "service": "0.1s", "fail": fail})
    return dataclasses.replace(CATALOG, models={"a": broken}, lanes=STALLING)


async def ask_until_reset(place: Place, call: str, most: int) -> int:
    """Asks one after the other until the model is reset. Returns how many answers stopped."""
    stopped = 0
    while not place.model.resets and stopped < most:
        _, body = await place.ask(*CALLS[call])
        stopped += b"timeout" in body
    await place.until_reset()
    return stopped


@pytest.mark.parametrize("call", ["openai", "openai streamed", "ollama", "anthropic streamed"])
async def test_an_engine_that_hangs_after_its_first_words_fails_the_question_and_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """RES-20: the question asks for what callers ask for, a streamed answer up to its end. Seen: 50 of 50 answers
    failed behind the state `ready`, because the first token was taken for an answer."""
    monkeypatch.setattr("watchbill.core.watchdog.ALONE_MS_MIN", CHECK_MS)
    async with place_of(tmp_path, monkeypatch, stalling("hang-mid-stream", 2)) as place:
        place.model.first.learn(100)  # known to answer fast
        assert 1 <= await ask_until_reset(place, call, 5) <= 4
        assert "stalled" in place.outcomes()
        assert "stopped in the middle" in str(place.driver.status()["alerts"])


async def test_an_engine_that_hangs_late_in_its_answers_is_reset_although_it_passes_every_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20: its short answers are whole, so that no question finds it; its callers do."""
    async with place_of(tmp_path, monkeypatch, stalling("hang-late-in-stream", 40)) as place:
        place.model.first.learn(100)  # known to answer fast
        assert await ask_until_reset(place, "openai streamed", 12) <= 7
        # On a busy machine a time may be over before the silence is long enough to be one.
        assert "stalled" in place.outcomes() <= {"stalled", "run_timeout"}
        (alert,) = [each for each in place.driver.status()["alerts"] if each["kind"] == "watchdog"]  # type: ignore[attr-defined]
        assert "stopped in the middle" in alert["text"]
