"""Power cuts and kills at any moment of a fleet: what was acknowledged counts, and the batch comes to its end.

The fleet is one process (`support.fleet_life`), so that a cut meets nearly always the protocol: opening, expanding,
issuing, claiming, reporting, heating, evaluating, accepting, publishing, ending.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_judge import judge
from support.fleet_life import FleetLife, Say, answer_of, submit
from support.forked import Child
from support.fuse_mount import FuseMount, fuse_mounts
from support.killing import deadly, life
from support.power_cut import Disk, loop_disk
from watchbill.files import uncached
from watchbill.files.atomic import is_left_draft
from watchbill.files.checked_log import whole_lines
from watchbill.fleet import limits
from watchbill.fleet.agent.concluding import conclude
from watchbill.fleet.agent.produced import put_on_disk
from watchbill.fleet.agent.questions import Question
from watchbill.fleet.agent.shared_folder import MountedFolder
from watchbill.fleet.agent.work import Finished, Prepared, Setting
from watchbill.fleet.folder import places
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.work import Work
from watchbill.plans.task import TaskClass
from watchbill.processes.crew import Cause, Ended, Job, Output

#: On each file system: batches, each of which loses the power this often before it may end.
BATCHES = int(os.environ.get("WATCHBILL_FLEET_BATCHES", "3"))
CUTS = 3
DEATHS = 10
#: About how much a fleet says in its life: an acceptance and a report for each task.
WORDS = 90
AGENTS = ("a", "b", places.BRAIN)
ITEMS = 40
WORK = """### each
- **command**: `true`
- **foreach**: items.json
### say
- **prompt**: Say it.
- **output**: {BATCH_PATH}/said/word.txt
- **depends_on**: each
### rate
- **prompt**: Say it well.
- **evaluate**: short
- **output**: {BATCH_PATH}/rated.txt
- **depends_on**: say
### sum
- **command**: `true`
- **depends_on**: rate
"""
TASKS = ["say", "rate", "sum", *(f"each_i{number}" for number in range(ITEMS))]


def prepare(root: Path, items: int = ITEMS) -> Path:
    """A fleet with a submitted batch, all of it durable."""
    folder = root / "plans" / "p"
    folder.mkdir(parents=True)
    (folder / "items.json").write_text(json.dumps([{"id": f"i{number}"} for number in range(items)]))
    batch = submit(root, "b", WORK)
    os.sync()
    return batch


def check_batch(root: Path, tasks: list[str]) -> None:
    """The laws of the end; and every answer that was published is that of the attempt that was accepted."""
    judge(root, "p", "b", tasks)
    accepted = {task: (attempt, agent) for task, attempt, agent in accepted_in(root)}
    folder = root / places.batch_folder("p", "b")
    for task, file in {"say": "said/word.txt", "rate": "rated.txt"}.items():
        assert (folder / file).read_text() == answer_of(task, *accepted[task])
    # A cut in the middle of a write leaves its hidden draft, which retention sweeps (test_fleet_retention).
    assert [name for name in os.listdir(folder / "said") if not is_left_draft(name)] == ["word.txt"]
    assert list((root / places.DRAFTS).iterdir()) == []


def accepted_in(root: Path) -> list[tuple[str, int, str]]:
    """Task, attempt and agent of what was accepted, by all lines of all journals, whether they count or not."""
    journals = (root / places.batch_folder("p", "b")).glob("journal.*.jsonl")
    lines = [json.loads(line) for file in journals for line in whole_lines(file.read_bytes())[0]]
    return [(line["task"], line["attempt"], line["agent"]) for line in lines if line["e"] == "accept"]


def reported_in(root: Path) -> set[tuple[str, str]]:
    logs = (root / places.RESULTS).glob("*.jsonl")
    lines = [json.loads(line) for log in logs for line in whole_lines(log.read_bytes())[0]]
    return {(line["agent"], line["name"]) for line in lines}


# ------------------------------------------------------------------ the power fails


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A loop-mounted disk, once as ext4 and once as xfs."""
    with loop_disk(request.param, tmp_path) as made:
        yield made


def cut_during(disk: Disk, root: Path, chance: random.Random, *, syncs: bool = True) -> list[list[str]]:
    """Let a fleet live, cut its power at a random moment, and return what it had acknowledged before."""

    def work(say: Say) -> None:
        say("begun")
        uncached.O_DIRECT = 0  # as where direct writes are refused: without its sync such a record is lost
        if not syncs:
            os.fsync = os.fdatasync = lambda fd: None
        FleetLife(root, AGENTS, say).run()
        say(["over"])

    child = Child(work)
    try:
        words = chance.randrange(1, WORDS)
        wait_until(lambda: len(child.said()) >= words or ["over"] in child.said())
        time.sleep(chance.uniform(0.0, 0.01))  # the moment of the cut is the experiment
        said = child.said()
        disk.shut_down()
    finally:
        child.kill()
    disk.mount_again()
    return [each for each in said if isinstance(each, list) and each != ["over"]]


