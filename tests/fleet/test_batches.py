"""Batches as a user runs them: `plan submit`, a coordinator process, agents, `plan status`."""

import json
import os
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder
from support.stopping import stop
from watchbill.cli.plan_asking import refuse_behind_another
from watchbill.errors import OursError
from watchbill.files.host import start_time
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.requests import Reopening, ask_to_reopen, new_request_id

MACHINE = str(Path(__file__).parents[1] / "support" / "machine.py")
FAN_OUT = """### scan
- **command**: `printf '{"words": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}' > {BATCH_PATH}/manifest.json`
### each
- **command**: `echo {ITEM.id} {WORD} > {BATCH_PATH}/results/{ITEM.id}`
- **foreach**: {BATCH_PATH}/manifest.json:words
- **depends_on**: scan
- **produces**: {BATCH_PATH}/results/{ITEM.id}
### sum
- **command**: `cat {BATCH_PATH}/results/* > {BATCH_PATH}/output/all`
- **depends_on**: each
"""
WORD = "- `WORD` (default: hello)"


def test_a_submitted_plan_runs_to_its_end_and_every_view_tells_it(fleet: FleetFolder) -> None:
    """PLAN-03, PLAN-04, PLAN-06, FLEET-12."""
    fleet.write_plan("words", FAN_OUT, inputs=WORD)
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("words", "--set", "WORD=it's $(here)")
    assert fleet.wait(batch) == 0
    assert (fleet.batch("words", batch) / "output" / "all").read_text() == "".join(
        f"{letter} it's $(here)\n" for letter in "abc"
    )
    status = fleet.status(batch)
    assert (status["batch"], status["plan"], status["state"]) == (batch, "words", "complete")
    assert status["counts"] == {"complete": 5}
    assert {
        task["id"]: (task["state"], task["attempt"], task["agent"], task["exit"]) for task in status["tasks"]
    } == dict.fromkeys(("scan", "each_a", "each_b", "each_c", "sum"), ("complete", 1, "cpu-1", 0))
    assert all(task["started"] <= task["finished"] for task in status["tasks"])
    summary = fleet.summary("words", batch)
    assert (summary["outcome"], summary["counts"]["complete"], summary["agents"]["cpu-1"]["complete"]) == (
        "complete",
        5,
        5,
    )
    assert (fleet.batch("words", batch) / "RUN_SUMMARY.md").read_text().startswith("# words: complete\n")
    assert batch in fleet.plan("list").stdout
    assert "agent cpu-1" in fleet.plan("status").stdout
    followed = fleet.plan("status", batch, "--follow")
    assert followed.returncode == 0 and "5 of 5  complete" in followed.stdout
    nothing = fleet.plan("retry", "each")  # PLAN-07: it means those that did not complete
    assert nothing.returncode == 2 and "all 3 tasks of each are complete" in nothing.stderr
    assert os.listdir(fleet.root / places.INBOX) == []
    by_plan = fleet.plan("status", "words")
    assert by_plan.returncode == 2 and f"its newest one is {batch}" in by_plan.stderr


def test_a_bad_plan_is_refused_with_its_line_and_nothing_is_written(fleet: FleetFolder) -> None:
    """PLAN-03: exit code 2, FILE:LINE on standard error, nothing under history/."""
    folder = fleet.write_plan("bad", "### a\n- **command**: `echo {NOBODY}`\n- **depends_on**: b\n")
    done = fleet.plan("submit", "bad")
    assert done.returncode == 2 and f"{folder}/plan.md:" in done.stderr and "NOBODY" in done.stderr
    told = json.loads(fleet.plan("submit", "bad", "--json").stdout)
    assert {"line", "text", "hint"} <= told["errors"][0].keys()
    assert os.listdir(folder) == ["scripts", "plan.md"] or "history" not in os.listdir(folder)
    assert not (fleet.root / places.INBOX).exists()


def test_inputs_are_checked_before_anything_is_written(fleet: FleetFolder) -> None:
    """PLAN-03."""
    folder = fleet.write_plan("words", FAN_OUT, inputs="- `WORD`")
    for options, told in (
        ((), "WORD is missing"),
        (("--set", "WORDS=1"), "did you mean WORD?"),
        (("--set", "x"), "--set NAME=VALUE"),
    ):
        done = fleet.plan("submit", "words", *options)
        assert done.returncode == 2 and told in done.stderr, done.stderr
    assert "history" not in os.listdir(folder)


def test_a_dry_run_shows_every_command_with_its_values_and_submits_nothing(fleet: FleetFolder) -> None:
    """PLAN-03."""
    tasks = FAN_OUT + '### now\n- **command**: `process {ITEM} "a {WORD}"`\n- **foreach**: items.json\n'
    folder = fleet.write_plan("words", tasks, inputs=WORD)
    (folder / "items.json").write_text('["x y", "$z"]')
    done = fleet.plan("submit", "words", "--dry-run", "--set", 'WORD=it"s $1')
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert 'process \'x y\' "a it\\"s \\$1"' in lines and 'process \'$z\' "a it\\"s \\$1"' in lines
    [each] = [line for line in lines if line.startswith("echo ")]
    assert each.startswith("echo '{ITEM.id}' 'it\"s $1' > ") and "history" not in os.listdir(folder)


