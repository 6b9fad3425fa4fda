"""The door of a shared folder on a real broker: the operations of an agent, what it may not do, and lost answers."""

import errno
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.direct_door import Direct
from support.eventually import wait_until
from support.nats_server import TOKEN, Broker, broker
from watchbill.config.load import read_text
from watchbill.errors import ConfigError, OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet.command_lines import programs_of
from watchbill.fleet.door.arrivals import Heard
from watchbill.fleet.door.caller import BrokerSession
from watchbill.fleet.door.disk import DoorDisk
from watchbill.fleet.door.door import Door
from watchbill.fleet.door.service import DoorService
from watchbill.fleet.door.wire import Op, OtherVersion, pack, raise_error, unpack
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import Disk, FolderDisk
from watchbill.fleet.folder.results import End, Result, ResultLog, ResultReader
from watchbill.fleet.folder.signals import Order, obeyed, pending, send
from watchbill.fleet.folder.slips import Headline, Slip, slip_name
from watchbill.fleet.folder.work import Work
from watchbill.plans.task import TaskClass
from watchbill.spool.jetstream.reach import Reach

SUBJECT = "fleet"
HELD = places.processing_folder("gpu-1")


def slip(task: str = "t", sequence: int = 1, addressee: str = "") -> tuple[str, Slip]:
    headline = Headline(3, sequence, TaskClass.CPU, 0, 1, addressee)
    return slip_name(headline, model="", batch="b1", task=task), Slip(
        task, "b1", "p", 1, 1, 0, (), {}, (), Work()
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    places.make_root(tmp_path / "shared")
    return tmp_path / "shared"


@contextmanager
def open_door(root: Path, reach: Reach) -> Generator[DoorService]:
    service = DoorService(root, reach, SUBJECT)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(20)


@contextmanager
def calling(server: Broker, agent: str = "gpu-1") -> Generator[BrokerSession]:
    caller = BrokerSession(server.reach, SUBJECT, agent)
    try:
        yield caller
    finally:
        caller.close()


@pytest.fixture(params=["folder", "door", "door that gets everything twice", "broker"])
def disk(request: pytest.FixtureRequest, root: Path) -> Iterator[Disk]:
    """The shared folder as an agent has it: mounted, or behind the door."""
    if request.param == "folder":
        yield FolderDisk(root)
    elif request.param == "broker":
        server: Broker = request.getfixturevalue("server")
        with open_door(root, server.reach), calling(server) as caller:
            yield DoorDisk(caller)
    else:
        yield DoorDisk(Direct(Door(root), copies=2 if "twice" in request.param else 1))


# ------------------------------------------------------------------ the contract of a disk


def test_an_agent_claims_reads_and_gives_back(disk: Disk, root: Path) -> None:
    """FLEET-01: claims are renames, also behind the door; exactly one agent gets a slip."""
    board, there = Board(disk), Board(FolderDisk(root))
    name, body = slip()
    there.publish(name, body)
    board.join("gpu-1")
    assert board.offered() == [name]
    assert board.claim("gpu-1", name) and board.claim("gpu-1", name)  # as after a lost reply
    assert board.held_by("gpu-1") == [name] == there.held_by("gpu-1")
    assert board.read("gpu-1", name) == body
    board.give_back("gpu-1", name)
    assert there.offered() == [name] and not there.held_by("gpu-1")
    there.join("cpu-2")
    assert there.claim("cpu-2", name)
    assert not board.claim("gpu-1", name)


def test_a_large_slip_comes_whole(disk: Disk, root: Path) -> None:
    """An answer that does not fit into one message comes in several."""
    name, body = slip()
    large = replace(body, items=('"x"' * 10**6,))
    Board(FolderDisk(root)).publish(name, large)
    board = Board(disk)
    board.join("gpu-1")
    assert board.claim("gpu-1", name)
    assert board.read("gpu-1", name) == large


def test_results_are_reported_once_and_in_order(disk: Disk, root: Path) -> None:
    """FLEET-03: a life is a record file with one writer; `commit` returns when it is synced."""
    log = ResultLog(disk, "gpu-1")
    log.commit([Result("a", "gpu-1", log.life, End.DONE, 0), Result("b", "gpu-1", log.life, End.LOST)])
    log.commit(Result(f"c{number}", "gpu-1", log.life, End.DONE, tail="x" * 4000) for number in range(300))
    log.close()
    again = ResultLog(disk, "gpu-1")
    assert again.life == log.life + 1
    again.commit([Result("d", "gpu-1", again.life, End.DONE)])
    told = [(each.life, each.name) for each in ResultReader(FolderDisk(root)).read()]
    assert told == [(1, "a"), (1, "b"), *((1, f"c{number}") for number in range(300)), (2, "d")]
    with pytest.raises(FileExistsError):
        disk.create_log(places.result_log("gpu-1", 2))


def test_heartbeats_and_signals(disk: Disk, root: Path) -> None:
    """FLEET-06, FLEET-09: an agent shows itself and obeys what is for it."""
    path, there = places.heartbeat_path("gpu-1"), FolderDisk(root)
    disk.make_folder(path.rpartition("/")[0])
    for text in (b"one", b"two"):
        disk.put(path, text)
        assert there.read(path, 100) == text == disk.read(path, 100)
    with pytest.raises(FileNotFoundError):
        disk.read(places.heartbeat_path("gpu-9"), 100)
    with pytest.raises(NotAFile):
        disk.read(path, 1)
    send(there, "gpu-1", Order.ABORT, "t1")
    (found,) = pending(disk, "gpu-1")
    assert (found.order, found.task) == (Order.ABORT, "t1")
    obeyed(disk, found)
    obeyed(disk, found)
    assert pending(disk, "gpu-1") == [] == there.names(places.SIGNALS)


# ------------------------------------------------------------------ what an agent may not do

NAME, BODY = slip()
FOR_ANOTHER, _ = slip("other", 2, "cpu-2")
HOSTILE: dict[str, Callable[[DoorDisk], object]] = {
    "list a plan": lambda disk: disk.names("plans"),
    "list the root": lambda disk: disk.names(""),
    "list what another holds": lambda disk: disk.names(places.processing_folder("cpu-2")),
    "list by a detour": lambda disk: disk.names(f"{places.QUEUE}/../processing/cpu-2"),
    "read the marker": lambda disk: disk.read(places.MARKER, 100),
    "read the inbox": lambda disk: disk.read(f"{places.INBOX}/b1.json", 100),
    "read another's slip": lambda disk: disk.read(f"{places.processing_folder('cpu-2')}/{NAME}", 100),
    "read a slip that nobody claimed": lambda disk: disk.read(f"{places.QUEUE}/{NAME}", 100),
    "read outside": lambda disk: disk.read(f"{HELD}/../../../../secret", 100),
    "read an absolute path": lambda disk: disk.read("/etc/hostname", 1000),
    "read a heartbeat by a detour": lambda disk: disk.read("gpus/../heartbeat.json", 100),
    "read with NUL": lambda disk: disk.read("gpus/a\0/heartbeat.json", 100),
    "another's heartbeat": lambda disk: disk.put(places.heartbeat_path("cpu-2"), b"x"),
    "write a slip": lambda disk: disk.put(f"{places.QUEUE}/{NAME}", b"x"),
    "write a draft": lambda disk: disk.put(places.heartbeat_path("gpu-1"), b"x", draft="tasks/.tmp/x"),
    "write a journal": lambda disk: disk.put(places.journal_path("p", "b1", 1), b"x"),
    "remove a slip": lambda disk: disk.remove(f"{places.QUEUE}/{NAME}"),
    "remove another's signal": lambda disk: disk.remove(f"{places.SIGNALS}/cpu-2.stop"),
    "remove the marker": lambda disk: disk.remove(places.MARKER),
    "rename a slip": lambda disk: disk.move(f"{places.QUEUE}/{NAME}", f"{HELD}/{FOR_ANOTHER}"),
    "claim for another": lambda disk: disk.move(f"{places.QUEUE}/{NAME}", f"tasks/processing/cpu-2/{NAME}"),
    "claim what is for another": lambda disk: disk.move(f"{places.QUEUE}/{FOR_ANOTHER}", f"{HELD}/{FOR_ANOTHER}"),
    "complete a task": lambda disk: disk.move(f"{HELD}/{NAME}", f"{places.complete_folder('2026-01-01')}/{NAME}"),
    "move a file in": lambda disk: disk.move("plans/p/plan.md", f"{HELD}/{NAME}"),
    "make a folder": lambda disk: disk.make_folder("plans/mine"),
    "report for another": lambda disk: disk.create_log(places.result_log("cpu-2", 7)),
    "make a record elsewhere": lambda disk: disk.create_log("tasks/results/../queue/gpu-1.1.jsonl"),
    "take an epoch": lambda disk: disk.take(f"{places.EPOCHS}/99"),
    "sync": lambda disk: disk.sync(places.MARKER),
    "follow another's record": lambda disk: disk.lines(places.result_log("cpu-2", 1), 0),
    "look for files": lambda disk: disk.has("**"),
}  # fmt: skip


def test_an_agent_may_do_what_agents_do_and_nothing_else(root: Path) -> None:
    """An agent behind the door cannot read or change anything but its own part of the board."""
    there = FolderDisk(root)
    for name in (NAME, FOR_ANOTHER):
        Board(there).publish(name, BODY)
    for agent in ("gpu-1", "cpu-2"):
        Board(there).join(agent)
    send(there, "cpu-2", Order.STOP)
    (root.parent / "secret").write_text("secret")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    disk = DoorDisk(Direct(Door(root)))
    for what, act in HOSTILE.items():
        with pytest.raises(OSError, match="Errno") as refused:
            act(disk)
        assert refused.value.errno in (errno.EACCES, errno.EPERM, errno.EINVAL), what
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before, what


@pytest.mark.parametrize("name", ["brain", "..", "a/b", "", "x" * 50, "a.b"])
def test_a_name_that_no_agent_has_is_refused(root: Path, name: str) -> None:
    """The coordinator's own agent is beside it, and never comes through the door."""
    with pytest.raises(PermissionError, match="the door refused"):
        Direct(Door(root), name).call(Op.HELLO)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b'{"op":', b'{"number":"x"}', b"[" * 10_000])
