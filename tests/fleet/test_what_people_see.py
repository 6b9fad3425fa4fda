"""What people see of a batch while it runs, waits, fails or was never really submitted: from the folder alone."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder, shared_folder
from support.small_disk import free_up, leave_blocks, leave_files, small_disks
from support.stopping import stop
from watchbill.cli import limits, plan_submitting
from watchbill.cli.terminal import Column, Terminal
from watchbill.errors import NameRefused
from watchbill.fleet import limits as fleet_limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Holdings
from watchbill.fleet.state.entries import (
    Accept,
    Cancel,
    Cause,
    Ended,
    Epoch,
    Hold,
    Issue,
    Open,
    Reopen,
    Spec,
    Tasks,
)
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.views.pictures import summary_of
from watchbill.fleet.views.progress import progress_of
from watchbill.names import check_folder_name
from watchbill.plans.check import check
from watchbill.plans.graph import Node
from watchbill.plans.summary import Outcome

GATE = "until test -e {BATCH_PATH}/go; do sleep 0.1; done"


def started(fleet: FleetFolder) -> None:
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")


def task_of(fleet: FleetFolder, batch: str, name: str) -> dict[str, object]:
    """What `plan status` says of a task; a coordinator that has not read the batch yet lists none."""
    return wait_until(
        lambda: next((each for each in fleet.status(batch)["tasks"] if each["id"] == name), None)
    )


def test_the_limits_of_tasks_are_shown(fleet: FleetFolder) -> None:
    """FLEET-12, R55: those of all tasks, and the tighter ones of a plan beside its batch."""
    (fleet.root / "permissions.toml").write_text('[sandbox]\nmemory = "8GB"\nprocesses = 200\n')
    folder = fleet.write_plan("p", "### t\n- command: `true`\n")
    (folder / "permissions.toml").write_text("[sandbox]\nprocesses = 5\n")
    batch = fleet.submit("p")
    assert "limits of a task: 8 GB of memory, 200 processes" in fleet.plan("status").stdout
    assert "limits of a task: 8 GB of memory, 5 processes" in fleet.plan("status", batch).stdout
    assert fleet.status_of_all()["limits"] == {"memory_bytes": 8 * 10**9, "processes": 200}
    assert fleet.status(batch)["limits"] == {"memory_bytes": 8 * 10**9, "processes": 5}


@pytest.mark.parametrize(
    ("options", "leave", "told"),
    [("size=4m", leave_blocks, "is full"), ("size=8m,nr_inodes=400", leave_files, "its inodes are used up")],
)
def test_a_folder_that_takes_nothing_more_is_told_of_and_nobody_is_said_to_hang(
    tmp_path: Path, options: str, leave: Callable[[Path, int], None], told: str
) -> None:
    """FLEET-12: a heartbeat that stands still because the disk is full is no hang."""
    with small_disks(tmp_path) as mount, shared_folder(tmp_path, mount(options) / "shared") as fleet:
        fleet.write_plan("p", f"### t\n- command: `{GATE}`\n")
        brain = fleet.start_coordinator()
        batch = fleet.submit("p")
        wait_until(lambda: fleet.status(batch)["state"] == "running")
        assert fleet.status_of_all()["shortage"] is None
        stop(brain.pid)
        leave(fleet.root.parent, 0)
        os.utime(fleet.root / places.COORDINATOR, (1, 1))
        for shown in (fleet.plan("status").stdout, fleet.plan("status", batch).stdout):
            assert told in shown and "hangs" not in shown, shown
        assert fleet.status_of_all()["shortage"] in ("full", "files")
        free_up(fleet.root.parent)
        assert "it hangs, or its machine does" in fleet.plan("status").stdout


# ------------------------------------------------------------------ all or nothing


@pytest.mark.parametrize(
    ("options", "leave", "steps"), [("size=1m", leave_blocks, 2), ("size=4m,nr_inodes=200", leave_files, 5)]
)
def test_a_submission_that_the_disk_refuses_leaves_nothing(
    tmp_path: Path, options: str, leave: Callable[[Path, int], None], steps: int
) -> None:
    """PLAN-03: whichever of its folders and files is one too many."""
    with small_disks(tmp_path) as mount, shared_folder(tmp_path, mount(options) / "shared") as fleet:
        fleet.write_plan("p", "### t\n- command: `true`\n")
        fleet.submit("p")  # the folders of the fleet are there
        inbox, history = fleet.root / places.INBOX, fleet.root / "plans" / "p" / "history"
        before = sorted(os.listdir(inbox)), sorted(os.listdir(history))
        for room in range(steps):
            leave(fleet.root.parent, room)
            refused = fleet.plan("submit", "p")
            assert (refused.returncode, refused.stdout) == (1, ""), room
            assert "no space left" in refused.stderr and "Traceback" not in refused.stderr
            assert (sorted(os.listdir(inbox)), sorted(os.listdir(history))) == before
            assert len(fleet.status_of_all()["batches"]) == 1
        free_up(fleet.root.parent)
        assert fleet.submit("p")


def test_half_a_submission_says_so_and_wait_has_an_end(fleet: FleetFolder) -> None:
    """PLAN-03: the submitter was killed before its last file."""
    fleet.write_plan("p", "### t\n- command: `true`\n")
    batch = fleet.submit("p")
    (fleet.root / places.INBOX / f"{batch}.json").unlink()
    assert fleet.status(batch)["state"] == "not_submitted"
    assert fleet.wait(batch) == 1
    refused = fleet.plan("cancel", batch)
    assert refused.returncode == 2
    assert "was not submitted as a whole" in refused.stderr and "rm -r" in refused.stderr


# ------------------------------------------------------------------ outputs and results


def test_logs_show_what_a_running_task_has_written_so_far(fleet: FleetFolder) -> None:
    """FLEET-12: also when it is asked for again and again with --follow."""
    fleet.write_plan(
        "p", f"### t\n- command: `echo first words; echo error words >&2; {GATE}; echo last words`\n"
    )
    started(fleet)
    batch = fleet.submit("p")
    wait_until(lambda: "first words" in fleet.plan("logs", "t").stdout, 60)
    assert "error words" in fleet.plan("logs", "t").stdout
    told = json.loads(fleet.plan("logs", "t", "--json").stdout)
    assert (told["state"], told["attempt"]) == ("running", 1) and "first words" in told["so_far"]
    following = fleet.start("-m", "watchbill", "plan", "logs", "t", "--follow", "--root", str(fleet.root))
    wait_until(lambda: "first words" in fleet.log.read_text())
    (fleet.batch("p", batch) / "go").touch()
    assert fleet.wait(batch) == 0
    assert following.wait(60) == 0
    assert "last words" in fleet.log.read_text()
    assert "last words" in fleet.plan("logs", "t").stdout
    assert not list(fleet.batch("p", batch).glob("tasks/*/*/so_far"))


def test_a_task_without_an_attempt_says_so(fleet: FleetFolder) -> None:
    fleet.write_plan("p", f"### a\n- command: `{GATE}`\n### b\n- command: `true`\n- depends_on: a\n")
    started(fleet)
    batch = fleet.submit("p")
    wait_until(lambda: fleet.status(batch)["counts"].get("running"))
    said = fleet.plan("logs", "b")
    assert (said.returncode, said.stdout) == (0, "b is waiting for a; it has had no attempt\n")
    assert fleet.plan("logs", "b", "--attempt", "1").returncode == 2


def test_the_result_of_a_task_that_succeeded_is_kept(fleet: FleetFolder) -> None:
    """FLEET-10: as a file of the attempt and in the logs, from the result file and from the last line."""
    fleet.write_plan(
        "p",
        '### file\n- command: `echo words; printf \'{"n": 1}\' > "$WATCHBILL_RESULT"`\n'
        "### line\n- command: `echo words; echo '{\"n\": 2}'`\n### none\n- command: `echo only words`\n",
    )
    started(fleet)
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0
    for task, number in (("file", 1), ("line", 2)):
        kept = fleet.batch("p", batch) / "tasks" / task / "a1" / "result.json"
        assert json.loads(kept.read_text()) == {"n": number}
        assert f'"n":{number}' in fleet.plan("logs", task).stdout.replace(" ", "")
        assert json.loads(fleet.plan("logs", task, "--json").stdout)["result"] == {"n": number}
    assert fleet.plan("logs", "line").stdout == 'words\n{"n": 2}\n', "once, as the task wrote it"
    assert not (fleet.batch("p", batch) / "tasks" / "none").exists()
    assert json.loads(fleet.plan("logs", "none", "--json").stdout)["result"] is None


# ------------------------------------------------------------------ reasons


def test_a_task_that_is_put_off_shows_its_error_and_when_it_is_tried_again(fleet: FleetFolder) -> None:
    """FLEET-12."""
    fleet.write_plan(
        "p",
        "### t\n- command: `echo something; echo the real reason >&2; exit 3`\n### u\n- command: `true`\n",
    )
    started(fleet)
    batch = fleet.submit("p")
    wait_until(lambda: task_of(fleet, batch, "t")["again_at"])
    told = task_of(fleet, batch, "t")
    assert (told["state"], told["why"], told["error"], told["exit"]) == (
        "waiting",
        "failed",
        "the real reason",
        3,
    )
    assert isinstance(told["again_at"], int)
    assert fleet.status(batch)["left_ms"] is None
    shown = fleet.plan("status", batch).stdout
    assert "again at " in shown and "the real reason" in shown
    narrow = fleet.run("plan", "status", batch, "--root", str(fleet.root), COLUMNS="80").stdout
    assert max(map(len, narrow.splitlines())) <= max(80, len(narrow.splitlines()[0]))


def test_a_coordinator_that_is_gone_or_silent_is_told_beside_the_batch(fleet: FleetFolder) -> None:
    """FLEET-12."""
    fleet.write_plan("p", "### t\n- command: `true`\n")
    batch = fleet.submit("p")
    assert f"watchbill coordinator --root {fleet.root}" in fleet.plan("status", batch).stdout
    coordinator = fleet.start_coordinator()
    wait_until(lambda: fleet.status(batch)["counts"] == {"queued": 1})
    assert "no coordinator runs" not in fleet.plan("status", batch).stdout
    stuck = f"no agent lives, so no task is claimed; start one: watchbill agent --root {fleet.root}"
    assert stuck in fleet.plan("status", batch).stdout
    following = fleet.start("-m", "watchbill", "plan", "status", batch, "--follow", "--root", str(fleet.root))
    wait_until(lambda: stuck in fleet.log.read_text())
    following.kill()
    stop(coordinator.pid)
    record = fleet.root / places.COORDINATOR
    old = record.stat().st_mtime - 2 * limits.COORDINATOR_SILENCE_SHOWN_MS / 1000
    os.utime(record, (old, old))
    said = fleet.plan("status", batch).stdout
    assert "has been silent for" in said and f"pid {coordinator.pid}" in said
    assert "silent for" in fleet.plan("status").stdout


def test_an_agent_runs_no_more_than_its_slots_while_its_coordinator_is_silent(fleet: FleetFolder) -> None:
    """FLEET-12: slips of tasks that had ended counted as running until a coordinator put them away: 24 on two slots."""
    tasks = "".join(f"### t{number}\n- **command**: `true`\n" for number in range(4))
    fleet.write_plan("p", tasks + f"### last\n- **command**: `{GATE}`\n")
    coordinator = fleet.start_coordinator()
    batch = fleet.submit("p")
    wait_until(lambda: fleet.status(batch)["counts"] == {"queued": 5})
    stop(coordinator.pid)
    fleet.start_agent("cpu-1")
    results = fleet.root / places.RESULTS
    wait_until(lambda: sum(log.read_text().count('"why"') for log in results.glob("*.jsonl")) == 4)
    assert len(os.listdir(fleet.root / places.processing_folder("cpu-1"))) == 5
    wait_until(lambda: fleet.status_of_all()["agents"]["cpu-1"]["running"] == 1)
    # The batch counts as its agents do.
    wait_until(lambda: fleet.status(batch)["counts"] == {"running": 1, "queued": 4})
    assert fleet.status(batch)["agents"]["cpu-1"]["running"] == 1


def test_a_cancelled_batch_reads_cancelled_in_its_summary(fleet: FleetFolder) -> None:
    """PLAN-06, PLAN-07."""
    fleet.write_plan("p", f"### t\n- command: `{GATE}`\n")
    started(fleet)
    batch = fleet.submit("p")
    wait_until(lambda: fleet.status(batch)["counts"].get("running"))
    assert fleet.plan("cancel", batch).returncode == 0
    assert fleet.wait(batch) == 1
    summary = fleet.batch("p", batch) / "RUN_SUMMARY.md"
    wait_until(lambda: summary.exists() and "# p: cancelled" in summary.read_text())
    assert fleet.summary("p", batch)["is_cancelled"] is True


def test_a_heartbeat_shows_the_process_of_a_running_task(fleet: FleetFolder) -> None:
    """FLEET-06: also the first one that shows the task at all, a moment later."""
    fleet.write_plan("p", f"### t\n- command: `{GATE}`\n")
    started(fleet)
    batch = fleet.submit("p")
    beat = fleet.root / places.heartbeat_path("cpu-1")
    wait_until(
        lambda: beat.exists() and any(each["pid"] for each in json.loads(beat.read_text())["active_tasks"]),
        fleet_limits.AGENT_EXTERNAL_MS / 1000 - 5,  # not only with the heartbeat that would have come anyway
    )
    (fleet.batch("p", batch) / "go").touch()
    wait_until(lambda: not json.loads(beat.read_text())["active_tasks"], 60)


# ------------------------------------------------------------------ names of plans


@pytest.mark.parametrize("name", ["zwei Wörter", "größe", "a+b (neu)", "v1.2"])
def test_a_plan_folder_may_have_any_name_that_a_folder_has(fleet: FleetFolder, name: str) -> None:
    """PLAN-01, PLAN-07: checked, submitted, run, shown, cancelled and resumed under it."""
    fleet.write_plan(name, "### t\n- command: `pwd; cat scripts/x; test -d {BATCH_PATH}`\n", x="words\n")
    assert fleet.plan("check", name).returncode == 0
    started(fleet)
    batch = fleet.submit(name)
    assert fleet.wait(batch) == 0, fleet.log.read_text()
    assert fleet.status(batch)["plan"] == name
    assert name in fleet.plan("list").stdout
    assert "words" in fleet.plan("logs", "t").stdout
    assert fleet.plan("resume", batch).returncode == 0
    wait_until(lambda: fleet.entries(name, batch, "reopen"))
    assert fleet.wait(batch) == 0


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a\nb", " a", "a ", "x" * 300, "..", "a\x00b"])
def test_a_name_that_is_no_folder_of_a_person_is_refused(name: str) -> None:
    with pytest.raises(NameRefused):
        check_folder_name(name, "a plan")


def test_without_any_package_logs_follow_and_show_results(fleet: FleetFolder) -> None:
    """FLEET-13: with the standard library alone."""
    fleet.write_plan("p", "### t\n- command: `echo '{\"n\": 2}'`\n")
    started(fleet)
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0
    source = Path(plan_submitting.__file__).parents[2]
    script = f"import sys; sys.path.insert(0, {str(source)!r}); from watchbill.cli import main; main()"
    words = [sys.executable, "-I", "-S", "-c", script, "plan", "logs", "t", "--follow", "--json", "--root"]
    done = subprocess.run([*words, str(fleet.root)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, json.loads(done.stdout)["result"]) == (0, {"n": 2}), done.stderr
    shutil.rmtree(fleet.batch("p", batch) / "tasks")
    assert fleet.plan("logs", "t").returncode == 0


def test_a_batch_that_was_cancelled_before_a_coordinator_came_is_not_opened(fleet: FleetFolder) -> None:
    """PLAN-07."""
    fleet.write_plan("p", "### t\n- command: `touch {BATCH_PATH}/ran`\n")
    batch = fleet.submit("p")
    assert fleet.plan("cancel", batch).returncode == 0
    started(fleet)
    assert fleet.wait(batch) == 1
    assert "cancelled before it was opened" in fleet.plan("status", batch).stdout
    assert fleet.status(batch)["state"] == "cancelled"
    assert not list(fleet.batch("p", batch).glob("journal*"))
    assert not os.listdir(fleet.root / places.INBOX)


def test_a_narrow_terminal_is_wide_enough_for_every_table() -> None:
    terminal = Terminal(environment={"COLUMNS": "40"})
    columns = [Column(word) for word in ("task", "state", "attempt", "agent", "exit", "why")]
    rows = [
        [
            "transcribe_the_long_one",
            "running",
            "12",
            "gpu-agent-with-a-name",
            "127",
            "failed: " + "words " * 20,
        ]
    ]
    assert max(map(len, terminal.table(columns, rows))) <= 40
    names = [line.split()[0] for line in Terminal(environment={"COLUMNS": "60"}).table(columns, rows)]
    assert names == ["task", "transcribe_the_long_one"], "what names the row is cut last"


def test_the_time_between_an_end_and_a_resume_is_not_counted() -> None:
    """PLAN-06."""
    ledger = Ledger("b")
    for entry in (
        Epoch(1, {}), Tasks((Spec(Node("t")),)), Open("p", {}, 3, "", 1_000), Cancel(), Ended(Outcome.FAILED, 2_000),
        Reopen("r", (), {}, 3, "", 9_000), Cancel(), Ended(Outcome.FAILED, 9_500),
    ):  # fmt: skip
        ledger.apply(entry)
    assert summary_of(ledger, 0).elapsed_ms == 1_500


def test_tasks_side_by_side_that_end_together_have_the_rate_of_their_durations() -> None:
    """FLEET-12: six tasks of 10 s, two at a time, end in three moments: 12 a minute."""
    ledger = Ledger("b")
    names = [f"t{number}" for number in range(8)]
    ledger.apply(Tasks(tuple(Spec(Node(name)) for name in names)))
    ledger.apply(Open("p", {}, 3, "", 1_000))
    for number, name in enumerate(names[:6]):
        at_ms = 1_000 + 10_000 * (number // 2 + 1) + number % 2
        ledger.apply(Issue(name, 1, f"slip-{name}"))
        ledger.apply(Accept(name, 1, "cpu-1", 10_000, at_ms=at_ms))
    progress = progress_of(ledger, Holdings(), {})
    assert progress.rate_per_min == pytest.approx(12, rel=0.01)
    assert progress.left_ms == pytest.approx(10_000, rel=0.01)


def test_a_task_that_waits_for_a_person_has_not_ended() -> None:
    """FLEET-12: "1/2" of a batch in which one is complete and one waits, not "2/2"."""
    ledger = Ledger("b")
    for entry in (
        Tasks((Spec(Node("t")), Spec(Node("u")))), Open("p", {}, 3), Issue("t", 1, "1"), Accept("t", 1, "cpu-1"),
        Issue("u", 1, "2"), Hold("u", Cause.APPROVAL),
    ):  # fmt: skip
        ledger.apply(entry)
    progress = progress_of(ledger, Holdings(), {})
    assert (progress.done, progress.total) == (1, 2)


def test_cancelled_tasks_are_no_failures() -> None:
    """PLAN-06."""
    ledger = Ledger("b")
    for entry in (
        Tasks((Spec(Node("t")),)),
        Open("p", {}, 3, "", 1_000),
        Cancel(),
        Ended(Outcome.FAILED, 2_000),
    ):
        ledger.apply(entry)
    summary = summary_of(ledger, 0)
    assert (
        summary.counts["cancelled"] == 1
        and summary.failures == ()
        and "Failures" not in summary.to_markdown()
    )


@pytest.mark.parametrize(
    ("written", "default"),
    [
        ("- N (number; default 3)", "3"), ("- N: how many, default 40.5", "40.5"),
        ("| name | meaning | default |\n|---|---|---|\n| `N` | how many | 7 |", "7"),
        ("| Name | Default | text |\n|---|---|---|\n| `N` | `a b` | how |", "a b"),
        ("| name | default |\n|---|---|\n| `N` | - |", None),
    ],
)  # fmt: skip
def test_defaults_are_read_as_people_write_them(written: str, default: str | None) -> None:
    """PLAN-01."""
    [found] = check(f"# P\n## Inputs\n{written}\n## Tasks\n### t\n- command: `echo {{N}}`\n").plan.inputs
    assert (found.name, found.default) == ("N", default)
