"""The corpus: appended once, byte for byte, durable on return; damage is found, kept and mended."""

import fcntl
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchbill.spool import Corpus, SpoolBroken, SpoolFull, ids, reader

MUTATIONS = int(os.environ.get("WATCHBILL_MUTATIONS", "300"))


def pairs(*ids: str) -> list[tuple[str, bytes]]:
    return [(each, json.dumps({"id": each}).encode()) for each in ids]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "corpus.jsonl"


def test_each_id_is_appended_once_across_appenders_and_restarts(path: Path) -> None:
    """SPOOL-07: in one batch, in the next, in another appender, after a restart, and without the id files."""
    first, second = Corpus(path), Corpus(path)
    assert first.append(pairs("a", "b", "a")).appended == 2
    assert second.append(pairs("b", "c")).appended == 1
    assert first.append(pairs("c", "d")).duplicates == 1
    first.close()
    second.close()
    again = Corpus(path)
    assert again.append(pairs("a", "b", "c", "d")).duplicates == 4
    again.close()
    for file in path.with_name("corpus.jsonl.ids").iterdir():
        file.unlink()
    again = Corpus(path)
    assert again.append(pairs("d", "e")).appended == 1
    again.close()
    assert [line.id for line in reader.read(path)] == ["a", "b", "c", "d", "e"]


def test_an_id_index_cut_anywhere_costs_no_duplicate(path: Path) -> None:
    """SPOOL-07: a kill in the middle of a write of the index; what it lacks is read in the corpus."""
    with Corpus(path) as corpus:
        corpus.append(pairs("a", "b", "c"))
        corpus.append(pairs("d", "e"))
    (index,) = path.with_name("corpus.jsonl.ids").iterdir()
    lines, whole = path.read_bytes(), index.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(lines)
        index.write_bytes(whole[:cut])
        for new in ("f", "g"):  # each a restart; the second one reads what the first one wrote behind the cut
            with Corpus(path) as again:
                done = again.append(pairs("a", "b", "c", "d", "e", new))
            assert (cut, new, done.appended, done.duplicates) == (cut, new, 1, 5)


def test_an_index_with_a_lost_page_costs_no_duplicate(path: Path) -> None:
    """SPOOL-07, R1: after a power cut a stretch of an unsynced file may be zeros."""
    with Corpus(path) as corpus:
        for number in range(20):
            corpus.append(pairs(f"{number}"))
    (index,) = path.with_name("corpus.jsonl.ids").iterdir()
    whole = index.read_bytes()
    for start in range(0, len(whole), 37):
        index.write_bytes(whole[:start] + b"\0" * 64 + whole[start + 64 :])
        with Corpus(path) as again:
            assert again.append(pairs(*(f"{number}" for number in range(20)))).appended == 0


def test_ids_that_a_killed_appender_did_not_note_are_noted_by_the_next(
    path: Path, child: Callable[..., Any]
) -> None:
    """SPOOL-07: killed between the corpus and its index; the next appender knows, and so does the one after it."""

    def die_before_the_index(say: Callable[[object], None]) -> None:
        def die(*_: object, **__: object) -> int:
            os._exit(9)

        corpus = Corpus(path)
        corpus.append(pairs("a"))
        ids.open_shared = die
        corpus.append(pairs("b"))
        say("survived")

    assert child(die_before_the_index).join() == []
    with Corpus(path) as second:
        assert second.append(pairs("c")).appended == 1
    with Corpus(path) as third:
        assert third.append(pairs("a", "b", "c")).duplicates == 3
    assert [line.id for line in reader.read(path, unique=False)] == ["a", "b", "c"]


def test_the_number_one_and_the_text_one_are_two_ids(path: Path) -> None:
    """SPOOL-07: no event is left out for the id of another one; in one batch, in the next, and after a restart."""
    number, text = (1, b'{"id": 1}'), ("1", b'{"id": "1"}')
    with Corpus(path) as corpus:
        assert corpus.append([number, text, number]).appended == 2
        assert corpus.append([text, number]).duplicates == 2
    for file in path.with_name("corpus.jsonl.ids").iterdir():
        file.unlink()
    with Corpus(path) as again:
        assert again.append([number, text]).duplicates == 2
    assert [line.id for line in reader.read(path)] == [1, "1"]
    assert (reader.check(path).events, reader.check(path).duplicates) == (2, 0)


