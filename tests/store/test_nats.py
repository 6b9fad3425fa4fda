"""Spools on real NATS servers: workers, brokers and moves that are killed, outages, and power cuts (SPOOL-08)."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.certificates import write_certificate
from support.eventually import wait_until
from support.nats_operator import NatsOperator
from support.nats_server import TOKEN, Broker, broker, cluster, free_port
from support.power_cut import loop_disk
from support.stopping import stop
from watchbill.catalog import NatsRules
from watchbill.cli.broker_facts import silent_servers
from watchbill.errors import ConfigError
from watchbill.spool import Corpus, Drain, LeaseLost, Spool, State
from watchbill.spool.by_hand import by_hand
from watchbill.spool.faults import EventRefused, SpoolBroken, SpoolLayout
from watchbill.spool.jetstream import JetSpool, Reach
from watchbill.spool.jetstream.holders import Held, Holders, Life, Note
from watchbill.spool.jetstream.link import Link, Received
from watchbill.spool.jetstream.streams import CONSUMER, Streams
from watchbill.spool.moving import move
from watchbill.spool.term import term_for

Say = Callable[[object], None]
LEASE_S = 1.0
MOVED = int(os.environ.get("WATCHBILL_NATS_MOVED", "800"))
#: Each event takes two syncs of the broker, one after another, on a disk that other tests use as well: at 20 ms for
#: each that is longer than the patience of other waits.
MOVED_WITHIN_S = 30.0 + MOVED * 0.1


def event(number: object, **more: object) -> dict[str, Any]:
    return {"id": str(number), "kind": "note", "ts": 0, **more}


def ids(corpus: Path) -> list[str]:
    return [json.loads(line)["id"] for line in corpus.read_text().splitlines()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path / "broker") as running:
        yield running


# ------------------------------------------------------------------ workers


def test_the_events_of_a_dead_worker_go_to_another_and_its_attempt_counts(server: Broker, child: Any) -> None:
    """SPOOL-05, SPOOL-06: an event whose workers die goes to poison after its attempts, unless it is stored."""

    def die_with_a_lease(say: Say) -> None:
        spool = JetSpool("jobs", server.reach, lease_s=LEASE_S)
        say(wait_until(spool.lease).attempt)
        signal.pause()

    with JetSpool("jobs", server.reach, lease_s=LEASE_S) as spool:
        spool.enqueue(event("deadly"))
        for attempt in (1, 2, 3):
            worker = child(die_with_a_lease)
            assert worker.first() == attempt
            worker.kill()
        wait_until(lambda: spool.lease() is None and spool.given_up == 1)
        entry = next(by_hand(spool).entries(State.POISON))
        assert "its worker died" in entry.reason["reason"] and entry.attempt == 4


def test_a_single_look_finds_a_worker_of_this_machine_that_died_before_its_first_renewal(
    server: Broker, child: Any
) -> None:
    """SPOOL-05: as with files, any command takes its events back; nothing has to watch for a whole lease first."""

    def die_with_a_lease(say: Say) -> None:
        say(wait_until(JetSpool("jobs", server.reach, lease_s=60.0).lease).name)
        signal.pause()

    with JetSpool("jobs", server.reach, lease_s=60.0) as spool:
        spool.enqueue(event("left behind"))
        worker = child(die_with_a_lease)
        worker.first()
        spool.recover()
        (entry,) = by_hand(spool).entries(State.IN_FLIGHT)
        with pytest.raises(SpoolLayout, match="is leased by"):
            by_hand(spool).release(entry)
        worker.kill()
    with JetSpool("jobs", server.reach, lease_s=60.0) as spool:
        by_hand(spool).release(entry)
        assert by_hand(spool).stats().in_flight == 0


def test_the_batch_of_a_dead_worker_is_drained_without_a_new_delivery_of_all_for_each(
    server: Broker, child: Any, corpus: Path
) -> None:
    """SPOOL-05, SPOOL-08: each of its events comes alone, and new ones do not stand behind them for minutes."""
    batch = 200

    def die_with_leases(say: Say) -> None:
        spool = JetSpool("jobs", server.reach, lease_s=LEASE_S)
        held = 0
        while held < batch:
            held += len(spool.lease_many(batch - held))
        say(held)
        signal.pause()

    with JetSpool("jobs", server.reach, lease_s=LEASE_S) as spool:
        spool.enqueue_many([event(number) for number in range(batch)])
        worker = child(die_with_leases)
        assert worker.first() == batch
        worker.kill()
        spool.enqueue_many([event(f"new {number}") for number in range(batch)])
        drain = Drain(spool, Corpus(corpus))
        running = threading.Thread(target=drain.run)
        running.start()
        try:
            wait_until(lambda: drain.report.settled == 2 * batch, 60.0)
        finally:
            drain.stop()
            running.join()
        told = spool.run(lambda link: link.api(f"CONSUMER.INFO.jobs.{CONSUMER}"), "look")
        assert told["delivered"]["consumer_seq"] < 8 * batch
    assert Counter(ids(corpus)) == Counter(
        [str(n) for n in range(batch)] + [f"new {n}" for n in range(batch)]
    )


@pytest.mark.parametrize("other", ["boot", "pids", ""])
def test_a_process_is_judged_only_where_its_pid_means_something(other: str) -> None:
    """A worker on another boot, or in another container, may be alive whatever has its pid here."""
    alive = Life.own()
    assert not alive.is_over
    dead = replace(alive, started="1")
    assert replace(dead, **{other: "elsewhere"} if other else {}).is_over is (not other)
    assert Note.decode(Note({1: Held(1, 1)}, life=dead).encode(1)).is_over


def test_leases_of_shells_do_not_hide_what_waits(server: Broker, tmp_path: Path) -> None:
    """SPOOL-03: the broker delivers what a shell has leased again and again, before what waits: `dequeue` said
    "nothing waits" then, and loops of shell workers ended."""
    for number in range(4):
        with JetSpool("jobs", server.reach, folder=tmp_path, lease_s=LEASE_S) as spool:
            if not number:
                spool.enqueue_many([event(each) for each in range(4)])
            assert by_hand(spool).lease_out(term_for(60)) is not None, f"{number} are leased"
        time.sleep(1.2 * LEASE_S)
    with JetSpool("jobs", server.reach, folder=tmp_path, lease_s=LEASE_S) as spool:
        assert by_hand(spool).lease_out(term_for(60)) is None
        assert by_hand(spool).stats().in_flight == 4


def test_a_message_whose_first_copy_is_still_being_stored_is_asked_for_again(
    server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-08: a cluster that loses a server says so of a repeated send; producers were told that it failed."""
    told = [{"error": {"code": 409, "err_code": 10158, "description": "in process"}}, {"seq": 1}]
    link = Link(server.reach, "test")

    async def request(*_: object) -> Received:
        return Received("", "", json.dumps(told.pop(0)).encode(), {})

    monkeypatch.setattr(link, "request", request)
    try:
        assert link.call(lambda: link.ask("jobs.queue.x"), "store events") == {"seq": 1}
    finally:
        link.close()


