"""Small files that are replaced: the old content or the new one, and nothing left beside them."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchbill.files.atomic import create_file, move_file, replace_file, write_file_durable, writing

Write = Callable[[Path, bytes], None]
REPLACING = [replace_file, write_file_durable]


def write_in_pieces(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    with writing(draft) as file:
        for start in range(0, len(data), 1000):
            file.write(data[start : start + 1000])
    move_file(draft, path)


@pytest.mark.parametrize("replace", REPLACING)
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: Write, call: str
) -> None:
    path = tmp_path / "file"
    replace(path, b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            replace(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])


def test_a_draft_whose_writer_gives_up_is_removed(tmp_path: Path) -> None:
    def give_up() -> None:
        with writing(tmp_path / "draft") as file:
            file.write(b"a piece")
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        give_up()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("replace", [*REPLACING, write_in_pieces])
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, child: Any, replace: Write
) -> None:
    path = tmp_path / "file"
    contents = [letter * 100_000 for letter in (b"a", b"b")]
    replace(path, contents[0])

    def work(say: Any) -> None:
        say("begun")
        while True:
            for each in contents:
                replace(path, each)

    for _ in range(10):
        process = child(work)
        process.first()
        process.kill()
        assert path.read_bytes() in contents


def test_a_writer_that_is_killed_often_leaves_nothing_after_its_next_write(tmp_path: Path) -> None:
    """A draft under a new name each time would fill the folder in the course of years."""
    path = tmp_path / "file"
    (tmp_path / ".file.new").write_text("what a killed one had written so far, and more than comes now")
    replace_file(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["file"])


def test_a_draft_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / ".file.new").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_text() == "mine"


def test_a_private_file_is_for_its_owner_only(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        replace_file(tmp_path / "one", b"secret")
        create_file(tmp_path / "two", b"secret")
    finally:
        os.umask(previous)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("one", "two")} == {0o600}


def test_a_file_that_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    create_file(path, b"first")
    with pytest.raises(FileExistsError):
        create_file(path, b"second")
    assert path.read_bytes() == b"first"

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="No space"):
        create_file(tmp_path / "half", b"text")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("replace", [*REPLACING, write_in_pieces])
def test_a_replaced_file_survives_a_power_cut(disk: Any, child: Any, replace: Write) -> None:
    """R1: the last content that was acknowledged, or the one after it."""
    path = disk.path / "file"

    def work(say: Any) -> None:
        for number in range(100_000):
            replace(path, b"%d %s" % (number, b"x" * 3_000))
            say(number)

    process = child(work)
    process.first()
    said = process.said()
    disk.shut_down()
    process.kill()
    disk.mount_again()
    number, _, rest = path.read_bytes().partition(b" ")
    assert int(number) >= int(str(said[-1]))
    assert rest == b"x" * 3_000


def test_the_error_of_a_rename_whose_reply_was_lost_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network mount has carried it out and answers with an error: that error counts, not that the draft is gone."""
    path, real = tmp_path / "file", os.rename

    def lose(*names: Any, **folders: Any) -> None:
        real(*names, **folders)
        raise OSError(errno.EIO, "the reply was lost")

    monkeypatch.setattr(os, "rename", lose)
    with pytest.raises(OSError, match="the reply was lost"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"new"
