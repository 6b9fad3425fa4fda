"""Several users of one group share the folder: what one of them keeps to himself stops nobody else's work."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder, shared_folder
from support.nats_server import TOKEN, broker
from watchbill.fleet.folder import places

GROUP = 4_321
BOB, ANN = 4_322, 4_323  # Bob coordinates
TASK = "### a\n- **command**: `echo x`\n"


@pytest.fixture
def fleet() -> Iterator[FleetFolder]:
    """A shared folder of a group (2775) at a place that every user may enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root: acts as two users of one group")
    home = Path(tempfile.mkdtemp(prefix="watchbill-users-"))
    home.chmod(0o755)
    try:
        with shared_folder(home) as found:
            os.chown(found.root, 0, GROUP)
            found.root.chmod(0o2775)
            shutil.rmtree(found.root / "plans")
            (found.root / "plans").mkdir()
            (found.root / "plans").chmod(0o2775)
            yield found
    finally:
        shutil.rmtree(home)


def as_user(fleet: FleetFolder, user: int = BOB, umask: int = 0o022) -> dict[str, Any]:
    """How a program is started as another user, who is of the group."""
    home = fleet.home / f"user-{user}"
    home.mkdir(exist_ok=True)
    os.chown(home, user, GROUP)
    environment = {**fleet.environment(), "WATCHBILL_HOME": str(home), "HOME": str(home)}
    return {
        "env": environment, "cwd": home, "stdin": subprocess.DEVNULL,
        "user": user, "group": GROUP, "extra_groups": [GROUP], "umask": umask,
    }  # fmt: skip


def command(fleet: FleetFolder, *words: str) -> list[str]:
    return [sys.executable, "-m", "watchbill", *words, "--root", str(fleet.root)]


def start_as(fleet: FleetFolder, *words: str, user: int = BOB, umask: int = 0o022) -> None:
    with fleet.log.open("ab") as log:
        argv, how = command(fleet, *words), as_user(fleet, user, umask)
        process = cast("subprocess.Popen[bytes]", subprocess.Popen(argv, stdout=log, stderr=log, **how))
        fleet.started.append(process)


def run_as(
    fleet: FleetFolder, *words: str, user: int = BOB, umask: int = 0o022
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(fleet, *words),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **as_user(fleet, user, umask),
    )


def start_fleet_of_bob(fleet: FleetFolder) -> None:
    start_as(fleet, "coordinator")
    wait_until((fleet.root / places.RESULTS).is_dir)
    start_as(fleet, "agent", "cpu-1", "--cpu-slots", "2")


def why_refused(fleet: FleetFolder, batch: str) -> str:
    path = fleet.root / places.REFUSED / f"{batch}.json"
    return path.read_text() if path.exists() else ""


def test_a_plan_that_was_copied_there_runs_for_another_user(fleet: FleetFolder) -> None:
    """FLEET-09, FLEET-13: `cp -r` with the usual umask makes a plan's folder that the group may not write to; the batch
    is the group's all the same, as the shared folder is."""
    fleet.write_plan("copied", TASK).chmod(0o2755)
    batch = fleet.submit("copied")
    assert fleet.batch("copied", batch).stat().st_mode & 0o2777 == 0o2770
    start_fleet_of_bob(fleet)
    assert fleet.wait(batch) == 0


def test_a_batch_whose_folder_is_kept_private_is_refused_and_others_run(fleet: FleetFolder) -> None:
    """FLEET-09: the coordinator may not write to it: it says so, with the path, and serves everybody else."""
    fleet.write_plan("private", TASK)
    fleet.write_plan("open", TASK)
    private = fleet.submit("private")
    fleet.batch("private", private).chmod(0o700)
    other = fleet.submit("open")
    start_fleet_of_bob(fleet)
    assert fleet.wait(other) == 0
    assert "permission denied" in why_refused(fleet, private)
    assert str(fleet.batch("private", private)) in why_refused(fleet, private)
    assert fleet.status(private)["state"] == "refused"


def test_a_private_folder_among_the_plans_stops_nobody(fleet: FleetFolder) -> None:
    """FLEET-09, PLAN-07: a plan of another user, or `lost+found` of a disk, is left alone by the coordinator and by
    those who list batches."""
    fleet.write_plan("open", TASK)
    for name in ("lost+found", "secret"):
        (fleet.root / "plans" / name).mkdir(mode=0o700)
    (fleet.root / "plans" / "half" / "history").mkdir(parents=True)
    (fleet.root / "plans" / "half" / "history").chmod(0o744)
    (fleet.root / "plans" / "half" / "history" / "20260101-120000-abcdef").mkdir(mode=0o700)
    start_fleet_of_bob(fleet)
    batch = fleet.submit("open")
    assert fleet.wait(batch) == 0
    for words in (("plan", "list"), ("plan", "status"), ("gpus",)):
        listed = run_as(fleet, *words)
        assert listed.returncode == 0, listed.stderr
    assert batch in run_as(fleet, "plan", "list").stdout
    assert "the shared folder failed" not in fleet.log.read_text()


