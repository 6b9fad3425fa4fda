"""Once: an event is in the corpus or in poison, never in both, however often its workers are killed (SPOOL-07)."""

import functools
import itertools
import json
import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from watchbill.spool import Appended, Corpus, Drain, PoisonEvent, Spool, State, entries, reader, stats
from watchbill.spool.corpora import are_in_corpora
from watchbill.spool.events import Id

Say = Callable[[object], None]
KINDS = ("note", "mark")


class DeadlyCorpus(Corpus):
    """Its process does not survive an append: the events are in the file, and their leases are not settled."""

    def append(self, events: Sequence[tuple[Id, bytes]]) -> Appended:
        super().append(events)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it survived")


def event(number: int | str, kind: str = "note") -> dict[str, object]:
    return {"id": str(number), "kind": kind, "ts": 1}


def stored(*files: Path) -> list[str]:
    return [str(line.id) for file in files if file.exists() for line in reader.read(file, unique=False)]


def poisoned(spool: Spool) -> list[str]:
    return [
        json.loads(line)["id"]
        for entry in entries(spool, State.POISON)
        for line in entry.path.read_text().splitlines()
    ]


#: Where a try ends: after the lease, in the handler of the operator, or between the corpus and the end of the lease.
DEATHS = ("leased", "handled", "stored")


def die(path: Path, corpora: dict[str, Path], where: str, child: Callable[..., Any]) -> None:
    """One try of a drain that is killed there."""

    def work(_: Say) -> None:
        def handle(_: dict[str, Any]) -> None:
            if where == "handled":
                os.kill(os.getpid(), signal.SIGKILL)

        make = DeadlyCorpus if where == "stored" else Corpus
        with Spool(path) as spool:
            if where == "leased":
                spool.lease()
                os.kill(os.getpid(), signal.SIGKILL)
            Drain(spool, {kind: make(file) for kind, file in corpora.items()}, handle=handle).run_once()

    child(work).join()


@pytest.mark.parametrize("deaths", list(itertools.product(DEATHS, repeat=3)), ids="-".join)
def test_an_event_is_in_the_corpus_or_in_poison_whichever_way_its_three_tries_end(
    path: Path, corpus: Path, child: Callable[..., Any], deaths: tuple[str, ...]
) -> None:
    """SPOOL-06, SPOOL-07, R9: what reached the corpus in one of its tries is done; what never did is given up."""
    with Spool(path) as spool:
        spool.enqueue(event(1))
    for where in deaths:
        die(path, {"*": corpus}, where, child)
    with Spool(path) as spool:
        Drain(spool, Corpus(corpus)).run_once()
        arrived = "stored" in deaths
        assert (stored(corpus), poisoned(spool)) == ((["1"], []) if arrived else ([], ["1"]))
        assert stats(spool).done == arrived


@pytest.mark.parametrize(("last", "kept"), [("leased", 1), ("stored", 1), ("handled", 0)])
def test_a_recovery_without_a_corpus_asks_the_one_that_the_drain_has_noted(
    path: Path, corpus: Path, child: Callable[..., Any], last: str, kept: int
) -> None:
    """SPOOL-07: of a shell's `dequeue` beside a drain that was killed; it gave up what the corpus had."""
    with Spool(path) as spool:
        spool.enqueue(event(1))
    deaths = ("stored", "leased", "leased") if last == "leased" else ("leased", "leased", last)
    for where in deaths:
        die(path, {"*": corpus}, where, child)
    with Spool(path) as spool:
        recovered = spool.recover()
        assert (recovered.returned, recovered.poisoned) == (kept, 1 - kept)
        Drain(spool, Corpus(corpus)).run_once()
        assert (stored(corpus), poisoned(spool)) == ((["1"], []) if kept else ([], ["1"]))


