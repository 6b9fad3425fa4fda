"""The contract of a spool, whichever way it stores events: files and JetStream pass the same tests (SPOOL-08)."""

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.eventually import wait_until
from support.nats_server import Broker, broker
from watchbill.spool import (
    Corpus,
    Drain,
    KeySigner,
    KeyVerifier,
    LeaseLost,
    PoisonEvent,
    Spool,
    SpoolBroken,
    State,
    make_key,
)
from watchbill.spool.backend import AnySpool
from watchbill.spool.by_hand import by_hand
from watchbill.spool.faults import EventRefused
from watchbill.spool.jetstream import JetSpool
from watchbill.spool.names import stem_of
from watchbill.spool.term import term_for

NUMBERS = itertools.count()
Make = Callable[..., AnySpool]
LEASE_S = 1.5


def event(number: object) -> dict[str, Any]:
    return {"id": str(number), "kind": "note", "ts": 0}


@pytest.fixture(scope="module")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(params=["files", "nats"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the same new spool, as often as it is called."""
    opened: list[AnySpool] = []
    name = f"t{os.getpid()}_{next(NUMBERS)}"
    reach = request.getfixturevalue("one_broker").reach if request.param == "nats" else None

    def open_spool(**more: Any) -> AnySpool:
        if reach is None:
            spool: AnySpool = Spool(tmp_path / "spool", **more)
        else:
            spool = JetSpool(name, reach, folder=tmp_path / "spool", lease_s=LEASE_S, **more)
        opened.append(spool)
        return spool

    yield open_spool
    for each in opened:
        each.close()


def told(spool: AnySpool) -> tuple[int, int, int, int]:
    """Events that wait, are in flight, are done, are poison."""
    counted = by_hand(spool).stats()
    return counted.queue, counted.in_flight, counted.done, counted.poison


def ids(corpus: Path) -> list[str]:
    return [json.loads(line)["id"] for line in corpus.read_text().splitlines()]


class TestContract:
    """What every spool does."""

    def test_events_come_in_the_order_of_arrival_and_unaltered(self, make: Make) -> None:
        """SPOOL-02, SPOOL-03, SPOOL-07: bytes in, the same bytes out, oldest first."""
        spool = make()
        spool.enqueue(b'{"id": "1",  "kind":"note"}')
        names = spool.enqueue_many([event(2), event(3)])
        assert len(set(names)) == 2
        items = spool.lease_many(10)
        assert items[0].lines[0] == b'{"id": "1",  "kind":"note"}'
        assert [item.event["id"] for item in items] == ["1", "2", "3"]
        assert told(spool)[:2] == (0, 3)
        spool.done_many(items)
        assert spool.lease() is None
        wait_until(lambda: told(spool) == (0, 0, 3, 0))

    def test_a_leased_event_has_one_owner(self, make: Make) -> None:
        """SPOOL-03: what one worker has leased, no other gets."""
        one, other = make(), make()
        one.enqueue_many([event(number) for number in range(20)])
        mine, theirs = one.lease_many(5), other.lease_many(50)
        assert len(mine) == 5 and len(theirs) == 15
        assert not {item.name for item in mine} & {item.name for item in theirs}

    def test_used_attempts_are_listed_while_the_event_waits(self, make: Make) -> None:
        """SPOOL-06, SPOOL-08: on NATS an event that had failed twice was listed as one that was never tried, and lost
        its count when it was poisoned by hand."""
        spool = make()
        spool.enqueue_many([event(number) for number in range(3)])
        first = spool.lease()
        assert first is not None
        spool.fail(first, ValueError("not yet"))
        hand = by_hand(spool)
        assert sorted(entry.attempt for entry in hand.entries(State.QUEUE)) == [0, 0, 1]
        listed, total = hand.by_age(State.QUEUE, limit=1)
        assert [entry.name for entry in listed] == [first.name] and total == 3
        (entry,) = hand.beginning(stem_of(first.name))
        assert (entry.name, entry.attempt, entry.state) == (first.name, 1, State.QUEUE)
        hand.poison(entry, "enough")
        (given_up,) = hand.entries(State.POISON)
        assert given_up.attempt == 1
        assert given_up.reason is not None and given_up.reason["name"] == first.name

    def test_a_lease_that_is_over_is_told_with_what_became_of_its_event(self, make: Make) -> None:
        """SPOOL-08: on NATS a shell worker that came too late learned only that it was too late."""
        spool = make()
        hand = by_hand(spool)
        for settle, became in (
            (hand.finish, "is finished"),
            (lambda path: hand.release(hand.find_leased(path), holder=True), "waits in the queue"),
            (lambda path: hand.poison(hand.find_leased(path), "bad", holder=True), "was given up"),
        ):
            spool.enqueue(event(became))
            leased = hand.lease_out(term_for(60))
            assert leased is not None
            settle(leased[0])
            with pytest.raises(LeaseLost, match=became):
                hand.find_leased(leased[0])
            for entry in list(hand.entries(State.QUEUE)):
                hand.poison(entry, "out of the way")
        with pytest.raises(LeaseLost, match="name a path that `spool dequeue` printed"):
            hand.find_leased(leased[0].with_name(leased[0].name.replace("1", "2")))

    def test_a_release_uses_up_no_attempt_and_a_failure_does(self, make: Make) -> None:
        """SPOOL-03, SPOOL-06: three attempts in all, then poison with the reason."""
        spool = make()
        spool.enqueue(event(1))
        for _ in range(4):
            with pytest.raises(KeyboardInterrupt), spool.dequeue() as item:  # noqa: PT012
                assert item is not None and item.attempt == 1
                raise KeyboardInterrupt
        for attempt in (1, 2, 3):
            item = wait_until(spool.lease)
            assert item.attempt == attempt
            assert spool.fail(item, ValueError("no luck")) is (attempt == 3)
        assert wait_until(lambda: told(spool) == (0, 0, 0, 1))
        entry = next(by_hand(spool).entries(State.POISON))
        assert entry.reason["reason"] == "retries exhausted: ValueError: no luck"
        assert entry.attempt == 3

    @pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
    def test_an_event_whose_end_cannot_be_stored_goes_to_others(
        self, make: Make, fails: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SPOOL-03, SPOOL-05: the `with` block was over and its event still leased, by a worker that lived and had
        forgotten it: it waited until the worker ended."""

        def refuse(*_: object) -> None:
            raise SpoolBroken("not now")

        spool, other = make(), make()
        spool.enqueue(event(1))
        monkeypatch.setattr(spool, "done", refuse)
        monkeypatch.setattr(spool, "fail", refuse)

        def work() -> None:
            with spool.dequeue() as item:
                assert item is not None
                if fails:
                    raise ValueError("the work")

        with pytest.raises(SpoolBroken, match="not now"):
            work()
        assert spool.in_flight_here == 0
        wait_until(lambda: told(other) == (1, 0, 0, 0))
        again = other.lease()
        assert again is not None and again.attempt == 1, "the disk or the broker failed, not the work"

    def test_poison_is_shown_and_put_back_with_all_attempts(self, make: Make) -> None:
        """SPOOL-06."""
        spool = make()
        name = spool.enqueue(event("bad"))
        with pytest.raises(PoisonEvent), spool.dequeue():
            raise PoisonEvent("never")
        hand = by_hand(spool)
        entry = hand.beginning(name.partition("~")[0][:25])[0]
        assert (entry.state, entry.reason["reason"], entry.events) == (State.POISON, "never", 1)
        assert json.loads(hand.show(entry)) == event("bad")
        hand.requeue(entry)
        item = wait_until(spool.lease)
        assert (item.attempt, item.event["id"]) == (1, "bad")
        spool.done(item)
        wait_until(lambda: told(spool) == (0, 0, 1, 0))

    def test_an_event_that_is_no_event_goes_to_poison_and_blocks_nothing(self, make: Make) -> None:
        """SPOOL-06: refused at the door, and at the lease where another program put it past the door."""
        spool = make()
        with pytest.raises(EventRefused):
            spool.enqueue(b"[]")
        foreign(spool, "foreign", b"not json")
        spool.enqueue(event("good"))
        item = spool.lease()
        assert item is not None and item.event["id"] == "good"
        assert spool.given_up == 1 and told(spool)[3] == 1

    def test_a_settled_lease_cannot_be_settled_again(self, make: Make) -> None:
        """SPOOL-03."""
        spool = make()
        spool.enqueue(event(1))
        item = spool.lease()
        assert item is not None
        spool.release(item)
        again = wait_until(spool.lease)
        for settle in (spool.done, spool.release, lambda old: spool.poison(old, "x")):
            with pytest.raises(LeaseLost):
                settle(item)
        spool.done(again)

    def test_a_bundle_is_leased_as_one_and_its_bad_lines_are_split_out(self, make: Make) -> None:
        """SPOOL-06: counts are of events."""
        spool = make()
        spool.enqueue_many([event(1), event(2), event(3)], bundle=True)
        assert told(spool)[0] == 3
        item = spool.lease()
        assert item is not None and [each["id"] for each in item.events] == ["1", "2", "3"]
        spool.done(item)
        foreign(spool, "1794902544293566080-0123456789abcdef.n2~0.bundle", b'{"id":"4"}\nbroken', bundle=True)
        item = wait_until(spool.lease)
        assert [each["id"] for each in item.events] == ["4"]
        assert spool.given_up == 1
        spool.done(item)
        wait_until(lambda: told(spool)[3] == 1)

    def test_the_drain_appends_each_id_once(self, make: Make, corpus: Path) -> None:
        """SPOOL-04, SPOOL-07: duplicates, schema, poison; the same drain for both."""
        spool = make()
        spool.enqueue_many([event(1), event(2), event(1), {"id": "no kind"}])
        report = Drain(spool, Corpus(corpus)).run_once()
        assert (report.appended, report.duplicates, report.poisoned) == (2, 1, 1)
        assert ids(corpus) == ["1", "2"]
        wait_until(lambda: told(spool) == (0, 0, 3, 1))

    def test_an_event_that_was_leased_before_is_drained_alone(self, make: Make) -> None:
        """SPOOL-06: an event that kills its worker does not affect others."""
        spool = make()
        spool.enqueue_many([event(number) for number in range(6)])
        items = spool.lease_many(3)
        spool.fail(items[1], ValueError("once"))
        spool.done_many([items[0], items[2]])
        sizes = []
        while batch := spool.lease_many(10, retries_alone=True):
            sizes.append([item.attempt for item in batch])
            spool.done_many(batch)
        assert [2] in sizes and sum(map(len, sizes)) == 4
        assert all(len(each) == 1 for each in sizes if 2 in each)

    def test_a_worker_hears_an_arrival(self, make: Make) -> None:
        """SPOOL-04: a wait ends when something arrives, and when it is woken."""
        spool, producer = make(), make()
        spool.wait(0.01)
        began = time.monotonic()
        thread = threading.Thread(target=lambda: producer.enqueue(event(1)))
        thread.start()
        assert spool.wait(60)
        thread.join()
        assert wait_until(spool.lease) is not None
        spool.wait(0)
        waker = threading.Timer(0.05, spool.wake)
        waker.start()
        spool.wait(60)
        assert time.monotonic() - began < 50

    def test_only_one_worker_has_the_turn(self, make: Make) -> None:
        """SPOOL-04: `ordered` is one worker at a time on the whole spool."""
        one, other = make(), make()
        assert one.take_turn() and one.take_turn()
        assert not other.take_turn()
        one.let_turn_go()
        assert wait_until(other.take_turn)

    def test_signatures_go_with_their_events(self, make: Make, corpus: Path, tmp_path: Path) -> None:
        """SPOOL-11: signed events are drained, others go to poison."""
        pytest.importorskip("cryptography")
        make_key(tmp_path / "private.pem", tmp_path / "public.pem")
        make(signer=KeySigner(tmp_path / "private.pem")).enqueue(event("signed"))
        make().enqueue(event("unsigned"))
        verifier = KeyVerifier([tmp_path / "public.pem"])
        report = Drain(make(), Corpus(corpus), verifier=verifier).run_once()
        assert (report.appended, report.poisoned, ids(corpus)) == (1, 1, ["signed"])

    def test_a_shell_worker_leases_a_path_and_settles_it(self, make: Make) -> None:
        """SPOOL-03: done, renew, fail and release by the path, from another process."""
        spool = make()
        spool.enqueue_many([event(0), event(1)])
        hand = by_hand(spool)
        leased = hand.lease_out(term_for(600))
        assert leased is not None
        path = leased[0]
        assert json.loads(path.read_bytes())["id"] == "0"
        assert told(spool)[:2] == (1, 1)
        later = by_hand(make())
        assert later.renew(path, term_for(600)) == path
        later.finish(path)
        assert not path.exists()
        for settle in (later.finish, later.find_leased, lambda gone: later.fail(gone, "late")):
            with pytest.raises(LeaseLost):
                settle(path)
        for attempt in (1, 2, 3):
            leased = wait_until(lambda: hand.lease_out(term_for(600)))
            assert leased[1].event["id"] == "1" and leased[1].attempt == attempt
            assert later.fail(leased[0], "no") is (State.POISON if attempt == 3 else State.QUEUE)
        spool.enqueue(event(2))
        leased = wait_until(lambda: hand.lease_out(term_for(600)))
        later.release(later.find_leased(leased[0]), holder=True)
        assert wait_until(lambda: told(spool) == (1, 0, 1, 1))

    def test_a_shell_lease_that_is_over_goes_to_another_worker(self, make: Make) -> None:
        """SPOOL-05: its path never names the later lease."""
        spool = make()
        spool.enqueue(event(1))
        path, _ = wait_until(lambda: by_hand(spool).lease_out(term_for(0.01)))
        other = make()

        def again() -> Any:
            other.recover()
            return other.lease()

        item = wait_until(again)
        assert item.attempt == 2
        with pytest.raises(LeaseLost):
            by_hand(spool).finish(path)
        other.done(item)

    def test_a_list_shows_where_events_are(self, make: Make) -> None:
        """SPOOL-01: states, attempts, order, totals."""
        spool = make()
        spool.enqueue_many([event(number) for number in range(5)])
        spool.poison(spool.lease_many(1)[0], "bad")
        spool.done(spool.lease_many(1)[0])
        held = spool.lease()
        assert held is not None
        found, total = by_hand(spool).by_age(limit=2)
        assert len(list(found)) == 2 and total == 5
        states = [entry.state for entry in by_hand(spool).by_age()[0]]
        assert sorted(state.value for state in states) == sorted(
            ["queue", "queue", "queue-done", "queue-in-flight", "queue-poison"]
        )
        waiting, total = by_hand(spool).by_age(State.QUEUE)
        assert len(list(waiting)) == 2 and total == 2
        flying, total = by_hand(spool).by_age(State.IN_FLIGHT)
        assert [entry.name for entry in flying] == [held.name] and total == 1
        removed = by_hand(spool).collect(keep_done_s=0, compact=False)
        assert removed.removed in (0, 1)  # files of today are kept

    def test_an_event_in_flight_is_put_back_by_force_only(self, make: Make) -> None:
        """SPOOL-03."""
        one, other = make(), make()
        one.enqueue(event(1))
        held = one.lease()
        assert held is not None
        hand = by_hand(other)
        entry = hand.beginning(held.name.partition("~")[0], State.IN_FLIGHT)[0]
        with pytest.raises(Exception, match="--force"):
            hand.release(entry)
        hand.release(entry, force=True)
        item = wait_until(other.lease)
        assert item.attempt == 1
        with pytest.raises(LeaseLost):
            one.fail(held, ValueError("late"))
        other.done(item)

    def test_a_closed_spool_says_so(self, make: Make) -> None:
        spool = make()
        spool.enqueue(event(1))
        spool.close()
        with pytest.raises(ValueError, match="closed"):
            spool.enqueue(event(2))


def foreign(spool: AnySpool, name: str, content: bytes, *, bundle: bool = False) -> None:
    """Another program puts something into the queue, without asking Watchbill."""
    if isinstance(spool, JetSpool):
        stem = name.partition("~")[0]
        subject = f"{spool.streams.name}.queue.{stem}"
        headers = {"Watchbill-Name": f"{name}.jsonl"} if bundle else None
        spool.run(lambda link: link.ask(subject, content, headers), "play a foreign producer")
    else:
        (spool.path / "queue" / f"{name}.jsonl").write_bytes(content + b"\n")
