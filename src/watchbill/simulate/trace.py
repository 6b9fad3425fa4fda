"""Traces: recorded requests, replayed against any config.

Arrivals and service times are those of the recording; load times and sizes are the medians of its loads. Requests
arrive at their recorded times, whatever the replay does: an agent that would have asked again sooner does not. A
request that was never answered gets the median service time of its model.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from watchbill.catalog import Catalog, Device, Model
from watchbill.errors import ConfigError
from watchbill.files.given import open_given
from watchbill.runtime.recorder import LoadLine, MachineLine, RequestLine
from watchbill.simulate.engine import TrueModel
from watchbill.simulate.limits import TRACE_LINES_MAX
from watchbill.simulate.scenario import Scenario
from watchbill.simulate.world import LOOK_EVERY_MS, World
from watchbill.units import Bytes

__all__ = ["Replay", "Trace"]

Line = MachineLine | LoadLine | RequestLine

#: Guesses for a model that the trace never saw loaded or served.
LOAD_GUESS_MS = 5_000.0
SERVICE_GUESS_MS = 1_000.0
#: The maximum number of machine readings in the replay of a long trace.
LOOKS_MAX = 2_000


class Arrival(NamedTuple):
    """One recorded request to be replayed."""

    at_ms: float
    model: str
    lane: str
    work_ms: float
    companions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """The recorded arrivals, as traffic."""

    arrivals: Sequence[Arrival]

    def begin(self, world: World, until_ms: float) -> None:
        """Puts every arrival on the agenda."""
        for arrival in self.arrivals:
            world.at(arrival.at_ms, lambda arrival=arrival: self._ask(world, arrival))

    @staticmethod
    def _ask(world: World, arrival: Arrival) -> None:
        world.arrive(arrival.model, arrival.work_ms, lane=arrival.lane, companions=arrival.companions)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recording."""

    name: str
    machine: MachineLine | None
    loads: Sequence[LoadLine]
    requests: Sequence[RequestLine]  # in order of arrival

    @classmethod
    def read(cls, path: Path) -> "Trace":
        """Reads a trace. Raises ConfigError for a file that is not one."""
        try:
            with open(open_given(path), "rb") as file:
                lines = list(_lines(file, path))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        requests = sorted((x for x in lines if isinstance(x, RequestLine)), key=lambda x: x.at_ms)
        if not requests:
            raise ConfigError(f"{path}: holds no requests; record some with: watchbill up --record FILE")
        machine = next((x for x in lines if isinstance(x, MachineLine)), None)
        return cls(path.stem, machine, [x for x in lines if isinstance(x, LoadLine)], requests)

    def scenario(self, catalog: Catalog) -> Scenario:
        """The trace as a scenario on this catalog. Raises ConfigError where the catalog lacks something it needs."""
        catalog = replace(catalog, devices={n: self._device(d) for n, d in catalog.devices.items()})
        services = {name: self._service_ms(name) for name in catalog.models}
        arrivals = [self._arrival(line, catalog, services) for line in self.requests]
        truth = {name: self._true(model) for name, model in catalog.models.items()}
        duration = self.requests[-1].at_ms + 1
        return Scenario(
            self.name,
            f"{self.name}: {len(arrivals)} recorded requests, replayed",
            duration,
            catalog,
            truth,
            services,
            [Replay(arrivals)],
            max(LOOK_EVERY_MS, duration / LOOKS_MAX),
        )

    def _device(self, device: Device) -> Device:
        """The device with the memory that is left for models: the config's capacity, less what other programs used.

        A config that names more than the recorded machine had describes a larger machine with the same other programs.
        """
        seen = self.machine.devices.get(device.name) if self.machine else None
        capacity = device.capacity if device.capacity is not None else (seen.capacity if seen else None)
        if capacity is None:
            raise ConfigError(f"devices.{device.name}.capacity: neither the config nor the trace says it")
        others = max(0, seen.capacity - seen.free) if seen else 0
        machine = max(capacity, seen.capacity if seen else 0)
        return replace(device, capacity=Bytes(max(0, min(capacity, machine - others))))

    def _true(self, model: Model) -> TrueModel:
        mine = [line for line in self.loads if line.model == model.name]
        memory = {} if model.shared else self._memory(model, mine)
        load_ms = median(line.ms for line in mine) if mine else LOAD_GUESS_MS
        # The recorded times include the neighbours.
        return TrueModel(model.name, load_ms, memory, slowdown=0.0)

    @staticmethod
    def _memory(model: Model, loads: Sequence[LoadLine]) -> dict[str, int]:
        if model.memory:
            return {device: int(size) for device, size in model.memory.items()}
        seen = [line.memory for line in loads if line.memory]
        if not seen:
            raise ConfigError(
                f"models.{model.name}.memory: neither the config nor the trace says how large it is"
            )
        return {device: max(sizes.get(device, 0) for sizes in seen) for device in seen[-1]}

    def _service_ms(self, model: str) -> float:
        mine = [
            x.service_ms for x in self.requests if x.model == model and x.service_ms and x.outcome == "ok"
        ]
        return float(median(mine)) if mine else SERVICE_GUESS_MS

    @staticmethod
    def _arrival(line: RequestLine, catalog: Catalog, services: dict[str, float]) -> Arrival:
        model = catalog.find_model(line.model)
        if model is None:
            raise ConfigError(f"the trace asks for model {line.model}, which the config does not have")
        if line.lane not in catalog.lanes:
            raise ConfigError(f"the trace uses lane {line.lane}, which the config does not have")
        done = line.service_ms if line.outcome == "ok" else None
        beside = [catalog.find_model(name) for name in line.companions]
        companions = tuple(found.name for found in beside if found is not None)
        work_ms = float(done or services[model.name])
        return Arrival(float(line.at_ms), model.name, line.lane, work_ms, companions)


def _lines(file: Iterable[bytes], path: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    for number, text in enumerate(file, 1):
        if number > TRACE_LINES_MAX:
            raise ConfigError(f"{path}: more than {TRACE_LINES_MAX:,} lines")
        try:
            yield decoder.decode(text)
        except msgspec.DecodeError as error:
            if not text.endswith(b"\n"):
                return  # an interrupted recording ends in half a line
            raise ConfigError(f"{path}:{number}: not a line of a trace: {error}") from error
