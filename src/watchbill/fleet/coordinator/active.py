"""The active batches of a coordinator: the state and the journal of each, and every token that is out.

A decision is an entry. It is applied to the batch's ledger at once, so that later decisions of the same turn see it,
and written to the batch's journal at the end of the turn: one append and one sync for each batch that changed.

What an entry sets free follows here, too: tasks that are ready line up, templates whose dependencies are satisfied
wait for their manifest. Nothing here touches the board or reads a clock other than the one for people.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from watchbill.errors import OursError
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk, is_of_the_path
from watchbill.fleet.folder.slips import Headline, is_of, slip_name
from watchbill.fleet.logs import Part
from watchbill.fleet.matching.policy import Lineup
from watchbill.fleet.state.entries import (
    Approve,
    Cancel,
    Deny,
    Ended,
    Entry,
    Epoch,
    Fail,
    Hold,
    Issue,
    Lost,
    Open,
    Reopen,
    Revoke,
    Spec,
    Timed,
)
from watchbill.fleet.state.journal import Journal, read_past
from watchbill.fleet.state.ledger import Effect, Ledger, Phase
from watchbill.fleet.state.resuming import carry_over, first_that_counts, strays
from watchbill.fleet.state.shared_paths import model_of
from watchbill.plans.batch import ExecutePlan
from watchbill.plans.task import TaskClass

__all__ = ["ActiveBatch", "ActiveBatches", "Fanout", "Locked", "Offer", "denied"]

_LOG = Part.COORDINATOR.logger


@dataclass(slots=True)
class ActiveBatch:
    """An active batch: its state, its journal, and the entries of this turn that are not written yet."""

    ledger: Ledger
    journal: Journal
    todo: list[Entry] = field(default_factory=list[Entry])
    may_have_ended: bool = True  # also when it is taken up: the last coordinator may not have come to say so
    is_drawn: bool = False  # whether its pictures show everything
    draw_at_ms: int = 0


@dataclass(slots=True)
class Fanout:
    """A foreach whose dependencies are satisfied, and that waits for a manifest at rest."""

    tries: int = 0
    not_before_ms: int = 0


class Offer(NamedTuple):
    """The task of a token that counts."""

    ledger: Ledger
    task: str


class Locked(NamedTuple):
    """A batch whose files cannot be used, and why."""

    order: ExecutePlan
    why: str


class ActiveBatches:
    """Every batch that has not ended, in the memory of one coordinator."""

    def __init__(
        self,
        disk: Disk,
        wall_ms: Callable[[], int],
        fleet: str = "",
        boot: str = "",
        *,
        set_aside: Mapping[str, str] = MappingProxyType({}),
        locked: Iterable["Locked"] = (),
    ) -> None:
        """`wall_ms` is for people: no decision depends on it. `fleet` is the id of the shared folder, `boot` that of
        the boot whose clock the coordinator is given. `set_aside`: batches that are not taken up, and why. `locked`:
        those whose files stopped an earlier coordinator."""
        self._disk = disk
        self._fleet = fleet
        self._boot = boot
        self._wall_ms = wall_ms
        self._sequence = 0
        self.epoch = 0  # of the coordinator, once it has taken one
        self.batches: dict[str, ActiveBatch] = {}
        self.tokens: dict[str, tuple[str, TaskClass]] = {}  # slip -> batch, class
        self.out: Counter[TaskClass] = Counter()  # tokens per class
        self.lineup = Lineup()
        self.fanouts: dict[tuple[str, str], Fanout] = {}
        self.set_aside = dict(set_aside)
        self.left_alone = dict(set_aside)  # with batches whose journal cannot be replayed: each one, and why
        #: Of those, the ones whose files cannot be used, because of who owns them or what lies in their place. They are
        #: tried again.
        self.locked: dict[str, ExecutePlan] = {}
        for each in locked:
            self.lock_out(each.order, each.why)
        self.at = ""  # the batch that is worked on, if one is: a fault of our own is its

    # ------------------------------------------------------------ batches come and go

    def take_up(self, order: ExecutePlan, now_ms: int) -> None:
        """Replay the entries of a batch that count, and go on with it."""
        self._go_on_with(self._replayed(order, now_ms), now_ms)

    def _replayed(self, order: ExecutePlan, now_ms: int) -> ActiveBatch:
        """What a batch came to by the entries that count; opens the journal of this epoch."""
        self.at = order.batch
        past = read_past(self._disk, order.plan, order.batch, self.epoch, self._fleet)
        ledger = Ledger(order.batch)
        for entry in past.entries:
            ledger.apply(entry)
        first = Epoch(self.epoch, past.after, self._fleet, self._boot, now_ms)
        if past.own_end is None:
            # The ledger hears of the new epoch as it will in a later replay: parts without their end count for nothing.
            ledger.apply(first)
        if ledger.is_open and ledger.plan != order.plan:
            raise OursError(
                f"it is a batch of the plan {ledger.plan}, and lies in plans/{order.plan}: copied, or renamed since",
                hint=f"move its folder back to plans/{ledger.plan}/history, or submit {order.plan} anew",
            )
        return ActiveBatch(ledger, Journal(self._disk, order.plan, order.batch, first, own_end=past.own_end))

    def _go_on_with(self, batch: ActiveBatch, now_ms: int) -> None:
        ledger = batch.ledger
        self.batches[ledger.batch] = batch
        for name in ledger.by_token:
            self._count_token(ledger, name)
        self._sequence = max(self._sequence, ledger.sequence)
        self._go_on(ledger, Effect(list(ledger.ready()), list(ledger.expandable)), now_ms)
        # The last coordinator may have died in the middle of reopening it.
        self._take_back_strays(ledger.batch)

    def take_up_or_leave(self, order: ExecutePlan, now_ms: int) -> None:
        """The same, but one batch that makes no sense, damaged, copied or of a later version, stops no others. One that
        was left alone may make sense by now."""
        try:
            batch = self._replayed(order, now_ms)
        except OSError as error:
            if not is_of_the_path(error):
                raise
            self.lock_out(order, denied(error))
            return
        except (OursError, ValueError, KeyError) as error:
            self.left_alone[order.batch] = str(error)
            return
        self.left_alone.pop(order.batch, None)
        self.locked.pop(order.batch, None)
        self._go_on_with(batch, now_ms)

    def lock_out(self, order: ExecutePlan, why: str) -> None:
        """Leave a batch alone whose files cannot be used, as those that another user keeps to himself: it stops no
        others, and is tried again."""
        self.left_alone[order.batch] = why
        self.locked[order.batch] = order

    def is_locked(self, name: str) -> bool:
        """Whether a slip may be of a batch that is tried again: until then it stays where it is, and what runs runs."""
        return any(is_of(name, batch) for batch in self.locked)

    def forget(self, batch: str) -> None:
        """Drop a batch that has ended, and close its journal."""
        self.at = batch
        self.batches.pop(batch).journal.close()

    def close(self) -> None:
        """Close the journals and keep them."""
        for batch in self.batches.values():
            batch.journal.close()

    # ------------------------------------------------------------ tokens

    def offer_of(self, name: str) -> Offer | None:
        """The task that a token is for, if the token counts: the fence."""
        token = self.tokens.get(name)
        if token is None:
            return None
        self.at = token[0]
        ledger = self.batches[token[0]].ledger
        return Offer(ledger, ledger.by_token[name])

    def next_token(self, ledger: Ledger, task: str) -> Issue:
        """The entry that offers a task once more, under a token of its own."""
        state, spec = ledger.state(task), ledger.spec(task)
        self._sequence += 1
        vram_mb = state.vram_mb or spec.vram_mb
        addressee = places.BRAIN if spec.for_brain else _addressee(spec)
        headline = Headline(
            spec.priority or ledger.priority, self._sequence, spec.task_class, vram_mb, state.attempt + 1, addressee
        )  # fmt: skip
        name = slip_name(headline, model=model_of(ledger, task), batch=ledger.batch, task=task)
        return Issue(task, state.attempt + 1, name, vram_mb, state.avoid, first_that_counts(ledger, task))

    def _count_token(self, ledger: Ledger, name: str) -> None:
        task_class = ledger.spec(ledger.by_token[name]).task_class
        self.tokens[name] = (ledger.batch, task_class)
        self.out[task_class] += 1

    # ------------------------------------------------------------ entries

    def decide(self, batch: str, entry: Entry, now_ms: int) -> None:
        """Apply an entry, to be written at the end of the turn. Raises IllegalTransition for one that cannot be."""
        self.at = batch
        if isinstance(entry, Fail):
            entry = replace(entry, clock_ms=now_ms)
        effect = self._apply(self.batches[batch], entry)
        self._go_on(self.batches[batch].ledger, effect, now_ms)
        if isinstance(entry, Reopen):
            self._take_back_strays(batch)

    def write(self) -> int:
        """One append and one sync for each batch that changed; how many entries were written."""
        written = 0
        for name, batch in self.batches.items():
            if batch.todo:
                self.at = name
                batch.journal.commit(batch.todo)
                written += len(batch.todo)
                batch.todo = []
        return written

    def _apply(self, batch: ActiveBatch, entry: Entry) -> Effect:
        """Apply an entry, and keep count of the tokens that are out."""
        if isinstance(entry, Timed):
            entry = replace(entry, at_ms=self._wall_ms())
        effect = batch.ledger.apply(entry)
        batch.todo.append(entry)
        batch.may_have_ended, batch.is_drawn = True, False
        for name in effect.closed:
            _, task_class = self.tokens.pop(name)
            self.out[task_class] -= 1
        if isinstance(entry, Issue):
            self._count_token(batch.ledger, entry.name)
        _log(batch.ledger, entry)
        return effect

    def _go_on(self, ledger: Ledger, effect: Effect, now_ms: int) -> None:
        """Line up the tasks that became ready. A reopened batch first keeps those that need not run again."""
        batch = self.batches[ledger.batch]
        for each in carry_over(ledger, effect, lambda entry: self._apply(batch, entry)):
            for task in each.ready:
                if ledger.phase(task) is Phase.READY:
                    self._line_up(ledger, task, now_ms)
            for template in each.expandable:
                if not ledger.is_expanded(template):
                    self.fanouts[ledger.batch, template] = Fanout()

    def _take_back_strays(self, batch: str) -> None:
        for entry in strays(self.batches[batch].ledger):
            self._apply(self.batches[batch], entry)

    def _line_up(self, ledger: Ledger, task: str, now_ms: int) -> None:
        left_ms = ledger.left_ms(task, self._boot, now_ms)
        spec = ledger.spec(task)
        self.lineup.add(
            ledger.batch, task, task_class=spec.task_class, priority=spec.priority or ledger.priority,
            not_before_ms=now_ms + left_ms if left_ms else 0,
        )  # fmt: skip


def denied(error: OSError) -> str:
    """What people are told of a file or folder in a batch that the coordinator cannot use."""
    path = error.filename or error.filename2
    if isinstance(error, PermissionError):
        return f"{path}: permission denied; let the user of the coordinator, {os.geteuid()}, read and write there"
    if isinstance(error, FileNotFoundError):
        return f"{path} is not there; put the batch's folder back"
    why = error.strerror or str(error)
    return f"{path}: {why[:1].lower()}{why[1:]}; move away what lies there, and put back what belongs there"


def _addressee(spec: Spec) -> str:
    """The agent that a task of class meta names, as in `load_llm gpu-1`. Without one any with a model takes it."""
    words = spec.work.command.split() if spec.task_class is TaskClass.META else []
    try:
        return places.check_agent_name(words[1]) if len(words) > 1 else ""
    except OursError:
        return ""


def _log(ledger: Ledger, entry: Entry) -> None:
    """One line per decision: what matters to people at INFO, each single task at DEBUG."""
    level = _LEVELS.get(type(entry), logging.DEBUG)
    if isinstance(entry, Fail) and entry.is_final:
        level = logging.WARNING
    if not _LOG.isEnabledFor(level):
        return
    task = getattr(entry, "task", "")
    figures = [(key, getattr(entry, key, None)) for key in _LOGGED]
    if isinstance(entry, Ended) and ledger.is_cancelled:
        figures = [("outcome", "cancelled")]
    about = "".join(f" {key}={getattr(value, 'value', value)}" for key, value in figures if value)
    _LOG.log(level, "action=%s batch=%s%s%s", type(entry).__name__.lower(), ledger.batch,
             f" task={task}" if task else "", about)  # fmt: skip


#: What the log says of an entry beside its task.
_LOGGED = ("attempt", "agent", "end", "rc", "cause", "outcome", "delay_ms", "who", "reason")
_LEVELS: dict[type[Entry], int] = {
    Fail: logging.INFO, Lost: logging.WARNING, Revoke: logging.WARNING, Hold: logging.WARNING, Cancel: logging.INFO,
    Ended: logging.INFO, Open: logging.INFO, Reopen: logging.INFO, Approve: logging.WARNING, Deny: logging.WARNING,
}  # fmt: skip