def test_what_needs_approval_is_said_before_a_plan_runs(fleet: FleetFolder) -> None:
    """FLEET-10: by `plan check` as far as it is known without items, by --dry-run for each item."""
    tasks = (
        "### tool\n- **command**: `{TOOL} a`\n### each\n- **command**: `echo x > out/{ITEM.id}`\n"
        "- **foreach**: items.json\n"
    )
    folder = fleet.write_plan("p", tasks, inputs="- `TOOL` (default: cat)")
    (folder / "items.json").write_text('[{"id": "a"}, {"id": "../b"}]')
    checked = fleet.plan("check", "p")
    assert checked.returncode == 0, checked.stderr
    assert "tool: `cat a` needs approval: a value, not plan.md, names what it runs" in checked.stderr
    assert "each: " not in checked.stderr
    shown = fleet.plan("submit", "p", "--dry-run").stdout
    told = json.loads(fleet.plan("submit", "p", "--dry-run", "--json").stdout)
    assert told["plan"] == "p" and all(each["command"] in shown for each in told["commands"])
    assert [
        each["ruling"] for each in told["commands"] if each["ruling"] and each["ruling"] not in shown
    ] == []
    assert any(each["ruling"] for each in told["commands"])
    assert (
        shown.count("needs approval") == 2 and "# `> out/../b` needs approval: a value leads it out" in shown
    )


def test_inputs_in_the_shared_folder_travel_relative_to_it(fleet: FleetFolder) -> None:
    """FLEET-01, FLEET-13: machines may mount the folder in different places."""
    fleet.write_plan("words", "### a\n- **command**: `cat {FILE}`\n", inputs="- `FILE`")
    (fleet.root / "data").write_text("here")
    done = fleet.plan("submit", "words", "--set", f"FILE={fleet.root}/data")
    assert "{ROOT}/data" in done.stderr
    order = json.loads((fleet.root / places.INBOX / f"{done.stdout.strip()}.json").read_text())
    assert order["inputs"] == {"FILE": {"below_root": "data"}}


def test_a_failing_task_is_named_in_status_logs_summary_and_escalation(fleet: FleetFolder) -> None:
    """PLAN-05, PLAN-06, FLEET-08."""
    tasks = (
        "### good\n- **command**: `true`\n### bad\n- **command**: `echo why >&2; exit 3`\n- **retries**: 0\n"
    )
    fleet.write_plan("p", f"{tasks}### after\n- **command**: `true`\n- **depends_on**: bad, good\n")
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 1
    status = fleet.status(batch)
    assert status["state"] == "partial"
    assert {task["id"]: task["state"] for task in status["tasks"]} == {
        "good": "complete",
        "bad": "failed",
        "after": "skipped",
    }
    assert [task["culprit"] for task in status["tasks"] if task["id"] == "after"] == ["bad"]
    assert fleet.plan("logs", "bad").stdout == "why\n"
    told = (fleet.root / "brain" / "escalations" / f"{batch}.md").read_text()
    assert all(
        text in told
        for text in ("Show it.", "### bad", "exit code 3", "why", f"plan resume {batch}", "exit 3")
    )
    assert "because of bad" in fleet.plan("status", batch).stdout
    [explain, resume] = [line.split() for line in told.splitlines() if line.startswith("watchbill ")]
    pasted = [fleet.run(*words[1:]) for words in (explain, resume)]  # no environment names the folder
    assert [done.returncode for done in pasted] == [0, 0], pasted


def test_a_task_that_does_not_produce_what_it_promises_fails(fleet: FleetFolder) -> None:
    """PLAN-02."""
    fleet.write_plan(
        "p", "### a\n- **command**: `true`\n- **produces**: {BATCH_PATH}/results/never\n- **retries**: 0\n"
    )
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 1
    [failed] = fleet.entries("p", batch, "fail")
    assert failed["end"] == "missing_output" and "results/never" in failed["tail"]


def test_a_second_coordinator_on_this_machine_is_refused_with_the_pid_of_the_first(
    fleet: FleetFolder,
) -> None:
    """FLEET-09."""
    first = fleet.start_coordinator()
    wait_until((fleet.root / places.COORDINATOR).exists)
    done = fleet.run("coordinator", "--root", str(fleet.root))
    assert done.returncode == 2 and f"pid {first.pid}" in done.stderr
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_S) == 0


def test_an_empty_folder_is_no_fleet(fleet: FleetFolder, tmp_path: Path) -> None:
    """FLEET-09: an unmounted mount point is an empty folder. The hint makes one."""
    (tmp_path / "mount").mkdir()
    for words in (("coordinator",), ("plan", "status")):
        done = fleet.run(*words, "--root", str(tmp_path / "mount"))
        assert done.returncode == 2 and "fleet.json" in done.stderr
    assert os.listdir(tmp_path / "mount") == []


def test_a_stopped_coordinator_that_was_replaced_changes_nothing_and_leaves(fleet: FleetFolder) -> None:
    """R13 for a coordinator."""
    fleet.write_plan("p", "".join(f"### t{number}\n- **command**: `true`\n" for number in range(20)))
    first = fleet.start_coordinator()
    wait_until((fleet.root / places.COORDINATOR).exists)
    stop(first.pid)
    # What a second machine sees: another boot. The lock of this machine is let go by hand.
    record = json.loads((fleet.root / places.COORDINATOR).read_text())
    (fleet.root / "brain" / ".lock").unlink()
    (fleet.root / places.COORDINATOR).write_text(json.dumps({**record, "pid": 2**22 + 1}))
    second = fleet.start_coordinator()
    wait_until(lambda: len(os.listdir(fleet.root / places.EPOCHS)) == 2)
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    first.send_signal(signal.SIGCONT)
    assert first.wait(PATIENCE_S) == 1
    assert fleet.wait(batch) == 0
    assert second.poll() is None and len(fleet.entries("p", batch, "accept")) == 20


