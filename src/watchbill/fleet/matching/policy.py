"""Policy: which task is offered next, and what becomes of one that did not succeed. Pure.

Offers: priority first, then one task of each batch in turn, so that a batch of ten is not behind a batch of ten
thousand. Only a few slips are offered at a time (the **window**): a listing of the queue stays short, and what arrives
later with a higher priority does not wait behind them.

After an attempt, in this order:

    1. done                                     accept
    2. the agent or the slip was lost           again at once; not counted; the fifth loss waits for a person,
                                                without those in which it had not started
    3. soft stop (exit code 75)                 again at once; not counted
    4. not runnable here (126, 127)             once more, on another agent if there is one; then failed
    5. a disk was full                          again after 10 s, 60 s, 300 s, on another agent if there is one; not
                                                counted the first 20 times
    6. out of memory                            counted; again with 1.5 x the memory, at most the largest budget: at
                                                once where another agent has that much, else after 10 s, 60 s, 300 s
    7. a poor answer                            counted; again at once, with what was wrong with it
    8. anything else                            counted; again after 10 s, 60 s, 300 s, on another agent if there is one
    9. no attempts left                         failed

A command that a rule blocks, or that bash cannot parse, has failed at once, and so has a task that its values do not
allow to run; a command that a rule asks about waits for a person.
"""

import heapq
from collections import deque
from dataclasses import dataclass, replace

from watchbill.fleet import limits
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.matching.abilities import Ability, Need, lack_of
from watchbill.fleet.state.entries import Accept, Cause, Fail, Hold, Lost, Spec
from watchbill.fleet.state.ledger import TaskState
from watchbill.plans.task import TaskClass

__all__ = ["Crowd", "Lineup", "hold_of", "judge", "window_of"]

_LOSSES = (End.LOST, End.UNREADABLE, End.UNSTARTED)
#: Every further attempt would end in the same way.
_HOPELESS = (End.BLOCKED, End.UNPARSABLE, End.WRONG)


@dataclass(frozen=True, slots=True)
class Crowd:
    """The agents as far as decisions need them."""

    free: tuple[Ability, ...] = ()  # those that claim tasks: the living ones that are not on hold
    vram_mb_max: int = 0  # the largest budget of a living agent; 0 where none is known
    slots: int = 0  # of all living agents
    has_judge: bool = True  # whether the coordinator has a model that scores answers, as far as is known

    def has_other(self, agent: str, need: Need) -> bool:
        """Whether an agent beside this one could take a task."""
        return any(each.agent != agent and lack_of(need, [each]) is None for each in self.free)


# ------------------------------------------------------------------ after an attempt


def judge(
    task: str, state: TaskState, spec: Spec, result: Result, crowd: Crowd, *, need: Need
) -> Accept | Fail | Lost | Hold:
    """What a result under the current token leads to; `need` is the task's."""
    if result.end is End.DONE:
        return Accept(
            task, state.attempt, result.agent, result.ms, result.peak_vram_mb, peak_rss_mb=result.peak_rss_mb
        )
    if result.end in _LOSSES:
        return Lost(task, state.attempt, result.agent, result.end)
    if result.end is End.NEEDS_APPROVAL:
        return Hold(task, Cause.APPROVAL, result.agent, result.tail)
    is_counted = _is_counted(state, result)
    failures = state.failures + is_counted
    had_mb = state.vram_mb or spec.vram_mb
    vram_mb = _more_vram(had_mb, crowd) if result.end is End.OUT_OF_MEMORY else had_mb
    has_other = crowd.has_other(result.agent, replace(need, vram_mb=vram_mb))
    in_vain = failures + (state.disk_full + 1) * (result.end is End.DISK_FULL)
    return Fail(
        task, state.attempt, result.agent, result.end, result.rc, result.tail,
        is_final=failures >= spec.attempts or _is_hopeless(state, result),
        is_counted=is_counted,
        delay_ms=_delay_ms(result, in_vain, gets_more=has_other and vram_mb > had_mb),
        vram_mb=vram_mb,
        avoid=_avoid(result) if has_other else (),
        ms=result.ms,
    )  # fmt: skip


