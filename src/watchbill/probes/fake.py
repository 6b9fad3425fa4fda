"""Fake GPUs: a timeline per card in a JSON file, for tests and for trying a config without the hardware.

`WATCHBILL_FAKE_GPUS=FILE` replaces the real probe by this one. The file is read again for every reading, so a test, or
another process, changes the cards by replacing it:

    {"cards": [{"name": "gpu:0", "capacity": "24GB",
                "timeline": [{"at": 0, "used": 0}, {"at": 30, "used": "2GB", "temperature_c": 91}]}]}

`at` counts seconds since `started` (seconds of the epoch; the file's modification time when it is missing). A step
holds until the next one. A step may set used, processes, temperature_c, power_w, clock_mhz, utilisation_percent,
throttled, or `"fail": "reason"`, which makes the probe fail as a lost driver would. A card with a `uuid` has one owner
on the host; its `total` is its capacity unless it says otherwise, its `title` what its maker calls it.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from watchbill.errors import UnitError
from watchbill.probes import CardHealth, ProbeError, Reading
from watchbill.probes.limits import FAKE_GPUS_BYTES_MAX
from watchbill.units import Bytes, Millis, parse_bytes

__all__ = ["FAKE_GPUS", "FakeGpuProbe"]

FAKE_GPUS = "WATCHBILL_FAKE_GPUS"
Table = Mapping[str, object]


class FakeGpuProbe:
    """Reads the cards of a file. Raises ProbeError for a missing or invalid file, like a failing probe."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._clock, self._wall = path, clock, wall

    def read(self) -> Mapping[str, Reading]:
        """Device name -> the timeline's values for this moment."""
        try:
            with self._path.open("rb") as file:
                text = file.read(FAKE_GPUS_BYTES_MAX + 1)
                modified = os.fstat(file.fileno()).st_mtime
        except OSError as error:  # any errno: a probe that cannot read its source fails with that reason
            raise ProbeError(f"{self._path}: {error.strerror}") from error
        try:
            return self._cards(cast("Table", json.loads(text)), modified)
        except (ValueError, TypeError, KeyError, AttributeError, UnitError) as error:
            raise ProbeError(f"{self._path}: not a timeline of cards: {error}") from error

    def _cards(self, document: Table, modified: float) -> dict[str, Reading]:
        now = self._wall() - float(cast("float", document.get("started", modified)))
        cards = cast("list[Table]", document["cards"])
        return {str(card["name"]): self._reading(card, _step_of(card, now)) for card in cards}

    def _reading(self, card: Table, step: Table) -> Reading:
        if "fail" in step:
            raise ProbeError(f"{card['name']}: {step['fail']}")
        capacity = _bytes(card["capacity"])
        processes = cast("Table", step.get("processes", {}))
        return Reading(
            capacity=capacity,
            available=Bytes(max(0, capacity - _bytes(step.get("used", 0)))),
            taken_at=Millis(round(self._clock() * 1000)),
            processes={int(pid): _bytes(size) for pid, size in processes.items()},
            health=_health_of(card, step),
            uuid=str(card.get("uuid", "")),
            total=_bytes(card.get("total", card["capacity"])),
            title=str(card.get("title", "")),
        )


def _step_of(card: Table, now: float) -> Table:
    """The settings in force: each step keeps what the steps before it set."""
    merged: dict[str, object] = {}
    for step in cast("list[Table]", card.get("timeline", [])):
        if float(cast("float", step.get("at", 0))) <= now:
            merged.pop("fail", None)  # a failure lasts for its own step only
            merged.update(step)
    return merged


def _health_of(card: Table, step: Table) -> CardHealth:
    throttled = cast("list[object]", step.get("throttled", []))
    return CardHealth(
        temperature_c=_number(step.get("temperature_c")),
        slowdown_c=_number(card.get("slowdown_c")),
        shutdown_c=_number(card.get("shutdown_c")),
        power_w=_number(step.get("power_w")),
        power_limit_w=_number(card.get("power_limit_w")),
        clock_mhz=_whole(step.get("clock_mhz")),
        utilisation_percent=_whole(step.get("utilisation_percent")),
        throttled=tuple(str(reason) for reason in throttled),
    )


def _whole(value: object) -> int | None:
    return None if value is None else int(cast("int", value))


def _number(value: object) -> float | None:
    return None if value is None else float(cast("float", value))


def _bytes(value: object) -> Bytes:
    return parse_bytes(cast("str | int", value))
