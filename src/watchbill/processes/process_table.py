"""Living processes as /proc shows them: parents, sessions, memory, processor time, marks. Zombies are left out.

Only reads. The guards load it beside themselves, so it imports nothing but the standard library. A process that ends
while it is read is not in the table.
"""

import errno
import os

#: utime, stime, cutime and cstime in /proc/PID/stat, counted behind the session.
TIMES = slice(7, 11)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Resident memory in pages, in the same file.
RESIDENT = 17
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: What comes before the number of bytes in /proc/PID/io.
WRITTEN = b"wchar: "


class Row:
    """A living process as /proc shows it. `ticks` is its processor time and that of its children that it waited for."""

    def __init__(self, parent: int, group: int, session: int, rest: list[bytes]) -> None:
        self.parent, self.group, self.session = parent, group, session
        self.ticks = sum(map(int, rest[TIMES]))
        self.rss = int(rest[RESIDENT]) * PAGE_BYTES


def processes() -> dict[int, Row]:
    """Every living process; zombies are left out."""
    found: dict[int, Row] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (row := _row_of(entry)) is not None:
            found[int(entry)] = row
    return found


def descendants() -> list[int]:
    """Every living process below us, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := _parent_of(entry)):
            children.setdefault(parent, []).append(int(entry))
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # grows during the loop
        found += children.get(pid, ())
    return found


def is_group(group: int) -> bool:
    """Whether a process group has a member."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def mark_of(pid: int, variable: bytes) -> str | None:
    """The value of a variable in a process's environment; None where it has none that we may read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM}:
            raise
        return None
    found = next((word for word in words if word.startswith(variable + b"=")), None)
    return None if found is None else found[len(variable) + 1 :].decode("utf-8", "replace")


def written_by(pid: int) -> int:
    """The bytes that a process and its waited-for children have written; 0 where the kernel does not report it."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM}:
            raise
        return 0
    return next((int(line[len(WRITTEN) :]) for line in lines if line.startswith(WRITTEN)), 0)


def _row_of(entry: str) -> Row | None:
    words = _stat_of(entry)
    if words is None:
        return None
    _, parent, group, session, *rest = words
    return Row(int(parent), int(group), int(session), rest)


def _parent_of(entry: str) -> int | None:
    words = _stat_of(entry)
    return None if words is None else int(words[1])


def _stat_of(entry: str) -> list[bytes] | None:
    """State, parent, group, session and what follows them; None for a process that is gone or a zombie."""
    try:
        with open(f"/proc/{entry}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] in {b"Z", b"X"} else words
