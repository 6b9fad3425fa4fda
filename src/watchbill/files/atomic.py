"""Durable writes: the few ways in which files are written and read, and what each one guarantees.

The rules, each found by a power cut: a file is durable after fsync of the file; its name is durable after
fsync of the folder; a rename without the folder's fsync is lost. After a failed fsync the descriptor is
closed and never synced again, because the kernel has dropped the dirty pages and a second fsync would
report success. Nothing here follows a symbolic link or opens anything but a regular file.
"""

import contextlib
import errno
import fcntl
import functools
import os
import re
import stat
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO

__all__ = [
    "FILE_MODE", "PRIVATE_FOLDER_MODE", "PRIVATE_MODE", "NotAFile", "ReplyLost", "create_file", "fsync_folder",
    "is_left_draft", "make_folder", "make_private_folder", "make_subfolder", "move_file", "open_folder",
    "open_regular", "open_shared", "put_file", "pwrite_all", "read_regular", "rename_noreplace",
    "rename_noreplace_at_once", "replace_file", "sync_data", "sync_filesystem", "write_all", "write_file",
    "write_file_durable", "writing",
]  # fmt: skip

#: Shared files and folders belong to their maker and, as far as the umask allows, to the group; never to all.
FILE_MODE = 0o660
FOLDER_MODE = 0o770
#: Files that only their owner may read.
PRIVATE_MODE = 0o600
PRIVATE_FOLDER_MODE = 0o700
_GROUP_BITS = 0o070
_TO_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RENAME_NOREPLACE = 1
_DRAFT = re.compile(r"\..+\.\d+\.[0-9a-f]{8}", re.DOTALL)
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


class NotAFile(Exception):
    """This entry is not a regular file, or too large; the text says which."""


class ReplyLost(OSError):
    """A rename was carried out although the answer was this error, as on a network mount."""


def write_all(fd: int, data: bytes) -> None:
    """Write every byte or raise; a short write (a full disk, a size limit) is continued, not ignored."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def pwrite_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, memoryview(data)[written:], offset + written)


def write_file(
    name: str, data: bytes, *, dir_fd: int, sync: bool = False, mode: int = FILE_MODE, new: bool = False
) -> None:
    """Write a file in a folder that is ours alone; on any error nothing of it stays behind.

    With `new` it raises FileExistsError where anything has that name, and then touches nothing.
    """
    fd = os.open(name, _TO_WRITE | (os.O_EXCL if new else os.O_TRUNC), mode, dir_fd=dir_fd)
    try:
        write_all(fd, data)
        if sync:
            os.fsync(fd)
    except OSError:
        os.unlink(name, dir_fd=dir_fd)
        raise
    finally:
        os.close(fd)


def write_file_durable(path: Path, data: bytes) -> None:
    """Replace a small file: temporary file, fsync, rename, fsync of the folder. Several writers may do so at once.

    A writer that is killed leaves its temporary file behind (`is_left_draft`).
    """
    temporary = f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
    with open_folder(path.parent) as folder:
        put_file(path.name, temporary, data, dir_fd=folder, sync=True)


def is_left_draft(name: str) -> bool:
    """Whether a file has the name of a temporary file of `write_file_durable`: an old one has lost its writer."""
    return _DRAFT.fullmatch(name) is not None


def create_file(path: Path, data: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Create a small file durably, whole or not at all. Raises FileExistsError if the name is taken."""
    with open_folder(path.parent) as folder:
        write_file(path.name, data, dir_fd=folder, sync=True, mode=mode, new=True)
        os.fsync(folder)


def replace_file(path: Path, data: bytes, *, sync: bool = True, mode: int = PRIVATE_MODE) -> None:
    """Replace a small file that has one writer at a time: it holds the old content or the new one, whatever happens.

    Without `sync` that holds after a kill, not after a power cut. The draft always has the same name, so that a writer
    that is killed repeatedly leaves one draft at most, and none after the next write.
    """
    with open_folder(path.parent) as folder:
        put_file(path.name, f".{path.name}.new", data, dir_fd=folder, sync=sync, mode=mode)


