"""The shared folder as the fleet touches it: a handful of operations, each atomic for everybody who looks.

`Disk` is what the protocol is written against; `FolderDisk` does it on a real folder. Tests have one in memory that
loses what was not synced, loses replies, and stops between any two operations. Paths are relative to the root, with
"/" between their parts, and made by `places` alone.

There is no lock, no `link` and no append by two writers here: a network mount has none of them reliably.
"""

import errno
import glob
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from watchbill.files.atomic import (
    FILE_MODE,
    NotAFile,
    ReplyLost,
    create_file,
    make_folder,
    open_folder,
    open_regular,
    put_file,
    read_regular,
    write_file_durable,
)  # fmt: skip
from watchbill.files.checked_log import CheckedLog, LineReader
from watchbill.files.patterns import matches

__all__ = ["Disk", "FolderDisk", "Log", "is_of_the_path", "move_surely"]

#: What a client answers when it does not know whether the server has carried out a rename.
_REPLY_LOST = frozenset({errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ESTALE})

#: What is wrong with one path: with what lies there, with its name, or with who may use it.
_OF_THE_PATH = frozenset(
    {
        errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EINVAL,
        errno.EEXIST, errno.ENOTEMPTY, errno.ENXIO,
    }
)  # fmt: skip


def is_of_the_path(error: OSError) -> bool:
    """Whether an error is about one path, by what lies there or who may use it. Any other is a fault of the disk."""
    return error.errno in _OF_THE_PATH


class Log(Protocol):
    """A record file that this process made, and that it alone appends to."""

    @property
    def end(self) -> int:
        """How many bytes are acknowledged."""
        ...

    def append(self, payloads: Iterable[bytes]) -> None:
        """Put lines on stable storage, all with one sync. Raises OSError: then none is acknowledged."""
        ...

    def close(self) -> None:
        """Close the file and keep it."""
        ...


class Disk(Protocol):
    """What coordinator and agents do with the shared folder. Everything raises OSError when the disk fails."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder in their order, hidden ones left out; none where there is no folder."""
        ...

    def read(self, path: str, bytes_max: int) -> bytes:
        """Return a small file whole. Raises FileNotFoundError, and NotAFile for what is no file of that size."""
        ...

    def has(self, pattern: str) -> bool:
        """Whether a path, which may be a pattern, names anything. Asks the folder where a cache says no."""
        ...

    def put(self, path: str, data: bytes, *, draft: str = "", durable: bool = False) -> None:
        """Replace a file: the name has the old content or the new one. A draft is written elsewhere first.

        A draft is for a file that others take away: it is there at most once, whatever replies a network mount loses.
        Any other file is written again when one is lost.
        """
        ...

    def take(self, path: str) -> None:
        """Create an empty file and make its name durable. Raises FileExistsError: exactly one process gets it."""
        ...

    def move(self, source: str, target: str) -> None:
        """Rename a file. Raises FileNotFoundError where there is none; so may a rename whose reply was lost."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents, if they are not there; the names are durable."""
        ...

    def create_log(self, path: str) -> Log:
        """Begin a record file. Raises FileExistsError for a name that is taken."""
        ...

    def reopen_log(self, path: str, end: int) -> Log:
        """Go on with a record file that this process made and closed, behind its last line. Raises OSError."""
        ...

    def sync(self, path: str) -> None:
        """Put what is seen of a file on stable storage: its dead writer may not have come to it."""
        ...

    def lines(self, path: str, offset: int, until: int | None = None) -> tuple[list[bytes], int]:
        """Return the next whole lines of a record file, and the offset behind them; none where there is no file.

        Bytes from `until` on do not exist. A long file comes in pieces: ask again until there are no lines.
        """
        ...


