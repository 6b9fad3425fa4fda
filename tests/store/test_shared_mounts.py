"""A spool on a mount that several hosts share: changes show up late, replies are lost, no lock reaches another host."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fuse_mount import FuseMount, fuse_mounts
from support.stopping import stop
from watchbill.spool import Corpus, Drain, Spool, SpoolBroken, SpoolLayout, State, shell_lease, stats
from watchbill.spool.inspect import entries
from watchbill.spool.term import term_for

PROGRAM = Path(__file__).parent / "programs" / "host.py"
#: Every change shows up a second late elsewhere, and one rename in ten is carried out and answered with an error.
BAD = {"hides_s": 1.0, "loses_replies": 0.1}


@dataclass
class Hosts:
    """A folder on a server, and hosts that have mounted it, each with processes of its own."""

    home: Path
    mounts: list[FuseMount]
    running: "dict[str, list[subprocess.Popen[bytes]]]" = field(default_factory=dict)

    @property
    def served(self) -> Path:
        """The folder itself."""
        return self.home / "served"

    def mount(
        self, name: str, *, hides_s: float = 0.0, loses_replies: float = 0.0, no_flags: bool = False
    ) -> FuseMount:
        point, seed = self.home / "mounts" / name, len(self.mounts)
        try:
            mount = FuseMount(
                self.served, point, hides_s=hides_s, loses_replies=loses_replies, seed=seed, no_flags=no_flags
            )
        except OSError as error:
            pytest.skip(str(error))
        self.mounts.append(mount)
        return mount

    def start(self, mount: FuseMount, *words: object) -> "subprocess.Popen[bytes]":
        """Run the program on the host of a mount."""
        running = self.running.setdefault(mount.path.name, [])
        log = self.home / f"{mount.path.name}.{len(running)}.log"
        command = [sys.executable, "-B", PROGRAM, mount.path.name, mount.path / "spool", log, *words]
        with (self.home / "errors").open("ab") as errors:
            started = subprocess.Popen([str(word) for word in command], stdout=errors, stderr=errors)
        running.append(started)
        return started

    def told(self, word: str, host: str = "*") -> list[int]:
        """The events of which the processes of a host wrote this word."""
        lines = [
            line.split() for log in self.home.glob(f"{host}.*.log") for line in log.read_text().splitlines()
        ]
        return [int(line[1]) for line in lines if len(line) == 2 and line[0] == word]

    def kill(self, mount: FuseMount) -> None:
        """The power of a host is cut: its processes are gone, and nothing of it reaches the server any more."""
        for process in self.running[mount.path.name]:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
        mount.kill()

    def end(self) -> None:
        """Let claimers end when nothing waits, and wait for them."""
        (self.home / "over").touch()
        for process in (each for running in self.running.values() for each in running):
            process.wait(PATIENCE_S)

    def found(self) -> dict[State, list[int]]:
        """The events in each folder of the server."""
        found: dict[State, list[int]] = {state: [] for state in State}
        with Spool(self.served / "spool", durability="none") as spool:
            for entry in entries(spool):
                with contextlib.suppress(FileNotFoundError):  # it moves meanwhile
                    found[entry.state].append(json.loads(entry.path.read_bytes())["id"])
        return found

    def errors(self) -> str:
        return (self.home / "errors").read_text()[-4_000:]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with fuse_mounts() as mounts:
        made = Hosts(tmp_path, mounts)
        made.served.mkdir()
        try:
            yield made
        finally:
            for process in (each for running in made.running.values() for each in running):
                process.kill()
                process.wait(PATIENCE_S)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("events", [120, pytest.param(3_000, marks=pytest.mark.torture)])
def test_eight_claimers_on_two_hosts_lose_nothing_when_one_host_is_killed(hosts: Hosts, events: int) -> None:
    """SPOOL-08, SPOOL-05, R10, R13: two hosts with a mount each produce and claim; one of them is killed with all its
    processes and its mount. What it had leased goes to the other one. Nothing is lost, nothing is finished twice."""
    first, second = hosts.mount("first", **BAD), hosts.mount("second", **BAD)
    producers = [
        hosts.start(mount, "produce", number * events, events // 2)
        for number, mount in enumerate((first, second))
    ]
    for mount in (first, second):
        for _ in range(4):
            hosts.start(mount, "claim", 20)
    wait_until(lambda: len(hosts.told("done", "second")) >= events // 8, 4 * PATIENCE_S)
    hosts.kill(second)
    acknowledged = set(hosts.told("ack"))
    producers[0].wait(4 * PATIENCE_S)
    acknowledged |= set(hosts.told("ack"))
    wait_until(lambda: acknowledged <= set(hosts.found()[State.DONE]), 4 * PATIENCE_S)
    hosts.end()

    assert not hosts.told("lost"), "no living worker was robbed"
    found = hosts.found()
    assert Counter(found[State.DONE]).most_common(1)[0][1] == 1
    assert found[State.QUEUE] == found[State.IN_FLIGHT] == found[State.POISON] == []
    # A host that dies may have been about to acknowledge one event, and to note the end of four.
    assert len(set(found[State.DONE]) - acknowledged) <= 1
    assert Counter(hosts.told("done")).most_common(1)[0][1] == 1
    again = [event for event, times in Counter(hosts.told("took")).items() if times > 1]
    assert set(again) <= set(hosts.told("took", "second")) - set(hosts.told("done", "second"))
    assert sum(mount.lost_replies for mount in hosts.mounts) > events // 10, hosts.errors()


@pytest.mark.timeout(600)
def test_every_event_that_drains_finish_is_in_a_corpus(hosts: Hosts) -> None:
    """SPOOL-08, R10: where the reply to the rename of a whole batch was lost, and the kernel was busy with another one
    while it was looked for, the next events were leased into the finished batch, and were in no corpus."""
    mount, events = hosts.mount("first", **BAD), 200
    stops, corpora = threading.Event(), [hosts.home / f"corpus{number}.jsonl" for number in range(2)]

    def drain(path: Path) -> None:
        with Spool(mount.path / "spool") as spool, Corpus(path) as corpus:
            while not stops.is_set():
                with contextlib.suppress(SpoolBroken):
                    Drain(spool, corpus).run_once()

    def stored() -> Counter[int]:
        return Counter(json.loads(line)["id"] for path in corpora for line in path.read_text().splitlines())

    drains = [threading.Thread(target=drain, args=(path,)) for path in corpora]
    with Spool(mount.path / "spool") as spool:
        for each in drains:
            each.start()
        try:
            for first in range(0, events, 5):
                spool.enqueue_many([{"id": first + k, "kind": "note", "ts": 0} for k in range(5)])
            found = hosts.found
            wait_until(lambda: not found()[State.QUEUE] and not found()[State.IN_FLIGHT], 4 * PATIENCE_S)
        finally:
            stops.set()
            for each in drains:
                each.join(PATIENCE_S)
    assert set(stored()) == set(range(events)), hosts.errors()
    assert mount.lost_replies > events // 20


def test_no_event_is_acknowledged_that_stays_hidden_with_its_writer(hosts: Hosts) -> None:
    """SPOOL-08, R10: where the server had forgotten what a writer had open, "the folder of the writer is gone" counted
    as "the event was shown": it stayed in the writer's own folder, which is swept when the writer is over."""
    mount = hosts.mount("first")
    events = [{"id": number, "kind": "note", "ts": 0} for number in range(4)]
    with Spool(mount.path / "spool") as spool:
        spool.enqueue(events[0])
        mount.order("forget")
        try:
            spool.enqueue_many(events[1:])
        except SpoolBroken:
            spool.enqueue_many(events[1:])
        assert sorted(hosts.found()[State.QUEUE]) == [0, 1, 2, 3]


