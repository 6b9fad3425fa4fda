"""The laws of a fleet, checked in a shared folder after a batch has ended: what was accepted was reported, once.

Reads the journals that count and the result logs; it does not use the ledger.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from watchbill.files.checked_log import whole_lines
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.state.entries import encode_entry
from watchbill.fleet.state.journal import read_past

__all__ = ["BrokenLaw", "judge"]

#: Entries by which a token stops counting.
CLOSING = ("accept", "fail", "lost", "revoke", "hold")
#: Those of them that follow from what an agent reported.
REPORTED = ("accept", "fail", "lost")


class BrokenLaw(AssertionError):
    """The fleet did what it promises never to do."""


def judge(root: Path, plan: str, batch: str, tasks: Iterable[str], *, is_over: bool = True) -> None:
    """Check a batch: each of these tasks was accepted once, under the token that counted and that was reported as done
    by this agent; what failed or was lost was reported; and, where it `is_over`, nothing is left on the board and the
    summary says the same."""
    entries = [encode_entry(entry) for entry in read_past(FolderDisk(root), plan, batch, 10**9).entries]
    reported = _reported(root)
    current: dict[str, dict[str, Any]] = {}
    accepted: list[str] = []
    for entry in entries:
        kind, task = entry["e"], str(entry.get("task", ""))
        if kind == "issue":
            _require(task not in current, f"{task} has two tokens that count")
            _require(task not in accepted, f"{task} was offered again after it was accepted")
            current[task] = entry
        elif kind in CLOSING and task in current:
            issue = current.pop(task)
            if kind in REPORTED:
                known = reported.get((issue["name"], entry["agent"]), set())
                _require(bool(known), f"nobody reported what became of {entry}")
                _require(kind != "accept" or "done" in known, f"{entry} was never reported as done")
            if kind == "accept":
                _require(
                    issue["attempt"] == entry["attempt"],
                    f"attempt {entry['attempt']} of {task} did not count",
                )
                accepted.append(task)
        else:
            _require(kind != "accept", f"{task} was accepted without a token")
    _require(len(set(accepted)) == len(accepted), f"accepted twice: {accepted}")
    if not is_over:
        return
    wanted = sorted(tasks)
    _require(sorted(accepted) == wanted, f"accepted: {sorted(accepted)}, wanted: {wanted}")
    summary = json.loads((root / places.batch_folder(plan, batch) / "RUN_SUMMARY.json").read_text())
    _require(
        (summary["outcome"], summary["counts"]["complete"]) == ("complete", len(wanted)),
        f"the summary says {summary}",
    )
    left = [str(file) for file in (root / "tasks").glob("[qp]*/**/*.json") if f"-{batch}-" in file.name]
    _require(not left, f"left on the board: {left}")


def _reported(root: Path) -> dict[tuple[str, str], set[str]]:
    """Slip and agent of every attempt that was reported, and how."""
    found: dict[tuple[str, str], set[str]] = {}
    for log in (root / places.RESULTS).glob("*.jsonl"):
        for line in map(json.loads, whole_lines(log.read_bytes())[0]):
            found.setdefault((line["name"], line["agent"]), set()).add(line["why"])
    return found


def _require(holds: bool, law: str) -> None:
    if not holds:
        raise BrokenLaw(law)