def put_file(
    name: str, draft: str, data: bytes, *, dir_fd: int, sync: bool, mode: int = FILE_MODE, new: bool = False
) -> None:
    """Write a file as `draft` and rename it: `name` is there whole or not at all. `new` applies to the draft.

    Raises ReplyLost where the rename was carried out all the same: then it is not durable yet.
    """
    write_file(draft, data, dir_fd=dir_fd, sync=sync, mode=mode, new=new)
    try:
        os.rename(draft, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError as error:
        try:
            os.unlink(draft, dir_fd=dir_fd)
        except FileNotFoundError:
            raise ReplyLost(error.errno, error.strerror, name) from error
        raise
    if sync:
        os.fsync(dir_fd)


@contextlib.contextmanager
def writing(
    path: str | Path, *, dir_fd: int | None = None, sync: bool = True, mode: int = FILE_MODE
) -> Generator[BinaryIO]:
    """Write a draft piece by piece. Its content is durable when the block ends; if the block raises, it is removed.

    The draft's name is one that only this writer uses. `move_file` gives it its final one.
    """
    with open(os.open(path, _TO_WRITE | os.O_TRUNC, mode, dir_fd=dir_fd), "wb") as file:
        try:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path, dir_fd=dir_fd)
            raise


def move_file(source: Path, target: Path) -> None:
    """Rename a file within one file system, durably. A file that has the new name is replaced."""
    os.rename(source, target)
    fsync_folder(target.parent)


def make_folder(path: Path, *, shared_as: Path | None = None) -> None:
    """Make a folder and its parents, each name durable before the next is used. What the group of the folder
    `shared_as` may do there it may do here, too, although a parent that somebody copied to this place says less."""
    missing: list[Path] = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        make_subfolder(folder)
        if shared_as is not None:
            _share_as(folder, shared_as)
        fsync_folder(folder.parent)


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can look into, also where it was there before."""
    make_folder(path)
    path.chmod(PRIVATE_FOLDER_MODE)


def make_subfolder(path: str | Path, *, dir_fd: int | None = None, exist_ok: bool = True) -> None:
    """Make one folder. In a parent with the setgid bit, which a group shares, it gets the parent's group permissions,
    whatever the umask: otherwise other members of the group could not move its files."""
    name = os.fspath(path)
    try:
        os.mkdir(name, FOLDER_MODE, dir_fd=dir_fd)
    except FileExistsError:
        if exist_ok:
            return
        raise
    parent = os.stat(os.path.dirname(name) or ".", dir_fd=dir_fd).st_mode
    if parent & stat.S_ISGID:
        _share_folder(name, parent & _GROUP_BITS, dir_fd)


def _share_as(folder: Path, model: Path) -> None:
    """Give a folder that was just made the group permissions of another one, if that one's group shares it."""
    own, wanted = folder.stat(), model.stat()
    permissions = wanted.st_mode & _GROUP_BITS
    if wanted.st_mode & stat.S_ISGID and own.st_gid == wanted.st_gid and permissions & ~own.st_mode:
        _share_folder(os.fspath(folder), permissions, None)


def _share_folder(name: str, permissions: int, dir_fd: int | None) -> None:
    """Give the group permissions to a folder that was just made. A member of the group may have put a link to a private
    folder in its place meanwhile: then the link's target must not get them."""
    fd = os.open(name, _OWN_FOLDER, dir_fd=dir_fd)
    try:
        os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_ISGID | permissions)
    finally:
        os.close(fd)


def open_shared(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a file that several users write to (a lock, a corpus), or create it. In a folder that a group shares, a
    new file gets the group's write permission. A pipe or a device in its place is an OSError, and never blocks."""
    fd = os.open(
        path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE, dir_fd=dir_fd
    )
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"not a regular file but a {_kind(status.st_mode)}", os.fspath(path))
    wanted = FILE_MODE & _GROUP_BITS
    if status.st_mode & wanted != wanted and status.st_uid == os.geteuid():
        parent = os.stat(os.path.dirname(path) or ".", dir_fd=dir_fd).st_mode
        if parent & stat.S_ISGID:
            os.fchmod(fd, stat.S_IMODE(status.st_mode) | (parent & wanted))
    return fd


