"""The ledger: the state of a batch, as a pure function of the entries of its journal.

The running coordinator applies each entry that it has appended, and a successor applies the same entries again. So
both know the same, and nothing that matters is only in memory.

A task that is ready gets a **token** when it is issued: the number of the attempt, written on a slip with a name of
its own. A task has at most one token at a time, and only a result under this token is accepted. Attempts are numbered
on, whatever became of the last one. An attempt that failed uses up one of those that the plan allows; a loss (the
agent died, the power failed) does not.

    waiting --dependencies--> ready --Issue--> issued --Accept--> complete
       |                       ^ |               | |--Fail, final--> failed
       |                       | `----Hold----.  | `--Hold----------> manual
       |                       |              v  |
       |                       |--Approve-- manual --Deny--> failed
       |                       `--Fail, Lost, Revoke--'
       `--dependency failed--> skipped          any that has not ended --Cancel--> cancelled

A batch that is **reopened** begins a new round: every task waits or is ready again, and `Keep` gives a task the end
that it had before. `resuming` decides which tasks that are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from watchbill.errors import IllegalTransition
from watchbill.fleet.folder.results import End
from watchbill.fleet.folder.slips import headline_of
from watchbill.fleet.state.entries import (
    Accept,
    Approve,
    Cancel,
    Cause,
    Deny,
    Ended,
    Entry,
    Epoch,
    Expand,
    Fail,
    Gone,
    Hold,
    Issue,
    Items,
    Keep,
    Lost,
    Names,
    Open,
    Reopen,
    Revoke,
    Spec,
    Tasks,
)  # fmt: skip
from watchbill.plans.graph import Changes, Graph, Stage
from watchbill.plans.summary import Outcome, TaskReport

__all__ = ["NEXT", "Effect", "Former", "Ledger", "Phase", "TaskState"]


class Phase(Enum):
    """Where a task of a batch is."""

    WAITING = "waiting"  # for its dependencies
    READY = "ready"  # for a token
    ISSUED = "issued"  # queued or running: which of the two only the board says
    COMPLETE = "complete"
    FAILED = "failed"
    SKIPPED = "skipped"  # a dependency did not complete
    MANUAL = "manual"  # for a person
    CANCELLED = "cancelled"


#: Everything that an entry about one task may do. What is not here raises IllegalTransition and changes nothing.
NEXT: dict[tuple[Phase, type[Entry]], Phase] = {
    (Phase.READY, Issue): Phase.ISSUED,
    (Phase.READY, Hold): Phase.MANUAL,
    (Phase.ISSUED, Accept): Phase.COMPLETE,
    (Phase.ISSUED, Fail): Phase.READY,  # FAILED where it is final
    (Phase.ISSUED, Lost): Phase.READY,
    (Phase.ISSUED, Revoke): Phase.READY,
    (Phase.ISSUED, Hold): Phase.MANUAL,
    (Phase.MANUAL, Approve): Phase.READY,
    (
        Phase.READY,
        Approve,
    ): Phase.READY,  # its batch had ended, and was reopened for it; or somebody else asked for it
    (Phase.WAITING, Approve): Phase.WAITING,  # so does this one
    (Phase.MANUAL, Deny): Phase.FAILED,
    (Phase.READY, Deny): Phase.FAILED,
}

_PHASES = {
    Stage.WAITING: Phase.WAITING, Stage.READY: Phase.READY, Stage.MANUAL: Phase.MANUAL, Stage.COMPLETE: Phase.COMPLETE,
    Stage.FAILED: Phase.FAILED, Stage.SKIPPED: Phase.SKIPPED, Stage.CANCELLED: Phase.CANCELLED,
}  # fmt: skip


class Moment(NamedTuple):
    """A moment by the monotonic clock of a boot. Those of two boots have nothing in common."""

    boot: str
    clock_ms: int


@dataclass(slots=True)
class TaskState:
    """What the attempts of a task came to so far."""

    attempt: int = 0  # the last one that was issued
    since: int = 0  # with several items: the first attempt of which what is done counts
    token: str = ""  # the name of the slip that counts; "" where none does
    last: str = ""  # the name of the last slip
    failures: int = 0
    retries: int = 0  # attempts behind a failed one, in all rounds
    is_retried: bool = False  # the next attempt is one of them
    losses: int = 0  # since a person last let it go on
    soft_stops: int = 0
    not_runnable: int = 0
    disk_full: int = 0
    delay_ms: int = 0  # before the next attempt
    put_off: Moment | None = None  # when that delay began
    epochs_before: int = 0  # that
    vram_mb: int = 0  # of the next attempt; 0: what the plan says
    avoid: tuple[str, ...] = ()
    held: Cause | None = None  # why it waits for a person
    agent: str = ""
    end: End | None = None
    rc: int | None = None
    tail: str = ""
    ms: int = 0
    peak_vram_mb: int = 0
    peak_rss_mb: int = 0
    at_ms: int = 0  # when the last attempt ended, by the coordinator's wall clock
    is_unscored: bool = False  # accepted although it could not be evaluated


class Slice(NamedTuple):
    """A task of a fan-out: its template, and its items."""

    template: str
    items: Sequence[str]  # all of the fan-out
    first: int
    end: int


class Former(NamedTuple):
    """What a task was, and came to, before its batch was reopened."""

    phase: Phase
    spec: Spec
    items: tuple[str, ...]
    state: TaskState
    inputs: Mapping[str, object]


class FormerItems(NamedTuple):
    """The items that a template had before its batch was reopened, and the names of its tasks."""

    spec: Spec
    items: Sequence[str]
    names: tuple[str, ...]


@dataclass(slots=True)
class Effect:
    """What one entry led to."""

    ready: list[str] = field(default_factory=list[str])
    expandable: list[str] = field(default_factory=list[str])
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    closed: list[str] = field(default_factory=list[str])  # slips whose token does not count any more


_FRESH = TaskState()
_AboutOne = Issue | Accept | Fail | Lost | Revoke | Hold | Approve | Deny


class Ledger:
    """The state of one batch."""

    def __init__(self, batch: str) -> None:
        self.batch = batch
        self.plan = ""
        self.priority = 3
        self.goal = ""
        self.inputs: Mapping[str, object] = {}
        self.opened_ms = self.ended_ms = 0  # by the coordinator's wall clock
        self.paused_ms = 0  # between an end and the next round
        self.is_open = False
        self.is_cancelled = False
        self.outcome: Outcome | None = None
        self.by_token: dict[str, str] = {}  # name of a slip that counts -> task
        self.expandable: dict[str, None] = {}  # templates whose dependencies are satisfied
        self.sequence = 0  # the highest of its slips
        self.requests: set[str] = set()  # by which it was reopened
        self.cancels: set[str] = set()  # requests by which it was cancelled
        #: The tasks that the newest request asked for; none: all that did not complete.
        self.again: frozenset[str] = frozenset()
        #: Complete tasks of the last round of which a declared file is gone, each with that file.
        self.gone: Mapping[str, str] = {}
        self.former: dict[str, Former] = {}
        self.former_items: dict[str, FormerItems] = {}
        self._former_tasks: dict[str, Sequence[str]] = {}  # template -> its tasks when it last had any
        self.kept: set[str] = set()  # tasks whose former end counts
        self.approved: dict[
            str, str
        ] = {}  # task -> digest of the command that a person let run, in whatever round
        self._by_last: dict[str, str] = {}  # name of a task's last slip -> task
        self._specs: dict[str, Spec] = {}
        self._slices: dict[str, Slice] = {}
        self._expanded: dict[str, list[str]] = {}  # template -> its tasks
        self._states: dict[str, TaskState] = {}
        self._graph = Graph(())
        self._epochs: list[Moment] = []  # when each coordinator took the batch up
        self._parts: list[Spec] = []
        self._gone: dict[str, str] = {}
        self._items: list[str] = []
        self._names: dict[str, list[str]] = {}

    # ------------------------------------------------------------ questions

    def phase(self, task: str) -> Phase:
        """Where a task is. Raises KeyError for one that the batch does not have."""
        return Phase.ISSUED if self.state(task).token else _PHASES[self._graph.stage(task)]

    def state(self, task: str) -> TaskState:
        """What its attempts came to. Not to be changed by the caller."""
        return self._states.get(task, _FRESH)

    def spec(self, task: str) -> Spec:
        """What the plan says of the task, or of the template it comes from."""
        part = self._slices.get(task)
        return self._specs[task if part is None else part.template]

    def left_ms(self, task: str, boot: str, now_ms: int) -> int:
        """How much of a task's delay is left, at this time of this boot.

        What has passed is known from the first moment of the same boot: the failure itself or, where that was decided
        on another machine, the time at which a coordinator of this boot first took the batch up. Of a boot that is
        seen for the first time nothing is known: the whole delay is left.
        """
        state = self.state(task)
        moments = [*([state.put_off] if state.put_off else []), *self._epochs[state.epochs_before :]]
        since_ms = next((each.clock_ms for each in moments if boot and each.boot == boot), now_ms)
        return max(0, state.delay_ms - max(0, now_ms - since_ms))

    def items(self, task: str) -> tuple[str, ...]:
        """The items of a task of a fan-out, as JSON; none of another one."""
        part = self._slices.get(task)
        return () if part is None else tuple(part.items[part.first : part.end])

    def ready(self) -> Iterator[str]:
        """The tasks that wait for a token."""
        for task in self.tasks():
            if self.phase(task) is Phase.READY:
                yield task

    def has_to_wait(self, task: str) -> bool:
        """Whether a task with a token has to wait in this round: for one that runs again, or for its own fan-out."""
        return task not in self._graph or self._graph.stage(task) is not Stage.READY

    def is_expanded(self, template: str) -> bool:
        """Whether a template has its tasks, or has ended without."""
        return template not in self.expandable

    def task_of_last(self, name: str) -> str | None:
        """The task whose last slip has this name, if the batch still has it: one that is expanded anew has not."""
        task = self._by_last.get(name)
        return task if task is not None and task in self._graph else None

    def tasks(self) -> Iterator[str]:
        """All tasks. A template counts until its tasks are there.

        A token may be out for a task of a former fan-out, in the moment in which a batch is reopened: it is no task.
        """
        yield from (name for name in self._specs if name not in self._expanded)
        yield from (name for name in self._slices if name in self._graph)

    def template_of(self, task: str) -> str:
        """The template that a task of a fan-out comes from; the task itself where there is none."""
        part = self._slices.get(task)
        return task if part is None else part.template

    def templates(self) -> Iterator[str]:
        """The templates that are expanded."""
        return iter(self._expanded)

    def tasks_of(self, template: str) -> Sequence[str]:
        """The tasks of a template that is expanded; none before, and of a task."""
        return self._expanded.get(template, ())

    def is_to_come(self, task: str) -> bool:
        """Whether a fan-out that has no tasks yet in this round had this one before: it may have it again."""
        return any(
            task in names
            for template, names in self._former_tasks.items()
            if template in self._specs and template not in self._expanded
        )

    def followed(self, task: str) -> Iterator[str]:
        """The tasks with the same items that a task of a fan-out waits for."""
        part = self._slices.get(task)
        if part is None:
            return
        for other in self._specs[part.template].node.items_of:
            size = self._specs[other].node.batch_size
            yield from self.tasks_of(other)[part.first // size : (part.end - 1) // size + 1]

    def group(self, template: str) -> list[Spec]:
        """The templates that get their tasks together with this one, itself first."""
        return [self._specs[name] for name in self._graph.group(template)]

    def __contains__(self, name: str) -> bool:
        return name in self._graph

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to wait for or to run (PLAN-06)."""
        if self.by_token:
            return False  # without a look at every task
        counts = self._graph.counts()
        return self.is_open and not counts[Stage.WAITING] and not counts[Stage.READY]

    def reports(self) -> list[TaskReport]:
        """Every task as a summary has it."""
        return [self._report(task) for task in self.tasks()]

    def _report(self, task: str) -> TaskReport:
        state = self.state(task)
        return TaskReport(
            task, self._graph.stage(task), state.attempt, state.agent, state.ms, state.rc,
            "" if state.end in (None, End.DONE) else f"{state.end.value}: {state.tail}".rstrip(": "),
            self._graph.culprit(task) or "", self._missing(task), state.peak_vram_mb, state.peak_rss_mb,
            self.template_of(task), state.is_unscored, state.retries,
        )  # fmt: skip

    def _missing(self, task: str) -> tuple[str, ...]:
        """What a task went without that only needs its dependencies to have ended."""
        node = self.spec(task).node
        if not node.needs_done or self._graph.stage(task) is not Stage.COMPLETE:
            return ()
        wanted = [each for name in node.depends_on for each in self.tasks_of(name) or (name,)]
        wanted += self.followed(task)
        return tuple(each for each in wanted if self._graph.stage(each) is not Stage.COMPLETE)

    # ------------------------------------------------------------ entries

    def apply(self, entry: Entry) -> Effect:
        """Apply one entry. Raises IllegalTransition for one that cannot be, and then nothing has changed."""
        effect = self._apply(entry)
        self.expandable.update(dict.fromkeys(effect.expandable))
        return effect

    def _apply(self, entry: Entry) -> Effect:
        match entry:
            case Epoch():
                return self._begin(entry)
            case Tasks():
                self._parts += entry.specs
                return Effect()
            case Gone():
                self._gone |= entry.files
                return Effect()
            case Open():
                return self._open(entry)
            case Reopen():
                return self._reopen(entry)
            case Keep():
                return self._keep(entry)
            case Items():
                self._items += entry.items
                return Effect()
            case Names():
                self._names.setdefault(entry.template, []).extend(entry.names)
                return Effect()
            case Expand():
                return self._expand(entry)
            case Cancel():
                self.cancels.add(entry.request)
                return self._cancel()
            case Ended():
                return self._end(entry)
            case Fail() if entry.task in self.expandable:
                return self._give_up(entry)
            case Approve() if self.is_to_come(entry.task):
                self._approve(entry)
                return Effect()
            case _:
                return self._move(entry)

    def _begin(self, entry: Epoch) -> Effect:
        """A new coordinator: what its predecessor wrote in part counts for nothing."""
        self._epochs.append(Moment(entry.boot, entry.clock_ms))
        self._parts, self._gone, self._items, self._names = [], {}, [], {}
        return Effect()

    def _open(self, entry: Open) -> Effect:
        if self.is_open:
            raise IllegalTransition(f"{self.batch} is opened twice")
        self.plan, self.inputs, self.priority = entry.plan, entry.inputs, entry.priority
        self.goal, self.opened_ms = entry.goal, entry.at_ms
        self._specs = {spec.node.name: spec for spec in self._parts}
        self._graph = Graph(spec.node for spec in self._parts)
        self._parts, self.is_open = [], True
        return _effect(self._graph.start())

    def _expand(self, entry: Expand) -> Effect:
        tasks = {template: self._names.get(template, []) for template in entry.templates}
        changes = self._graph.expand(tasks, len(self._items))
        items, self._items, self._names = self._items, [], {}
        for template, names in tasks.items():
            self.expandable.pop(template, None)
            self._expanded[template] = names
            size = self._specs[template].node.batch_size
            for number, name in enumerate(names):
                first = number * size
                self._slices[name] = Slice(template, items, first, min(first + size, len(items)))
        return _effect(changes)

    def _reopen(self, entry: Reopen) -> Effect:
        """Begin a new round. Tokens that are out stay so while their tasks need not wait (`resuming.strays`)."""
        if not self.is_open:
            raise IllegalTransition(f"{self.batch} was never opened, and cannot be reopened")
        self._remember()
        for task, state in self._states.items():
            if not state.token and not self._goes_on(task, entry):
                self._states[task] = TaskState(attempt=state.attempt, last=state.last, retries=state.retries)
        self._slices = {task: part for task, part in self._slices.items() if self.state(task).token}
        self._expanded, self.expandable, self.kept = {}, {}, set()
        self.inputs, self.priority, self.goal = entry.inputs, entry.priority, entry.goal
        self.again = frozenset(entry.again)
        self.gone, self._gone = self._gone, {}
        self.requests.add(entry.request)
        if self.ended_ms and entry.at_ms:
            self.paused_ms += max(0, entry.at_ms - self.ended_ms)
        self.is_cancelled, self.outcome, self.ended_ms = False, None, 0
        if self._parts:
            self._specs, self._parts = {spec.node.name: spec for spec in self._parts}, []
        self._graph = Graph(spec.node for spec in self._specs.values())
        return _effect(self._graph.start())

    def _goes_on(self, task: str, entry: Reopen) -> bool:
        """Whether a task waits for its next attempt without a request of a person: its failures count."""
        is_asked = not entry.again or task in entry.again or self.template_of(task) in entry.again
        former = self.former.get(task)  # a task of an earlier fan-out may be gone since
        return not is_asked and former is not None and former.phase is Phase.READY

    def _remember(self) -> None:
        """Keep what the last round came to."""
        self.former = self._still_to_come() | {
            task: Former(self.phase(task), self.spec(task), self.items(task), self.state(task), self.inputs)
            for task in self.tasks()
        }
        self._former_tasks |= self._expanded
        self.former_items = {
            template: FormerItems(self._specs[template], self._slices[names[0]].items if names else (), tuple(names))
            for template, names in self._expanded.items()
        }  # fmt: skip

    def _still_to_come(self) -> dict[str, Former]:
        """What tasks came to before this round in fan-outs that have no tasks in it yet, but for what was asked for."""
        return {
            task: former
            for task, former in self.former.items()
            if (former.phase is Phase.COMPLETE or self._is_left(former))
            and former.spec.node.name != task
            and former.spec.node.name not in self._expanded
            and task not in self.again
        }

    def _is_left(self, former: Former) -> bool:
        """Whether a task that failed, or waits for a person, stays so in a round in which others were asked for."""
        is_asked = not self.again or former.spec.node.name in self.again
        return not is_asked and former.phase in (Phase.FAILED, Phase.MANUAL)

    def _keep(self, entry: Keep) -> Effect:
        effect = Effect()
        for task in entry.tasks:
            former = self.former.get(task)
            if former is None or self.phase(task) is not Phase.READY:
                raise IllegalTransition(f"{task} has no former end that could be kept")
            changes = Changes()
            match former.phase:
                case Phase.COMPLETE:
                    changes = self._graph.complete(task)
                case Phase.FAILED:
                    changes = self._graph.fail(task)
                case Phase.MANUAL:
                    self._graph.hold(task)
                case _:
                    raise IllegalTransition(f"{task} was {former.phase.value}, which cannot be kept")
            self._states[task] = former.state
            self.kept.add(task)
            effect = _effect(changes, effect)
        return effect

    def _give_up(self, entry: Fail) -> Effect:
        """A template cannot be expanded."""
        changes = self._graph.fail(entry.task)
        del self.expandable[entry.task]
        self._states[entry.task] = TaskState(end=entry.end, tail=entry.tail, at_ms=entry.at_ms)
        return _effect(changes)

    def _cancel(self) -> Effect:
        effect = Effect()
        self.expandable.clear()
        for task in list(self.tasks()):
            if self._graph.stage(task).has_ended:
                continue
            state = self._states.get(task)
            if state is not None and state.token:
                effect.closed.append(state.token)
                self._close(state)
            effect.skipped += self._graph.cancel(task).skipped
        self.is_cancelled = True
        return effect

    def _end(self, entry: Ended) -> Effect:
        if not self.is_settled:
            raise IllegalTransition(f"{self.batch} has tasks that have not ended, and cannot end itself")
        self.outcome, self.ended_ms = entry.outcome, entry.at_ms
        return Effect()

    # ------------------------------------------------------------ entries about one task

    def _move(self, entry: "_AboutOne") -> Effect:
        before = self.phase(entry.task)
        if (before, type(entry)) not in NEXT:
            raise IllegalTransition(
                f"{entry.task} is {before.value}: {type(entry).__name__} cannot be about it"
            )
        state = self._states.setdefault(entry.task, TaskState())
        self._refuse_another_token(entry, state)
        effect = Effect([], [], [], [state.token] if state.token else [])
        if state.token:
            self._close(state)
        match entry:
            case Issue():
                self._issue(entry, state)
            case Accept():
                state.agent, state.ms, state.is_unscored = entry.agent, entry.ms, entry.is_unscored
                state.peak_vram_mb, state.peak_rss_mb = entry.peak_vram_mb, entry.peak_rss_mb
                state.end, state.rc, state.tail, state.at_ms = End.DONE, 0, "", entry.at_ms
                return _effect(self._graph.complete(entry.task), effect)
            case Fail():
                self._count_failure(entry, state)
                if entry.is_final:
                    return _effect(self._graph.fail(entry.task), effect)
                effect.ready.append(entry.task)
            case Lost() | Revoke():
                self._count_loss(entry, state)
                if entry.task in self._graph:
                    effect.ready.append(entry.task)
                else:  # its fan-out is expanded anew
                    del self._slices[entry.task]
            case Hold():
                self._hold(entry, state)
            case Approve():
                state.losses, state.held = 0, None
                self._approve(entry)
                if before is Phase.MANUAL:
                    self._graph.release(entry.task)
                    effect.ready.append(entry.task)
            case Deny():
                if before is Phase.MANUAL:
                    self._graph.release(entry.task)
                said = f": {entry.reason}" if entry.reason else ""
                state.held, state.end, state.rc, state.at_ms = None, End.DENIED, None, entry.at_ms
                state.agent = ""  # the one that asked has not run it
                state.tail = f"denied by {entry.who}{said}"
                return _effect(self._graph.fail(entry.task), effect)
        return effect

    def _approve(self, entry: Approve) -> None:
        self.approved[entry.task] = entry.digest
        if self.again:  # this round was begun for other tasks; a person has asked for this one, too
            self.again |= {entry.task}

    def _refuse_another_token(self, entry: "_AboutOne", state: TaskState) -> None:
        if isinstance(entry, Issue):
            is_right = entry.attempt == state.attempt + 1 and entry.name not in self.by_token
        else:
            is_right = isinstance(entry, Hold | Approve | Deny) or entry.attempt == state.attempt
        if not is_right:
            raise IllegalTransition(
                f"{entry.task} is at attempt {state.attempt}: {type(entry).__name__} is of another"
            )

    def _issue(self, entry: Issue, state: TaskState) -> None:
        self._by_last.pop(state.last, None)
        state.attempt, state.token, state.last = entry.attempt, entry.name, entry.name
        state.vram_mb, state.avoid, state.delay_ms = entry.vram_mb, entry.avoid, 0
        state.since = entry.since
        state.retries, state.is_retried = state.retries + state.is_retried, False
        self.by_token[entry.name] = self._by_last[entry.name] = entry.task
        headline = headline_of(entry.name)
        self.sequence = max(self.sequence, headline.sequence if headline else 0)

    def _hold(self, entry: Hold, state: TaskState) -> None:
        if entry.cause is Cause.APPROVAL:
            state.agent, state.end, state.rc, state.tail = entry.agent, End.NEEDS_APPROVAL, None, entry.text
        state.held, state.at_ms = entry.cause, entry.at_ms
        self._graph.hold(entry.task)

    def _close(self, state: TaskState) -> None:
        del self.by_token[state.token]
        state.token = ""

    def _count_failure(self, entry: Fail, state: TaskState) -> None:
        boot = self._epochs[-1].boot if self._epochs else ""
        state.put_off, state.epochs_before = Moment(boot, entry.clock_ms), len(self._epochs)
        state.failures += entry.is_counted
        state.is_retried = entry.is_counted
        state.soft_stops += entry.end is End.SOFT_STOP
        state.not_runnable += entry.end is End.NOT_RUNNABLE
        state.disk_full += entry.end is End.DISK_FULL
        state.delay_ms, state.vram_mb, state.avoid = entry.delay_ms, entry.vram_mb, entry.avoid
        state.agent, state.end, state.rc, state.tail = entry.agent, entry.end, entry.rc, entry.tail
        state.at_ms, state.ms = entry.at_ms, entry.ms

    @staticmethod
    def _count_loss(entry: "Lost | Revoke", state: TaskState) -> None:
        blames_nobody = (
            entry.cause in (Cause.UNREADABLE, Cause.REOPENED, Cause.UNSTARTED)
            if isinstance(entry, Revoke)
            else entry.end is End.UNSTARTED
        )
        state.losses += not blames_nobody
        state.agent = entry.agent


def _effect(changes: Changes, effect: Effect | None = None) -> Effect:
    found = Effect() if effect is None else effect
    found.ready += changes.ready
    found.expandable += changes.expandable
    found.skipped += changes.skipped
    return found
