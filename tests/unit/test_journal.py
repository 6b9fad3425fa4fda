"""The journal: every line arrives or is counted as lost, nothing forges a line, nobody waits for the disk."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eventually import wait_until
from watchbill.catalog import JournalRules
from watchbill.core.messages import AlertKind, JournalEvent, Note
from watchbill.errors import LaneFull
from watchbill.journal import Journal, json_line, markdown_line
from watchbill.limits import JOURNAL_BUFFER_LINES_MAX, JOURNAL_SUBSCRIBER_LINES_MAX, JOURNAL_SUBSCRIBERS_MAX

KEYS = ["t", "event", "model", "device", "reason", "ms", "bytes", "request"]
WAIT_S = 20
LOAD = Note(
    JournalEvent.LOAD,
    "asked for by a request",
    model="smollm2",
    device="ram",
    ms=850,
    bytes=98_000_000,
    request="r-1",
)


class Disk:
    """A place for journals that can be made to refuse and to recover."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self._open: list[Journal] = []

    def journal(self, file_bytes_max: int = 10**6) -> Journal:
        journal = Journal(
            self.folder, JournalRules(), clock=lambda: 1_700_000_000.5, warn=self.warnings.append,
            file_bytes_max=file_bytes_max, sync_ms=10,
        )  # fmt: skip
        self._open.append(journal)
        return journal

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def rows(self) -> list[str]:
        return (self.folder / "queue_log.md").read_text().splitlines()[4:]

    def close(self) -> None:
        for journal in self._open:
            journal.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = Disk(tmp_path)
    yield place
    place.close()


def note(text: str) -> Note:
    return Note(JournalEvent.LOAD, text)


def test_every_decision_is_in_both_files_with_its_reason(disk: Disk) -> None:
    """RES-26: Markdown for people, JSON lines for scripts."""
    journal = disk.journal()
    journal.write(LOAD)
    assert journal.flush(WAIT_S)
    (event,) = disk.events()
    assert list(event) == KEYS
    assert event == {
        "t": "2023-11-14T22:13:20.500Z", "event": "load", "model": "smollm2", "device": "ram",
        "reason": "asked for by a request", "ms": 850, "bytes": 98_000_000, "request": "r-1",
    }  # fmt: skip
    assert disk.rows() == [
        "| 2023-11-14T22:13:20.500Z | load | smollm2 | ram | asked for by a request | 850 ms | 98 MB | r-1 |"
    ]


def test_an_alert_names_its_kind_for_scripts_and_for_people(disk: Disk) -> None:
    """RES-26: scripts read a field of its own; people read it before the text."""
    journal = disk.journal()
    journal.write(Note(JournalEvent.ALERT, "nothing happened", alert=AlertKind.SILENCE))
    assert journal.flush(WAIT_S)
    (event,) = disk.events()
    assert (event["alert"], event["reason"]) == ("silence", "silence: nothing happened")
    assert "| silence: nothing happened |" in disk.rows()[0]


def test_the_paths_are_the_operators(tmp_path: Path) -> None:
    """RES-26: paths are configurable, relative to the root."""
    journal = Journal(tmp_path, JournalRules(markdown="logs/q.md", events=str(tmp_path / "elsewhere.jsonl")))
    journal.write(LOAD)
    journal.close()
    assert (tmp_path / "logs/q.md").exists() and (tmp_path / "elsewhere.jsonl").exists()


def test_a_restart_goes_on_where_the_last_run_ended(disk: Disk) -> None:
    for number in range(3):
        journal = disk.journal()
        journal.write(note(f"run {number}"))
        journal.close()
    assert [event["reason"] for event in disk.events()] == ["run 0", "run 1", "run 2"]
    assert len(disk.rows()) == 3


