"""Heartbeats: how an agent shows that it lives, and how a reader decides that it does not.

A heartbeat file has one writer, its agent, which raises `seq` each time. An agent whose `seq` has not moved for 90 s,
by the reader's own monotonic clock, is silent and counts as dead. A reader that runs on the same boot of the same
machine also asks the kernel: a process is told by its pid and its start time, so a pid that was used again is not
mistaken for the agent, and a death is seen at once. A process that lives and hangs is silent like any other; but a
reader that did not run itself for a while, because its machine or its container was paused, begins to count anew: the
agent beside it could not run either. Times of two machines are never compared, and a time in a heartbeat is for people:
one from the future or of last year changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from watchbill.files.host import boot_id, start_time
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import HELD, STOPPED, AgentReport
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.headway import Headway
from watchbill.fleet.folder.values import Fields, encode, fields_at

__all__ = [
    "Heartbeat", "Kernel", "Pulse", "Sighting", "Watcher", "heartbeats", "kernel_says", "read_heartbeat",
    "write_heartbeat",
]  # fmt: skip

#: Asks the kernel whether this process still runs: pid and start time.
Kernel = Callable[[int, int], bool]


def kernel_says(pid: int, started: int) -> bool:
    """Whether this very process runs here, and not a later one with its pid."""
    return pid > 0 and start_time(pid) == started


@dataclass(frozen=True, slots=True)
class Pulse:
    """What tells whether a process lives: who it is, and a number that it raises while it does."""

    boot_id: str
    pid: int
    start_time: int
    seq: int

    @classmethod
    def of(cls, fields: Fields) -> "Pulse":
        return cls(
            fields.text("boot_id"), fields.whole("pid"), fields.whole("start_time"), fields.whole("seq")
        )

    def fields(self) -> dict[str, object]:
        return {
            "boot_id": self.boot_id, "pid": self.pid, "start_time": self.start_time, "seq": self.seq,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """An agent's heartbeat: its pulse, and everything that people and decisions read of it."""

    pulse: Pulse
    report: AgentReport = field(default_factory=AgentReport)

    @property
    def budget_mb(self) -> int:
        """The memory that its tasks may have in all."""
        return self.report.claimed_mb + self.report.available_mb

    @property
    def may_live(self) -> bool:
        """Whether its agent may live, as far as one look tells: it did not say goodbye, and its kernel knows it."""
        is_here = self.pulse.boot_id == boot_id()
        is_known_dead = is_here and not kernel_says(self.pulse.pid, self.pulse.start_time)
        return not is_known_dead and self.report.state != STOPPED

    @property
    def is_constrained(self) -> bool:
        """Whether its device is too hot, too full or short of power: then its tasks may stand still."""
        return any(each != HELD for each in self.report.constraints)

    @property
    def headway(self) -> dict[tuple[str, str], Headway]:
        """Batch and task -> how far the task has got, as far as its agent tells."""
        return {(each.batch, each.task): each.headway for each in self.report.tasks}

    def fields(self) -> dict[str, object]:
        """Its JSON."""
        return {**self.report.fields(), **self.pulse.fields()}


def write_heartbeat(disk: Disk, agent: str, heartbeat: Heartbeat) -> None:
    """Show that the agent lives. Not synced: after a power cut it does not."""
    disk.put(places.heartbeat_path(agent), encode(heartbeat.fields()))


def read_heartbeat(disk: Disk, agent: str) -> Heartbeat | None:
    """The last heartbeat of an agent; None where there is none that can be read."""
    fields = fields_at(disk, places.heartbeat_path(agent))
    return None if fields is None else Heartbeat(Pulse.of(fields), AgentReport.of(fields))


def heartbeats(disk: Disk) -> dict[str, Heartbeat]:
    """The last heartbeat of every agent that ever had a place on the board."""
    found = {agent: read_heartbeat(disk, agent) for agent in places.agents_in(disk.names(places.PROCESSING))}
    return {agent: heartbeat for agent, heartbeat in found.items() if heartbeat is not None}


# ------------------------------------------------------------------ the reader


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last pulse that differed from the one before, since when the reader has seen it, and its last look."""

    pulse: Pulse | None
    since_ms: int
    looked_ms: int


class Watcher:
    """Decides who is dead. Knows only what it saw itself, so a reader that starts waits for 90 s like any other."""

    def __init__(self, boot_id: str, kernel: Kernel = kernel_says) -> None:
        self._boot_id = boot_id
        self._kernel = kernel
        self._seen: dict[str, Sighting] = {}

    @property
    def kernel(self) -> Kernel:
        """Asks the kernel of this boot."""
        return self._kernel

    def is_dead(self, name: str, pulse: Pulse | None, now_ms: int) -> bool:
        """Whether the process of this name is dead, or silent for so long that it counts as dead.

        `now_ms` is of the reader's monotonic clock. A file that is gone or unreadable is a pulse that does not move.
        """
        is_here = pulse is not None and bool(pulse.boot_id) and pulse.boot_id == self._boot_id
        if is_here and pulse is not None and not self._kernel(pulse.pid, pulse.start_time):
            self._seen.pop(name, None)
            return True
        seen = self._seen.get(name)
        has_moved = seen is None or (pulse is not None and pulse != seen.pulse)
        if seen is None or has_moved or (is_here and now_ms - seen.looked_ms > limits.LOOK_GAP_MS_MAX):
            self._seen[name] = Sighting(pulse, now_ms, now_ms)
            return False
        self._seen[name] = replace(seen, looked_ms=now_ms)
        return now_ms - seen.since_ms >= limits.SILENCE_MS_MAX