def _is_counted(state: TaskState, result: Result) -> bool:
    if result.end is End.SOFT_STOP:
        return state.soft_stops >= limits.SOFT_STOPS_MAX
    if result.end is End.DISK_FULL:
        return state.disk_full >= limits.DISK_FULL_MAX
    return result.end is not End.NOT_RUNNABLE


def _is_hopeless(state: TaskState, result: Result) -> bool:
    """Whether another attempt would end in the same way."""
    is_nowhere_runnable = result.end is End.NOT_RUNNABLE and state.not_runnable + 1 >= limits.NOT_RUNNABLE_MAX
    return is_nowhere_runnable or result.end in _HOPELESS


def _delay_ms(result: Result, in_vain: int, *, gets_more: bool) -> int:
    if result.end in (End.SOFT_STOP, End.NOT_RUNNABLE, End.POOR):
        return 0
    if result.end is End.OUT_OF_MEMORY and gets_more:
        return 0  # elsewhere, with more memory: that is another trial. The same card may be full for a while
    return limits.BACK_OFF_MS[min(max(in_vain, 1), len(limits.BACK_OFF_MS)) - 1]


def _more_vram(vram_mb: int, crowd: Crowd) -> int:
    more = -(-vram_mb * 3 // 2)
    return max(vram_mb, min(more, crowd.vram_mb_max)) if crowd.vram_mb_max else more


def _avoid(result: Result) -> tuple[str, ...]:
    """The agent it failed on: only where another one could run it, or the slip would wait for long."""
    return () if result.end in (End.SOFT_STOP, End.POOR) else (result.agent,)


def hold_of(task: str, state: TaskState) -> Hold | None:
    """Whether a ready task is left to a person instead of being issued."""
    return Hold(task, Cause.LOSSES) if state.losses >= limits.LOSSES_MAX else None


# ------------------------------------------------------------------ offers


def window_of(crowd: Crowd) -> int:
    """How many tokens of a class may be out at a time."""
    return min(max(limits.RELEASE_MIN, limits.RELEASE_PER_SLOT * crowd.slots), limits.RELEASE_MAX)


class Lineup:
    """The tasks that are ready: who is offered next. Adding and taking cost the same with 10 tasks and 100,000."""

    def __init__(self) -> None:
        #: class -> priority -> batch -> its tasks; the order of the batches is whose turn it is
        self._lines: dict[TaskClass, dict[int, dict[str, deque[str]]]] = {}
        self._delayed: list[tuple[int, int, str, str, TaskClass, int]] = []
        self._count = 0

    def add(
        self, batch: str, task: str, *, task_class: TaskClass, priority: int, not_before_ms: int = 0
    ) -> None:
        """A task is ready from that time on, by the clock of the agent that takes it."""
        if not_before_ms:
            self._count += 1
            entry = (not_before_ms, self._count, batch, task, task_class, priority)
            heapq.heappush(self._delayed, entry)
        else:
            self._append(batch, task, task_class, priority)

    def _append(self, batch: str, task: str, task_class: TaskClass, priority: int) -> None:
        lines = self._lines.setdefault(task_class, {}).setdefault(priority, {})
        lines.setdefault(batch, deque()).append(task)

    def take(self, task_class: TaskClass, now_ms: int) -> tuple[str, str] | None:
        """Take the next task of a class: its batch and its name; None where none is ready."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            self._append(*heapq.heappop(self._delayed)[2:])
        by_priority = self._lines.get(task_class)
        if not by_priority:
            return None
        priority = min(by_priority)
        batches = by_priority[priority]
        batch, line = next(iter(batches.items()))
        task = line.popleft()
        del batches[batch]
        if line:
            batches[batch] = line  # behind the others: its next turn comes after theirs
        if not batches:
            del by_priority[priority]
        return batch, task

    @property
    def next_at_ms(self) -> int | None:
        """When the first task that is put off becomes ready."""
        return self._delayed[0][0] if self._delayed else None
