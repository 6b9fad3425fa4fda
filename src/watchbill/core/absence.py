"""Absence: why a model is not in memory, as a fact with its figures, and in words.

A model that is absent has exactly one reason; where several apply, the most lasting one counts. `status`, `explain`,
the journal and alerts all report the same one. A permanent model that does not fit raises an alert (RES-02, RES-04),
and so does a card that takes no model because of its health (RES-27).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from watchbill.core.contenders import is_held_back
from watchbill.core.ledger import DeviceBook
from watchbill.core.messages import Alert, AlertKind, Cause, Constraint, JournalEvent, Trouble
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import AT_WORK, Reason
from watchbill.core.resources import GroupPlace, HostPlaces, Needs, Places, ResidentPlaces
from watchbill.core.stages import Stage
from watchbill.core.state import State
from watchbill.units import format_bytes

__all__ = [
    "Absence",
    "Missing",
    "Unwell",
    "Why",
    "absence_of",
    "constraint_text",
    "describe",
    "obstacle_of",
    "pins_before",
    "pins_text",
]


class Why(StrEnum):
    """The reason why a model is not in memory."""

    FAILED = "failed"  # its last load or its engine failed
    NEVER_FITS = "never_fits"  # larger than what its device has for it beside permanent models
    MAINTENANCE = "maintenance"  # its device is lent
    LENT = "lent"  # so much of its device is lent that it does not fit beside that
    UNWELL = "unwell"  # its device is too hot, too full, or draws too much
    UNREADABLE = "unreadable"  # there is no recent reading of its device
    SILENT = "silent"  # the program that hosts it does not answer
    SETTLING = "settling"  # its device has just run out of memory
    BY_HAND = "by_hand"  # the operator unloaded it; the next request loads it again
    RESTS = "rests"  # only other machines want it, and a person works at this one
    NO_ROOM = "no_room"  # requested, and there is too little memory now
    WAITING = "waiting"  # requested, and other models come first
    LEFT = "left"  # it was in memory, and left for a cause
    UNUSED = "unused"  # not requested since the start


#: A card is over its limit for so long before that is reported: its power exceeds it for a moment now and then.
UNWELL_MS = 5_000
#: A card that is often over its limit raises one alert in this time; the journal has all of it.
UNWELL_ALERT_EVERY_MS = 600_000
#: Reasons for the absence of a permanent model that only a person can remove.
_ALARMING = (Why.NEVER_FITS, Why.NO_ROOM)


@dataclass(frozen=True, slots=True)
class Absence:
    """Why one model is not in memory."""

    why: Why
    device: str | None = None
    needed: int = 0  # bytes, or places of a group or count
    room: int = 0  # how much of it is there for the model
    places: Places | None = None  # the exhausted places; None: memory
    cause: Cause | None = None  # why it left
    detail: str = ""  # in the words of an engine or a card
    left: Reason | str = ""  # the reason beside `cause`
    pinned: tuple[str, ...] = ()  # models pinned by hand that keep it out for good


def absence_of(state: State, model: ModelState, now: int) -> Absence | None:
    """The reason why a model is not in memory; None when it is, or is on its way."""
    if model.stage is not Stage.ABSENT or model.spec.shared:
        return None
    if model.failure is not None:
        return Absence(Why.FAILED, detail=model.failure)
    if model.silence is not None:
        return obstacle_of(state, model, now)  # no other reason can apply to it
    kept = state.permanents(model)
    room = {r: state.ledger.capacity_of(r) - sum(k.get(r, 0) for k in kept) for r in model.needs}
    if not all(state.ledger.capacity_known(book.device.name) for book in state.ledger.books_of(model.needs)):
        return Absence(Why.UNREADABLE, model.first_device)
    if not state.can_ever_fit(model):
        return replace(_lacking(Why.NEVER_FITS, model.needs, room), pinned=pins_before(state, model))
    if (obstacle := obstacle_of(state, model, now)) is not None:
        return obstacle
    if model.is_evicted_by_hand:
        return Absence(Why.BY_HAND)
    if model.line and is_held_back(state, model):
        return Absence(Why.RESTS)
    if model.line or model.held_turn is not None or model.must_return:
        is_short = bool(state.shortage_of(model))
        return (
            _lacking(Why.NO_ROOM, model.needs, state.planned_free(model))
            if is_short
            else Absence(Why.WAITING)
        )
    if model.left is not None:
        return Absence(Why.LEFT, cause=model.left, left=model.leaving_why)
    return Absence(Why.UNUSED)


def pins_before(state: State, model: ModelState) -> tuple[str, ...]:
    """The models pinned by hand without which this one would fit."""
    pins = [
        s
        for s in state.managed
        if s is not model and s.name in state.catalog.pinned and not s.needs.keys().isdisjoint(model.needs)
    ]
    fits = bool(pins) and state.ledger.fits_ever(model.needs, state.permanents(model, *pins))
    return tuple(s.name for s in pins) if fits else ()


def pins_text(pins: Sequence[str]) -> str:
    """Advice on models that were pinned by hand, for the end of a sentence."""
    if not pins:
        return ""
    commands = " and ".join(f"watchbill pin {name} --off" for name in pins)
    who = f"{pins[0]} is" if len(pins) == 1 else f"{', '.join(pins)} are"
    return f"; {who} pinned by hand: {commands} makes room"


def obstacle_of(state: State, model: ModelState, now: int) -> Absence | None:
    """What prevents every load on this model's engine host or on one of its devices."""
    if model.silence is not None:
        return Absence(Why.SILENT, detail=model.silence)
    held = (_held_up(book, now) for book in state.ledger.books_of(model.needs))
    obstacle = next((obstacle for obstacle in held if obstacle is not None), None)
    if obstacle is None and (book := state.lent_out(model)) is not None:
        return _lent(book, model)
    return obstacle


