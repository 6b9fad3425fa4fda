"""Agents as real processes beside a real coordinator: what they run, what they report, and what survives whom."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.eventually import wait_until
from support.fleet_rig import AgentProcess, FleetRig, marked_processes
from support.stopping import stop
from watchbill.errors import OursError
from watchbill.files.host import host_name
from watchbill.fleet.folder import places
from watchbill.fleet.folder.requests import Reopening, ask_to_reopen
from watchbill.fleet.folder.signals import Order


def finish(rig: FleetRig, seconds: float = 30.0) -> None:
    """Turns the coordinator until no batch is left."""
    wait_until(rig.turn, seconds)


def ended(rig: FleetRig, batch: str = "b1") -> str:
    return str(rig.entries(batch, "ended")[0]["outcome"])


def task(name: str, command: str, *keys: str) -> str:
    lines = "".join(f"- **{key}\n" for key in keys)
    return f"### {name}\n- **command**:\n  ```bash\n  {command}\n  ```\n{lines}"


# ------------------------------------------------------------------ what a task gets


def test_a_plan_runs_to_its_end_on_two_agents(rig: FleetRig) -> None:
    """PLAN-04, PLAN-05, FLEET-01: a manifest, its fan-out, the sum of it; each task is accepted once."""
    items = json.dumps({"items": [{"id": f"x{number}", "n": number} for number in range(20)]})
    rig.submit(
        "b1",
        task("scan", f"echo '{items}' > {{BATCH_PATH}}/m.json")
        + task("each", "mkdir -p {BATCH_PATH}/out; echo {ITEM.n} > {BATCH_PATH}/out/{ITEM.id}",
               "foreach**: {BATCH_PATH}/m.json:items", "depends_on**: scan")
        + task("sum", "total=0; for each in {BATCH_PATH}/out/*; do total=$((total + $(cat $each))); done; "
               "echo $total > {BATCH_PATH}/sum", "depends_on**: each"),
    )  # fmt: skip
    rig.start("cpu-1", "--cpu-slots", "2")
    rig.start("cpu-2", "--cpu-slots", "2")
    finish(rig)
    assert ended(rig) == "complete"
    assert (rig.batch_folder("b1") / "sum").read_text() == "190\n"
    accepted = [entry["task"] for entry in rig.entries("b1", "accept")]
    assert len(accepted) == len(set(accepted)) == 22


def test_a_task_knows_its_place(rig: FleetRig) -> None:
    """FLEET-10: the environment, the working folder, the paths of this machine."""
    tell = 'printf "%s\\n" "$PWD" "$BATCH_PATH" "$WATCHBILL_ATTEMPT" "=$CUDA_VISIBLE_DEVICES." "$A" {ROOT} {PLAN_PATH}'
    keys = ("env**: A=in {BATCH_ID}", "task_class**: cpu")
    rig.submit("b1", task("tell", f"{tell}; test -f $WATCHBILL_TASK", *keys))
    rig.start("cpu-1")
    finish(rig)
    root, batch = rig.root, rig.batch_folder("b1")
    said = [root / "plans/p", batch, 1, "=.", "in b1", root, root / "plans/p"]
    assert rig.results("cpu-1")[0]["tail"] == "\n".join(map(str, said))
    assert ended(rig) == "complete"


def test_inputs_below_the_root_get_this_machines_path(rig: FleetRig) -> None:
    """FLEET-01: whoever runs a command puts in the paths."""
    from watchbill.plans.batch import BelowRoot

    rig.submit(
        "b1", task("a", "echo {WHERE} {WORD}"), inputs={"WHERE": BelowRoot("plans/p/data"), "WORD": "x y"}
    )
    rig.start("cpu-1")
    finish(rig)
    assert rig.results("cpu-1")[0]["tail"] == f"{rig.root}/plans/p/data x y"


HOSTILE = [
    "plain", "two words", "", " ", "a\nb\n", "$(touch HACKED)", "`touch HACKED`", "; touch HACKED",
    "' ; touch HACKED #", '" ; touch HACKED #', "${HOME}", "$1", "*", "~", "\\", "\\n", "%s", "-n", "--help",
    "{ITEM.other}", "{BATCH_PATH}",
    "ä€😀", "a\tb", "&& false", "|| true", "<(ls)", "!!", "\x01\x7f", "1.10", "x" * 5_000,
]  # fmt: skip


def test_hostile_values_reach_the_program_byte_for_byte(rig: FleetRig) -> None:
    """R51, R52: through submit, journal, slip, agent, guard and bash, in the three kinds of quotes."""
    values = [f"{value}{number}" if value else "" for number in range(10) for value in HOSTILE]
    folder = rig.submit(
        "b1",
        task("write", "printf %s {ITEM.v} > {BATCH_PATH}/{ITEM.n}.a; printf %s \"{ITEM.v}\" > {BATCH_PATH}/{ITEM.n}.b; "
             "printf %s '{ITEM.v}' > {BATCH_PATH}/{ITEM.n}.c", "foreach**: items.json", "batch_size**: 10"),
    )  # fmt: skip
    (folder / "items.json").write_text(
        json.dumps([{"n": f"n{i}", "v": value} for i, value in enumerate(values)])
    )
    rig.start("cpu-1", "--cpu-slots", "4")
    finish(rig)
    assert ended(rig) == "complete"
    batch = rig.batch_folder("b1")
    for number, value in enumerate(values):
        for quotes in "abc":
            assert (batch / f"n{number}.{quotes}").read_bytes() == value.encode()
    assert not list(rig.root.rglob("HACKED"))


# ------------------------------------------------------------------ what it reports


@pytest.mark.parametrize(
    ("command", "why", "rc"),
    [
        ("exit 0", "done", 0),
        ("echo no >&2; exit 4", "failed", 4),
        ("exit 75", "soft_stop", 75),
        ("exit 126", "not_runnable", 126),
        ("no_such_program_at_all", "not_runnable", 127),
        ("kill -9 $$", "failed", -9),
    ],
)
def test_exit_codes_say_what_became_of_an_attempt(rig: FleetRig, command: str, why: str, rc: int) -> None:
    """FLEET-08."""
    rig.submit("b1", task("a", command))
    rig.start("cpu-1")
    wait_until(lambda: rig.turn() or rig.results("cpu-1"))
    result = rig.results("cpu-1")[0]
    assert (result["why"], result["rc"]) == (why, rc)


def first_result(rig: FleetRig, agent: str = "cpu-1") -> dict[str, Any]:
    return wait_until(lambda: rig.turn() is None or rig.results(agent))[0]


def test_a_task_whose_output_is_missing_has_not_succeeded(rig: FleetRig) -> None:
    """PLAN-02: produces is looked for after success, requires before the start; both take patterns."""
    rig.submit(
        "b1",
        task("good", "echo > {BATCH_PATH}/x1.json", "produces**: {BATCH_PATH}/x*.json")
        + task("bad", "true", "produces**: {BATCH_PATH}/nothing-*.json")
        + task("unmet", "touch {BATCH_PATH}/ran", "requires**: {BATCH_PATH}/absent"),
    )
    rig.start("cpu-1")
    wait_until(lambda: rig.turn() is None or len(rig.results("cpu-1")) >= 3)
    found = {result["name"].split("-b1-")[1].split(".")[0]: result for result in rig.results("cpu-1")}
    assert found["good"]["why"] == "done"
    assert found["bad"]["why"] == "missing_output" and "nothing-*.json" in found["bad"]["tail"]
    assert found["unmet"]["why"] == "failed" and "absent, which is not there" in found["unmet"]["tail"]
    assert not (rig.batch_folder("b1") / "ran").exists()


@pytest.mark.timeout(60)
def test_what_a_task_left_behind_in_place_of_its_files_fails_it_and_nothing_else(rig: FleetRig) -> None:
    """PLAN-02, FLEET-09: links in circles hung the agent, and each further one that took the task over."""
    folder = "{BATCH_PATH}"
    rig.submit(
        "b1",
        task(
            "circles",
            f"cd {folder}; ln -s . one; ln -s . two",
            f"produces**: {folder}/**/*.none",
            "retries**: 0",
        )
        + task("nothing", f"ln -s /nowhere {folder}/gone", f"produces**: {folder}/gone", "retries**: 0")
        + task("named", f"echo > '{folder}/a[1].txt'", f"produces**: {folder}/a[1].txt", "retries**: 0"),
    )
    rig.start("cpu-1")
    finish(rig)
    assert {entry["task"]: entry["end"] for entry in rig.entries("b1", "fail")} == {
        "circles": "missing_output", "nothing": "missing_output",
    }  # fmt: skip
    assert [entry["task"] for entry in rig.entries("b1", "accept")] == ["named"]


def test_a_result_is_a_file_or_the_last_line(rig: FleetRig) -> None:
    """FLEET-10."""
    rig.submit(
        "b1",
        task("file", 'echo \'{"from": "file"}\' > "$WATCHBILL_RESULT"; echo \'{"from": "line"}\'')
        + task("line", 'echo words; echo \'{"from": "line"}\'')
        + task("none", "echo words"),
    )
    rig.start("cpu-1")
    finish(rig)
    answers = {
        result["name"].split("-b1-")[1].split(".")[0]: result["answer"] for result in rig.results("cpu-1")
    }
    assert answers == {"file": '{"from":"file"}', "line": '{"from":"line"}', "none": ""}


def test_whatever_a_task_leaves_in_place_of_its_result_the_agent_goes_on(rig: FleetRig) -> None:
    """FLEET-10, R50: a folder there once kept the agent from ever working again; a link is not followed."""
    kept = rig.root.parent / "kept"
    kept.write_text("mine")
    rig.submit(
        "b1",
        task("folder", 'mkdir -p "$WATCHBILL_RESULT/a/b"; touch "$WATCHBILL_RESULT/a/c"')
        + task("pipe", 'mkfifo "$WATCHBILL_RESULT"')
        + task("link", f'ln -s {kept} "$WATCHBILL_RESULT"')
        + task("folder_link", f'ln -s {kept.parent} "$WATCHBILL_RESULT"')
        + task("passing", 'touch "${WATCHBILL_RESULT%.result.json}.tmp"')
        + task("after", "true", "depends_on**: folder, pipe, link, folder_link, passing"),
    )
    agent = rig.start("cpu-1")
    finish(rig)
    assert ended(rig) == "complete"
    assert {result["answer"] for result in rig.results("cpu-1")} == {""}
    assert (kept.read_text(), os.listdir(agent.folder / "outputs")) == ("mine", [])


def test_outputs_are_kept_where_there_is_something_to_see(rig: FleetRig) -> None:
    """A short success leaves no file; a failure, a long output and a task that asks for its folder do."""
    rig.submit(
        "b1",
        task("short", "echo fine")
        + task("long", "seq 3000")
        + task("asks", "echo note > {TASK_PATH}/note; echo said")
        + task("fails", "echo why >&2; exit 1", "retries**: 0"),
    )
    rig.start("cpu-1")
    finish(rig)
    kept = rig.batch_folder("b1") / "tasks"
    assert sorted(os.listdir(kept)) == ["asks", "fails", "long"]
    assert (kept / "long/a1/stdout").read_text() == "".join(f"{n}\n" for n in range(1, 3001))
    assert (kept / "asks/a1/note").read_text() == "note\n" and (
        kept / "asks/a1/stdout"
    ).read_text() == "said\n"
    assert (kept / "fails/a1/stderr").read_text() == "why\n"
    assert not os.listdir(rig.agents[0].folder / "outputs")


def test_a_task_that_takes_too_long_is_ended(rig: FleetRig) -> None:
    rig.submit("b1", task("a", "sleep 1000", "timeout**: 1s", "retries**: 0"))
    rig.start("cpu-1")
    finish(rig)
    assert first_result(rig)["why"] == "timeout"


def test_a_retry_goes_on_behind_the_items_that_are_done(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PLAN-04: batch_size items in one claim; the failed one is the first of the next attempt."""
    monkeypatch.setattr("watchbill.fleet.limits.BACK_OFF_MS", (0, 0, 0))
    command = "echo {ITEM} >> {BATCH_PATH}/ran; [ {ITEM} != c ] || [ $WATCHBILL_ATTEMPT -gt 1 ]"
    folder = rig.submit("b1", task("a", command, "foreach**: items.json", "batch_size**: 5"))
    (folder / "items.json").write_text(json.dumps(list("abcde")))
    rig.start("cpu-1")
    finish(rig)
    assert (rig.batch_folder("b1") / "ran").read_text().split() == list("abc") + list("cde")
    assert ended(rig) == "complete"


