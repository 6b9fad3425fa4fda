"""What /metrics says has a source: each figure is fed by what happens, and labels are words of closed lists."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.eventually import eventually
from support.open_gateway import CATALOG, HELLO, EmptyMachine, OpenGateway, open_gateway
from support.peer import Asked
from watchbill.catalog import Catalog, Device, Lane, SpoolRules
from watchbill.core.messages import Cause, Loaded
from watchbill.errors import EngineFailed
from watchbill.metrics import Metrics
from watchbill.probes import Reading
from watchbill.runtime.capture import Captured, SpoolCapture
from watchbill.runtime.drains import Drains
from watchbill.spool import Spool
from watchbill.steps import Steps
from watchbill.units import Bytes, Millis

CHAT = {"model": "a", "messages": []}


def figures(page: str) -> dict[str, float]:
    """Every sample of a page of metrics, by name and labels."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def test_a_model_that_leaves_is_counted_under_a_word_of_a_closed_list() -> None:
    """The label of an eviction is a cause, never the beginning of a sentence."""
    async with open_gateway() as opened:
        await opened.ask("/v1/chat/completions", CHAT)
        await opened.driver.evict("a")
        found = figures((await opened.ask("/metrics")).body.decode())
        evictions = {name for name in found if name.startswith("watchbill_evictions_total{")}
        assert evictions == {f'watchbill_evictions_total{{model="a",reason="{Cause.OPERATOR}"}}'}


async def test_the_first_token_of_streams_and_of_whole_answers_is_timed() -> None:
    """The histogram of first tokens has a source."""
    name = 'gen_ai_server_time_to_first_token_seconds_count{model="a"}'
    async with open_gateway() as opened:
        await opened.ask("/v1/chat/completions", CHAT)
        await opened.ask("/v1/chat/completions", {**CHAT, "stream": True})
        await opened.until_idle()
        assert figures(opened.driver.metrics.render().decode())[name] == 2


async def test_late_answers_of_engines_and_the_lag_of_the_loop_are_measured() -> None:
    """What the core counts as late, and how late timers fire, is on the page."""
    async with open_gateway() as opened:
        opened.driver.feed(Loaded("a", 999, {}))

        def found() -> dict[str, float]:
            return figures(opened.driver.metrics.render().decode())

        assert found()["watchbill_late_answers_dropped_total"] == 1
        await eventually(lambda: found()["watchbill_event_loop_lag_seconds_count"] > 0)


