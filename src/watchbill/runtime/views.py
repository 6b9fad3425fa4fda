"""Views: the core's state for people and scripts. A view reads and never changes it.

The keys are part of the interface: `status --json` prints them unchanged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from watchbill import __version__
from watchbill.catalog import ROTATION_LANE, Lane, WorkClass
from watchbill.core.absence import Absence, Why, absence_of, constraint_text, describe, obstacle_of
from watchbill.core.companions import Candidate
from watchbill.core.forecast import can_forecast
from watchbill.core.guarded import Guarded
from watchbill.core.ledger import READING_AGE_MAX_MS, DeviceBook
from watchbill.core.limited_lanes import what_holds
from watchbill.core.machine import Machine
from watchbill.core.messages import Constraint, Doubted, Request, Trouble
from watchbill.core.model_state import ModelState
from watchbill.core.policy import Rate, uncertainty
from watchbill.core.reasons import AT_WORK, Uncertainty, stalled_text
from watchbill.core.stages import AWAY, HOLDING, ModelStatus, Stage
from watchbill.core.state import State
from watchbill.engines.base import Warm
from watchbill.probes import Reading
from watchbill.runtime.limits import FORECASTS_MAX, FORECASTS_ON_SCREEN_MAX
from watchbill.steps import Steps
from watchbill.units import format_millis

__all__ = [
    "Known",
    "Resident",
    "card_view",
    "constraint_view",
    "epochs_view",
    "failure_of",
    "first_requests_view",
    "hindrance",
    "leases_view",
    "loading_text",
    "policy_uncertainty",
    "policy_view",
    "request_view",
    "requests_view",
    "resident_of",
    "rotation_view",
    "running_sites",
    "status_view",
    "suspicion",
    "tiers_view",
    "wakes_text",
]

_MISSING = {
    Stage.ABSENT: "not in memory",
    Stage.ASLEEP: "asleep",
    Stage.PLANNED: "next to be loaded",
    Stage.LOADING: "loading",
    Stage.DRAINING: "leaving",
    Stage.STOPPING: "leaving",
}


def status_view(
    state: State,
    warm: Mapping[str, Warm],
    now: int,
    cards: Mapping[str, Reading] = MappingProxyType({}),
    pinned: Collection[str] = (),
) -> Steps[dict[str, object]]:
    """The whole state: devices, models, lanes. A step for each model."""
    models: dict[str, object] = {}
    for name, model in list(state.models.items()):
        if state.models.get(name) is model:  # not removed from the config meanwhile
            models[name] = _model(state, model, warm.get(name), now) | {"pinned": name in pinned}
            yield
    lanes = yield from _lanes(state, now)
    return {
        "version": __version__,
        "devices": {
            name: _device(state, name) | {"card": card_view(cards.get(name))} for name in state.ledger.books
        },
        "models": models,
        "lanes": lanes,
        "policy": state.catalog.policy.name,
        "policy_doubt": None if (unsure := policy_uncertainty(state)) is None else str(unsure),
        "late_answers": state.late_answers,
    }


def policy_uncertainty(state: State, asking: ModelState | None = None) -> Uncertainty | None:
    """Why `rate` decides like `turns` for now, or would if a model were requested."""
    if state.catalog.policy.name != Rate.name:
        return None
    wanted = [*state.in_stage(Stage.ABSENT), *state.companion_sets.values()]
    return uncertainty(state, [s for s in wanted if s.wants_memory or s is asking])


def _device(state: State, name: str) -> dict[str, object]:
    book = state.ledger.books[name]
    return {
        "capacity": book.capacity,
        "reserve": book.device.reserve,
        "budget": book.budget,
        "available": book.reading.available if book.reading else None,
        "read_ms_ago": book.reading.age_ms if book.reading else None,
        "used": state.used(name, Stage.READY, Stage.DRAINING),
        "planned": state.used(name, Stage.PLANNED),
        "loading": state.used(name, Stage.LOADING),
        "stopping": state.used(name, Stage.STOPPING),
        "asleep": state.used(name, Stage.ASLEEP),
        "lent": book.lent,
        "emergency": book.emergency_since is not None,
        "maintenance": book.in_maintenance,
        "constrained": constraint_text(limit) if (limit := _constraint(book)) else None,
        "constraint": constraint_view(book),
    }


def card_view(card: Reading | None) -> dict[str, object] | None:
    """A card's own figures, for scripts; null where its driver does not tell."""
    if card is None or card.health is None:
        return None
    health = card.health
    return {
        "uuid": card.uuid or None,
        "total": card.total or card.capacity,
        "temperature_c": health.temperature_c,
        "power_w": health.power_w,
        "power_limit_w": health.power_limit_w,
        "clock_mhz": health.clock_mhz,
        "utilisation_percent": health.utilisation_percent,
        "throttled": list(health.throttled),
    }


