"""The ledger: the capacity of every device, and how much of it is free.

Its entries are the resources that models need (`resources`). There are two views. *Actual*: everything that occupies
memory now, including a stopping model until its memory is back (drivers release VRAM seconds after exit, and loading
into that gap is the commonest OOM). *Planned*: the state when every change under way has ended. Both are capped by the
machine's own report: a reading can only reduce them. Memory that was promised to a load and is not allocated yet looks
free to the machine. Memory of a leaving model is free only in the plan. The stricter figure counts.

Memory that is lent to a person or a task (a **loan**) belongs to no model: a granted loan reduces the budget, one that
still waits for its memory counts in the plan. The part of a loan that its holder has not taken yet looks free to the
machine and is not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchbill.catalog import Catalog, Device
from watchbill.core.companions import Candidate, total_needs
from watchbill.core.messages import DeviceReading
from watchbill.core.model_state import ModelState
from watchbill.core.resources import HostPlaces, Needs, Places, ResidentPlaces, Resource, in_order
from watchbill.core.stages import HOLDING, STAYING, Stage

__all__ = [
    "READING_AGE_MAX_MS",
    "DeviceBook",
    "Ledger",
    "Loan",
    "actual_room",
    "has_room",
    "own_share",
    "planned_room",
]

#: A reading older than this permits no load; serving goes on.
READING_AGE_MAX_MS = 30_000


@dataclass(slots=True)
class Loan:
    """Memory of one device that is lent, or promised, to a person or a task."""

    id: str
    device: str
    size: int
    why: str
    command: int  # gets the reply when it is granted
    asked_at: int
    is_granted: bool = False
    used: int = 0  # bytes that its holder was seen to use

    @property
    def unseen(self) -> int:
        """The part that its holder has not taken yet: the machine shows it as free."""
        return max(0, self.size - self.used)


class DeviceBook:
    """The figures of one device."""

    __slots__ = ("device", "emergency_since", "in_maintenance", "lent_for", "loans", "reading", "settled_at")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.reading: DeviceReading | None = None
        self.in_maintenance = False
        self.lent_for = ""  # the operator's reason for the maintenance
        self.loans: dict[str, Loan] = {}  # granted, or waiting for their memory
        self.emergency_since: int | None = None
        self.settled_at = 0  # after an emergency nothing is loaded before this

    @property
    def capacity(self) -> int:
        """The machine's figure, capped by the config, times the share that may be used."""
        known = [size for size in (self.device.capacity, self.reading and self.reading.capacity) if size]
        return int(min(known, default=0) * self.device.share)

    @property
    def budget(self) -> int:
        """The bytes that models may occupy in all."""
        return 0 if self.in_maintenance else max(0, self.capacity - self.device.reserve - self.lent)

    @property
    def lent(self) -> int:
        """The bytes of all granted loans."""
        return sum(loan.size for loan in self.loans.values() if loan.is_granted)

    @property
    def promised(self) -> int:
        """The bytes of the loans that wait for their memory."""
        return sum(loan.size for loan in self.loans.values() if not loan.is_granted)

    @property
    def may_load(self) -> bool:
        """Whether the last reading of the device is fresh enough for a load, and shows good health."""
        reading = self.reading
        return reading is not None and reading.age_ms <= READING_AGE_MAX_MS and reading.constrained is None

    @property
    def has_fresh_reading(self) -> bool:
        """Whether the last reading of the device says how much is free now."""
        return self.reading is not None and self.reading.age_ms <= READING_AGE_MAX_MS

    def headroom(self, promised: int) -> int:
        """The machine's free bytes above the reserve, less what was promised or lent and is not allocated yet."""
        if self.reading is None:
            return 0
        unseen = sum(loan.unseen for loan in self.loans.values() if loan.is_granted)
        return self.reading.available - self.device.reserve - promised - unseen


