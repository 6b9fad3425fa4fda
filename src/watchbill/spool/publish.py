"""Visible files: how an event appears in queue/, whole or not at all.

Every file is written in the writer's own `.tmp` folder and renamed. While no more than a few thousand wait, they lie
flat in queue/, where `ls` shows them all. Beyond that the writer fills buckets, folders of 4,096, so that the oldest
event is found without listing a million names, and a large batch is written into a hidden folder of its own that
appears with a single rename. Once most are consumed, new files lie flat again. With `sync` each file and each folder is
on stable storage before `publish` returns.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from itertools import islice

from watchbill.files.atomic import make_subfolder, write_file
from watchbill.files.owner import Owner
from watchbill.spool.layout import FOLDER, Layout
from watchbill.spool.limits import (
    BUCKET_FILES_MAX,
    FLAT_FILES_MAX,
    FLAT_LOOK_EVERY,
    FOLDER_BATCH_MIN,
)
from watchbill.spool.log import Record
from watchbill.spool.names import Stamps

__all__ = ["SIGNATURE_SUFFIX", "Publisher"]

SIGNATURE_SUFFIX = ".sig.json"


class Publisher:
    """Makes the visible files of one writer. Thread-safe."""

    def __init__(self, layout: Layout, owner: Owner, stamps: Stamps, *, sync: bool) -> None:
        self._layout = layout
        self._owner = owner
        self._stamps = stamps
        self._sync = sync
        self._lock = threading.Lock()
        self._bucket = ""  # with its slash; "" while files lie flat
        self._room = 0  # files that fit into the bucket
        self._look_in = 0  # files until the waiting ones are counted again
        self._folders_for = 0  # files that batches may put into their own folders before the next count

    def publish(self, records: Sequence[Record], shown: list[str], *, sync: bool = False) -> None:
        """Make these files visible; `shown` grows by the path below queue/ of each event that is.

        With `sync` they are durable, too, whatever the mode. Raises OSError at the first failure; `shown` then holds
        the files that are visible.
        """
        plain: list[Record] = []
        signatures: list[Record] = []
        for record in records:
            (signatures if record.name.endswith(SIGNATURE_SUFFIX) else plain).append(record)
        sync = sync or self._sync
        if signatures:
            self._publish_signatures(signatures, sync)
        if len(plain) >= FOLDER_BATCH_MIN and not self._fits_flat(len(plain)):
            self._publish_folders(plain, shown, sync)
        else:
            self._publish_files(plain, shown, sync)
            if sync:
                self._sync_queue_folders(shown)
        if self._layout.is_shared:
            # A file that is gone from our folder was shown, unless another host has given us up and removed it.
            self._owner.refuse_if_ended()

    def take_back(self, shown: Sequence[str]) -> None:
        """Remove files that were shown before the rest failed. A file that was leased meanwhile stays leased."""
        for path in shown:
            with contextlib.suppress(OSError):  # the caller says that nothing was acknowledged
                os.unlink(path, dir_fd=self._layout.queue_fd)

    def _publish_files(self, records: Sequence[Record], shown: list[str], sync: bool) -> None:
        """Write all files, then show them one by one: a full disk fails before any of them is visible."""
        written: list[str] = []
        shown_before = len(shown)
        try:
            for record in records:
                write_file(record.name, record.content + b"\n", dir_fd=self._owner.fd, sync=sync)
                written.append(record.name)
            for name in written:
                shown.append(self._show(name))
        except OSError:
            for name in written[len(shown) - shown_before :]:
                with contextlib.suppress(OSError):  # the next start sweeps the folder
                    os.unlink(name, dir_fd=self._owner.fd)
            raise

    def _show(self, name: str) -> str:
        target = self._place() + name
        try:
            self._layout.give(name, target, src_dir_fd=self._owner.fd, dst_dir_fd=self._layout.queue_fd)
        except FileNotFoundError:
            # Our bucket was removed by hand; a consumer only removes buckets that are not used any more.
            target = self._place(fresh=True) + name
            self._layout.give(name, target, src_dir_fd=self._owner.fd, dst_dir_fd=self._layout.queue_fd)
        return target

    def _publish_folders(self, records: Sequence[Record], shown: list[str], sync: bool) -> None:
        """Write a batch into hidden folders and show each folder with one rename."""
        for first in range(0, len(records), BUCKET_FILES_MAX):
            part = records[first : first + BUCKET_FILES_MAX]
            folder = f"{part[0].name[:36]}.n{len(part)}"
            self._write_folder(folder, part, sync)
            self._layout.give(folder, folder, src_dir_fd=self._owner.fd, dst_dir_fd=self._layout.queue_fd)
            shown += [f"{folder}/{record.name}" for record in part]
        if sync:
            os.fsync(self._layout.queue_fd)

    def _write_folder(self, folder: str, records: Sequence[Record], sync: bool) -> None:
        make_subfolder(folder, dir_fd=self._owner.fd, exist_ok=False)
        fd = os.open(folder, FOLDER, dir_fd=self._owner.fd)
        try:
            for record in records:
                write_file(record.name, record.content + b"\n", dir_fd=fd, sync=sync)
            if sync:
                os.fsync(fd)
        except OSError:
            for name in os.listdir(fd):
                os.unlink(name, dir_fd=fd)
            os.rmdir(folder, dir_fd=self._owner.fd)
            raise
        finally:
            os.close(fd)

    def _publish_signatures(self, records: Sequence[Record], sync: bool) -> None:
        """Write the signatures first: an event must not be visible before its signature."""
        folder = self._layout.signatures
        if not folder.is_dir():
            make_subfolder(folder)
        with self._layout.entered(folder.name) as target:
            for record in records:
                write_file(record.name, record.content + b"\n", dir_fd=self._owner.fd, sync=sync)
                self._layout.give(record.name, record.name, src_dir_fd=self._owner.fd, dst_dir_fd=target)
        if sync:
            self._sync_folder(self._layout.root_fd, folder.name)
            os.fsync(self._layout.root_fd)

    def _sync_queue_folders(self, paths: Sequence[str]) -> None:
        for bucket in {path.rpartition("/")[0] for path in paths} - {""}:
            self._sync_folder(self._layout.queue_fd, bucket)
        os.fsync(self._layout.queue_fd)

    @staticmethod
    def _sync_folder(dir_fd: int, name: str) -> None:
        fd = os.open(name, FOLDER, dir_fd=dir_fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _place(self, *, fresh: bool = False) -> str:
        """Return the folder (with its slash) for the next file; "" is queue/ itself."""
        with self._lock:
            if fresh:
                self._bucket, self._room = self._new_bucket(), BUCKET_FILES_MAX
            elif self._look_in <= 0 or (self._bucket and self._room <= 0):
                self._look()
            self._room -= 1
            self._look_in -= 1
            return self._bucket

    def _fits_flat(self, count: int) -> bool:
        """Whether a batch of this size may lie flat. If so, it is counted."""
        with self._lock:
            if self._folders_for > 0:
                self._folders_for -= count
                return False
            if self._look_in < count:
                self._look(count)
            fits = not self._bucket and self._look_in >= count
            if not fits:
                self._look_in, self._folders_for = 0, FLAT_LOOK_EVERY
            return fits

    def _look(self, count: int = 1) -> None:
        """Choose between flat files and a bucket, by how many wait."""
        bound = FLAT_FILES_MAX // 2 if self._bucket else FLAT_FILES_MAX
        with os.scandir(self._layout.queue_fd) as entries:
            waiting = sum(1 for _ in islice(entries, bound + 1))
        if waiting + count <= bound:
            self._bucket, self._look_in = "", max(FLAT_LOOK_EVERY, count)
            return
        if count > 1:
            return  # too many for this batch; single files look for themselves
        self._look_in = FLAT_LOOK_EVERY
        if not self._bucket or self._room <= 0:
            self._bucket, self._room = self._new_bucket(), BUCKET_FILES_MAX

    def _new_bucket(self) -> str:
        name = f"{self._stamps.take():019d}-{self._owner.name}"
        try:
            make_subfolder(name, dir_fd=self._layout.queue_fd, exist_ok=False)
        except OSError as error:
            if error.errno == errno.EMLINK:  # too many folders for this file system: lie flat instead
                return ""
            raise
        return name + "/"
