"""The core's state: the stations, the ledger, and the two views of what is free.

Shared by the small machines of the core (`lanes`, `dispatch`, `residency`), which never call each other: what two of
them do to a request (join a line, leave it, be refused, be cut) is a move of the state.
"""

from collections.abc import Mapping

from watchbill.catalog import Catalog, Model, WorkClass
from watchbill.core.budget import DeviceBook, Ledger, needs_of
from watchbill.core.messages import Action, Cut, Footprint, Grant, Knowledge, Note, Refuse, Request
from watchbill.core.station import HOLDING, MOVING, STAYING, Running, Stage, Station

__all__ = ["State"]

#: A caller may wish a model to stay idle this long; a longer stay is the operator's to grant.
KEEP_ALIVE_MAX_MS = 24 * 3_600_000

_EMPTY = Knowledge(Footprint({}))


class State:
    """Everything the core knows."""

    def __init__(self, catalog: Catalog, known: Mapping[str, Knowledge]) -> None:
        self.catalog = catalog
        self.ledger = Ledger(catalog)
        self.stations: dict[str, Station] = {}
        self.managed: list[Station] = []  # those whose engines are ours to start and stop
        for name in sorted(catalog.models):
            self.add(catalog.models[name], known.get(name, _EMPTY))
        self.home: dict[str, Station] = {}  # request id -> where it waits or runs
        self.lane_waiting: dict[str, int] = {}
        self.waiting = 0  # requests in all lines
        self.active_at: int | None = None  # the last load, grant or finished background task
        self.moving = 0  # stations on their way in or out of memory
        self.plans_made = 0
        self.is_closing = False
        self.late_answers = 0
        self.out: list[Action] = []
        self.wakes: list[float] = []

    # ------------------------------------------------------------------ stations

    def add(self, model: Model, known: Knowledge) -> Station:
        """Makes a station for a model and keeps the order by name: same input, same decisions."""
        station = Station(model, self.catalog.policy, known)
        self.stations[model.name] = station
        self._sort()
        self.weigh(station)
        return station

    def _sort(self) -> None:
        self.stations = dict(sorted(self.stations.items()))
        self.managed = [s for s in self.stations.values() if not s.model.shared]

    def remove(self, station: Station) -> None:
        """Forgets a station that is out of memory and no longer in the config."""
        del self.stations[station.name]
        self._sort()

    def weigh(self, station: Station) -> None:
        """Renews what a station needs of the ledger after its size became better known."""
        station.needs = {} if station.model.shared else needs_of(station.model, station.sizes(), self.catalog)

    def in_stage(self, *stages: Stage) -> list[Station]:
        """The managed stations in one of these stages."""
        return [s for s in self.managed if s.stage in stages]

    def permanents(self, but: Station) -> list[Mapping[str, int]]:
        """What the models that never leave need, apart from one of them: the permanent ones, and reserved cores."""
        kept: list[Mapping[str, int]] = [
            s.needs for s in self.managed if s.model.permanent and s is not but and not s.hopeless
        ]
        for name, book in self.ledger.books.items():
            reservation = book.device.reservation
            core = self.stations.get(reservation.model) if reservation else None
            if reservation and core is not None and core is not but and not core.model.permanent:
                kept.append({name: max(reservation.memory, core.needs.get(name, 0))})
        return kept

    def can_ever_fit(self, station: Station) -> bool:
        """Whether a model could be resident beside what never leaves."""
        return station.model.shared or self.ledger.fits_ever(station.needs, self.permanents(station))

    def may_load(self, station: Station, now: int) -> bool:
        """Whether every device it needs was looked at lately and has settled after an emergency."""
        books = self._books(station)
        return not self.is_closing and all(book.may_load and now >= book.settled_at for book in books)

    def can_forecast(self, station: Station) -> bool:
        """Whether its devices are in their ordinary state; under force nothing is foretold."""
        return all(book.may_load and not book.in_maintenance for book in self._books(station))

    def is_constrained(self, station: Station) -> bool:
        """Whether one of its devices is in bad health."""
        return any(book.reading and book.reading.constrained for book in self._books(station))

    def in_maintenance(self, station: Station) -> bool:
        """Whether one of its devices is lent to the operator."""
        return any(book.in_maintenance for book in self._books(station))

    def _books(self, station: Station) -> list[DeviceBook]:
        return [self.ledger.books[device] for device in station.needs if device in self.ledger.books]

    def is_leaving_when_idle(self, station: Station) -> bool:
        """RES-07, RES-25: whether its idle time counts. With room for everybody nobody leaves who was not told to."""
        if station.model.permanent or self.is_reserved_core(station):
            return False
        stays = station.model.stays_if_room and station.keep_alive_ms is None
        return not (stays and self.has_room_for_all())

    def has_room_for_all(self) -> bool:
        """Whether everything that is not in memory would fit beside what is (RES-25)."""
        missing: dict[str, int] = {}
        for station in self.managed:
            if station.stage not in STAYING and not station.hopeless:
                for resource, amount in station.needs.items():
                    missing[resource] = missing.get(resource, 0) + amount
        free = self.planned_free()
        return all(amount <= free[resource] for resource, amount in missing.items())

    def is_reserved_core(self, station: Station) -> bool:
        """Whether a device keeps memory for this model, so that it stays through every swap."""
        return station.name in self.ledger.reserved_for

    def tiers_below(self, station: Station) -> list[Station]:
        """The smaller members of a model's family, largest first."""
        if station.model.family is None:
            return []
        family = [s for s in self.stations.values() if s.model.family == station.model.family]
        family.sort(key=lambda s: (s.model.tier or 0, -sum(s.sizes().values()), s.name))
        return family[family.index(station) + 1 :]

    def local_interactive_waits(self) -> bool:
        """Whether a person waits anywhere: then leased work weighs nothing."""
        return any(s.line.counts[WorkClass.INTERACTIVE] for s in self.stations.values())

    # ------------------------------------------------------------------ what is free

    def planned_free(self, asking: Station | None = None) -> dict[str, int]:
        """What is free for a model when every change under way has ended."""
        return self._free(STAYING, promised=(Stage.LOADING, Stage.PLANNED), asking=asking)

    def actual_free(self, asking: Station | None = None) -> dict[str, int]:
        """What is free for a model now."""
        return self._free(HOLDING, promised=(Stage.LOADING,), asking=asking)

    def _free(
        self, counted: frozenset[Stage], promised: tuple[Stage, ...], asking: Station | None
    ) -> dict[str, int]:
        present = [s for s in self.managed if s.stage is not Stage.ABSENT]
        used: dict[str, int] = {}
        for station in present:
            if station.stage in counted:
                for resource, amount in station.needs.items():
                    used[resource] = used.get(resource, 0) + amount
        free = {r: self.ledger.limit(r) - used.get(r, 0) for r in self._resources()}
        for name, book in self.ledger.books.items():
            waiting = sum(_not_taken_yet(s, name) for s in present if s.stage in promised)
            leaving = sum(_held(s, name) for s in present if s.stage not in counted)
            free[name] = min(free[name], book.headroom(waiting) + leaving) - self._reserved(name, asking)
        return free

    def used(self, device: str, *stages: Stage) -> int:
        """What the models in these stages need of a device."""
        return sum(s.needs.get(device, 0) for s in self.managed if s.stage in stages)

    def running_in(self, lane: str) -> int:
        """How many requests of a lane run, on whichever model."""
        return sum(1 for s in self.stations.values() for r in s.running.values() if r.request.lane == lane)

    def _resources(self) -> list[str]:
        groups = {r for s in self.managed for r in s.needs} - self.ledger.books.keys()
        return [*self.ledger.books, *sorted(groups)]

    def _reserved(self, device: str, asking: Station | None) -> int:
        """What must stay free on a device for its reserved core model while that is not resident."""
        reservation = self.ledger.books[device].device.reservation
        core = self.stations.get(reservation.model) if reservation else None
        if reservation is None or core is None or core is asking:
            return 0
        return 0 if core.stage is not Stage.ABSENT else reservation.memory

    # ------------------------------------------------------------------ moves

    def join(self, station: Station, request: Request, due: int) -> None:
        """Puts a request into a model's line."""
        station.line.join(request, due)
        self.wakes.append(due)
        self.home[request.id] = station
        self.waiting += 1
        self.lane_waiting[request.lane] = self.lane_waiting.get(request.lane, 0) + 1

    def withdraw(self, station: Station, request_id: str) -> Request:
        """Takes a request out of its line and its lane."""
        request = station.line.leave(request_id)
        self.waiting -= 1
        self.lane_waiting[request.lane] -= 1
        return request

    def release(self, station: Station, request: Request, now: int) -> None:
        """A request is no longer served. What its caller wished for the model's idle time holds until the next one.

        A wish and no more: it protects against no swap and no emergency, and a closed door stays closed."""
        station.last_used = now
        wished = request.keep_alive_ms
        station.keep_alive_ms = None if wished is None else max(0, min(wished, KEEP_ALIVE_MAX_MS))
        if station.keep_alive_ms is not None:
            self.wakes.append(now + station.keep_alive_ms)

    def start(self, station: Station, request: Request, now: int) -> None:
        """Gives a request its turn on a ready model."""
        self.home[request.id] = station
        station.running[request.id] = Running(request, now, station.attempt, len(station.running) + 1)
        if request.work_class is not WorkClass.ROTATION:
            station.last_used = now
        station.aborts = station.reversals = 0
        self.active_at = now
        self.wakes.append(now + request.timeout_ms)
        self.out.append(Grant(request.id, station.name, station.attempt))

    def enter(self, station: Station, stage: Stage, now: int) -> None:
        """Brings a station to its next stage."""
        self.moving += (stage in MOVING) - (station.stage in MOVING)
        station.stage, station.since = stage, now
        if stage is Stage.ABSENT:
            station.held, station.leaving_for, station.stop_tries, station.emergency = {}, "", 0, False
            station.keep_alive_ms = None

    def is_calm(self) -> bool:
        """Whoever waits does so before a ready model, and nothing changes: there is nothing to decide."""
        if self.moving:
            return False
        return not any(
            s.ghost or s.must_return or (s.line and s.stage is not Stage.READY) for s in self.managed
        )

    def refuse(self, request_id: str, code: str, text: str, retry_after_ms: float | None = None) -> None:
        """Ends a request that never started, or goes back no more."""
        self.home.pop(request_id, None)
        self.out.append(
            Refuse(request_id, code, text, None if retry_after_ms is None else round(retry_after_ms))
        )

    def refuse_line(
        self, station: Station, code: str, text: str, retry_after_ms: float | None = None
    ) -> None:
        """Answers everybody who waits for a model that will not come."""
        station.ghost = None
        for request_id in station.line.ids():
            self.withdraw(station, request_id)
            self.refuse(request_id, code, text, retry_after_ms)

    def cut(self, running: Running, how: str, now: int) -> None:
        """Ends a running request; the driver reports back."""
        if running.cut is None or running.cut == "boundary":
            running.cut, running.cut_at = how, now
            self.out.append(Cut(running.request.id, how))

    # ------------------------------------------------------------------ out

    def note(
        self,
        event: str,
        reason: str,
        station: Station | None = None,
        *,
        device: str | None = None,
        ms: float | None = None,
        size: int | None = None,
        request: str | None = None,
    ) -> None:
        """Adds a line for the journal."""
        name, where = (station.name, next(iter(station.needs), None)) if station else (None, None)
        self.out.append(
            Note(event, reason, name, device or where, None if ms is None else round(ms), size, request)
        )


def _not_taken_yet(station: Station, device: str) -> int:
    """Memory that a load was promised and that the machine still shows as free."""
    taken = station.held.get(device, 0) if station.stage is Stage.LOADING else 0
    return max(0, station.needs.get(device, 0) - taken)


def _held(station: Station, device: str) -> int:
    """Memory that will be back when a station has gone; nothing is counted that was not seen."""
    return station.held.get(device, 0)