@pytest.mark.parametrize("zeros", [0, 5_000])
@pytest.mark.parametrize("cut", [1, 5, 18])
def test_a_line_that_a_power_cut_has_torn_is_gone(disk: Disk, cut: int, zeros: int) -> None:
    """RES-26: it was closed off with a newline, and `jq` and every other reader of JSON lines ended at it."""
    for number in range(2):
        journal = disk.journal()
        journal.write(note(f"run {number}"))
        journal.close()
        for name, row in (("events.jsonl", b'{"t":"2023-11-14T22:1'), ("queue_log.md", b"| 2023-11-14T22:1")):
            with open(disk.folder / name, "ab") as file:
                file.write(row[:cut] + b"\0" * zeros)
    journal = disk.journal()
    journal.write(LOAD)
    assert journal.flush(WAIT_S)
    assert [event["reason"] for event in disk.events()] == ["run 0", "run 1", LOAD.reason]
    assert len(disk.rows()) == 3 and all(row.startswith("| 2") for row in disk.rows())
    journal.close()


def test_a_text_of_somebody_else_is_not_cut(disk: Disk) -> None:
    """RES-26: the operator names the files, and may name one that has lines of another program."""
    (disk.folder / "events.jsonl").write_bytes(b"a note of mine")
    journal = disk.journal()
    journal.write(LOAD)
    assert journal.flush(WAIT_S)
    foreign, whole = (disk.folder / "events.jsonl").read_text().splitlines()
    assert foreign == "a note of mine" and json.loads(whole)["model"] == "smollm2"


@given(st.lists(st.text(max_size=40), min_size=4, max_size=4))
def test_no_text_breaks_a_line_or_forges_one(texts: list[str]) -> None:
    """P8: a model name or a reason is data, whatever it contains."""
    line: dict[str, object] = dict(zip(["event", "model", "reason", "request"], texts, strict=True))
    line |= {"t": "now", "device": None, "ms": None, "bytes": None}
    row = markdown_line(line).decode()
    assert row.endswith("\n") and len(row.splitlines()) == 1
    unescaped = row.replace("\\\\", "").replace("\\|", "").replace("\\`", "").replace("\\[", "")
    assert unescaped.count("|") == 9 and not {"`", "["} & set(unescaped) and "<" not in row
    assert row.rstrip("\n").isprintable()
    encoded = json_line(line)
    assert encoded.isascii() and encoded.count(b"\n") == 1 and json.loads(encoded) == line


def test_long_texts_are_cut(disk: Disk) -> None:
    journal = disk.journal()
    journal.write(note("x" * 100_000))
    assert journal.flush(WAIT_S)
    assert len(str(disk.events()[0]["reason"])) == 500


def test_files_rotate_and_the_oldest_falls_off(disk: Disk) -> None:
    """RES-26: size-bounded by rotation."""
    journal = disk.journal(file_bytes_max=300)
    for number in range(40):
        journal.write(note(f"{number:03} " + "x" * 200))
        assert journal.flush(WAIT_S)
    names = sorted(path.name for path in disk.folder.glob("events.jsonl*"))
    assert names == ["events.jsonl", *(f"events.jsonl.{number}" for number in range(1, 5))]
    newest = json.loads((disk.folder / "events.jsonl").read_text().splitlines()[-1])
    assert str(newest["reason"]).startswith("039")
    younger = (disk.folder / "events.jsonl.1").read_text()
    older = (disk.folder / "events.jsonl.4").read_text()
    assert json.loads(younger.splitlines()[0])["reason"] > json.loads(older.splitlines()[-1])["reason"]
    assert all(path.stat().st_size < 900 for path in disk.folder.glob("events.jsonl*"))


def refuse_with_a_folder(disk: Disk) -> Callable[[], None]:
    """A folder where the file should be: every open fails until it is taken away."""
    places = [disk.folder / "events.jsonl", disk.folder / "queue_log.md"]
    for place in places:
        place.mkdir()

    def recover() -> None:
        for place in places:
            place.rmdir()

    return recover


