"""Users of one group share a spool; what one of them may not touch is said and stops nothing."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from watchbill.cli import run
from watchbill.spool import Corpus, Drain, Spool, State, stats

Say = Callable[[object], None]
GROUP, ANN, BOB = 65_100, 65_101, 65_102


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder in which a group may work; pytest's own are closed to others."""
    import shutil

    folder = Path(mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def shared(home: Path) -> Path:
    """A spool's root that the group shares by its setgid bit."""
    if os.geteuid() != 0:
        pytest.skip("needs root: acts as two users of one group")
    folder = home / "shared"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    return folder


def as_user(uid: int, umask: int, work: Callable[[Say], None]) -> Callable[[Say], None]:
    """Do `work` as another user of the group."""

    def change(say: Say) -> None:
        os.setgroups([GROUP])
        os.setgid(uid)
        os.setuid(uid)
        os.umask(umask)
        work(say)

    return change


def modes(root: Path) -> dict[str, int]:
    return {
        os.path.relpath(folder, root): stat.S_IMODE(os.stat(folder).st_mode) for folder, _, _ in os.walk(root)
    }


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o750), (0o002, 0o770), (0o077, 0o700)])
def test_folders_follow_the_umask(home: Path, umask: int, mode: int) -> None:
    """SPOOL-01: and are never open to all."""
    before = os.umask(umask)
    try:
        with Spool(home / "spool", durability="none") as spool:
            spool.enqueue_many([{"id": f"{number}"} for number in range(30)])
            with spool.dequeue():
                found = modes(home / "spool")
    finally:
        os.umask(before)
    assert set(found.values()) == {mode}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_what_one_user_of_a_group_enqueues_another_one_drains(
    shared: Path, child: Callable[..., Any], umask: int
) -> None:
    """SPOOL-02, SPOOL-04: in a root with the setgid bit every folder is the group's, whatever the umask; a dead
    writer's log and a dead worker's leases are taken over by the other user."""
    ready = 0o022 if umask == 0o022 else 0o027

    def produce(say: Say) -> None:
        spool = Spool(shared / "spool")
        for number in range(40):
            spool.enqueue({"id": f"a{number}", "kind": "note", "ts": 0})
        spool.enqueue_many([{"id": f"b{number}", "kind": "note", "ts": 0} for number in range(30)])
        assert spool.lease() is not None
        say("stored")
        os._exit(9)  # dies with a log and a lease

    def drain(say: Say) -> None:
        with Spool(shared / "spool") as spool, Corpus(shared / "corpus" / "c.jsonl") as corpus:
            report = Drain(spool, corpus).run_once()
            say([report.appended, report.poisoned, spool.barred])

    assert child(as_user(ANN, ready, produce)).join() == ["stored"]
    assert all(mode == 0o2770 for mode in modes(shared / "spool").values()), modes(shared / "spool")
    assert child(as_user(BOB, umask, drain)).join() == [[70, 0, {}]]
    assert child(as_user(ANN, umask, drain)).join() == [[0, 0, {}]]


def test_what_cannot_be_drained_is_said_with_an_exit_code(
    shared: Path, child: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """SPOOL-04, SPOOL-06: a file that only its owner may read, a folder that only its owner may open: the rest is
    drained, they stay where they are, unblamed, and are named."""

    def produce(say: Say) -> None:
        with Spool(shared / "spool", durability="none") as spool:
            names = [spool.enqueue({"id": f"{number}", "kind": "note", "ts": 0}) for number in range(3)]
        queue = shared / "spool" / "queue"
        (queue / names[1]).chmod(0o600)
        (queue / "closed").mkdir(mode=0o700)
        (queue / "closed").chmod(0o700)
        (queue / "closed" / "in.jsonl").write_text('{"id": "in", "kind": "note", "ts": 0}\n')
        say(names[1])

    def drain(say: Say) -> None:
        corpus = str(shared / "c.jsonl")
        say(run(["spool", "drain", "--spool", str(shared / "spool"), "--corpus", corpus, "--once"]))

    (name,) = child(as_user(ANN, 0o022, produce)).join()
    assert child(as_user(BOB, 0o022, drain)).join() == [1]
    shown, said = capfd.readouterr()
    assert "appended 2" in shown
    assert "2 files and folders of the spool cannot be drained by this user" in said
    assert f"{shared}/spool/queue/closed: Permission denied" in said
    assert str(name).partition("~")[0] in said
    with Spool(shared / "spool") as spool:
        assert (stats(spool).queue, stats(spool).poison) == (2, 0)
    assert child(as_user(ANN, 0o022, drain)).join() == [0]
    with Spool(shared / "spool") as spool:
        assert (
            stats(spool).queue,
            stats(spool).done,
            len(list(spool.layout.folder(State.POISON).iterdir())),
        ) == (0, 4, 0)


def test_what_cannot_be_leased_is_said_to_a_quiet_shell_worker(
    shared: Path, child: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """SPOOL-03: the event waits for somebody who may read it, and this worker hears why it gets nothing."""

    def produce(_: Say) -> None:
        with Spool(shared / "spool", durability="none") as spool:
            name = spool.enqueue({"id": "1", "kind": "note", "ts": 0})
        (shared / "spool" / "queue" / name).chmod(0o600)

    def dequeue(say: Say) -> None:
        say(run(["spool", "dequeue", "--spool", str(shared / "spool"), "--quiet"]))

    child(as_user(ANN, 0o022, produce)).join()
    assert child(as_user(BOB, 0o022, dequeue)).join() == [1]
    shown, said = capfd.readouterr()
    assert shown == ""
    assert "1 file or folder of the spool cannot be leased by this user" in said
    assert "Permission denied" in said
