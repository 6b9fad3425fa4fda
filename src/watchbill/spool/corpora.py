"""The corpora of a spool: where its drains store events, noted in the spool, so that every recovery can ask them.

    SPOOL/.corpora      one absolute path per line

A drain that was killed may have stored an event that is still leased. When such an event has used up its attempts, the
recovery that decides about it may be that of a shell's `dequeue`, which has no corpus of its own. It looks for the
event's line in the noted files. They are only read, and every program that may write to the spool may note any file:
so nothing of them is ever repaired, locked or told.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from watchbill.files.atomic import NotAFile, open_regular, open_shared, read_regular, write_all
from watchbill.files.disk import DISK_FULL
from watchbill.spool.layout import Layout
from watchbill.spool.limits import CORPORA_BYTES_MAX, CORPORA_NOTED_MAX, IDS_TAIL_BYTES_MAX

__all__ = ["are_in_corpora", "note_corpora"]

NAME = ".corpora"
_CHUNK_BYTES = 4 * 1024 * 1024


def note_corpora(layout: Layout, paths: Iterable[Path]) -> None:
    """Note where a drain stores events, as soon as the disk lets it. Raises OSError."""
    noted = _noted(layout)
    missing = [path for path in paths if path not in noted and "\n" not in str(path)]
    if missing:
        kept = [*noted, *missing][-CORPORA_NOTED_MAX:]
        content = b"".join(os.fsencode(path) + b"\n" for path in kept)
        try:
            _put(layout.root_fd, content)
        except PermissionError:
            return  # the root is another user's
        except OSError as error:
            if error.errno not in DISK_FULL:  # a drain goes on without; its next recovery notes them
                raise


def are_in_corpora(layout: Layout, lines: Iterable[bytes]) -> bool:
    """Whether a noted corpus has one of these lines near its end, where an event that is in flight would be."""
    wanted = [line for line in lines if line]
    return bool(wanted) and any(_has_any(path, wanted) for path in _noted(layout))


def _noted(layout: Layout) -> list[Path]:
    try:
        text = read_regular(NAME, dir_fd=layout.root_fd, bytes_max=CORPORA_BYTES_MAX)
    except (FileNotFoundError, PermissionError, NotAFile):
        return []
    paths = [
        Path(os.fsdecode(line)) for line in text.split(b"\n") if line.startswith(b"/") and b"\0" not in line
    ]
    return paths[:CORPORA_NOTED_MAX]


def _put(root: int, content: bytes) -> None:
    """As readable as a corpus is: in a folder that a group shares, for the group, whatever the umask."""
    draft = f"{NAME}.{os.urandom(4).hex()}.new"
    fd = open_shared(draft, os.O_WRONLY, dir_fd=root)
    try:
        write_all(fd, content)
        os.fsync(fd)
        os.rename(draft, NAME, src_dir_fd=root, dst_dir_fd=root)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=root)
        raise
    finally:
        os.close(fd)


def _has_any(corpus: Path, lines: list[bytes]) -> bool:
    try:
        fd = open_regular(corpus)
    except (OSError, NotAFile):  # whichever errno: it cannot be asked here
        return False
    with open(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - IDS_TAIL_BYTES_MAX))
        rest = b"\n"
        while chunk := file.read(_CHUNK_BYTES):
            text = rest + chunk
            if any(b"\n" + line + b"\n" in text for line in lines):
                return True
            rest = text[-max(map(len, lines)) - 2 :]
    return False