def test_a_coordinator_that_was_replaced_while_its_folder_was_away_leaves(fleet: FleetFolder) -> None:
    """FLEET-09: it began anew as if nobody were there, and superseded the one that had taken over, which then left."""
    coordinator = fleet.start_coordinator()
    record, away = fleet.root / places.COORDINATOR, fleet.home / "away"
    wait_until(record.exists)
    fleet.root.rename(away)
    fleet.root.mkdir()  # a mount point without its mount
    wait_until(lambda: "the shared folder failed" in fleet.log.read_text())
    told = json.loads((away / places.COORDINATOR).read_text())
    taken = max(int(name) for name in os.listdir(away / places.EPOCHS)) + 1
    (away / places.EPOCHS / str(taken)).touch()
    (away / places.COORDINATOR).write_text(json.dumps({**told, "epoch": taken, "boot_id": "another"}))
    fleet.root.rmdir()
    away.rename(fleet.root)
    assert coordinator.wait(PATIENCE_S) == 1
    assert "another coordinator has taken over" in fleet.log.read_text()
    assert max(int(name) for name in os.listdir(fleet.root / places.EPOCHS)) == taken


def test_a_batch_can_be_cancelled_and_resumed(fleet: FleetFolder) -> None:
    """PLAN-07."""
    fleet.write_plan(
        "p",
        "### one\n- **command**: `true`\n### two\n- **command**: `cat {BATCH_PATH}/go`\n- **depends_on**: one\n",
    )
    fleet.start_coordinator()
    agent = fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    wait_until(lambda: fleet.entries("p", batch, "fail") if fleet.batch("p", batch).exists() else False)
    assert fleet.plan("cancel", batch).returncode == 0
    assert fleet.wait(batch) == 1
    assert fleet.status(batch)["state"] == "cancelled"
    (fleet.batch("p", batch) / "go").touch()
    explained = fleet.plan("resume", batch, "--explain")
    assert [line.split()[:2] for line in explained.stdout.splitlines()[1:]] == [
        ["one", "kept"],
        ["two", "runs"],
    ]
    assert fleet.plan("resume", batch).returncode == 0
    assert fleet.wait(batch) == 0
    one, two = fleet.status(batch)["tasks"]
    assert (one["attempt"], one["state"], two["state"]) == (1, "complete", "complete")
    assert agent.poll() is None


def test_what_was_asked_for_while_no_coordinator_ran_is_obeyed_in_its_order(fleet: FleetFolder) -> None:
    """PLAN-07: a retry behind a resume does not overtake it, or the resume would be refused, because the batch runs;
    and what will run again can be cancelled before it does."""
    fleet.write_plan("p", "### one\n- **command**: `true`\n")
    coordinator = fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0
    coordinator.terminate()
    coordinator.wait(PATIENCE_S)
    fleet.write_plan("p", "### one\n- **command**: `true`\n### two\n- **command**: `sleep 60`\n")
    assert fleet.plan("resume", batch).returncode == 0
    for _ in range(4):
        assert fleet.plan("retry", "one", "--batch", batch).returncode == 0
    refused = fleet.plan("resume", batch)  # it would be refused by the coordinator, and nobody told
    assert refused.returncode == 2 and f"plan cancel {batch}" in refused.stderr
    inbox = fleet.root / places.INBOX
    files = sorted(inbox.iterdir(), key=lambda file: file.stat().st_ctime_ns)
    assert [file.name for file in files] == sorted(os.listdir(inbox)) and len(files) == 5
    assert fleet.plan("cancel", batch).returncode == 0
    fleet.start_coordinator()
    wait_until(lambda: not os.listdir(inbox))
    assert fleet.wait(batch) == 1
    status = fleet.status(batch)
    assert status["state"] == "cancelled" and [task["id"] for task in status["tasks"]] == ["one", "two"]
    assert os.listdir(fleet.root / places.REFUSED) == []


def test_a_task_that_is_put_off_waits_no_longer_because_others_are_reopened(fleet: FleetFolder) -> None:
    """FLEET-08, PLAN-07: each request about a batch that has ended starts a new coordinator in the same process."""
    fleet.write_plan("p", "### a\n- **command**: `false`\n- **retries**: 1\n")
    fleet.write_plan("other", "### x\n- **command**: `true`\n")
    fleet.start(
        MACHINE, "-", json.dumps({"BACK_OFF_MS": [4_000] * 3}), "coordinator", "--root", str(fleet.root)
    )
    fleet.start_agent("cpu-1")
    other = fleet.submit("other")
    assert fleet.wait(other) == 0
    batch = fleet.submit("p")
    disk = FolderDisk(fleet.root)
    began = time.monotonic()

    def is_tried_again_while_others_are_reopened() -> bool:
        ask_to_reopen(disk, Reopening(new_request_id(), other, "other", ("x",)))
        wait_until(lambda: not os.listdir(fleet.root / places.INBOX))
        return fleet.wait(other) == 0 and len(fleet.entries("p", batch, "issue")) == 2

    wait_until(is_tried_again_while_others_are_reopened, PATIENCE_S)
    assert time.monotonic() - began >= 3
    assert fleet.wait(batch) == 1