@contextlib.contextmanager
def open_folder(path: str | Path, *, own: bool = False, dir_fd: int | None = None) -> Generator[int]:
    """Hold a folder open, for what is done to the files in it. One that only Watchbill makes (`own`) is no link: else
    NotADirectoryError is raised."""
    fd = os.open(path, _OWN_FOLDER if own else os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def fsync_folder(path: Path) -> None:
    with open_folder(path) as fd:
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """Make a file's content durable, and its size if that changed. Never repeat it on a descriptor that failed."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there stops at the drive's cache
    else:
        os.fdatasync(fd)


def sync_filesystem(fd: int) -> None:
    """Make everything on the file system of `fd` durable, or raise."""
    syncfs = getattr(_libc(), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(fd) != 0:
        raise _last_error()


def rename_noreplace(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    """Rename, but raise FileExistsError where plain rename would silently overwrite the target."""
    if rename_noreplace_at_once(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd):
        return
    # link() refuses an existing target on every POSIX file system; a crash between the two leaves the
    # event in both folders, which recovery sees as one event because the name is the same.
    os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=False)
    os.unlink(source, dir_fd=src_dir_fd)


def rename_noreplace_at_once(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> bool:
    """Rename as `rename_noreplace`, in one step. Return False where the file system has no such step, as NFS."""
    call = getattr(_libc(), "renameat2", None)
    if call is None:
        return False
    if call(src_dir_fd, os.fsencode(source), dst_dir_fd, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    error = _last_error(source)
    if error.errno not in _NOT_SUPPORTED:
        raise error
    return False


def read_regular(name: str, *, dir_fd: int | None = None, bytes_max: int, foreign: bool = True) -> bytes:
    """Read a whole regular file. Raise NotAFile for anything else, without ever blocking on it.

    With `foreign`, another program may have put the entry there: then it is checked before it is opened, because
    opening a device can act on it. It is checked again after, because it may have been swapped in between.
    """
    if foreign:
        _judge(os.stat(name, dir_fd=dir_fd, follow_symlinks=False), bytes_max)
    fd = _open_to_read(name, dir_fd)
    try:
        size = _judge(os.fstat(fd), bytes_max)
        data = os.read(fd, size + 1)
        return data if len(data) == size else _read_on(fd, data, bytes_max)
    finally:
        os.close(fd)


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Open a regular file to read it in pieces. Raise NotAFile for anything else, without ever blocking on it."""
    fd = _open_to_read(os.fspath(path), dir_fd)
    if not stat.S_ISREG(kind := os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAFile(f"not a regular file but a {_kind(kind)}")
    return fd


def _open_to_read(name: str, dir_fd: int | None) -> int:
    try:
        return os.open(name, _TO_READ, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise NotAFile("not a regular file") from error
        raise


def _read_on(fd: int, data: bytes, bytes_max: int) -> bytes:
    parts = [data]
    while part := os.read(fd, 1024 * 1024):  # the file grew, or the read was short
        parts.append(part)
        if sum(map(len, parts)) > bytes_max:
            raise NotAFile(f"larger than {bytes_max} bytes")
    return b"".join(parts)


def _judge(status: os.stat_result, bytes_max: int) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise NotAFile(f"not a regular file but a {_kind(status.st_mode)}")
    if status.st_size > bytes_max:
        raise NotAFile(f"{status.st_size} bytes, larger than the limit of {bytes_max}")
    return status.st_size


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO", stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket",
        stat.S_IFBLK: "block device", stat.S_IFCHR: "character device",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "special file")


@functools.cache
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _last_error(name: str | None = None) -> OSError:
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), name)