def _lent(book: DeviceBook, model: ModelState) -> Absence:
    name, granted = book.device.name, [loan for loan in book.loans.values() if loan.is_granted]
    purposes = ", ".join(dict.fromkeys(loan.why for loan in granted))
    detail = f"{format_bytes(book.lent)} for {purposes}"
    return Absence(Why.LENT, name, model.needs.get(name, 0), book.budget, detail=detail)


def _lacking(why: Why, needs: Needs, room: Needs) -> Absence:
    """The first resource that is too small for the needs."""
    resource = next((r for r, amount in needs.items() if amount > room.get(r, 0)), next(iter(needs), ""))
    needed, free = needs.get(resource, 0), max(0, room.get(resource, 0))
    match resource:
        case str(device):
            return Absence(why, device, needed, free)
        case HostPlaces():
            return Absence(why, None, needed, free, resource)
        case _:
            return Absence(why, resource.device, needed, free, resource)


def _held_up(book: DeviceBook, now: int) -> Absence | None:
    name = book.device.name
    if book.in_maintenance:
        return Absence(Why.MAINTENANCE, name, detail=book.lent_for)
    if book.reading is not None and book.reading.constrained:
        return Absence(Why.UNWELL, name, detail=constraint_text(book.reading.constrained))
    if not book.may_load:
        return Absence(Why.UNREADABLE, name)
    return Absence(Why.SETTLING, name) if now < book.settled_at else None


def describe(absence: Absence) -> str:
    """The reason in words, with advice where a person can do something."""
    device, needed, room = absence.device, format_bytes(absence.needed), format_bytes(absence.room)
    match absence.why:
        case Why.FAILED | Why.SILENT:
            return absence.detail
        case Why.NEVER_FITS if absence.places is not None:
            taken = f"it can never be loaded on {_where(absence.places)}: {_taken(absence.places)}"
            return f"{taken} by a permanent model{pins_text(absence.pinned)}"
        case Why.NEVER_FITS:
            return (
                f"it needs {needed} of {device}, where {room} is all there is beside permanent models; "
                f"give it a smaller context, or {device} more capacity or a smaller reserve"
                + pins_text(absence.pinned)
            )
        case Why.NO_ROOM if absence.places is not None:
            return f"it waits for {_where(absence.places)}: {_taken(absence.places)}"
        case Why.NO_ROOM:
            return f"it needs {needed} of {device}, where {room} is available now"
        case Why.MAINTENANCE:
            return f"{device} is lent for maintenance: {absence.detail}"
        case Why.LENT:
            return (
                f"it needs {needed} of {device}, where so much is lent that {room} is left: {absence.detail}"
            )
        case Why.UNWELL:
            return f"{device} takes no new model: {absence.detail}"
        case Why.UNREADABLE:
            return f"{device} cannot be read; watchbill doctor says why"
        case Why.SETTLING:
            return f"{device} ran out of memory a moment ago"
        case Why.BY_HAND:
            return "it was unloaded by hand; the next request loads it again"
        case Why.RESTS:
            return f"the work of other machines for it rests: {AT_WORK}"
        case Why.WAITING:
            return "it waits for its turn"
        case Why.LEFT:
            return f"it left: {absence.left}" if absence.left else "it left"
        case Why.UNUSED:
            return "it has not been requested yet"