def test_a_task_of_several_items_begins_anew_when_it_was_complete_or_is_about_other_work(
    rig: FleetRig,
) -> None:
    """PLAN-04, PLAN-07: nothing of it ran, and it was complete: the items that former work had done counted."""
    several = ("foreach**: items.json", "batch_size**: 3")
    folder = rig.submit("b1", task("a", "echo {ITEM} >> {BATCH_PATH}/ran", *several))
    (folder / "items.json").write_text(json.dumps(list("abc")))
    rig.start("cpu-1")
    finish(rig)
    ask_to_reopen(rig.disk, Reopening("r1", "b1", "p", ("a_1",)))
    finish(rig)
    (folder / "plan.md").write_text(
        f"# P\n## Tasks\n{task('a', 'echo new-{ITEM} >> {BATCH_PATH}/ran', *several)}"
    )
    ask_to_reopen(rig.disk, Reopening("r2", "b1", "p", reads_plan=True))
    finish(rig)
    ran = (rig.batch_folder("b1") / "ran").read_text().split()
    assert ran == [*"abcabc", "new-a", "new-b", "new-c"]


# ------------------------------------------------------------------ signals


def running(agent: AgentProcess) -> list[str]:
    return [each["task_id"] for each in agent.heartbeat().get("active_tasks", [])]