def test_an_event_that_the_corpus_holds_is_finished_although_its_workers_died(
    server: Broker, child: Any, corpus: Path
) -> None:
    """SPOOL-06, SPOOL-07: killed between append and done, three times: in the corpus once, never in poison."""

    def append_and_die(say: Say) -> None:
        spool = JetSpool("jobs", server.reach, lease_s=LEASE_S)
        item = wait_until(spool.lease)
        Corpus(corpus).append([("1", item.lines[0])])
        say(item.attempt)
        signal.pause()

    with JetSpool("jobs", server.reach, lease_s=LEASE_S) as spool:
        spool.enqueue(event(1))
        for _ in range(3):
            worker = child(append_and_die)
            worker.first()
            worker.kill()
        drain = Drain(spool, Corpus(corpus))
        wait_until(drain.step)
        assert (drain.report.duplicates, drain.report.poisoned, ids(corpus)) == (1, 0, ["1"])


def test_a_broker_that_forgets_who_leased_what_takes_nothing_from_a_living_worker(server: Broker) -> None:
    """SPOOL-05: the consumer of the stream is deleted under two workers; the notes of the first one hold."""
    with JetSpool("jobs", server.reach, lease_s=6) as one, JetSpool("jobs", server.reach, lease_s=6) as other:
        one.enqueue_many([event(number) for number in range(5)])
        held = one.lease_many(5)
        other.recover()
        one.run(lambda link: link.api(f"CONSUMER.DELETE.jobs.{CONSUMER}"), "delete the consumer")
        other._is_ready = False
        assert other.lease_many(5) == []
        assert [item.attempt for item in held] == [1] * 5
        one.done_many(held)
        wait_until(lambda: by_hand(other).stats().done == 5)
        assert other.lease_many(5) == []


def test_an_event_that_is_given_back_does_not_wait_for_the_end_of_its_lease(server: Broker) -> None:
    """SPOOL-05: another worker gets it at once, as its first attempt."""
    with (
        JetSpool("jobs", server.reach, lease_s=600) as one,
        JetSpool("jobs", server.reach, lease_s=600) as other,
    ):
        one.enqueue(event(1))
        for item in one.lease_many(1):
            one.give_back(item)
        assert wait_until(other.lease).attempt == 1