def test_a_noted_corpus_is_only_read(path: Path, corpus: Path) -> None:
    """R31: who may write to a spool may note any file; what is no corpus, or not there, is passed over."""
    other = corpus.with_name("not mine")
    other.write_bytes(b'x\n{"id": "1"}\nno newline')
    with Spool(path) as spool:
        layout = spool.layout
        (path / ".corpora").write_bytes(b"/dev/zero\nrelative\n\0\n%b\n%b\n" % (bytes(other), bytes(corpus)))
        assert are_in_corpora(layout, [b"", b'{"id": "1"}'])
        assert not are_in_corpora(layout, [b"", b'{"id": "2"}', b"no newline"])
        (path / ".corpora").unlink()
        (path / ".corpora").symlink_to(other)
        assert not are_in_corpora(layout, [b'{"id": "1"}'])
    assert other.read_bytes().endswith(b"no newline") and not corpus.exists()


def test_what_is_in_the_corpus_already_is_not_given_up_for_its_handler(
    path: Path, corpus: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-07: the corpus has it, so another try of it cannot end in poison."""
    with Spool(path) as spool:
        spool.enqueue(event(1))
    die(path, {"*": corpus}, "stored", child)

    def refuse(_: dict[str, Any]) -> None:
        raise PoisonEvent("not today")

    with Spool(path) as spool:
        report = Drain(spool, Corpus(corpus), handle=refuse).run_once()
        assert (stored(corpus), poisoned(spool)) == (["1"], [])
        assert (report.duplicates, report.poisoned, stats(spool).done) == (1, 0, 1)


def test_a_bundle_that_was_stored_in_part_is_stored_whole(
    path: Path, tmp_path: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-07: its workers died between one corpus and the next, three times."""
    corpora = {kind: tmp_path / f"{kind}.jsonl" for kind in KINDS}
    with Spool(path) as spool:
        spool.enqueue_many([event(1, "note"), event(2, "mark")], bundle=True)
    for _ in range(3):
        die(path, corpora, "stored", child)
    with Spool(path) as spool:
        Drain(spool, {kind: Corpus(file) for kind, file in corpora.items()}).run_once()
        assert (sorted(stored(*corpora.values())), poisoned(spool)) == (["1", "2"], [])
        assert stats(spool).done == 2  # a bundle counts as its events


def test_a_bad_line_of_a_bundle_is_in_poison_once_however_often_the_bundle_is_tried(
    path: Path, corpus: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-07: the bundle's next try finds the line where the last one left it."""
    with Spool(path) as spool:
        spool.enqueue_many([event(1), {"id": "bad"}, event(3)], bundle=True)
    for _ in range(2):
        die(path, {"*": corpus}, "stored", child)
    with Spool(path) as spool:
        Drain(spool, Corpus(corpus)).run_once()
        assert (stored(corpus), poisoned(spool)) == (["1", "3"], ["bad"])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.timeout(300)
def test_drains_that_are_killed_at_random_leave_every_event_in_one_place(
    path: Path, corpus: Path, child: Callable[..., Any], seed: int
) -> None:
    """SPOOL-02, SPOOL-07: two drains at a time, killed after a random number of events, for twelve rounds."""
    chance = random.Random(seed)
    with Spool(path) as spool:
        for first in range(0, 60, 10):
            spool.enqueue_many([event(first + each) for each in range(5)], bundle=chance.random() < 0.5)
            spool.enqueue_many([event(first + 5 + each) for each in range(5)])

    def work(lives: int, where: str, _: Say) -> None:
        left = itertools.count(lives, -1)

        def handle(_: dict[str, Any]) -> None:
            if where == "handled" and next(left) <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        class Mortal(Corpus):
            def append(self, events: Sequence[tuple[Id, bytes]]) -> Appended:
                told = super().append(events)
                if where == "stored" and next(left) <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return told

        with Spool(path) as mine:
            Drain(mine, Mortal(corpus), handle=handle, batch=chance.randint(1, 8)).run_once()

    for _ in range(12):
        lives = [(chance.randint(0, 6), chance.choice(DEATHS[1:])) for _ in range(2)]
        born = [child(functools.partial(work, *life)) for life in lives]
        for each in born:
            each.join()
    with Spool(path) as spool:
        Drain(spool, Corpus(corpus)).run_once()
        places = stored(corpus) + poisoned(spool)
        assert sorted(places, key=int) == [str(number) for number in range(60)]
        assert (stats(spool).queue, stats(spool).in_flight) == (0, 0)