def started(rig: FleetRig, name: str = "started") -> bool:
    rig.turn()
    return (rig.batch_folder("b1") / name).exists()


WAITING = "touch {BATCH_PATH}/started; while [ ! -e {BATCH_PATH}/go ]; do sleep 0.05; done"


@pytest.mark.parametrize("order", [Order.ABORT, Order.KILL])
def test_a_task_is_ended_by_a_signal_and_the_file_goes(rig: FleetRig, order: Order) -> None:
    """FLEET-07: kill ends also what ignores TERM."""
    trap = "trap '' TERM; " if order is Order.KILL else ""
    rig.submit("b1", task("a", trap + WAITING, "retries**: 0") + task("b", WAITING))
    rig.start("cpu-1", "--cpu-slots", "2")
    wait_until(lambda: started(rig))
    file = rig.signal("cpu-1", order, "a")
    wait_until(lambda: not file.exists())
    (rig.batch_folder("b1") / "go").touch()
    finish(rig)
    whys = {result["name"].split("-b1-")[1].split(".")[0]: result["why"] for result in rig.results("cpu-1")}
    assert whys == {"a": "aborted", "b": "done"}


def test_plain_signal_files_work_as_well(rig: FleetRig) -> None:
    """FLEET-07: the task id as JSON in the file, as a person writes it."""
    rig.submit("b1", task("a", WAITING, "retries**: 0"))
    rig.start("cpu-1")
    wait_until(lambda: started(rig))
    file = rig.root / places.SIGNALS / "cpu-1.abort"
    file.write_text('{"task_id": "a"}')
    wait_until(lambda: not file.exists())
    assert first_result(rig)["why"] == "aborted"