def test_a_worker_that_was_taken_for_dead_has_lost_its_leases(server: Broker, child: Any) -> None:
    """SPOOL-05: stopped for longer than its lease, it cannot settle what another worker has now."""

    def work(say: Say) -> None:
        spool = JetSpool("jobs", server.reach, lease_s=LEASE_S)
        item = wait_until(spool.lease)
        say("leased")
        wait_until(Path(f"{server.home}/go").exists)
        try:
            spool.fail(item, ValueError("late"))
        except LeaseLost:
            say("lost")

    with JetSpool("jobs", server.reach, lease_s=LEASE_S) as spool:
        spool.enqueue(event(1))
        zombie = child(work)
        zombie.first()
        stop(zombie.pid)
        item = wait_until(spool.lease)
        assert item.attempt == 2
        Path(f"{server.home}/go").touch()
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.join()[-1] == "lost"
        spool.done(item)


def test_a_lease_is_finished_although_the_broker_forgot_that_it_delivered(server: Broker) -> None:
    """SPOOL-03: a server that was killed may not know the delivery; it answers no acknowledgement of it."""
    with JetSpool("jobs", replace(server.reach, wait_s=10)) as spool:
        spool.enqueue_many([event(number) for number in range(4)])
        held = spool.lease_many(4)
        spool.run(lambda link: link.api(f"CONSUMER.DELETE.jobs.{CONSUMER}"), "delete the consumer")
        spool._is_ready = False
        spool.done_many(held[:3])
        spool.poison(held[3], "no good")
        wait_until(lambda: by_hand(spool).stats().in_flight == 0)
        told = by_hand(spool).stats()
        assert (told.queue, told.done, told.poison) == (0, 3, 1)


# ------------------------------------------------------------------ outages


def test_an_outage_is_an_error_within_the_bound_and_recovery_comes_by_itself(server: Broker) -> None:
    """SPOOL-02: an event is accepted only when the broker acknowledged it."""
    with JetSpool("jobs", replace(server.reach, wait_s=1)) as spool:
        spool.enqueue(event("before"))
        server.kill()
        began = time.monotonic()
        with pytest.raises(SpoolBroken, match=r"did not answer within 1 s.*nothing was acknowledged"):
            spool.enqueue(event("during"))
        with pytest.raises(SpoolBroken, match="lease events"):
            spool.lease()
        assert time.monotonic() - began < 30
        server.start()
        assert wait_until(lambda: _accepted(spool, "after"))
        assert {item.event["id"] for item in spool.lease_many(10)} >= {"before", "after"}


def _accepted(spool: JetSpool, number: str) -> bool:
    try:
        spool.enqueue(event(number))
    except SpoolBroken:
        return False
    return True


def test_a_broker_that_hangs_is_an_outage(server: Broker) -> None:
    """A stopped process keeps its connections open and says nothing."""
    with JetSpool("jobs", replace(server.reach, wait_s=1)) as spool:
        spool.enqueue(event(1))
        server.stop()
        try:
            with pytest.raises(SpoolBroken):
                spool.enqueue(event(2))
        finally:
            server.go_on()
        assert wait_until(lambda: _accepted(spool, "3"))


def test_outages_use_up_no_attempt(server: Broker, corpus: Path) -> None:
    """SPOOL-06: three restarts while events are leased, each longer than a lease: nothing is poisoned."""
    with (
        JetSpool("jobs", replace(server.reach, wait_s=10), lease_s=1) as spool,
        JetSpool("jobs", replace(server.reach, wait_s=10), lease_s=1) as other,
    ):
        spool.enqueue_many([event(number) for number in range(20)])
        held = spool.lease_many(10)
        for _ in range(3):
            server.kill()
            threading.Event().wait(1.3)  # an outage longer than the lease is the experiment
            server.start()
            wait_until(lambda: _looked(other))
        assert all(item.attempt == 1 for item in held)
        spool.done_many(held)
        drain = Drain(other, Corpus(corpus))
        wait_until(lambda: (drain.step(), drain.report.appended == 10)[1])
        assert drain.report.poisoned == 0
        assert by_hand(spool).stats().poison == 0


def test_a_batch_is_given_back_at_once_while_the_broker_is_away(server: Broker) -> None:
    """SPOOL-06: one wait, not one for each event; the events come again, and no attempt is used up."""
    with (
        JetSpool("jobs", replace(server.reach, wait_s=1), lease_s=1) as spool,
        JetSpool("jobs", replace(server.reach, wait_s=1), lease_s=1) as other,
    ):
        spool.enqueue_many([event(number) for number in range(50)])
        items = spool.lease_many(50)
        other.recover()
        server.kill()
        began = time.monotonic()
        for item in items:
            spool.give_back(item)
        assert time.monotonic() - began < 30  # it would be 50 s
        assert spool.in_flight_here == 0
        threading.Event().wait(1.5)  # an outage longer than all bounds is the experiment
        server.start()
        again: list[int] = []

        def all_came() -> bool:
            with contextlib.suppress(SpoolBroken):
                again.extend(item.attempt for item in other.lease_many(50))
            return len(again) == 50

        wait_until(all_came)
        assert set(again) == {1}