def cut_power_after(disk: Disk, work: Callable[[Say], None], word: str) -> None:
    """Has a child work until it says this word, cuts the disk's power, and mounts it again."""
    child = Child(work)
    try:
        assert child.first() == word
        disk.shut_down()
    finally:
        child.kill()
    disk.mount_again()


def lost_of(root: Path, said: list[list[str]]) -> list[list[str]]:
    """What was acknowledged, and is not there any more."""
    reported, accepted = reported_in(root), {task for task, _, _ in accepted_in(root)}
    return [
        each for each in said
        if not ((each[1], each[2]) in reported if each[0] == "reported" else each[1] in accepted)
    ]  # fmt: skip


def test_a_fleet_that_loses_its_power_loses_nothing_that_was_acknowledged(disk: Disk) -> None:
    """FLEET-09, PLAN-06, R1, R17: three cuts per batch, then to its end; each task is accepted once."""
    chance = random.Random(f"fleet {disk.kind}")
    acknowledged = 0
    for number in range(BATCHES):
        root = disk.path / f"shared{number}"
        prepare(root)
        for _ in range(CUTS):
            said = cut_during(disk, root, chance)
            assert lost_of(root, said) == []
            acknowledged += len(said)
        FleetLife(root, AGENTS).run()
        check_batch(root, TASKS)
        shutil.rmtree(root)
    assert acknowledged > 0
    print(f"counts: cuts={BATCHES * CUTS} acknowledged={acknowledged}")


def test_the_power_cuts_would_show_a_loss(disk: Disk) -> None:
    """FLEET-09: the same fleet without its syncs loses what it acknowledged, so the trial above can fail."""
    prepare(disk.path / "shared")
    said = cut_during(disk, disk.path / "shared", random.Random(3), syncs=False)
    assert lost_of(disk.path / "shared", said) != []


def test_an_answer_that_an_agent_is_about_to_report_survives_a_power_cut(disk: Disk) -> None:
    """FLEET-09, PLAN-02: its report is durable, and the coordinator publishes the file; seen on xfs: an empty one."""
    folder = prepare(disk.path / "shared")
    slip = Slip("say", "b", "p", 1, 1, 0, (), {}, (), Work(prompt="Go."))
    prepared = Prepared(
        "name", slip, TaskClass.LLM, Job("name", (), {}), Question("", "Go."), keeps_folder=True
    )

    def work(say: Say) -> None:
        ended = Ended("name", Cause.EXIT, 0, out=Output(5, b"words"))
        conclude(Setting(disk.path / "shared", "a", disk.path), Finished(prepared, ended), 1)
        say("concluded")
        signal.pause()

    cut_power_after(disk, work, "concluded")
    assert (folder / "tasks" / "say" / "a1" / "stdout").read_bytes() == b"words"


MANY = [f"many/{number}.txt" for number in range(2 * limits.PRODUCED_FILES_SYNCED_MAX)]
PRODUCED = {
    "out/deep/a.txt": ["out/deep/a.txt"], "out/*.txt": ["out/a.txt", "out/b.txt"], "out": ["out/deep/a.txt"],
    "many/*": MANY,
}  # fmt: skip


@pytest.mark.parametrize(("made", "wanted"), PRODUCED.items(), ids=PRODUCED)
def test_what_a_complete_task_produced_survives_a_power_cut(disk: Disk, made: str, wanted: list[str]) -> None:
    """FLEET-09, PLAN-02: the report is durable, and so are the files that the task was run for. They were not."""
    root = disk.path / "shared"
    prepare(root)
    folder = root / "plans" / "p"
    folder.mkdir(parents=True, exist_ok=True)
    os.sync()
    slip = Slip("make", "b", "p", 1, 1, 0, (), {}, (), Work(produces=(made,)))

    def work(say: Say) -> None:
        shared = MountedFolder(root)
        for path in wanted:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(path)
        shared.store("name", slip, (made,))
        while shared.send("name", slip, durable=False) is None:
            pass
        say("sent")
        signal.pause()

    cut_power_after(disk, work, "sent")
    assert [path for path in wanted if (folder / path).read_text() != path] == []


