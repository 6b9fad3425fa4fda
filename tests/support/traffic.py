"""Recorded traffic of a day, as a daemon leaves it."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_traffic"]


def write_traffic(
    folder: Path, models: Sequence[str], *, requests: int, memory: int, capacity: int, hours: float = 20
) -> None:
    """Requests to the models in turn, spread over the last hours, on a machine of this capacity."""
    span_ms = round(hours * 3_600_000)
    wall_ms = round(time.time() * 1000) - span_ms - 60_000
    devices = {"ram": {"capacity": capacity, "free": capacity}}
    lines: list[dict[str, object]] = [{"kind": "machine", "at_ms": 0, "devices": devices, "wall_ms": wall_ms}]
    lines += [
        {"kind": "load", "at_ms": 1, "model": name, "ms": 2_000, "memory": {"ram": memory}} for name in models
    ]
    shared = {"lane": "default", "work_class": "interactive", "waited_ms": 900, "forecast_ms": 0}
    lines += [
        {"kind": "request", "at_ms": span_ms * n // requests, "model": models[n % len(models)], **shared}
        | {"service_ms": 700, "outcome": "ok"}
        for n in range(requests)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "000001.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