def _constraint(book: DeviceBook) -> Constraint | None:
    """Why it takes no loads: its health, or that nothing is known of it any more."""
    if book.reading is None or book.has_fresh_reading:
        return None if book.reading is None else book.reading.constrained
    return Constraint(Trouble.UNREAD, book.reading.age_ms / 1000, READING_AGE_MAX_MS / 1000)


def constraint_view(book: DeviceBook) -> dict[str, object] | None:
    """Why a device takes no loads, for scripts."""
    limit = _constraint(book)
    if limit is None:
        return None
    figures = {"figure": round(limit.figure, 1), "limit": limit.limit, "throttled": list(limit.throttled)}
    return {"trouble": limit.trouble.value, **figures}


def _model(state: State, model: ModelState, warm: Warm | None, now: int) -> dict[str, object]:
    absence = absence_of(state, model, now)
    return {
        "state": model.status(now),
        "engine": model.spec.engine,
        "tier": model.spec.where.value,
        "site": model.spec.site,
        "leased": _leased(state, model),
        "aliases": list(model.spec.aliases),
        "memory": sum(model.sizes().values()),
        "measured": sum(model.measured.values()) or None,
        "asleep": sum(model.sizes_asleep().values()) if model.spec.sleep_ms is not None else None,
        "devices": model.sizes(),
        "in_flight": len(model.running),
        "beside": len(model.users),
        "queued": len(model.line),
        "loads": model.loads,
        "evictions": model.evictions,
        "pid": warm.pid if warm else None,
        "reason": _reason(model, absence),
        "absence": None if absence is None else _absence(absence),
        "trouble": _doubted(model) or model.trouble,
        "permanent": model.spec.permanent,
        "load_ms": round(model.load.ms),
        "load_is_guess": model.load.is_guess,
        "wake_ms": None if model.wake.is_guess else round(model.wake.ms),
        "service_ms": round(model.service.ms),
        "service_is_guess": model.service.is_guess,
        "idle_left_ms": _idle_left_ms(state, model, now),
        "retry_ms": max(0, model.retry_at - now) if model.failure else None,
    }


def _leased(state: State, model: ModelState) -> str | None:
    """The peers that hold a lease for a model."""
    peers = sorted({lease.peer for lease in state.leases.values() if lease.model == model.name})
    return ", ".join(peers) or None