def test_an_event_of_which_nobody_knows_whether_it_is_leased_is_not_finished_with_the_batch(
    hosts: Hosts,
) -> None:
    """SPOOL-08, R10: the reply to the rename of a lease was lost, and the server did not answer when it was asked. The
    event lay in the folder of the batch, and was finished with it, in no corpus."""
    mount = hosts.mount("first")
    with Spool(mount.path / "spool") as spool:
        assert spool.lease_many(9) == []
        spool.enqueue_many([{"id": number, "kind": "note", "ts": 0} for number in range(2)])
        spool.wake()
        mount.order("away", after=1)
        leased = spool.lease_many(9)
        assert [item.event["id"] for item in leased] == [0]
        spool.done_many(leased)
        assert hosts.found()[State.DONE] == [0]
        assert spool.lease() is None
        assert hosts.found()[State.QUEUE] == [1], "put back, for whoever leases next"
        assert spool.in_flight_here == 0


@pytest.mark.parametrize("order", ["link-lost", "link-again", "unlink-refused"])
def test_an_event_that_a_shell_worker_finished_is_not_leased_again(hosts: Hosts, order: str) -> None:
    """SPOOL-03, SPOOL-08: NFS replaces nothing only by a link and an unlink. A reply to one of them was lost, and the
    event was finished and stayed leased, too: when its worker ended, another one got it."""
    mount = hosts.mount("first", no_flags=True, hides_s=0.3)
    with Spool(mount.path / "spool") as spool:
        spool.enqueue({"id": 1, "kind": "note", "ts": 0})
        leased = shell_lease.dequeue(spool, term_for(60))
        assert leased is not None
        mount.order(order)
        shell_lease.done(spool, leased[0])
        assert hosts.found() == {State.QUEUE: [], State.IN_FLIGHT: [], State.DONE: [1], State.POISON: []}


