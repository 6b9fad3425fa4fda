"""The state of a candidate: something that requests wait for, and that a policy may bring into memory.

It is what a model (`model_state`) and a set of models that are needed together (`companions`) have in common: a line, a
rank among the other candidates, a held turn, and the times that were learned.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from watchbill.catalog import Model, PolicyRules, WorkClass
from watchbill.core.estimate import ArrivalRate, MeanEstimate, MedianEstimate
from watchbill.core.line import Line
from watchbill.core.messages import Request
from watchbill.core.resources import Resource
from watchbill.core.running import Running
from watchbill.core.stages import Stage

__all__ = ["AGING_STEPS", "LOAD_GUESS_FLOOR_MS", "NEVER", "CandidateState", "HeldTurn"]

#: First guesses, marked as guesses until there is a measurement.
SERVICE_GUESS_MS = 5_000
LOAD_GUESS_FLOOR_MS = 1_000
#: How much longer an answer takes for each further one beside it, until that is measured.
SLOWDOWN_GUESS = 0.3
#: What became of so many forecasts is kept for the next ones.
LATER_COUNT = 9
#: A time before all others, for what has not happened yet.
NEVER = -(10**15)
#: Priorities are 1 to 5; a request moves up one step for each such share of its patience that is over.
PRIORITY_LOWEST = 5
AGING_STEPS = 3


@dataclass(frozen=True, slots=True)
class HeldTurn:
    """The place in the order of turns of a request that was refused or ran out of patience.

    It has no weight, but its model will be loaded. Without it a model whose callers all give up would fall behind the
    others each time, and two of three models would take turns without end.

    Its caller was told when to ask again, and finds the model in memory then: it is in memory by that time, and stays
    for it. Before, a model that nobody waited for left as soon as it was loaded, and who did as he was told was refused
    again and again.
    """

    due: int
    work_class: WorkClass
    back_at: int = NEVER  # when its caller was told to ask again


class CandidateState(ABC):
    """The line of a candidate, its rank among the others, and what was learned about its times."""

    is_set = False  # several models together
    in_epoch = False  # its ingestion window is open

    def __init__(self, name: str, spec: Model, rules: PolicyRules) -> None:
        self.name, self.spec, self.rules = name, spec, rules
        #: Whether a model of this machine is needed for it; the companions of a set are here.
        self.is_here = spec.site is None or self.is_set
        self.stage = Stage.ABSENT
        self.since = NEVER  # start of the present stage
        self.line = Line()
        self.running: dict[str, Running] = {}  # empty for a set: its requests run on the first member
        self.held_turn: HeldTurn | None = None
        self.needs: dict[Resource, int] = {}  # of the ledger's resources; kept by the state
        self.load = MedianEstimate(LOAD_GUESS_FLOOR_MS)
        self.service = MeanEstimate(SERVICE_GUESS_MS)
        self.slowdown: float = SLOWDOWN_GUESS
        self.rate = ArrivalRate()
        #: How much later than by the forecast of the rule the last requests of the lower classes started.
        self.later_ms: deque[int] = deque(maxlen=LATER_COUNT)
        self.last_class = WorkClass.ROTATION  # the class of its newest arrival
        self.last_used = self.top_class_at = NEVER
        self.left_at = NEVER  # the end of its last turn
        self.retry_at = NEVER
        self.failure: str | None = None  # the last reason, for people
        self.silence: str | None = None  # why its host cannot be asked to load or unload it
        self.is_cut_off = False  # no request is sent there until its host answers again
        self.is_under_way = False  # of a set: planned, and not complete yet

    @property
    def first_device(self) -> str | None:
        """The device that the journal names for it."""
        return next((need for need in self.needs if isinstance(need, str)), None)

    @property
    @abstractmethod
    def wants_memory(self) -> bool:
        """Whether it has work for which a model must be loaded."""

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self.line and not self.running

    @abstractmethod
    def drain_ms(self, now: int, *, least: bool = False) -> float:
        """Milliseconds until the memory that leaves for it would be back."""

    def top_class(self) -> WorkClass:
        """The highest class of its work; rotation when there is none. Held turns do not count."""
        return self.line.top_class()

    def work_of(self, work_class: WorkClass) -> int:
        """The number of requests of this class or a higher one that it has to serve."""
        running = sum(1 for r in self.running.values() if r.request.work_class <= work_class)
        return running + sum(self.line.counts[: work_class + 1])

    def turn_class(self) -> WorkClass:
        """The class of its turn: the highest class that waits, or that of its held turn."""
        waiting = self.line.top_class()
        return waiting if self.held_turn is None else min(waiting, self.held_turn.work_class)

    @property
    def is_promised(self) -> bool:
        """Whether its turn must come: rotation is never promised one."""
        return self.held_turn is not None or self.top_class() is not WorkClass.ROTATION

    def due(self) -> int | None:
        """When the most impatient request of its line, or its held turn, must have had a turn."""
        first, held_turn = self.line.earliest_due(), self.held_turn
        if first is None:
            return None if held_turn is None else held_turn.due
        return first[0] if held_turn is None else min(first[0], held_turn.due)

    def next_came(self) -> tuple[float, str]:
        """The arrival time of the next request to be served. Finding the oldest of all would scan the whole line."""
        came = self.line.oldest_arrival()
        return (float("inf") if came is None else came, self.name)

    @property
    def held_turn_ends(self) -> float:
        """When its held turn is dropped, if its caller has not come back."""
        return float("inf") if self.held_turn is None else self.held_turn.due + self.load.ms

    def weight_waiting(self, *, leased_counts: bool) -> float:
        """The weight of its line. Leased work has no weight while an interactive request waits."""
        weights = self.rules.weights
        return sum(
            count * weights[work_class]
            for work_class, count in enumerate(self.line.counts)
            if count and (leased_counts or work_class != WorkClass.LEASED)
        )

    def rank(self, now: int) -> tuple[WorkClass, bool, int]:
        """Its place among models that wait: class, the operator's own calls, then priority with its age.

        A request moves up one priority for each third of its patience that is over. Above the best priority, too: of
        requests that wait together the better one keeps its place.
        """
        first = self.line.first()
        if first is None:
            return (self.turn_class(), True, PRIORITY_LOWEST)
        aged = AGING_STEPS * (now - first.arrived_at) // max(1, first.max_wait_ms)
        return (first.work_class, not first.operator, first.priority - aged)

    def asked_rank(self) -> tuple[WorkClass, bool, int]:
        """Its place among models that wait as its callers asked for it, whatever the age of their requests."""
        first = self.line.first()
        if first is None:
            return (self.turn_class(), True, PRIORITY_LOWEST)
        return (first.work_class, not first.operator, first.priority)

    # ------------------------------------------------------------------ durations

    def likely_wait_ms(self, request: Request, forecast_ms: float) -> float:
        """The forecast of a request by what became of the last ones: interactive requests that come later overtake the
        lower classes. It is at most the patience of the request: before that is over its turn comes.

        Two of three of the last ones were as late as that. The median would be pessimistic where people come now and
        then: some of the requests are late then, and others are not.
        """
        if request.work_class is WorkClass.INTERACTIVE or not forecast_ms or not self.later_ms:
            return forecast_ms
        usual_ms = sorted(self.later_ms)[len(self.later_ms) // 3]
        return max(forecast_ms, min(forecast_ms + usual_ms, request.max_wait_ms))

    def learn_wait(self, request: Request, now: int) -> None:
        """Learns from the first start of a request that has waited."""
        if request.foretold_ms and not request.bound_at:
            self.later_ms.append(now - request.arrived_at - request.foretold_ms)

    def batch_factor(self, count: int) -> float:
        """How much slower one answer is when `count` are served at once."""
        slots = self.spec.concurrency
        return 1 + self.slowdown * ((count if count < slots else slots) - 1) if count > 1 else 1.0

    def service_of(self, count: int) -> float:
        """Milliseconds to serve `count` requests."""
        if not count:
            return 0.0
        return self.service.ms * self.batch_factor(count) * math.ceil(count / self.spec.concurrency)

    @property
    def next_load_ms(self) -> float:
        """How long its next load takes."""
        return self.load.ms

    @property
    def is_load_unsure(self) -> bool:
        """Whether its load time is a guess."""
        return self.load.is_guess

    @property
    def quantum_ms(self) -> float:
        """The minimum length of a turn."""
        return self.rules.alpha * self.load.ms
