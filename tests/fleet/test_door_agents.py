"""Agents without the shared folder: whole plans over a real broker, with everything killed in between (FLEET-01)."""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from support.direct_door import Direct
from support.eventually import PATIENCE_S, wait_until
from support.fleet_rig import AgentProcess, FleetRig, marked_processes
from support.nats_server import TOKEN, Broker, broker
from watchbill.fleet.agent.board_client import BoardClient
from watchbill.fleet.agent.shared_folder import MirroredFolder
from watchbill.fleet.agent.work import Finished, Setting
from watchbill.fleet.door.caller import BrokerSession
from watchbill.fleet.door.door import Door
from watchbill.fleet.folder import places
from watchbill.fleet.folder.signals import Order
from watchbill.fleet.matching.claiming import Standing
from watchbill.processes.crew import Cause, Ended


def task(name: str, command: str, *keys: str) -> str:
    lines = "".join(f"- **{key}\n" for key in keys)
    return f"### {name}\n- **command**:\n  ```bash\n  {command}\n  ```\n{lines}"


class Remote:
    """A fleet whose agents have no mount: a rig, a broker, and a door that is a process."""

    def __init__(self, rig: FleetRig, server: Broker) -> None:
        self.rig, self.server = rig, server
        self.config = rig.root.parent / "watchbill.toml"
        self.config.write_text(f'[nats]\nservers = ["{server.url}"]\ntoken = "{TOKEN}"\ntimeout = "2s"\n')
        self.doors: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {"WATCHBILL_CONFIG": str(self.config)}

    def open_door(self) -> subprocess.Popen[bytes]:
        home = self.rig.root.parent / "home-door"
        words = [sys.executable, "-m", "watchbill", "door", "--root", str(self.rig.root), "--nats", "config"]
        with (self.rig.root.parent / "door.log").open("ab") as log:
            env = {**os.environ, "WATCHBILL_HOME": str(home), **self.environment}
            door = subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)
        self.doors.append(door)
        return door

    def agent(self, name: str, *options: str) -> AgentProcess:
        found = AgentProcess(
            self.rig, name, "--nats", "config", *options, rootless=True, WATCHBILL_CONFIG=str(self.config)
        )
        self.rig.agents.append(found)
        return found

    def finish(self, seconds: float = 60.0) -> None:
        wait_until(self.rig.turn, seconds)

    def close(self) -> None:
        for door in self.doors:
            door.kill()
            door.wait(PATIENCE_S)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    rig = FleetRig(tmp_path / "shared")
    with broker(tmp_path / "broker") as server:
        made = Remote(rig, server)
        made.open_door()
        yield made
        rig.close()
        made.close()
    wait_until(lambda: not marked_processes(str(tmp_path)))


def accepted(rig: FleetRig, batch: str = "b1") -> list[str]:
    return sorted(entry["task"] for entry in rig.entries(batch, "accept"))


def test_a_plan_runs_on_two_agents_without_the_folder(remote: Remote) -> None:
    """FLEET-01, PLAN-04, PLAN-05: scripts, a manifest, its fan-out, required files and lines that all add to one file;
    each task is accepted once, and the folder has what a fleet on a mount would have left there."""
    rig = remote.rig
    items = json.dumps({"items": [{"id": f"x{number}", "n": number} for number in range(12)]})
    folder = rig.submit(
        "b1",
        task("scan", f"echo '{items}' > {{BATCH_PATH}}/m.json; mkdir {{BATCH_PATH}}/out; touch {{BATCH_PATH}}/all",
             "produces**: {BATCH_PATH}/m.json")
        + task("each", "./scripts/double.sh {ITEM.n} > {BATCH_PATH}/out/{ITEM.id}; echo {ITEM.id} >> {BATCH_PATH}/all",
               "foreach**: {BATCH_PATH}/m.json:items", "depends_on**: scan", "produces**: {BATCH_PATH}/out/{ITEM.id}")
        + task("sum", "cat {BATCH_PATH}/out/* | paste -sd+ | bc > {BATCH_PATH}/sum; wc -l < {BATCH_PATH}/all; "
               "cat {WEIGHTS} | wc -c; test -f $WATCHBILL_TASK", "depends_on**: each",
               "requires**: {BATCH_PATH}/out/*, {ROOT}/data/list"),
        inputs={"WEIGHTS": {"below_root": "data/weights"}},
    )  # fmt: skip
    (folder / "scripts").mkdir()
    (folder / "scripts" / "double.sh").write_text("#!/bin/sh\necho $(($1 * 2))\n")
    (folder / "scripts" / "double.sh").chmod(0o755)
    (rig.root / "data").mkdir()
    (rig.root / "data" / "list").write_text("here")
    (rig.root / "data" / "weights").write_bytes(os.urandom(2**20 + 17))
    agents = [remote.agent("rig-1", "--cpu-slots", "2"), remote.agent("rig-2", "--cpu-slots", "2")]
    remote.finish()
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete", [each.said() for each in agents]
    batch = rig.batch_folder("b1")
    assert (batch / "sum").read_text() == "132\n"
    assert sorted((batch / "all").read_text().split()) == sorted(f"x{number}" for number in range(12))
    assert len(accepted(rig)) == len(set(accepted(rig))) == 14
    last = [each for agent in ("rig-1", "rig-2") for each in rig.results(agent) if "-sum." in each["name"]]
    assert last[0]["tail"].split() == ["12", str(2**20 + 17)]
    for agent in agents:
        assert agent.heartbeat()["state"] == "cold"
        assert agent.end() == 0
    assert not list((rig.root / places.DRAFTS).iterdir())


