"""Death at every syscall: whatever call of its life a process does not survive, nothing is lost or doubled."""

from pathlib import Path
from typing import Any

import pytest

from support.killing import Traced, deadly, life, some
from watchbill.spool import Spool

#: In CI so many deaths along a life; `make torture` dies at each call.
DEATHS = 32


@pytest.mark.parametrize("durability", ["wal", "event"])
@pytest.mark.timeout(600)
def test_a_kill_at_any_syscall_loses_nothing(
    traced: Traced, inventory: Any, tmp_path: Path, durability: str
) -> None:
    """SPOOL-02, SPOOL-03, SPOOL-05, R2: killed at the k-th call of enqueue, claim, finish and checkpoint, the
    next start has every acknowledged event in exactly one folder, by itself."""
    calls = life(traced, tmp_path / "log", "life.py", str(tmp_path / "clean"), durability)
    assert len(calls) > DEATHS
    for point in some(calls, DEATHS):
        path = tmp_path / f"{point.call}-{point.number}"
        said = traced("life.py", str(path), durability, options=deadly(point)).stdout.split("\n")
        assert "closed " not in said, f"it survived {point}"
        names = [line.split()[1] for line in said if line.startswith("enqueued")]
        with Spool(path) as spool:
            spool.recover()
        found = inventory(path)
        assert (point, found.missing(names), found.twice(), found.torn()) == (point, [], [], [])
        assert found.counts()["queue-in-flight"] == 0
        assert not list((path / "queue-wal").glob("*.jsonl"))
        assert not list((path / "queue" / ".tmp").glob("[!.]*"))
