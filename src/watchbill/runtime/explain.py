"""Explain: what would happen if a model were requested now. The same decision, taken on a copy.

The copy gets a real arrival and its answer is read from the actions, so an explanation cannot differ from the decision.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from watchbill.catalog import LOCAL_SITE
from watchbill.core.absence import Why, absence_of, describe
from watchbill.core.companions import Candidate, set_name
from watchbill.core.machine import Machine
from watchbill.core.messages import Action, Admit, Arrived, DiskSeen, Grant, LookAtDisk, Note, Refuse, Request
from watchbill.core.model_state import ModelState
from watchbill.core.policy import Balance, Rate, movable
from watchbill.core.reasons import Planned
from watchbill.core.routing import bar_of, bar_text, in_order
from watchbill.core.stages import STAYING, ModelStatus, Stage
from watchbill.runtime.duplicate import duplicate, duplicate_steps
from watchbill.runtime.views import doubt, hindrance, loading_text, policy_uncertainty, suspicion, wakes_text
from watchbill.steps import Steps, at_once
from watchbill.units import format_millis

__all__ = ["explain", "explain_steps"]

_PROBE = "explain"


def explain(core: Machine, request: Request, now: int) -> dict[str, object]:
    """The verdict, the figures behind it, and the models that would leave."""
    return at_once(explain_steps(duplicate(core), request, now))


def explain_steps(core: Machine, request: Request, now: int) -> Steps[dict[str, object]]:
    """The same in steps. Nothing else may use this core meanwhile. It stays as it is: a copy takes the decision."""
    machine = yield from duplicate_steps(core)
    yield
    model = machine.state.models[request.model]
    before = {s.name: s.stage for s in machine.state.managed}
    stage, price, policy = model.status(now), model.price(now), core.state.catalog.policy.name
    if why := policy_uncertainty(machine.state, model):
        policy += f", for now turns because {why}"
    absence = absence_of(core.state, core.state.models[request.model], now)
    asleep = f"{wakes_text(model)}; " if stage is ModelStatus.ASLEEP else ""
    actions = _arrives(machine, replace(request, id=_PROBE), now)
    yield
    # The last one: a request that is admitted may be moved to another model in the same step.
    admitted = next((a for a in reversed(actions) if isinstance(a, Admit | Grant) and a.id == _PROBE), None)
    refused = next((a for a in actions if isinstance(a, Refuse) and a.id == _PROBE), None)
    serving = admitted.model if admitted else request.model
    beside = admitted.companions if admitted else request.companions
    names = (serving, *beside)
    # The same step may also decide about other requests: only actions for this one count.
    target = set_name(names) if beside else serving
    plan = _plan_for(target, actions)
    leaving = sorted(
        s.name
        for s in machine.state.managed
        if refused is None
        and before.get(s.name) in (Stage.READY, Stage.LOADING)
        and s.stage in (Stage.DRAINING, Stage.STOPPING)
        and s.leaving_for == target
    )
    granted = any(isinstance(a, Grant) and a.id == _PROBE for a in actions)
    reason = _reason(granted, refused, plan, _together(core, names, now), _held(core, names, now))
    reason = _with_doubts(core, request.model, serving, reason or _waits_because(machine, names, now))
    balance = _balance(machine, machine.state.companion_sets.get(target) or model, leaving, now)
    return {
        "model": request.model,
        "state": stage,
        "absent_because": None if absence is None else describe(absence),
        "verdict": _verdict(granted, refused, plan, leaving),
        "reason": asleep + reason,
        "companions": {name: core.state.models[name].status(now) for name in beside},
        **_route(core, request, admitted.model if admitted else None, now),
        "leaving": leaving,
        "expected_ms": _expected_ms(admitted),
        "pressure_per_s": round(balance.pressure * 1000, 4),
        "momentum_per_s": {
            s.name: round(s.price(now) * 1000, 4)
            for s in core.state.managed
            if s.stage is Stage.READY and s.name != request.model
        },
        "own_momentum_per_s": round(price * 1000, 4),
        "terms": _terms(balance, model, core, now),
        "policy": policy,
        "inertia": model.inertia,
        "load_ms": round(model.load.ms),
        "load_is_guess": model.load.is_guess,
        "service_ms": round(model.service.ms),
        "memory": sum(model.sizes().values()),
        "queued": len(core.state.models[request.model].line),
    }


def _arrives(machine: Machine, request: Request, now: int) -> list[Action]:
    """The decisions about a request. The disk, where a plan asks for it, answers what was last seen of it."""
    actions = machine.step(Arrived(request), now)
    if any(isinstance(action, LookAtDisk) for action in actions):
        actions += machine.step(DiskSeen(machine.state.disk_fault), now)
    return actions


def _route(core: Machine, request: Request, serving: str | None, now: int) -> dict[str, object]:
    """The model and the tier that would serve a request, and what each site that has the model says to it."""
    tier = None if serving is None else core.state.models[serving].spec.where.value
    return {"served_by": serving, "tier": tier, "sites": _sites(core, request, now)}


def _sites(core: Machine, request: Request, now: int) -> dict[str, str]:
    """Every site that has the model, in the order in which they are asked -> when it would start it, or why not."""
    state, told = core.state, dict[str, str]()
    models = in_order(state, state.models[request.model], ())
    if len(models) == 1 and models[0].spec.site is None:
        return told
    for model in models:
        site = model.spec.site or LOCAL_SITE
        if bar := bar_of(state, model, request):
            told[site] = bar_text(bar, site)
        elif model.is_quarantined(now):
            told[site] = f"{model.failure}; it is tried again in {format_millis(model.retry_at - now)}"
        elif not state.can_ever_fit(model):
            told[site] = "it can never fit into the memory here"
        else:
            forecast = core.policy.forecast(state, model, request, now)
            guess = ", a guess" if forecast.is_guess else ""
            told[site] = f"would start it in {format_millis(round(forecast.ms))}{guess}"
    return told


def _with_doubts(core: Machine, asked: str, serving: str, reason: str) -> str:
    """The reason, and what is held against the model that was asked for or the one that serves."""
    models = core.state.models
    if serving != asked and (why := suspicion(models[asked])):
        reason = f"{serving} serves in place of {asked} ({why}): {reason}"
    is_open = suspicion(models[serving]) is None
    return f"{reason}; but {why}" if is_open and (why := doubt(models[serving])) else reason


def _plan_for(target: str, actions: Iterable[Action]) -> Planned | None:
    """The plan for a target among the decisions of a step."""
    told = (action.reason for action in actions if isinstance(action, Note))
    return next((why for why in told if isinstance(why, Planned) and why.target == target), None)


def _expected_ms(admitted: Admit | Grant | None) -> int | None:
    """The forecast of a request that waits; one that is granted at once has none."""
    if admitted is None:
        return None
    return admitted.forecast_ms if isinstance(admitted, Admit) else 0


def _together(core: Machine, names: tuple[str, ...], now: int) -> str:
    """The state of a model, or of a set: that of the member that is ready last."""
    states = {core.state.models[name].status(now) for name in names}
    order = ("draining", "stopping", "absent", "failed", "quarantined", "asleep", "planned", "loading")
    return next((state for state in order if state in states), "ready")


def _verdict(granted: bool, refused: Refuse | None, plan: Planned | None, leaving: list[str]) -> str:
    if refused is not None:
        return refused.code
    if granted:
        return "starts now"
    if plan is not None:
        return "these leave" if leaving else "fits"
    return "waits"


def _held(core: Machine, names: tuple[str, ...], now: int) -> str | None:
    """What keeps one of them from being loaded or from serving any request."""
    models = [core.state.models[name] for name in names]
    waits = (f"it waits {why}" for s in models if _must_come(s) and (why := hindrance(core.state, s, now)))
    return next(waits, None) or next((why for s in models if (why := suspicion(s))), None)


def _must_come(model: ModelState) -> bool:
    """Whether it is not in memory, or in memory and out of reach."""
    return model.stage is Stage.ABSENT or model.is_cut_off


def _reason(granted: bool, refused: Refuse | None, plan: Planned | None, stage: str, held: str | None) -> str:
    """Why; empty for a model that is not in memory, and that nothing keeps from being loaded."""
    if refused is not None:
        return refused.message
    if granted:
        return "it is warm and has a free slot"
    if plan is not None:
        return str(plan)
    if held is not None:
        return held
    return {
        "ready": "it is warm and all its slots are taken",
        "planned": "it loads as soon as its memory is free",
        "draining": "it is leaving and comes back afterwards",
        "stopping": "it is leaving and comes back afterwards",
    }.get(stage, "")


def _loading(core: Machine, names: tuple[str, ...], now: int) -> str:
    """How far the loads are that a request waits for; empty while none is under way."""
    loading = [s for name in names if (s := core.state.models[name]).stage is Stage.LOADING]
    return "; ".join(loading_text(s, now) for s in loading)


def _waits_because(machine: Machine, names: tuple[str, ...], now: int) -> str:
    """How far its load is, or why a model that could be loaded is not planned yet, with the request in its line."""
    if loading := _loading(machine, names, now):
        return loading
    model = machine.state.models[names[0]]
    if model.failure is not None and now < model.retry_at:
        return f"its last load failed, and it is tried again in {format_millis(model.retry_at - now)}: {model.failure}"
    if any(
        s.stage in (*STAYING, Stage.DRAINING, Stage.STOPPING) and s is not model
        for s in machine.state.managed
    ):
        return "the resident models are worth more just now; it gets its turn before its patience ends"
    absence = absence_of(machine.state, model, now)
    if absence is not None and absence.why is Why.NO_ROOM:
        return describe(absence)
    return "it gets its turn before its patience ends"


def _balance(machine: Machine, target: Candidate, leaving: list[str], now: int) -> Balance:
    """The balance of a swap for this model: with the models that would leave, or with those that could."""
    state = machine.state
    victims = [state.models[name] for name in leaving] or movable(state, target)
    return Rate().balance(state, target, tuple(victims), now)


def _terms(balance: Balance, model: ModelState, core: Machine, now: int) -> dict[str, object]:
    """Every figure behind pressure and momentum, so that the decision can be checked by hand.

    pressure = (waiting + coming) / round trip; round trip = residual + load + reload;
    momentum of an idle model = inertia x weight requested per second.
    """
    return {
        "waiting": round(balance.waiting, 3),
        "coming": round(balance.coming, 3),
        "round_trip_ms": round(balance.round_trip_ms),
        "residual_ms": round(balance.residual_ms),
        "load_ms": round(balance.load_ms),
        "reload_ms": round(balance.reload_ms),
        "quantum_ms": round(model.quantum_ms),
        "linger_ms": round(model.linger_ms),
        "rebuild_ms": {
            s.name: round(s.context.rebuild_ms) for s in core.state.managed if s.stage is Stage.READY
        },
        "asked_per_s": {
            s.name: round(s.demand(now) * 1000, 4) for s in core.state.managed if s.stage is Stage.READY
        },
    }
