"""The recorded traffic of the last day, as a trace on a catalog that may have changed since.

Reads the files of `runtime/traffic.py`: lines of several daemons, one after the other. Requests for models or lanes
that are gone are left out and counted, because a config changes more often than once a day. Blocks: call it in a
program of its own or in a thread.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from watchbill.catalog import Catalog, Model
from watchbill.errors import ConfigError
from watchbill.runtime.limits import TRAFFIC_HOURS
from watchbill.runtime.recorder import LoadLine, MachineLine, RequestLine
from watchbill.runtime.traffic import traffic_files
from watchbill.simulate.limits import WHAT_IF_REQUESTS_MAX
from watchbill.simulate.trace import Line, Trace

__all__ = ["Recent", "read_recent"]

_Any = TypeVar("_Any", MachineLine, LoadLine, RequestLine)
HOUR_MS = 3_600_000
#: The time of loads that were not in the recorded time: they are figures, not loads that count.
_BEFORE = -1


@dataclass(frozen=True, slots=True)
class Recent:
    """What was recorded. Times in the trace count from `since_ms`, which is of the wall clock."""

    trace: Trace
    since_ms: int
    until_ms: int
    left_out: int = 0

    def on(self, catalog: Catalog, known: Iterable[LoadLine] = ()) -> tuple["Recent", Catalog]:
        """The same without what this catalog lacks, and the catalog with the lanes that only callers name.

        `known` has the size and load time of models that were not loaded in this time.
        """
        loads = [*self.trace.loads, *_unseen(self.trace.loads, known)]
        sized = {line.model for line in loads if line.memory}
        kept = [line for line in self.trace.requests if _is_served(line, catalog, sized)]
        if not kept:
            raise ConfigError(
                "none of the recorded requests can be simulated: their models are not in the config any more"
            )
        absent = [model for model in catalog.models.values() if not _is_sized(model, sized)]
        loads += [LoadLine(_BEFORE, model.name, 0, dict.fromkeys(catalog.devices, 0)) for model in absent]
        lanes = {line.lane: lane for line in kept if (lane := catalog.offered_lane(line.lane)) is not None}
        trace = replace(self.trace, loads=loads, requests=kept)
        left_out = self.left_out + len(self.trace.requests) - len(kept)
        return replace(self, trace=trace, left_out=left_out), replace(
            catalog, lanes={**catalog.lanes, **lanes}
        )


def read_recent(
    folder: Path, *, hours: float = TRAFFIC_HOURS, now_ms: int | None = None, most: int = WHAT_IF_REQUESTS_MAX
) -> Recent:
    """The newest requests of the last hours. Raises ConfigError where there are none."""
    now_ms = round(time.time() * 1000) if now_ms is None else now_ms
    since = now_ms - round(hours * HOUR_MS)
    found = [line for line in _lines(traffic_files(folder)) if line.at_ms >= since]
    requests = sorted((x for x in found if isinstance(x, RequestLine)), key=lambda x: x.at_ms)
    if not requests:
        raise ConfigError(
            f"{folder}: no request was recorded in the last {hours:g} h; ask a model something first"
        )
    newest = requests[-most:]
    began = newest[0].at_ms
    machine = [x for x in found if isinstance(x, MachineLine)] or _machines(traffic_files(folder))
    loads = [x for x in found if isinstance(x, LoadLine)]  # those before the first request have times below 0
    trace = Trace(
        "recorded traffic",
        machine[-1] if machine else None,
        [_moved(x, -began) for x in loads],
        [_moved(x, -began) for x in newest],
    )
    return Recent(trace, began, newest[-1].at_ms, len(requests) - len(newest))


def _machines(files: Iterable[Path]) -> list[MachineLine]:
    """A daemon that has run for days wrote its line of the machine before all that is wanted."""
    return [line for line in _lines(files) if isinstance(line, MachineLine)]


def _lines(files: Iterable[Path]) -> Iterator[Line]:
    """Every whole line, at its time by the wall clock."""
    decoder = msgspec.json.Decoder(Line)
    for path in files:
        zero: int | None = None
        for text in _bytes_of(path).splitlines():
            try:
                line = decoder.decode(text)
            except msgspec.DecodeError:
                continue  # a crash cut it
            if isinstance(line, MachineLine):
                zero = line.wall_ms or None
            if zero is not None:
                yield _moved(line, zero)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""  # the daemon has just deleted it


def _moved(line: _Any, by_ms: int) -> _Any:
    return msgspec.structs.replace(line, at_ms=line.at_ms + by_ms)


def _is_served(line: RequestLine, catalog: Catalog, sized: set[str]) -> bool:
    """Whether the simulator can ask this. Work that Watchbill schedules by itself has no lane that callers name."""
    model = catalog.find_model(line.model)
    return model is not None and _is_sized(model, sized) and catalog.offered_lane(line.lane) is not None


def _is_sized(model: Model, sized: set[str]) -> bool:
    return model.shared or bool(model.memory) or model.name in sized


def _unseen(loads: Iterable[LoadLine], known: Iterable[LoadLine]) -> list[LoadLine]:
    seen = {line.model for line in loads if line.memory}
    unseen = [line for line in known if line.model not in seen and line.memory]
    return [msgspec.structs.replace(line, at_ms=_BEFORE) for line in unseen]