def test_kills_of_agents_doors_and_brokers_lose_nothing(remote: Remote) -> None:
    """R13, FLEET-08: an agent killed with a task, a door and a broker killed in the middle: each task is accepted once,
    and what the dead life had half made is not taken for a result."""
    rig = remote.rig
    go = rig.root.parent / "go"
    wait = f"while ! test -e {go}; do sleep 0.1; done"
    rig.submit("b1", task("long", f"echo half > {{BATCH_PATH}}/long; {wait}; echo whole > {{BATCH_PATH}}/long",
                          "produces**: {BATCH_PATH}/long")
               + task("after", "cat {BATCH_PATH}/long", "depends_on**: long")
               + "".join(task(f"t{number}", "sleep 0.2; echo $WATCHBILL_TASK") for number in range(8)))  # fmt: skip
    first = remote.agent("rig-1", "--cpu-slots", "2")
    half = first.home / "agents"
    wait_until(lambda: rig.turn() or list(half.glob("*/mirror/plans/p/history/b1/long")))
    first.kill()
    remote.server.kill()
    remote.doors[0].kill()
    remote.server.start()
    remote.open_door()
    assert not (rig.batch_folder("b1") / "long").exists()
    again = remote.agent("rig-1", "--cpu-slots", "2")
    other = remote.agent("rig-2", "--cpu-slots", "2")
    wait_until(lambda: rig.turn() or len(accepted(rig)) >= 3)
    remote.server.kill()
    remote.server.start()
    go.write_text("")
    remote.finish(90)
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete", (again.said(), other.said())
    assert len(accepted(rig)) == len(set(accepted(rig))) == 10
    assert (rig.batch_folder("b1") / "long").read_text() == "whole\n"
    assert [each["task"] for each in rig.entries("b1", "issue")].count("long") == 2


@pytest.mark.parametrize("is_there", [True, False])
def test_a_task_is_not_done_without_the_files_that_it_has_made(tmp_path: Path, is_there: bool) -> None:
    """FLEET-08, R13: a power cut behind the door takes the slip from the agent's hands, and its token still counts. Its
    files cannot go back then, so its end is a loss. Power cuts under a plan of 120 tasks found it."""
    rig = FleetRig(tmp_path / "shared")
    rig.submit("b1", task("make", "echo made > {BATCH_PATH}/made"))
    rig.turn()
    session = cast("BrokerSession", Direct(Door(rig.root), "rig-1"))
    shared = MirroredFolder(session, "subject", "rig-1", tmp_path / "mirror")
    board, setting = BoardClient(rig.root, "rig-1", shared), Setting(shared.root, "rig-1", tmp_path / "own")
    board.join(cpu_slots=1)
    (prepared,) = board.round(setting, deque(), Standing("rig-1", 1), 0).prepared
    (shared.root / places.batch_folder("p", "b1") / "made").write_text("made")
    if not is_there:
        (rig.root / places.processing_folder("rig-1") / prepared.name).unlink()
    board.round(setting, deque([Finished(prepared, Ended(prepared.name, Cause.EXIT, 0))]), None, 0)
    (result,) = rig.results("rig-1")
    made = rig.batch_folder("b1") / "made"
    assert (result["why"], made.exists()) == (("done", True) if is_there else ("lost", False))
    rig.close()


