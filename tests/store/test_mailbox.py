"""Mailboxes: whole messages or none, each for one taker, and nobody is led elsewhere."""

import contextlib
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from watchbill.files.atomic import NotAFile
from watchbill.files.mailbox import Box

BYTES_MAX = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "box"
    made.mkdir()
    return made


def test_messages_are_listed_in_the_order_of_their_names_and_drafts_are_not(folder: Path) -> None:
    with Box(folder) as box:
        for name in ("b", "c", "a", ".draft"):
            (folder / name).write_text(name)
        assert (box.names(10), box.names(2)) == (["a", "b", "c"], ["a", "b"])


def test_a_message_is_for_one_of_those_who_try(folder: Path) -> None:
    """A taker acts when it has removed the message; of two that race, exactly one does."""
    names = [f"{number:03d}" for number in range(300)]
    taken: list[str] = []
    with Box(folder) as box:
        for name in names:
            box.put(name, b"do it")

        def take() -> None:
            with Box(folder) as own:
                taken.extend([name for name in names if own.remove(name)])

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(taken) == names


def test_a_message_that_a_full_disk_refuses_is_not_there_in_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:10])

    with Box(folder) as box:
        box.put("a", b"old")
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            box.put("a", b"more than ten bytes")
        assert (box.read("a", BYTES_MAX), os.listdir(folder)) == (b"old", ["a"])


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "large"])
def test_what_is_no_small_file_is_no_message(folder: Path, tmp_path: Path, kind: str) -> None:
    """R50: told at once, without following or waiting."""
    (tmp_path / "secret").write_text("secret")
    match kind:
        case "symlink":
            (folder / "evil").symlink_to(tmp_path / "secret")
        case "fifo":
            os.mkfifo(folder / "evil")
        case "folder":
            (folder / "evil").mkdir()
        case _:
            (folder / "evil").write_bytes(b"x" * (BYTES_MAX + 1))
    with Box(folder) as box, pytest.raises(NotAFile):
        box.read("evil", BYTES_MAX)


def test_a_box_stays_the_folder_that_was_opened(folder: Path, tmp_path: Path) -> None:
    """Who owns the folder above cannot turn the reader's writes elsewhere later on."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Box(folder) as box:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(elsewhere)
        box.put("answer", b"yes")
        assert box.holds("answer")
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            Box(folder)
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"), Box(tmp_path) as above:
            Box(Path("box"), within=above)
    assert os.listdir(elsewhere) == []
    assert os.listdir(tmp_path / "moved") == ["answer"]


def test_a_box_has_one_reader(folder: Path) -> None:
    with Box(folder) as first, Box(folder) as second:
        first.lock()
        with pytest.raises(BlockingIOError):
            second.lock()
        first.close()
        second.lock()


def test_old_messages_go_while_senders_withdraw_theirs(folder: Path) -> None:
    """One that is withdrawn between the listing and the look at it ends nothing."""
    for number in range(3_000):
        (folder / f"{number:05d}").touch()
        os.utime(folder / f"{number:05d}", (0, 0))
    (folder / "young").touch()
    (folder / "a folder").mkdir()

    def withdraw() -> None:
        for name in sorted(os.listdir(folder), reverse=True):
            if name.isdigit():
                with contextlib.suppress(FileNotFoundError):
                    (folder / name).unlink()

    thread = threading.Thread(target=withdraw)
    with Box(folder) as box:
        thread.start()
        while thread.is_alive():
            box.clean(3600)
        thread.join()
        box.clean(3600)
    assert sorted(os.listdir(folder)) == ["a folder", "young"]


def test_a_synced_message_survives_a_power_cut(disk: Any, child: Any) -> None:
    """R1: what was put with `sync` is there, whole."""
    folder = disk.path / "box"
    folder.mkdir()

    def send(say: Any) -> None:
        with Box(folder) as box:
            for number in range(100_000):
                box.put(f"{number:06d}", b"x" * 500, sync=True)
                say(f"{number:06d}")

    process = child(send)
    process.first()
    sent = process.said()
    disk.shut_down()
    process.kill()
    disk.mount_again()
    with Box(folder) as box:
        assert all(box.read(str(name), BYTES_MAX) == b"x" * 500 for name in sent)