def _where(places: Places) -> str:
    return places.engine if isinstance(places, HostPlaces) else places.device


def _taken(places: Places) -> str:
    match places:
        case GroupPlace(_, group):
            return f"the place of its group {group} is taken"
        case ResidentPlaces():
            return "max_resident is reached"
        case HostPlaces():
            return "every place for a model is taken"


def constraint_text(limit: Constraint) -> str:
    """The health limit that a device exceeds, in words."""
    match limit.trouble:
        case Trouble.HEAT:
            return f"{limit.figure:.0f} C, {_beyond(limit)} {limit.limit:.0f} C"
        case Trouble.MEMORY:
            return f"others use {limit.figure:.0f} % of its memory, {_beyond(limit)} {limit.limit:.0f} %"
        case Trouble.POWER:
            return f"{limit.figure:.0f} W, {_beyond(limit)} {limit.limit:.0f} W"
        case Trouble.THROTTLED:
            return f"it slows itself down: {', '.join(limit.throttled)}"
        case Trouble.UNREAD:
            return f"it could not be read for {limit.figure:.0f} s"


def _beyond(limit: Constraint) -> str:
    """A device recovers with a margin below its limit."""
    return "and its limit is" if limit.figure >= limit.limit else "not far enough below its limit of"


class Unwell:
    """The cards that take no new model because of their health. Each reason is reported once while it lasts."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._since: dict[str, tuple[Trouble, int]] = {}  # device -> what it exceeds, and since when
        self._told: dict[str, Trouble] = {}
        self._alerted: dict[str, int] = {}  # device -> its last alert

    def observed(self, now: int) -> None:
        """Looks at the newest readings."""
        for name, book in self._state.ledger.books.items():
            limit = None if book.reading is None else book.reading.constrained
            if limit is not None:
                self._see(name, limit, now)
            elif self._since.pop(name, None) is not None and self._told.pop(name, None) is not None:
                self._state.note(JournalEvent.RECOVERED, f"{name} takes models again", device=name)

    def _see(self, name: str, limit: Constraint, now: int) -> None:
        seen, since = self._since.get(name, (limit.trouble, now))
        self._since[name] = (limit.trouble, since if seen is limit.trouble else now)
        if now < self._since[name][1] + UNWELL_MS or self._told.get(name) is limit.trouble:
            return
        self._told[name] = limit.trouble
        text = describe(Absence(Why.UNWELL, name, detail=constraint_text(limit)))
        self._state.note(JournalEvent.CONSTRAINED, text, device=name)
        if name not in self._alerted or now >= self._alerted[name] + UNWELL_ALERT_EVERY_MS:
            self._alerted[name] = now
            self._state.out.append(Alert(AlertKind.CARD, f"{text}; loaded models go on serving", None, name))


class Missing:
    """Permanent models that do not fit into memory. Each reason is reported once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: dict[str, Why] = {}

    def turn(self, now: int) -> None:
        """Raises an alert for each permanent model that should be in memory and does not fit."""
        if not self._told and not self._state.misses_permanent():
            return
        missing = [s for s in self._state.in_stage(Stage.ABSENT) if s.must_return]
        self._told = {s.name: self._told[s.name] for s in missing if s.name in self._told}
        for model in missing:
            absence = absence_of(self._state, model, now)
            if (
                absence is not None
                and absence.why in _ALARMING
                and self._told.get(model.name) is not absence.why
            ):
                self._told[model.name] = absence.why
                self._tell(model, absence)

    def _tell(self, model: ModelState, absence: Absence) -> None:
        text = describe(absence)
        self._state.note(JournalEvent.ABSENT, text, model, device=absence.device, size=absence.needed)
        self._state.out.append(
            Alert(
                AlertKind.ABSENT,
                f"{model.name} is permanent and not in memory: {text}",
                model.name,
                absence.device,
            )
        )
