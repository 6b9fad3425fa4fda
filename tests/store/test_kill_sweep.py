"""Death at every syscall: whatever call of its life a process does not survive, nothing is lost or doubled."""

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchbill.spool import Spool

#: The calls by which the spool changes a disk. Reading ones cannot leave anything half done.
CALLS = "fsync,fdatasync,syncfs,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,pwrite64,flock,ftruncate"
#: In CI every call is hit at some of its occurrences; `make torture` hits each.
EVERY = os.environ.get("WATCHBILL_KILL_EVERY") == "1"

Traced = Callable[..., Any]


def counted_calls(traced: Traced, tmp_path: Path, durability: str) -> Counter[str]:
    """Count the calls of a clean run, by name."""
    log = tmp_path / "clean.log"
    run = traced(
        "life.py", str(tmp_path / "clean"), durability, options=["-o", str(log), "-e", f"trace={CALLS}"]
    )
    assert run.stdout.endswith("closed \n"), run.stderr
    return Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))


def points(count: int) -> list[int]:
    """Return at which occurrences to die: all, or the first ones, the last and some between."""
    if EVERY or count <= 4:
        return list(range(1, count + 1))
    return sorted({1, 2, count // 2, count})


@pytest.mark.parametrize("durability", ["wal", "event"])
@pytest.mark.timeout(600)
def test_a_kill_at_any_syscall_loses_nothing(
    traced: Traced, inventory: Any, tmp_path: Path, durability: str
) -> None:
    """SPOOL-02, SPOOL-03, SPOOL-05, R2: killed at the k-th call of enqueue, claim, finish and checkpoint, the
    next start has every acknowledged event in exactly one folder, by itself."""
    killed = 0
    for call, count in sorted(counted_calls(traced, tmp_path, durability).items()):
        for number in points(count):
            path = tmp_path / f"{call}-{number}"
            options = [
                "-o",
                os.devnull,
                "-e",
                f"trace={call}",
                "-e",
                f"inject={call}:signal=KILL:when={number}",
            ]
            said = traced("life.py", str(path), durability, options=options).stdout.split("\n")
            killed += "closed " not in said
            names = [line.split()[1] for line in said if line.startswith("enqueued")]
            with Spool(path) as spool:
                spool.recover()
            found = inventory(path)
            outcome = (call, number, found.missing(names), found.twice(), found.torn())
            assert outcome == (call, number, [], [], [])
            assert found.counts()["queue-in-flight"] == 0
            assert not list((path / "queue-wal").glob("*.jsonl"))
            assert not list((path / "queue" / ".tmp").glob("[!.]*"))
    assert killed > 20
