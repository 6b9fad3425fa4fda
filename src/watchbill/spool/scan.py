"""Which event is next: a listing of queue/ that is read once and then consumed from memory.

Names sort by arrival, so the oldest is found without opening a file. Buckets are listed only when their
time comes: with a million waiting, the first claim reads one listing of queue/ and one bucket. Foreign
names without a time are ordered by the file's own time. A name in here is only a candidate: the worker
that renames it first has leased it. Empty buckets are removed once no writer uses them any more.
"""

import errno
import os
import stat
import time
from collections.abc import Sequence
from operator import itemgetter

from watchbill.spool.layout import Layout
from watchbill.spool.limits import FOLDER_DEPTH_MAX, RESCAN_S
from watchbill.spool.names import is_bucket, is_sealed, ns_of, writer_of

__all__ = ["Candidates"]

#: Sort key (arrival, as 19 digits and more), and the path below queue/.
_Candidate = tuple[str, str]


class Candidates:
    """The names that may be claimed next, oldest first. Not thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._next: list[_Candidate] = []  # newest first: the next one is popped from the end
        self.read_at_s = -RESCAN_S  # when the listing was made
        self.folders: list[str] = []  # folders below queue/ seen by the last listing

    def pop(self, *, rescan: bool = True) -> str | None:
        """Return the path below queue/ of the oldest candidate, or None when nothing waits."""
        fresh = False
        if rescan and time.monotonic() - self.read_at_s > RESCAN_S:
            self._read()
            fresh = True
        while True:
            if not self._next:
                if fresh or not rescan:
                    return None
                self._read()
                fresh = True
                continue
            path = self._next.pop()[1]
            if not path.endswith("/"):
                return path
            self._expand(path)

    def push_back(self, path: str) -> None:
        """Put back the candidate that was popped last; it comes first again."""
        self._next.append((path.rpartition("/")[2], path))

    def forget(self) -> None:
        """Drop the listing: the next pop reads the folder."""
        self._next.clear()
        self.read_at_s = -RESCAN_S

    def _read(self) -> None:
        self.read_at_s = time.monotonic()
        self.folders = []
        self._next = []
        self._add("", os.listdir(self._layout.queue_fd))

    def _add(self, folder: str, names: Sequence[str]) -> None:
        """Merge a folder's names into the order. Names are sorted as plain text first, which is cheap."""
        own: list[str] = []
        other: list[str] = []
        for name in names:
            # A name made by Watchbill sorts by itself.
            if name[19:20] == "-" and name.endswith(".jsonl") and name[:19].isdigit():
                own.append(name)
            elif name[0] != ".":
                other.append(name)
        own.sort(reverse=True)
        found = [(name, folder + name) for name in own]
        if other:
            self._judge(folder, other, found)
        self._next = sorted(found + self._next, key=itemgetter(0), reverse=True) if self._next else found
        if len(found) > len(own) and self._next is found:
            found.sort(key=itemgetter(0), reverse=True)

    def _expand(self, folder: str) -> None:
        """Replace a folder by its files, each at its own place in the order."""
        try:
            fd = os.open(
                folder,
                os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                dir_fd=self._layout.queue_fd,
            )
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return
            if error.errno == errno.EACCES:
                self._layout.barred.note(self._layout.root / "queue" / folder.rstrip("/"), error)
                return
            raise
        try:
            names = os.listdir(fd)
        finally:
            os.close(fd)
        if not names:
            self._remove(folder[:-1])
        elif folder.count("/") <= FOLDER_DEPTH_MAX:
            self._add(folder, names)

    def _judge(self, folder: str, names: Sequence[str], found: list[_Candidate]) -> None:
        """Separate buckets and foreign events from other entries."""
        for name in names:
            if is_bucket(name):
                self.folders.append(folder + name + "/")
                found.append((name, folder + name + "/"))
            else:
                self._judge_foreign(folder, name, found)

    def _judge_foreign(self, folder: str, name: str, found: list[_Candidate]) -> None:
        try:
            status = os.stat(folder + name, dir_fd=self._layout.queue_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode):
            self.folders.append(folder + name + "/")
            # Its files have their own times: list it at once.
            found.append((f"{0:019d}", folder + name + "/"))
        elif name.endswith(".jsonl"):
            arrived = ns_of(name)
            found.append((f"{status.st_mtime_ns if arrived is None else arrived:019d}", folder + name))

    def _remove(self, bucket: str) -> None:
        """Remove an empty bucket if its writer has finished with it. A bucket still in use must stay:
        a writer's fsync of a removed folder would silently sync nothing."""
        if not is_bucket(bucket):
            return
        if not is_sealed(bucket) and not self._is_superseded(bucket):
            return
        try:
            os.rmdir(bucket, dir_fd=self._layout.queue_fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EROFS, errno.EACCES, errno.EPERM):
                raise

    def _is_superseded(self, bucket: str) -> bool:
        writer = writer_of(bucket)
        newer = any(
            f > bucket + "/" and writer_of(f[:-1]) == writer and not is_sealed(f[:-1]) for f in self.folders
        )
        return newer or not (self._layout.temporary / writer).is_dir()