def test_the_log_of_a_task_says_why_it_is_where_it_is(fleet: FleetFolder) -> None:
    """FLEET-12: a missing output, a foreach without its file, a skip with its culprit, items, a task in the queue."""
    tasks = (
        "### good\n- **command**: `true`\n"
        "### lazy\n- **command**: `echo said`\n- **produces**: {BATCH_PATH}/out.txt\n- **retries**: 0\n"
        "### lost\n- **command**: `echo {ITEM}`\n- **foreach**: {BATCH_PATH}/no.json\n- **depends_on**: good\n"
        "### after\n- **command**: `true`\n- **depends_on**: lazy\n"
        "### each\n- **command**: `echo {ITEM}`\n- **foreach**: l.txt\n"
    )
    (fleet.write_plan("p", tasks) / "l.txt").write_text("x\ny\n")
    fleet.start_coordinator()
    batch = fleet.submit("p")

    def log(task: str) -> str:
        done = fleet.plan("logs", task, "--batch", batch)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    wait_until(lambda: "queued" in (log("good") if fleet.entries("p", batch, "issue") else ""))
    assert "after is waiting for lazy" in log("after")
    fleet.start_agent("cpu-1")
    assert fleet.wait(batch) == 1
    assert (
        "said" in log("lazy")
        and "lazy is failed: missing_output: " in log("lazy")
        and "out.txt" in log("lazy")
    )
    assert "lost is failed" in log("lost") and "no.json is not there" in log("lost")
    assert "after is skipped because of lazy: lazy is failed: missing_output" in log("after")
    assert "each_1" in log("each") and "each_2" in log("each") and "complete" in log("each")


#: Commands that read a file beside the plan, and the file.
READING = {
    "script": ("bash gen.sh", "gen.sh"),
    "redirected": ("bash gen.sh > {BATCH_PATH}/m.json", "gen.sh"),
    "dotted": ("sh ./gen.sh", "gen.sh"),
    "quoted": ('bash "my own.sh"', "my own.sh"),
    "data": ("wc -l data.txt", "data.txt"),
    "input": ("wc -l < data.txt", "data.txt"),
    "entered": ("cd sub && python3 x.py", "sub/x.py"),
    "below": ("python3 sub/x.py", "sub/x.py"),
    "braces": ("bash {PLAN_PATH}/gen.sh", "gen.sh"),
    "option": ("echo --config=data.txt", "data.txt"),
    "given": ("cat {FILE}", "data.txt"),
    "code": ("python3 -c \"open('data.txt')\"", "data.txt"),
    "pattern": ("cat sub/*.csv", "sub/a.csv"),
    "required": ("true", "data.txt"),
}
#: Commands that do not: what a plan writes itself is no reason to run again.
NOT_READING = {
    "other": "cat other.txt", "writes": "echo $RANDOM > made.txt", "uses": "cat made.txt", "nothing": "true",
}  # fmt: skip


def test_a_file_beside_the_plan_that_changed_makes_the_tasks_that_name_it_run_again(
    fleet: FleetFolder,
) -> None:
    """PLAN-07: whatever way a command names it."""
    commands = {**{name: command for name, (command, _) in READING.items()}, **NOT_READING}
    tasks = "".join(f"### {name}\n- **command**: `{command}`\n" for name, command in commands.items())
    tasks = tasks.replace("### required\n", "### required\n- **requires**: data.txt\n")
    tasks = tasks.replace("### uses\n", "### uses\n- **depends_on**: writes\n")
    folder = fleet.write_plan("p", tasks, inputs="- `FILE` (default: data.txt)")
    (folder / "sub").mkdir()
    files = {path for _, path in READING.values()}
    for path in (*files, "other.txt"):
        (folder / path).write_text("#\n")
    (folder / "made.txt").write_text("of a batch before")
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout

    def explained() -> dict[str, str]:
        found = json.loads(fleet.plan("resume", batch, "--explain", "--json").stdout)["tasks"]
        return {name: each["about"] for name, each in found.items() if not each["kept"]}

    assert explained() == {}
    for path in files:
        (folder / path).write_text("# corrected\n")
    assert explained() == {name: path for name, (_, path) in READING.items()}


def test_a_corrected_plan_goes_on_where_the_old_one_stopped(fleet: FleetFolder) -> None:
    """PLAN-07, FLEET-08: what is complete and unchanged is kept, and --explain says why for the rest."""
    words = FAN_OUT.replace("echo {ITEM.id}", "bash scripts/each {ITEM.id}")
    words = words.replace("- **produces**", "- **retries**: 0\n- **produces**")
    fleet.write_plan("words", words, inputs=WORD, each='[ "$1" != b ] && echo $1 $2 && echo x >> "$RUNS"\n')
    runs = fleet.home / "runs"
    fleet.start_coordinator()
    fleet.start_agent("cpu-1", RUNS=str(runs))
    batch = fleet.submit("words")
    assert fleet.wait(batch) == 1
    assert runs.read_text() == "x\n" * 2
    explained = json.loads(fleet.plan("resume", batch, "--explain", "--json").stdout)["tasks"]
    assert {name: (each["kept"], each["why"]) for name, each in explained.items()} == {
        "scan": (True, "kept"), "each_a": (True, "kept"), "each_b": (False, "not_complete"),
        "each_c": (True, "kept"), "sum": (False, "waits"),
    }  # fmt: skip
    assert os.listdir(fleet.root / places.INBOX) == []
    fleet.write_plan("words", words, inputs=WORD, each='echo $1 $2 && echo x >> "$RUNS"\n')
    explained = json.loads(fleet.plan("resume", batch, "--explain", "--json").stdout)["tasks"]
    assert (explained["each_a"]["why"], explained["each_a"]["about"]) == ("script", "scripts/each")
    assert fleet.plan("resume", batch).returncode == 0
    assert fleet.wait(batch) == 0
    assert runs.read_text() == "x\n" * 5  # the script changed: all three ran again
    assert (fleet.batch("words", batch) / "output" / "all").read_text() == "a hello\nb hello\nc hello\n"
    # Its pictures are drawn behind the end that the journal says.
    wait_until(lambda: not (fleet.root / "brain" / "escalations" / f"{batch}.md").exists())
    wait_until(lambda: fleet.summary("words", batch)["outcome"] == "complete")
    made = fleet.batch("words", batch) / "results" / "b"
    made.unlink()  # by hand: what made it runs again, and what depends on that
    explained = json.loads(fleet.plan("resume", batch, "--explain", "--json").stdout)["tasks"]
    assert explained["each_b"] == {
        "kept": False,
        "why": "produced",
        "about": str(made.relative_to(fleet.root)),
    }
    assert [name for name, each in explained.items() if not each["kept"]] == ["each_b", "sum"]
    assert fleet.plan("resume", batch).returncode == 0
    assert fleet.wait(batch) == 0
    assert (made.read_text(), runs.read_text()) == ("b hello\n", "x\n" * 6)


