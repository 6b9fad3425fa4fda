"""Engines at runtime: the events that the core gets about loads, stops and questions, whatever the engines do."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.peer import Asked, peer_listening
from watchbill.catalog import Catalog, Device, EngineRules, Model
from watchbill.core import messages as m
from watchbill.engines.base import Capabilities, DeathCallback, Endpoint, HostCallback, Warm
from watchbill.errors import ConfigError
from watchbill.runtime.engines import Engines
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.sizes import Sizes
from watchbill.units import Bytes

WELL = b'HTTP/1.1 200 OK\r\nContent-Length: 38\r\n\r\ndata: {"choices":[{}]}\n\ndata: [DONE]\n\n'


class HandEngine:
    """An engine whose every act ends when, and as, the test says."""

    capabilities = Capabilities(owned=True, measures_memory=True, stops_generation=True, sleeps="told")

    def __init__(self, on_death: DeathCallback) -> None:
        self.on_death = on_death
        self.warm = Warm(Endpoint("127.0.0.1", 1), None, {}, "chat")
        self.acts: list[str] = []
        self.gates: list[asyncio.Event] = []  # stops wait for theirs, in order; without one they do not wait
        self.breaks: Exception | None = None  # raised by sleep and rouse
        self.is_closed = False

    async def load(self, model: Model, attempt: int, expected_ms: int | None = None) -> Warm:
        self.acts.append(f"load {attempt}")
        return self.warm

    async def stop(self, model: str, *, hard: bool = False) -> None:
        self.acts.append("stop")
        if self.gates:
            await self.gates.pop(0).wait()

    async def sleep(self, model: str, attempt: int) -> Mapping[str, int]:
        if self.breaks is not None:
            raise self.breaks
        return {"ram": 1}

    async def wake(self, model: Model, attempt: int) -> Warm:
        if self.breaks is not None:
            raise self.breaks
        return self.warm

    async def is_asleep(self, model: str) -> bool | None:
        return None

    def memory(self, model: str) -> Mapping[str, int]:
        return {"ram": 7}

    async def close(self) -> None:
        self.is_closed = True


class Harness:
    """The engines of a driver with one hand-made engine, and every event that the core would have got."""

    def __init__(self, *models: str) -> None:
        self.made: list[HandEngine] = []
        self.heard: list[m.Event] = []
        self._more = asyncio.Condition()
        self.engines = Engines(catalog_of(*(models or ("A",))), self._make, self._hear, self._look)

    def _make(self, rules: EngineRules, on_death: DeathCallback, _: HostCallback) -> HandEngine:
        self.made.append(HandEngine(on_death))
        return self.made[-1]

    @property
    def engine(self) -> HandEngine:
        return self.made[-1]

    def _hear(self, event: m.Event) -> None:
        self.heard.append(event)
        self._told = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        async with self._more:
            self._more.notify_all()

    async def _look(self) -> None:
        return

    async def hears(self, count: int = 1) -> m.Event:
        """Waits until so many events have come; the last of them."""
        async with asyncio.timeout(10), self._more:
            await self._more.wait_for(lambda: len(self.heard) >= count)
        return self.heard[count - 1]

    async def load(self, attempt: int = 1) -> None:
        count = len(self.heard) + 1
        self.engines.load(m.Load("A", attempt, 5_000), look_at_nothing)
        assert isinstance(await self.hears(count), m.Loaded)


async def look_at_nothing(_model: str) -> None:
    return


def catalog_of(*names: str, rules: EngineRules | None = None) -> Catalog:
    engine = rules or EngineRules("hand", "hand")
    models = {name: Model(name, "hand", memory={"ram": Bytes(9)}, devices=("ram",)) for name in names}
    return Catalog({"ram": Device("ram")}, {"hand": engine}, models, {})


@asynccontextmanager
async def harness_of(*models: str) -> AsyncIterator[Harness]:
    harness = Harness(*models)
    try:
        yield harness
    finally:
        await harness.engines.close()


async def test_a_model_that_cannot_be_asked_says_so_instead_of_having_failed() -> None:
    """RES-20: what was proved warm by its health only has no answer to give; that is no evidence against it."""
    async with harness_of() as harness:
        harness.engine.warm = Warm(Endpoint("127.0.0.1", 1), None, {}, "http")
        await harness.load()
        harness.engines.check(m.Check("A", 1))
        told = await harness.hears(2)
        assert isinstance(told, m.Checked) and told.failure and not told.was_asked


async def test_the_end_of_an_old_question_is_not_taken_for_the_answer_to_a_new_one() -> None:
    """RES-20: the first was asked beside others and proves nothing; the core hears of the second only."""
    answers = [asyncio.Event(), asyncio.Event()]

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answers[len(peer.asked) - 1].wait()
        writer.write(WELL)

    async with peer_listening(talk) as peer, harness_of() as harness:
        harness.engine.warm = Warm(peer.endpoint, None, {}, "chat")
        await harness.load()
        harness.engines.check(m.Check("A", 1))
        await peer.until(lambda p: len(p.asked) == 1)
        harness.engines.check(m.Check("A", 1))
        await peer.until(lambda p: len(p.asked) == 2 and p.left == 1)
        answers[1].set()
        assert await harness.hears(2) == m.Checked("A", 1)
    assert len(harness.heard) == 2


async def test_a_model_that_dies_while_it_is_asked_is_reported_dead() -> None:
    """RES-20: its death says more than a question that broke off."""

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with peer_listening(talk) as peer, harness_of() as harness:
        harness.engine.warm = Warm(peer.endpoint, None, {}, "chat")
        await harness.load()
        harness.engines.check(m.Check("A", 1))
        await peer.until(lambda p: len(p.asked) == 1)
        harness.engine.on_death("A", 1, "signal 9")
        assert await harness.hears(2) == m.Died("A", 1, "signal 9")
        assert "A" not in harness.engines.warm


async def test_the_late_end_of_an_old_stop_takes_nothing_from_the_next_load() -> None:
    """RES-04: the core gave the first stop up and asked again; what was loaded since is still seen in memory."""
    async with harness_of() as harness:
        await harness.load()
        slow = asyncio.Event()
        harness.engine.gates.append(slow)
        harness.engines.stop(m.Stop("A", 2, False))
        harness.engines.stop(m.Stop("A", 3, True))
        assert await harness.hears(2) == m.Stopped("A", 3)
        await harness.load(4)
        slow.set()
        assert await harness.hears(4) == m.Stopped("A", 2)
        assert harness.engines.memory({}) == {"A": (4, {"ram": 7})}


async def test_the_late_news_of_an_old_death_takes_nothing_from_the_next_load() -> None:
    """RES-20: a model that is warm stays where requests are sent to, whatever is told of the one before."""
    async with harness_of() as harness:
        await harness.load()
        harness.engines.stop(m.Stop("A", 2, True))
        await harness.hears(2)
        await harness.load(3)
        harness.engine.on_death("A", 1, "signal 9")
        assert "A" in harness.engines.warm
        harness.engine.on_death("A", 3, "signal 9")
        assert "A" not in harness.engines.warm


async def test_a_waking_that_breaks_is_told_and_nothing_of_it_is_left() -> None:
    """RES-04: whatever a driver raises, the core hears of it at once, and the process is not left behind."""
    async with harness_of() as harness:
        await harness.load()
        harness.engine.breaks = ValueError("a bug")
        harness.engines.wake(m.WakeModel("A", 2, 5_000))
        told = await harness.hears(2)
        assert isinstance(told, m.LoadFailed) and "a bug" in told.reason
        assert harness.engine.acts == ["load 1", "stop"]


async def test_a_model_that_cannot_be_put_to_sleep_is_stopped_whatever_the_reason() -> None:
    """RES-04: its memory was promised to somebody."""
    async with harness_of() as harness:
        await harness.load()
        harness.engine.breaks = ValueError("a bug")
        harness.engines.sleep(m.Sleep("A", 2))
        assert await harness.hears(2) == m.Stopped("A", 2)


async def test_a_reload_that_fails_changes_nothing() -> None:
    """pitfalls: applied or refused whole: engines are made before any of them takes another's place."""
    async with harness_of() as harness:
        before = harness.engines.view({}, {})

        def refuse(rules: EngineRules, on_death: DeathCallback, _: HostCallback) -> HandEngine:
            if rules.name == "zebra":
                raise ConfigError("no such animal")
            return HandEngine(on_death)

        harness.engines._make = refuse
        changed = EngineRules("hand", "hand", url="http://127.0.0.1:1")
        catalog = catalog_of("A", rules=changed)
        more = replace(
            catalog,
            engines={**catalog.engines, "zebra": EngineRules("zebra", "hand")},
            models={**catalog.models, "Z": Model("Z", "zebra")},
        )
        with pytest.raises(ConfigError):
            harness.engines.reconfigure(more)
        assert harness.engines.view({}, {}) == before
        await harness.load()
        assert harness.engine.acts == ["load 1"]


async def test_the_look_at_the_file_of_a_model_is_not_on_the_loop(tmp_path: Path) -> None:
    """R58: the file may be on a mount that hangs."""
    source = tmp_path / "a.gguf"
    source.write_bytes(b"x" * 4096)
    model = Model("A", "own", source=str(source), memory={"ram": Bytes(9)})
    catalog = Catalog({"ram": Device("ram")}, {"own": EngineRules("own", "process")}, {"A": model}, {})
    learned, opened_by = LearnedSizes(catalog, Sizes(tmp_path)), list[int]()

    def note(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and str(args[0]) == str(source):
            opened_by.append(threading.get_ident())

    sys.addaudithook(note)  # for the rest of the process; it only ever notes this one file
    await learned.before_load("A")
    assert opened_by and threading.get_ident() not in opened_by
