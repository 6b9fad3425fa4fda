"""The laws of the board protocol, read from the disk alone, and the small fleet that is explored under them.

The judge does not use the ledger or the reader of journals: it has its own, simple way to say what counts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from support.interleavings import World, newborn, run_alone, step, whole_turn
from support.memory_disk import Cut, File, State, Steps
from watchbill.files.checked_log import whole_lines
from watchbill.fleet.board import Board
from watchbill.fleet.coordinator import Coordinator
from watchbill.fleet.epochs import Superseded
from watchbill.fleet.heartbeat import Heartbeat, Pulse, Watcher, write_heartbeat
from watchbill.fleet.results import End, Result, ResultLog
from watchbill.plans.batch import ExecutePlan

BATCH, PLAN = "b", "p"
FOLDER = f"plans/{PLAN}/history/{BATCH}"
APART = "# Two\n## Tasks\n### one\n- **command**: `true`\n### two\n- **command**: `true`\n"
IN_A_CHAIN = f"{APART}- **depends_on**: one\n"
TASKS = ("one", "two")
HANDS = ("a", "b")


class BrokenLaw(AssertionError):
    """The protocol did what it promises never to do."""


def submitted(plan: str = APART) -> State:
    """A disk with a plan and the file that asks for a batch, both durable."""
    content = {
        f"plans/{PLAN}/plan.md": plan.encode(),
        f"brain/inbox/{BATCH}.json": ExecutePlan(BATCH, PLAN, {}).encode(),
    }
    return State(frozenset((path, File(data, data, path, path)) for path, data in content.items()))


# ------------------------------------------------------------------ the processes


def wall_ms() -> int:
    return 1_767_225_600_000  # 2026-01-01


def nobody_lives(pid: int, started: int) -> bool:
    return False


@dataclass
class Brain:
    """A coordinator that starts in its first turn."""

    disk: Steps
    boot: str = "manager"
    coordinator: Coordinator | None = None

    def turn(self, now_ms: int) -> bool:
        try:
            if self.coordinator is None:
                watcher = Watcher(self.boot, nobody_lives)
                coordinator = Coordinator(self.disk, watcher, Pulse(self.boot, 1, 1, 0), wall_ms=wall_ms)
                coordinator.start(now_ms)
                self.coordinator = coordinator
            else:
                self.coordinator.turn(now_ms)
        except Superseded:
            return False
        return True


@dataclass
class Hand:
    """An agent without workers: claims one slip at a time, and reports it as done in a later turn.

    It goes on whatever becomes of its slip, as an agent does that was stopped and continued.
    """

    disk: Steps
    name: str
    log: ResultLog | None = None
    holds: str = ""
    seq: int = 0
    rc: int = 0

    def turn(self, now_ms: int) -> bool:
        board = Board(self.disk)
        if self.log is None:
            self._begin(board)
        elif self.holds:
            self._report([Result(self.holds, self.name, self.log.life, End.DONE, 0)])
            self.holds = ""
        else:
            self._claim(board)
        return True

    def _begin(self, board: Board) -> None:
        board.join(self.name)
        self.log = ResultLog(self.disk, self.name)
        lost = board.held_by(self.name)
        if lost:
            self._report([Result(name, self.name, self.log.life, End.LOST) for name in lost])

    def _claim(self, board: Board) -> None:
        assert self.log is not None
        offered = board.offered()
        if not offered:
            return
        self.seq += 1
        write_heartbeat(self.disk, self.name, Heartbeat(Pulse(f"rig-{self.log.life}", 1, 1, self.seq)))
        for name in offered:
            if board.claim(self.name, name):
                if board.read(self.name, name) is None:
                    self._report([Result(name, self.name, self.log.life, End.UNREADABLE)])
                else:
                    self.holds = name
                return

    def _report(self, results: list[Result]) -> None:
        assert self.log is not None
        self.log.commit(results)


def first_world(plan: str = APART, hands: tuple[str, ...] = HANDS, **mishaps: int) -> World:
    processes = {name: newborn(lambda disk, name=name: Hand(disk, name)) for name in hands}
    processes["brain"] = newborn(Brain)
    return World(submitted(plan), tuple(sorted(processes.items())), mishaps=tuple(sorted(mishaps.items())))


def working_world(plan: str = APART, hands: tuple[str, ...] = HANDS, **mishaps: int) -> World:
    """The same a little later: the agents wait, and the batch is open."""
    world = first_world(plan, hands, **mishaps)
    for name in (*hands, "brain", "brain"):
        world = whole_turn(world, name)
    return world


def choices(world: World) -> Iterator[World]:
    """Everything that can happen next."""
    for name, process in world.processes:
        before = world.lets_go(name)
        if process.has_ended or before is None:
            continue
        after, kind = step(before, name)
        yield after
        if kind == "move" and before.left("lost_replies"):
            yield step(before.without("lost_replies"), name, loses_reply=True)[0]
        if name in HANDS and world.left("restarts"):
            yield world.without("restarts").with_process(
                name, newborn(lambda disk, name=name: Hand(disk, name))
            )
    if world.left("successors"):
        yield world.without("successors").with_process("successor", newborn(Brain))
    if world.left("silences"):
        yield replace(world.without("silences"), now_ms=world.now_ms + 100_000)


# ------------------------------------------------------------------ the judge


@dataclass
class Verdict:
    """What counts in the journals of the batch."""

    entries: list[dict[str, object]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, object]]:
        return [entry for entry in self.entries if entry["e"] == kind]


def lines_of(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in whole_lines(data)[0]]


def counting(disk: State) -> Verdict:
    """The entries that count: of the newest epoch all, of earlier ones what it says."""
    files = dict(disk.files)
    journals = {
        int(name.split(".")[1]): files[f"{FOLDER}/{name}"].seen
        for name in disk.names(FOLDER)
        if "journal" in name
    }
    begun = [epoch for epoch, data in journals.items() if lines_of(data)]
    if not begun:
        return Verdict()
    newest = max(begun)
    after: dict[str, int] = lines_of(journals[newest])[0]["after"]  # type: ignore[assignment]
    verdict = Verdict()
    for epoch in sorted(begun):
        size = len(journals[epoch]) if epoch == newest else after.get(str(epoch), 0)
        verdict.entries += lines_of(journals[epoch][:size])
    return verdict


def slips_on_the_board(disk: State) -> list[str]:
    return [
        path.rpartition("/")[2] for path, _ in disk.files
        if path.startswith(("tasks/queue/", "tasks/processing/")) and path.endswith(".json")
    ]  # fmt: skip


def reported_done(disk: State) -> set[tuple[str, str]]:
    """Slip and agent of every attempt that was reported as done."""
    logs = [file.seen for path, file in disk.files if path.startswith("tasks/results/")]
    lines = [line for log in logs for line in lines_of(log)]
    return {(str(line["name"]), str(line["agent"])) for line in lines if line["why"] == "done"}


def check_laws(disk: State, *, before_a_cut: State | None = None) -> None:
    """Everything that holds in every state. A power cut may take a report whose acceptance is durable already."""
    verdict = counting(disk)
    issued: dict[str, dict[int, str]] = {task: {} for task in TASKS}
    current: dict[str, int] = {}
    accepted: set[str] = set()
    done = reported_done(disk) | (reported_done(before_a_cut) if before_a_cut else set())
    for entry in verdict.entries:
        kind, task = str(entry["e"]), str(entry.get("task", ""))
        attempt = int(str(entry.get("attempt", 0)))
        if kind == "issue":
            if task in current or task in accepted:
                raise BrokenLaw(f"{task} has two current tokens")
            if attempt in issued[task]:
                raise BrokenLaw(f"attempt {attempt} of {task} was issued twice")
            issued[task][attempt] = str(entry["name"])
            current[task] = attempt
        elif kind in ("accept", "fail", "lost", "revoke"):
            if current.pop(task, None) != attempt:
                raise BrokenLaw(f"{kind} of attempt {attempt} of {task}, which is not current")
            if kind == "accept":
                if (issued[task][attempt], str(entry["agent"])) not in done:
                    raise BrokenLaw(f"{task} was accepted, and nobody reported this attempt")
                accepted.add(task)
    known = {name for attempts in issued.values() for name in attempts.values()}
    for name in slips_on_the_board(disk):
        if name not in known:
            raise BrokenLaw(f"{name} is on the board, and no record that counts has issued it")


def recover(disk: State, *, before_a_cut: State | None = None) -> State:
    """All processes were killed here: a coordinator and two agents start anew and run to the end."""
    after = run_alone(
        disk, [Brain, lambda disk: Hand(disk, "a"), lambda disk: Hand(disk, "b")], turns_max=60, tick_ms=1_000
    )
    check_laws(after, before_a_cut=before_a_cut)
    accepted = [entry["task"] for entry in counting(after).of("accept")]
    if sorted(map(str, accepted)) != sorted(TASKS):
        raise BrokenLaw(f"accepted in the end: {accepted}")
    if not counting(after).of("ended"):
        raise BrokenLaw("the batch never ends")
    if slips_on_the_board(after):
        raise BrokenLaw(f"left on the board: {slips_on_the_board(after)}")
    return after


def checker(*, cuts: bool = True) -> Callable[[World], None]:
    """Checks a world: its laws, and that it recovers from a kill and from power cuts; each disk once."""

    @cache
    def check_disk(disk: State) -> None:
        check_laws(disk)
        recover(disk)
        for cut in Cut if cuts else ():
            accepted = {str(entry["task"]) for entry in durable(disk).of("accept")}
            recover(disk.after(cut), before_a_cut=disk)
            lost = accepted - {str(entry["task"]) for entry in counting(disk.after(cut)).of("accept")}
            if lost:
                raise BrokenLaw(f"{lost} was acknowledged before the power cut")

    def check(world: World) -> None:
        check_disk(world.disk)

    return check


def durable(disk: State) -> Verdict:
    """What counts of that which was synced."""
    synced = State(frozenset((path, File(file.synced)) for path, file in disk.files if file.stable))
    return counting(synced)


def after_losses(losses: int) -> World:
    """An agent has died that many times with each of the tasks in its hands."""
    world = working_world(APART, HANDS)
    for _ in range(losses):
        for name in HANDS:
            world = whole_turn(world, name)  # claims
            world = whole_turn(
                world.with_process(name, newborn(lambda disk, name=name: Hand(disk, name))), name
            )
        world = whole_turn(world, "brain")
    return world


def lose(losses: int) -> Verdict:
    """What counts after so many losses."""
    return counting(after_losses(losses).disk)


def lose_and_finish(losses: int) -> int:
    """Nobody dies any more after so many losses: both tasks have to be accepted."""
    world = after_losses(losses)
    for name in (*HANDS, *HANDS, "brain"):
        world = whole_turn(world, name)
    accepted = [str(entry["task"]) for entry in counting(world.disk).of("accept")]
    if sorted(accepted) != sorted(TASKS):
        raise BrokenLaw(f"accepted in the end: {accepted}")
    return len(accepted)


def take_over_from_the_unsynced() -> int:
    """A coordinator dies between writing and syncing an acceptance; its successor builds on it; the power fails."""
    world = working_world(IN_A_CHAIN, ("a",))
    for _ in range(2):  # claims, reports
        world = whole_turn(world, "a")
    kind = ""
    while kind != "write":
        world, kind = step(world, "brain")
    world = world.with_process("successor", newborn(Brain))
    for name in ("successor", "successor", "a", "a", "successor"):
        world = whole_turn(world, name)
    accepted = durable(world.disk).of("accept")
    for cut in Cut:
        recover(world.disk.after(cut), before_a_cut=world.disk)
    if len(accepted) != len(TASKS):
        raise BrokenLaw(f"accepted: {accepted}")
    return len(accepted)