def test_a_failed_task_is_retried_alone_while_the_others_stay_as_they_are(fleet: FleetFolder) -> None:
    """PLAN-07: retried in parts; what depends on the task runs, too."""
    test = "- **command**: `echo >> {BATCH_PATH}/NAME.ran; test -e {BATCH_PATH}/NAME.go`\n- **retries**: 0\n"
    tasks = "".join(f"### {name}\n{test.replace('NAME', name)}" for name in ("left", "again"))
    tasks += "### good\n- **command**: `echo >> {BATCH_PATH}/good.ran`\n"
    tasks += "### after\n- **command**: `true`\n- **depends_on**: again, good\n"
    fleet.write_plan("p", tasks)
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 1
    folder = fleet.batch("p", batch)
    (folder / "again.go").touch()
    assert fleet.plan("retry", "again").returncode == 0
    assert fleet.wait(batch) == 1
    states = {task["id"]: task["state"] for task in fleet.status(batch)["tasks"]}
    assert states == {"left": "failed", "again": "complete", "good": "complete", "after": "complete"}
    assert [(folder / f"{name}.ran").read_text() for name in ("left", "again", "good")] == [
        "\n",
        "\n\n",
        "\n",
    ]
    refused = fleet.plan("retry", "nobody")
    assert refused.returncode == 2 and "no batch has a task nobody" in refused.stderr


def test_of_two_people_who_go_on_with_a_batch_at_once_one_is_told_that_the_other_was_first(
    fleet: FleetFolder,
) -> None:
    """PLAN-07: both were told that it goes on, and the coordinator refused one in a file that nobody looks at."""
    fleet.write_plan("p", "### a\n- **command**: `sleep 1000`\n")
    coordinator = fleet.start_coordinator()
    batch, disk = fleet.submit("p"), FolderDisk(fleet.root)
    wait_until(lambda: fleet.status(batch)["state"] == "running")
    fleet.plan("cancel", batch)
    assert fleet.wait(batch) == 1
    coordinator.send_signal(signal.SIGSTOP)
    resume = fleet.start("-m", "watchbill", "plan", "resume", batch, "--root", str(fleet.root))
    wait_until(lambda: os.listdir(fleet.root / places.INBOX))
    ask_to_reopen(disk, Reopening("0", batch, "p", ("a",)))
    coordinator.send_signal(signal.SIGCONT)
    assert resume.wait(PATIENCE_S) == 2
    assert f"the coordinator has refused this: {batch} still runs" in fleet.log.read_text()
    coordinator.kill()
    coordinator.wait(PATIENCE_S)
    mine, first = (ask_to_reopen(disk, Reopening(each, batch, "p", ("a",))) for each in "21")
    refuse_behind_another(fleet.root, disk, batch, first)
    with pytest.raises(OursError, match="as somebody asked before"):
        refuse_behind_another(fleet.root, disk, batch, mine)
    assert os.listdir(fleet.root / places.INBOX) == [first]


def test_a_batch_that_waits_for_a_coordinator_is_not_to_be_submitted_again(fleet: FleetFolder) -> None:
    """PLAN-07: resume said so, and the plan ran twice; retry and logs said that the batch has no such task."""
    fleet.write_plan("p", "### a\n- **command**: `true`\n")
    batch = fleet.submit("p")
    for words in (
        ("resume", batch),
        ("resume", batch, "--explain"),
        ("retry", "a", "--batch", batch),
        ("logs", "a", "--batch", batch),
        ("resume", batch),
    ):
        if words == (
            "logs",
            "a",
            "--batch",
            batch,
        ):  # a coordinator was killed, or found the disk full, in the moment
            (fleet.batch("p", batch) / "journal.1.jsonl").write_bytes(
                b"\n" * 4096
            )  # in which it opened the batch
        refused = fleet.plan(*words)
        assert refused.returncode == 2, refused.stderr
        assert (
            "no coordinator has opened it yet" in refused.stderr and "submit it again" not in refused.stderr
        )
    assert fleet.status(batch)["state"] == "submitted"
    assert "will be cancelled" in fleet.plan("cancel", batch).stderr


