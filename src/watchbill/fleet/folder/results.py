"""Results: what agents report, one line per attempt, in a log of their own for each life.

A **life** is one start of an agent; its log is made and appended by that agent alone. A result counts when it is
synced: only then is the task reported. A next life finds what the last one held and reports it as lost, by its name.

The coordinator reads the logs of an agent in the order of its lives. A life begins its log before it reports anything
lost, and everything the last life reported was there before: so a finished attempt is never taken for a lost one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk, is_of_the_path
from watchbill.fleet.folder.record import Recorder, Tail
from watchbill.fleet.folder.values import Fields

__all__ = ["End", "Result", "ResultLog", "ResultReader", "end_of"]

#: What programs tell by their exit code.
_SOFT_STOP = 75
_NOT_RUNNABLE = (126, 127)


class End(Enum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"  # an exit code that is not 0
    SOFT_STOP = "soft_stop"  # exit code 75: run me again, without blame
    UNPARSABLE = "unparsable"  # bash cannot parse the command: no attempt could succeed
    WRONG = "wrong"  # its definition or one of its values does not allow it to run: no attempt could succeed
    NOT_RUNNABLE = "not_runnable"  # exit codes 126 and 127: this machine lacks something
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    DISK_FULL = "disk_full"  # of the agent, or the shared folder: it goes on when there is room
    MISSING_OUTPUT = "missing_output"  # exit code 0, and not everything is there that the task produces
    POOR = "poor"  # the coordinator's model scored the answer below 3 of 5
    ABORTED = "aborted"  # by a signal file
    LOST = "lost"  # the agent died, and its next life says so
    UNSTARTED = "unstarted"  # the same, but it had more slips than slots: this one was claimed ahead
    UNREADABLE = "unreadable"  # the slip could not be read
    BLOCKED = "blocked"  # a rule of permissions.toml denies the command
    NEEDS_APPROVAL = "needs_approval"  # a person has to allow the command
    DENIED = "denied"  # a person did not

    @property
    def comes_again(self) -> bool:
        """Whether the task goes on later and nothing has failed."""
        return self in {End.SOFT_STOP, End.DISK_FULL, End.NEEDS_APPROVAL}


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a result log."""

    name: str  # of the slip: the token
    agent: str
    life: int
    end: End
    rc: int | None = None
    ms: int = 0
    peak_vram_mb: int = 0
    tail: str = ""  # the last of its output
    cpu_ms: int = 0
    answer: str = ""  # what it gave as its result, a JSON object, where that is short
    peak_rss_mb: int = 0
    is_private: bool = False  # a model was asked, and its daemon counted that as private

    def fields(self) -> dict[str, object]:
        """The line of the log."""
        line: dict[str, object] = {
            "name": self.name, "agent": self.agent, "life": self.life, "why": self.end.value, "rc": self.rc,
            "ms": self.ms, "peak_vram_mb": self.peak_vram_mb, "tail": self.tail[-limits.RESULT_TAIL_CHARS_MAX :],
            "cpu_ms": self.cpu_ms, "answer": self.answer, "peak_rss_mb": self.peak_rss_mb,
        }  # fmt: skip
        return line | ({"private": True} if self.is_private else {})

    @classmethod
    def of(cls, line: Fields, agent: str, life: int) -> "Result | None":
        """Read a line of the log of this life; None for one that says nothing that this version knows."""
        try:
            end = End(line.text("why"))
        except ValueError:
            return None
        rc, tail = line.optional_whole("rc"), line.text("tail")[-limits.RESULT_TAIL_CHARS_MAX :]
        ms, peak = line.whole("ms"), line.whole("peak_vram_mb")
        cpu_ms, answer = line.whole("cpu_ms"), line.text("answer")
        return cls(
            line.text("name"), agent, life, end, rc, max(0, ms), max(0, peak), tail, max(0, cpu_ms), answer,
            max(0, line.whole("peak_rss_mb")), line.flag("private"),
        )  # fmt: skip


def end_of(rc: int) -> End:
    """What an exit code alone says."""
    if rc == 0:
        return End.DONE
    if rc == _SOFT_STOP:
        return End.SOFT_STOP
    return End.NOT_RUNNABLE if rc in _NOT_RUNNABLE else End.FAILED


class ResultLog:
    """The log of one life of an agent. Making it is what begins the life."""

    def __init__(self, disk: Disk, agent: str) -> None:
        self.agent = agent
        lives = [life for name, life in _logs(disk) if name == agent]
        self.life = max(lives, default=0)
        self._recorder = self._begin(disk)

    def _begin(self, disk: Disk) -> Recorder:
        for _ in range(limits.FLEET_TRIES_MAX):
            self.life += 1
            try:
                return Recorder(disk, places.result_log(self.agent, self.life))
            except FileExistsError:  # another start of the same agent, at the same time
                continue
        raise FileExistsError(f"{places.result_log(self.agent, self.life)} and many before it are taken")

    def commit(self, results: Iterable[Result]) -> None:
        """Report attempts: on return they are on stable storage, all with one sync."""
        self._recorder.commit(result.fields() for result in results)

    def close(self) -> None:
        """Close the file and keep it."""
        self._recorder.close()


@dataclass(slots=True)
class ResultReader:
    """The coordinator's view of all result logs."""

    disk: Disk
    #: Logs that cannot be read, and why: they stop no other agent. Later lives of their agent wait for them, because
    #: what one of those reports as lost may be reported as done there. Read again each time.
    unread: dict[str, str] = field(default_factory=dict[str, str])
    _tails: dict[tuple[str, int], Tail] = field(default_factory=dict[tuple[str, int], Tail])

    def read(self) -> Iterator[Result]:
        """What was reported since the last time, agent by agent in the order of their lives."""
        waits = ""
        for agent, life in sorted(_logs(self.disk)):
            if agent == waits:
                continue
            key = (agent, life)
            tail = self._tails.get(key)
            if tail is None:
                tail = self._tails[key] = Tail(self.disk, places.result_log(agent, life))
            for line in self._lines(tail):
                result = Result.of(line, agent, life)
                if result is not None:
                    yield result
            waits = agent if tail.path in self.unread else ""

    def _lines(self, tail: Tail) -> Iterator[Fields]:
        lines = tail.read()
        while True:
            try:
                line = next(lines, None)
            except OSError as error:
                if not is_of_the_path(error):
                    raise
                self.unread[tail.path] = error.strerror or str(error)
                return
            self.unread.pop(tail.path, None)
            if line is None:
                return
            yield line


def _logs(disk: Disk) -> list[tuple[str, int]]:
    found = map(places.whose_result_log, disk.names(places.RESULTS))
    return [each for each in found if each is not None]
