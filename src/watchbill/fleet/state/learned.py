"""Learned figures: how long the tasks of a plan take, and how much GPU memory, from the journals of earlier batches.

The journal of a batch has the time of every attempt that was accepted. Times are kept per item, so that another
`batch_size` changes nothing. The k-th run of a task is expected to take as long as the k-th recorded one, from the
beginning again behind the last: so both the sum and the spread of many runs are those of the past.

    learned   the task of this name was complete in an earlier batch of the plan
    similar   it never was; other tasks of its class in this folder were
    guess     nothing is known
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from watchbill.errors import OursError
from watchbill.fleet import limits
from watchbill.fleet.folder.disk import Disk, FolderDisk
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.state.reading import BatchPlace, Follower, batches_of
from watchbill.plans.task import TaskClass

__all__ = ["Expected", "History", "Source", "learned_vram", "read_history"]

#: What a task takes of which nothing is known.
_GUESSED_MS = {TaskClass.CPU: 10_000, TaskClass.SCRIPT: 60_000, TaskClass.LLM: 20_000, TaskClass.META: 1_000}


class Source(Enum):
    """Where a time, or a number of items, comes from."""

    LEARNED = "learned"
    SIMILAR = "similar"
    GUESS = "guess"


@dataclass(frozen=True, slots=True)
class Expected:
    """The times that the runs of a task take, in ms per item."""

    source: Source
    times_ms: Sequence[int]

    def run_ms(self, number: int, items: int) -> int:
        """How long run number 0, 1, 2 ... takes."""
        return self.times_ms[number % len(self.times_ms)] * max(1, items)

    @property
    def mean_ms(self) -> int:
        return round(sum(self.times_ms) / len(self.times_ms))


@dataclass(slots=True)
class History:
    """What earlier batches tell about a plan."""

    batches: int = 0
    #: task of this plan -> ms per item
    _times: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    _similar: dict[TaskClass, list[int]] = field(default_factory=dict[TaskClass, list[int]])
    #: template -> its items in the newest batch
    items: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def expected(self, task: str, task_class: TaskClass) -> Expected:
        """How long a task takes."""
        if task in self._times:
            return Expected(Source.LEARNED, self._times[task])
        similar = self._similar.get(task_class)
        if similar:
            return Expected(Source.SIMILAR, [round(sum(similar) / len(similar))])
        return Expected(Source.GUESS, [_GUESSED_MS[task_class]])

    def runs(self, task: str) -> int:
        """How many runs of a task are known."""
        return len(self._times.get(task, ()))

    def add(self, ledger: Ledger, *, is_own: bool) -> None:
        """Take over what a batch came to. The newest batch has to come first."""
        self.batches += is_own
        for template, task_class, ms in _runs(ledger):
            lists = [self._similar.setdefault(task_class, [])]
            lists += [self._times.setdefault(template, [])] if is_own else []
            for each in lists:
                if len(each) < limits.LEARNED_RUNS_MAX:
                    each.append(ms)
        if is_own:
            for template in ledger.templates():
                self.items.setdefault(template, tuple(_items(ledger, template)))


def read_history(disk: FolderDisk, plan: str) -> History:
    """What the newest batches of a plan, and some of others, came to. A journal that makes no sense is passed over."""
    history = History()
    places = [each for each in reversed(batches_of(disk)) if each.has_journal]
    own = [each for each in places if each.plan == plan]
    others = [each for each in places if each.plan != plan]
    for group in (own, others):
        for ledger in _ledgers(disk, group[: limits.LEARNED_BATCHES_MAX]):
            history.add(ledger, is_own=group is own)
    return history


def learned_vram(disk: Disk, plan: str) -> dict[str, int]:
    """Task -> MiB of GPU memory: a little more than the highest peak of the newest batch that has measured one."""
    places = [BatchPlace(batch, plan) for batch in reversed(disk.names(f"plans/{plan}/history"))]
    found: dict[str, int] = {}
    for ledger in _ledgers(disk, places[: limits.LEARNED_VRAM_BATCHES_MAX]):
        peaks: dict[str, int] = {}
        for task in ledger.tasks():
            name, peak = ledger.template_of(task), ledger.state(task).peak_vram_mb
            peaks[name] = max(peaks.get(name, 0), peak)
        for name, peak in peaks.items():
            if peak:
                found.setdefault(name, -(-peak * limits.LEARNED_VRAM_PERCENT // 100))
    return found


def _ledgers(disk: Disk, places: Iterable[BatchPlace]) -> Iterator[Ledger]:
    for place in places:
        try:
            yield Follower(disk, place).read()
        except OursError:
            continue


def _runs(ledger: Ledger) -> Iterator[tuple[str, TaskClass, int]]:
    """Each complete task: its template, its class and its time per item."""
    for task in ledger.tasks():
        state = ledger.state(task)
        if ledger.phase(task) is Phase.COMPLETE and state.attempt:
            items = max(1, len(ledger.items(task)))
            yield ledger.template_of(task), ledger.spec(task).task_class, round(state.ms / items)


def _items(ledger: Ledger, template: str) -> Iterator[str]:
    for task in ledger.tasks_of(template):
        yield from ledger.items(task)
