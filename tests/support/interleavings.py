"""All interleavings of a fleet's processes on a disk in memory, step by step, with every process stopping anywhere.

A process runs in turns, and each operation on the disk is a step at which any other process may go first. Between two
steps it is kept as a value: its memory when the turn began, and what the disk has answered since. To go one step
further the turn is run again from there with the same answers. So nothing is shared, nothing waits, and a state that
was seen before is recognised and not explored again.

Without a bound on interruptions (-1) these are all interleavings. With one, a process may go first within the turn of
another only so many times; between turns always.

That a process dies needs no event of its own: it is never chosen again. What must come true after deaths is checked in
every state, by killing all of them there and starting anew (`Exploration.check`).
"""

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from support.memory_disk import MemoryDisk, State, Steps


class Program(Protocol):
    """A process: its memory is what pickle sees."""

    def turn(self, now_ms: int) -> bool:
        """Run to the end of a turn; False when the process has ended."""
        ...


class _Stopped(BaseException):
    """The process has done its step."""


@dataclass
class _OneStep(Steps):
    """Answers as before, then carries out one step, then stops."""

    answers: tuple[Any, ...] = ()
    loses_reply: bool = False
    given: int = 0
    done: tuple[str, Any] | None = None

    def perform(self, kind: str, *arguments: Any) -> Any:
        if self.given < len(self.answers):
            self.given += 1
            return _give(self.answers[self.given - 1])
        if self.done is not None:
            raise _Stopped
        try:
            answer = self.disk.perform(kind, *arguments)
        except OSError as error:
            answer = error
        if self.loses_reply:
            answer = FileNotFoundError("the reply was lost")
        self.done = (kind, answer)
        return _give(answer)


def _give(answer: Any) -> Any:
    if isinstance(answer, OSError):
        raise answer
    return answer


@dataclass(frozen=True, slots=True)
class Process:
    """A process between two steps."""

    memory: bytes
    answers: tuple[Any, ...] = ()
    key: int = 0  # of the answers, for comparing
    now_ms: int = 0  # the time at which its turn began
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """Everything at one moment: the disk, the processes, the time, and which mishaps are left to happen."""

    disk: State
    processes: tuple[tuple[str, Process], ...]
    now_ms: int = 0
    mishaps: tuple[tuple[str, int], ...] = ()
    running: str = ""  # the process that did the last step, while its turn is not over

    def identity(self) -> int:
        """Equal for worlds that go on in the same way."""
        processes = tuple(
            (
                name,
                each.memory,
                each.key,
                len(each.answers),
                each.now_ms if each.answers else 0,
                each.has_ended,
            )
            for name, each in self.processes
        )
        return hash((self.disk, processes, self.now_ms, self.mishaps, self.running))

    def left(self, mishap: str) -> int:
        return dict(self.mishaps).get(mishap, 0)

    def lets_go(self, name: str) -> "World | None":
        """The world in which this process may do a step: within a turn of another one, that is one interruption."""
        if self.running in ("", name):
            return replace(self, running="")
        return replace(self, running="").without("interruptions") if self.left("interruptions") else None

    def without(self, mishap: str) -> "World":
        left = tuple((name, count - (name == mishap)) for name, count in self.mishaps)
        return replace(self, mishaps=left)

    def with_process(self, name: str, process: Process) -> "World":
        processes = {**dict(self.processes), name: process}
        return replace(self, processes=tuple(sorted(processes.items())))


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> str | None:
        return "disk" if isinstance(obj, Steps) else None


class _Unpickler(pickle.Unpickler):
    steps: Steps

    def persistent_load(self, pid: str) -> Steps:
        return self.steps


def freeze(program: Program) -> bytes:
    """A program as a value; its disk stays outside."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(program)
    return buffer.getvalue()


def thaw(memory: bytes, steps: Steps) -> Program:
    unpickler = _Unpickler(io.BytesIO(memory))
    unpickler.steps = steps
    return unpickler.load()


def newborn(make: Callable[[Steps], Program]) -> Process:
    """A process that has done nothing yet."""
    return Process(freeze(make(Steps(MemoryDisk()))))


def step(world: World, name: str, *, loses_reply: bool = False) -> tuple[World, str]:
    """Let one process do one step. Returns the world after it and the kind of operation, "" for a turn without any."""
    process = dict(world.processes)[name]
    disk = MemoryDisk(world.disk)
    now_ms = process.now_ms if process.answers else world.now_ms
    steps = _OneStep(disk, process.answers, loses_reply)
    program = thaw(process.memory, steps)
    try:
        goes_on = program.turn(now_ms)
    except _Stopped:
        assert steps.done is not None
        kind, answer = steps.done
        said = repr(answer) if isinstance(answer, OSError) else pickle.dumps(answer)
        after = Process(process.memory, (*process.answers, answer), hash((process.key, said)), now_ms)
    else:
        kind = steps.done[0] if steps.done else ""
        after = Process(freeze(program) if goes_on else b"", has_ended=not goes_on)
    is_bounded = ("interruptions", -1) not in world.mishaps
    running = name if after.answers and is_bounded else ""
    return replace(world, disk=disk.state, running=running).with_process(name, after), kind


def whole_turn(world: World, name: str) -> World:
    """Let one process run to the end of its turn."""
    world, _ = step(world, name)
    while dict(world.processes)[name].answers:
        world, _ = step(world, name)
    return world


def run_alone(disk: State, programs: list[Callable[[Steps], Program]], turns_max: int, tick_ms: int) -> State:
    """Let processes take turns on a disk, each whole, until nothing changes any more."""
    memory = MemoryDisk(disk)
    living = [make(Steps(memory)) for make in programs]
    now_ms, quiet = 0, 0
    for _ in range(turns_max):
        before = memory.state.files
        living = [program for program in living if program.turn(now_ms)]
        now_ms += tick_ms
        quiet = quiet + 1 if memory.state.files == before else 0
        if quiet > 2:
            return memory.state
    raise AssertionError(f"the processes have not come to rest in {turns_max} turns")


@dataclass
class Exploration:
    """Walks through every world that can come out of the first one."""

    choices: Callable[[World], Iterator[World]]
    check: Callable[[World], None]
    worlds_max: int
    seen: set[int] = field(default_factory=set)

    def run(self, first: World) -> int:
        """Return how many worlds there are. Raises what `check` raises, with the way there."""
        stack = [first]
        self.seen.add(first.identity())
        while stack:
            world = stack.pop()
            self.check(world)
            for after in self.choices(world):
                identity = after.identity()
                if identity not in self.seen:
                    assert len(self.seen) < self.worlds_max, "there are more worlds than the bound"
                    self.seen.add(identity)
                    stack.append(after)
        return len(self.seen)
