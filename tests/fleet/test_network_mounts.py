"""A fleet on several machines whose mounts of the shared folder hide changes, lose replies, hang and go away."""

import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder, shared_folder
from support.fleet_judge import judge
from support.fuse_mount import FuseMount, fuse_mounts
from support.stopping import stop
from watchbill.fleet.agent.board_client import BoardClient
from watchbill.fleet.agent.own_slips import OwnSlips
from watchbill.fleet.agent.work import Finished, Setting
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Pulse, Watcher
from watchbill.fleet.folder.slips import Headline, Slip, slip_name
from watchbill.fleet.folder.work import Work
from watchbill.fleet.matching.claiming import Standing
from watchbill.plans.batch import ExecutePlan
from watchbill.plans.task import TaskClass
from watchbill.processes.crew import Cause, Ended

MACHINE = str(Path(__file__).parents[1] / "support" / "machine.py")
#: The rhythm of everything, about ten times as fast as in earnest.
FAST = {
    "AGENT_INTERNAL_MS": 500, "AGENT_EXTERNAL_MS": 1_000, "AGENT_POLL_BUSY_MS": 100, "AGENT_POLL_IDLE_MS": 300,
    "COORDINATOR_POLL_MS": 100, "COORDINATOR_IDLE_MS": 300, "COORDINATOR_AGAIN_MS": [100, 1_000],
    "BACK_OFF_MS": [100, 100, 100], "PRODUCES_NETWORK_MS_MAX": 3_000,
}  # fmt: skip
ITEMS = 6
PLAN = """### scan
- **command**: `cp items.json {BATCH_PATH}/manifest.json`
- **produces**: {BATCH_PATH}/manifest.json
### first
- **command**: `echo >> {BATCH_PATH}/results/first.{ITEM.id}`
- **foreach**: {BATCH_PATH}/manifest.json
- **depends_on**: scan
- **produces**: {BATCH_PATH}/results/first.{ITEM.id}
### second
- **command**: `echo >> {BATCH_PATH}/results/second.{ITEM.id}`
- **foreach**: {BATCH_PATH}/manifest.json
- **depends_on**: first_{ITEM.id}
### sum
- **command**: `ls {BATCH_PATH}/results | wc -l > {BATCH_PATH}/output/count`
- **depends_on**: second
"""