def test_a_message_that_makes_no_sense_changes_nothing(root: Path, data: bytes) -> None:
    door = Door(root)
    assert door.answer("gpu-1", data) is not None
    assert Direct(door).call(Op.HELLO).fields.text("fleet")


# ------------------------------------------------------------------ lost and late messages


def test_a_late_request_is_dropped(root: Path) -> None:
    """R13: an agent that has gone on is not overtaken by its own past."""
    agent = Direct(Door(root))
    board = Board(DoorDisk(agent))
    name, body = slip()
    Board(FolderDisk(root)).publish(name, body)
    board.join("gpu-1")
    assert board.claim("gpu-1", name)
    claim = agent.sent[-1]
    board.give_back("gpu-1", name)
    assert agent.door.answer("gpu-1", claim) is None
    assert board.offered() == [name]


def test_a_door_that_is_started_anew_costs_a_new_record_and_nothing_else(root: Path) -> None:
    """One writer per file: what a dead door had open is never appended to again."""
    agent = Direct(Door(root))
    log = ResultLog(DoorDisk(agent), "gpu-1")
    log.commit([Result("a", "gpu-1", 1, End.DONE)])
    agent.door = Door(root)
    with pytest.raises(OSError, match="started anew") as stale:
        log.commit([Result("b", "gpu-1", 1, End.DONE)])
    assert stale.value.errno == errno.ESTALE
    again = ResultLog(DoorDisk(agent), "gpu-1")
    again.commit([Result("b", "gpu-1", 2, End.DONE)])
    assert [each.name for each in ResultReader(FolderDisk(root)).read()] == ["a", "b"]