class Ledger:
    """All devices and the limits of their resources."""

    def __init__(self, catalog: Catalog) -> None:
        self.books: dict[str, DeviceBook] = {}
        self._counts: dict[Resource, int] = {}
        self.places: dict[str, int] = {}  # engine -> how many of our models it holds at once, if known
        self.reserved_for: frozenset[str] = frozenset()  # core models that stay through every swap
        self.reconfigure(catalog)

    def reconfigure(self, catalog: Catalog) -> None:
        """Takes over new device tables and keeps what was read from the machine."""
        books: dict[str, DeviceBook] = {}
        for name in sorted(catalog.devices):
            books[name] = DeviceBook(catalog.devices[name])
            if name in self.books:
                books[name].reading = self.books[name].reading
                books[name].in_maintenance = self.books[name].in_maintenance
                books[name].lent_for = self.books[name].lent_for
                books[name].loans = self.books[name].loans
        self.books = books
        kept = (device.reservation for device in catalog.devices.values())
        self.reserved_for = frozenset(reservation.model for reservation in kept if reservation)
        self._counts = {
            ResidentPlaces(name): device.max_resident
            for name, device in catalog.devices.items()
            if device.max_resident is not None
        }
        for engine, places in self.places.items():
            self._counts[HostPlaces(engine)] = places

    def set_places(self, engine: str, places: int | None) -> bool:
        """Sets how many models an engine holds at once. Returns whether that changed."""
        if self.places.get(engine) == places:
            return False
        self.places.pop(engine, None)
        self._counts.pop(HostPlaces(engine), None)
        if places is not None:
            self.places[engine] = self._counts[HostPlaces(engine)] = places
        return True

    def books_of(self, needs: Needs) -> list[DeviceBook]:
        """The devices among the resources of these needs."""
        return [self.books[need] for need in needs if isinstance(need, str) and need in self.books]

    def can_forecast(self, needs: Needs) -> bool:
        """Whether these devices are in their ordinary state; otherwise no forecast is possible."""
        return all(book.may_load and not book.in_maintenance for book in self.books_of(needs))

    def is_constrained(self, needs: Needs) -> bool:
        """Whether one of these devices is in bad health, or cannot be read any more."""
        return any(book.reading is not None and not book.may_load for book in self.books_of(needs))

    def in_maintenance(self, needs: Needs) -> bool:
        """Whether one of these devices is lent to the operator."""
        return any(book.in_maintenance for book in self.books_of(needs))

    def readings(self) -> dict[str, tuple[int, int]]:
        """The last readings: device -> capacity and available bytes."""
        seen = {name: book.reading for name, book in self.books.items()}
        return {name: (reading.capacity, reading.available) for name, reading in seen.items() if reading}

    def book(self, resource: Resource) -> DeviceBook | None:
        """The device whose bytes the resource is; None for places."""
        return self.books.get(resource) if isinstance(resource, str) else None

    def limit(self, resource: Resource) -> int:
        """The total amount of a resource."""
        book = self.book(resource)
        return book.budget if book is not None else self._counts.get(resource, 1)

    def fits_ever(self, needs: Needs, kept: Iterable[Needs]) -> bool:
        """Whether these needs fit beside the needs that never leave, judged by capacity, not by current use."""
        taken = dict(needs)
        for other in kept:
            for resource in taken:
                taken[resource] += other.get(resource, 0)
        for resource, amount in taken.items():  # noqa: SIM110  asked at every arrival; a loop takes half the time
            if amount > self.capacity_of(resource):
                return False
        return True

    def capacity_known(self, device: str) -> bool:
        """Whether the machine or the config ever reported the capacity of a device."""
        return self.books[device].capacity > 0

    def unread(self, needs: Needs) -> list[str]:
        """The devices among these resources of which nothing was ever read."""
        names = (book.device.name for book in self.books_of(needs))
        return [name for name in names if not self.capacity_known(name)]

    def capacity_of(self, resource: Resource) -> int:
        """The amount of a resource when nothing else uses it."""
        book = self.book(resource)
        return book.capacity - book.device.reserve if book is not None else self.limit(resource)


# ------------------------------------------------------------------ what is free


def planned_room(ledger: Ledger, models: Sequence[ModelState]) -> dict[Resource, int]:
    """What is free of every resource when every change under way has ended."""
    free = _free(ledger, models, STAYING, promised=(Stage.LOADING, Stage.PLANNED))
    for name, book in ledger.books.items():
        if book.loans:
            free[name] -= book.promised
    return free


def actual_room(ledger: Ledger, models: Sequence[ModelState]) -> dict[Resource, int]:
    """What is free of every resource now."""
    return _free(ledger, models, HOLDING, promised=(Stage.LOADING,))


def _free(
    ledger: Ledger, models: Sequence[ModelState], counted: frozenset[Stage], promised: tuple[Stage, ...]
) -> dict[Resource, int]:
    present = [s for s in models if s.stage is not Stage.ABSENT]
    used: dict[Resource, int] = {}
    for model in present:
        for resource, amount in _counted(model, counted).items():
            used[resource] = used.get(resource, 0) + amount
    free = {r: ledger.limit(r) - used.get(r, 0) for r in _resources(ledger, models)}
    for name, book in ledger.books.items():
        waiting = sum(_not_taken_yet(s, name) for s in present if s.stage in promised)
        leaving = sum(_held(s, name) for s in present if s.stage not in counted)
        free[name] = min(free[name], book.headroom(waiting) + leaving)
    return free


def has_room(models: Sequence[ModelState], free: Needs) -> bool:
    """Whether everything that is not in memory, and ever could be, fits into what is free."""
    away = (s for s in models if (s.stage not in STAYING or s.sleeps) and not s.hopeless)
    return all(amount <= free[resource] for resource, amount in total_needs(away).items())


def own_share(asking: Candidate, counted: frozenset[Stage]) -> dict[Resource, int]:
    """The resources that a sleeping candidate holds already when it asks to wake; of a device only what was seen.

    A member that counts in full has its promise already, and does not ask.
    """
    share: dict[Resource, int] = {}
    for model in asking.members:
        if not model.sleeps or _counts_in_full(model, counted):
            continue
        for resource, amount in model.asleep_needs.items():
            own = amount if isinstance(resource, Places) else min(amount, model.held.get(resource, 0))
            share[resource] = share.get(resource, 0) + own
    return share


def _counted(model: ModelState, counted: frozenset[Stage]) -> dict[Resource, int]:
    """The resources that count for a model; for one that sleeps, or will, only what it keeps then."""
    if _counts_in_full(model, counted):
        return model.needs
    return model.asleep_needs if model.sleeps else {}


def _counts_in_full(model: ModelState, counted: frozenset[Stage]) -> bool:
    return model.stage in counted and model.stage is not Stage.ASLEEP


def _resources(ledger: Ledger, models: Sequence[ModelState]) -> list[Resource]:
    places = {r for s in models for r in s.needs if isinstance(r, Places)}
    return [*ledger.books, *in_order(places)]


def _not_taken_yet(model: ModelState, device: str) -> int:
    """Memory that was promised to a load and that the machine still shows as free."""
    taken = model.held.get(device, 0) if model.stage is Stage.LOADING or model.sleeps else 0
    return max(0, model.needs.get(device, 0) - taken)


def _held(model: ModelState, device: str) -> int:
    """Memory that comes back when a model leaves or sleeps; memory that was never seen does not count."""
    kept = model.asleep_needs.get(device, 0) if model.sleeps else 0
    return max(0, model.held.get(device, 0) - kept)