def test_a_manifest_that_is_kept_private_fails_its_task_and_others_run(fleet: FleetFolder) -> None:
    """FLEET-09, PLAN-04: a manifest that the coordinator may not read is a failure of the fan-out, with its line."""
    fleet.write_plan("fan", "### each\n- **command**: `echo {ITEM}`\n- **foreach**: items.json\n")
    fleet.write_plan("open", TASK)
    manifest = fleet.root / "plans" / "fan" / "items.json"
    manifest.write_text("[1, 2]")
    fan = fleet.submit("fan")
    manifest.chmod(0o600)
    other = fleet.submit("open")
    start_fleet_of_bob(fleet)
    assert fleet.wait(other) == 0
    assert fleet.wait(fan) == 1
    (task,) = fleet.status(fan)["tasks"]
    assert "items.json cannot be read" in task["error"]


def test_a_batch_that_becomes_private_waits_and_goes_on_when_it_is_shared_again(fleet: FleetFolder) -> None:
    """FLEET-09: a new coordinator leaves it alone, runs all others, and takes it up by itself once it may."""
    fleet.write_plan(
        "late", "### a\n- **command**: `sleep 1`\n\n### b\n- **command**: `echo b`\n- **depends_on**: a\n"
    )
    fleet.write_plan("open", TASK)
    late = fleet.submit("late")
    coordinator = fleet.start_coordinator()
    wait_until(lambda: bool(fleet.entries("late", late, "issue")))
    coordinator.kill()
    coordinator.wait()
    subprocess.run(["chgrp", "-R", str(GROUP), str(fleet.root)], check=True)
    subprocess.run(["chmod", "-R", "g+rwX", str(fleet.root)], check=True)
    fleet.batch("late", late).chmod(0o700)
    start_fleet_of_bob(fleet)
    assert fleet.wait(fleet.submit("open")) == 0
    assert f"batch {late} is left alone" in fleet.log.read_text()
    fleet.batch("late", late).chmod(0o2770)
    assert fleet.wait(late) == 0


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_users_with_any_umask_work_on_one_batch(fleet: FleetFolder, umask: int) -> None:
    """FLEET-09, FLEET-13: one submits and runs an agent, another one coordinates; what each makes in a folder that the
    group shares is the group's. With a private umask no other user's coordinator could read it."""
    task = "### a\n- **command**: `echo x > {BATCH_PATH}/results/x`\n- **task_class**: cpu\n"
    fleet.write_plan("p", task).chmod(0o2775)
    start_as(fleet, "coordinator", umask=umask)
    wait_until((fleet.root / places.RESULTS).is_dir)
    start_as(fleet, "agent", "ann-1", "--cpu-slots", "1", user=ANN, umask=umask)
    done = run_as(fleet, "plan", "submit", "p", "--quiet", user=ANN, umask=umask)
    assert done.returncode == 0, done.stderr
    batch = done.stdout.strip()
    assert fleet.wait(batch) == 0, fleet.log.read_text()
    for user in (ANN, BOB):
        for words in (("plan", "status", batch), ("gpus",), ("plan", "logs", "a")):
            told = run_as(fleet, *words, user=user, umask=umask)
            assert told.returncode == 0, told.stderr
    assert run_as(fleet, "signal", "ann-1", "hold", user=BOB, umask=umask).returncode == 0
    wait_until(lambda: not list((fleet.root / places.SIGNALS).iterdir()))
    assert (fleet.batch("p", batch) / "results" / "x").stat().st_mode & 0o070 == 0o060


def test_an_agent_whose_files_are_private_stops_no_others(fleet: FleetFolder) -> None:
    """FLEET-09: it counts as one that says nothing."""
    fleet.write_plan("p", TASK)
    start_fleet_of_bob(fleet)
    other = fleet.root / places.GPUS / "other"
    other.mkdir()
    (fleet.root / places.PROCESSING / "other").mkdir()
    for path in (other / "heartbeat.json", fleet.root / places.RESULTS / "other.1.jsonl"):
        path.write_text("{}")
        path.chmod(0o600)
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0
    assert run_as(fleet, "gpus").returncode == 0
    assert "the shared folder failed" not in fleet.log.read_text()