def test_a_worker_is_judged_only_by_what_was_watched(server: Broker) -> None:
    """SPOOL-05: after an outage nobody is dead at once: the others could not write either. Then silence is death."""
    note = Note({1: Held(1, 1)})
    with JetSpool("jobs", replace(server.reach, wait_s=10), lease_s=1) as spool:
        spool.recover()
        spool.run(lambda _: spool.holders.write("silent", note, 1, 0), "write a note")
        spool.recover()
        server.kill()
        threading.Event().wait(1.1)  # an outage longer than the lease is the experiment
        server.start()
        wait_until(lambda: _looked(spool))
        assert spool.run(lambda _: spool.holders.read("silent"), "read") is not None

        def is_taken() -> bool:
            spool.recover()
            return spool.run(lambda _: spool.holders.read("silent"), "read") is None

        wait_until(is_taken)
        assert spool.run(lambda _: spool.holders.tries(1), "read") == 1


def test_a_worker_that_renews_at_the_last_moment_keeps_its_leases(server: Broker) -> None:
    """SPOOL-05: taken for dead by a look that is older than its renewal, it loses nothing."""
    note = Note({1: Held(1, 1)})
    with JetSpool("jobs", server.reach, lease_s=1) as spool:

        async def race(_: object) -> tuple[object, int]:
            revision = await spool.holders.write("slow", note, 1, 0)
            await spool.holders.look()
            seen = spool.holders.get("slow")
            assert seen is not None
            assert await spool.holders.write("slow", note, 2, revision)
            await spool.holders.take("slow", seen)
            return await spool.holders.read("slow"), await spool.holders.tries(1)

        kept, tries = spool.run(race, "race")
        assert kept is not None and tries == 0


def _looked(spool: JetSpool) -> bool:
    try:
        spool.recover()
    except SpoolBroken:
        return False
    return True


def test_a_broker_that_comes_back_empty_is_used_again(server: Broker, tmp_path: Path) -> None:
    with JetSpool("jobs", replace(server.reach, wait_s=2)) as spool:
        spool.enqueue(event(1))
        server.kill()
        server.data.rename(tmp_path / "aside")
        server.start()
        assert wait_until(lambda: _accepted(spool, "2"))
        assert wait_until(spool.lease).event["id"] == "2"


