"""Promised against kept: over random worlds in which requests have to wait, a forecast is neither early nor late.

A single forecast may be wrong, because later requests overtake, or the one before leaves. Many are right in the middle,
for every class, and for callers who ask once as for loops.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from statistics import quantiles

import pytest

from support.worlds import make_model, make_world
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, PolicyRules, WorkClass
from watchbill.core.messages import Footprint, Knowledge
from watchbill.simulate.engine import TrueModel
from watchbill.simulate.scenario import Scenario
from watchbill.simulate.world import Faults, World
from watchbill.units import Bytes, Millis

SCENARIOS = Path(__file__).parents[2] / "bench" / "scenarios"
GB = 10**9
WORLDS = 16
TRAFFIC_MS = 300_000
#: Shorter waits than this are no matter, and a ratio of them says nothing.
SHORT_MS = 100
LARGE, SMALL = 16 * GB, 2 * GB
LANES = {
    "person": Lane("person", WorkClass.INTERACTIVE, max_wait_ms=Millis(120_000)),
    "batch": Lane("batch", WorkClass.BACKGROUND, max_wait_ms=Millis(600_000), queue_max=10_000),
}


def _person(max_wait_ms: float) -> Lane:
    return Lane("person", WorkClass.INTERACTIVE, max_wait_ms=Millis(int(max_wait_ms)))


class Promised(World):
    """A world of one card: large models of which one fits, and sometimes small ones beside it."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(f"promises {seed}")
        kind = draw.choice(("large", "mixed", "beside"))
        count = draw.randint(2, 5)
        sizes = {
            "large": [LARGE] * count,
            "mixed": [draw.choice((SMALL, SMALL, LARGE)) for _ in range(count)],
            "beside": [LARGE] * (count - 1) + [SMALL] * 3,
        }[kind]
        capacity = {"large": 24, "mixed": 20, "beside": 21}[kind] * GB
        ranked = draw.random() < 0.5
        models = [
            Model(
                f"m{number}", "scripted", memory={"gpu:0": Bytes(size)}, devices=("gpu:0",),
                concurrency=draw.choice((1, 2, 4)), priority=draw.randint(1, 5) if ranked else 3,
            )
            for number, size in enumerate(sizes)
        ]  # fmt: skip
        load_ms = draw.uniform(1_000, 8_000)
        truth = {
            m.name: TrueModel(
                m.name,
                load_ms * (0.3 if m.memory["gpu:0"] == SMALL else 1.0) * draw.uniform(0.8, 1.2),
                dict(m.memory),
                slowdown=0.0,
            )
            for m in models
        }
        self.service = {
            m.name: draw.choice((draw.uniform(200, 500), draw.uniform(300, 3_000))) for m in models
        }
        known = {
            m.name: Knowledge(
                Footprint(dict(m.memory), dict(m.memory)), truth[m.name].load_ms, self.service[m.name]
            )
            for m in models
        }
        catalog = Catalog(
            {"gpu:0": Device("gpu:0", capacity=Bytes(capacity))},
            {"scripted": EngineRules("scripted", "scripted")},
            {m.name: m for m in models},
            LANES,
            PolicyRules(),
        )
        faults = Faults(jitter=(0.95, 1.05))
        super().__init__(catalog, truth, {"gpu:0": capacity}, seed=seed, faults=faults, known=known)
        self.mute = draw.random() < 0.5
        self.indivisible = float(seed % 4 == 3)  # answers with a grammar: they stop at no boundary
        self.looped = {m.name for m in draw.sample(models, draw.choice((0, 1, 1, 2)) if count > 2 else 1)}
        for name in sorted(self.looped):
            lane = draw.choice(sorted(LANES))
            for _ in range(draw.choice((1, 2, 4))):
                self._loop(name, lane)
        for model in models:
            if model.name not in self.looped:
                self._now_and_then(model.name)

    def _ask(self, name: str, lane: str, then: object = None) -> None:
        work_ms = self.service[name] * self.random.uniform(0.9, 1.1)
        self.arrive(name, work_ms, lane=lane, then=then)  # type: ignore[arg-type]

    def _loop(self, name: str, lane: str) -> None:
        def again(_: object = None) -> None:
            when = self.now + self.draw.choice((5, 5, 200))
            if when < TRAFFIC_MS:
                self.at(when, lambda: self._ask(name, lane, again))

        again()

    def _now_and_then(self, name: str) -> None:
        for lane in self.draw.choice((("person",), ("batch",), ("person", "batch"))):
            every_ms = self.draw.uniform(10_000, 60_000)
            when = self.draw.expovariate(1 / every_ms)
            while when < TRAFFIC_MS:
                self.at(when, lambda lane=lane: self._ask(name, lane))
                when += self.draw.expovariate(1 / every_ms)