def test_signals_rules_and_output_so_far(remote: Remote) -> None:
    """FLEET-09, FLEET-11, FLEET-12: `signal`, `permissions.toml` and the output of a running task, as on a mount."""
    rig = remote.rig
    (rig.root / "permissions.toml").write_text('deny = ["rm *"]\n')
    rig.submit("b1", task("talk", "echo hello; exec sleep 600") + task("bad", "rm -f x")
               + task("out", "true", "produces**: {PLAN_PATH}/elsewhere"))  # fmt: skip
    agent = remote.agent("rig-1", "--cpu-slots", "1")
    so_far = rig.batch_folder("b1") / "tasks" / "talk" / "a1" / places.SO_FAR
    wait_until(lambda: rig.turn() or (so_far.exists() and so_far.read_text() == "hello\n"), 60)
    told = rig.signal("rig-1", Order.ABORT, "talk")
    wait_until(lambda: rig.turn() or not told.exists(), 20)
    wait_until(lambda: rig.turn() or len(rig.results("rig-1")) >= 3, 30)
    ends = {each["name"].split("-")[6].split(".")[0]: each for each in rig.results("rig-1")}
    assert ends["talk"]["why"] == "aborted"
    assert ends["bad"]["why"] == "blocked" and "permissions.toml" in ends["bad"]["tail"]
    assert (
        ends["out"]["why"] == "not_runnable" and "outside of the folder of its batch" in ends["out"]["tail"]
    )
    assert not so_far.exists() and (so_far.with_name("stdout")).read_text() == "hello\n"
    gone = rig.signal("rig-1", Order.STOP)
    assert agent.process.wait(30) == 0
    assert not gone.exists()
    assert agent.process.returncode == 0


def test_what_a_user_reads_when_it_cannot_start(remote: Remote) -> None:
    """Wrong credentials and wrong options are told at once, with what to do."""

    def said(*words: str, **environment: str) -> tuple[int, str]:
        env = {
            **os.environ,
            **remote.environment,
            "WATCHBILL_HOME": str(remote.config.parent / "h"),
            **environment,
        }
        done = subprocess.run([sys.executable, "-m", "watchbill", *words], env=env, text=True, capture_output=True,
                              timeout=60, check=False)  # fmt: skip
        return done.returncode, done.stderr

    wrong = remote.config.with_name("wrong.toml")
    wrong.write_text(remote.config.read_text().replace(TOKEN, "wrong"))
    code, text = said("agent", "rig-1", "--nats", "config", WATCHBILL_CONFIG=str(wrong))
    assert code == 2 and "uthorization" in text and "watchbill door" in text
    code, text = said("agent", "rig-1", "--nats", "10.0.0.5")
    assert code == 2 and "write for example --nats nats://10.0.0.5:4222" in text
    code, text = said("agent", "rig-1", "--nats", "config", "--root", str(remote.rig.root))
    assert code == 2 and "exclude each other" in text
    code, text = said("agent", "brain", "--nats", "config")
    assert code == 2 and "the coordinator's own agent" in text
    code, text = said("door", "--root", str(remote.rig.root))
    assert code == 2 and "another door answers" in text


def test_daemons_run_door_and_agent_with_a_token_of_the_environment(tmp_path: Path) -> None:
    """FLEET-01: `token = "env:NAME"`, as the docs advise. The door and the agents get it, the tasks do not."""
    shared, secret = tmp_path / "shared", {"TOKEN_OF_OURS": TOKEN}
    plan = shared / "plans" / "tell"
    plan.mkdir(parents=True)
    (plan / "plan.md").write_text(
        "# Tell\n\n## Tasks\n\n" + task("tell", "echo ${TOKEN_OF_OURS-unknown} > {BATCH_PATH}/told")
    )
    run = [sys.executable, "-m", "watchbill"]
    with broker(tmp_path / "broker") as server:
        nats = f'[nats]\nservers = ["{server.url}"]\ntoken = "env:TOKEN_OF_OURS"\n'
        fleets = {
            "here": f'[fleet]\nroot = "{shared}"\nnats = "serve"\n[coordinator]\n',
            "there": '[fleet]\nnats = "use"\n[agents.rig-1]\ncpu_slots = 1\n',
        }
        daemons: list[subprocess.Popen[bytes]] = []
        try:
            for name, fleet in fleets.items():
                config = tmp_path / f"{name}.toml"
                config.write_text('[models.small]\nengine = "scripted"\n' + nats + fleet)
                words = ("up", "--root", str(tmp_path / name), "--config", str(config), "--port", "0")
                daemons.append(subprocess.Popen([*run, *words], env={**os.environ, **secret}))
            submit = [*run, "plan", "submit", "tell", "--root", str(shared)]
            batch = subprocess.check_output(submit, text=True, timeout=PATIENCE_S).strip()
            told = plan / "history" / batch / "told"
            wait_until(lambda: told.exists() and told.read_text() != "", 60)
            assert told.read_text() == "unknown\n"
        finally:
            for each in daemons:
                each.terminate()
            for each in daemons:
                each.wait(PATIENCE_S)