def test_what_is_wrong_with_a_connection_is_said(server: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token, a server that is not there, a package that is not installed, an event that is too large."""
    with pytest.raises(SpoolBroken, match=r"(?i)authorization"):
        JetSpool("jobs", Reach((server.url,), token="wrong", wait_s=1)).enqueue(event(1))
    with pytest.raises(SpoolBroken, match=r"nats://127.0.0.1:1 did not answer"):
        JetSpool("jobs", Reach(("nats://127.0.0.1:1",), wait_s=1)).enqueue(event(1))
    with JetSpool("jobs", server.reach) as spool, pytest.raises(EventRefused, match="max_payload"):
        spool.enqueue(event(1, body="x" * 9_000_000))
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(ConfigError, match=r"pip install .*nats-py"):
        JetSpool("jobs", server.reach).enqueue(event(1))


def test_credentials_end_and_new_ones_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-08: what they are signed with was in no extra, and each command said after 20 s that a module is missing.
    A file that is written anew is read by workers that run."""
    operator, made = NatsOperator(), Broker(tmp_path / "broker")
    lines = [line for line in made.config.read_text().splitlines() if not line.startswith("authorization")]
    made.config.write_text("\n".join([*lines, *operator.server_config()]) + "\n")
    mine = operator.credentials(tmp_path / "mine.creds", ends_s=time.time() + 4)
    other = operator.credentials(tmp_path / "other.creds")
    foreign = NatsOperator().credentials(tmp_path / "foreign.creds")

    def spool(file: Path) -> JetSpool:
        return JetSpool("jobs", Reach((made.url,), credentials=os.fspath(file), wait_s=2))

    try:
        made.start()
        with spool(mine) as worker, spool(other) as producer:
            worker.enqueue(event("before"))

            def is_refused() -> bool:
                try:
                    worker.recover()
                except SpoolBroken as error:
                    return "authorization" in str(error).lower()
                return False

            wait_until(is_refused)
            with spool(foreign) as stranger, pytest.raises(SpoolBroken, match=r"(?i)authorization"):
                stranger.enqueue(event("foreign"))
            producer.enqueue(event("after"))
            os.replace(other, mine)
            wait_until(lambda: _accepted(worker, "new"))
            assert {item.event["id"] for item in worker.lease_many(10)} == {"before", "after", "new"}
    finally:
        made.kill()
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(ConfigError, match=r"pip install .*nats-py\[nkeys\]"):
        spool(mine).enqueue(event(1))


def test_tls_and_a_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The certificate of the server is checked, and a client without the authority is refused. No end of a connection
    is a line on standard error: each command had one."""
    pem = write_certificate(tmp_path / "server.pem")
    made = Broker(tmp_path / "broker")
    text = made.config.read_text().replace(
        f'authorization {{ token: "{TOKEN}" }}',
        f'authorization {{ user: me, password: "a secret, ü" }}\ntls {{ cert_file: "{pem}", key_file: "{pem}" }}',
    )
    made.config.write_text(text)
    try:
        made.start()
        reach = Reach(
            (f"tls://localhost:{made.port}",), user="me", password="a secret, ü", ca=str(pem), wait_s=5
        )
        with JetSpool("jobs", reach) as spool:
            spool.enqueue(event(1))
            assert spool.lease() is not None
            made.kill()
            made.start()
            spool.enqueue(event(3))
        assert "eof_received" not in caplog.text
        with pytest.raises(SpoolBroken, match=r"(?i)certificate"):
            JetSpool("jobs", replace(reach, ca="", wait_s=1)).enqueue(event(2))
    finally:
        made.kill()


def test_a_server_without_tls_is_told_nothing_where_tls_is_asked_for(tmp_path: Path) -> None:
    """Docs: an address that begins with tls:// is encrypted. The library goes on without it where the server, or who
    answers in its place, offers none: the password and every event went over the network in the clear."""
    heard: list[bytes] = []
    with socket.create_server(("localhost", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    client.settimeout(2)
                    with client:
                        client.sendall(b'INFO {"server_id":"x","version":"2.12.0","max_payload":1000000}\r\n')
                        heard.append(client.recv(4096))

        threading.Thread(target=answer, daemon=True).start()
        for more in ({"token": "the-token"}, {"user": "me", "password": "secret"}):
            reach = Reach((f"tls://localhost:{listener.getsockname()[1]}",), wait_s=1, **more)
            with pytest.raises(SpoolBroken, match="offers no TLS"):
                JetSpool("jobs", reach).enqueue(event(1))
        listener.close()
    assert heard and not any(heard), heard


def test_each_server_of_a_config_is_asked_by_itself(server: Broker) -> None:
    """`doctor` and `config check` said nothing of brokers; of a cluster's servers those that are up hide the others."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        gone, deaf = (f"nats://127.0.0.1:{port}" for port in (free_port(), mute.getsockname()[1]))
        told = silent_servers(NatsRules((server.url, gone, deaf), token=TOKEN), server.home)
    assert list(told) == [gone, deaf]
    assert "nothing listens there" in told[gone] and "did not answer" in told[deaf]
    (refused,) = silent_servers(NatsRules((server.url,), token="another"), server.home).values()
    assert "Authorization Violation" in refused


# ------------------------------------------------------------------ moves


def test_a_spool_moves_to_nats_and_back_with_everything(server: Broker, tmp_path: Path) -> None:
    """SPOOL-08: names, attempts, reasons and bytes stay; a second move finds nothing to do."""
    with Spool(tmp_path / "spool") as files, JetSpool("jobs", server.reach, lease_s=LEASE_S) as nats:
        files.enqueue(b'{"id":"odd",  "kind":"note","ts":0}')
        files.enqueue_many([event(1), event(2)], bundle=True)
        bad = files.enqueue(event("bad"))
        (tmp_path / "spool/queue/foreign name.jsonl").write_bytes(json.dumps(event("foreign")).encode())
        tried = files.enqueue(event("tried"))
        for item in files.lease_many(10):
            if item.name.startswith(bad.partition("~")[0]):
                files.poison(item, "on purpose")
            elif item.name.startswith(tried.partition("~")[0]):
                files.fail(item, ValueError("once"))
            else:
                files.release(item)
        before = _content(files)
        moved = move(files, nats)
        assert (moved.waiting, moved.poison, moved.leased) == (5, 1, 0)
        assert _content(files) == {} and _content(nats) == before
        assert move(files, nats).waiting == 0
        moved = move(nats, files)
        assert (moved.waiting, moved.poison) == (5, 1)
        assert _content(files) == before
        wait_until(lambda: _content(nats) == {})
        attempts = {item.event["id"]: item.attempt for item in files.lease_many(10) if not item.is_bundle}
        assert attempts == {"odd": 1, "foreign": 1, "tried": 2}


def _content(spool: Any) -> dict[str, tuple[State, int, bytes, str]]:
    """Stem -> state, attempts, bytes and reason of what waits or was given up."""
    hand = by_hand(spool)
    found = hand.entries(State.QUEUE, State.POISON)
    return {
        entry.name.partition("~")[0].removesuffix(".jsonl"): (
            entry.state, 0 if entry.state is State.QUEUE else entry.attempt, hand.show(entry).removesuffix(b"\n"),
            str(entry.reason.get("reason", "")),
        )
        for entry in found
        if "foreign" not in entry.name
    }  # fmt: skip


@pytest.mark.parametrize("to", ["nats", "files"])
def test_a_move_that_is_killed_again_and_again_loses_nothing(
    server: Broker, tmp_path: Path, child: Any, corpus: Path, to: str
) -> None:
    """SPOOL-08, SPOOL-06: five kills use up no attempt; every event is in the corpus once."""
    chance = random.Random(to)
    total = MOVED

    def both() -> tuple[Any, Any]:
        sides = Spool(tmp_path / "spool"), JetSpool("jobs", server.reach, lease_s=1)
        return sides if to == "nats" else sides[::-1]

    source, target = both()
    source.enqueue_many([event(number) for number in range(total)])

    def work(say: Say) -> None:
        source, target = both()
        say("open")
        say(move(source, target, progress=lambda moved: say(moved.waiting)).waiting)

    for _ in range(5):
        mover = child(work)
        mover.first()
        time.sleep(chance.uniform(0.02, 0.15))  # the moment of the kill is the experiment
        mover.kill()
    wait_until(
        lambda: (
            move(source, target),
            by_hand(source).stats().queue == 0 == by_hand(source).stats().in_flight,
        )[1],
        MOVED_WITHIN_S,
    )
    drain = Drain(target, Corpus(corpus))
    wait_until(lambda: (drain.run_once(), len(ids(corpus)) == total)[1], MOVED_WITHIN_S)
    assert sorted(map(int, ids(corpus))) == list(range(total))
    assert drain.report.poisoned == 0 and by_hand(target).stats().poison == 0
    source.close()
    target.close()


def test_a_batch_is_finished_on_a_broker_with_a_slow_disk(server: Broker, corpus: Path) -> None:
    """SPOOL-08, P4: the bound was that of the whole batch, and no event of it was acknowledged before copies of all
    were stored: at more than 40 ms for a sync the 512 of a drain were begun again and again, without end. Drains and
    moves of machines that were busy stood still for as long."""
    sync_ms, bound_s, total = 10, 3.0, 400
    with JetSpool("jobs", replace(server.reach, wait_s=bound_s)) as spool, server.slow_disk(sync_ms):
        assert total * sync_ms / 1000 > 1.3 * bound_s
        assert len(spool.enqueue_many([event(number) for number in range(total)])) == total
        Drain(spool, Corpus(corpus)).run_once()
        assert sorted(map(int, ids(corpus))) == list(range(total))
        assert sum(by_hand(spool).counts(State.QUEUE, State.IN_FLIGHT, State.POISON).values()) == 0


def test_two_moves_in_opposite_directions_lose_nothing(server: Broker, tmp_path: Path, child: Any) -> None:
    """SPOOL-08, P1: each found the other's copy of an event at its target, took it for the one that stays, and finished
    its own; so did `spool move --to files` beside a daemon that forwarded to the broker."""
    total = MOVED // 2

    def both() -> tuple[Spool, JetSpool]:
        return Spool(tmp_path / "spool"), JetSpool("jobs", server.reach, lease_s=1)

    with Spool(tmp_path / "spool") as files:
        files.enqueue_many([event(number) for number in range(total)])

    def work(back: bool) -> Callable[[Say], None]:
        def there_and_back(say: Say) -> None:
            say("open")
            for _ in range(20):
                files, nats = both()
                with files, nats, contextlib.suppress(SpoolBroken):
                    move(nats, files) if back else move(files, nats)
            say("over")

        return there_and_back

    movers = [child(work(back)) for back in (False, True)]
    for mover in movers:
        mover.first()
    wait_until(lambda: all("over" in mover.said() for mover in movers), 120)
    files, nats = both()
    with files, nats:
        wait_until(
            lambda: (move(nats, files), not any(by_hand(nats).counts(State.QUEUE, State.IN_FLIGHT).values()))[
                1
            ]
        )
        found = [item.event["id"] for item in files.lease_many(2 * total)]
    assert sorted(found) == sorted(event(number)["id"] for number in range(total))


def test_a_spool_takes_again_what_was_moved_away_meanwhile(server: Broker, tmp_path: Path) -> None:
    """SPOOL-08: what it had at its last move may be elsewhere now."""
    with Spool(tmp_path / "spool") as files, JetSpool("jobs", server.reach, lease_s=LEASE_S) as nats:
        nats.enqueue(event(1))
        for _ in range(2):
            assert move(nats, files).waiting == 1
            with Spool(tmp_path / "spool") as another:
                assert move(another, nats).waiting == 1
        assert sum(by_hand(nats).counts(State.QUEUE, State.IN_FLIGHT).values()) == 1


def test_events_that_are_too_large_for_the_broker_stay(server: Broker, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool") as files, JetSpool("jobs", server.reach) as nats:
        files.enqueue_many([event("large", body="x" * 9_000_000), event("small")])
        moved = move(files, nats)
        assert (moved.waiting, moved.refused, moved.leased) == (1, 1, 0)
        assert [entry.size_bytes > 9_000_000 for entry in by_hand(files).entries(State.QUEUE)] == [True]


def test_a_move_waits_for_the_events_of_one_that_was_killed(
    server: Broker, tmp_path: Path, child: Any
) -> None:
    """SPOOL-08: each command is a process of its own, that has watched nobody before; one repetition is enough."""
    with JetSpool("jobs", server.reach, lease_s=1) as nats:
        nats.enqueue_many([event(number) for number in range(10)])

    def die_with_leases(say: Say) -> None:
        say(len(JetSpool("jobs", server.reach, lease_s=1).lease_many(4, counts=False)))
        time.sleep(60)

    mover = child(die_with_leases)
    mover.first()
    mover.kill()
    with Spool(tmp_path / "spool") as files, JetSpool("jobs", server.reach, lease_s=1) as nats:
        hasty = move(nats, files)
        assert (hasty.waiting, hasty.leased + hasty.left) == (6, 4)
        moved = move(nats, files, patience_s=10)
        assert (moved.waiting, moved.leased, moved.left) == (4, 0, 0)


# ------------------------------------------------------------------ a cluster


def test_what_waits_on_a_cluster_is_leased_by_the_first_look(tmp_path: Path) -> None:
    """SPOOL-08: `dequeue`, `drain --once` and `move` look once. A cluster says that a pull has ended before its
    messages come: that is not the end of the queue. Of two writes of one note that meet, one comes too late,
    which a cluster says with a number of its own: it was an error, and then a worker whose leases were taken away
    took its former note for the new one. A server that keeps no copies is named."""
    with cluster(tmp_path / "cluster") as servers:
        reach = Reach(tuple(each.url for each in servers), token=TOKEN, wait_s=30)

        def spool() -> JetSpool:
            return JetSpool("jobs", reach, replicas=3, lease_s=15)

        with spool() as first:
            wait_until(lambda: _accepted(first, "first"), 60)
            first.enqueue_many([event(number) for number in range(9)])
        for _ in range(3):
            with spool() as looking:
                found = looking.lease()
                assert found is not None
                looking.done(found)
        with Spool(tmp_path / "spool") as files, spool() as looking:
            assert move(looking, files).waiting == 7
        _let_writes_meet(reach)
        with spool() as looking:
            servers[2].kill()
            wait_until(lambda: any("the server b2" in each for each in looking.warnings()), 60)
            servers[2].start()
            wait_until(lambda: not looking.warnings(), 60)


def _let_writes_meet(reach: Reach) -> None:
    links = [Link(reach, f"link {number}") for number in range(2)]
    places = [Holders(link, Streams("jobs"), 15) for link in links]

    def write(place: int, worker: str, revision: int) -> int:
        note = Note({place + 1: Held(1, 1)})
        return links[place].call(lambda: places[place].write(worker, note, revision, revision), "write")

    with ThreadPoolExecutor(2) as threads:
        for number in range(10):
            revision = write(0, f"worker-{number}", 0)
            met = list(
                threads.map(lambda place, n=number, r=revision: write(place, f"worker-{n}", r), (0, 1))
            )
            assert sorted(map(bool, met)) == [False, True]
    for link in links:
        link.close()


# ------------------------------------------------------------------ a cluster under fire


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.torture)])
def test_a_cluster_that_loses_a_server_every_few_seconds_loses_no_event(
    tmp_path: Path, child: Any, kills: int
) -> None:
    """SPOOL-08: three servers, one killed at random again and again, under load: no acknowledged event is lost, none
    is poisoned, each is in the corpus once."""
    chance, acknowledged = random.Random(17), 0
    with cluster(tmp_path / "cluster") as servers:
        reach = Reach(tuple(each.url for each in servers), token=TOKEN, wait_s=30)

        def produce(number: int) -> Callable[[Say], None]:
            def work(say: Say) -> None:
                spool = JetSpool("jobs", reach, replicas=3, lease_s=15)
                for batch in range(1_000_000):
                    lines = [event(f"{number}-{batch}-{place}", body="x" * 200) for place in range(10)]
                    try:
                        spool.enqueue_many(lines)
                    except SpoolBroken:
                        continue  # not acknowledged: it may be there, or not
                    say([line["id"] for line in lines])

            return work

        def drain(corpus: Path) -> Callable[[Say], None]:
            def work(say: Say) -> None:
                spool = JetSpool("jobs", reach, replicas=3, lease_s=15)
                working = Drain(spool, Corpus(corpus), batch=64)
                say("began")
                working.run()

            return work

        first = JetSpool("jobs", reach, replicas=3, lease_s=15)
        wait_until(lambda: _accepted(first, "first"), 60)
        producers = [child(produce(number)) for number in range(2)]
        drains = [child(drain(tmp_path / "corpus.jsonl")) for _ in range(2)]
        for each in producers + drains:
            each.first()
        names = {"first"}
        for number in range(kills):
            victim = chance.choice(servers)
            victim.kill()
            time.sleep(chance.uniform(0.3, 1.5))  # how long it is away is the experiment
            victim.start()
            wait_until(lambda id=f"after-{number}": _accepted(first, id), 60)
            names.add(f"after-{number}")
        said = [each.kill() for each in producers]
        names |= {name for words in said for word in words if isinstance(word, list) for name in word}
        acknowledged = len(names)

        def rest() -> int:
            told = by_hand(first).stats()
            return told.queue + told.in_flight

        wait_until(lambda: rest() == 0, 100)
        for each in drains:
            each.kill()
        poison = by_hand(first).stats().poison
        first.close()
    found = Counter(ids(tmp_path / "corpus.jsonl"))
    missing = names - set(found)
    print(f"counts: kills={kills} acknowledged={acknowledged} missing={len(missing)} poison={poison}")
    assert acknowledged > 20 * kills
    assert not missing and poison == 0
    assert max(found.values()) == 1


