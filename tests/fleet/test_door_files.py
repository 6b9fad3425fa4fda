"""Files through the door: what an agent gets for a task, what it may leave behind, and what it may not."""

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.direct_door import Direct
from support.power_cut import loop_disk
from support.small_disk import small_disks
from watchbill.fleet import limits
from watchbill.fleet.door.disk import DoorDisk
from watchbill.fleet.door.door import Door
from watchbill.fleet.door.mirror import CannotCarry, Mirror
from watchbill.fleet.door.wire import Op
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.slips import Headline, Slip, slip_name
from watchbill.fleet.folder.work import Work
from watchbill.plans.task import TaskClass

BATCH = places.batch_folder("p", "b1")
LONG = 60.0


class Place:
    """A shared folder with a plan and a batch, its door, and agents that hold tasks of it."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder, self.root = folder, root or folder / "shared"
        places.make_root(self.root)
        self.door = Door(self.root)
        self.batch = self.root / BATCH
        self.batch.mkdir(parents=True)
        (self.root / "plans/p/plan.md").write_text("the plan")
        self.number = 0

    def hold(self, agent: str, task: str = "t", attempt: int = 1, **work: object) -> tuple[str, Slip]:
        self.number += 1
        headline = Headline(3, self.number, TaskClass.CPU, 0, attempt, "")
        name = slip_name(headline, model="", batch="b1", task=task)
        slip = Slip(task, "b1", "p", attempt, 1, 0, (), {}, (), Work(**work))
        board = Board(FolderDisk(self.root))
        board.publish(name, slip)
        board.join(agent)
        assert board.claim(agent, name)
        return name, slip

    def revoke(self, agent: str, name: str) -> None:
        assert Board(FolderDisk(self.root)).put_away(name, places.EXPIRED, holder=agent)

    def mirror(self, agent: str = "gpu-1") -> tuple[Mirror, Path, Direct]:
        session = Direct(self.door, agent)
        mirror = Mirror(self.folder / f"mirror-{agent}", session)
        return mirror, mirror.root / BATCH, session


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def ends(mirror: Mirror, name: str, slip: Slip) -> list[str]:
    """Send everything that a task has left behind, and return what could not be stored."""
    notes = mirror.send(name, slip, time.monotonic() + LONG, durable=False)
    assert notes is not None
    return notes


def begins(mirror: Mirror, name: str, slip: Slip) -> None:
    mirror.look_again()
    assert mirror.bring(name, slip, time.monotonic() + LONG)


def test_what_a_reported_task_has_left_survives_a_power_cut(tmp_path: Path) -> None:
    """R13, FLEET-05: the agent forgets the files of a task once its result is in the log; then the disk has them."""
    with loop_disk("ext4", tmp_path) as disk:
        place = Place(tmp_path, disk.path / "shared")
        name, slip = place.hold("gpu-1")
        mirror, batch, session = place.mirror()
        log = DoorDisk(session).create_log(places.result_log("gpu-1", 1))
        log.append([b"an earlier result"])
        os.sync()
        begins(mirror, name, slip)
        (batch / "out").mkdir()
        (batch / "out" / "made").write_text("made")
        assert ends(mirror, name, slip) == []
        log.append([b"the result"])
        log.close()
        disk.cut()
        assert (place.batch / "out" / "made").read_text() == "made"


# ------------------------------------------------------------------ what an agent may not do

READS: dict[str, str] = {
    "outside": "../secret", "by a detour": f"{BATCH}/../../../../../secret", "absolute": "/etc/hostname",
    "the marker": places.MARKER, "the journal": f"{BATCH}/journal.1.jsonl", "another batch": "plans/p/history/b2/x",
    "another plan": "plans/q/plan.md", "another task": f"{BATCH}/tasks/other/a1/stdout", "the board": "tasks/queue",
    "the inbox": f"{places.INBOX}/b9.json", "through a link": f"{BATCH}/out/secret", "a link": f"{BATCH}/link",
    "NUL": "plans/p/plan.md\0", "nothing": "",
}  # fmt: skip


def test_an_agent_reads_only_what_its_task_was_shown(place: Place) -> None:
    """Files of other batches, of the coordinator and of the machine behind the door stay there."""
    (place.folder / "secret").write_text("secret")
    (place.batch / "journal.1.jsonl").write_text("secret")
    (place.batch / "link").symlink_to(place.folder / "secret")
    (place.batch / "out").symlink_to(place.folder)
    others = (
        "plans/q/plan.md",
        "plans/p/history/b2/x",
        f"{BATCH}/tasks/other/a1/stdout",
        f"{places.INBOX}/b9.json",
    )
    for path in others:
        (place.root / path).parent.mkdir(parents=True, exist_ok=True)
        (place.root / path).write_text("secret")
    mirror, _, agent = place.mirror()
    asks = (
        "{ROOT}/../secret",
        "{BATCH_PATH}/out/*",
        "{BATCH_PATH}/link",
        "{BATCH_PATH}/journal*",
        "{ROOT}/brain/**",
    )
    name, slip = place.hold("gpu-1", requires=asks)
    begins(mirror, name, slip)
    assert not [path for path in mirror.root.rglob("*") if path.is_file() and path.read_text() == "secret"]
    for path in READS.values():
        with pytest.raises(OSError, match="Errno") as refused:
            agent.call(Op.FETCH, slip=name, pieces=[{"path": path, "offset": 0, "bytes": 100}])
        assert refused.value.errno in (errno.ESTALE, errno.EACCES, errno.EPERM, errno.EINVAL), path


WRITES: dict[str, str] = {
    "outside": "../x", "by a detour": f"{BATCH}/../../../x", "absolute": "/tmp/x", "the plan": "plans/p/plan.md",
    "a script": "plans/p/scripts/x", "the rules": "permissions.toml", "the journal": f"{BATCH}/journal.2.jsonl",
    "the summary": f"{BATCH}/RUN_SUMMARY.json", "the inputs": f"{BATCH}/inputs.json", "the batch itself": BATCH,
    "another task": f"{BATCH}/tasks/other/a1/stdout", "another attempt": f"{BATCH}/tasks/t/a2/stdout",
    "another batch": "plans/p/history/b2/x", "a slip": f"{places.QUEUE}/x.json", "through a link": f"{BATCH}/out/x",
    "NUL": f"{BATCH}/x\0", "an empty part": f"{BATCH}//x", "a dot": f"{BATCH}/./x",
}  # fmt: skip


def test_a_task_writes_only_to_its_batch(place: Place) -> None:
    """What an agent sends lands in the folder of the batch, and never on a link that leads out of it."""
    (place.batch / "out").symlink_to(place.folder)
    _, _, agent = place.mirror()
    name, _ = place.hold("gpu-1")
    acts: dict[Op, dict[str, object]] = {
        Op.STORE: {"upload": "0" * 16, "offset": 0, "is_last": True}, Op.APPEND: {}, Op.DISCARD: {},
    }  # fmt: skip
    for what, path in WRITES.items():
        before = {each: each.lstat().st_mtime_ns for each in place.folder.rglob("*")}
        for op, more in acts.items():
            with contextlib.suppress(PermissionError, NotADirectoryError):  # what counts is what happens
                agent.call(op, b"x", slip=name, path=path, **more)
        after = {each: each.lstat().st_mtime_ns for each in place.folder.rglob("*")}
        changed = [each for each in after if after[each] != before.get(each) and each.parent.name != "tasks"]
        assert not [each for each in changed if not each.name.startswith(".door-gpu-1-")], what
    with pytest.raises(PermissionError):
        agent.call(Op.STORE, b"x", slip=name, path=f"{BATCH}/x", upload="../../x", offset=0, is_last=True)


def test_a_revoked_task_can_do_nothing_any_more(place: Place) -> None:
    """R13: what a zombie sends after its revocation does not exist."""
    mirror, here, agent = place.mirror()
    name, slip = place.hold("gpu-1")
    begins(mirror, name, slip)
    (here / "late").write_text("late")
    place.revoke("gpu-1", name)
    for act in (lambda: ends(mirror, name, slip), lambda: agent.call(Op.TREE, slip=name)):
        with pytest.raises(PermissionError) as refused:
            act()
        assert refused.value.errno == errno.EACCES
    assert not (place.batch / "late").exists()


@pytest.mark.parametrize("name", ["", "x", "../x", "3-0000000001-cpu-v0-_-b1-t.a1.json", "a/b"])
def test_a_slip_that_is_not_held_gives_nothing(place: Place, name: str) -> None:
    place.hold("cpu-2")
    _, _, agent = place.mirror()
    with pytest.raises(PermissionError):
        agent.call(Op.TREE, slip=name)


# ------------------------------------------------------------------ there and back


def test_files_go_there_and_back_in_turns(place: Place) -> None:
    """Large files are carried in parts, each a request, from where the last turn ended."""
    content = os.urandom(3 * limits.DOOR_PART_BYTES + 5)
    (place.batch / "large").write_bytes(content)
    (place.batch / "sub").mkdir()
    for number in range(5):
        (place.batch / "sub" / f"s{number}").write_text(str(number))
    script = place.root / "plans/p/scripts/run.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    mirror, here, agent = place.mirror()
    name, slip = place.hold("gpu-1")
    turns = [mirror.bring(name, slip, 0)]
    while not turns[-1]:
        turns.append(mirror.bring(name, slip, 0))
    assert len(turns) >= 4
    assert (here / "large").read_bytes() == content and (here / "sub/s4").read_text() == "4"
    assert os.access(mirror.root / "plans/p/scripts/run.sh", os.X_OK)
    made = os.urandom(2 * limits.DOOR_PART_BYTES + 1)
    (here / "new" / "deep").mkdir(parents=True)
    (here / "new" / "deep" / "made").write_bytes(made)
    (here / "new" / "empty").touch()
    (here / "tasks/t/a1").mkdir(parents=True)
    (here / "tasks/t/a1/stdout").write_text("said")
    while mirror.send(name, slip, 0, durable=True) is None:
        agent.door = Door(place.root) if len(agent.sent) % 5 == 4 else agent.door  # killed and started anew
    assert (place.batch / "new/deep/made").read_bytes() == made
    assert (place.batch / "new/empty").read_bytes() == b""
    assert (place.batch / "tasks/t/a1/stdout").read_text() == "said"
    count = len(agent.sent)
    again, other = place.hold("gpu-1", "u")
    begins(mirror, again, other)
    assert ends(mirror, again, other) == []
    assert len(agent.sent) - count == 1  # one look, and nothing to carry


def test_lines_of_two_agents_are_all_kept_and_the_last_whole_file_wins(place: Place) -> None:
    """As on a mount: `>>` of two tasks adds both lines, `>` of two tasks leaves one of them."""
    (place.batch / "all").write_text("head\n")
    (place.batch / "last").write_text("old")
    pairs = [(agent, *place.mirror(agent)[:2], *place.hold(agent, agent)) for agent in ("gpu-1", "cpu-2")]
    for _, mirror, _, name, slip in pairs:
        begins(mirror, name, slip)
    for agent, mirror, here, name, slip in pairs:
        with (here / "all").open("a") as file:
            file.write(f"{agent}\n")
        (here / "last").write_text(agent)
        (here / "passing").write_text("x")
        assert ends(mirror, name, slip) == []
    assert (place.batch / "all").read_text() == "head\ngpu-1\ncpu-2\n"
    assert (place.batch / "last").read_text() == "cpu-2"
    _, mirror, here, _, _ = pairs[0]
    name, slip = place.hold("gpu-1", "touches")
    begins(mirror, name, slip)
    _add(place.batch / "all", "later\n")
    (here / "all").touch()
    ends(mirror, name, slip)
    name, slip = place.hold("gpu-1", "next")
    begins(mirror, name, slip)
    assert (here / "all").read_text() == "head\ngpu-1\ncpu-2\nlater\n" and (
        here / "last"
    ).read_text() == "cpu-2"


def test_lines_of_two_agents_are_all_kept_where_both_begin_the_file(place: Place) -> None:
    """As on a mount: the first `>>` makes the file, and the second adds to it."""
    command = "echo line >> {BATCH_PATH}/out/all; echo $$ > {BATCH_PATH}/last; echo > {BATCH_PATH}/r/{TASK}"
    pairs = [
        (agent, *place.mirror(agent)[:2], *place.hold(agent, agent, command=command))
        for agent in ("gpu-1", "cpu-2")
    ]
    for _, mirror, _, name, slip in pairs:
        begins(mirror, name, slip)
    for agent, mirror, here, name, slip in pairs:
        (here / "out").mkdir()
        (here / "out" / "all").write_text(f"{agent}\n")
        (here / "last").write_text(agent)
        assert ends(mirror, name, slip) == []
    assert (place.batch / "out" / "all").read_text() == "gpu-1\ncpu-2\n"
    assert (place.batch / "last").read_text() == "cpu-2"
    empty, here, _ = place.mirror("gpu-3")
    name, slip = place.hold("gpu-3", "gpu-3", command=command)
    (place.batch / "out" / "all").rename(place.batch / "kept")
    begins(empty, name, slip)
    (place.batch / "kept").rename(place.batch / "out" / "all")
    (here / "out" / "all").touch()
    (here / "kept").touch()
    assert ends(empty, name, slip) == []
    assert (place.batch / "out" / "all").read_text() == "gpu-1\ncpu-2\n"


def test_what_a_task_adds_while_the_file_is_fetched_anew_is_kept(place: Place) -> None:
    """The file has changed there and is fetched for the next task, while an earlier one still writes to it."""
    (place.batch / "all").write_text("head\n")
    mirror, here, agent = place.mirror()
    runs, slip = place.hold("gpu-1", "runs")
    begins(mirror, runs, slip)
    with (here / "all").open("a") as held_open, (place.batch / "all").open("a") as there:
        there.write("theirs\n")
        there.flush()
        following, second = place.hold("gpu-1", "next")
        begins(mirror, following, second)
        assert (here / "all").read_text() == "head\ntheirs\n"
        held_open.write("mine\n")
    ends(mirror, following, second)
    ends(mirror, runs, slip)
    assert (place.batch / "all").read_text() == "head\ntheirs\nmine\n"

    runs, slip = place.hold("gpu-1", "again")
    begins(mirror, runs, slip)
    with (place.batch / "all").open("a") as there:
        there.write("theirs again\n")
    following, second = place.hold("gpu-1", "last")
    agent.before = {Op.FETCH: lambda: _add(here / "all", "meanwhile\n")}
    begins(mirror, following, second)
    agent.before = {}
    ends(mirror, runs, slip)
    ends(mirror, following, second)
    assert (place.batch / "all").read_text().splitlines()[-2:] == ["theirs again", "meanwhile"]


def _add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_temporary_file_that_was_sent_goes_with_its_task(place: Place) -> None:
    mirror, here, _ = place.mirror()
    (one, first), (two, second) = place.hold("gpu-1", "one"), place.hold("gpu-1", "two")
    begins(mirror, one, first)
    begins(mirror, two, second)
    (here / "x.tmp").write_text("half")
    ends(mirror, one, first)
    (here / "x.tmp").rename(here / "x")
    ends(mirror, two, second)
    assert {path.name for path in place.batch.iterdir()} == {"x"}


def test_rules_and_scripts_are_what_they_are_there(place: Place) -> None:
    """FLEET-12: a task cannot change the rules or the scripts of those after it."""
    (place.root / "permissions.toml").write_text('deny = ["rm *"]\n')
    mirror, here, _ = place.mirror()
    name, slip = place.hold("gpu-1")
    begins(mirror, name, slip)
    rules, plan = mirror.root / "permissions.toml", mirror.root / "plans/p/plan.md"
    for path in (rules, plan):
        status = path.stat()
        path.write_text("x" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (mirror.root / "plans/p/permissions.toml").write_text('allow = ["*"]\n')
    (here / "leftover").symlink_to("/etc")
    ends(mirror, name, slip)
    name, slip = place.hold("gpu-1", "next")
    begins(mirror, name, slip)
    assert rules.read_text() == 'deny = ["rm *"]\n' and plan.read_text() == "the plan"
    assert not (mirror.root / "plans/p/permissions.toml").exists()
    (place.root / "permissions.toml").unlink()
    mirror.forget(name)
    begins(mirror, name, slip)
    assert not rules.exists()


def test_a_large_file_comes_only_to_a_task_that_names_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of gigabytes does not travel to every agent."""
    monkeypatch.setattr(limits, "MIRROR_UNNAMED_BYTES_MAX", 1000)
    (place.batch / "large").write_bytes(b"x" * 2000)
    mirror, here, _ = place.mirror()
    name, slip = place.hold("gpu-1")
    begins(mirror, name, slip)
    assert not (here / "large").exists()
    assert "requires" in mirror.left_out(name) and f"{BATCH}/large (2 kB)" in mirror.left_out(name)
    ends(mirror, name, slip)
    assert (place.batch / "large").exists()
    name, slip = place.hold("gpu-1", "named", requires=("{BATCH_PATH}/lar*",))
    begins(mirror, name, slip)
    assert (here / "large").stat().st_size == 2000 and not mirror.left_out(name)