def ratios_of(world: World) -> dict[tuple[WorkClass, str], list[float]]:
    """Kept over promised of everybody who waited or was told to, by class and model."""
    found: dict[tuple[WorkClass, str], list[float]] = defaultdict(list)
    for caller in world.explicit():
        if caller.started_at is None or caller.forecast_ms is None:
            continue
        kept = caller.started_at - caller.request.arrived_at
        if max(kept, caller.forecast_ms) >= SHORT_MS:
            ratio = (kept + SHORT_MS) / (caller.forecast_ms + SHORT_MS)
            found[caller.request.work_class, caller.request.model].append(ratio)
    return found


@cache
def ratios() -> dict[tuple[WorkClass, bool], list[float]]:
    """The ratios of all worlds, by class and whether the caller was a loop."""
    found: dict[tuple[WorkClass, bool], list[float]] = defaultdict(list)
    for seed in range(WORLDS):
        world = Promised(seed)
        world.run(TRAFFIC_MS + 650_000)
        assert not world.judge.broken
        for (work_class, model), each in ratios_of(world).items():
            found[work_class, model in world.looped] += each
    return found


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = quantiles(values, n=4)
    return low, middle, high


@pytest.mark.parametrize("is_loop", [True, False], ids=["loops", "now and then"])
@pytest.mark.parametrize("work_class", [WorkClass.INTERACTIVE, WorkClass.BACKGROUND])
def test_what_is_kept_is_what_was_promised(work_class: WorkClass, is_loop: bool) -> None:
    """LANE-08: the median of kept over promised is near 1, and half of all forecasts are close to it on both sides.
    Background work now and then waits for pauses of others and is overtaken: half of it is within wider bounds."""
    found = ratios()[work_class, is_loop]
    assert len(found) > 100
    low, middle, high = quartiles(found)
    if work_class is WorkClass.BACKGROUND and not is_loop:
        assert 0.85 <= middle <= 1.15 and low >= 0.35 and high <= 1.35, (low, middle, high)
    else:
        assert 0.9 <= middle <= 1.1 and low >= 0.8 and high <= 1.3, (low, middle, high)


@pytest.mark.parametrize(
    "name", ["agents", "equals", "flood", "one-loop", "short-answers", "steady"], ids=str
)
def test_the_traffic_of_the_table_gets_what_it_was_promised(name: str) -> None:
    """LANE-08, RES-11: every model of the scenarios, those that leave and come back included. Agents were promised 19 s
    and waited 34, background loops 2 s and waited 3."""
    scenario = Scenario.read(SCENARIOS / f"{name}.toml")
    found: dict[tuple[WorkClass, str], list[float]] = defaultdict(list)
    for seed in range(3):
        for key, each in ratios_of(scenario.world(seed).run(1.5 * scenario.duration_ms)).items():
            found[key] += each
    assert found
    medians = {key: quartiles(each)[1] for key, each in found.items()}
    assert all(0.85 <= middle <= 1.2 for middle in medians.values()), medians


# ------------------------------------------------------------------ answers that become slower


def slower(seed: int, factor: int, slots: int) -> World:
    """A model whose answers take `factor` times as long after a minute, and as much traffic as it can serve."""
    answer_ms, change_ms = 400, 60_000
    world = make_world(
        make_model("A", concurrency=slots),
        load_ms=2_000,
        known_service_ms=answer_ms,
        lanes={"person": _person(600_000)},
    )
    world.random.seed(seed)

    def ask(times: int) -> None:
        world.arrive("A", times * answer_ms * world.random.uniform(0.8, 1.2), lane="person")

    when = 0.0
    while when < change_ms + 12 * factor * answer_ms:
        times = factor if when >= change_ms else 1
        world.at(when, partial(ask, times))
        when += world.random.expovariate(slots / (1.2 * times * answer_ms))
    return world.run(when + 600_000)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("factor", [5, 20])
def test_forecasts_follow_answers_that_become_slower(factor: int, slots: int) -> None:
    """LANE-08: after three of the slower answers, promises are kept again; they lagged for fifteen."""
    found: list[float] = []
    for seed in range(8):
        for caller in slower(seed, factor, slots).explicit():
            came = caller.request.arrived_at
            if came < 60_000 + 3 * factor * 400 or caller.started_at is None or caller.forecast_ms is None:
                continue
            kept = caller.started_at - came
            if max(kept, caller.forecast_ms) >= SHORT_MS:
                found.append((kept + SHORT_MS) / (caller.forecast_ms + SHORT_MS))
    assert len(found) > 30
    low, middle, high = quartiles(found)
    assert 0.75 <= middle <= 1.25 and low >= 0.6 and high <= 1.4, (low, middle, high)