def _idle_left_ms(state: State, model: ModelState, now: int) -> int | None:
    """How long an idle model stays without a request; None for a model that never leaves for being idle."""
    idle = model.stage is Stage.READY and model.is_idle and not model.spec.shared
    if not (idle and state.is_leaving_when_idle(model)):
        return None
    return max(0, model.idle_ms - (now - model.last_used))


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in memory, for lists of them."""

    memory: Mapping[str, int]  # device -> bytes
    idle_left_ms: int | None  # None: it does not leave for being idle


def resident_of(state: State, model: ModelState, now: int) -> Resident | None:
    """What is listed about a model in memory; None for one that is not."""
    if model.stage not in (Stage.READY, Stage.DRAINING):
        return None
    return Resident(model.sizes(), _idle_left_ms(state, model, now))


def failure_of(state: State, model: ModelState, now: int) -> str | None:
    """Why a model can never be loaded; None where it can."""
    if model.status(now) is not ModelStatus.FAILED:
        return None
    return _reason(model, absence_of(state, model, now))


def _reason(model: ModelState, absence: Absence | None) -> str | None:
    """Why it is not in memory, or about to leave; for a model in memory its last failure."""
    if absence is not None:
        return describe(absence)
    if model.stage in (Stage.DRAINING, Stage.STOPPING):
        is_kept = model.stage is Stage.STOPPING and model.silence is not None
        return f"{model.leaving_why}; {model.silence}" if is_kept else str(model.leaving_why)
    if model.is_cut_off:
        return model.silence
    return suspicion(model) or doubt(model) or model.failure


def suspicion(model: ModelState) -> str | None:
    """Why no request is sent to a model in memory: the watchdog's question has it to itself."""
    if model.stage is not Stage.READY or not model.is_suspect:
        return None
    if model.stalled:
        return f"{stalled_text(model.stalled)}; it is being asked whether it is well"
    return "answers failed; it is being asked whether it is well"


def doubt(model: ModelState) -> str | None:
    """What a caller should know of a model in memory that takes requests: its answers stopped in the middle."""
    if model.stage is not Stage.READY or not model.stalled:
        return None
    return f"{stalled_text(model.stalled)}; it is reset if that goes on"


def _doubted(model: ModelState) -> Doubted | None:
    if suspicion(model):
        return Doubted.SUSPECT
    return Doubted.STALLED if doubt(model) else None


def _absence(absence: Absence) -> dict[str, object]:
    """The reason for scripts: the word, and its figures where there are any."""
    return {
        "why": absence.why.value,
        "device": absence.device,
        "needed": absence.needed or None,
        "room": absence.room if absence.needed else None,
        "cause": None if absence.cause is None else absence.cause.value,
    }


def rotation_view(core: Machine, now: int) -> dict[str, object]:
    """Background rotation: its interval, and the next model."""
    rotation, rules = core.rotation, core.state.catalog.rotation
    model, next_ms = rotation.next_turn(now)
    return {
        "every_ms": rules.every_ms,
        "interval_ms": rotation.interval_ms,
        "next_ms": next_ms,
        "next_model": model,
        "running": rotation.running,
    }


def epochs_view(core: Machine, now: int) -> dict[str, dict[str, object]]:
    """Windows of ingestion work: when an open one ends, and when a closed one opens."""
    return {
        name: {
            "models": list(epoch.models),
            "open": (ends := core.epochs.ends_in(name, now)) is not None,
            "ends_ms": ends,
            "next_ms": core.epochs.next_in(name, now),
        }
        for name, epoch in core.state.catalog.epochs.items()
    }


def policy_view(core: Machine) -> dict[str, object]:
    """How often the operator's own policy failed, and its last failure."""
    guarded = core.policy if isinstance(core.policy, Guarded) else None
    return {
        "policy_failures": 0 if guarded is None else guarded.failures,
        "policy_failure": None if guarded is None else guarded.last_failure,
    }


def leases_view(state: State, now: int) -> dict[str, dict[str, object]]:
    """Each lease: its peer, its model, when it was renewed, and whether it rests because a person works here."""
    return {
        lease.id: {
            "peer": lease.peer,
            "model": lease.model,
            "renewed_ms": now - lease.renewed_at,
            "resting": state.leases_held_back,
        }
        for lease in state.leases.values()
    }


def running_sites(state: State) -> dict[str, Stage]:
    """The burst tiers that run: ready where a model there answers, loading where one starts, or stopping."""
    found: dict[str, set[Stage]] = {}
    for model in state.managed:
        if model.spec.site is not None and model.stage in HOLDING:
            found.setdefault(model.spec.site, set()).add(model.stage)
    return {
        site: Stage.READY
        if stages & {Stage.READY, Stage.DRAINING}
        else Stage.LOADING
        if Stage.LOADING in stages
        else Stage.STOPPING
        for site, stages in found.items()
    }