def test_private_folders_and_files_beside_our_own_stop_nobody(fleet: FleetFolder) -> None:
    """FLEET-09, FLEET-12: what another user keeps to himself in tasks/processing, gpus or brain/active ended each
    coordinator, and every command failed with its name."""
    places.make_root(fleet.root)
    for path in (fleet.root / places.PROCESSING / "backup", fleet.root / "gpus" / "backup"):
        path.mkdir(parents=True)
        path.chmod(0o700)
    for folder, _, _ in os.walk(fleet.root):
        os.chown(folder, 0, GROUP)
    for path in (fleet.root / places.ACTIVE / "notes", fleet.root / places.INBOX / "notes.json"):
        path.write_text("mine")
        path.chmod(0o600)
    plan = fleet.write_plan("p", TASK)
    plan.chmod(0o2775)
    start_as(fleet, "coordinator")
    wait_until((fleet.root / places.RESULTS).is_dir)
    start_as(fleet, "agent", "cpu-1")
    submitted = run_as(fleet, "plan", "submit", "p", "--quiet")
    assert submitted.returncode == 0, submitted.stderr
    waited = run_as(fleet, "plan", "wait", submitted.stdout.strip(), "--timeout", "40")
    assert waited.returncode == 0, waited.stderr + fleet.log.read_text()
    for words in (("plan", "list"), ("plan", "status"), ("gpus",)):
        told = run_as(fleet, *words)
        assert told.returncode == 0, (words, told.stderr)


def test_a_signal_that_its_sender_keeps_private_stops_no_agent(fleet: FleetFolder) -> None:
    """FLEET-03: the agent could not read it, took the shared folder for broken, and claimed nothing any more."""
    fleet.write_plan("p", TASK).chmod(0o2775)
    start_fleet_of_bob(fleet)
    wait_until((fleet.root / "gpus" / "cpu_1" / "heartbeat.json").exists)
    signals = fleet.root / places.SIGNALS
    (signals / "cpu-1.abort").touch(mode=0o600)
    (signals / "cpu-1.resume").touch(mode=0o600)
    wait_until(lambda: not (signals / "cpu-1.resume").exists())
    submitted = run_as(fleet, "plan", "submit", "p", "--quiet")
    assert submitted.returncode == 0, submitted.stderr
    assert fleet.wait(submitted.stdout.strip()) == 0
    assert "claiming nothing" not in fleet.log.read_text()


def test_a_signal_that_the_agent_may_not_remove_is_obeyed_once_and_stops_nothing(fleet: FleetFolder) -> None:
    """FLEET-07: in a folder that another user made for himself the agent could remove no signal, took the shared folder
    for broken, and claimed nothing any more."""
    fleet.write_plan("p", TASK).chmod(0o2775)
    start_fleet_of_bob(fleet)
    wait_until((fleet.root / "gpus" / "cpu_1" / "heartbeat.json").exists)
    signals = fleet.root / places.SIGNALS
    (signals / "cpu-1.resume").touch()
    signals.chmod(0o2755)
    os.chown(signals, 0, GROUP)
    wait_until(lambda: "'signals/cpu-1.resume' was obeyed and cannot be removed" in fleet.log.read_text())
    submitted = run_as(fleet, "plan", "submit", "p", "--quiet")
    assert submitted.returncode == 0, submitted.stderr
    assert fleet.wait(submitted.stdout.strip()) == 0
    assert fleet.log.read_text().count("cannot be removed") == 1


def test_a_batch_that_becomes_private_while_it_runs_goes_on_by_itself_when_it_is_shared_again(
    fleet: FleetFolder,
) -> None:
    """FLEET-09: after two errors in mid-run it waited for a new coordinator, although it was shared again since."""
    fleet.write_plan(
        "late",
        "### a\n- **command**: `sleep 2; echo a >> {BATCH_PATH}/../ran; touch {BATCH_PATH}/results/a`\n"
        "- **produces**: {BATCH_PATH}/results/a\n- **task_class**: cpu\n\n"
        "### b\n- **command**: `echo b >> {BATCH_PATH}/../ran`\n- **depends_on**: a\n- **task_class**: cpu\n",
    ).chmod(0o2775)
    fleet.write_plan("open", TASK)
    late = fleet.submit("late")
    start_as(fleet, "coordinator")
    wait_until((fleet.root / places.RESULTS).is_dir)
    fleet.may_fault = True
    start_as(fleet, "agent", "root-1", "--cpu-slots", "2", user=0)
    wait_until(lambda: bool(fleet.entries("late", late, "issue")))
    fleet.batch("late", late).chmod(0o700)
    wait_until(lambda: f"batch {late} is left alone" in fleet.log.read_text())
    assert fleet.wait(fleet.submit("open")) == 0
    fleet.batch("late", late).chmod(0o2770)
    assert fleet.wait(late) == 0, fleet.log.read_text()
    assert (fleet.batch("late", late).parent / "ran").read_text().split() == ["a", "b"]