class Movement:
    """The readings of each exported family, from one scrape to the next."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._readings: dict[str, set[tuple[object, ...]]] = {}
        self.look()

    def look(self) -> None:
        for family in text_string_to_metric_families(self._metrics.render().decode()):
            samples = tuple((each.name, *each.labels.values(), each.value) for each in family.samples)
            self._readings.setdefault(family.name, set()).add(samples)

    def still(self) -> set[str]:
        """The families that have read the same all the time."""
        return {name for name, readings in self._readings.items() if len(readings) < 2}

    async def until(self, moved: str) -> None:
        def has_moved() -> bool:
            self.look()
            return moved not in self.still()

        await eventually(has_moved)


def crowded(reserve: int = 0, memory: int = 600 * 2**20) -> Catalog:
    """Three models of which one fits at a time."""
    large = {"ram": Bytes(memory)}
    models = {
        name: replace(CATALOG.models["a"], name=name, aliases=(), memory=large) for name in ("a", "b", "bad")
    }
    lanes = {"default": Lane("default", timeout_ms=Millis(60_000))}
    return replace(
        CATALOG, devices={"ram": Device("ram", reserve=Bytes(reserve))}, models=models, lanes=lanes
    )


async def swap(opened: OpenGateway, seen: Movement, answers: asyncio.Event) -> None:
    """One model is loaded and asked, and makes room for another; looks at the metrics in each of its stages."""
    engine, stopping = opened.engine, asyncio.Event()
    stop = engine.stop

    async def stop_later(model: str, *, hard: bool = False) -> None:
        await stopping.wait()
        await stop(model, hard=hard)

    engine.stop = stop_later  # pyright: ignore[reportAttributeAccessIssue]  the test's own engine, slower
    engine.gate.clear()
    first = asyncio.create_task(opened.ask("/v1/chat/completions", CHAT))
    await seen.until("watchbill_device_loading_bytes")
    engine.gate.set()
    await opened.peer.until(lambda peer: peer.working > 0)
    second = asyncio.create_task(opened.ask("/v1/chat/completions", {**CHAT, "model": "b"}))
    await seen.until("watchbill_device_planned_bytes")
    await seen.until("watchbill_oldest_wait_seconds")
    answers.set()
    await seen.until("watchbill_device_stopping_bytes")
    stopping.set()
    assert [(await first).status, (await second).status] == [200, 200]


async def test_a_request_a_swap_and_an_alert_move_every_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every family that /metrics exports has a source."""
    answers = asyncio.Event()

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answers.wait()
        await HELLO(asked, writer)

    async with open_gateway(talk, catalog=crowded()) as opened:
        seen, load = Movement(opened.driver.metrics), opened.engine.load
        await swap(opened, seen, answers)

        async def refuse_bad(model: Any, *words: Any) -> object:
            if model.name == "bad":
                raise EngineFailed("its file is broken")
            return await load(model, *words)

        opened.engine.load = refuse_bad  # pyright: ignore[reportAttributeAccessIssue]  the test's own engine, worse
        await opened.ask("/v1/chat/completions", {**CHAT, "model": "bad"})
        await seen.until("watchbill_alerts")
        opened.driver.feed(Loaded("a", 999, {}))
        less = Reading(Bytes(2**29), Bytes(2**29), Millis(0))
        monkeypatch.setattr(EmptyMachine, "read", lambda _: {"ram": less})
        await opened.driver.reload(crowded(reserve=2**20, memory=2**28))
        await seen.until("watchbill_event_loop_lag_seconds")
        elsewhere = ("watchbill_spool_", "watchbill_batch", "watchbill_tier_cost")
        # The next test is about those of spools, test_door_batches about those of batches, test_tiers about money.
        assert {name for name in seen.still() if not name.startswith(elsewhere)} == set()


async def test_a_drain_moves_every_metric_of_its_spool(tmp_path: Path) -> None:
    """SPOOL-04, SPOOL-06, SPOOL-13: every figure of a spool has a source."""
    rules = {
        "notes": SpoolRules("notes", "spool", MappingProxyType({"*": "corpus.jsonl"}), poll_ms=Millis(20))
    }
    drains, captures = Drains(tmp_path, lambda _: None), SpoolCapture(tmp_path, rules, lambda _: None)

    def spools() -> Steps[dict[str, object]]:
        yield
        captured = {f"capture_{key}": count for key, count in captures.view().get("notes", {}).items()}
        return {"spools": {name: told | captured for name, told in drains.view().items()}}

    seen = Movement(Metrics(spools))
    corpus = tmp_path / "corpus.jsonl"
    corpus.mkdir()  # in the way: events are taken and put back
    try:
        await asyncio.to_thread(drains.reconfigure, rules)
        with Spool(tmp_path / "spool") as spool:
            for event in ({"id": 1, "kind": "note", "ts": 0}, {"id": 1, "kind": "note", "ts": 0}, {"id": 2}):
                spool.enqueue(event)
        for family in ("waiting", "leased", "released"):
            await seen.until(f"watchbill_spool_{family}")
        corpus.rmdir()
        for family in ("drained", "duplicates", "poisoned", "poison"):
            await seen.until(f"watchbill_spool_{family}")
        captures.capture("notes", Captured("r1", 0.0, "default", "a", "local", "Why?", "So.", "ok"))
        captures.capture("notes", Captured("r2", 0.0, "default", "a", "local", "y" * 2**24, "So.", "ok"))
        for family in ("capture_waiting", "captured", "capture_dropped"):
            await seen.until(f"watchbill_spool_{family}")
    finally:
        await asyncio.to_thread(captures.close)
        await asyncio.to_thread(drains.close)
    assert not {name for name in seen.still() if name.startswith("watchbill_spool_")}