def tiers_view(
    state: State, known: Mapping[str, Mapping[str, object]], now: int
) -> dict[str, dict[str, object]]:
    """Each tier: what is known of its money, the state of its models, and the work that it has."""
    found: dict[str, dict[str, object]] = {}
    for site, told in known.items():
        models = [s for s in state.models.values() if s.spec.site == site]
        found[site] = {
            **told,
            "models": {s.name: s.status(now) for s in models},
            "in_flight": sum(len(s.running) for s in models),
            "queued": sum(len(s.line) for s in models),
            "reason": next((s.failure for s in models if s.failure), None),
        }
    return found


def _lanes(state: State, now: int) -> Steps[dict[str, dict[str, object]]]:
    """The lanes of the config, and those that were removed from it and still have requests. A step for each line."""
    waiting, running = dict[str, list[Request]](), dict[str, list[Request]]()
    for model in state.lines():
        for request in map(model.line.get, model.line.ids()):
            waiting.setdefault(request.lane, []).append(request)
        for each in model.running.values():  # empty for a set
            running.setdefault(each.request.lane, []).append(each.request)
        yield
    names = dict.fromkeys((*state.catalog.lanes, *waiting, *running))
    if ROTATION_LANE.name not in state.catalog.lanes:
        names.pop(ROTATION_LANE.name, None)
    return {
        name: _lane(state.catalog.lanes.get(name), waiting.get(name, []), running.get(name, []), now)
        for name in names
    }


def _lane(
    lane: Lane | None, waiting: Sequence[Request], running: Sequence[Request], now: int
) -> dict[str, object]:
    work_class = lane.work_class if lane is not None else (*waiting, *running)[0].work_class
    return {
        "class": work_class.word,
        "queued": len(waiting),
        "running": len(running),
        "oldest_wait_ms": now - min(request.arrived_at for request in waiting) if waiting else 0,
    }


class Known(NamedTuple):
    """What only the ticket of a request knows."""

    forecast_ms: int | None  # as promised at arrival
    waits_there: bool  # another machine has it, and has not begun, or pauses


_UNKNOWN = Known(None, False)


def requests_view(core: Machine, known: Mapping[str, Known], now: int) -> Steps[list[dict[str, object]]]:
    """Every request, oldest first. Only the first ones have a current forecast. A step for each."""
    return (yield from _listed(core, list(core.state.home), known, now, FORECASTS_MAX))


def first_requests_view(
    core: Machine, known: Mapping[str, Known], now: int, rows_max: int
) -> Steps[list[dict[str, object]]]:
    """At most so many requests, for a screen: those that run, then those that came first. A step for each."""
    home = core.state.home
    running = [id for model in core.state.models.values() for id in model.running][:rows_max]
    begun = set(running)
    waiting = islice((id for id in home if id not in begun), rows_max - len(running))
    return (yield from _listed(core, [*running, *waiting], known, now, FORECASTS_ON_SCREEN_MAX))


def _listed(
    core: Machine, ids: Sequence[str], known: Mapping[str, Known], now: int, forecasts_max: int
) -> Steps[list[dict[str, object]]]:
    found: list[dict[str, object]] = []
    for request_id in ids:
        if (view := _request_view(core.state, request_id, known.get(request_id, _UNKNOWN), now)) is not None:
            found.append(view)
        yield
    found.sort(key=lambda v: (-_int(v["waited_ms"]), str(v["id"])))
    waiting = [view for view in found if view["state"] == "waiting"]
    for view in waiting[:forecasts_max]:
        _look_closer(core, view, now)
        yield
    return found


