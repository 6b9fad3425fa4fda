"""Scenarios: models, a machine and traffic in a TOML file, for the simulator.

title = "What it shows, in one line"
duration = "15m"
streams = false                 # true: background answers that have begun run to their end: no engine continues them
[devices."gpu:0"]
capacity = "24GB"
[models.chat]
memory = "8GB"                  # or per device: { "gpu:0" = "8GB", "gpu:1" = "8GB" }
load = "8s"                     # true load time
service = "3s"                  # what an answer takes alone; the first guess of the core, too
concurrency = 4
[lanes.chat]
class = "interactive"
max_wait = "60s"
[[traffic]]
kind = "poisson"                # poisson, loop, or times
models = { chat = 1 }           # with weights
lane = "chat"
with = ["vision"]               # companions that must be in memory beside the one that is asked
every = "6s"                    # poisson and times: mean or fixed distance
start = "8h"                    # and stop: when this traffic begins and ends; the whole time otherwise
service = { mean = "3s", sigma = 0.6 }   # log-normal; { base, exp } or { mean, spread } as well
"""

import math
import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, PolicyRules, WorkClass
from watchbill.core.messages import Footprint, Knowledge
from watchbill.core.policy import Policy
from watchbill.errors import ConfigError
from watchbill.files.given import read_given
from watchbill.simulate.callers import Caller, Faults
from watchbill.simulate.engine import TrueModel
from watchbill.simulate.limits import SCENARIO_BYTES_MAX
from watchbill.simulate.world import LOOK_EVERY_MS, World
from watchbill.units import Millis, parse_bytes, parse_millis

__all__ = ["Scenario", "Source", "Traffic"]

_Table = Mapping[str, Any]
#: A refused caller obeys Retry-After, up to this.
RETRY_PATIENCE_MS = 30_000.0
#: A bound that never applies.
ENDLESS = Millis(10**9)