@dataclass
class Machines:
    """A shared folder, and machines that have mounted it, each at a place of its own."""

    fleet: FleetFolder
    mounts: list[FuseMount]

    def mount(self, name: str, **faults: float) -> FuseMount:
        """Mount the folder on a machine of this name."""
        point, seed = self.fleet.home / "mounts" / name, len(self.mounts)
        try:
            mount = FuseMount(self.fleet.root, point, seed=seed, **faults)
        except OSError as error:
            pytest.skip(str(error))
        self.mounts.append(mount)
        return mount

    def start(self, machine: FuseMount, *words: str, **bounds: object) -> "subprocess.Popen[bytes]":
        """Run a command of `watchbill` on a machine."""
        name = machine.path.name
        home = str(self.fleet.home / f"home-{name}")
        return self.fleet.start(
            MACHINE, name, json.dumps({**FAST, **bounds}), *words, "--root", str(machine.path), WATCHBILL_HOME=home
        )  # fmt: skip

    def start_agent(self, machine: FuseMount, name: str, **bounds: object) -> "subprocess.Popen[bytes]":
        wait_until((self.fleet.root / places.RESULTS).is_dir)
        return self.start(machine, "agent", name, "--cpu-slots", "2", **bounds)

    def submit(self, machine: FuseMount, plan: str = PLAN, items: int = ITEMS) -> str:
        """Submit the plan on a machine."""
        folder = self.fleet.write_plan("p", plan)
        (folder / "items.json").write_text(json.dumps([{"id": f"i{number}"} for number in range(items)]))
        done = self.fleet.run("plan", "submit", "p", "--quiet", "--root", str(machine.path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait(self, batch: str, seconds: float = 4 * PATIENCE_S) -> None:
        """Until it has ended; looks at the folder itself, not through a mount."""
        files = [self.fleet.root / folder / f"{batch}.json" for folder in (places.INBOX, places.ACTIVE)]
        try:
            wait_until(lambda: not any(file.exists() for file in files), seconds)
        except AssertionError:
            raise AssertionError(self.fleet.log.read_text()[-6_000:]) from None

    def judge(self, batch: str, items: int = ITEMS) -> None:
        """Each task was accepted once, nothing is lost or left, the summary is right."""
        numbers = range(items)
        names = ["scan", "sum", *(f"{task}_i{number}" for task in ("first", "second") for number in numbers)]
        wait_until(lambda: not list((self.fleet.root / places.PROCESSING).glob("*/*.json")))
        judge(self.fleet.root, "p", batch, names)
        count = (self.fleet.batch("p", batch) / "output" / "count").read_text()
        assert int(count) == 2 * items

    def result_logs(self) -> list[Path]:
        return list((self.fleet.root / places.RESULTS).glob("*.jsonl"))

    def lost_replies(self) -> int:
        return sum(mount.lost_replies for mount in self.mounts)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with fuse_mounts() as mounts, shared_folder(tmp_path) as fleet:
        yield Machines(fleet, mounts)


def test_a_fleet_whose_mounts_hide_changes_and_lose_replies_accepts_each_task_once(
    machines: Machines,
) -> None:
    """FLEET-09: three machines with a mount each; every change shows up late elsewhere, a fifth of the renames is
    carried out and answered with an error, and no inotify event comes from another machine."""
    faults = {"hides_s": 1.0, "loses_replies": 0.2}
    manager, *rigs = (machines.mount(name, **faults) for name in ("manager", "rig-1", "rig-2"))
    machines.start(manager, "coordinator")
    for number, rig in enumerate(rigs, start=1):
        machines.start_agent(rig, f"cpu-{number}")
    batch = machines.submit(manager)
    machines.wait(batch)
    machines.judge(batch)
    assert machines.lost_replies() > 5


@pytest.mark.parametrize("seed", [0, 1], ids=["EIO", "ENOENT"])
def test_a_request_whose_reply_is_lost_is_made_once_and_not_refused(machines: Machines, seed: int) -> None:
    """FLEET-01: the file that submits a batch, or cancels it, is there, and the person is not told otherwise."""
    machines.fleet.write_plan("p", "### a\n- **command**: `true`\n")
    places.make_fleet(machines.fleet.root)
    for _ in range(seed):
        machines.mount(f"none-{seed}")
    manager = machines.mount("manager", hides_s=1.0, loses_first=2)
    batch = machines.submit(manager, "### a\n- **command**: `true`\n")
    assert machines.lost_replies() == 2
    assert os.listdir(machines.fleet.root / places.INBOX) == [f"{batch}.json"]


def test_a_fleet_that_two_machines_make_at_once_has_one_identity(machines: Machines) -> None:
    """FLEET-01: the second one has not seen yet that there is one. Agents of the first would take it for another."""
    first, second = (machines.mount(name, hides_s=10.0) for name in ("first", "second"))
    (machines.fleet.root / "plans").mkdir(exist_ok=True)
    assert not (second.path / places.MARKER).exists()
    places.make_root(first.path)
    before = places.check_root(machines.fleet.root)
    assert not (second.path / places.MARKER).exists(), "it is hidden for a while"
    places.make_root(second.path)
    assert places.check_root(machines.fleet.root) == before


def test_a_folder_that_a_program_serves_is_polled(machines: Machines) -> None:
    """FLEET-01: nobody can tell whether other machines write to it, and their changes raise no event here."""
    found = places.probe(machines.mount("rig").path)
    assert found.is_network and found.shows_within_ms > 60_000, (
        "NFS believes what it knows for up to a minute"
    )
    assert places.probe(machines.fleet.root).shows_within_ms < 10_000


# ------------------------------------------------------------------ machines that stand still, mounts that go away

#: A machine is given up after 3 s in place of 90, and an agent gives up its tasks after 2 in place of 60.
SHORT = {
    "SILENCE_MS_MAX": 3_000,
    "AGENT_LEASE_MS": 2_000,
    "AGENT_EXTERNAL_MS": 500,
    "COORDINATOR_BEAT_MS": 500,
}
#: Each task tells who runs it, and waits for a file, the first attempt only.
WAITING = """### a
- **command**: `echo $WATCHBILL_AGENT >> {BATCH_PATH}/ran; while [ ! -e {BATCH_PATH}/go ]; do sleep 0.05; done`
"""


def ran(machines: Machines, batch: str) -> list[str]:
    try:
        return (machines.fleet.batch("p", batch) / "ran").read_text().split()
    except FileNotFoundError:
        return []


def test_an_agent_that_stood_still_beyond_its_lease_is_refused_when_it_goes_on(machines: Machines) -> None:
    """R13, FLEET-09: seen from another machine. Its guard has ended its task before another agent gets it."""
    manager, *rigs = (machines.mount(name, hides_s=0.3) for name in ("manager", "rig-1", "rig-2"))
    machines.start(manager, "coordinator", **SHORT)
    stopped = machines.start_agent(rigs[0], "cpu-1", **SHORT)
    batch = machines.submit(manager, WAITING)
    wait_until(lambda: ran(machines, batch) == ["cpu-1"])
    stop(stopped.pid)
    machines.start_agent(rigs[1], "cpu-2", **SHORT)
    wait_until(lambda: ran(machines, batch) == ["cpu-1", "cpu-2"])
    stopped.send_signal(signal.SIGCONT)
    (machines.fleet.batch("p", batch) / "go").touch()
    machines.wait(batch)
    judge(machines.fleet.root, "p", batch, ["a"])
    [accepted] = machines.fleet.entries("p", batch, "accept")
    assert (accepted["agent"], accepted["attempt"]) == ("cpu-2", 2)


def test_a_coordinator_that_stood_still_and_was_replaced_changes_nothing(machines: Machines) -> None:
    """R13, R17, FLEET-09: its successor is on another machine, which cannot know whether it is dead."""
    first, second, rig = (machines.mount(name, hides_s=0.3) for name in ("manager-1", "manager-2", "rig"))
    stopped = machines.start(first, "coordinator", **SHORT)
    machines.start_agent(rig, "cpu-1", **SHORT)
    batch = machines.submit(first)
    wait_until(lambda: machines.fleet.batch("p", batch).joinpath("manifest.json").exists())
    stop(stopped.pid)
    machines.start(second, "coordinator", **SHORT)
    wait_until(
        lambda: json.loads((machines.fleet.root / places.COORDINATOR).read_text())["host"] == "manager-2"
    )
    stopped.send_signal(signal.SIGCONT)
    machines.wait(batch)
    machines.judge(batch)
    assert stopped.wait(PATIENCE_S) == 1, "superseded"


@pytest.mark.parametrize("fault", ["gone", pytest.param("hung", marks=pytest.mark.torture)])
def test_machines_whose_mount_is_away_for_a_while_go_on_with_their_folder(
    machines: Machines, fault: str
) -> None:
    """FLEET-08, FLEET-09: first the mount of an agent, which another machine's coordinator gives up and hears of
    again; then the mount of the coordinator itself."""
    manager, rig = (machines.mount(name, hides_s=0.3) for name in ("manager", "rig"))
    machines.start(manager, "coordinator", **SHORT)
    machines.start_agent(rig, "cpu-1", **SHORT)
    batch = machines.submit(manager, WAITING)
    wait_until(lambda: ran(machines, batch) == ["cpu-1"])
    rig.kill() if fault == "gone" else rig.stop()
    wait_until(lambda: machines.fleet.entries("p", batch, "revoke"))
    rig.mount_again() if fault == "gone" else rig.go_on()
    wait_until(lambda: ran(machines, batch) == ["cpu-1", "cpu-1"])
    manager.kill() if fault == "gone" else manager.stop()
    (machines.fleet.batch("p", batch) / "go").touch()
    wait_until(lambda: b'"done"' in b"".join(map(Path.read_bytes, machines.result_logs())))
    manager.mount_again() if fault == "gone" else manager.go_on()
    machines.wait(batch)
    judge(machines.fleet.root, "p", batch, ["a"])


# ------------------------------------------------------------------ one token, one slip


def a_slip() -> Slip:
    return Slip("t", "b", "p", 1, 1, 0, (), {}, (), Work())


@pytest.mark.parametrize("seed", [0, 1], ids=["EIO", "ENOENT"])
def test_a_slip_whose_reply_is_lost_is_offered_once_and_ends_no_coordinator(
    machines: Machines, seed: int
) -> None:
    """FLEET-09: each lost reply began a new coordinator, which did not see yet that the slip was taken, and offered it
    again: two agents ran one token."""
    places.make_fleet(machines.fleet.root)
    for _ in range(seed):
        machines.mount(f"none-{seed}")
    mount = machines.mount("manager", hides_s=60.0, loses_first=3)
    Board(FolderDisk(mount.path)).publish("n", a_slip())
    assert machines.lost_replies() == 1, "it may have been taken since, and is not written again"
    assert os.listdir(machines.fleet.root / places.QUEUE) == ["n"]
    assert os.listdir(machines.fleet.root / places.DRAFTS) == []


@pytest.mark.parametrize("seed", [0, 1], ids=["EIO", "ENOENT"])
def test_a_slip_that_is_put_away_with_a_lost_reply_ends_no_coordinator(machines: Machines, seed: int) -> None:
    """FLEET-09: each lost reply began a new coordinator, a second later each time."""
    places.make_fleet(machines.fleet.root)
    here = Board(FolderDisk(machines.fleet.root))
    here.publish("n", a_slip())
    for _ in range(seed):
        machines.mount(f"none-{seed}")
    mount = machines.mount("manager", hides_s=60.0, loses_first=1)
    Board(FolderDisk(mount.path)).put_away("n", places.EXPIRED)
    assert machines.lost_replies() == 1
    assert os.listdir(machines.fleet.root / places.QUEUE) == []
    assert os.listdir(machines.fleet.root / places.EXPIRED) == ["n"]


def test_a_slip_that_an_agent_has_taken_unseen_is_not_offered_again(machines: Machines) -> None:
    """FLEET-09: a coordinator that starts sees that the slip has left the queue, and not yet where it is. Two agents
    ran one token side by side. A slip that stays away for as long as a mount hides anything is offered again."""
    root = machines.fleet.root
    places.make_fleet(root)
    here = Board(FolderDisk(root))
    here.join("cpu-1")
    disk = FolderDisk(machines.mount("manager", hides_s=5.0).path)
    first = new_brain(disk, 0)
    assert here.held_by("cpu-1") == [] == Board(disk).held_by("cpu-1")  # as the mount knows from now on
    machines.fleet.write_plan("p", "### t\n- **command**: `true`\n")
    (root / places.INBOX / "b.json").write_bytes(ExecutePlan("b", "p", {}).encode())
    wait_until(lambda: first.turn(1) and bool(here.offered()))
    [name] = here.offered()
    assert here.claim("cpu-1", name)
    second = new_brain(disk, 2)
    second.turn(3)
    assert here.offered() == []
    wait_until(lambda: Board(disk).held_by("cpu-1") == [name])
    second.turn(60_000)
    assert here.offered() == []
    here.put_away(name, places.EXPIRED, holder="cpu-1")  # a power cut took it
    wait_until(lambda: Board(disk).held_by("cpu-1") == [])
    third = new_brain(disk, 70_000)
    third.turn(129_999)
    assert here.offered() == []
    third.turn(130_000)
    assert here.offered() == [name]


def new_brain(disk: FolderDisk, now_ms: int) -> Coordinator:
    pulse = Pulse("manager", 1, 1, 0)
    brain = Coordinator(disk, Watcher("manager"), pulse, wall_ms=lambda: 1_767_225_600_000, hides_ms=60_000)
    brain.start(now_ms)
    return brain


def test_a_slip_that_was_given_back_with_a_lost_reply_is_not_reported(
    machines: Machines, tmp_path: Path
) -> None:
    """FLEET-09: the agent still sees it in its folder. It reported it as unreadable while another one ran it, and the
    task ran twice."""
    root = machines.fleet.root
    places.make_fleet(root)
    here = Board(FolderDisk(root))
    rig = machines.mount("rig-1", hides_s=60.0)
    client, setting = BoardClient(rig.path, "cpu-1"), Setting(rig.path, "cpu-1", tmp_path)
    client.join(cpu_slots=1)
    name = slip_name(Headline(3, 1, TaskClass.CPU, 0, 1, ""), model="", batch="b", task="t")
    here.publish(name, a_slip())
    [prepared] = client.round(setting, deque(), Standing("cpu-1", 1), 0).prepared
    assert client.look().held == {prepared.name}  # as the mount knows from now on
    here.give_back("cpu-1", name)  # carried out, as far as the agent knows it was not
    client.give_back_unstarted([name])
    here.join("cpu-2")
    assert here.claim("cpu-2", name)
    client.look()
    done = client.round(setting, deque(), Standing("cpu-1", 1), 1)
    assert (done.prepared, done.reported) == ([], [])
    assert client.round(setting, deque(), None, 2).reported == []


def test_a_slip_whose_claim_had_a_lost_reply_is_run_once(machines: Machines, tmp_path: Path) -> None:
    """FLEET-09: the claim is repeated and succeeds, and the agent's folder is shown as it was for a while. The task was
    taken for revoked, killed and run again under the same token, and once more after it was reported."""
    root = machines.fleet.root
    places.make_fleet(root)
    rig = machines.mount("rig-1", hides_s=60.0, loses_first=1)
    client, setting = BoardClient(rig.path, "cpu-1"), Setting(rig.path, "cpu-1", tmp_path)
    client.join(cpu_slots=1)
    assert client.look().held == frozenset()  # as the mount knows from now on
    name = slip_name(Headline(3, 1, TaskClass.CPU, 0, 1, ""), model="", batch="b", task="t")
    Board(FolderDisk(root)).publish(name, a_slip())
    one_slot = Standing("cpu-1", 1)
    lost = client.round(setting, deque(), one_slot, 0)
    assert (lost.prepared, machines.lost_replies()) == ([], 1) and lost.fault is not None
    assert client.look().held == frozenset()
    [prepared] = client.round(setting, deque(), one_slot, 1).prepared
    assert prepared.name == name
    for now_ms in (2, 3):
        assert client.look().held == {name}
        assert client.round(setting, deque(), one_slot, now_ms).prepared == []
    ended = deque([Finished(prepared, Ended(name, Cause.EXIT, 0))])
    assert [each.name for each in client.round(setting, ended, None, 4).reported] == [name]
    for now_ms in (5, 6):
        client.look()
        assert client.round(setting, deque(), one_slot, now_ms).prepared == []


def test_a_slip_is_revoked_once_a_listing_has_shown_it_or_the_mount_has_had_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FLEET-08: the fence; a claim that was in doubt keeps a slip for no longer than a mount hides anything."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    own = OwnSlips(65_000)
    for name in ("seen", "never"):
        own.miss(name)
        assert own.claim(name)
        own.take(name)
    assert own.see(frozenset()) == ({"seen", "never"}, set())
    assert own.see(frozenset({"seen"})) == ({"seen", "never"}, set())
    assert own.see(frozenset()) == ({"never"}, {"seen"})
    now += 65.0
    assert own.see(frozenset()) == (frozenset(), {"never"})
    assert own.claim("never"), "it was never reported, and is offered anew"


def test_a_slip_that_was_reported_is_not_run_again_wherever_it_shows_up() -> None:
    """FLEET-09: in the agent's own folder, or in the queue, where a coordinator offers what it has not seen."""
    own = OwnSlips(65_000)
    assert own.claim("n")
    own.take("n")
    own.end("n")
    assert own.see(frozenset()) == (frozenset(), {"n"})
    assert not own.claim("n")
    own.see(frozenset({"n"}))
    assert own.untaken == []
