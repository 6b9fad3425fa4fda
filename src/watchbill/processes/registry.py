"""The registry: every process tree that this root has started and not yet seen end, one small file each.

A record is written before its process starts and removed when its tree is gone, so there is a record of everything that
a killed daemon leaves behind. A process is identified by pid, start time and boot, because pids are reused. Every
process also carries the root's id in its environment, in case its record is lost or it left its parent.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from watchbill.files.atomic import replace_file
from watchbill.files.host import boot_id, start_time
from watchbill.probes.kernel_files import read_small
from watchbill.processes.limits import ENGINE_RECORD_BYTES_MAX

__all__ = ["ROOT_MARK", "TOKEN_MARK", "Record", "Registry", "marked_pids", "root_id"]

#: Names of environment variables that every process of ours carries.
ROOT_MARK = "WATCHBILL_ROOT_ID"
TOKEN_MARK = "WATCHBILL_PROCESS_TOKEN"


class Record(msgspec.Struct, frozen=True):
    """One started tree. Pids are 0 until they are known."""

    token: str
    label: str  # the model, for people
    boot_id: str
    guard_pid: int = 0
    guard_start_time: int = 0
    pid: int = 0
    start_time: int = 0

    def living_pids(self) -> list[int]:
        """Those of the two recorded processes that are still the same processes."""
        if self.boot_id != boot_id():
            return []
        pairs = ((self.guard_pid, self.guard_start_time), (self.pid, self.start_time))
        return [pid for pid, started in pairs if pid > 0 and start_time(pid) == started]


class Registry:
    """The records of one root, in ROOT/run/engines."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "run" / "engines"

    def write(self, record: Record) -> None:
        """Writes a record whole or not at all. No fsync: after a power cut none of these processes lives."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self.folder / f"{record.token}.json", msgspec.json.encode(record) + b"\n", sync=False)

    def forget(self, token: str) -> None:
        """Removes a record; does nothing when there is none."""
        (self.folder / f"{token}.json").unlink(missing_ok=True)

    def records(self) -> list[Record]:
        """Every readable record, oldest name first. Foreign and broken files are skipped."""
        if not self.folder.is_dir():
            return []
        found = (_parse(path) for path in sorted(self.folder.glob("*.json")))
        return [record for record in found if record is not None]

    def clear(self) -> None:
        """Removes all records and drafts."""
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                path.unlink(missing_ok=True)


def with_guard(record: Record, pid: int) -> Record:
    """The record once its guard runs."""
    return msgspec.structs.replace(record, guard_pid=pid, guard_start_time=start_time(pid) or 0)


def with_engine(record: Record, pid: int) -> Record:
    """The record once the engine's first process runs."""
    return msgspec.structs.replace(record, pid=pid, start_time=start_time(pid) or 0)


def root_id(root: Path) -> str:
    """The mark of this root. It includes device and inode: containers use equal paths for different roots."""
    real = root.resolve()
    where = real.stat()
    told = os.fsencode(real) + f"\0{where.st_dev}\0{where.st_ino}".encode()
    return hashlib.sha256(told).hexdigest()[:32]


def marked_pids(name: str, value: str) -> list[int]:
    """Living processes of ours whose environment has `name=value`. Never this process itself."""
    wanted = f"{name}={value}".encode()
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in sorted(pids) if pid != os.getpid() and _carries(pid, wanted)]


def _carries(pid: int, wanted: bytes) -> bool:
    text = read_small(f"/proc/{pid}/environ")  # None for other users' processes, empty for zombies
    return text is not None and wanted in text.split(b"\0")


def _parse(path: Path) -> Record | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(ENGINE_RECORD_BYTES_MAX), type=Record)
    except (msgspec.DecodeError, FileNotFoundError):
        return None
