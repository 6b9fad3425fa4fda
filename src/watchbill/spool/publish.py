"""Visible files: how an event appears in queue/, whole or not at all.

Every file is written under the writer's own `.tmp` folder and renamed. While few files wait they lie flat in
queue/; past some thousand the writer fills buckets, folders of 4,096, so that the oldest event can be found
without listing a million names. A large batch is written into a hidden folder of its own and appears with a
single rename. With `sync` each file and each folder is on stable storage before `publish` returns.
"""

import errno
import os
import threading
from collections.abc import Sequence
from itertools import islice

from watchbill.spool.atomic import make_subfolder, write_file
from watchbill.spool.layout import Layout
from watchbill.spool.limits import (
    BUCKET_FILES_MAX,
    FLAT_FILES_MAX,
    FLAT_LOOK_EVERY,
    FOLDER_BATCH_MIN,
)
from watchbill.spool.log import Record
from watchbill.spool.names import Stamps
from watchbill.spool.owner import Owner

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
        self._bucket = ""
        self._room = 0

    def publish(self, records: Sequence[Record], shown: list[str], *, sync: bool = False) -> None:
        """Make these files visible; `shown` grows by the path below queue/ of each event that is.

        With `sync` they are durable, too, whatever the mode. Raises OSError at the first failure; `shown` then says
        how far it came.
        """
        plain: list[Record] = []
        signatures: list[Record] = []
        for record in records:
            (signatures if record.name.endswith(SIGNATURE_SUFFIX) else plain).append(record)
        sync = sync or self._sync
        if signatures:
            self._publish_signatures(signatures, sync)
        if len(plain) >= FOLDER_BATCH_MIN:
            self._publish_folders(plain, shown, sync)
            return
        for record in plain:
            shown.append(self._publish_one(record, sync))
        if sync:
            self._sync_queue_folders(shown)

    def _publish_one(self, record: Record, sync: bool) -> str:
        name, temporary = record.name, self._owner.fd
        write_file(name, record.content + b"\n", dir_fd=temporary, sync=sync)
        target = self._place() + name
        try:
            os.rename(name, target, src_dir_fd=temporary, dst_dir_fd=self._layout.queue_fd)
        except FileNotFoundError:
            # Somebody removed our bucket by hand; a consumer only removes buckets that were superseded.
            target = self._place(fresh=True) + name
            os.rename(name, target, src_dir_fd=temporary, dst_dir_fd=self._layout.queue_fd)
        return target

    def _publish_folders(self, records: Sequence[Record], shown: list[str], sync: bool) -> None:
        """Write a batch into hidden folders and show all of each with one rename."""
        for first in range(0, len(records), BUCKET_FILES_MAX):
            part = records[first : first + BUCKET_FILES_MAX]
            folder = f"{part[0].name[:36]}.n{len(part)}"
            self._write_folder(folder, part, sync)
            os.rename(folder, folder, src_dir_fd=self._owner.fd, dst_dir_fd=self._layout.queue_fd)
            shown += [f"{folder}/{record.name}" for record in part]
        if sync:
            os.fsync(self._layout.queue_fd)

    def _write_folder(self, folder: str, records: Sequence[Record], sync: bool) -> None:
        make_subfolder(folder, dir_fd=self._owner.fd, exist_ok=False)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._owner.fd)
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
        """Signatures come first: an event must not be seen before what proves it."""
        folder = self._layout.signatures
        if not folder.is_dir():
            make_subfolder(folder)
        for record in records:
            write_file(record.name, record.content + b"\n", dir_fd=self._owner.fd, sync=sync)
            target = f"{folder.name}/{record.name}"
            os.rename(record.name, target, src_dir_fd=self._owner.fd, dst_dir_fd=self._layout.root_fd)
        if sync:
            self._sync_folder(self._layout.root_fd, folder.name)
            os.fsync(self._layout.root_fd)

    def _sync_queue_folders(self, paths: Sequence[str]) -> None:
        for bucket in {path.rpartition("/")[0] for path in paths} - {""}:
            self._sync_folder(self._layout.queue_fd, bucket)
        os.fsync(self._layout.queue_fd)

    @staticmethod
    def _sync_folder(dir_fd: int, name: str) -> None:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _place(self, *, fresh: bool = False) -> str:
        """Return the folder (with its slash) for the next file; "" is queue/ itself."""
        with self._lock:
            if fresh:
                self._bucket, self._room = self._new_bucket(), BUCKET_FILES_MAX
            elif self._room <= 0:
                self._bucket, self._room = self._choose()
            self._room -= 1
            return self._bucket

    def _choose(self) -> tuple[str, int]:
        with os.scandir(self._layout.queue_fd) as entries:
            waiting = sum(1 for _ in islice(entries, FLAT_FILES_MAX + 1))
        if waiting > FLAT_FILES_MAX:
            return self._new_bucket(), BUCKET_FILES_MAX
        return "", FLAT_LOOK_EVERY

    def _new_bucket(self) -> str:
        name = f"{self._stamps.take():019d}-{self._owner.name}"
        try:
            make_subfolder(name, dir_fd=self._layout.queue_fd, exist_ok=False)
        except OSError as error:
            if error.errno == errno.EMLINK:  # too many folders for this file system: lie flat instead
                return ""
            raise
        return name + "/"