def test_what_is_asked_behind_an_unread_cancel_is_refused(fleet: FleetFolder) -> None:
    """PLAN-07: retry and approve said that the task will run, and the cancel was obeyed behind them; resume said to
    cancel the batch first."""
    (fleet.root / "permissions.toml").write_text('ask = ["printf *"]\n')
    fleet.write_plan(
        "p",
        "### a\n- **command**: `printf x`\n### b\n- **command**: `false`\n- **retries**: 0\n"
        "### c\n- **command**: `sleep 600`\n",
    )
    brain = fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    wait_until(lambda: fleet.status(batch)["counts"] == {"manual": 1, "failed": 1, "running": 1})
    brain.kill()
    brain.wait(PATIENCE_S)
    assert fleet.plan("cancel", batch).returncode == 0
    for words in (("retry", "b"), ("approve", "a"), ("deny", "a"), ("resume", batch)):
        refused = fleet.plan(*words)
        assert refused.returncode == 2 and "is about to be cancelled" in refused.stderr, refused.stderr
    fleet.start_coordinator()
    wait_until(lambda: fleet.status(batch)["state"] == "cancelled")
    assert fleet.plan("retry", "b").returncode == 0


def test_a_retry_says_what_it_does_not_run_and_what_it_runs_beside_the_task(fleet: FleetFolder) -> None:
    """PLAN-05, PLAN-07: what would be skipped again is refused; what was cancelled goes on with its batch."""
    tasks = "### bad\n- **command**: `test -e {BATCH_PATH}/go`\n- **retries**: 0\n"
    tasks += "### after\n- **command**: `true`\n- **depends_on**: bad\n### waits\n- **command**: `sleep 60`\n"
    fleet.write_plan("p", tasks)
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    wait_until(lambda: fleet.batch("p", batch).exists() and fleet.entries("p", batch, "fail"))
    refused = fleet.plan("retry", "after")
    assert (
        refused.returncode == 2
        and f"after of {batch} would be skipped again, because of bad" in refused.stderr
    )
    assert f"plan retry bad --batch {batch}" in refused.stderr and fleet.entries("p", batch, "reopen") == []
    assert fleet.plan("cancel", batch).returncode == 0
    assert fleet.wait(batch) == 1
    (fleet.batch("p", batch) / "go").touch()
    asked = fleet.plan("retry", "bad", "after")
    assert f"bad, after of {batch} will run again, and so will 1 more task that was cancelled" in asked.stderr
    wait_until(lambda: [entry["task"] for entry in fleet.entries("p", batch, "accept")] == ["bad", "after"])
    assert [entry["task"] for entry in fleet.entries("p", batch, "issue")].count("waits") == 2


def test_a_retry_of_a_fan_out_that_would_be_skipped_again_is_refused(fleet: FleetFolder) -> None:
    """PLAN-05, PLAN-07: it was said to run again; of one that is skipped in part the rest runs, and it says so."""
    items = "- **foreach**: items.json:all\n- **retries**: 0\n"
    tasks = f"### first\n- **command**: `test -e {{BATCH_PATH}}/go{{ITEM.id}}`\n{items}"
    tasks += f"### second\n- **command**: `test -e {{BATCH_PATH}}/go`\n{items}- **depends_on**: first_{{ITEM.id}}\n"
    folder = fleet.write_plan("p", tasks)
    (folder / "items.json").write_text('{"all": [{"id": "1"}, {"id": "2"}, {"id": "3"}]}')
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 1
    refused = fleet.plan("retry", "second")
    assert refused.returncode == 2 and fleet.entries("p", batch, "reopen") == []
    assert f"second of {batch} would be skipped again, because of first;" in refused.stderr
    assert f"plan retry first --batch {batch}" in refused.stderr
    (fleet.batch("p", batch) / "go2").touch()
    assert "3 of 3 tasks of first" in fleet.plan("retry", "first").stderr
    wait_until(lambda: len(fleet.entries("p", batch, "ended")) == 2)
    asked = fleet.plan("retry", "second")
    assert (
        f"1 of 3 tasks of second (2 more stay skipped, because of first) of {batch} will run" in asked.stderr
    )
    wait_until(lambda: len(fleet.entries("p", batch, "ended")) == 3)
    assert [entry["task"] for entry in fleet.entries("p", batch, "fail")].count("second_2") == 2


def test_a_task_that_waits_for_its_next_attempt_may_be_retried_now_and_the_others_wait_on(
    fleet: FleetFolder,
) -> None:
    """PLAN-07, FLEET-08: its back-off ends; the failures of tasks that nobody asked for still count."""
    test = "- **command**: `echo >> {BATCH_PATH}/NAME.ran; test -e {BATCH_PATH}/go`\n- **retries**: 5\n"
    fleet.write_plan("p", "".join(f"### {name}\n{test.replace('NAME', name)}" for name in ("one", "two")))
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    wait_until(lambda: fleet.batch("p", batch).exists() and len(fleet.entries("p", batch, "fail")) == 2)
    (fleet.batch("p", batch) / "go").touch()
    asked = fleet.plan("retry", "one")
    assert asked.returncode == 0, asked.stderr
    wait_until(lambda: fleet.entries("p", batch, "accept"))
    one, two = fleet.status(batch)["tasks"]
    assert (one["state"], two["state"], two["attempt"]) == ("complete", "waiting", 1)
    assert two["again_at"] is not None
    assert "nothing to repeat" not in fleet.plan("retry", "two").stderr
    assert fleet.wait(batch) == 0


