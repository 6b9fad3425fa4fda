"""What the spool asks the machine: which boot, which mount, which kind of disk.

A log says on which boot and on which mount it was written. Only if both are still the same may its marks
("this event is visible") be believed: what the page cache knew is gone after a power cut, and also after
the file system alone was shut down and mounted again.
"""

import functools
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

__all__ = [
    "boot_id", "boot_time_ns", "host_name", "identity", "mount_id", "process_start", "storage_warnings",
]  # fmt: skip

_AT_EMPTY_PATH = 0x1000
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_BYTES = 256
_STATX_MNT_ID_OFFSET = 0x90
#: File systems on which the promise "survives a power cut" does not hold, or not as it stands.
_DOUBTFUL = {
    "tmpfs": "is in memory: nothing survives a restart",
    "ramfs": "is in memory: nothing survives a restart",
    "overlay": "is a container layer: it goes with the container",
    "nfs": "is a network mount: use durability='event'",
    "nfs4": "is a network mount: use durability='event'",
    "cifs": "is a network mount: use durability='event'",
}


@functools.cache
def boot_id() -> str:
    """Return the kernel's random id of this boot, or "" where there is none (then no mark is believed)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def boot_time_ns() -> int:
    """Return a time of this boot that nobody sets and that goes on in suspend, where there is one."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def process_start(pid: int) -> str:
    """Return when a living process began, in the kernel's own count; "" for a dead one, and where nothing tells."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def mount_id(fd: int) -> str:
    """Return a number of the mount that is never used again in this boot, or "" where there is none."""
    import ctypes

    libc: Any = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if not hasattr(libc, "statx") or libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_MNT_ID_UNIQUE, buffer) != 0:
        return ""
    mask = struct.unpack_from("=I", buffer.raw, 0)[0]
    if not mask & _STATX_MNT_ID_UNIQUE:
        return ""  # before Linux 6.8 mount numbers are reused: better none than a wrong one
    return str(struct.unpack_from("=Q", buffer.raw, _STATX_MNT_ID_OFFSET)[0])


def host_name() -> str:
    """Return this host's name with nothing in it that could matter in a path."""
    name = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in socket.gethostname()
    )
    return name.strip("-")[:32] or "host"


def identity() -> dict[str, str | int]:
    """Say who we are, for people who look into a lock file. Never used to decide who is alive."""
    return {"host": host_name(), "pid": os.getpid(), "boot": boot_id()}


def storage_warnings(path: Path) -> list[str]:
    """Return what an operator should know about the disk under this spool."""
    mount, kind, options = _mount_of(path)
    found: list[str] = []
    if kind in _DOUBTFUL:
        found.append(f"{path}: the file system ({kind} at {mount}) {_DOUBTFUL[kind]}")
    if "ro" in options.split(","):
        found.append(f"{path}: the file system at {mount} is mounted read-only")
    if kind == "ext4" and _lacks_journal(path):
        found.append(f"{path}: ext4 at {mount} has no journal: a power cut can damage its folders")
    return found


def _lacks_journal(path: Path) -> bool:
    """Whether this ext4 has no journal thread. Unknown counts as "has one": a warning must be true."""
    device = os.stat(path).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    try:
        name = block.resolve(strict=True).name
        return Path(f"/proc/fs/ext4/{name}").is_dir() and not any(Path("/proc/fs/jbd2").glob(f"{name}-*"))
    except OSError:
        return False


def _mount_of(path: Path) -> tuple[str, str, str]:
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
