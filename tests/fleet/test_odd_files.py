"""What lies in the place of one of Watchbill's files and is none, or is gone, harms the batch or the agent that it
belongs to and nobody else; what is put back is gone on with, and nothing runs twice."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet.folder import places

TASK = "### a\n- **command**: `echo x`\n- **task_class**: cpu\n"
#: Each of its tasks leaves a line when it has run.
SLOW = """
### first
- **command**: `touch {BATCH_PATH}/../began; sleep 2; echo first >> {BATCH_PATH}/../ran`
- **task_class**: cpu

### second
- **command**: `echo second >> {BATCH_PATH}/../ran`
- **task_class**: cpu
- **depends_on**: first
"""


def put_in_place_of(path: Path, kind: str) -> Path:
    """Move a file or folder away, and put something else in its place. Returns where it is."""
    away = path.with_name(f"moved-{path.name}")
    path.rename(away)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "file":
        path.write_text("mine")
    return away


def put_back(away: Path, path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    away.rename(path)


def start_slow_batch(fleet: FleetFolder, seconds: int = 2) -> str:
    """Submit it, and wait until its first task runs, which takes so long."""
    fleet.write_plan("slow", SLOW.replace("sleep 2", f"sleep {seconds}"))
    fleet.write_plan("p", TASK)
    batch = fleet.submit("slow")
    wait_until((fleet.root / "plans" / "slow" / "history" / "began").exists)
    return batch


def assert_each_ran_once(fleet: FleetFolder) -> None:
    ran = (fleet.root / "plans" / "slow" / "history" / "ran").read_text().split()
    assert ran == ["first", "second"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_journal_that_is_no_file_harms_its_batch_alone_and_goes_on_when_it_is_put_back(
    fleet: FleetFolder, kind: str
) -> None:
    """FLEET-09, FLEET-12: it ended each coordinator, so that all batches waited, and plan status, list and approve
    failed for all batches. Its running task was ended and ran again."""
    coordinator = fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    slow = start_slow_batch(fleet, 12)  # an agent looks every 5 s whether its slips were taken back
    journal = fleet.batch("slow", slow) / "journal.1.jsonl"
    coordinator.kill()
    coordinator.wait()
    away = put_in_place_of(journal, kind)
    fleet.start_coordinator()
    assert fleet.wait(fleet.submit("p")) == 0, fleet.log.read_text()
    for words in (
        ("plan", "status"),
        ("plan", "list"),
        ("approve",),
        ("plan", "logs", "a"),
        ("plan", "simulate", "p"),
    ):
        told = fleet.run(*words, "--root", str(fleet.root))
        assert told.returncode == 0, (words, told.stderr)
        assert words[-1] not in ("status", "list") or f"the journal of {slow} cannot be read" in told.stderr
    assert any(each["state"] == "unreadable" for each in fleet.status_of_all()["batches"])
    assert f"{journal.name}: not a record" in fleet.log.read_text()
    put_back(away, journal)
    assert fleet.wait(slow) == 0, fleet.log.read_text()
    assert_each_ran_once(fleet)


@pytest.mark.parametrize("kind", ["gone", "file"])
def test_a_batch_whose_folder_is_away_for_a_while_goes_on_when_it_is_back(
    fleet: FleetFolder, kind: str
) -> None:
    """FLEET-09: "put the folder back" was said, and then only a new coordinator looked whether it was."""
    coordinator = fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    slow = start_slow_batch(fleet)
    coordinator.kill()
    coordinator.wait()
    folder = fleet.batch("slow", slow)
    away = put_in_place_of(folder, kind)
    fleet.start_coordinator()
    wait_until(lambda: "has no journal any more; put the folder back" in fleet.log.read_text())
    assert fleet.wait(fleet.submit("p")) == 0
    put_back(away, folder)
    assert fleet.wait(slow) == 0, fleet.log.read_text()
    assert_each_ran_once(fleet)


def test_a_picture_that_cannot_be_drawn_stops_nothing(fleet: FleetFolder) -> None:
    """FLEET-09, PLAN-06: a folder in the place of RUN_SUMMARY.json ended each coordinator."""
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    slow = start_slow_batch(fleet)
    (fleet.batch("slow", slow) / "RUN_SUMMARY.json").unlink(missing_ok=True)
    (fleet.batch("slow", slow) / "RUN_SUMMARY.json").mkdir()
    assert fleet.wait(slow) == 0, fleet.log.read_text()
    assert fleet.wait(fleet.submit("p")) == 0
    told = fleet.log.read_text()
    assert told.count("RUN_SUMMARY.json: is a directory; move away what lies there") == 1
    assert "the shared folder failed" not in told
    assert_each_ran_once(fleet)


def test_odd_files_in_the_inbox_are_named_and_stop_nothing(fleet: FleetFolder) -> None:
    """FLEET-09: the answer to a file with the longest name has a longer one, and ended each coordinator; so did a
    folder that asks to cancel."""
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    slow = start_slow_batch(fleet)
    inbox = fleet.root / places.INBOX
    long_name = "y" * 250 + ".json"
    (inbox / long_name).write_text("{}")
    (inbox / f"{slow}.cancel").mkdir()
    (inbox / "no\nname.json").write_text("{}")
    (inbox / "pipe.approve").symlink_to("/dev/zero")
    assert fleet.wait(slow) == 0, fleet.log.read_text()
    assert fleet.wait(fleet.submit("p")) == 0
    told = fleet.log.read_text()
    assert "it cannot be put aside (File name too long); remove it" in told
    assert "the shared folder failed" not in told
    assert_each_ran_once(fleet)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_result_log_that_is_no_file_stops_no_other_agent(fleet: FleetFolder, kind: str) -> None:
    """FLEET-09: it ended each coordinator."""
    fleet.write_plan("p", TASK)
    places.make_root(fleet.root)
    log = fleet.root / places.RESULTS / "other.1.jsonl"
    log.touch()
    put_in_place_of(log, kind)
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    assert fleet.wait(fleet.submit("p")) == 0, fleet.log.read_text()
    told = fleet.log.read_text()
    assert told.count("what this agent reports waits until it can be read") == 1
    assert "other.1.jsonl" in told
    assert "the shared folder failed" not in told


def test_a_later_life_of_an_agent_is_not_heard_before_a_log_that_cannot_be_read(fleet: FleetFolder) -> None:
    """FLEET-09: it reports as lost what the last life has reported as done there: the task ran twice."""
    coordinator = fleet.start_coordinator()
    agent = fleet.start_agent("cpu-1")
    slow = start_slow_batch(fleet)
    coordinator.kill()
    coordinator.wait()
    log = fleet.root / places.RESULTS / "cpu-1.1.jsonl"
    wait_until(lambda: b'"done"' in log.read_bytes())
    agent.kill()
    agent.wait()
    away = put_in_place_of(log, "folder")
    later = fleet.start_agent("cpu-1")
    wait_until(lambda: "reported as lost, from the life before" in fleet.log.read_text())
    later.kill()
    fleet.start_agent("cpu-2")
    fleet.start_coordinator()
    assert fleet.wait(fleet.submit("p")) == 0, fleet.log.read_text()
    put_back(away, log)
    assert fleet.wait(slow) == 0, fleet.log.read_text()
    assert_each_ran_once(fleet)


def test_a_file_that_says_that_a_batch_is_active_and_is_a_folder_stays_and_stops_nothing(
    fleet: FleetFolder,
) -> None:
    """FLEET-09: a coordinator could not remove it at the end of the batch, and failed again and again."""
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    slow = start_slow_batch(fleet)
    active = fleet.root / places.active_path(slow)
    active.unlink()
    active.mkdir()
    assert fleet.wait(slow) == 0, fleet.log.read_text()
    assert fleet.wait(fleet.submit("p")) == 0
    assert f"{slow} has ended and it stays" in fleet.log.read_text()
    assert "the shared folder failed" not in fleet.log.read_text()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_log_that_is_no_file_is_neither_followed_nor_waited_for(fleet: FleetFolder, kind: str) -> None:
    """FLEET-09, FLEET-11: a member of the group who put a link there had lines added to any file of the coordinator's
    user; a pipe stopped the coordinator for good."""
    fleet.write_plan("p", TASK)
    places.make_root(fleet.root)
    log = fleet.root / places.LOGS / "brain_decisions.log"
    private = fleet.home / "private"
    private.write_text("mine\n")
    if kind == "link":
        log.symlink_to(private)
    else:
        log.touch()
        put_in_place_of(log, kind)
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    assert fleet.wait(fleet.submit("p"), 25) == 0, fleet.log.read_text()
    assert private.read_text() == "mine\n"
    assert "action=start" in fleet.log.read_text()


def test_a_folder_in_the_place_of_the_coordinators_own_record_is_moved_away(fleet: FleetFolder) -> None:
    """FLEET-09: each coordinator failed at it, and all batches waited."""
    fleet.write_plan("p", TASK)
    places.make_root(fleet.root)
    record = fleet.root / places.COORDINATOR
    record.mkdir()
    (record / "notes").write_text("mine")
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    assert fleet.wait(fleet.submit("p")) == 0, fleet.log.read_text()
    assert [path.read_text() for path in record.parent.glob("coordinator.json.moved-*/notes")] == ["mine"]


@pytest.mark.parametrize(("kind", "why"), [("folder", "is a directory"), ("pipe", "cannot be read")])
def test_a_marker_that_is_no_file_is_named(fleet: FleetFolder, kind: str, why: str) -> None:
    """FLEET-09, FLEET-12: "cannot read or write: is a directory" did not say what; a pipe was waited for for ever."""
    places.make_root(fleet.root)
    put_in_place_of(fleet.root / places.MARKER, kind)
    for words in (("plan", "list"), ("gpus",), ("coordinator",)):
        told = fleet.run(*words, "--root", str(fleet.root), timeout_s=20)
        assert told.returncode != 0
        assert f"{fleet.root / places.MARKER}" in told.stderr
        assert why in told.stderr


def test_a_slip_that_cannot_be_put_away_stops_nothing(fleet: FleetFolder) -> None:
    """FLEET-09: a file in the place of the folder of the day's complete tasks ended each coordinator."""
    fleet.write_plan("p", TASK)
    places.make_root(fleet.root)
    today = datetime.now(UTC).date()
    for day in (today, today + timedelta(days=1)):
        (fleet.root / places.complete_folder(day.isoformat())).write_text("mine")
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    for _ in range(2):
        assert fleet.wait(fleet.submit("p")) == 0, fleet.log.read_text()
    told = fleet.log.read_text()
    assert told.count("action=keep") == 1
    assert "/tasks/complete/" in told and "the shared folder failed" not in told
    assert not list((fleet.root / places.processing_folder("cpu-1")).iterdir())


