"""Host, boot and process: how a file names its writer, and how a reader finds out whether that process is alive.

A pid alone proves nothing, because pids are reused. A process is identified by pid, start time and boot.
"""

import functools
import os
import socket
import time
from pathlib import Path

__all__ = ["boot_id", "boot_time_ns", "host_name", "identity", "pid_space", "process_start", "start_time"]


@functools.cache
def boot_id() -> str:
    """Return the kernel's random id of this boot, or "" where there is none; then no mark is trusted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_space() -> str:
    """Return the name of the space that this process's pids are of: containers of one boot have one each."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def boot_time_ns() -> int:
    """Return the time since boot, from a clock that cannot be set and, where there is one, counts time in suspend."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie.

    Without /proc (macOS) every living process has start time 0: there the pid alone has to suffice.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _start_time_without_proc(pid)
    # The command's name may hold spaces and parentheses: fields are counted from the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def process_start(pid: int) -> str:
    """Return the start of a living process, to tell it from a later one with its pid; "" if dead or unknown."""
    return str(start_time(pid) or "")


def _start_time_without_proc(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it lives, under another user
        return 0
    return 0


def host_name() -> str:
    """Return this host's name without characters that are special in a path."""
    name = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in socket.gethostname()
    )
    return name.strip("-")[:32] or "host"


def identity() -> dict[str, str | int]:
    """Return who we are, for people who read a lock file. Never used to decide whether an owner is alive."""
    return {"host": host_name(), "pid": os.getpid(), "boot": boot_id()}
