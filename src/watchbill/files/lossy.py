"""Renames on network mounts, which lose replies: a client that sends its request again is told that there is no such
file, although the first one was carried out.

What a client knows of names is cached, also that there is none, so neither a look nor a listing says what is so. Only
the server decides an act that one client can win: a folder is made under the name in question. If it is taken, the
file is there. A folder in place of an event is ignored by everybody who looks meanwhile, except in `queue/`, whose
names any worker may rename: there the question is asked about the source.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Container

from watchbill.files.atomic import rename_noreplace_at_once

__all__ = ["REPLY_LOST", "is_on_server", "move_away", "move_here"]

#: What a client answers when it does not know whether the server has carried out a rename.
REPLY_LOST = frozenset({errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ESTALE})
#: Of these, the ones after which it is tried again: the source may still be there.
_AGAIN = REPLY_LOST - {errno.ENOENT}
_TRIES = 3
#: How long a stale answer about a name in a folder that is there is asked about again.
_STALE_S = 2.0
_STALE_PAUSE_S = 0.002


def move_here(
    source: str,
    target: str,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    new: bool = False,
) -> None:
    """Rename what others may take, too, to a name that only we use: carried out if the target is there.

    With `new` it raises FileExistsError rather than replace a file. Else raises OSError.
    """
    _move(
        lambda: _rename(source, target, src_dir_fd, dst_dir_fd, new),
        lambda: _has_name(target, dst_dir_fd),
        again=_AGAIN,
    )


def move_away(
    source: str,
    target: str,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    new: bool = False,
) -> None:
    """Rename what only we move to a place where others may take it at once: carried out if the source is gone, and the
    folder around it is not. A folder that is gone, or whose descriptor the server has forgotten, says nothing."""
    _move(
        lambda: _rename(source, target, src_dir_fd, dst_dir_fd, new),
        lambda: not _has_name(source, src_dir_fd),
        again=REPLY_LOST,
    )


def _move(rename: Callable[[], None], is_done: Callable[[], bool], *, again: Container[int]) -> None:
    """Renames; where the reply was lost, asks whether it was carried out, and tries again after these errors."""
    for last in range(1, _TRIES + 1):
        try:
            return rename()
        except OSError as error:
            if error.errno not in REPLY_LOST:
                raise
            if is_done():
                return None
            if last == _TRIES or error.errno not in again:
                raise
    return None


def is_on_server(path: str) -> bool:
    """Whether a file, or a folder that is not empty, has this path now, whatever the caches of this client say."""
    try:
        return _has_name(path, None)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):  # the folder around it is gone
            return False
        raise


def _has_name(name: str, dir_fd: int | None) -> bool:
    """Raises OSError if the folder around it is gone."""
    try:
        _make_question(name, dir_fd)
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                return True
    return not _remove_question(name, dir_fd)


def _remove_question(name: str, dir_fd: int | None) -> bool:
    """Return False for a folder with something in it, which is no question. One that stayed would be in the way of the
    file, so it is tried again where the reply was lost."""
    for last in range(1, _TRIES + 1):
        try:
            os.rmdir(name, dir_fd=dir_fd)
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return True
            if last == _TRIES or error.errno not in _AGAIN:
                raise
    return True


def _make_question(name: str, dir_fd: int | None) -> None:
    """Make the folder that decides. ESTALE says that the folder around it is gone, or that this kernel still has the
    thing under its former name and was busy with another rename: then it is so for a moment only."""
    until = time.monotonic() + _STALE_S
    while True:
        try:
            return os.mkdir(name, 0o700, dir_fd=dir_fd)
        except OSError as error:
            if error.errno != errno.ESTALE or not _is_there(dir_fd) or time.monotonic() > until:
                raise
        time.sleep(_STALE_PAUSE_S)


def _is_there(dir_fd: int | None) -> bool:
    try:
        return os.stat(".", dir_fd=dir_fd).st_nlink > 0
    except OSError:
        return False


def _rename(source: str, target: str, src_dir_fd: int | None, dst_dir_fd: int | None, new: bool) -> None:
    if not new:
        return os.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    assert src_dir_fd is not None and dst_dir_fd is not None
    if not rename_noreplace_at_once(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd):
        _link_and_unlink(source, target, src_dir_fd, dst_dir_fd)
    return None


def _link_and_unlink(source: str, target: str, src_dir_fd: int, dst_dir_fd: int) -> None:
    """Rename in two steps, where NFS knows no other way to replace nothing. Either reply may be lost: a link that was
    made shows in the target, which is then the same file, and a name that is gone was removed. A source that stays
    would be leased again after its event was finished."""

    def link() -> None:
        os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=False)

    def unlink() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source, dir_fd=src_dir_fd)

    def is_linked() -> bool:
        return _same_file(source, target, src_dir_fd, dst_dir_fd)

    try:
        _move(link, is_linked, again=_AGAIN)
    except FileExistsError:
        if not is_linked():
            raise
    _move(unlink, lambda: False, again=_AGAIN)


def _same_file(source: str, target: str, src_dir_fd: int, dst_dir_fd: int) -> bool:
    try:
        return os.path.samestat(
            os.stat(source, dir_fd=src_dir_fd, follow_symlinks=False),
            os.stat(target, dir_fd=dst_dir_fd, follow_symlinks=False),
        )
    except FileNotFoundError:
        return False