def test_a_coordinator_that_starts_without_the_marker_makes_no_other_fleet(fleet: FleetFolder) -> None:
    """FLEET-01, FLEET-09: it made a new `fleet.json`, so each batch was one of another fleet, and stood until somebody
    put the file back and started the coordinator once more."""
    coordinator = fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = start_slow_batch(fleet)
    coordinator.kill()
    coordinator.wait(PATIENCE_S)
    marker, away = fleet.root / places.MARKER, fleet.home / "away.json"
    marker.rename(away)
    assert fleet.start_coordinator().wait(PATIENCE_S) != 0
    assert f"{fleet.root} has no fleet.json any more" in fleet.log.read_text()
    refused = fleet.plan("submit", "p")
    assert refused.returncode != 0 and "put fleet.json back" in refused.stderr
    assert not marker.exists()
    away.rename(marker)
    fleet.start_coordinator()
    assert fleet.wait(batch) == 0
    assert not [line for line in fleet.log.read_text().splitlines() if "is left alone" in line]


@pytest.mark.parametrize("odd", ["gpus/cpu_1/heartbeat.json", "tasks/results"])
def test_an_agent_that_starts_beside_an_odd_file_waits_until_it_is_gone(fleet: FleetFolder, odd: str) -> None:
    """FLEET-12: an agent that ran waited for it, and one that was started ended with exit code 1."""
    fleet.start_coordinator()
    wait_until((fleet.root / places.RESULTS).exists)
    path = fleet.root / odd
    path.parent.mkdir(parents=True, exist_ok=True)
    if odd.endswith(".json"):
        path.mkdir()
    else:
        path.rmdir()
        path.write_text("mine")
    agent = fleet.start("-m", "watchbill", "agent", "cpu-1", "--root", str(fleet.root))
    wait_until(lambda: f"{path}" in fleet.log.read_text())
    assert "it starts when that is mended" in fleet.log.read_text()
    assert agent.poll() is None
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    fleet.write_plan("p", TASK)
    assert fleet.wait(fleet.submit("p")) == 0, fleet.log.read_text()