def test_id_files_of_another_corpus_are_not_believed(path: Path) -> None:
    """SPOOL-07: a corpus that was taken away is filled anew; a duplicate is allowed, a loss is not."""
    corpus = Corpus(path)
    corpus.append(pairs("a", "b", "c"))
    corpus.close()
    path.unlink()
    corpus = Corpus(path)
    assert corpus.append(pairs("a")).appended == 1
    corpus.close()


def test_ids_of_a_corpus_that_was_taken_away_never_come_back(path: Path) -> None:
    """SPOOL-07: not even when the new corpus has grown beyond the old one: what it does not hold is appended."""
    with Corpus(path) as old:
        old.append(pairs("a", "b", "c"))
    path.unlink()
    with Corpus(path) as new:
        new.append(pairs("d", "e", "f", "g"))
    with Corpus(path) as restarted:
        assert restarted.append(pairs("a", "b", "c", "d")).appended == 3
    assert [line.id for line in reader.read(path)] == ["d", "e", "f", "g", "a", "b", "c"]


def test_a_torn_tail_is_cut_and_kept(path: Path, tmp_path: Path) -> None:
    """R8: cut at the next append, the bytes kept with their offset; a whole line that lacks only its newline
    gets it."""
    corpus = Corpus(path, quarantine=tmp_path / "poison")
    corpus.append(pairs("a"))
    with open(path, "ab") as file:
        file.write(b'{"id": "torn, wi')
    corpus.append(pairs("b"))
    with open(path, "ab") as file:
        file.write(b'{"id": "whole"}')
    assert corpus.append(pairs("whole", "c")).duplicates == 1
    corpus.close()
    assert [line.id for line in reader.read(path)] == ["a", "b", "whole", "c"]
    (torn,) = (tmp_path / "poison").glob("*.torn")
    assert torn.read_bytes() == b'{"id": "torn, wi'
    reason = json.loads(torn.with_name(torn.name + ".reason.json").read_text())
    assert reason["offset"] == len(b'{"id": "a"}\n')


def test_two_processes_append_without_mixing_lines(path: Path, child: Callable[..., Any]) -> None:
    """SPOOL-04: several drains, one file; every line is whole and every id is there once."""

    def work(name: str) -> Callable[[Callable[[object], None]], None]:
        def append(say: Callable[[object], None]) -> None:
            corpus = Corpus(path)
            for number in range(60):
                corpus.append(pairs(f"{name}{number}", f"both{number}"))

        return append

    for each in [child(work("x")), child(work("y"))]:
        each.join()
    report = reader.check(path)
    assert (report.events, report.duplicates, report.bad) == (180, 0, 0)


def test_a_full_disk_leaves_the_corpus_as_it_was(small_disk: Callable[[str], Path]) -> None:
    """R4: SpoolFull, nothing half written, and the same appender goes on when there is room."""
    folder = small_disk("size=256k")
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    corpus = Corpus(folder / "corpus.jsonl")
    corpus.append(pairs("a"))
    before = corpus.path.read_bytes()
    big = [("big", json.dumps({"id": "big", "t": "x" * 200_000}).encode())]
    with pytest.raises(SpoolFull):
        corpus.append(big)
    assert corpus.path.read_bytes() == before
    ballast.unlink()
    assert corpus.append(big).appended == 1
    corpus.close()


def test_a_failed_sync_takes_its_lines_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: after EIO the lines are not in the file, the descriptor is not synced again, and the retry appends
    them: a duplicate that was never durable would be a loss."""
    corpus = Corpus(path)
    corpus.append(pairs("a"))
    real, failed = os.fdatasync, []

    def fail_once(fd: int) -> None:
        if not failed:
            failed.append(os.fstat(fd).st_ino)
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fail_once)
    with pytest.raises(SpoolBroken):
        corpus.append(pairs("b"))
    assert [line.id for line in reader.read(path)] == ["a"]
    assert corpus.append(pairs("b")).appended == 1
    corpus.close()


def test_a_duplicate_is_synced_before_it_is_trusted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-07: another appender may have died between its write and its sync; our acknowledgement must not
    rest on bytes that only the page cache has."""
    corpus = Corpus(path)
    corpus.append(pairs("a"))
    with open(path, "ab") as file:
        file.write(b'{"id": "b"}\n')
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(fd) or real(fd))
    assert corpus.append(pairs("b")).duplicates == 1
    assert synced
    corpus.close()


