"""Emergencies: memory runs out, or the budget shrank (RES-06).

The probe wins over the ledger. In an emergency the cheapest loss is evicted at once, permanent models too if that is
necessary. After each victim the machine is read again before the next one is chosen. A model that was leaving already
gets the same grace and no more.

The faster memory falls, the shorter the grace. Several victims leave at once where one would come too late. A program
that takes 400 MB/s fills a reserve of 2 GiB in five seconds: with one victim, two seconds of grace, a reading and the
next victim, the kernel had killed the permanent model before that.
"""

from collections import deque
from itertools import pairwise
from statistics import median_low

from watchbill.catalog import RAM
from watchbill.core.ledger import DeviceBook
from watchbill.core.messages import Alert, AlertKind, Cause, CutKind, Observed
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import Exceeded, Excess, Shortfall
from watchbill.core.residency import Move, Residency
from watchbill.core.resources import GroupPlace, HostPlaces, ResidentPlaces, Resource
from watchbill.core.stages import HOLDING, STAYING, Stage
from watchbill.core.state import State
from watchbill.units import format_bytes

__all__ = ["EMERGENCY_GRACE_MS", "Emergency", "Trend"]

#: In an emergency running work gets this long to finish.
EMERGENCY_GRACE_MS = 2_000
#: About this long after a kill the model's memory is back, and the machine has been read again.
BACK_MS = 1_000
#: Allowance for memory that falls faster than in the last second.
FALL_FACTOR = 1.5
#: After an emergency nothing is loaded for this long, so that memory does not flap.
SETTLE_MS = 10_000