@pytest.mark.parametrize(
    ("made", "wanted"), [("out", ["out/deep/a.txt"]), ("many/*", MANY)], ids=["folder", "many"]
)
def test_what_a_complete_task_produced_on_a_network_mount_survives_a_power_cut_of_its_server(
    disk: Disk, tmp_path: Path, made: str, wanted: list[str]
) -> None:
    """FLEET-09: a sync of the whole file system reaches the client's cache, and not the disk of the server."""
    (disk.path / "shared").mkdir()
    os.sync()
    with fuse_mounts() as mounts:
        try:
            mount = FuseMount(disk.path / "shared", tmp_path / "here")
        except OSError as error:
            pytest.skip(str(error))
        mounts.append(mount)
        for path in wanted:
            (mount.path / path).parent.mkdir(parents=True, exist_ok=True)
            (mount.path / path).write_text(path)
        put_on_disk([made], mount.path, mount.path)
        disk.shut_down()
    disk.mount_again()
    assert [path for path in wanted if (disk.path / "shared" / path).read_text() != path] == []


LINKED = {"a file": "made/new.txt", "a folder": "made"}


@pytest.mark.parametrize("target", LINKED.values(), ids=LINKED)
def test_what_a_link_of_a_complete_task_leads_to_survives_a_power_cut(
    disk: Disk, tmp_path: Path, target: str
) -> None:
    """FLEET-09: the link lies in the shared folder and what was produced on another disk, in folders that are new."""
    root, folder = tmp_path / "shared", tmp_path / "shared" / "plans" / "p"
    prepare(root)
    folder.mkdir(parents=True, exist_ok=True)
    os.sync()

    def work(say: Say) -> None:
        made = disk.path / "deep" / "made" / "new.txt"
        made.parent.mkdir(parents=True)
        made.write_text("new")
        (folder / "out").symlink_to(disk.path / "deep" / target)
        put_on_disk(["out"], folder, root)
        say("sent")
        signal.pause()

    cut_power_after(disk, work, "sent")
    assert (disk.path / "deep" / "made" / "new.txt").read_text() == "new"


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(25))
def test_a_fleet_that_loses_its_power_a_thousand_times_loses_nothing(disk: Disk, seed: int) -> None:
    """FLEET-09, PLAN-06, R1, R17: 20 cuts per batch and file system, each at a moment of its own."""
    chance = random.Random(f"fleet {disk.kind} {seed}")
    root = disk.path / "shared"
    prepare(root)
    for _ in range(20):
        assert lost_of(root, cut_during(disk, root, chance)) == []
    FleetLife(root, AGENTS).run()
    check_batch(root, TASKS)


# ------------------------------------------------------------------ killed at a system call


def traced(program: str, root: str, *, options: list[str]) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-B", str(Path(__file__).parent / "programs" / program), root]
    return subprocess.run(
        ["strace", "-f", *options, "--", *words], capture_output=True, text=True, check=False, timeout=60
    )


def sweep(tmp_path: Path, deaths: int) -> None:
    """Kill a fleet at so many of the calls by which it changes the disk, along its whole life; 0: at each."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    if subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    tasks = ["say", "rate", "sum", "each_i0"]
    prepare(tmp_path / "clean", items=1)
    calls = life(traced, tmp_path / "log", "life.py", str(tmp_path / "clean"))
    check_batch(tmp_path / "clean", tasks)
    points = [calls[index * (len(calls) - 1) // (deaths - 1)] for index in range(deaths)] if deaths else calls
    for point in points:
        root = tmp_path / f"{point.call}-{point.number}"
        prepare(root, items=1)
        run = traced("life.py", str(root), options=deadly(point))
        said = [json.loads(line) for line in run.stdout.splitlines()]
        assert ["over"] not in said, f"it survived {point}"
        assert (point, lost_of(root, said)) == (point, [])
        FleetLife(root, AGENTS).run()
        check_batch(root, tasks)
        shutil.rmtree(root)
    print(f"counts: kills={len(points)}")


def test_a_fleet_that_is_killed_at_a_call_that_changes_the_disk_goes_on(tmp_path: Path) -> None:
    """FLEET-05, FLEET-08, FLEET-09, R2, R17: in publishing, heating and evaluating as well."""
    sweep(tmp_path, DEATHS)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_fleet_that_is_killed_at_every_call_that_changes_the_disk_goes_on(tmp_path: Path) -> None:
    """FLEET-05, FLEET-08, FLEET-09, R2, R17."""
    sweep(tmp_path, 0)
