"""The core's state: the stations, the ledger, and the two views of what is free.

Shared by the small machines of the core (`lanes`, `dispatch`, `residency`), which never call each other: what two of
them do to a request (join a line, leave it, be refused, be cut) is a move of the state.

Most steps change no model's stage and nobody's memory, so who is in which stage and what is free are summed up once
and kept until one of those changes. Whoever changes them says so: `enter` and `weigh` do, and `remeasured` is for the
rest. `stale` counts everything anew and names what is no longer true; the judge of the simulation asks it.
"""

from collections.abc import Mapping

from watchbill.catalog import ROTATION_LANE, Catalog, Model, WorkClass
from watchbill.core.budget import Ledger, needs_of, shortage
from watchbill.core.company import Companies
from watchbill.core.messages import (
    Action,
    Cause,
    Cut,
    Footprint,
    Grant,
    Knowledge,
    Note,
    Parting,
    PlanKind,
    Refuse,
    Request,
)
from watchbill.core.patience import Patience
from watchbill.core.room import actual_room, has_room, own_share, planned_room
from watchbill.core.station import (
    AWAY,
    LINGER_LIMIT_MS,
    MOVING,
    Ghost,
    Lingering,
    Running,
    Stage,
    Station,
)

__all__ = ["WAKE_MAX_MS", "State"]

#: A caller may wish a model to stay idle this long; a longer stay is the operator's to grant.
KEEP_ALIVE_MAX_MS = 24 * 3_600_000
#: While anything waits or is in memory the core looks again at the latest after this.
WAKE_MAX_MS = 60_000

_EMPTY = Knowledge(Footprint({}))
_ROTATION = WorkClass.ROTATION  # asked for at every start, and a look into an enum takes ten times longer