def test_a_foreign_event_that_is_put_back_waits_once(hosts: Hosts) -> None:
    """SPOOL-08: the reply to a link was lost, the second try found the name taken, and the event was put back a second
    time under another name."""
    mount = hosts.mount("first", no_flags=True)
    with Spool(mount.path / "spool") as spool:
        (hosts.served / "spool" / "queue" / "theirs.jsonl").write_text('{"id": 1, "kind": "note", "ts": 0}\n')
        item = spool.lease()
        assert item is not None
        mount.order("link-again")
        spool.release(item)
        assert hosts.found() == {State.QUEUE: [1], State.IN_FLIGHT: [], State.DONE: [], State.POISON: []}


@pytest.mark.parametrize("times", [1, 3])
def test_a_folder_that_asked_who_has_an_event_is_not_given_up_as_one(hosts: Hosts, times: int) -> None:
    """SPOOL-08: the folder that asks the server stayed when the reply to its removal was lost, was put back as an
    event, and went to poison under the name of one that another worker had finished."""
    mount = hosts.mount("first", hides_s=2.0)
    with Spool(mount.path / "spool") as spool, Spool(hosts.served / "spool", shared=True) as other:
        spool.enqueue_many([{"id": number, "kind": "note", "ts": 0} for number in range(2)])
        first, theirs = spool.lease(), other.lease()
        assert first is not None and theirs is not None
        other.done(theirs)
        mount.order("rmdir-refused", times=times)
        spool.done(first)
        with pytest.raises(SpoolBroken) if times > 2 else contextlib.nullcontext():
            assert spool.lease() is None
        assert spool.lease() is None and spool.in_flight_here == 0
        assert not list((hosts.served / "spool" / "queue-in-flight").glob("*/*.jsonl"))
        assert sorted(hosts.found()[State.DONE]) == [0, 1]
        for state in (State.QUEUE, State.POISON):
            assert not list((hosts.served / "spool" / state.value).glob("*.jsonl*"))


