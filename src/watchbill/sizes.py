"""Sizes: the learned figures of each model: its memory, its load time, its service time.

A prediction is a guess; a measurement is valid for exactly the circumstances under which it was taken. So it is kept
under a key made of all of them (the file's size and time, context, slots, what starts it, devices). When one changes,
Watchbill measures again instead of trusting an outdated figure.

    memory    95th percentile of the last loads' peaks, per device: what the ledger reserves; and the memory right after
              the last load, for a model whose peak is more than its device has
    load      median of the last nine, separately with and without the file in the page cache: they differ tenfold
    wake      median of the last nine, for models that sleep, and their memory asleep
    service   median per request

The file `learned.json` is replaced as a whole (written beside it, synced, renamed). A file that cannot be read is moved
aside and learning starts again: everything in it can be learned again.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from watchbill.files.atomic import replace_file
from watchbill.limits import SIZES_FILE_BYTES_MAX, SIZES_LOADS_USED, SIZES_MODELS_MAX, SIZES_SAMPLES_MAX
from watchbill.units import Bytes, Millis

__all__ = ["FILE_NAME", "Facts", "Learned", "Sizes", "facts_of"]

FILE_NAME = "learned.json"
VERSION = 1
_LOG = logging.getLogger("watchbill.sizes")


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything on which a model's figures depend."""

    model: str
    source: str
    file_bytes: int
    file_mtime_ns: int
    context: int
    slots: int
    engine: str  # the driver, and what its tables set
    #: The arguments, or the whole command, and the variables, with which it is started.
    command: tuple[str, ...]
    devices: tuple[str, ...]
    #: A short name for exactly these facts. Computed once: it is looked up for every answered request.
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        facts = (
            self.model, self.source, self.file_bytes, self.file_mtime_ns, self.context, self.slots,
            self.engine, self.command, self.devices,
        )  # fmt: skip
        text = json.dumps(facts, separators=(",", ":"))
        object.__setattr__(self, "key", hashlib.sha256(text.encode()).hexdigest()[:24])


def facts_of(
    model: str,
    source: str | None,
    *,
    context: int,
    slots: int,
    engine: str,
    command: Sequence[str] = (),
    devices: Sequence[str],
) -> Facts:
    """The facts of a model if it were loaded now. A source that is no file has neither size nor time."""
    size = mtime = 0
    with suppress(OSError):  # any errno: the engine knows the model by a name that is no file of ours
        found = os.stat(source or "")
        size, mtime = found.st_size, found.st_mtime_ns
    return Facts(model, source or "", size, mtime, context, slots, engine, tuple(command), tuple(devices))


@dataclass(frozen=True, slots=True)
class Learned:
    """The learned figures. None and empty mean: never measured."""

    memory: Mapping[str, Bytes]  # device -> 95th percentile
    load_cached_ms: Millis | None
    load_cold_ms: Millis | None
    service_ms: Millis | None
    loads: int
    requests: int
    wake_ms: Millis | None = None
    #: device -> the last reading asleep
    asleep: Mapping[str, int] = field(default_factory=dict[str, int])
    #: device -> the memory right after the last load, before use made it grow
    fresh: Mapping[str, int] = field(default_factory=dict[str, int])


class _Entry(msgspec.Struct, omit_defaults=True):
    """One model under one set of facts, as stored in the file. Samples are oldest first."""

    model: str
    used: float = 0.0  # seconds of the epoch; the longest unused entry is dropped first
    memory: dict[str, list[int]] = msgspec.field(default_factory=dict[str, list[int]])
    cached: list[int] = msgspec.field(default_factory=list[int])
    cold: list[int] = msgspec.field(default_factory=list[int])
    service: list[int] = msgspec.field(default_factory=list[int])
    wakes: list[int] = msgspec.field(default_factory=list[int])
    asleep: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    fresh: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    loads: int = 0
    requests: int = 0


class _File(msgspec.Struct):
    version: int
    entries: dict[str, _Entry]