class Source(Protocol):
    """A source of requests for a world's agenda."""

    def begin(self, world: World, until_ms: float) -> None:
        """Puts its requests on the agenda."""
        ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """One source of random requests."""

    kind: str  # poisson, loop, times
    models: tuple[str, ...]  # drawn from by weight, or taken in turn by `times`
    weights: tuple[float, ...]
    lane: str
    service: Callable[[random.Random], float]
    every_ms: float = 0.0
    start_ms: float = 0.0
    stop_ms: float = math.inf
    count: int | None = None
    clients: int = 1
    think_ms: tuple[float, float] = (0.0, 0.0)
    companions: tuple[str, ...] = ()

    def begin(self, world: World, until_ms: float) -> None:
        """Puts the traffic on the world's agenda."""
        until_ms = min(until_ms, self.stop_ms)
        {"poisson": self._poisson, "times": self._times, "loop": self._loops}[self.kind](world, until_ms)

    def _ask(self, world: World, model: str, then: Callable[[Caller], None] | None = None) -> None:
        beside = tuple(name for name in self.companions if name != model)
        world.arrive(model, self.service(world.random), lane=self.lane, then=then, companions=beside)

    def _poisson(self, world: World, until_ms: float) -> None:
        when = self.start_ms + world.random.expovariate(1 / self.every_ms)
        while when < until_ms:
            model = world.random.choices(self.models, self.weights)[0]
            world.at(when, lambda model=model: self._ask(world, model))
            when += world.random.expovariate(1 / self.every_ms)

    def _times(self, world: World, until_ms: float) -> None:
        count = (
            self.count if self.count is not None else math.ceil((until_ms - self.start_ms) / self.every_ms)
        )
        for i in range(count):
            model = self.models[i % len(self.models)]
            world.at(self.start_ms + i * self.every_ms, lambda model=model: self._ask(world, model))

    def _loops(self, world: World, until_ms: float) -> None:
        for _ in range(self.clients):
            world.at(
                self.start_ms + world.random.uniform(0, 1_000), lambda: self._loop(world, until_ms, None)
            )

    def _loop(self, world: World, until_ms: float, before: Caller | None) -> None:
        pause = world.random.uniform(*self.think_ms)
        if before is not None and before.retry_after_ms:
            pause = max(pause, min(before.retry_after_ms, RETRY_PATIENCE_MS))
        if world.now + pause >= until_ms:
            return
        model = world.random.choices(self.models, self.weights)[0]
        world.at(
            world.now + pause,
            lambda: self._ask(world, model, lambda caller: self._loop(world, until_ms, caller)),
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A machine, its models and their traffic."""

    name: str
    title: str
    duration_ms: int
    catalog: Catalog
    truth: Mapping[str, TrueModel]
    service_ms: Mapping[str, float]
    traffic: "Sequence[Source]"
    look_every_ms: float = LOOK_EVERY_MS
    streams: bool = False
    faults: Faults = field(default_factory=Faults)

    @classmethod
    def read(cls, path: Path) -> "Scenario":
        """Reads a scenario file. Raises ConfigError with the file's name."""
        try:
            text = read_given(path, SCENARIO_BYTES_MAX).decode("utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: is not UTF-8 text; save the file as UTF-8") from error
        return cls.parse(text, path.stem, str(path))

    @classmethod
    def parse(cls, text: str, name: str, origin: str) -> "Scenario":
        """Parses a scenario. Raises ConfigError with the name of its origin."""
        try:
            return _scenario(name, tomllib.loads(text))
        except KeyError as error:
            raise ConfigError(f"{origin}: not a scenario: {error.args[0]!r} is missing or unknown") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"{origin}: not a scenario: {error}") from error
        except (IndexError, StopIteration) as error:
            raise ConfigError(f"{origin}: not a scenario: a list or table is empty") from error
        except RecursionError as error:
            raise ConfigError(f"{origin}: not a scenario: it is nested too deeply") from error

    def world(
        self,
        seed: int = 0,
        *,
        policy: Policy | None = None,
        rules: PolicyRules | None = None,
        guesses: tuple[float, float] | None = (0.5, 2.0),
        endless: bool = False,
    ) -> World:
        """A world of this scenario, with its traffic on the agenda. The core starts with wrong guesses, or with none.

        `endless` removes the bounds, as in servers that let every request wait. Which requests started within the
        scenario's own bound can still be seen from the waits.
        """
        catalog = replace(self.catalog, policy=rules or self.catalog.policy)
        if endless:
            catalog = replace(
                catalog, lanes={n: replace(k, max_wait_ms=ENDLESS) for n, k in catalog.lanes.items()}
            )
        capacity = {name: int(device.capacity or 0) for name, device in catalog.devices.items()}
        known = self._wrong_guesses(random.Random(seed), guesses)
        world = World(
            catalog, self.truth, capacity, seed=seed, faults=self.faults, policy=policy, known=known
        )
        world.look_every_ms, world.indivisible = self.look_every_ms, float(self.streams)
        for traffic in self.traffic:
            traffic.begin(world, self.duration_ms)
        return world

    def _wrong_guesses(self, draw: random.Random, off: tuple[float, float] | None) -> dict[str, Knowledge]:
        if off is None:
            return {n: Knowledge(Footprint(true.memory, true.memory)) for n, true in self.truth.items()}

        def wrong(true: float) -> float:
            return true * math.exp(draw.uniform(math.log(off[0]), math.log(off[1])))

        return {
            name: Knowledge(
                Footprint(true.memory, true.memory), wrong(true.load_ms), wrong(self.service_ms[name])
            )
            for name, true in self.truth.items()
        }

    def bound_ms(self, lane: str) -> int:
        """How long a caller of this lane is willing to wait."""
        return self.catalog.lanes[lane].max_wait_ms


def _scenario(name: str, table: _Table) -> Scenario:
    devices = {n: _device(n, t) for n, t in table["devices"].items()}
    models = {n: _model(n, t, devices) for n, t in table["models"].items()}
    lanes = {n: _lane(n, t) for n, t in table["lanes"].items()}
    engines = {"scripted": EngineRules("scripted", "scripted")}
    truth = {
        n: TrueModel(n, parse_millis(t["load"]), models[n].memory, t.get("slowdown", 0.3))
        for n, t in table["models"].items()
    }
    return Scenario(
        name,
        table.get("title", name),
        parse_millis(table["duration"]),
        Catalog(devices, engines, models, lanes),
        truth,
        {n: float(parse_millis(t["service"])) for n, t in table["models"].items()},
        [_sensible(_traffic(t), models, lanes) for t in table["traffic"]],
        _precise(table.get("look", f"{LOOK_EVERY_MS}ms")),
        table.get("streams", False),
        Faults(**table.get("faults", {})),
    )