class State:
    """Everything the core knows."""

    def __init__(self, catalog: Catalog, known: Mapping[str, Knowledge]) -> None:
        self.declare(catalog)
        self.ledger = Ledger(catalog)
        self.silent: dict[str, str] = {}  # engine -> why the program behind it cannot be asked
        self._staged: dict[tuple[Stage, ...], tuple[Station, ...]] = {}
        self._planned: dict[str, int] | None = None
        self._actual: dict[str, int] | None = None
        self._has_room: bool | None = None
        self._misses_permanent: bool | None = None
        self._short: dict[str, Mapping[str, int]] = {}  # model -> what its load lacks
        self._ever: dict[str, bool] = {}  # model -> whether it can ever fit
        self._attempts = (
            0  # the highest of a model that was forgotten: a late answer of its process fits no new one
        )
        self.changes = 0  # of stages and of memory, counted: the same number, nothing changed
        self.is_still = False  # nobody waits, nothing moves, nothing is missing; False: or nobody has looked
        self.stations: dict[str, Station] = {}
        self.managed: list[Station] = []  # those whose engines are ours to start and stop
        self.companies = Companies()  # those that somebody waits for
        for name in sorted(catalog.models):
            self.add(catalog.models[name], known.get(name, _EMPTY))
        self.home: dict[str, Station] = {}  # request id -> where it waits or runs
        self.lane_waiting: dict[str, int] = {}
        self.waiting = 0  # requests in all lines
        self.patience = Patience()  # their deadlines
        self.is_haunted = False  # somebody may have a ghost; without it nobody has
        self.active_at: int | None = None  # the last load, grant or finished background task
        self.moving = 0  # stations on their way in or out of memory
        self.plans_made = self.late_answers = 0
        self.is_closing = False
        self.is_in_doubt = False  # this step held something against an engine: the watchdog looks
        self.out: list[Action] = []
        self.wakes: list[float] = []  # when something of this step must be looked at again
        self.armed = 0  # when the timer comes; 0: not armed

    # ------------------------------------------------------------------ stations

    def declare(self, catalog: Catalog) -> None:
        """Takes over what the operator declared."""
        self.catalog = catalog
        lanes = {ROTATION_LANE.name: ROTATION_LANE, **catalog.lanes}
        self.open_lanes = frozenset(name for name, lane in lanes.items() if lane.is_open)

    def add(self, model: Model, known: Knowledge) -> Station:
        """Makes a station for a model and keeps the order by name: same input, same decisions."""
        station = Station(model, self.catalog.policy, known)
        station.silence = self.silent.get(model.engine)
        station.attempt = self._attempts
        self.stations[model.name] = station
        self._sort()
        self.weigh(station)
        return station

    def _sort(self) -> None:
        self.stations = dict(sorted(self.stations.items()))
        self.managed = [s for s in self.stations.values() if not s.model.shared]
        self.remeasured()

    def remove(self, station: Station) -> None:
        """Forgets a station that is out of memory and no longer in the config."""
        self._attempts = max(self._attempts, station.attempt)
        del self.stations[station.name]
        self._sort()

    def weigh(self, station: Station) -> None:
        """Renews what a station needs of the ledger after its size became better known."""
        places = self.ledger.places
        station.needs = (
            {} if station.model.shared else needs_of(station.model, station.sizes(), self.catalog, places)
        )
        if station.model.sleep_ms is not None:
            station.asleep_needs = needs_of(station.model, station.sizes_asleep(), self.catalog, places)
        self.remeasured()

    def remeasured(self) -> None:
        """Forgets what was summed up: somebody's stage, size or held memory, a reading or a budget changed."""
        self.changes += 1
        self.is_still = False
        self._staged, self._ever, self._short = {}, {}, {}
        self._planned = self._actual = self._has_room = self._misses_permanent = None

    def lines(self) -> list[Station]:
        """Everything with a line: the models, and the companies."""
        return [*self.stations.values(), *self.companies.values()]

    def muster(self, now: int) -> None:
        """Looks where the members of every company are, and tells them who waits for them."""
        if self.companies:
            self.companies.muster(self.stations, now)

    def in_stage(self, *stages: Stage) -> tuple[Station, ...]:
        """The managed stations in one of these stages."""
        found = self._staged.get(stages)
        if found is None:
            found = self._staged[stages] = tuple(s for s in self.managed if s.stage in stages)
        return found

    def resources(self) -> list[str]:
        """Everything that models take from the ledger: devices, their counts and their groups."""
        shared = {resource for station in self.managed for resource in station.needs}
        return [*self.ledger.books, *sorted(shared - self.ledger.books.keys())]

    def permanents(self, *but: Station) -> list[Mapping[str, int]]:
        """What the models that never leave need, apart from some of them: the permanent ones, and reserved cores."""
        kept: list[Mapping[str, int]] = [
            s.needs for s in self.managed if s.model.permanent and s not in but and not s.hopeless
        ]
        for name, book in self.ledger.books.items():
            reservation = book.device.reservation
            core = self.stations.get(reservation.model) if reservation else None
            if reservation and core is not None and core not in but and not core.model.permanent:
                kept.append({name: max(reservation.memory, core.needs.get(name, 0))})
        return kept

    def can_ever_fit(self, station: Station) -> bool:
        """Whether a model could be resident beside what never leaves."""
        if station.name not in self._ever:
            self._ever[station.name] = self._fits_ever(station)
        return self._ever[station.name]

    def _fits_ever(self, station: Station) -> bool:
        return station.model.shared or self.ledger.fits_ever(station.needs, self.permanents(station))

    def may_load(self, station: Station, now: int) -> bool:
        """Whether every device it needs was looked at lately and has settled after an emergency."""
        if self.is_closing or any(s.silence is not None for s in station.arriving):
            return False
        for book in self.ledger.books_of(station.needs):  # noqa: SIM110  asked for everybody who waits; a loop takes half the time
            if now < book.settled_at or not book.may_load:
                return False
        return True

    def is_leaving_when_idle(self, station: Station) -> bool:
        """RES-07, RES-25: whether its idle time counts. With room for everybody nobody leaves who was not told to."""
        if station.model.permanent or self.is_reserved_core(station):
            return False
        stays = station.model.stays_if_room and station.keep_alive_ms is None
        return not (stays and self.has_room_for_all())

    def has_room_for_all(self) -> bool:
        """Whether everything that is not in memory would fit beside what is (RES-25)."""
        if self._has_room is None:
            self._has_room = has_room(self.managed, self.planned_free())
        return self._has_room

    def is_reserved_core(self, station: Station) -> bool:
        """Whether a device keeps memory for this model, so that it stays through every swap."""
        return station.name in self.ledger.reserved_for

    def missing_of(self, request: Request) -> str | None:
        """The first model that a request needs and that is no longer in the config."""
        for name in (request.model, *request.companions):
            station = self.stations.get(name)
            if station is None or station.is_retired:
                return name
        return None

    def tiers_below(self, station: Station) -> list[Station]:
        """The smaller members of a model's family, largest first."""
        if station.model.family is None or station.model.exact:
            return []
        family = [s for s in self.stations.values() if s.model.family == station.model.family]
        family.sort(key=lambda s: (s.model.tier or 0, -sum(s.sizes().values()), s.name))
        return family[family.index(station) + 1 :]

    def local_interactive_waits(self) -> bool:
        """Whether a person waits anywhere: then leased work weighs nothing."""
        return any(s.line.counts[WorkClass.INTERACTIVE] for s in self.lines())

    def serving(self) -> tuple[Station, ...]:
        """Every ready station, those on shared engines included."""
        found = self._staged.get(())
        if found is None:
            found = self._staged[()] = tuple(s for s in self.stations.values() if s.stage is Stage.READY)
        return found

    def stale(self) -> list[str]:
        """What was summed up and is no longer true: nothing, unless a change was not told to `remeasured`."""
        told = [
            f"in stage {stages}"
            for stages, found in self._staged.items()
            if stages and found != tuple(s for s in self.managed if s.stage in stages)
        ]
        if self.serving() != tuple(s for s in self.stations.values() if s.stage is Stage.READY):
            told.append("serving")
        if self._planned not in (None, planned_room(self.ledger, self.managed)):
            told.append("planned free")
        for name, short in self._short.items():
            station = self.companies.get(name) or self.stations.get(name)  # neither: a company that left
            if station is not None and short != shortage(station.needs, self.planned_free(station)):
                told.append(f"what {name} lacks")
        if self._actual not in (None, actual_room(self.ledger, self.managed)):
            told.append("actual free")
        if self._has_room not in (None, has_room(self.managed, self.planned_free())):
            told.append("room for all")
        if self.waiting != len(self.patience) or self.waiting != sum(len(s.line) for s in self.lines()):
            told.append("who waits")
        if self.is_still and (self.waiting or self.moving or self.is_haunted or self.companies):
            told.append("still")
        if not self.is_haunted and any(s.ghost is not None for s in self.lines()):
            told.append("haunted")
        if self._misses_permanent not in (None, self._count_missing() > 0):
            told.append("permanent models that are missing")
        wrong = [name for name, fits in self._ever.items() if fits != self._fits_ever(self.stations[name])]
        return told + [f"whether {name} can ever fit" for name in wrong]

    # ------------------------------------------------------------------ what is free

    def planned_free(self, asking: Station | None = None) -> Mapping[str, int]:
        """What is free for a model when every change under way has ended."""
        if self._planned is None:
            self._planned = planned_room(self.ledger, self.managed)
        return self._less_reserved(self._planned, asking)

    def shortage_of(self, station: Station) -> Mapping[str, int]:
        """What a model that is to be loaded lacks when every change under way has ended."""
        short = self._short.get(station.name)
        if short is None:
            short = self._short[station.name] = shortage(station.needs, self.planned_free(station))
        return short

    def actual_free(self, asking: Station | None = None) -> Mapping[str, int]:
        """What is free for a model now."""
        if self._actual is None:
            self._actual = actual_room(self.ledger, self.managed)
        return self._less_reserved(self._actual, asking)

    def _less_reserved(self, free: dict[str, int], asking: Station | None) -> Mapping[str, int]:
        if asking is not None and (share := own_share(asking)):
            free = {resource: amount + share.get(resource, 0) for resource, amount in free.items()}
        if not self.ledger.reserved_for:
            return free
        return free | {name: free[name] - self._reserved(name, asking) for name in self.ledger.books}

    def used(self, device: str, *stages: Stage) -> int:
        """What the models in these stages need of a device."""
        return sum(s.frees().get(device, 0) for s in self.managed if s.stage in stages)

    def _reserved(self, device: str, asking: Station | None) -> int:
        """What must stay free on a device for its reserved core model while that is not resident."""
        reservation = self.ledger.books[device].device.reservation
        core = self.stations.get(reservation.model) if reservation else None
        if reservation is None or core is None or core is asking:
            return 0
        return 0 if core.stage is not Stage.ABSENT else reservation.memory

    # ------------------------------------------------------------------ moves

    def join(self, station: Station, request: Request, due: int) -> None:
        """Puts a request into a model's line, or into that of the company it needs."""
        if request.companions and not station.members:
            beside = (self.stations[name] for name in request.companions)
            station = self.companies.of((station, *beside), request.arrived_at)
        self.is_still = False
        station.line.join(request, due)
        self.patience.begin(request.id, due)
        self.wakes.append(due)
        self.home[request.id] = station
        self.waiting += 1
        self.lane_waiting[request.lane] = self.lane_waiting.get(request.lane, 0) + 1

    def withdraw(self, station: Station, request_id: str) -> Request:
        """Takes a request out of its line and its lane."""
        request = station.line.leave(request_id)
        self.patience.end(request_id)
        if station.ghost is not None and not station.line:
            self.wakes.append(station.ghost_ends)
        self.waiting -= 1
        self.lane_waiting[request.lane] -= 1
        return request

    def release(self, station: Station, request: Request, now: int) -> None:
        """A request is no longer served. What its caller wished for the model's idle time holds until the next one.

        A wish and no more: it protects against no swap and no emergency, and a closed door stays closed."""
        station.last_used = now
        wished = request.keep_alive_ms
        if wished != station.keep_alive_ms:
            station.keep_alive(None if wished is None else max(0, min(wished, KEEP_ALIVE_MAX_MS)))
        if station.idle_ms < WAKE_MAX_MS:
            self.rest(station)

    def rest(self, station: Station) -> None:
        """Looks again at a model without work when its idle time is over."""
        if station.stage not in (Stage.READY, Stage.ASLEEP) or not station.is_idle or station.model.shared:
            return
        if station.model.sleeps_when_told and station.model.sleep_ms and station.stage is Stage.READY:
            self.wakes.append(station.last_used + station.model.sleep_ms)
        if self.is_leaving_when_idle(station):
            self.wakes.append(station.last_used + station.idle_ms)

    def start(self, station: Station, request: Request, now: int) -> None:
        """Gives a request its turn on a ready model."""
        request_id, running, companions = request.id, station.running, request.companions
        self.home[request_id] = station
        running[request_id] = Running(request, now, len(running) + 1, request.was_cut)
        for name in companions:
            self.stations[name].users[request_id] = running[request_id]
            self.stations[name].last_used = now
        if request.work_class is not _ROTATION:
            station.last_used = now
        station.aborts = station.reversals = 0
        self.active_at = now
        if (deadline := running[request_id].deadline) < self.armed:
            self.wakes.append(deadline)
        self.out.append(Grant(request_id, station.name, station.attempt, companions))

    def part(self, station: Station, parting: Parting | None, now: int, *, silent: bool) -> None:
        """A run ended before its answer did. Its slot stays taken until the engine has let go of it."""
        if parting is None or not parting.lingers_as or station.stage not in (Stage.READY, Stage.DRAINING):
            return
        lingering = station.lingering[parting.lingers_as] = Lingering(now + LINGER_LIMIT_MS, silent)
        self.wakes.append(lingering.until)

    def unanswered(self, station: Station, parting: Parting | None, now: int) -> None:
        """A run was taken from its engine by somebody who is not the engine: what that says, and its slot."""
        counts = parting is not None and station.unanswered(parting, now)
        self.is_in_doubt = self.is_in_doubt or counts
        self.part(station, parting, now, silent=counts)

    def dismiss(self, request: Request, now: int) -> None:
        """Its companions are no longer needed by a request that runs no more."""
        for name in request.companions:
            if (beside := self.stations.get(name)) is not None:
                beside.users.pop(request.id, None)
                beside.last_used = now
                self.rest(beside)

    def enter(self, station: Station, stage: Stage, now: int) -> None:
        """Brings a station to its next stage."""
        self.moving += (stage in MOVING) - (station.stage in MOVING)
        station.enter(stage, now)
        if stage is Stage.ABSENT:
            station.held, station.leaving_for, station.stop_tries, station.emergency = {}, "", 0, False
            station.keep_alive(None)
        elif stage is Stage.PLANNED:
            station.clear_since = None
        elif stage is Stage.READY:
            station.ghost = None  # its owner finds the model here
        self.remeasured()

    def is_wanting(self) -> bool:
        """Whether a model that is not in memory should be: somebody waits for it, or it is permanent."""
        if self.companies:
            return True
        if not (self.waiting or self.is_haunted or self.misses_permanent()):
            self.is_still = not self.moving
            return False
        return any(s.line or s.ghost is not None or s.must_return for s in self.in_stage(*AWAY))

    def misses_permanent(self) -> bool:
        """Whether a permanent model is not there, be it that somebody took it out by hand."""
        if self._misses_permanent is None:
            self._misses_permanent = self._count_missing() > 0
        return self._misses_permanent

    def _count_missing(self) -> int:
        """How many permanent models are not there, be it that somebody took them out by hand."""
        return sum(s.model.permanent for s in self.in_stage(Stage.ABSENT))

    def is_moved_on(self) -> bool:
        """Whether a model on its way can take its next step: it has drained, or nobody wants its plan any more."""
        return any(not s.running and not s.users for s in self.in_stage(Stage.DRAINING)) or any(
            not s.is_planned_for for s in self.in_stage(Stage.PLANNED)
        )

    def haunt(self, station: Station, ghost: Ghost) -> None:
        """Keeps the place in the order of turns of somebody who is gone."""
        if any(s.is_retired for s in station.members or (station,)):
            return
        station.ghost, self.is_haunted, self.is_still = ghost, True, False

    def refuse(self, request_id: str, code: str, text: str, retry_after_ms: float | None = None) -> None:
        """Ends a request that never started, or goes back no more."""
        self.home.pop(request_id, None)
        self.out.append(
            Refuse(request_id, code, text, None if retry_after_ms is None else round(retry_after_ms))
        )

    def refuse_line(
        self, station: Station, code: str, text: str, retry_after_ms: float | None = None
    ) -> None:
        """Answers everybody who waits for a model that will not come, alone or in company."""
        for line in (station, *(c for c in self.companies.values() if station in c.members)):
            line.ghost = None
            for request_id in line.line.ids():
                self.withdraw(line, request_id)
                self.refuse(request_id, code, text, retry_after_ms)

    def cut(self, running: Running, how: str, now: int) -> None:
        """Ends a running request; the driver reports back."""
        if running.cut is None or running.cut == "boundary":
            running.cut, running.cut_at = how, now
            self.wakes.append(running.deadline)
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
        cause: Cause | None = None,
        plan: PlanKind | None = None,
        target: str | None = None,
    ) -> None:
        """Adds a line for the journal."""
        name, where = (station.name, next(iter(station.needs), None)) if station else (None, None)
        took_ms = None if ms is None else round(ms)
        self.out.append(
            Note(event, reason, name, device or where, took_ms, size, request, cause, plan, target)
        )
