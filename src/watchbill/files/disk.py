"""The disk under a folder: its mount, the kind of its file system, and its errors when it is full or broken.

The page cache is lost in a power cut, and also when the file system alone is shut down and mounted again. So a file
that describes unsynced files names the boot and the mount on which it was written, and is trusted only while both are
still the same.
"""

import errno
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from watchbill.files.limits import DISK_TRY_BYTES

__all__ = ["DISK_FAULTS", "DISK_FULL", "Mount", "disk_failure", "fault_of", "mount_id", "mount_of"]

#: Errors that mean no room for a file, or for more of it: the disk, its inodes, a quota, a limit.
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Errors of a disk that is full, read-only or broken; the program that wants to write is not at fault.
DISK_FAULTS = DISK_FULL | {errno.EROFS, errno.EIO}

_AT_EMPTY_PATH = 0x1000
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_BYTES = 256
_STATX_MNT_ID_OFFSET = 0x90
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "vboxsf", "lustre", "beegfs", "gpfs", "afs",
        "orangefs",
    }
)  # fmt: skip


class Mount(NamedTuple):
    """The mount that holds a path, as far as the system reports it."""

    point: str
    kind: str  # of the file system: ext4, xfs, nfs4, ...
    options: frozenset[str]
    lacks_journal: bool  # an ext4 whose folders a power cut can damage

    @property
    def is_in_memory(self) -> bool:
        """Whether nothing on it survives a restart."""
        return self.kind in _IN_MEMORY

    @property
    def is_network(self) -> bool:
        """Whether other machines may write to it: their writes raise no inotify events, and clients cache."""
        # What a program serves (sshfs, glusterfs, rclone ...) may be on any machine; only `fuseblk` is a disk of ours.
        return self.kind in _NETWORK or self.kind == "fuse" or self.kind.startswith("fuse.")

    @property
    def is_read_only(self) -> bool:
        return "ro" in self.options


def mount_of(path: Path) -> Mount:
    """Return the mount that holds `path`. Raises OSError where there is no such path."""
    point, kind, options = _mounted(path)
    return Mount(point, kind, frozenset(options.split(",")), kind == "ext4" and _lacks_journal(path))


def fault_of(folder: Path) -> OSError | None:
    """Write a small file to a folder and return the disk's error; None without one, or with another kind of error."""
    from tempfile import TemporaryFile  # only here: its import is too slow for a git hook that enqueues

    try:
        with TemporaryFile(dir=folder) as file:
            file.write(b"\0" * DISK_TRY_BYTES)
            file.flush()
    except OSError as error:
        return error if error.errno in DISK_FAULTS else None
    return None


def disk_failure(folder: Path, error: OSError) -> str:
    """The error in words, and what to do about it."""
    why = error.strerror or error
    return f"the disk of {folder} failed: {why}; make room there, and models load again by themselves"


def mount_id(fd: int) -> str:
    """Return an id of the mount that is never reused in this boot, or "" where there is none."""
    import ctypes

    libc: Any = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(libc, "statx") or libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_MNT_ID_UNIQUE, buffer) != 0:
        return ""
    mask = struct.unpack_from("=I", buffer.raw, 0)[0]
    if not mask & _STATX_MNT_ID_UNIQUE:
        return ""  # before Linux 6.8 mount ids are reused: better none than a wrong one
    return str(struct.unpack_from("=Q", buffer.raw, _STATX_MNT_ID_OFFSET)[0])


def _lacks_journal(path: Path) -> bool:
    """Whether this ext4 has no journal thread. False where that is unknown: a warning must be true."""
    device = os.stat(path).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    try:
        name = block.resolve(strict=True).name
        return Path(f"/proc/fs/ext4/{name}").is_dir() and not any(Path("/proc/fs/jbd2").glob(f"{name}-*"))
    except OSError:
        return False


def _mounted(path: Path) -> tuple[str, str, str]:
    """Return mount point, kind and options of the mount that holds `path`."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ("?", "unknown", "")
    for line in lines:
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) > 5 and words[2] == wanted:
            return (words[4], rest.split()[0], words[5])
    return ("?", "unknown", "")