class Sizes:
    """The learned figures of one state root. Recording is cheap and in memory; `save` writes them to the disk."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        warn: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self._path = folder / FILE_NAME
        self._clock, self._warn = clock, warn
        self._lock = threading.Lock()  # one save at a time, from any thread
        self._changed = False
        self._refused = False
        self._entries = self._read()

    def recall(self, facts: Facts) -> Learned | None:
        """The figures under exactly these facts; None when they were never seen."""
        entry = self._entries.get(facts.key)
        if entry is None:
            return None
        return Learned(
            memory=MappingProxyType(
                {device: Bytes(_p95(seen)) for device, seen in entry.memory.items() if seen}
            ),
            load_cached_ms=_median(entry.cached[-SIZES_LOADS_USED:]),
            load_cold_ms=_median(entry.cold[-SIZES_LOADS_USED:]),
            service_ms=_median(entry.service),
            loads=entry.loads,
            requests=entry.requests,
            wake_ms=_median(entry.wakes[-SIZES_LOADS_USED:]),
            asleep=entry.asleep,
            fresh=entry.fresh,
        )

    def record_load(self, facts: Facts, ms: int, memory: Mapping[str, int], *, cached: bool) -> None:
        """Records a successful load: its time and its memory. `memory` may be empty."""
        entry = self._entry(facts)
        entry.loads += 1
        entry.fresh = dict(memory) or entry.fresh
        _keep(entry.cached if cached else entry.cold, ms)
        for device, size in memory.items():
            _keep(entry.memory.setdefault(device, []), size)

    def record_memory(self, facts: Facts, memory: Mapping[str, int]) -> None:
        """Records a later reading of a warm model, whose buffers fill with use: each load counts with its largest one.

        If every reading were a sample, a quiet evening would displace the figures of a working model.
        """
        entry = self._entry(facts)
        for device, size in memory.items():
            seen = entry.memory.setdefault(device, [])
            seen[-1:] = [max(size, *seen[-1:])] if seen else [size]

    def record_wake(self, facts: Facts, ms: int) -> None:
        """Records the time of a waking."""
        _keep(self._entry(facts).wakes, ms)

    def record_asleep(self, facts: Facts, memory: Mapping[str, int]) -> None:
        """Records a reading of a sleeping model. The last one counts, because nothing in it grows."""
        self._entry(facts).asleep = dict(memory)

    def record_services(self, facts: Facts, taken_ms: Sequence[int]) -> None:
        """Records the times of complete answers, in this order."""
        entry = self._entry(facts)
        entry.requests += len(taken_ms)
        _keep(entry.service, *taken_ms)

    def save(self) -> None:
        """Writes the file when something changed. May block on the disk: call it in a thread.

        A disk that refuses costs one warning; the figures stay in memory and are tried again.
        """
        with self._lock:
            if not self._changed:
                return
            self._changed = False
            try:
                replace_file(self._path, msgspec.json.encode(_File(VERSION, dict(self._entries))))
                self._refused = False
            except OSError as refusal:  # every errno means the same: try later
                self._changed = True
                if not self._refused:
                    self._refused = True
                    self._warn(f"{self._path}: {refusal.strerror}; learned sizes are kept in memory")

    def _entry(self, facts: Facts) -> _Entry:
        key = facts.key
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= SIZES_MODELS_MAX:
                del self._entries[min(self._entries, key=lambda other: self._entries[other].used)]
            entry = self._entries[key] = _Entry(facts.model)
        entry.used = self._clock()
        self._changed = True
        return entry

    def _read(self) -> dict[str, _Entry]:
        try:
            with self._path.open("rb") as file:
                text = file.read(SIZES_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return {}
        try:
            if len(text) > SIZES_FILE_BYTES_MAX:
                raise msgspec.ValidationError("larger than it can be")
            found = msgspec.json.decode(text, type=_File)
            if found.version != VERSION:
                raise msgspec.ValidationError(f"version {found.version}, not {VERSION}")
        except msgspec.MsgspecError as error:  # bad JSON or bad content
            self._set_aside(str(error))
            return {}
        youngest = sorted(found.entries.items(), key=lambda item: item[1].used)[-SIZES_MODELS_MAX:]
        return dict(youngest)

    def _set_aside(self, why: str) -> None:
        kept = self._path.with_name(f"{FILE_NAME}.broken")
        self._path.replace(kept)
        self._warn(f"{self._path}: {why}; kept as {kept.name}, sizes and times are learned again")


def _keep(samples: list[int], *values: int) -> None:
    samples += values
    del samples[:-SIZES_SAMPLES_MAX]


def _p95(samples: Sequence[int]) -> int:
    """The smallest sample that 95 % do not exceed; for fewer than twenty that is the largest."""
    ordered = sorted(samples)
    return ordered[-(-len(ordered) * 95 // 100) - 1]


def _median(samples: Sequence[int]) -> Millis | None:
    """The median; of two in the middle the larger, because a load time that is too short misleads more."""
    return Millis(sorted(samples)[len(samples) // 2]) if samples else None