def test_tasks_for_the_coordinator_run_beside_it_and_nothing_of_it_outlives_it(fleet: FleetFolder) -> None:
    """PLAN-08, FLEET-01: `executor: brain` with a shell command needs no other agent; a kill leaves nothing behind."""
    fleet.write_plan("p", "### a\n- **executor**: brain\n- **command**: `echo $WATCHBILL_AGENT`\n")
    brain = fleet.start_coordinator()
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0
    assert fleet.plan("logs", "a").stdout == "brain\n"
    pid = json.loads((fleet.root / places.heartbeat_path("brain")).read_text())["pid"]
    brain.kill()
    brain.wait(PATIENCE_S)
    wait_until(lambda: start_time(pid) is None)
    fleet.start_coordinator()
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0


UP = """[engines.scripted]
driver = "scripted"
[models.talker]
engine = "scripted"
script = { memory = "1MiB" }
[coordinator]
[agents.cpu-1]
cpu_slots = 1
"""


def test_up_runs_coordinator_and_agents_starts_them_anew_and_takes_them_along(fleet: FleetFolder) -> None:
    """FLEET-01, FLEET-07: as the config says, below the daemon's root without one; shown in `status`, ended by `down`.
    An agent that was told to stop is not started anew: it was back after a second."""
    config, home = fleet.home / "watchbill.toml", ("--root", str(fleet.home / "home"))
    config.write_text(UP)
    daemon = fleet.start("-m", "watchbill", "up", "--port", "0", "--config", str(config), *home)
    fleet.root = fleet.home / "home" / "fleet"
    wait_until((fleet.root / places.MARKER).exists)
    fleet.write_plan("p", "### a\n- **command**: `true`\n")
    assert fleet.wait(fleet.submit("p")) == 0

    def programs() -> dict[str, dict[str, object]]:
        done = fleet.run("status", "--json", *home)
        return json.loads(done.stdout)["programs"] if done.returncode == 0 else {}

    before = wait_until(programs)
    assert before.keys() == {"coordinator", "agent-cpu-1"}
    pid = before["coordinator"]["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: programs()["coordinator"]["starts"] == 2 and programs()["coordinator"]["pid"])
    assert "agent-cpu-1" in fleet.run("status", *home).stdout
    assert fleet.wait(fleet.submit("p")) == 0
    fleet.run("signal", "cpu-1", "stop")
    wait_until(lambda: "told to leave" in str(programs()["agent-cpu-1"]["last_end"]))
    assert programs()["agent-cpu-1"]["starts"] == 1
    left = [each["pid"] for each in programs().values() if each["pid"] is not None]
    assert fleet.run("down", *home).returncode == 0
    assert daemon.wait(PATIENCE_S) == 0
    assert all(isinstance(each, int) and start_time(each) is None for each in left)


GPU = """[devices."gpu:1"]
reserve = 0
[models.qwen]
engine = "scripted"
devices = ["gpu:1"]
memory = "1MiB"
script = { memory = "1MiB" }
[coordinator]
[agents.gpu-1]
device = "gpu:1"
model = "qwen"
cpu_slots = 1
"""


#: A script of a plan: it knows the address of its agent's model and nothing else.
ASK = """import json, os, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()
address = os.environ["WATCHBILL_MODEL_URL"] + "/v1/chat/completions"
request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).headers["X-Watchbill-Lane"])
"""


def test_a_gpu_task_borrows_its_memory_from_the_ledger_of_up_and_asks_the_agents_model(
    fleet: FleetFolder,
) -> None:
    """FLEET-01, FLEET-02, FLEET-06, FLEET-10: a loan for the life of the task; the card by its UUID; a door in the lane
    plans; the heartbeat shows the card, and `gpus` reads it from the folder alone. FLEET-14: the card has one agent."""
    uuid = f"GPU-{secrets.token_hex(8)}"
    cards, config = fleet.home / "cards.json", fleet.home / "watchbill.toml"
    step = {"at": 0, "temperature_c": 76, "power_w": 120.5, "utilisation_percent": 40, "clock_mhz": 1950}
    card = {"name": "gpu:1", "capacity": "6144MiB", "uuid": uuid, "timeline": [step]}
    cards.write_text(json.dumps({"cards": [card]}))
    config.write_text(GPU)
    home = ("--root", str(fleet.home / "home"))
    fleet.start(
        "-m", "watchbill", "up", "--port", "0", "--config", str(config), *home, WATCHBILL_FAKE_GPUS=str(cards)
    )
    fleet.root = fleet.home / "home" / "fleet"
    wait_until((fleet.root / places.MARKER).exists)
    fleet.write_plan(
        "p",
        "### script\n- **task_class**: script\n- **vram_estimate_mb**: 2048\n"
        "- **command**: `echo $CUDA_VISIBLE_DEVICES > {BATCH_PATH}/card`\n"
        "### ask\n- **task_class**: llm\n- **depends_on**: script\n"
        f"- **command**: `{sys.executable} ask.py > {{BATCH_PATH}}/lane`\n",
    )
    (fleet.root / "plans" / "p" / "ask.py").write_text(ASK)
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0
    folder = fleet.root / "plans" / "p" / "history" / batch
    assert (folder / "card").read_text() == f"{uuid}\n"
    assert (folder / "lane").read_text() == "plans\n"
    journal = (fleet.home / "home" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in journal]
    assert [each["bytes"] for each in events if each["event"] == "loan"] == [2048 * 2**20]
    assert [each["event"] for each in events if each["event"] == "loan_end"] == ["loan_end"]
    shown = json.loads(fleet.run("gpus", "--json", "--root", str(fleet.root)).stdout)["agents"]["gpu-1"]
    assert (shown["temperature_c"], shown["vram_total_mb"], shown["alive"]) == (76, 6144, True)
    assert "gpu-1" in fleet.run("gpus", "--root", str(fleet.root)).stdout
    second = fleet.run("agent", "second", "--device", "gpu:1", "--root", str(fleet.root))
    assert second.returncode == 2 and "gpu:1 belongs to the agent gpu-1" in second.stderr, second.stderr
    assert fleet.run("down", *home).returncode == 0


def test_the_example_plan_makes_a_manifest_fans_out_and_aggregates(fleet: FleetFolder) -> None:
    """PLAN-01 to PLAN-08: examples/plans/words as a user copies it."""
    shutil.copytree(
        Path(__file__).parents[2] / "examples" / "plans" / "words", fleet.root / "plans" / "words"
    )
    assert fleet.plan("check", "words").returncode == 0
    fleet.start_coordinator()
    for number in (1, 2):
        fleet.start_agent(f"cpu-{number}")
    batch = fleet.submit("words")
    assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout
    table = (fleet.batch("words", batch) / "output" / "table.md").read_text()
    assert table == "| text | words |\n|---|---|\n| fox | 9 |\n| work | 5 |\n| rain | 1 |\n"
    assert {task["agent"] for task in fleet.status(batch)["tasks"]} >= {"brain"}


def test_the_file_of_a_foreach_may_be_an_input(fleet: FleetFolder) -> None:
    """PLAN-03, PLAN-04: a path is relative to the plan's folder, and has rows, whoever gives it."""
    tasks = (
        "### each\n- **command**: `echo {ITEM.name} > {OUT}/{ITEM.id}`\n"
        "- **foreach**: {ROWS}\n- **produces**: {OUT}/{ITEM.id}\n"
    )
    inputs = "- `ROWS` (default: rows.csv)\n- `OUT` (default: made)"
    folder = fleet.write_plan("p", tasks, inputs=inputs)
    (folder / "made").mkdir()
    (folder / "rows.csv").write_text("id,name\na,x\n")
    (folder / "others.tsv").write_text("id\tname\nb\ty\nc\tz\n")
    shown = fleet.plan("submit", "p", "--dry-run", "--set", "ROWS=others.tsv")
    assert "item 2 of 2" in shown.stdout, shown.stderr
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    for options in ((), ("--set", f"ROWS={folder / 'others.tsv'}")):
        batch = fleet.submit("p", *options)
        assert fleet.wait(batch) == 0, fleet.status(batch)
    assert {each.name: each.read_text() for each in (folder / "made").iterdir()} == {
        "a": "x\n",
        "b": "y\n",
        "c": "z\n",
    }


def test_a_default_that_the_author_changes_is_named_when_the_batch_is_resumed(fleet: FleetFolder) -> None:
    """PLAN-07: a batch keeps its inputs, and ran once more with the old value without a word about it."""
    folder = fleet.write_plan("p", "### a\n- **command**: `[ {SIZE} {MODE} = 3x ]`\n- **retries**: 0\n")
    plan = folder / "plan.md"
    plan.write_text(plan.read_text() + "\n## Inputs\n- `SIZE` (default: 2)\n- `MODE` (default: y)\n")
    plan.write_text(plan.read_text().replace("[ {SIZE} {MODE} =", "[ {SIZE}{MODE} ="))
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p", "--set", "MODE=x")
    assert fleet.wait(batch) == 1
    plan.write_text(plan.read_text().replace("default: 2", "default: 3"))
    told = fleet.plan("resume", batch, "--explain").stderr
    assert "the input SIZE stays '2', and its default is now '3'; to change it add --set SIZE=3" in told
    assert "MODE" not in told
    for words in (("logs", "A"), ("logs", "A", "--batch", batch), ("retry", "A")):
        unknown = fleet.plan(*words)
        assert (unknown.returncode, "did you mean a?" in unknown.stderr) == (2, True), unknown.stderr
    resumed = fleet.plan("resume", batch, "--set", "SIZE=3")
    assert (resumed.returncode, "stays" in resumed.stderr) == (0, False)
    assert fleet.wait(batch) == 0
    assert fleet.status(batch)["shortage"] is None


def test_rows_that_the_author_adds_run_when_the_batch_is_resumed(fleet: FleetFolder) -> None:
    """PLAN-07: a file that no task writes is the author's; only rows that changed, and what waits for them, run."""
    tasks = """
### each
- **command**: `echo {ITEM.name} >> {BATCH_PATH}/results/{ITEM.id}`
- **foreach**: rows.csv

### last
- **command**: `cat {BATCH_PATH}/results/* > {BATCH_PATH}/output/all`
- **depends_on**: each
"""
    folder = fleet.write_plan("p", tasks)
    (folder / "rows.csv").write_text("id,name\na,1\nb,2\n")
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0
    (folder / "rows.csv").write_text("id,name\na,1\nb,3\nc,4\n")
    explained = json.loads(fleet.plan("resume", batch, "--explain", "--json").stdout)["tasks"]
    assert (explained["each"]["kept"], explained["each"]["why"]) == (False, "items")
    assert fleet.plan("resume", batch).returncode == 0
    assert fleet.wait(batch) == 0
    results = fleet.batch("p", batch) / "results"
    assert [(results / name).read_text() for name in "abc"] == ["1\n", "2\n3\n", "4\n"]
    assert (fleet.batch("p", batch) / "output" / "all").read_text() == "1\n2\n3\n4\n"