BOUNDS: dict[str, Callable[[Place, pytest.MonkeyPatch], dict[str, object]]] = {
    "more than 3 files": lambda _place, patch: patch.setattr(limits, "MIRROR_FILES_MAX", 3) or {},
    "are carried": lambda _place, patch: patch.setattr(limits, "MIRROR_FILE_BYTES_MAX", 5) or {},
    "outside of the folder of its batch": lambda _place, _patch: {"produces": ("{PLAN_PATH}/out",)},
}


@pytest.mark.parametrize("why", BOUNDS)
def test_what_cannot_be_carried_is_told(place: Place, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    for number in range(5):
        (place.batch / f"f{number}").write_text("content")
    mirror, _, _ = place.mirror()
    name, slip = place.hold("gpu-1", **BOUNDS[why](place, monkeypatch))
    with pytest.raises(CannotCarry, match=why):
        mirror.bring(name, slip, LONG)


def test_a_full_disk_behind_the_door_is_waited_for(tmp_path: Path) -> None:
    """Nothing is reported before its files are there, and a file that did not fit takes no room."""
    with small_disks(tmp_path) as disk:
        place = Place(tmp_path, disk("size=8m") / "shared")
        mirror, here, _ = place.mirror()
        name, slip = place.hold("gpu-1")
        begins(mirror, name, slip)
        filler = place.root / "filler"
        filler.write_bytes(b"x" * (5 * 2**20))
        (here / "made").write_bytes(b"y" * (5 * 2**20))
        with pytest.raises(OSError, match="No space") as full:
            ends(mirror, name, slip)
        assert full.value.errno == errno.ENOSPC
        assert not list((place.root / places.DRAFTS).iterdir())
        filler.unlink()
        assert ends(mirror, name, slip) == []
        assert (place.batch / "made").stat().st_size == 5 * 2**20


def test_a_file_that_cannot_be_stored_is_named(place: Place) -> None:
    mirror, here, _ = place.mirror()
    name, slip = place.hold("gpu-1")
    begins(mirror, name, slip)
    (here / "out").write_text("x")
    (place.batch / "out").mkdir()
    assert ends(mirror, name, slip) == [f"{BATCH}/out could not be stored: Is a directory"]