def _device(name: str, table: _Table) -> Device:
    return Device(
        name,
        capacity=parse_bytes(table["capacity"]),
        reserve=parse_bytes(table.get("reserve", 0)),
        max_resident=table.get("max_resident"),
    )


def _model(name: str, table: _Table, devices: Mapping[str, Device]) -> Model:
    memory: dict[str, str] | str = table["memory"]
    per_device = memory if isinstance(memory, dict) else {next(iter(devices)): memory}
    sizes = {device: parse_bytes(size) for device, size in per_device.items()}
    if table.get("concurrency", 1) < 1:
        raise ValueError(f"models.{name}.concurrency must be at least 1")
    return Model(
        name,
        "scripted",
        memory=sizes,
        devices=tuple(sizes),
        permanent=table.get("permanent", False),
        concurrency=table.get("concurrency", 1),
        group=table.get("group"),
        family=table.get("family"),
        family_rank=table.get("tier"),
        idle_ms=parse_millis(table.get("idle", "1d")),
    )


def _lane(name: str, table: _Table) -> Lane:
    return Lane(
        name,
        WorkClass[table["class"].upper()],
        max_wait_ms=parse_millis(table["max_wait"]),
        timeout_ms=Millis(table.get("timeout_ms", 600_000)),
        queue_max=table.get("queue_max", 10_000),
    )


def _traffic(table: _Table) -> Traffic:
    models: dict[str, float] | list[str] = table["models"]
    weights = models.values() if isinstance(models, dict) else [1.0] * len(models)
    think: Sequence[str] = table.get("think", ("0s", "0s"))
    return Traffic(
        table["kind"],
        tuple(models),
        tuple(weights),
        table["lane"],
        _duration(table["service"]),
        every_ms=_precise(table.get("every", "0s")),
        start_ms=_precise(table.get("start", "0s")),
        stop_ms=_precise(table["stop"]) if "stop" in table else math.inf,
        count=table.get("count"),
        clients=table.get("clients", 1),
        think_ms=(_precise(think[0]), _precise(think[1])),
        companions=tuple(table.get("with", ())),
    )


def _sensible(traffic: Traffic, models: Mapping[str, Model], lanes: Mapping[str, Lane]) -> Traffic:
    """The traffic, unless it cannot be played: an unknown name, or an interval of zero."""
    for kind, name, known in (
        ("kind of traffic", traffic.kind, ("poisson", "times", "loop")),
        ("lane", traffic.lane, lanes),
        *(("model", name, models) for name in (*traffic.models, *traffic.companions)),
    ):
        if name not in known:
            raise ValueError(f"traffic: there is no {kind} {name!r}; known are {', '.join(known)}")
    if traffic.kind != "loop" and traffic.count is None and traffic.every_ms <= 0:
        raise ValueError(f"traffic: every must be more than 0s where kind is {traffic.kind!r}")
    return traffic


def _precise(text: str) -> float:
    return float(parse_millis(text))


def _duration(table: str | _Table) -> Callable[[random.Random], float]:
    """The length of an answer: fixed, `base` plus an exponential, `mean` plus or minus `spread`, or log-normal."""
    if isinstance(table, str):
        if (fixed := _precise(table)) <= 0:
            raise ValueError("traffic: service must be more than 0s")  # otherwise time would never pass
        return lambda draw: fixed
    if "exp" in table:
        base, exp = _precise(table["base"]), _precise(table["exp"])
        return lambda draw: base + draw.expovariate(1 / exp)
    mean = _precise(table["mean"])
    if "spread" in table:
        spread = table["spread"]
        return lambda draw: mean * draw.uniform(1 - spread, 1 + spread)
    sigma = table["sigma"]
    return lambda draw: draw.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
