"""The laws of the board protocol, read from the disk alone, and the small fleet that is explored under them.

The judge does not use the ledger or the reader of journals: it has its own, simple way to say what counts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import cast

from support.interleavings import World, newborn, run_alone, step, whole_turn
from support.memory_disk import Cut, File, MemoryDisk, State, Steps
from watchbill.files.checked_log import whole_lines
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.folder.agent_report import AgentReport
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, Watcher, write_heartbeat
from watchbill.fleet.folder.requests import Reopening, ask_to_cancel, ask_to_reopen
from watchbill.fleet.folder.results import End, Result, ResultLog
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.state.epochs import Superseded
from watchbill.plans.batch import ExecutePlan
from watchbill.plans.task import TaskClass

BATCH, PLAN = "b", "p"
FOLDER = f"plans/{PLAN}/history/{BATCH}"
APART = "# Two\n## Tasks\n### one\n- **command**: `true`\n### two\n- **command**: `true`\n"
IN_A_CHAIN = f"{APART}- **depends_on**: one\n"
CORRECTED = IN_A_CHAIN.replace("two\n- **command**: `true`", "two\n- **command**: `echo`")
#: The answer to a prompt is scored, and published when it is accepted.
ASKING = (
    "# Two\n## Tasks\n### one\n- **prompt**: Go.\n- **evaluate**: short\n- **output**: {BATCH_PATH}/said\n"
    "### two\n- **command**: `true`\n- **depends_on**: one\n"
)
SAID = f"{FOLDER}/said"
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

    It goes on whatever becomes of its slip, as an agent does that was stopped and continued. It has a model, which it
    loads when it is told to, and it scores the answers of others with 4.
    """

    disk: Steps
    name: str
    log: ResultLog | None = None
    holds: str = ""
    slip: Slip | None = None
    seq: int = 0
    rc: int = 0
    hot: tuple[str, ...] = ()

    def turn(self, now_ms: int) -> bool:
        board = Board(self.disk)
        if self.log is None:
            self._begin(board)
        elif self.holds:
            said = self._work()
            self._report([Result(self.holds, self.name, self.log.life, End.DONE, 0, answer=said)])
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

    def _work(self) -> str:
        """Do what the slip says, and return what is reported beside its end."""
        assert self.slip is not None
        work = self.slip.work
        if self.slip.task.endswith(".evaluation"):
            return '{"score": 4, "reason": "clear"}'
        if work.task_class is TaskClass.META:
            self.hot = ("m",)
        elif work.prompt:
            answer = f"{self.slip.task} a{self.slip.attempt}".encode()
            path = f"{FOLDER}/tasks/{self.slip.task}/a{self.slip.attempt}/stdout"
            self.disk.put(path, answer, durable=True)
        return ""

    def _claim(self, board: Board) -> None:
        assert self.log is not None
        offered = board.offered()
        if not offered:
            return
        self.seq += 1
        report = AgentReport(model="m", models=("m",), hot_models=tuple(self.hot), llm_slots=1, host="rig")
        write_heartbeat(
            self.disk, self.name, Heartbeat(Pulse(f"rig-{self.log.life}", 1, 1, self.seq), report)
        )
        for name in offered:
            if board.claim(self.name, name):
                try:
                    self.slip = board.read(self.name, name)
                except FileNotFoundError:
                    continue  # taken back since
                if self.slip is None:
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
    for mishap, ask in _REQUESTS.items():
        if world.left(mishap):
            disk = Steps(MemoryDisk(world.disk))
            ask(disk)
            yield replace(world.without(mishap), disk=disk.disk.state)
    if world.left("silences"):
        yield replace(world.without("silences"), now_ms=world.now_ms + 100_000)


def ask_to_resume(disk: Steps) -> None:
    """A person corrects the plan and goes on with it."""
    disk.put(f"plans/{PLAN}/plan.md", CORRECTED.encode(), durable=True)
    ask_to_reopen(disk, Reopening("resumed", BATCH, PLAN, reads_plan=True))