def test_half_a_signal_ends_no_task_and_the_log_says_so(rig: FleetRig) -> None:
    """FLEET-07: a file that somebody is still writing, or garbage, does not end whatever happens to run."""
    rig.submit("b1", task("a", WAITING, "retries**: 0"))
    agent = rig.start("cpu-1")
    wait_until(lambda: started(rig))
    garbage = rig.root / places.SIGNALS / "cpu-1.kill"
    garbage.write_text('{"task_id": "b')
    wait_until(lambda: "cpu-1.kill names no task that could be read" in agent.log.read_text())
    assert garbage.exists() and not rig.results("cpu-1")
    garbage.write_text('{"task_id": "a"}')
    wait_until(lambda: not garbage.exists())
    assert first_result(rig)["why"] == "aborted"


def test_stop_lets_running_tasks_end_and_claims_nothing_more(rig: FleetRig) -> None:
    """FLEET-07."""
    rig.submit("b1", task("a", WAITING) + task("b", "true", "depends_on**: a"))
    agent = rig.start("cpu-1")
    wait_until(lambda: started(rig))
    file = rig.signal("cpu-1", Order.STOP)
    wait_until(lambda: not file.exists())
    (rig.batch_folder("b1") / "go").touch()
    assert agent.process.wait(60) == 0
    rig.turn()
    assert [result["why"] for result in rig.results("cpu-1")] == ["done"]
    assert json.loads((rig.root / places.heartbeat_path("cpu-1")).read_text())["state"] == "stopped"


def test_an_agent_on_hold_claims_nothing_until_it_may_again(rig: FleetRig) -> None:
    """FLEET-07: the hold survives a new start."""
    agent = rig.start("cpu-1")
    wait_until(agent.heartbeat)
    file = rig.signal("cpu-1", Order.HOLD)
    wait_until(lambda: not file.exists())
    agent.end()
    agent = rig.start("cpu-1")
    wait_until(lambda: agent.heartbeat().get("constraints") == ["held"])
    rig.submit("b1", task("a", "true"))
    rig.turn()
    wait_until(lambda: rig.disk.names(places.QUEUE))
    seq = agent.heartbeat()["seq"]
    assert rig.disk.names(places.QUEUE) and seq
    rig.signal("cpu-1", Order.RESUME)
    finish(rig)
    assert ended(rig) == "complete"