def request_view(
    core: Machine, request_id: str, known: Mapping[str, Known], now: int
) -> dict[str, object] | None:
    """One request: where it is, why it waits, and when it would start by current knowledge."""
    view = _request_view(core.state, request_id, known.get(request_id, _UNKNOWN), now)
    if view is not None and view["state"] == "waiting":
        _look_closer(core, view, now)
    return view


def _look_closer(core: Machine, view: dict[str, object], now: int) -> None:
    """Adds what takes a look at all that waits: when a request would start, and what its lane has to do with it."""
    request_id = str(view["id"])
    view["starts_in_ms"] = _starts_in_ms(core, request_id, now)
    view["reason"] = _lane_reason(core.state, request_id, now) or view["reason"]


def _starts_in_ms(core: Machine, request_id: str, now: int) -> int | None:
    """The current forecast of a waiting request: the one of its arrival does not include later arrivals."""
    waits_for = core.state.home.get(request_id)
    if waits_for is None or request_id not in waits_for.line:
        return None  # it started or left meanwhile
    if waits_for.stage is not Stage.READY and not can_forecast(core.state, waits_for):
        return None
    request = waits_for.line.get(request_id)
    forecast = core.policy.forecast(core.state, waits_for, request, now).after(
        core.state.rest_ms(request, now)
    )
    if waits_for.stage in AWAY:
        told_ms = waits_for.likely_wait_ms(request, request.foretold_ms)
        forecast = forecast.after(request.arrived_at + told_ms - now)
    return round(max(0.0, min(forecast.ms, waits_for.line.due_of(request_id) - now)))


def _request_view(state: State, request_id: str, known: Known, now: int) -> dict[str, object] | None:
    model = state.home.get(request_id)
    if model is None:
        return None
    running = model.running.get(request_id)
    request = running.request if running else model.line.get(request_id)
    return {
        "id": request_id,
        "model": model.serving.name,
        "asked": request.model,
        "companions": list(request.companions),
        "lane": request.lane,
        "class": WorkClass(request.work_class).word,
        "priority": request.priority,
        "state": "running" if running else "waiting",
        "position": None if running else model.line.position(request_id),
        "reason": _running_reason(model.serving, request, known)
        if running
        else _waiting_reason(state, model, request_id, now),
        "waited_ms": (running.since if running else now) - request.arrived_at,
        "ran_ms": now - running.since if running else None,
        "forecast_ms": known.forecast_ms,
        "starts_in_ms": None,
        "due_ms": None if running else model.line.due_of(request_id) - now,
    }


def _running_reason(model: ModelState, request: Request, known: Known) -> str:
    if known.waits_there:
        return f"it waits at {model.spec.site}"
    beside = f", with {', '.join(request.companions)} beside it" if request.companions else ""
    return f"{model.name} is answering it{beside}"


def _waiting_reason(state: State, asked: Candidate, request_id: str, now: int) -> str:
    if rest_ms := state.rest_ms(asked.line.get(request_id), now):
        return f"{AT_WORK}; it goes on after {format_millis(rest_ms)} without such work"
    ahead = asked.line.position(request_id)
    suspect = next((s for s in asked.members if suspicion(s)), None)
    if asked.is_set and asked.stage is not Stage.READY:
        return _missing_reason(state, asked, now)
    model = asked.serving
    match asked.stage:
        case Stage.READY if model.is_cut_off:
            return f"{model.name} is in memory, but it waits {hindrance(state, model, now)}"
        case Stage.READY if suspect is not None:
            return f"answers of {suspect.name} failed; it is asked whether it is well"
        case Stage.READY:
            places, request = model.spec.concurrency, asked.line.get(request_id)
            if model.in_use < places and not model.has_slot_for(request.work_class, now):
                return f"{ahead} before it; {model.name} keeps one of its {places} places for interactive requests"
            return f"{ahead} before it; {model.name} serves {places} at a time"
        case Stage.LOADING:
            return loading_text(model, now)
        case Stage.PLANNED:
            leaving = [s.name for s in state.managed if s.leaving_for == model.name]
            loading = [s.name for s in state.in_stage(Stage.LOADING)]
            if leaving:
                return f"{model.name} loads when {', '.join(leaving)} has left"
            return f"{model.name} loads when " + (
                f"the load of {', '.join(loading)} has ended" if loading else "its memory is free"
            )
        case Stage.DRAINING | Stage.STOPPING:
            return f"{model.name} is leaving memory ({model.leaving_why}) and comes back for it"
        case Stage.ASLEEP:
            held = hindrance(state, model, now)
            return f"{wakes_text(model)}; it waits {held or 'for its memory'}"
        case Stage.ABSENT:
            why = f"; its last load failed: {model.failure}" if model.failure else ""
            held = hindrance(state, model, now)
            return f"{model.name} is not in memory and waits {held or 'for its turn'}{why}"