def move_surely(disk: Disk, source: str, target: str) -> bool:
    """Rename a file that nobody puts there again; a rename whose reply was lost is repeated. False where it is gone."""
    for last in (False, False, True):
        try:
            disk.move(source, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            if last or error.errno not in _REPLY_LOST:
                raise
        else:
            break
    return True


#: What says that there is no such folder: a file, or a link to itself, in its place counts as none.
_NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class FolderDisk:
    """A real folder. Without `filled` record files grow with each append, as they have to on network mounts."""

    def __init__(self, root: Path, *, filled: bool = True) -> None:
        self._root = root
        self._text = os.fspath(root)  # joined as text: a path object costs more than the call of the kernel
        self._filled = filled

    @property
    def root(self) -> Path:
        """The folder itself."""
        return self._root

    def age_ms(self, path: str) -> int:
        """How old a file is, as far as the clocks agree; 0 where there is none."""
        try:
            return max(0, round((time.time() - (self._root / path).stat().st_mtime) * 1000))
        except FileNotFoundError:
            return 0

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(f"{self._text}/{folder}") if not name.startswith("."))
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
            return []

    def read(self, path: str, bytes_max: int) -> bytes:
        parent, _, name = path.rpartition("/")
        try:
            with open_folder(f"{self._text}/{parent}") as folder:
                return read_regular(name, dir_fd=folder, bytes_max=bytes_max)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
            raise

    def has(self, pattern: str) -> bool:
        # A name that was looked for in vain may be cached by a network mount; a listing asks the server.
        return next(matches(pattern, self._root), None) is not None or _is_listed(self._root, pattern)

    def put(self, path: str, data: bytes, *, draft: str = "", durable: bool = False) -> None:
        try:
            if draft:
                self._put_once(path, draft, data)
            else:
                self._replace_surely(path, data, durable=durable)
        except OSError as error:
            error.filename = f"{self._text}/{path}"  # a disk that is full names no file by itself
            raise

    def _put_once(self, path: str, draft: str, data: bytes) -> None:
        """Each failed try takes its draft away again. Where the draft is gone already the rename was carried out: a
        reader may have moved the file since, and would find a second one."""
        for last in (False, False, True):
            try:
                self._put(path, draft, data)
            except ReplyLost:
                return
            except OSError as error:
                if last or error.errno not in _REPLY_LOST:
                    raise
            else:
                return

    def _replace_surely(self, path: str, data: bytes, *, durable: bool) -> None:
        for last in (False, False, True):
            try:
                self._replace(path, data, durable=durable)
            except OSError as error:
                if last or error.errno not in _REPLY_LOST:
                    raise
            else:
                return

    def _replace(self, path: str, data: bytes, *, durable: bool) -> None:
        target = self._root / path
        if durable:
            write_file_durable(target, data)
        else:
            self._put(path, os.fspath(target.with_name(f".{target.name}.new").relative_to(self._root)), data)

    def _put(self, path: str, draft: str, data: bytes) -> None:
        # Both names are relative to one descriptor of the root, so a draft may lie in another folder.
        with open_folder(self._root) as root:
            put_file(path, draft, data, dir_fd=root, sync=False)

    def take(self, path: str) -> None:
        create_file(self._root / path, b"", mode=FILE_MODE)

    def move(self, source: str, target: str) -> None:
        os.rename(f"{self._text}/{source}", f"{self._text}/{target}")

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._root / path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def make_folder(self, path: str) -> None:
        make_folder(self._root / path, shared_as=self._root)

    def create_log(self, path: str) -> Log:
        return CheckedLog(self._root / path, filled=self._filled)

    def reopen_log(self, path: str, end: int) -> Log:
        return CheckedLog(self._root / path, filled=self._filled, goes_on_at=end)

    def sync(self, path: str) -> None:
        fd = open_regular(self._root / path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lines(self, path: str, offset: int, until: int | None = None) -> tuple[list[bytes], int]:
        reader = LineReader(f"{self._text}/{path}", offset)
        try:
            return reader.read(until), reader.offset
        except FileNotFoundError:
            return [], offset
        except NotAFile as error:
            raise OSError(errno.EINVAL, f"not a record: {error}", path) from error


def _is_listed(root: Path, path: str) -> bool:
    folder, _, name = path.rstrip("/").rpartition("/")
    try:
        is_listed = not glob.has_magic(path) and name in os.listdir(root / folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return is_listed and not (root / path).is_symlink()  # a link that leads somewhere is found by `matches`