def test_a_disk_that_refuses_is_survived_and_tried_again(disk: Disk) -> None:
    """R4: one warning, nothing lost within the bound, nobody waits."""
    recover = refuse_with_a_folder(disk)
    journal = disk.journal()
    for number in range(100):
        journal.write(note(str(number)))
    assert not journal.flush(0.2)
    assert journal.failures > 0 and len(disk.warnings) == 2  # one per file
    recover()
    assert journal.flush(WAIT_S)
    assert [event["reason"] for event in disk.events()] == [str(number) for number in range(100)]
    assert journal.lines_dropped == 0


def test_beyond_the_bound_the_oldest_lines_are_dropped_and_counted(disk: Disk) -> None:
    recover = refuse_with_a_folder(disk)
    journal = disk.journal(file_bytes_max=10**8)
    for number in range(JOURNAL_BUFFER_LINES_MAX + 7):
        journal.write(note(str(number)))
    assert journal.lines_dropped == 7
    recover()
    assert journal.flush(WAIT_S)
    reasons = [event["reason"] for event in disk.events()]
    kept = [str(number) for number in range(7, JOURNAL_BUFFER_LINES_MAX + 7)]
    assert reasons in (kept, ["0", *kept])  # one that was being tried when it was dropped may be written, too


def test_writing_does_not_wait_for_a_disk_that_hangs(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-06: an emergency eviction never waits for a disk."""
    hanging, go_on = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        hanging.set()
        go_on.wait(WAIT_S)

    monkeypatch.setattr("os.fdatasync", hang)
    journal = disk.journal()
    journal.write(LOAD)
    assert hanging.wait(WAIT_S)
    for number in range(1000):  # would never come back if one of them waited
        journal.write(note(str(number)))
    assert not go_on.is_set()
    go_on.set()
    assert journal.flush(WAIT_S) and len(disk.events()) == 1001


def test_a_line_cut_by_a_full_disk_is_taken_back_and_written_whole(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: a short write first, then ENOSPC, as a full disk does."""
    import os

    real, full = os.write, threading.Event()
    full.set()

    def cut(fd: int, piece: bytes | memoryview) -> int:
        data = bytes(piece)
        if not full.is_set() or (not data.startswith(b'{"t"') and b'"event"' not in data):
            return real(fd, data)
        if data.startswith(b'{"t"'):
            return real(fd, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", cut)
    journal = disk.journal()
    journal.write(LOAD)
    assert not journal.flush(0.2) and journal.failures
    # It tries again meanwhile, and takes it back again.
    wait_until(lambda: not (disk.folder / "events.jsonl").read_bytes())
    full.clear()
    assert journal.flush(WAIT_S)
    assert [event["model"] for event in disk.events()] == ["smollm2"]


async def test_listeners_get_every_line_from_now_on(disk: Disk) -> None:
    journal = disk.journal()
    journal.write(note("before"))
    listener = journal.listen()
    journal.write(note("one"))
    journal.write(note("two"))
    assert [(await anext(listener))["reason"] for _ in range(2)] == ["one", "two"]
    journal.close()
    assert [line async for line in listener] == []


async def test_a_listener_that_does_not_keep_up_is_let_go_and_counted(disk: Disk) -> None:
    journal = disk.journal()
    slow, quick = journal.listen(), journal.listen()
    for number in range(JOURNAL_SUBSCRIBER_LINES_MAX + 5):
        journal.write(note(str(number)))
        assert (await anext(quick))["reason"] == str(number)
    assert journal.listeners_dropped == 1
    assert len([line async for line in slow]) == JOURNAL_SUBSCRIBER_LINES_MAX


async def test_listeners_are_bounded_and_leave_their_place_when_they_close(disk: Disk) -> None:
    journal = disk.journal()
    listeners = [journal.listen() for _ in range(JOURNAL_SUBSCRIBERS_MAX)]
    with pytest.raises(LaneFull):
        journal.listen()
    listeners[0].close()
    journal.listen()
    journal.write(LOAD)
    assert journal.listeners_dropped == 0