def _lane_reason(state: State, request_id: str, now: int) -> str | None:
    """Why a request does not start although its model is in memory, where that is its lane."""
    asked = state.home.get(request_id)
    if asked is None or asked.stage is not Stage.READY or request_id not in asked.line:
        return None
    request = asked.line.get(request_id)
    hold = what_holds(state, request, now)
    if hold is None:
        return None
    if hold.kept_for:
        waits = f"{hold.waits_for} to load" if hold.is_coming else f"a free place at {hold.waits_for}"
        whom = f"{hold.kept_for}, which comes first and waits for {waits}"
        return f"lane {request.lane} keeps its free place for {whom}"
    return f"{hold.before} before it in lane {request.lane}, which serves {hold.places} at a time"


def loading_text(model: ModelState, now: int) -> str:
    """How long a model has been loading, and how long that takes."""
    usual = f"{model.load.ms / 1000:.1f} s"
    if now - model.since <= model.load.ms:
        return f"{model.name} is loading, which takes about {usual}"
    late = f"{model.name} has been loading for {(now - model.since) / 1000:.1f} s, where about {usual} were expected"
    if now < model.hangs_at:
        return late
    return f"{late}: it seems to hang, and is given up after {model.load_limit_ms / 1000:.0f} s"


def wakes_text(model: ModelState) -> str:
    """The time that a sleeping model needs to wake."""
    guess = ", a guess" if model.wake.is_guess else ""
    return f"{model.name} is asleep, wakes in about {model.wake.ms / 1000:.1f} s{guess}"


def _missing_reason(state: State, companion_set: Candidate, now: int) -> str:
    """Why a set is not complete: the stage of each member that is not ready."""
    missing = [
        f"{s.name} is {_MISSING[s.stage]}" for s in companion_set.members if s.stage is not Stage.READY
    ]
    return f"needs {companion_set.name} in memory together; {', '.join(missing)}{_held_up(state, companion_set, now)}"


def _held_up(state: State, companion_set: Candidate, now: int) -> str:
    why = [w for s in companion_set.members if s.stage is Stage.ABSENT and (w := hindrance(state, s, now))]
    failures = [f"{s.name} failed last: {s.failure}" for s in companion_set.members if s.failure]
    return "".join(f"; waits {each}" for each in why[:1]) + "".join(f"; {each}" for each in failures)


def hindrance(state: State, model: ModelState, now: int) -> str | None:
    """An obstacle that has nothing to do with other requests, as "until ..."; None when there is none."""
    obstacle = obstacle_of(state, model, now)
    if obstacle is None:
        return None
    device, detail = obstacle.device, obstacle.detail
    match obstacle.why:
        case Why.SILENT:
            return f"until {model.spec.engine} answers again: {detail}"
        case Why.MAINTENANCE:
            return f"until {device} is back from maintenance ({detail})"
        case Why.LENT:
            return f"until memory of {device} that is lent is given back ({detail})"
        case Why.UNWELL:
            return f"until {device} is well again: {detail}"
        case Why.UNREADABLE:
            return f"until {device} can be read again"
        case Why.SETTLING:
            return f"until {device}, which ran out of memory, has settled"
        case _:
            return None


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