# ------------------------------------------------------------------ power cuts


def _cut(tmp_path: Path, sync: str, child: Any) -> tuple[int, int]:
    """Acknowledged events, and how many of them are gone after a power cut under the broker."""
    home = tmp_path / sync
    home.mkdir()
    with loop_disk("ext4", home) as disk:
        made = Broker(home / "broker", sync=sync, data=disk.path / "data").start()
        try:

            def produce(say: Say) -> None:
                spool = JetSpool("jobs", made.reach)
                for number in range(1_000_000):
                    spool.enqueue(event(number, body="x" * 300))
                    say(number)

            producer = child(produce)
            wait_until(lambda: len(producer.said()) > 150)
            said = [number for number in producer.said() if isinstance(number, int)]
            disk.shut_down()
            producer.kill()
        finally:
            made.kill()
        disk.mount_again()
        try:
            made.start()
            with JetSpool("jobs", made.reach) as spool:
                found = {int(item.event["id"]) for item in spool.lease_many(100_000)}
        finally:
            made.kill()
    return len(said), len(set(said) - found)


def test_a_power_cut_takes_acknowledged_events_from_a_broker_with_the_default_and_none_with_sync_always(
    tmp_path: Path, child: Any
) -> None:
    """SPOOL-02, SPOOL-08: `sync_interval: always` is what we start and document; 2m is the default of NATS."""
    acknowledged, lost = _cut(tmp_path, "always", child)
    assert acknowledged > 150 and lost == 0
    by_default, lost_by_default = _cut(tmp_path, "2m", child)
    print(f"counts: always={acknowledged} lost={lost} default={by_default} lost={lost_by_default}")
    assert lost_by_default > 0