def test_check_names_every_bad_line_and_repair_keeps_it(path: Path, tmp_path: Path) -> None:
    """R8: check, repair, check again; what was taken out can be read where it was put."""
    path.parent.mkdir()
    path.write_bytes(b'{"id": "a"}\n{"id": NaN}\n\xff\xfe\n{"id": "a"}\n\n{"id": "b"}\n{"id": "to')
    report = reader.check(path)
    assert (report.events, report.duplicates, report.bad, report.torn_tail) == (2, 1, 3, True)
    assert [bad.offset for bad in report.records] == [12, 24, 52]
    reader.repair(path, quarantine=tmp_path / "kept")
    assert reader.check(path).is_clean
    assert [line.id for line in reader.read(path, unique=False)] == ["a", "a", "b"]
    (kept,) = (tmp_path / "kept").glob("*.removed.jsonl")
    removed = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [bytes.fromhex(each["hex"]) for each in removed] == [b'{"id": NaN}', b"\xff\xfe", b'{"id": "to']
    reader.repair(path, unique=True)
    assert [line.id for line in reader.read(path, unique=False)] == ["a", "b"]
    assert reader.count(path) == 2
    assert reader.tail(path, 1) == [b'{"id": "b"}']
    assert reader.tail(path, 0) == []


def test_an_event_that_only_lacks_its_newline_is_read_and_never_taken_out(path: Path) -> None:
    """R8: readers and repair judge the last line as the appender does."""
    path.parent.mkdir()
    path.write_bytes(b'{"id": "a"}\nrubbish\n{"id": "b"}')
    assert [line.id for line in reader.read(path)] == ["a", "b"]
    report = reader.repair(path)
    assert (report.bad, report.torn_tail) == (1, False)
    assert path.read_bytes() == b'{"id": "a"}\n{"id": "b"}\n'


def test_repair_replaces_nothing_but_a_file(path: Path, tmp_path: Path) -> None:
    """R8: a link stays a link, a pipe a pipe; what a link points to stays as it is."""
    path.parent.mkdir()
    path.write_bytes(b"rubbish\n")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    os.mkfifo(pipe)
    for each in (link, pipe):
        with pytest.raises(ValueError, match="only a regular file"):
            reader.repair(each)
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert path.read_bytes() == b"rubbish\n"


def test_a_repair_locks_the_file_that_has_the_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: while it waited another repair may have put a new file in place, to which a drain appends by now."""
    path.parent.mkdir()
    path.write_bytes(b"rubbish\n")
    newer = path.with_name("newer")
    newer.write_bytes(b'rubbish\n{"id": "a"}\n')
    wanted, locked, lock = newer.stat().st_ino, list[int](), fcntl.flock

    def late(fd: int, how: int) -> None:
        if newer.exists():
            newer.rename(path)
        if how & fcntl.LOCK_EX:
            locked.append(os.fstat(fd).st_ino)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    reader.repair(path)
    assert locked[-1] == wanted
    assert path.read_bytes() == b'{"id": "a"}\n'


def test_an_appender_follows_a_repair(path: Path) -> None:
    """SPOOL-04: the file that a repair puts in place is the one that the next append writes to."""
    corpus = Corpus(path)
    corpus.append(pairs("a"))
    with open(path, "ab") as file:
        file.write(b"rubbish\n")
    reader.repair(path)
    assert corpus.append(pairs("a", "b")).appended == 1
    corpus.close()
    assert path.read_bytes() == b'{"id": "a"}\n{"id": "b"}\n'


def test_random_damage_costs_only_the_lines_it_hits(path: Path) -> None:
    """R8: mutations of a corpus: every line that was not hit is read, no line is made up, repair ends clean."""
    path.parent.mkdir()
    chance = random.Random(8)
    lines = [line for _, line in pairs(*(f"event-{number}" for number in range(40)))]
    whole = b"\n".join(lines) + b"\n"
    for _ in range(MUTATIONS):
        data = bytearray(whole)
        start = chance.randrange(len(data))
        length = chance.randrange(1, 60)
        data[start : start + length] = chance.randbytes(length)
        path.write_bytes(data)
        untouched = set(bytes(data[:start]).split(b"\n")[:-1]) | set(
            bytes(data[start + length :]).split(b"\n")[1:-1]
        )
        read = [line.line for line in reader.read(path)]
        assert untouched <= set(read)
    reader.repair(path)
    assert reader.check(path).is_clean