#: What people ask for at any moment.
_REQUESTS: dict[str, Callable[[Steps], None]] = {
    "cancels": lambda disk: ask_to_cancel(disk, BATCH, "cancelled"),
    "retries": lambda disk: ask_to_reopen(disk, Reopening("retried", BATCH, PLAN, ("one",))),
    "resumes": ask_to_resume,
}


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


def belongs_to_no_batch(name: str) -> bool:
    """Whether a slip is an order to load a model, or asks for a score: those stand in no journal."""
    return "-heat-" in name or ".evaluation" in name


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
    accepted: dict[str, int] = {}  # in this round
    ever: dict[str, int] = {}
    asks = False  # whether task one asks a model in this round
    answered: set[int] = set()  # its accepted answers, ever
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
                accepted[task] = ever[task] = attempt
                if task == "one" and asks:
                    answered.add(attempt)
        elif kind == "cancel":
            current.clear()
        elif kind == "reopen":
            accepted.clear()
        elif kind == "tasks":
            asks = '"output"' in json.dumps(entry)
        elif kind == "keep":
            accepted |= {each: ever[each] for each in map(str, cast("list[object]", entry["tasks"]))}
    known = {name for attempts in issued.values() for name in attempts.values()}
    for name in slips_on_the_board(disk):
        if name not in known and not belongs_to_no_batch(name):
            raise BrokenLaw(f"{name} is on the board, and no record that counts has issued it")
    said = dict(disk.files).get(SAID)
    if said is not None and said.seen not in {f"one a{attempt}".encode() for attempt in answered}:
        raise BrokenLaw(f"{said.seen!r} was published, and accepted were {answered}")


def outcome_of(disk: State) -> tuple[set[str], str, bool]:
    """The tasks that are complete in the last round, its outcome, and whether it was cancelled."""
    complete: set[str] = set()
    outcome, is_cancelled = "", False
    for entry in counting(disk).entries:
        match entry["e"]:
            case "reopen":
                complete, outcome, is_cancelled = set(), "", False
            case "accept":
                complete.add(str(entry["task"]))
            case "keep":
                complete |= set(map(str, cast("list[object]", entry["tasks"])))
            case "cancel":
                is_cancelled = True
            case "ended":
                outcome = str(entry["outcome"])
            case _:
                pass
    return complete, outcome, is_cancelled


#: What everybody sees of the files: where nothing is cut any more, processes go on by this alone.
Seen = frozenset[tuple[str, bytes]]


def run_to_the_end(seen: Seen) -> State:
    """A coordinator and two agents start anew and run to the end."""
    disk = State(frozenset((path, File(data)) for path, data in seen))
    hands = [Brain, lambda disk: Hand(disk, "a"), lambda disk: Hand(disk, "b")]
    return run_alone(disk, hands, turns_max=60, tick_ms=1_000)


def recover(
    disk: State, *, before_a_cut: State | None = None, run: Callable[[Seen], State] = run_to_the_end
) -> State:
    """All processes were killed here: after a new start the batch comes to its end."""
    after = run(frozenset((path, file.seen) for path, file in disk.files))
    check_laws(after, before_a_cut=before_a_cut)
    complete, outcome, is_cancelled = outcome_of(after)
    if not outcome:
        raise BrokenLaw("the batch never ends")
    if complete != set(TASKS) and not is_cancelled:
        raise BrokenLaw(f"complete in the end: {complete}")
    if slips_on_the_board(after):
        raise BrokenLaw(f"left on the board: {slips_on_the_board(after)}")
    if left := after.names("brain/inbox"):
        raise BrokenLaw(f"left in the inbox: {left}")
    if "one" in complete and ASKING.encode() == after.read(f"plans/{PLAN}/plan.md"):
        after.read(SAID)  # StopIteration where the answer is lost
    return after


def checker(*, cuts: bool = True) -> Callable[[World], None]:
    """Checks a world: its laws, and that it recovers from a kill and from power cuts; each disk once."""
    run = cache(run_to_the_end)  # most power cuts leave what another one or a kill leaves

    @cache
    def check_disk(disk: State) -> None:
        check_laws(disk)
        recover(disk, run=run)
        for cut in Cut if cuts else ():
            accepted = {str(entry["task"]) for entry in durable(disk).of("accept")}
            recover(disk.after(cut), before_a_cut=disk, run=run)
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