def test_term_gives_running_tasks_back_without_blame(rig: FleetRig) -> None:
    """An agent that is told to leave by the system reports what it ended: again, and not counted."""
    rig.submit("b1", task("a", WAITING))
    agent = rig.start("cpu-1")
    wait_until(lambda: started(rig))
    agent.process.terminate()
    wait_until(lambda: "leaving" in agent.said() or agent.process.poll() is not None)
    agent.process.terminate()
    assert agent.process.wait(60) == 0
    assert [result["why"] for result in rig.results("cpu-1")] == ["soft_stop"]
    (rig.batch_folder("b1") / "go").touch()
    rig.start("cpu-2")
    finish(rig)
    assert ended(rig) == "complete" and rig.entries("b1", "fail")[0]["is_counted"] is False


# ------------------------------------------------------------------ who dies, and who comes back


def test_a_stopped_agent_that_comes_back_is_refused(rig: FleetRig) -> None:
    """R13, FLEET-09: attempt 2 is accepted while the first agent is stopped; what that one reports later is dropped."""
    rig.submit("b1", task("a", "echo $WATCHBILL_ATTEMPT >> {BATCH_PATH}/ran; " + WAITING))
    zombie = rig.start("cpu-1")
    wait_until(lambda: started(rig))
    stop(zombie.process.pid)
    [name] = rig.disk.names(places.processing_folder("cpu-1"))
    # Seen from another machine: its heartbeat has not moved for 90 s.
    rig.brain.close()
    far = far_brain(rig)
    far.turn(0)
    far.turn(1_000)
    far.turn(95_000)
    other = rig.start("cpu-2")
    (rig.batch_folder("b1") / "go").touch()
    wait_until(
        lambda: far.turn(96_000 + int(time.monotonic() * 1000) % 50_000) is None or rig.results("cpu-2")
    )
    wait_until(lambda: far.turn(200_000) is None or rig.entries("b1", "accept"))
    os.kill(zombie.process.pid, signal.SIGCONT)
    wait_until(lambda: "revoked" in zombie.said() or rig.results("cpu-1"))
    far.turn(201_000)
    [accepted] = rig.entries("b1", "accept")
    assert (accepted["agent"], accepted["attempt"]) == ("cpu-2", 2)
    assert name not in rig.disk.names(places.processing_folder("cpu-1"))
    assert [entry["e"] for entry in rig.entries("b1") if entry["e"] in ("accept", "fail", "lost")] == [
        "accept"
    ]
    assert other.end() == 0


def far_brain(rig: FleetRig) -> Any:
    """A coordinator on another machine: it can ask no kernel, and has only the heartbeats."""
    from watchbill.fleet.coordinator.loop import Coordinator
    from watchbill.fleet.folder.heartbeat import Pulse, Watcher

    brain = Coordinator(
        rig.disk, Watcher("another-boot"), Pulse("another-boot", 1, 1, 0), wall_ms=lambda: 1_767_225_600_000
    )
    brain.start(0)
    rig.brain = brain
    return brain


def test_a_killed_agent_reports_its_losses_when_it_is_back(rig: FleetRig) -> None:
    """FLEET-08: nobody waits 90 s for an agent that is back, and a loss is no failed attempt."""
    rig.submit("b1", task("a", "echo $WATCHBILL_ATTEMPT >> {BATCH_PATH}/ran; " + WAITING))
    agent = rig.start("cpu-1")
    wait_until(lambda: started(rig))
    agent.kill()
    wait_until(lambda: not marked_processes(f"BATCH_PATH={rig.root}"))
    (rig.batch_folder("b1") / "go").touch()
    rig.start("cpu-1")
    wait_until(lambda: any(result["why"] == "lost" for result in rig.results("cpu-1")))
    finish(rig)
    assert (rig.batch_folder("b1") / "ran").read_text().split() == ["1", "2"]
    assert not rig.entries("b1", "fail") and ended(rig) == "complete"


def test_an_agent_replaces_a_killed_guard(rig: FleetRig) -> None:
    rig.submit("b1", task("a", WAITING))
    agent = rig.start("cpu-1")
    wait_until(lambda: started(rig))
    guard = wait_until(lambda: agent.guard_pid)
    os.kill(guard, signal.SIGKILL)
    assert first_result(rig)["why"] == "lost"
    (rig.batch_folder("b1") / "go").touch()
    finish(rig)
    assert ended(rig) == "complete" and agent.guard_pid != guard


