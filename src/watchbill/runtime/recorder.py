"""The recorder: arrivals, loads and ends, for `watchbill simulate --trace`. One JSON object per line.

    {"kind":"machine","at_ms":0,"devices":{"ram":{"capacity":16000000000,"free":9000000000}}}
    {"kind":"load","at_ms":812,"model":"chat","ms":2210,"memory":{"ram":4600000000}}
    {"kind":"request","at_ms":30,"model":"chat","lane":"default","work_class":"interactive","waited_ms":3010,
     "forecast_ms":2900,"service_ms":1240,"outcome":"ok"}

Holds no prompts, no answers and no names of callers. A request is written when it ends, so lines are not in order of
arrival. When the disk fails, recording ends with a warning and the daemon goes on. The same lines go to the traffic of
the last day (`traffic.py`), where the line of the machine also has the wall clock's time at 0 ms.
"""

import logging
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

import msgspec

from watchbill.files.torn import mend_end
from watchbill.runtime.limits import TRACE_FLUSH_MS
from watchbill.runtime.ticket import Ticket
from watchbill.runtime.traffic import Traffic

__all__ = ["DeviceLine", "LoadLine", "MachineLine", "Recorder", "RequestLine"]

_LOG = logging.getLogger("watchbill.recorder")


class DeviceLine(msgspec.Struct, frozen=True):
    """One device at the start of the recording."""

    capacity: int
    free: int  # for models, without the memory of other programs


class MachineLine(msgspec.Struct, frozen=True, tag_field="kind", tag="machine", omit_defaults=True):
    """The machine at the start of the recording."""

    at_ms: int
    devices: dict[str, DeviceLine]
    wall_ms: int = 0  # the wall clock's time at 0 ms; 0: not said


class LoadLine(msgspec.Struct, frozen=True, tag_field="kind", tag="load"):
    """A model became warm."""

    at_ms: int
    model: str
    ms: int
    memory: dict[str, int]


class RequestLine(msgspec.Struct, frozen=True, gc=False, tag_field="kind", tag="request", omit_defaults=True):
    """A request came at `at_ms` and has ended."""

    at_ms: int
    model: str  # the requested one
    lane: str
    work_class: str
    waited_ms: int
    forecast_ms: int | None  # None: no forecast was possible
    service_ms: int | None  # None when it never started
    outcome: str  # ok, engine_failed, cancelled, or the code of the refusal
    companions: tuple[str, ...] = ()  # the models it needed beside it


class Recorder:
    """Writes a trace to a file, to the traffic of the last day, to both, or nothing."""

    def __init__(self, file: Path | None = None, now: int = 0, traffic: Traffic | None = None) -> None:
        # Not buffered by Python: a buffered file whose last write failed could not even be closed.
        self._file: FileIO | None = file.open("a+b", buffering=0) if file else None
        if (
            self._file is not None
        ):  # one that recorded before may have ended in a power cut, or on a full disk
            mend_end(self._file.fileno(), b"{")
        self._traffic = traffic
        self.is_on = file is not None or traffic is not None
        self._lines = bytearray()
        self._began = self._flushed = now
        self._encode = msgspec.json.Encoder().encode

    def machine(self, devices: Mapping[str, tuple[int, int]], now: int) -> None:
        """Writes the devices: device -> capacity and the free part of it for models."""
        lines = {name: DeviceLine(capacity, free) for name, (capacity, free) in devices.items()}
        line = MachineLine(now - self._began, lines)
        if self._traffic is not None:
            wall_ms = round(time.time() * 1000) - line.at_ms
            self._traffic.begin(msgspec.structs.replace(line, wall_ms=wall_ms))
        if self._file is not None:
            self._write_file(self._file, line, now)

    def loaded(self, model: str, ms: int, memory: Mapping[str, int], now: int) -> None:
        """Writes a load."""
        self._write(LoadLine(now - self._began, model, ms, dict(memory)), now)

    def ended(self, ticket: Ticket, outcome: str, now: int) -> None:
        """Writes a request that has ended in any way."""
        request, started = ticket.request, ticket.started_at
        line = RequestLine(
            request.arrived_at - self._began,
            request.model,
            request.lane,
            request.work_class.word,
            (now if started is None else started) - request.arrived_at,
            ticket.forecast_ms,
            None if started is None else now - started,
            outcome,
            request.companions,
        )
        self._write(line, now)

    def _write(self, line: LoadLine | RequestLine, now: int) -> None:
        if self._traffic is not None:
            self._traffic.take(line)
        if self._file is not None:
            self._write_file(self._file, line, now)

    def _write_file(self, file: FileIO, line: msgspec.Struct, now: int) -> None:
        self._lines += self._encode(line) + b"\n"
        if now - self._flushed >= TRACE_FLUSH_MS:
            self._flushed = now
            self._flush(file)

    def _flush(self, file: FileIO) -> None:
        try:
            file.write(self._lines)
            self._lines.clear()
        except OSError as error:  # any errno: a full or failing disk must not stop the daemon
            _LOG.warning("recording ends: %s", error)
            self._file = None
            file.close()

    def close(self) -> None:
        """Writes the last lines."""
        if self._traffic is not None:
            self._traffic.close()
        if self._file is not None:
            self._flush(self._file)
        if self._file is not None:
            self._file.close()
            self._file = None
