"""Headway: the signs by which a reader of heartbeats tells a task that works from one that does nothing. Pure.

An agent measures each of its tasks and shows the figures in its heartbeat; the coordinator compares them with those of
the last sign it saw (`watchers`). Any one of them is enough:

    output_bytes     the task wrote to its output
    written_bytes    a process of the task wrote to a file, a pipe or a connection
    cpu_ms           the task used processor time, a second or more: a timer that ticks in a hung program uses less
    touched          one of its files changed: in its folder, its result, a path in `produces`

The figures are of the task's whole process tree, ended processes included. Two values of `touched` are equal or not:
it is a time of another machine's clock. The sizes and the processor time only count when they grow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from watchbill.fleet import limits
from watchbill.fleet.folder.values import Fields

__all__ = ["Headway"]


@dataclass(frozen=True, slots=True)
class Headway:
    """How far a task has got, as its agent sees it."""

    output_bytes: int = 0
    written_bytes: int = 0
    cpu_ms: int = 0
    touched: int = 0

    @classmethod
    def of(cls, value: object) -> "Headway":
        """Read it from a heartbeat; an agent that tells nothing shows no headway."""
        fields = Fields(cast("Mapping[str, object]", value) if isinstance(value, dict) else {})
        return cls(*(fields.whole(key) for key in ("output_bytes", "written_bytes", "cpu_ms", "touched")))

    def fields(self) -> dict[str, object]:
        return {
            "output_bytes": self.output_bytes, "written_bytes": self.written_bytes, "cpu_ms": self.cpu_ms,
            "touched": self.touched,
        }  # fmt: skip

    def is_beyond(self, earlier: "Headway") -> bool:
        """Whether the task has got on since then."""
        return (
            self.output_bytes > earlier.output_bytes
            or self.written_bytes > earlier.written_bytes
            or self.cpu_ms - earlier.cpu_ms >= limits.HEADWAY_CPU_MS
            or self.touched != earlier.touched
        )