def test_an_agent_whose_slips_the_coordinator_may_not_move_works_on_beside_the_others(
    fleet: FleetFolder,
) -> None:
    """FLEET-09: its slips could not be put away, which ended each coordinator; their tokens are over all the same."""
    fleet.write_plan("p", TASK).chmod(0o2775)
    start_as(fleet, "coordinator")
    wait_until((fleet.root / places.RESULTS).is_dir)
    start_as(fleet, "agent", "ann-1", user=ANN)
    held = fleet.root / places.processing_folder("ann-1")
    wait_until((fleet.root / "gpus" / "ann_1" / "heartbeat.json").exists)
    held.chmod(0o2750)
    for _ in range(2):
        submitted = run_as(fleet, "plan", "submit", "p", "--quiet")
        assert fleet.wait(submitted.stdout.strip()) == 0, fleet.log.read_text()
    told = fleet.log.read_text()
    assert told.count("action=keep") == 1 and "the shared folder failed" not in told
    assert len(list(held.iterdir())) == 2


def test_signals_that_only_another_user_may_read_stop_nobody(fleet: FleetFolder) -> None:
    """FLEET-07, FLEET-09: agents claimed nothing, and coordinators failed again and again."""
    fleet.write_plan("p", TASK).chmod(0o2775)
    start_fleet_of_bob(fleet)
    wait_until((fleet.root / "gpus" / "cpu_1" / "heartbeat.json").exists)
    signals = fleet.root / places.SIGNALS
    os.chown(signals, 0, 0)
    signals.chmod(0o700)
    wait_until(lambda: "signals cannot be read, so no signal is obeyed" in fleet.log.read_text())
    submitted = run_as(fleet, "plan", "submit", "p", "--quiet")
    assert fleet.wait(submitted.stdout.strip()) == 0
    os.chown(signals, BOB, GROUP)
    signals.chmod(0o2770)
    (signals / "cpu-1.hold").touch()
    wait_until(lambda: "told to claim nothing" in fleet.log.read_text())
    assert "the shared folder fail" not in fleet.log.read_text()


def test_a_batch_that_is_private_for_a_while_goes_on_behind_the_door(fleet: FleetFolder) -> None:
    """FLEET-01, FLEET-09: where the door's user may not read a batch, its tasks fail and are tried again after their
    waits. They counted as lost, which is tried again at once: after five losses each, within three seconds, all of them
    waited for a person, also when the folder was shared again."""
    fleet.write_plan(
        "p",
        "### first\n- **command**: `until test -e {ROOT}/go; do read -rt 0.05 <> <(:) || true; done`\n"
        "- **executor**: brain\n### second\n- **command**: `echo x > {BATCH_PATH}/made`\n- **depends_on**: first\n",
    )
    with broker(fleet.home / "broker") as server:
        config = fleet.home / "nats.toml"
        config.write_text(f'[nats]\nservers = ["{server.url}"]\ntoken = "{TOKEN}"\n')
        start_as(fleet, "coordinator", user=0)
        wait_until((fleet.root / places.RESULTS).is_dir)
        for words in (("door", "--root", str(fleet.root)), ("agent", "cpu-1")):
            how = as_user(fleet)
            how["env"] |= {"WATCHBILL_CONFIG": str(config)}
            argv = [sys.executable, "-m", "watchbill", *words, "--nats", "config"]
            with fleet.log.open("ab") as log:
                process = cast(
                    "subprocess.Popen[bytes]", subprocess.Popen(argv, stdout=log, stderr=log, **how)
                )
            fleet.started.append(process)
        batch = fleet.submit("p")
        folder = fleet.batch("p", batch)
        wait_until(lambda: fleet.entries("p", batch, "issue"))
        mode = folder.stat().st_mode
        folder.chmod(0o700)
        (fleet.root / "go").touch()
        wait_until(lambda: fleet.entries("p", batch, "fail") or fleet.entries("p", batch, "lost"))
        folder.chmod(mode)
        assert fleet.wait(batch) == 0
        assert not fleet.entries("p", batch, "lost")
        why = "\n".join(path.read_text() for path in (fleet.root / places.RESULTS).glob("cpu-1.*.jsonl"))
        assert "Permission denied behind the door" in why and batch in why
