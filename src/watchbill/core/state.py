"""The core's state: the models, the ledger, and the two views of what is free.

The small machines of the core (`admission`, `dispatch`, `residency`) share it and never call each other: an act on a
request that two of them need (join a line, leave it, refuse it, cut it) is a method of the state.

Most steps change no stage and no memory. The models per stage and the free amounts are therefore summed up once and
kept until one of those changes. Code that changes them must report it: `Residency.enter` and `weigh` do, and
`remeasured` is for the rest. `stale` sums everything up again and names what differs; the simulation's judge calls
it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from watchbill.catalog import BUILT_IN_LANES, Catalog, Model, WorkClass
from watchbill.core.candidate import NEVER, HeldTurn
from watchbill.core.companions import Candidate, CompanionSets
from watchbill.core.ledger import DeviceBook, Ledger, actual_room, has_room, own_share, planned_room
from watchbill.core.line import Patience
from watchbill.core.messages import (
    Action,
    Cause,
    Cut,
    CutKind,
    Footprint,
    JournalEvent,
    Knowledge,
    Mishap,
    Note,
    Refusal,
    Refuse,
    Request,
)
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import Bar, Reason
from watchbill.core.resources import Needs, Places, Resource, in_order, needs_of, shortage
from watchbill.core.running import CUT_LIMIT_MS, Running
from watchbill.core.stages import AWAY, HOLDING, STAYING, Stage

__all__ = ["WAKE_MAX_MS", "Lease", "State"]

#: While anything waits or is in memory the core runs a step at least this often.
WAKE_MAX_MS = 60_000

_EMPTY = Knowledge(Footprint({}))


class Lease(Struct):
    """One peer's right to one model."""

    id: str
    peer: str
    model: str
    renewed_at: int


@dataclass(slots=True)
class _Sums:
    """What was summed up since a stage or an amount of memory last changed; None: not yet."""

    staged: dict[tuple[Stage, ...], tuple[ModelState, ...]] = field(default_factory=dict)
    planned: dict[Resource, int] | None = None
    actual: dict[Resource, int] | None = None
    has_room: bool | None = None
    misses_permanent: bool | None = None
    short: dict[str, Needs] = field(default_factory=dict)  # model -> what its load lacks
    ever: dict[str, bool] = field(default_factory=dict)  # model -> whether it can ever fit
    smaller: dict[str, tuple[ModelState, ...]] = field(default_factory=dict)  # model -> of its family
    permanent: list[ModelState] | None = None  # the models that are declared so


class Closing(Struct, frozen=True):
    """Why a tier takes nothing, and until when at the latest."""

    bar: Bar
    until: int | None