def test_two_versions_tell_each_other(root: Path) -> None:
    door = Door(root)
    answer = door.answer("gpu-1", pack({"protocol": 99, "session": "s", "number": 1, "op": "hello"}))
    assert answer is not None
    with pytest.raises(
        OtherVersion, match="version 1 of its protocol, the agent 99; install the same version"
    ):
        raise_error(unpack(unpack(answer).body), "")


# ------------------------------------------------------------------ the broker


def test_an_agent_hears_of_slips_and_signals(root: Path, server: Broker) -> None:
    """FLEET-09: a signal is noticed when it is sent, not with the next look."""
    with open_door(root, server.reach), calling(server) as caller:
        wait_until(lambda: bool(caller.call(Op.HELLO).fields.text("fleet")))
        heard = Heard(caller.link, SUBJECT)
        send(FolderDisk(root), "gpu-1", Order.STOP)
        wait_until(lambda: places.SIGNALS in heard.arrivals())
        name, body = slip()
        Board(FolderDisk(root)).publish(name, body)
        wait_until(lambda: places.QUEUE in heard.arrivals())
        heard.close()


def test_accounts_of_the_broker_keep_agents_apart(root: Path, tmp_path: Path) -> None:
    """docs/fleet.md: an account for gpu-1 cannot speak for another agent, nor hear what others are told."""
    with broker(tmp_path / "accounts") as server:
        server.kill()
        may = 'publish: ["fleet.gpu-1"], subscribe: ["fleet.news.*", "fleet.inbox.gpu-1.>"]'
        users = f"users: [{{user: door, password: d}}, {{user: rig, password: r, permissions: {{ {may} }} }}]"
        server.config.write_text(server.config.read_text().replace(f'token: "{TOKEN}"', users))
        server.start()
        door, rig = (
            Reach((server.url,), user=user, password=user[0], wait_s=3.0) for user in ("door", "rig")
        )
        with open_door(root, door):
            own, other = BrokerSession(rig, SUBJECT, "gpu-1"), BrokerSession(rig, SUBJECT, "gpu-2")
            assert own.call(Op.HELLO).fields.text("fleet")
            with pytest.raises(OSError, match=r"(?i)permissions violation"):
                other.call(Op.HELLO)
            own.close()
            other.close()