# ------------------------------------------------------------------ other programs


def test_another_program_may_send_events_and_names_are_no_paths(server: Broker, tmp_path: Path) -> None:
    """A message without our headers is an event, and a name from outside never leaves the folder of leases."""
    with JetSpool("jobs", server.reach, folder=tmp_path / "here") as spool:
        spool.recover()
        body = json.dumps(event("foreign")).encode()
        spool.run(lambda link: link.ask("jobs.queue.any.word", body), "send")
        headers = {"Watchbill-Name": "../../../escaped.jsonl"}
        spool.run(lambda link: link.ask("jobs.queue.other", body, headers), "send")
        from watchbill.spool.term import term_for

        for _ in range(2):
            leased = by_hand(spool).lease_out(term_for(60))
            assert leased is not None and (tmp_path / "here/leased") in leased[0].parents
            assert leased[0].resolve() == leased[0]


def test_a_child_after_a_fork_has_a_connection_of_its_own(server: Broker, child: Any) -> None:
    with JetSpool("jobs", server.reach) as spool:
        spool.enqueue(event("parent"))
        born = child(lambda say: say(spool.enqueue(event("child"))))
        assert "~0.jsonl" in str(born.join()[0])
        assert {item.event["id"] for item in spool.lease_many(10)} == {"parent", "child"}


def test_the_library_is_imported_only_for_a_spool_on_nats() -> None:
    """A git hook pays for neither an event loop nor the client of a broker."""
    code = "import sys, watchbill.spool.drain, watchbill.runtime.spools; print('nats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
