"""Process trees: the memory that an engine really occupies, and whether a protected process still lives.

An engine's memory is the PSS of its whole tree: a page that two engines map counts half for each, so the sum over all
engines counts every mapped file once. For a reading the kernel walks page tables (about 0.1 ms, some milliseconds for
many gigabytes): call it in a thread, never inside a decision. Processes that end meanwhile are left out.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watchbill.probes.kernel_files import read_small, table_of
from watchbill.probes.limits import TREE_PIDS_MAX
from watchbill.units import Bytes

__all__ = [
    "TreeMemory",
    "find_processes",
    "major_faults_of_tree",
    "pids_of_tree",
    "pids_of_unit",
    "pss_of_pids",
    "pss_of_tree",
]

MACHINE = Path("/")
#: The kernel cuts a process name at this length.
COMM_CHARS_MAX = 15
#: Programs whose first argument is the actual program.
INTERPRETERS = ("python", "bash", "sh", "dash", "node", "perl", "ruby")


@dataclass(frozen=True, slots=True)
class TreeMemory:
    """The memory of a process tree, in bytes. All but `rss` and `swap` are proportional shares."""

    pss: Bytes
    rss: Bytes
    anon: Bytes
    file: Bytes
    shared: Bytes  # shared memory: /dev/shm, memfd
    swap: Bytes
    pids: tuple[int, ...]


def pss_of_tree(pid: int, root: Path = MACHINE) -> TreeMemory:
    """Sums up the tree under `pid`. A tree that is gone has no pids and no memory."""
    rows = [(member, _memory_of(member, root)) for member in pids_of_tree(pid, root)]
    alive = [(member, row) for member, row in rows if row is not None]
    totals = [Bytes(sum(row[column] for _, row in alive)) for column in range(6)]
    return TreeMemory(*totals, pids=tuple(member for member, _ in alive))


def pss_of_pids(pids: Iterable[int], root: Path = MACHINE) -> int:
    """The PSS of these processes together; those that are gone have none."""
    rows = (_memory_of(pid, root) for pid in pids)
    return sum(row[0] for row in rows if row is not None)


def major_faults_of_tree(pid: int, root: Path = MACHINE) -> int:
    """How often a process of the tree waited for the disk to get a page back."""
    stats = (_stat_of(member, root) for member in pids_of_tree(pid, root))
    return sum(int(stat[9]) for stat in stats if stat)


def pids_of_tree(pid: int, root: Path = MACHINE) -> list[int]:
    """`pid` and all its descendants, parents first; empty when `pid` is gone or a zombie."""
    found = [pid] if (stat := _stat_of(pid, root)) and stat[0] != b"Z" else []
    seen = set(found)
    for member in found:  # grows during the loop
        fresh = [child for child in _children_of(member, root) if child not in seen]
        seen.update(fresh)
        found += fresh[: TREE_PIDS_MAX - len(found)]
    return found


def pids_of_unit(unit: str, pids: Iterable[int], root: Path = MACHINE) -> list[int]:
    """Those of the processes that belong to a systemd unit, also as its container, by their control group."""
    wanted = unit.encode()
    return [pid for pid in pids if wanted in _groups_of(pid, root)]


def find_processes(name: str, root: Path = MACHINE) -> list[int]:
    """The pids of living processes called `name`: by their own name, their program, or their script."""
    return [pid for pid in _all_pids(root) if _is_called(pid, name, root)]


def _memory_of(pid: int, root: Path) -> tuple[int, int, int, int, int, int] | None:
    """pss, rss, anon, file, shared, swap of one process; None when it is gone."""
    text = read_small(f"{root}/proc/{pid}/smaps_rollup")
    if not text:
        return _rss_of(pid, root)
    kib = table_of(text)
    row = (
        kib.get(b"Pss", 0),
        kib.get(b"Rss", 0),
        kib.get(b"Pss_Anon", kib.get(b"Anonymous", 0)),
        kib.get(b"Pss_File", 0),
        kib.get(b"Pss_Shmem", 0),
        kib.get(b"SwapPss", kib.get(b"Swap", 0)),
    )
    pss, rss, anon, file, shared, swap = (figure * 1024 for figure in row)
    return pss, rss, anon, file, shared, swap


def _rss_of(pid: int, root: Path) -> tuple[int, int, int, int, int, int] | None:
    """For processes of other users, whose smaps we may not read: RSS, which is never below PSS."""
    kib = table_of(read_small(f"{root}/proc/{pid}/status") or b"")
    if b"VmRSS" not in kib:  # gone, a zombie, or a kernel thread
        return None
    anon, file, shared = (kib.get(key, 0) * 1024 for key in (b"RssAnon", b"RssFile", b"RssShmem"))
    rss = kib[b"VmRSS"] * 1024
    return rss, rss, anon, file, shared, kib.get(b"VmSwap", 0) * 1024


def _groups_of(pid: int, root: Path) -> list[bytes]:
    """Every part of the paths of a process's control groups."""
    return (read_small(f"{root}/proc/{pid}/cgroup") or b"").replace(b"\n", b"/").split(b"/")


def _stat_of(pid: int, root: Path) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the name, which may itself contain blanks and brackets."""
    _, bracket, rest = (read_small(f"{root}/proc/{pid}/stat") or b"").rpartition(b")")
    return rest.split() if bracket else None


def _children_of(pid: int, root: Path) -> Iterator[int]:
    folder = f"{root}/proc/{pid}/task"
    try:
        threads = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return
    for thread in threads:
        text = read_small(f"{folder}/{thread}/children")
        if text is None and thread == str(pid):
            # No such file while the process lives: this kernel was built without it.
            yield from _children_by_scan(pid, root)
            return
        yield from (int(word) for word in (text or b"").split())


def _children_by_scan(pid: int, root: Path) -> Iterator[int]:
    wanted = str(pid).encode()
    for other in _all_pids(root):
        if (stat := _stat_of(other, root)) and stat[1] == wanted:
            yield other


def _all_pids(root: Path) -> list[int]:
    return sorted(int(entry) for entry in os.listdir(f"{root}/proc") if entry.isdigit())


def _is_called(pid: int, name: str, root: Path) -> bool:
    stat = _stat_of(pid, root)
    if not stat or stat[0] in {b"Z", b"X"}:
        return False
    comm = (read_small(f"{root}/proc/{pid}/comm") or b"").strip().decode(errors="replace")
    if comm == name and len(name) <= COMM_CHARS_MAX:
        return True
    words = (read_small(f"{root}/proc/{pid}/cmdline") or b"").split(b"\0")[:2]
    programs = [word.decode(errors="replace").rsplit("/", 1)[-1] for word in words]
    if programs[:1] == [name]:
        return True
    return len(programs) == 2 and programs[0].startswith(INTERPRETERS) and programs[1] == name