CONFIGS = {
    'nats = "serve"\nroot = "/mnt/shared"': {"door": ("door", "--root", "/mnt/shared", "--nats", "config"),
                                             "agent-gpu-1": ("agent", "gpu-1", "--root", "/mnt/shared")},
    'nats = "use"': {"agent-gpu-1": ("agent", "gpu-1", "--nats", "config")},
}  # fmt: skip


def written(fleet: str) -> str:
    brokers = '[nats]\nservers = ["nats://10.0.0.5:4222"]'
    return f'{brokers}\n[fleet]\n{fleet}\n[agents.gpu-1]\n[models.m]\nengine = "scripted"\n'


@pytest.mark.parametrize("fleet", CONFIGS)
def test_up_runs_the_door_here_and_agents_there(fleet: str) -> None:
    rules = read_text(written(fleet), base=Path("/srv"), origin="w.toml", environment={}).catalog.fleet
    found = programs_of(rules, Path("/mnt/shared"))
    wanted = CONFIGS[fleet]
    assert {name: words[: len(wanted[name])] for name, words in found.items()} == wanted
    assert rules.broker.servers == ("nats://10.0.0.5:4222",)


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        ('nats = "use"\nroot = "/mnt"', "this machine has no shared folder"),
        ('nats = "use"\n[coordinator]', "the coordinator needs it"),
        ('nats = "serve"\nsubject = "a.*"', "must be a subject of NATS"),
        ('nats = "both"', "serve"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fleet: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_text(written(fleet), base=Path("/srv"), origin="w.toml", environment={})


def test_a_second_door_for_the_same_agents_is_refused(root: Path, server: Broker) -> None:
    with open_door(root, server.reach), calling(server) as caller:
        caller.call(Op.HELLO)
        with pytest.raises(OursError, match="another door answers at fleet"):
            DoorService(root, server.reach, SUBJECT).run()


def test_no_door_and_no_broker_are_told_apart(server: Broker) -> None:
    for reach, why in (
        (replace(server.reach, wait_s=0.5), "knows no door fleet"),
        (replace(server.reach, wait_s=0.5, token="wrong"), "(?i)authorization"),
        (replace(server.reach, wait_s=0.5, servers=("nats://127.0.0.1:1",)), "did not answer"),
    ):
        caller = BrokerSession(reach, SUBJECT, "gpu-1")
        with pytest.raises(OSError, match=why) as failed:
            caller.call(Op.HELLO)
        assert failed.value.errno == errno.ETIMEDOUT
        caller.close()