class Emergency:
    """Evicts models when memory runs out or a budget shrinks."""

    def __init__(self, state: State, residency: Residency) -> None:
        self._state, self._residency = state, residency
        self._weighed = -1  # the last change of memory for which the budgets were checked
        self._trends: dict[str, Trend] = {}

    def observed(self, event: Observed, now: int) -> None:
        """Judges every device by its newest reading."""
        for name, book in self._state.ledger.books.items():
            if book.reading is not None and name in event.devices:
                trend = self._trends.setdefault(name, Trend())
                trend.look(event.taken_at - book.reading.age_ms, book.reading.available)
            stalls = Shortfall(name) if event.pressure and name == RAM else None
            self._judge(book, _shortfall(book) or stalls, now)

    def _judge(self, book: DeviceBook, short: Shortfall | None, now: int) -> None:
        """RES-06: evicts one victim at a time.

        The machine is read after each victim before the next is chosen, unless memory would run out before that.
        """
        name = book.device.name
        holders = [s for s in self._state.in_stage(*HOLDING) if s.needs.get(name)]
        # Models that can give memory back go first.
        holders = [s for s in holders if s.silence is None] or holders
        if short is None or not holders:
            book.emergency_since = None
            return
        if book.emergency_since is None:
            book.emergency_since = now
        book.settled_at = now + SETTLE_MS
        grace_ms, lacking = self._outlook(book)
        leaving = [s for s in holders if self._is_almost_gone(s, grace_ms, now)]
        for model in leaving:
            model.grace_ms = min(model.grace_ms, grace_ms)
            lacking -= self._still_frees(model, name, now)
        if leaving and lacking <= 0:
            return
        staying = [s for s in holders if s not in leaving]
        for victim in sorted(staying, key=lambda s: self._loss(s, now)):
            self._drive_out(victim, short, grace_ms, now)
            lacking -= victim.frees().get(name, 0)
            if lacking <= 0:
                return

    def _outlook(self, book: DeviceBook) -> tuple[float, float]:
        """The grace for running work, and the bytes that will be missing after the next victims; below 0: none."""
        trend = self._trends.get(book.device.name)
        fall = FALL_FACTOR * trend.fall if trend is not None else 0.0
        if not fall or book.reading is None:
            return EMERGENCY_GRACE_MS, 0.0
        available = max(0, book.reading.available)
        grace_ms = min(EMERGENCY_GRACE_MS, max(0.0, available / fall - BACK_MS) / 2)
        return grace_ms, fall * (grace_ms + BACK_MS) - available

    def _drive_out(self, victim: ModelState, why: Shortfall, grace_ms: float, now: int) -> None:
        self._state.out.append(
            Alert(AlertKind.EMERGENCY, f"{victim.name} leaves; {why}", victim.name, why.device)
        )
        if victim.stage is Stage.DRAINING:
            # From now on it has the same grace as any other victim.
            self._residency.enter(victim, Move.CLOSE, now)
        else:
            self._residency.close(victim, why, now, cause=Cause.PRESSURE)
        victim.emergency, victim.grace_ms = True, grace_ms

    @staticmethod
    def _is_almost_gone(model: ModelState, grace_ms: float, now: int) -> bool:
        if model.stage is Stage.DRAINING:
            return model.emergency or now < model.since + grace_ms
        return model.stage is Stage.STOPPING

    @staticmethod
    def _still_frees(model: ModelState, device: str, now: int) -> int:
        """The bytes that a leaving model will free: 0 when it takes longer than it should."""
        is_late = model.stage is Stage.STOPPING and now > model.since + 2 * BACK_MS
        return 0 if is_late else model.frees().get(device, 0)

    def _loss(self, model: ModelState, now: int) -> tuple[bool, bool, bool, float, str]:
        """The order of victims: cheapest loss first, permanent models late, the reserved core model last."""
        core = self._state.is_reserved_core(model)
        loading = model.stage is Stage.LOADING
        return (core, model.spec.permanent, not loading, model.price(now), model.name)

    def restore_budgets(self, now: int) -> None:
        """Frees memory where the budget shrank or a model grew: plans are dropped first, then models are evicted."""
        if self._weighed == self._state.changes:
            return
        self._weighed = self._state.changes
        if not self._state.is_overdrawn():
            return
        for name in self._state.resources():
            over = self._state.used(name, *STAYING) - self._state.ledger.limit(name)
            if over <= 0:
                continue
            planned = self._state.in_stage(Stage.PLANNED)
            for model in sorted(planned, key=lambda s: -s.plan_order):
                if over > 0 and model.needs.get(name) and model.stage is Stage.PLANNED:
                    self._residency.unplan(model, now)
                    over = self._state.used(name, *STAYING) - self._state.ledger.limit(name)
            resident = self._state.in_stage(Stage.READY, Stage.LOADING, Stage.ASLEEP)
            staying = [s for s in resident if s.needs.get(name)]
            for model in sorted(staying, key=lambda s: self._loss(s, now)):
                if over > 0:
                    self._warn(model, name)
                    over -= model.frees().get(name, 0)
                    self._residency.close(model, self._excess(name), now, cause=self._cause(name))

    def _warn(self, model: ModelState, resource: Resource) -> None:
        """Raises an alert for a permanent model that must leave because of the budget (RES-02)."""
        book = self._state.ledger.book(resource)
        if not model.spec.permanent or (book is not None and book.in_maintenance):
            return
        held = format_bytes(model.frees().get(resource, 0)) if book is not None else "1"
        budget = format_bytes(book.budget) if book is not None else str(self._state.ledger.limit(resource))
        text = (
            f"{model.name} is permanent and leaves: {self._excess(resource)} of {budget}, and it holds {held}"
        )
        if isinstance(resource, HostPlaces):
            self._state.out.append(Alert(AlertKind.BUDGET, text, model.name))
            return
        device = resource if isinstance(resource, str) else resource.device
        hint = f"give {device} more capacity or a smaller reserve, or the model a smaller context"
        self._state.out.append(Alert(AlertKind.BUDGET, f"{text}; {hint}", model.name, device))

    def _cause(self, resource: Resource) -> Cause:
        book = self._state.ledger.book(resource)
        return Cause.MAINTENANCE if book is not None and book.in_maintenance else Cause.BUDGET

    def _excess(self, resource: Resource) -> Excess:
        """Why a model must leave that fitted when it was loaded."""
        match resource:
            case GroupPlace(device, group):
                return Excess(Exceeded.GROUP, device, group)
            case ResidentPlaces(device):
                return Excess(Exceeded.RESIDENTS, device)
            case HostPlaces(engine):
                return Excess(Exceeded.PLACES, engine)
            case str(device):
                book = self._state.ledger.books[device]
                is_lent = book.in_maintenance
                return Excess(Exceeded.MAINTENANCE if is_lent else Exceeded.BUDGET, device, book.lent_for)

    def end_graces(self, now: int) -> None:
        """Cuts requests that still run on an emergency's victim when its grace is over."""
        for model in self._state.in_stage(Stage.DRAINING):
            if not model.emergency:
                continue
            if now < model.since + model.grace_ms:
                continue
            for running in (*model.running.values(), *model.users.values()):
                self._state.cut(running, CutKind.PREEMPTED if running.begun else CutKind.REQUEUE, now)


def _shortfall(book: DeviceBook) -> Shortfall | None:
    """The shortage of a device by its newest reading."""
    reserve = book.device.reserve
    if book.reading is None or book.reading.available >= reserve:
        return None
    return Shortfall(book.device.name, book.reading.available, reserve)


#: Readings older than this do not count.
TREND_MS = 1_000
#: Two readings closer together than this are treated as one: the kernel's figures are not that precise.
TREND_MS_MIN = 40
LOOKS_MIN = 3
LOOKS_MAX = 64


class Trend:
    """The readings of one device."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=LOOKS_MAX)  # time, bytes free

    def look(self, at: int, available: int) -> None:
        """Adds one reading."""
        if self._looks and at - self._looks[-1][0] < TREND_MS_MIN:
            return
        self._looks.append((at, available))
        while at - self._looks[0][0] > TREND_MS:
            self._looks.popleft()

    @property
    def fall(self) -> float:
        """Bytes lost per millisecond; 0 while memory does not fall."""
        if len(self._looks) < LOOKS_MIN:
            return 0.0
        falls = [(before[1] - after[1]) / (after[0] - before[0]) for before, after in pairwise(self._looks)]
        return max(0.0, median_low(falls))