def test_a_spool_that_was_opened_before_its_mount_came_works_on_it_as_a_shared_one(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-08: a process that begins while the mount is away cannot know of it, and makes a spool below it. It went on
    to store there when the mount was back, where nobody looks, and a worker used the mount as a disk of its own."""
    monkeypatch.setattr("watchbill.spool.queue.RECOVER_EVERY_S", 0.0)
    mount = hosts.mount("first")
    mount.unmount()
    with Spool(mount.path / "spool") as producer, Spool(mount.path / "spool") as worker:
        producer.enqueue({"id": 1, "kind": "note", "ts": 0})
        assert worker.lease() is not None
        mount.mount_again()
        producer.enqueue({"id": 2, "kind": "note", "ts": 0})
        assert hosts.found()[State.QUEUE] == [2]
        with Spool(mount.path / "spool") as other:
            other.enqueue({"id": 3, "kind": "note", "ts": 0})
        worker.wake()
        assert producer.durability == "event"
        assert os.listdir(mount.path / "spool" / "queue-wal") == []


def test_a_process_that_produces_and_consumes_goes_on_when_its_mount_is_made_anew(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-08: after `umount -l` what is open still works. The worker found the new mount, the writer's folder was on
    the old one, and every event was refused: a rename does not cross mounts."""
    monkeypatch.setattr("watchbill.spool.queue.RECOVER_EVERY_S", 0.0)
    mount = hosts.mount("first")
    with Spool(mount.path / "spool") as spool:
        spool.enqueue({"id": 1, "kind": "note", "ts": 0})
        mount.mount_over()
        leased = spool.lease()
        assert leased is not None
        spool.done(leased)
        spool.enqueue({"id": 2, "kind": "note", "ts": 0})
        assert hosts.found()[State.QUEUE] == [2]


def test_a_worker_that_stood_still_is_given_up_and_finds_that_out(hosts: Hosts) -> None:
    """SPOOL-08, R13: a stopped host cannot be told from a dead one. When it goes on, it has lost its lease, and works
    on in a folder of its own."""
    first, second = hosts.mount("first", hides_s=0.3), hosts.mount("second", hides_s=0.3)
    hosts.start(first, "produce", 0, 1).wait(PATIENCE_S)
    stopped = hosts.start(second, "claim", 600)
    wait_until(lambda: hosts.told("took", "second") == [0])
    stop(stopped.pid)
    hosts.start(first, "claim", 0)
    wait_until(lambda: hosts.told("done", "first") == [0])
    stopped.send_signal(signal.SIGCONT)
    wait_until(lambda: hosts.told("lost", "second") == [0])
    hosts.running["first"][-1].kill()
    hosts.start(first, "produce", 1, 1).wait(PATIENCE_S)
    wait_until(lambda: hosts.told("done", "second") == [1])
    hosts.end()
    assert hosts.found()[State.DONE] == [0, 1] or hosts.found()[State.DONE] == [1, 0]


def test_a_living_worker_of_the_disks_own_host_is_left_alone(hosts: Hosts) -> None:
    """SPOOL-05, SPOOL-08: it works on the disk itself, and does not know that others mount it. Its lock is not seen
    through a mount, so nothing of it is taken; with `shared` it beats like the others."""
    with Spool(hosts.served / "spool", durability="none") as local:
        local.enqueue({"id": 1})
        item = local.lease()
        mount = hosts.mount("first")
        hosts.start(mount, "claim", 0)
        hosts.start(mount, "produce", 2, 1).wait(PATIENCE_S)
        wait_until(lambda: hosts.told("done") == [2])
        assert item is not None
        local.done(item)
    with Spool(hosts.served / "spool", shared=True) as local:
        assert local.durability == "event"
        name = local.enqueue({"id": 3})
        wait_until(lambda: hosts.told("done") == [2, 3])
        assert name


def test_a_network_mount_syncs_each_event_and_says_what_it_means(hosts: Hosts) -> None:
    """SPOOL-08: no log there: no host could replay the log of another one that may still live."""
    mount = hosts.mount("first")
    with Spool(mount.path / "spool") as spool:
        assert spool.durability == "event"
        spool.enqueue({"id": 1, "kind": "note", "ts": 0})
        assert os.listdir(mount.path / "spool" / "queue-wal") == []
        assert any("over the network" in warning for warning in spool.warnings())
    with Spool(hosts.served / "local") as spool:
        assert spool.durability == "wal"


def test_a_spool_whose_mount_goes_away_is_refused_and_goes_on_with_the_mount(hosts: Hosts) -> None:
    """SPOOL-08: nothing is stored below the bare mount point, where it would never be found again."""
    mount = hosts.mount("first")
    with Spool(mount.path / "spool") as spool:
        spool.enqueue({"id": 1})
        mount.kill()
        with pytest.raises(SpoolBroken):
            spool.enqueue({"id": 2})
        mount.unmount()
        with pytest.raises((SpoolBroken, SpoolLayout)):
            spool.enqueue({"id": 2})
        with pytest.raises((SpoolBroken, SpoolLayout)):
            spool.lease()
        assert os.listdir(mount.path) == []
        mount.mount_again()
        spool.enqueue({"id": 3})
        leased = spool.lease_many(9)
        assert [item.event["id"] for item in leased] == [1, 3]
        spool.done_many(leased)
        assert stats(spool).done == 2


def test_a_drain_that_has_lost_its_mount_goes_on_with_the_next_one(hosts: Hosts) -> None:
    """SPOOL-08: "when it is back, the spool goes on" holds for recovery, too, with which each drain begins, and for a
    corpus on the mount."""
    mount = hosts.mount("first")
    with Spool(mount.path / "spool") as spool, Corpus(mount.path / "corpus.jsonl") as corpus:
        drain = Drain(spool, corpus)
        spool.enqueue({"id": 1, "kind": "note", "ts": 0})
        assert drain.run_once().appended == 1
        # Holds it open, as a drain that waits does.
        assert corpus.append([("a", b'{"id": "a"}')]).appended == 1
        mount.mount_again()
        with Spool(mount.path / "spool") as producer:
            producer.enqueue({"id": 2, "kind": "note", "ts": 0})
        assert drain.run_once().appended == 2


def test_nothing_is_appended_below_the_bare_mount_point_of_a_corpus(hosts: Hosts) -> None:
    """SPOOL-04, SPOOL-08: it would be hidden by the mount when that is back, and its events were finished."""
    mount = hosts.mount("first")
    with Corpus(mount.path / "corpus.jsonl") as corpus:
        corpus.append([("1", b'{"id": "1"}')])
        mount.unmount()
        with pytest.raises(SpoolBroken, match="mount it again"):
            corpus.append([("2", b'{"id": "2"}')])
        assert os.listdir(mount.path) == []
        mount.mount_again()
        assert corpus.append([("2", b'{"id": "2"}')]).appended == 1


def test_a_corpus_and_an_order_belong_to_one_host(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-04, SPOOL-08: two appenders whose locks do not reach each other would overwrite each other's lines."""
    mount = hosts.mount("first")
    corpus = mount.path / "corpus.jsonl"
    with Spool(mount.path / "spool") as spool:
        spool.enqueue({"id": 1, "kind": "note", "ts": 0})
        assert Drain(spool, Corpus(corpus), ordered=True).run_once().appended == 1
    for module in ("watchbill.spool.host_mark", "watchbill.files.witness", "watchbill.spool.consumer"):
        monkeypatch.setattr(f"{module}.host_name", lambda: "other")
    with Corpus(corpus) as theirs, pytest.raises(SpoolBroken, match=r"remove .*corpus.jsonl.host"):
        theirs.append([("2", b"{}")])
    with Spool(mount.path / "spool") as spool, pytest.raises(SpoolBroken, match=r"remove .*\.ordered\.host"):
        spool.take_turn()
    (mount.path / "corpus.jsonl.host").unlink()
    with Corpus(corpus) as theirs:
        assert theirs.append([("2", b'{"id": "2"}')]).appended == 1
