"""Sums up a simulated run: loads, waits per class, memory, and refusals."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from watchbill.catalog import WorkClass
from watchbill.core.messages import Refusal
from watchbill.simulate.callers import Caller, CallerOutcome
from watchbill.simulate.world import World

__all__ = ["LAWS", "ClassFigures", "Report", "part_of"]

#: The invariants that the judge checks after every step, each named by its breach.
LAWS = (
    "memory over the budget when a load was emitted",
    "two of an exclusive group on one device",
    "more loads at once than allowed",
    "a shared engine was managed",
    "a permanent model was closed for another",
    "a grant on a model that is not ready",
    "a grant on a draining model",
    "reopened after the stop",
    "more in flight than slots",
    "in-flight counts differ",
    "a request ended twice",
    "a request waits past its due without an answer",
    "work waits before a ready, idle model",
    "something waits and no timer is armed",
    "closed before its waiting work was granted",
    "cut twice before its first byte",
    "closed inside its quantum",
    "a turn was cut short in vain",
    "a busy model was closed for an equal",
    "loading takes more than its share",
    "a sum of the core is out of date",
    "more is planned than fits",
    "planned again with an old definition",
    "a set was planned in part",
    "a grant without all its companions",
    "a companion was stopped while in use",
    "an engine woke without its memory",
    "a request ran longer than its time limit",
    "a hung engine is not found",
    "a stalling engine is not found",
    "stopped for a load that the disk prevents",
    "a higher class waits for a lower one",
    "a worse priority was loaded first",
    "a model waits though its memory is free",
    "more of a lane at once than it may run",
    "a later request of its lane went first",
    "a place of a lane is kept for a model that does not load",
    "a place of a lane is kept for too long",
    "memory was lent that was not there",
    "a permanent model was closed for a loan",
    "a model in use was closed for a loan",
)


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """The results of one class of requests. Counts are fractions in the average of several runs."""

    callers: float
    answered: float
    in_time: float  # started within their own max_wait
    refused: float  # at once, by the forecast
    expired: float  # after waiting
    wait_mean_ms: float
    wait_p50_ms: float
    wait_p95_ms: float
    wait_max_ms: float


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    loads: float
    loading_share: float  # the share of all time in which something loaded
    answered: float
    span_ms: float  # until the last answer
    steps: int  # number of steps of the core, each of them judged
    peak: dict[str, int]
    classes: dict[WorkClass, ClassFigures]
    broken: dict[str, int]

    @classmethod
    def of(cls, world: World, bound_ms: Callable[[str], int]) -> "Report":
        """The figures of a finished world; a lane's bound decides what counts as in time."""
        callers = world.explicit()
        classes = sorted({c.request.work_class for c in callers})
        return cls(
            loads=world.tally.loads,
            loading_share=world.tally.load_ms / max(world.now, 1.0),
            answered=sum(1 for c in callers if c.outcome is CallerOutcome.ANSWERED),
            span_ms=max(
                (c.ended_at or 0.0 for c in callers if c.outcome is CallerOutcome.ANSWERED), default=0.0
            ),
            steps=world.steps,
            peak=dict(world.tally.peak),
            classes={
                k: _class_figures([c for c in callers if c.request.work_class is k], world.now, bound_ms)
                for k in classes
            },
            broken={law: len(cases) for law, cases in world.judge.broken.items()},
        )


def _class_figures(callers: list[Caller], now: float, bound_ms: Callable[[str], int]) -> ClassFigures:
    waits = sorted(
        _wait(c, now) for c in callers if c.started_at is not None or c.outcome is not CallerOutcome.LEFT
    )
    return ClassFigures(
        callers=len(callers),
        answered=sum(1 for c in callers if c.outcome is CallerOutcome.ANSWERED),
        in_time=sum(
            1 for c in callers if c.started_at is not None and _wait(c, now) <= bound_ms(c.request.lane)
        ),
        refused=sum(1 for c in callers if c.outcome is Refusal.WAIT_EXCEEDED and not c.served_by),
        expired=sum(1 for c in callers if c.outcome is Refusal.WAIT_EXCEEDED and c.served_by),
        wait_mean_ms=mean(waits) if waits else 0.0,
        wait_p50_ms=part_of(waits, 0.5),
        wait_p95_ms=part_of(waits, 0.95),
        wait_max_ms=part_of(waits, 1.0),
    )


def _wait(caller: Caller, now: float) -> float:
    end = caller.started_at if caller.started_at is not None else caller.ended_at
    # The core's clock has whole milliseconds.
    return int(now if end is None else end) - caller.request.arrived_at


def part_of(ordered: list[float], share: float) -> float:
    """The figure below which this share of sorted figures lies; 0 where there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