def test_a_cancelled_batch_ends_its_workers(rig: FleetRig) -> None:
    """The slip is gone from the agent's hands: its worker is ended without any signal."""
    rig.submit("b1", task("a", WAITING))
    agent = rig.start("cpu-1")
    wait_until(lambda: started(rig))
    (rig.root / places.INBOX / "b1.cancel").touch()
    rig.turn()
    wait_until(lambda: not marked_processes(f"BATCH_PATH={rig.root}"))
    wait_until(lambda: not running(agent))
    assert rig.results("cpu-1") == []


def test_a_second_agent_of_the_name_is_refused(rig: FleetRig) -> None:
    """On this machine by the lock of its private folder, and beyond that by its heartbeat."""
    first = rig.start("cpu-1")
    wait_until(first.heartbeat)
    second = rig.start("cpu-1")
    assert second.process.wait(60) == 2
    assert f"(pid {first.process.pid})" in second.said() and "another name" in second.said()
    third = rig.start("cpu-1", WATCHBILL_HOME=str(rig.root.parent / "home-other"))
    assert third.process.wait(60) == 2
    assert f"on the host {host_name()} with pid {first.process.pid}" in third.said()
    assert f"watchbill signal cpu-1 stop --root {rig.root}" in third.said()


def test_an_agent_waits_for_its_folder_and_says_so(tmp_path: Path) -> None:
    """FLEET-09: a folder that is mounted, or coordinated for the first time, after the agent has started."""
    rig = FleetRig(tmp_path / "shared")
    marker, kept = rig.root / places.MARKER, rig.root / "kept"
    marker.rename(kept)
    agent = rig.start("cpu-1")
    wait_until(lambda: "has no fleet.json, waiting for 60 s" in agent.said())
    assert f"watchbill coordinator --root {rig.root}" in agent.said()
    kept.rename(marker)
    wait_until(agent.heartbeat)
    rig.close()


def test_a_folder_that_does_not_become_a_fleet_is_refused_in_the_end(tmp_path: Path) -> None:
    """An unmounted mount point is an empty folder."""
    told: list[str] = []
    with pytest.raises(places.NoFleet, match=r"has had no fleet\.json for 1 s") as refused:
        places.wait_for_root(tmp_path, 1_000, told.append)
    assert f"watchbill coordinator --root {tmp_path}" in refused.value.hint
    assert len(told) == 1
    (tmp_path / places.MARKER).write_text('{"format": 9}')
    with pytest.raises(OursError, match="format 9"):  # that would not pass with time
        places.wait_for_root(tmp_path, 60_000, told.append)


# ------------------------------------------------------------------ the command line


def told(rig: FleetRig, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "watchbill", "signal", *words, "--root", str(rig.root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_signal_is_left_for_an_agent_that_exists(rig: FleetRig) -> None:
    """FLEET-07."""
    rig.disk.make_folder(places.processing_folder("gpu-1"))
    assert told(rig, "gpu-1", "abort", "each_x7").returncode == 0
    file = rig.root / places.SIGNALS / "gpu-1.abort.each_x7"
    assert json.loads(file.read_text()) == {"task_id": "each_x7"}
    assert told(rig, "gpu-1", "hold").returncode == 0
    assert (rig.root / places.SIGNALS / "gpu-1.hold").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("gpu-2", "stop"), "gpu-2 is not an agent of"),
        (("gpu-1", "abort"), "abort needs the name of a task; write: watchbill signal gpu-1 abort TASK"),
        (("gpu-1", "stop", "a"), "stop is about the agent and takes no task"),
        (("gpu-1", "abort", "../x"), "cannot be a task"),
    ],
)
def test_a_signal_that_means_nothing_is_refused(
    rig: FleetRig, words: tuple[str, ...], complaint: str
) -> None:
    rig.disk.make_folder(places.processing_folder("gpu-1"))
    refused = told(rig, *words)
    assert refused.returncode == 2 and complaint in refused.stderr
    assert os.listdir(rig.root / places.SIGNALS) == []


def test_once_works_off_the_queue_and_leaves(rig: FleetRig) -> None:
    rig.submit("b1", task("a", "true") + task("b", "true"))
    rig.turn()
    agent = rig.start("cpu-1", "--once")
    assert agent.process.wait(60) == 0
    rig.turn()
    assert ended(rig) == "complete"
