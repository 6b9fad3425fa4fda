"""The term of a lease that no process keeps locked: as long as a given process lives, or until a time.

A process is identified by pid, start time and boot, because pids are reused. Within one boot the time is that of a
clock that cannot be set; other machines, and the same one after a restart, use the wall clock.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from watchbill.files.atomic import write_file_durable
from watchbill.files.host import boot_id, boot_time_ns, host_name, process_start
from watchbill.files.owner import LEASE_NAME

__all__ = ["Term", "holds", "term_for", "term_of", "write_term"]


@dataclass(frozen=True, slots=True)
class Term:
    """How long a lease holds. Either `pid` is a process, or the times are set."""

    host: str
    boot: str
    pid: int = 0
    started: str = ""
    until_ns: int = 0  # by the wall clock, for other machines and after a restart
    until_boot_ns: int = 0  # by the clock of this boot

    @property
    def is_over(self) -> bool:
        here = self.host == host_name()
        if self.pid:
            # Another machine cannot know whether the process lives; only its own may take the event back.
            return here and (self.boot != boot_id() or process_start(self.pid) != self.started)
        if here and self.boot == boot_id():
            return boot_time_ns() >= self.until_boot_ns
        return time.time_ns() >= self.until_ns


def term_for(seconds: float) -> Term:
    """A lease that holds for this long."""
    more_ns = int(seconds * 1e9)
    return Term(
        host_name(), boot_id(), until_ns=time.time_ns() + more_ns, until_boot_ns=boot_time_ns() + more_ns
    )


def term_of(pid: int) -> Term | None:
    """A lease that holds as long as this process lives; None if there is none, or it cannot be identified."""
    started = process_start(pid)
    return Term(host_name(), boot_id(), pid, started) if started else None


def holds(folder: Path) -> bool:
    """Whether the lease of an owner folder without a lock still holds. Raises OSError."""
    try:
        read: object = json.loads((folder / LEASE_NAME).read_bytes())
        return isinstance(read, dict) and not Term(**cast(dict[str, Any], read)).is_over
    except FileNotFoundError:
        return False
    except (ValueError, TypeError):
        return False  # ours is always written whole: another program wrote this


def write_term(folder: Path, term: Term) -> None:
    """Write into an owner folder how long its lease holds. Raises OSError."""
    write_file_durable(folder / LEASE_NAME, json.dumps(asdict(term)).encode() + b"\n")
