"""What leaves a shared folder with time, and what never does (PLAN-07)."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from watchbill.files.atomic import is_left_draft
from watchbill.fleet.coordinator.retention import DAY_MS, HOUR_MS, Keeping, clean
from watchbill.fleet.folder import places

NOW_MS = time.time_ns() // 1_000_000
FOR_GOOD = Keeping(complete_ms=None)
KILLED = (
    "import sys; from pathlib import Path; from watchbill.files.atomic import write_file_durable;"
    "write_file_durable(Path(sys.argv[1]), b'half')"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    places.make_root(tmp_path)
    (tmp_path / places.batch_folder("p", "b")).mkdir(parents=True)
    return tmp_path


def put(path: Path, age_ms: int = 0, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    changed_ns = (NOW_MS - age_ms) * 1_000_000
    os.utime(path, ns=(changed_ns, changed_ns))
    return path


def killed_while_it_wrote(path: Path) -> Path:
    """The draft of a process that was killed just before it gave the file its name."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    before = set(path.parent.iterdir())
    calls = "trace=rename,renameat,renameat2"
    words = [
        "strace",
        "-f",
        "-o",
        os.devnull,
        "-e",
        calls,
        "-e",
        calls.replace("trace", "inject") + ":signal=KILL",
    ]
    words += [sys.executable, "-c", KILLED, str(path)]
    subprocess.run(words, check=False, capture_output=True, timeout=60)
    left = set(path.parent.iterdir()) - before - {path}
    if not left:
        pytest.skip("strace may not trace here")
    return left.pop()


@pytest.mark.parametrize(
    "folder", ["", places.INBOX, places.ACTIVE, "plans/p/history/b", "plans/p/history/b/said"]
)
def test_what_a_killed_writer_left_is_removed_after_an_hour(root: Path, folder: str) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    left = killed_while_it_wrote(root / folder / "x.json")
    assert is_left_draft(left.name)
    clean(root, FOR_GOOD, NOW_MS + HOUR_MS // 2)
    assert left.exists(), "its writer may still be at it"
    clean(root, FOR_GOOD, NOW_MS + 2 * HOUR_MS)
    assert not left.exists()


@pytest.mark.parametrize(
    "name", [".gitignore", ".env.1", ".x.json.new", "x.json.1.0123abcd", ".lock", ".tmp"]
)
def test_hidden_files_of_people_stay(root: Path, name: str) -> None:
    kept = [put(root / folder / name, 9 * DAY_MS) for folder in ("", places.INBOX, "plans/p/history/b")]
    clean(root, Keeping(complete_ms=1, history_ms=1), NOW_MS)
    assert all(path.exists() for path in kept)


def test_slips_and_logs_of_former_lives_leave_when_their_time_is_over(root: Path) -> None:
    old, new = 8 * DAY_MS, DAY_MS
    gone = [put(root / places.FAILED / "a", old), put(root / places.EXPIRED / "b", old)]
    gone += [put(root / places.RESULTS / "a-1.1.jsonl", old)]
    kept = [put(root / places.FAILED / "c", new), put(root / places.RESULTS / "a-1.2.jsonl", old)]
    clean(root, Keeping(), NOW_MS)
    assert not any(path.exists() for path in gone) and all(path.exists() for path in kept)


def test_a_batch_that_runs_or_waits_loses_nothing_and_one_that_ended_keeps_what_people_read(
    root: Path,
) -> None:
    """PLAN-07: a batch ends although a task of it waits for a person, whose answer needs the journal."""
    for batch in ("b", "runs", "waits"):
        for name in (
            "RUN_SUMMARY.json",
            "inputs.json",
            "journal.1.jsonl",
            "tasks/t/a1/stdout",
            "results/x",
            "output/y",
        ):
            put(root / places.batch_folder("p", batch) / name, 3 * DAY_MS)
    put(root / places.ACTIVE / "runs.json", 3 * DAY_MS)
    put(
        root / places.batch_folder("p", "waits") / "RUN_SUMMARY.json", 3 * DAY_MS, '{"counts": {"manual": 1}}'
    )
    clean(root, Keeping(history_ms=2 * DAY_MS), NOW_MS)
    left = sorted(path.name for path in (root / places.batch_folder("p", "b")).iterdir())
    assert left == ["RUN_SUMMARY.json", "inputs.json", "output", "results"]
    for batch in ("runs", "waits"):
        assert (root / places.batch_folder("p", batch) / "journal.1.jsonl").exists()