class State:
    """Everything the core knows."""

    def __init__(self, catalog: Catalog, known: Mapping[str, Knowledge]) -> None:
        self.declare(catalog)
        self.ledger = Ledger(catalog)
        self.copies: dict[str, list[ModelState]] = {}  # model -> its copies at other sites, in routing order
        self.leases: dict[str, Lease] = {}  # of peers; kept by `leases`
        self.leases_held_back = False  # a person works here: no leased request starts
        self.person_at = NEVER  # the last interactive work of this machine
        self.quiet_at = NEVER  # when leased work goes on, if no person comes until then
        # Tiers, and single models of tiers, that take nothing now: site and model, which is empty for all of them.
        self.closed_sites: dict[tuple[str, str], Closing] = {}
        self.silent: dict[str, str] = {}  # engine -> why the program behind it cannot be asked
        self._sums = _Sums()
        # The highest attempt of a forgotten model: a late answer of its process matches no new one.
        self._attempts = 0
        self.changes = 0  # count of the changes of stages and of memory
        self.is_still = False  # nothing waits, moves or is missing; False also before that was checked
        self.models: dict[str, ModelState] = {}
        self.managed: list[ModelState] = []  # those whose engines are ours to start and stop
        self.companion_sets = CompanionSets()  # those with waiting requests or a held turn
        self.add((spec, known.get(name, _EMPTY)) for name, spec in catalog.models.items())
        self.home: dict[str, Candidate] = {}  # request id -> where it waits or runs
        self.lane_waiting: dict[str, int] = {}
        self.caller_waiting: dict[tuple[str, str], int] = {}  # in a lane, of a caller that has a share of it
        self.waiting = 0  # requests in all lines
        self.patience = Patience()  # their deadlines
        self.has_barred = False  # a request waits for a site that a reload has closed to it
        self.has_held_turns = False  # there may be held turns; False: there are none
        self.active_at: int | None = None  # the last load, grant or finished background task
        self.moving = 0  # models on their way in or out of memory
        self.plans_made = self.late_answers = 0
        self.is_closing = False
        self.disk_fault: str | None = None  # what the disk of the root said when it was last tried
        self.disk_asked_at: int | None = None  # since when its answer to a question is awaited
        self.disk_seen_at: int | None = None  # when it last answered one
        #: Whether this step counted something against an engine: the watchdog must look.
        self.must_look_at_engines = False
        self.out: list[Action] = []
        self.wakes: list[float] = []  # times at which something of this step must be checked again
        self.armed = 0  # when the timer comes; 0: not armed

    # ------------------------------------------------------------------ models

    def declare(self, catalog: Catalog) -> None:
        """Takes over the operator's declarations."""
        self.catalog = catalog
        lanes = {**BUILT_IN_LANES, **catalog.lanes}
        self.open_lanes = frozenset(name for name, lane in lanes.items() if lane.is_open)

    def add(self, specs: Iterable[tuple[Model, Knowledge]]) -> None:
        """Adds models, or puts them in the place of those with their names. All at once: each look at their order
        goes through every model, and a config may have thousands."""
        added = [self._begin(spec, known) for spec, known in specs]
        self.models.update((model.name, model) for model in added)
        self._sort()
        for model in added:
            self.weigh(model)

    def _begin(self, spec: Model, known: Knowledge) -> ModelState:
        model = ModelState(spec, self.catalog.policy, known)
        model.silence = self.silent.get(spec.engine)
        model.is_cut_off = model.silence is not None
        model.attempt = self._attempts
        return model

    def _sort(self) -> None:
        """Keeps the order by name: same input, same decisions."""
        self.models = dict(sorted(self.models.items()))
        self.managed = [s for s in self.models.values() if not s.spec.shared]
        self._sort_copies()
        self.remeasured()

    def _sort_copies(self) -> None:
        """Collects the copies of each model, in the order of their sites."""
        place_of = self.catalog.routing.place_of
        self.copies = {}
        for copy in sorted(self.models.values(), key=lambda s: place_of(s.spec.site)):
            if copy.spec.copy_of is not None:
                self.copies.setdefault(copy.spec.copy_of, []).append(copy)
        for model in self.models.values():
            is_passed = any(
                place_of(copy.spec.site) < place_of(model.spec.site)
                for copy in self.copies.get(model.name, ())
            )
            model.is_routed = model.spec.site is not None or is_passed

    def reorder(self) -> None:
        """Takes over a changed routing order."""
        self._sort()

    def remove(self, models: Iterable[ModelState]) -> None:
        """Forgets models that are out of memory and no longer in the config."""
        for model in models:
            self._attempts = max(self._attempts, model.attempt)
            del self.models[model.name]
        self._sort()

    def weigh(self, model: ModelState) -> None:
        """Updates the needs of a model in the ledger after its size became better known."""
        places = self.ledger.places
        model.needs = {} if model.spec.shared else needs_of(model.spec, model.sizes(), self.catalog, places)
        if model.spec.sleep_ms is not None:
            model.asleep_needs = needs_of(model.spec, model.sizes_asleep(), self.catalog, places)
        self.remeasured()

    def remeasured(self) -> None:
        """Drops all cached sums: a stage, a size, a held amount, a reading or a budget changed."""
        self.changes += 1
        self.is_still = False
        self._sums = _Sums()

    def lines(self) -> list[Candidate]:
        """Everything with a line: the models, and the sets."""
        return [*self.models.values(), *self.companion_sets.values()]

    def refresh(self, now: int) -> None:
        """Updates every set from its members, and marks the members that it keeps."""
        if self.companion_sets:
            self.companion_sets.refresh(self.models, now)

    def in_stage(self, *stages: Stage) -> tuple[ModelState, ...]:
        """The managed models in one of these stages."""
        found = self._sums.staged.get(stages)
        if found is None:
            found = self._sums.staged[stages] = tuple(s for s in self.managed if s.stage in stages)
        return found

    def resources(self) -> list[Resource]:
        """Every resource that models take from the ledger: devices, their counts and their groups."""
        places = {need for model in self.managed for need in model.needs if isinstance(need, Places)}
        return [*self.ledger.books, *in_order(places)]

    def permanents(self, *but: ModelState) -> list[Needs]:
        """The needs of the models that never leave, except `but`: permanent ones, and reserved core models."""
        if self._sums.permanent is None:
            self._sums.permanent = [s for s in self.managed if s.spec.permanent]
        kept: list[Needs] = [s.needs for s in self._sums.permanent if s not in but and not s.hopeless]
        for name, book in self.ledger.books.items():
            reservation = book.device.reservation
            core = self.models.get(reservation.model) if reservation else None
            if reservation and core is not None and core not in but and not core.spec.permanent:
                kept.append({name: max(reservation.memory, core.needs.get(name, 0))})
        return kept

    def can_ever_fit(self, model: ModelState) -> bool:
        """Whether a model could be resident beside the models that never leave."""
        if model.name not in self._sums.ever:
            self._sums.ever[model.name] = self._fits_ever(model)
        return self._sums.ever[model.name]

    def _fits_ever(self, model: ModelState) -> bool:
        return model.spec.shared or self.ledger.fits_ever(model.needs, self.permanents(model))

    def lent_out(self, model: Candidate) -> DeviceBook | None:
        """The device on which a model fits only once some of its loans are given back."""
        for book in self.ledger.books_of(model.needs):
            if not book.loans:
                continue
            name = book.device.name
            needed = sum(member.needs.get(name, 0) for member in model.members)
            kept = sum(needs.get(name, 0) for needs in self.permanents(*model.members))
            if needed + kept > self.ledger.capacity_of(name) - book.lent:
                return book
        return None

    def may_load(self, model: Candidate, now: int) -> bool:
        """Whether every device it needs has a fresh reading and has settled after an emergency."""
        if self.is_closing or any(s.silence is not None for s in model.arriving):
            return False
        for book in self.ledger.books_of(model.needs):  # noqa: SIM110  runs for every waiting model; a loop takes half the time
            if now < book.settled_at or not book.may_load:
                return False
        return True

    def is_leaving_when_idle(self, model: ModelState) -> bool:
        """RES-07, RES-25: whether its idle time counts. While all models fit, none leaves without being told to."""
        if model.spec.permanent or self.is_reserved_core(model):
            return False
        stays = model.spec.stays_if_room and model.keep_alive_ms is None
        return not (stays and self.has_room_for_all())

    def has_room_for_all(self) -> bool:
        """Whether every model that is not in memory would fit beside the resident ones (RES-25)."""
        if self._sums.has_room is None:
            self._sums.has_room = has_room(self.managed, self.planned_free())
        return self._sums.has_room

    def is_reserved_core(self, model: ModelState) -> bool:
        """Whether a device keeps memory for this model, so that it stays through every swap."""
        return model.name in self.ledger.reserved_for

    def missing_of(self, request: Request) -> str | None:
        """The first model that a request needs and that is no longer in the config."""
        for name in (request.model, *request.companions):
            model = self.models.get(name)
            if model is None or model.is_retired:
                return name
        return None

    def smaller_models(self, model: ModelState) -> tuple[ModelState, ...]:
        """The smaller members of a model's family, largest first."""
        if model.spec.family is None or model.spec.exact:
            return ()
        found = self._sums.smaller.get(model.name)
        if found is None:
            found = self._sums.smaller[model.name] = self._find_smaller(model)
        return found

    def _find_smaller(self, model: ModelState) -> tuple[ModelState, ...]:
        family = [s for s in self.models.values() if s.spec.family == model.spec.family]
        family.sort(key=lambda s: (s.spec.family_rank or 0, -sum(s.sizes().values()), s.name))
        return tuple(family[family.index(model) + 1 :])

    def local_interactive_waits(self) -> bool:
        """Whether an interactive request waits for a model of this machine: then leased work has no weight."""
        return any(s.line.counts[WorkClass.INTERACTIVE] and s.is_here for s in self.lines())

    def serving(self) -> tuple[ModelState, ...]:
        """Every ready model, those on shared engines included."""
        found = self._sums.staged.get(())
        if found is None:
            found = self._sums.staged[()] = tuple(s for s in self.models.values() if s.stage is Stage.READY)
        return found

    def stale(self) -> list[str]:
        """Cached sums that are no longer true: none, unless a change was not reported to `remeasured`."""
        told = [
            f"in stage {stages}"
            for stages, found in self._sums.staged.items()
            if stages and found != tuple(s for s in self.managed if s.stage in stages)
        ]
        if self.serving() != tuple(s for s in self.models.values() if s.stage is Stage.READY):
            told.append("serving")
        if self._sums.planned not in (None, planned_room(self.ledger, self.managed)):
            told.append("planned free")
        for name, short in self._sums.short.items():
            model = self.companion_sets.get(name) or self.models.get(name)  # neither: a set that left
            if model is not None and short != shortage(model.needs, self.planned_free(model)):
                told.append(f"what {name} lacks")
        if self._sums.actual not in (None, actual_room(self.ledger, self.managed)):
            told.append("actual free")
        if self._sums.has_room not in (None, has_room(self.managed, self.planned_free())):
            told.append("room for all")
        if self.waiting != len(self.patience) or self.waiting != sum(len(s.line) for s in self.lines()):
            told.append("requests that wait")
        if self.is_still and (self.waiting or self.moving or self.has_held_turns or self.companion_sets):
            told.append("still")
        if not self.has_held_turns and any(s.held_turn is not None for s in self.lines()):
            told.append("held turns")
        if self._sums.misses_permanent not in (None, self._count_missing() > 0):
            told.append("permanent models that are missing")
        for name, smaller in self._sums.smaller.items():
            if smaller != self._find_smaller(self.models[name]):
                told.append(f"what is smaller than {name}")
        wrong = [name for name, fits in self._sums.ever.items() if fits != self._fits_ever(self.models[name])]
        return told + [f"whether {name} can ever fit" for name in wrong]

    # ------------------------------------------------------------------ free amounts

    def planned_free(self, asking: Candidate | None = None) -> Needs:
        """The free amounts for a model when every change under way has ended."""
        if self._sums.planned is None:
            self._sums.planned = planned_room(self.ledger, self.managed)
        return self._less_reserved(self._sums.planned, asking, STAYING)

    def shortage_of(self, model: Candidate) -> Needs:
        """What a model that is to be loaded lacks when every change under way has ended."""
        short = self._sums.short.get(model.name)
        if short is None:
            short = self._sums.short[model.name] = shortage(model.needs, self.planned_free(model))
        return short

    def actual_free(self, asking: Candidate | None = None) -> Needs:
        """The free amounts for a model now."""
        if self._sums.actual is None:
            self._sums.actual = actual_room(self.ledger, self.managed)
        return self._less_reserved(self._sums.actual, asking, HOLDING)

    def _less_reserved(
        self, free: dict[Resource, int], asking: Candidate | None, counted: frozenset[Stage]
    ) -> Needs:
        if asking is not None and (share := own_share(asking, counted)):
            free = {resource: amount + share.get(resource, 0) for resource, amount in free.items()}
        if not self.ledger.reserved_for:
            return free
        return free | {name: free[name] - self._reserved(name, asking) for name in self.ledger.books}

    def is_overdrawn(self) -> bool:
        """Whether the models that stay need more of a resource than there is."""
        used: dict[Resource, int] = {}
        for model in self.in_stage(*STAYING):
            for resource, amount in model.frees().items():
                used[resource] = used.get(resource, 0) + amount
        return any(amount > self.ledger.limit(resource) for resource, amount in used.items())

    def used(self, resource: Resource, *stages: Stage) -> int:
        """The amount of a resource that the models in these stages need."""
        return sum(s.frees().get(resource, 0) for s in self.managed if s.stage in stages)

    def _reserved(self, device: str, asking: Candidate | None) -> int:
        """The amount that must stay free on a device for its reserved core model while that is not resident."""
        reservation = self.ledger.books[device].device.reservation
        core = self.models.get(reservation.model) if reservation else None
        if reservation is None or core is None or core is asking:
            return 0
        return 0 if core.stage is not Stage.ABSENT else reservation.memory

    # ------------------------------------------------------------------ moves

    def join(self, model: Candidate, request: Request, due: int) -> None:
        """Puts a request into a model's line, or into that of the set it needs."""
        if request.companions and not model.is_set:
            beside = (self.models[name] for name in request.companions)
            model = self.companion_sets.of((model.serving, *beside), request.arrived_at)
        self.is_still = False
        model.line.join(request, due)
        self.patience.begin(request.id, due)
        self.wakes.append(due)
        self.home[request.id] = model
        self.waiting += 1
        self._count_waiting(request, 1)

    def withdraw(self, model: Candidate, request_id: str) -> Request:
        """Removes a request from its line and its lane."""
        request = model.line.leave(request_id)
        self.patience.end(request_id)
        if model.held_turn is not None and not model.line:
            self.wakes.append(model.held_turn_ends)
        self.waiting -= 1
        self._count_waiting(request, -1)
        return request

    def _count_waiting(self, request: Request, change: int) -> None:
        self.lane_waiting[request.lane] = self.lane_waiting.get(request.lane, 0) + change
        if request.caller is not None:
            place = (request.lane, request.caller)
            self.caller_waiting[place] = self.caller_waiting.get(place, 0) + change

    def rest(self, model: ModelState) -> None:
        """Schedules a check of a model without work for the end of its idle time."""
        if model.stage not in (Stage.READY, Stage.ASLEEP) or not model.is_idle or model.spec.shared:
            return
        if model.spec.sleeps_when_told and model.spec.sleep_ms and model.stage is Stage.READY:
            self.wakes.append(model.last_used + model.spec.sleep_ms)
        if self.is_leaving_when_idle(model):
            self.wakes.append(model.last_used + model.idle_ms)

    def is_wanting(self) -> bool:
        """Whether a model should be in memory and is not: a request waits for it, or it is permanent."""
        if self.companion_sets:
            return True
        if not (self.waiting or self.has_held_turns or self.misses_permanent()):
            self.is_still = not self.moving
            return False
        return any(s.line or s.held_turn is not None or s.must_return for s in self.in_stage(*AWAY))

    def is_wanted(self, model: ModelState) -> bool:
        """Whether a model that is not in memory is needed there: by itself, in a set, or because it is permanent."""
        if model.stage is Stage.PLANNED or model.line or model.held_turn is not None or model.must_return:
            return True
        return any(model in c.members and (c.line or c.held_turn) for c in self.companion_sets.values())

    def misses_permanent(self) -> bool:
        """Whether a permanent model is not in memory, including one that was unloaded by hand."""
        if self._sums.misses_permanent is None:
            self._sums.misses_permanent = self._count_missing() > 0
        return self._sums.misses_permanent

    def _count_missing(self) -> int:
        """How many permanent models are not in memory, including those that were unloaded by hand."""
        return sum(s.spec.permanent for s in self.in_stage(Stage.ABSENT))

    def is_moved_on(self) -> bool:
        """Whether a model on its way can take its next step: it has drained, or its plan is not needed any more."""
        return any(not s.running and not s.users for s in self.in_stage(Stage.DRAINING)) or any(
            not s.is_planned_for for s in self.in_stage(Stage.PLANNED)
        )

    def rest_ms(self, request: Request, now: int) -> int:
        """How long a request rests at the least because a person works here; 0 for all but leased ones."""
        is_resting = self.leases_held_back and request.work_class is WorkClass.LEASED
        return max(0, self.quiet_at - now) if is_resting else 0

    def hold_turn(self, model: Candidate, held_turn: HeldTurn) -> None:
        """Keeps the place in the order of turns for a request that is gone."""
        if any(s.is_retired for s in model.members):
            return
        model.held_turn, self.has_held_turns, self.is_still = held_turn, True, False

    def refuse(self, request_id: str, code: Refusal, text: str, retry_after_ms: float | None = None) -> None:
        """Ends a request that never started, or does not go back to its line."""
        self.home.pop(request_id, None)
        self.out.append(
            Refuse(request_id, code, text, None if retry_after_ms is None else round(retry_after_ms))
        )

    def refuse_line(
        self, model: ModelState, code: Refusal, text: str, retry_after_ms: float | None = None
    ) -> None:
        """Refuses every request that waits for a model that will not come, alone or in a set."""
        for line in (model, *(c for c in self.companion_sets.values() if model in c.members)):
            line.held_turn = None
            for request_id in line.line.ids():
                self.withdraw(line, request_id)
                self.refuse(request_id, code, text, retry_after_ms)

    def cut(self, running: Running, how: CutKind, now: int) -> None:
        """Ends a running request; the driver reports back."""
        if running.cut is None or running.cut == CutKind.BOUNDARY:
            running.cut = how
            if how != CutKind.BOUNDARY:
                running.deadline = now + CUT_LIMIT_MS
            self.wakes.append(running.deadline)
            self.out.append(Cut(running.request.id, how, running.is_orphaned))

    # ------------------------------------------------------------------ out

    def note(
        self,
        event: JournalEvent | Mishap,
        reason: Reason | str,
        model: Candidate | None = None,
        *,
        device: str | None = None,
        ms: float | None = None,
        size: int | None = None,
        request: str | None = None,
        cause: Cause | None = None,
    ) -> None:
        """Adds a line for the journal."""
        name, where = (model.name, model.first_device) if model else (None, None)
        took_ms = None if ms is None else round(ms)
        self.out.append(Note(event, reason, name, device or where, took_ms, size, request, cause))
