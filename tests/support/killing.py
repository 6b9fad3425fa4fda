"""Where to kill a program: at the calls by which it changes a disk, in the order of its own life.

A clean run under strace gives the calls; each later run dies at one of them. Points are chosen along the whole
life, not by the calls' names: one machine's `rename` is the other's `renameat`, and their numbers differ.
"""

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CALLS", "EVERY", "Point", "Traced", "deadly", "life", "some"]

#: The calls by which the spool changes a disk. Reading ones cannot leave anything half done. The question mark is for
#: calls that only some machines have.
CALLS = ",".join(
    f"?{name}"
    for name in (
        "fsync", "fdatasync", "syncfs", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "unlink", "unlinkat",
        "rmdir", "link", "linkat", "pwrite64", "flock", "ftruncate", "fchmod", "fchmodat", "chmod",
    )
)  # fmt: skip
#: `make torture` dies at each call, the suite at some.
EVERY = os.environ.get("WATCHBILL_KILL_EVERY") == "1"

Traced = Callable[..., Any]


class Point(NamedTuple):
    """The k-th call of this name."""

    call: str
    number: int


def life(traced: Traced, log: Path, program: str, *arguments: str, calls: str = CALLS) -> list[Point]:
    """Return the calls of a clean run, in their order."""
    options = ["-o", str(log), "-e", f"trace={calls}"]
    run = traced(program, *arguments, options=options)
    assert run.returncode == 0, run.stderr
    seen: Counter[str] = Counter()
    found: list[Point] = []
    for name in re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE):
        seen[name] += 1
        found.append(Point(name, seen[name]))
    return found


def some(calls: list[Point], count: int) -> list[Point]:
    """Return at which calls to die: all, or `count` along the whole life and the first and the last of each name."""
    if EVERY:
        return calls
    spread = {calls[index * (len(calls) - 1) // (count - 1)] for index in range(count)}
    edges = {point.call: point for point in calls}.values()
    return sorted({*spread, *edges, *(point for point in calls if point.number == 1)})


def deadly(point: Point) -> list[str]:
    """Return strace's options for a death at this call."""
    inject = f"inject={point.call}:signal=KILL:when={point.number}"
    return ["-o", os.devnull, "-e", f"trace={point.call}", "-e", inject]
