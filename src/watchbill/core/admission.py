"""Admission: which requests wait, which are refused at once, and which have waited too long.

Admission is decided at once, and the decision is reported. A request whose forecast is far beyond its lane's max_wait
is refused immediately with the forecast as its Retry-After, instead of waiting in
vain. Waiting in a lane always ends: with a grant, with a refusal at the due time, or because the caller left.

A model may have copies at other sites (`routing`): a request that would be refused here, or would wait longer than the
routing rule allows, is served there. Moving a request again follows the same order.

A request with companions (RES-13) takes its set as it was asked for, or with its largest member that has a smaller
sibling stepped down, again and again, until the set fits beside what never leaves. A request that would wait too long
for one rung of that ladder may be served by the next.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from msgspec.structs import replace

from watchbill.catalog import LATEST_WINS, Lane, WorkClass
from watchbill.core.absence import Why, describe, obstacle_of, pins_before, pins_text
from watchbill.core.candidate import HeldTurn
from watchbill.core.companions import Candidate, CompanionSet, total_needs
from watchbill.core.crowd import SharedForecasts
from watchbill.core.forecast import Forecast, can_forecast, until_lane
from watchbill.core.messages import Admit, Arrived, JournalEvent, Left, Refusal, Request, SiteClosed
from watchbill.core.model_state import ModelState
from watchbill.core.policy import Policy
from watchbill.core.reasons import AT_WORK, Bar, InPlaceOf, RoutedTo
from watchbill.core.resources import GroupPlace, HostPlaces, Needs, Places, in_order
from watchbill.core.routing import bar_of, bar_text, closing_of, is_out_of_reach
from watchbill.core.routing import in_order as in_routing_order
from watchbill.core.stages import AWAY, Stage
from watchbill.core.state import Closing, State
from watchbill.ladder import ladder
from watchbill.limits import QUEUE_OPERATOR_RESERVE
from watchbill.units import format_bytes, format_millis

__all__ = ["Admission"]

#: Bounds of the Retry-After of a refused request.
RETRY_AFTER_MIN_MS = 1_000
RETRY_AFTER_MAX_MS = 3_600_000
#: A request is refused at its arrival when its forecast is this many times its patience. A forecast is in the middle of
#: what happens: of those that were refused for a few seconds on a busy machine, most would have been served in time.
REFUSED_BEYOND = 1.1
#: Reasons for the end of a wait that are told to its caller: no other request has to do with them.
_BEYOND_US = (Why.UNWELL, Why.UNREADABLE, Why.SILENT)
#: Keys of latest-wins lanes are forgotten beyond this many, unless their request still waits or runs.
LATEST_KEYS_MAX = 4_096
#: Retry-After of a request that meets a full lane or a closing daemon.
CLOSING_RETRY_MS = 5_000
#: Retry-After of a request for a device that cannot be read: a driver is rarely back sooner.
UNREAD_RETRY_MS = 30_000
#: A request that still waits this long before its wait is over goes to a smaller model of the family that is in memory.
STEP_DOWN_MS = 1_000
_COMING = frozenset({Stage.PLANNED, Stage.LOADING, Stage.READY})


class _Hindrance(Enum):
    """Why a model cannot serve its waiting requests now."""

    GONE = "gone"  # quarantined, too large, at a site whose limit is reached, or no longer in the config
    LENT = "lent"  # its device is in maintenance, or too much of it is lent, and that comes back
    AWAY = "away"  # its peer does not answer, or lends nothing now, and comes back


class Admission:
    """All waiting requests."""

    def __init__(self, state: State, policy: Policy) -> None:
        self._state = state
        self.policy = policy
        self._sets = SetChoices(state)
        self._shared_forecasts = SharedForecasts(state)
        self._latest: dict[tuple[str, str | None], str] = {}  # lane and key -> the newest request

    def arrived(self, event: Arrived, now: int) -> None:
        """Lets a request in, or refuses it.

        1. the daemon closes, or neither the model nor a smaller one of its family can serve: refused
        2. a request that it supersedes is told; its model and its lane have a place for it now: admitted
        3. its lane is full, or its caller has its share of it: refused for now
        4. one of the candidates can start it in time by the forecast: admitted
        5. or if the answers in its way end as soon as they may: admitted
        6. otherwise refused with the forecast, and a held turn keeps the model's place in the order of turns
        """
        request = event.request
        model = self._state.models[request.model]
        choices = self._choices(request, model, now)
        if self._state.is_closing or not choices:
            self._refuse_unservable(request, model, now)
            return
        asked = choices[0] if request.companions else model
        self._supersede(request)
        can_start = not request.companions and choices[0].serving.can_start(request.work_class, now)
        if not (can_start and self._starts(request, choices[0].serving)) and (full := self._full(request)):
            if (elsewhere := self._free_elsewhere(request, choices, now)) is not None:
                self._admit(request, elsewhere, 0, now)
            else:
                self._state.refuse(request.id, Refusal.LANE_FULL, full, CLOSING_RETRY_MS)
            return
        if can_start and not until_lane(self._state, choices[0], request, now).ms:
            self._admit(request, choices[0], 0, now)
            return
        forecasts = [self._forecast(choice, request, now) for choice in choices]
        for bound_ms in self._bounds(request, choices):
            for choice, forecast in zip(choices, forecasts, strict=True):
                # A guess refuses no request: a large model that was never loaded here may load quickly. Sending one
                # elsewhere is no refusal, but a model that is never loaded here is never measured either.
                is_open = forecast.is_guess and (
                    bound_ms == request.max_wait_ms or choice.stage is not Stage.READY
                )
                in_time = forecast.ms <= (REFUSED_BEYOND if bound_ms == request.max_wait_ms else 1) * bound_ms
                if in_time or is_open or not self.policy.refuses_late:
                    self._admit(request, choice, min(forecast.ms, request.max_wait_ms), now)
                    return
        for choice, forecast in zip(choices, forecasts, strict=True):
            if forecast.least_ms <= REFUSED_BEYOND * request.max_wait_ms:
                self._admit(request, choice, request.max_wait_ms, now)
                return
        self._refuse_late(request, asked, min(forecast.ms for forecast in forecasts), now)

    def _forecast(self, choice: Candidate, request: Request, now: int) -> Forecast:
        """When a request that arrives would start."""
        forecast = self._shared_forecasts.forecast(
            choice, request, now, lambda: self.policy.forecast(self._state, choice, request, now)
        )
        return forecast.after(self._state.rest_ms(request, now))

    def _bounds(self, request: Request, choices: Sequence[Candidate]) -> tuple[int, ...]:
        """The waits that are accepted, the shortest first: that of the routing rule where there is another site."""
        after_ms = self._state.catalog.routing.after_ms
        if after_ms is None or len({choice.spec.site for choice in choices}) < 2:
            return (request.max_wait_ms,)
        return (min(after_ms, request.max_wait_ms), request.max_wait_ms)

    def site_closed(self, event: SiteClosed, now: int) -> None:
        """Closes a tier, or a model of it, or opens it again."""
        closed, key = self._state.closed_sites, (event.site, event.model)
        if event.bar is None:
            closed.pop(key, None)
        else:
            closed[key] = Closing(event.bar, None if event.lasts_ms is None else now + event.lasts_ms)
        self._state.is_still = False

    def _choices(self, request: Request, model: ModelState, now: int) -> Sequence[Candidate]:
        """The model asked for, then the smaller ones of its family, without those that cannot serve."""
        if request.companions:
            return self._sets.choices(request, now)
        below = () if request.exact else self._state.smaller_models(model)
        usable = [
            s
            for s in in_routing_order(self._state, model, below)
            if self._may_serve(s, now) and bar_of(self._state, s, request) is None
        ]
        if len(usable) > 1:
            # Stable: only health, and peers that are away, change the order.
            usable.sort(key=lambda s: self._must_wait_for_health(s) or self._is_away(s, now))
            if usable[0].is_doubted and (at_hand := next((s for s in usable if s.is_at_hand), None)):
                usable.remove(at_hand)
                # RES-20: no request waits for a suspect model that another one can serve.
                usable.insert(0, at_hand)
        return usable

    def _may_serve(self, model: ModelState, now: int) -> bool:
        if model.is_retired or model.is_quarantined(now):
            return False
        return model.stage is Stage.READY or self._state.can_ever_fit(model)

    def _is_away(self, model: ModelState, now: int) -> bool:
        """SPOOL-10: a site that does not answer cannot serve: the next one of the order does, for as long."""
        return now < model.away_until and model.spec.site is not None and model.stage is not Stage.READY

    def _must_wait_for_health(self, model: Candidate) -> bool:
        """RES-27, RES-14: a device that is too hot, too full or lent takes no loads, so a tier elsewhere goes first."""
        ledger, needs = self._state.ledger, model.needs
        if ledger.in_maintenance(needs):
            return model.stage is not Stage.READY  # a model that is still in memory is leaving
        return model.stage in AWAY and (
            ledger.is_constrained(needs) or self._state.lent_out(model) is not None
        )

    def _refuse_unservable(self, request: Request, model: ModelState, now: int) -> None:
        refuse = self._state.refuse
        if self._state.is_closing:
            refuse(
                request.id,
                Refusal.SHUTTING_DOWN,
                "Watchbill is shutting down; try again when it is back",
                CLOSING_RETRY_MS,
            )
        elif request.companions and self._sets.is_barred(request, now):
            self._refuse_barred(request, model, now)
        elif request.companions:
            refuse(request.id, *self._sets.refusal(request, now))
        elif bar_of(self._state, model, request):
            self._refuse_barred(request, model, now)
        elif model.is_quarantined(now):
            refuse(request.id, Refusal.MODEL_FAILED, f"{model.name}: {model.failure}", model.retry_at - now)
        elif unread := self._state.ledger.unread(model.needs):
            refuse(request.id, Refusal.DEVICE_UNREADABLE, _unread_text(model.name, unread), UNREAD_RETRY_MS)
        elif any(closing_of(self._state, copy) for copy in self._state.copies.get(model.name, ())):
            self._refuse_barred(request, model, now)  # it never fits here, and would be served there later
        else:
            refuse(
                request.id, Refusal.NEVER_FITS, f"{model.name} can never fit: {self._shortage_text(model)}"
            )

    def _refuse_barred(self, request: Request, model: ModelState, now: int) -> None:
        """Refuses a request that no site may serve: why not, and when the first of them opens."""
        told: list[str] = []
        opens: list[int] = []
        for each in in_routing_order(self._state, model, ()):
            site, bar = each.spec.site, bar_of(self._state, each, request)
            if site is None or bar is None:
                continue
            text, closing = bar_text(bar, site), closing_of(self._state, each)
            if closing is not None and closing.bar is bar and closing.until is not None:
                opens.append(max(RETRY_AFTER_MIN_MS, closing.until - now))
                text += f"; it is asked again in {format_millis(opens[-1])}"
            elif bar is Bar.FAILED:
                opens.append(RETRY_AFTER_MIN_MS)
            told.append(f"the tier {site}: {text}")
        where = (
            f"{model.name} is not served here now"
            if model.spec.site is None
            else f"only tiers have {model.name}"
        )
        if len(told) == 1 and model.spec.site is not None:
            where, told = f"only the tier {model.spec.site} has {model.name}", [told[0].partition(": ")[2]]
        text = f"{where}: {', '.join(told)}"
        self._state.refuse(request.id, Refusal.TIER_CLOSED, text, min(opens, default=None))

    def _shortage_text(self, model: ModelState) -> str:
        ledger, kept = self._state.ledger, self._state.permanents(model)
        parts = [
            f"it needs {amount:,} of {resource}, where {ledger.capacity_of(resource):,} less "
            f"{sum(k.get(resource, 0) for k in kept):,} of permanent models is all there is"
            for resource, amount in model.needs.items()
        ]
        advice = "; give it a smaller context, or the device more capacity or a smaller reserve"
        return "; ".join(parts) + advice + pins_text(pins_before(self._state, model))

    def _supersede(self, request: Request) -> None:
        """LANE-03: in a latest-wins lane the newest request replaces the waiting one, which is told at once."""
        if self._state.catalog.find_lane(request.lane).policy != LATEST_WINS:
            return
        key = (request.lane, request.supersede_key)
        older = self._latest.get(key)
        self._latest[key] = request.id
        model = self._state.home.get(older) if older is not None else None
        if older is not None and model is not None and older in model.line:
            self._state.withdraw(model, older)
            self._state.refuse(older, Refusal.STALE, f"superseded by {request.id}")
        if len(self._latest) > LATEST_KEYS_MAX:
            self._latest = {
                k: id for k, id in self._latest.items() if id in self._state.home or id == request.id
            }

    def _free_elsewhere(self, request: Request, choices: Sequence[Candidate], now: int) -> Candidate | None:
        """The first copy at another site that would start the request now."""
        away = (choice for choice in choices if choice.spec.site is not None)
        return next((s for s in away if s.serving.can_start(request.work_class, now)), None)

    def _full(self, request: Request) -> str | None:
        """Why no request of this lane or caller may wait; None where one may."""
        lane = self._state.catalog.find_lane(request.lane)
        waiting = self._state.lane_waiting.get(request.lane, 0)
        if waiting >= lane.queue_max + (QUEUE_OPERATOR_RESERVE if request.operator else 0):
            return (
                f"lane {lane.name} already holds {waiting} waiting requests, its queue_max; try again later"
            )
        if request.caller is not None and self._has_its_share(request.caller, lane):
            return (
                f"{request.caller} has its share of lane {lane.name}, {lane.key_share} waiting requests; try again "
                "later, or give the key a waiting_max of its own"
            )
        return None

    def _has_its_share(self, caller: str, lane: Lane) -> bool:
        return self._state.caller_waiting.get((lane.name, caller), 0) >= lane.key_share

    def _starts(self, request: Request, model: ModelState) -> bool:
        """Whether nothing but a slot, which is free, decides: then a full queue does not concern the request."""
        is_sound = not model.is_cut_off and not model.is_suspect
        return is_sound and not self.policy.in_order and request.lane in self._state.open_lanes

    def _admit(
        self, request: Request, model: Candidate, forecast: float, now: int, due: int | None = None
    ) -> None:
        """Puts a request into a line. A request that was moved keeps its deadline, and counts as demand only once."""
        if due is None:
            self._count_use(request, model, now)
        if request.companions:
            request = replace(request, companions=tuple(s.name for s in model.members[1:]))
        told_ms = model.likely_wait_ms(request, forecast)
        if forecast and request.work_class is not WorkClass.INTERACTIVE:
            request = replace(request, foretold_ms=round(forecast))
        self._state.join(model, request, request.arrived_at + request.max_wait_ms if due is None else due)
        if self._has_others(model):
            self._state.wakes.append(request.arrived_at + request.max_wait_ms - _last_moment_ms(request))
        is_known = model.stage is Stage.READY or can_forecast(self._state, model)
        forecast_ms = round(told_ms) if is_known else None
        self._state.out.append(Admit(request.id, model.serving.name, forecast_ms, request.companions))
        spec = model.serving.spec
        if spec.site is not None:
            why = RoutedTo(spec.site, spec.where, request.model)
            self._state.note(JournalEvent.ROUTE, why, model.serving, request=request.id)

    def _count_use(self, request: Request, model: Candidate, now: int) -> None:
        """Counts an arrival as demand for the model that was requested, whichever model serves it."""
        work_class, models = request.work_class, self._state.models
        if work_class is WorkClass.ROTATION:
            return
        weight = self._state.catalog.policy.weights[work_class]
        for name in (request.model, *request.companions):
            models[name].rate.learn(weight, now)
        for member in model.members:
            member.note_pause(now)
            member.last_used = now
        model.serving.last_class = work_class
        if work_class is WorkClass.INTERACTIVE:
            model.serving.top_class_at = now
            for member in model.members:
                member.note_person(now)

    def _refuse_late(self, request: Request, model: Candidate, forecast: float, now: int) -> None:
        retry = min(max(forecast, RETRY_AFTER_MIN_MS), RETRY_AFTER_MAX_MS)
        explicit = request.work_class is not WorkClass.ROTATION
        if explicit and model.stage in AWAY:
            back_at = now + 1_000 * math.ceil(retry / 1_000)  # callers are told whole seconds
            held = model.held_turn
            due = max(now + request.max_wait_ms, back_at) if held is None else held.due
            work_class = request.work_class if held is None else held.work_class
            self._state.hold_turn(model, HeldTurn(due, work_class, back_at))
            self._state.wakes.append(model.held_turn_ends)
        text = (
            f"model {model.name} cannot start this within {request.max_wait_ms / 1000:g} s, {self._bound(request)}: "
            f"the forecast is {forecast / 1000:.1f} s{self._rest_text(request, now)}"
        )
        self._state.refuse(request.id, Refusal.WAIT_EXCEEDED, text, retry)

    def left(self, event: Left, now: int) -> None:
        """Forgets a waiting request whose caller is gone."""
        model = self._state.home.get(event.id)
        if model is not None and event.id in model.line:
            del self._state.home[event.id]
            self._state.withdraw(model, event.id)

    def rehome(self, now: int) -> None:
        """RES-13: moves requests whose model cannot serve them now to a smaller one of its family.

        A model that is quarantined, removed, or turned out too large serves no request. A request that no other one
        can take is then answered at once. A model whose device is lent, or whose peer is away, comes back: its requests
        go on waiting, unless another site can take them.
        """
        if not self._state.waiting:
            return
        if self._state.has_barred:
            self._move_barred(now)
        for model in self._state.lines():
            if model.line and (hindered := self._hindrance(model, now)):
                for request_id in model.line.ids():
                    self._move(model, request_id, now, must=hindered is _Hindrance.GONE)
            elif model.line and model.failure and model.stage is Stage.ABSENT:
                self._step_down(model, now)
            elif model.line and self._has_others(model):
                self._step_down_in_time(model.serving, now)

    def _move_barred(self, now: int) -> None:
        """Moves requests out of the lines of sites that they may not go to any more, or refuses them."""
        self._state.has_barred = False
        for line in self._state.lines():
            if line.serving.spec.site is None:
                continue
            for request_id in line.line.ids():
                if is_out_of_reach(self._state, line.serving, line.line.get(request_id)):
                    self._move(line, request_id, now, must=True)

    def _has_others(self, model: Candidate) -> bool:
        """Whether its requests may be served by a smaller one of its family, or by a copy at another site."""
        return not model.is_set and (model.spec.family is not None or model.name in self._state.copies)

    def _step_down_in_time(self, model: ModelState, now: int) -> None:
        """RES-13, RES-20: moves requests to a smaller model before their wait is over.

        A smaller model in memory takes all requests of a suspect model at once, and those of any other model at the
        last moment. One that is not in memory is loaded for requests that could not wait for the suspect's reset.
        """
        others = (*self._state.smaller_models(model), *self._state.copies.get(model.name, ()))
        below = [s for s in others if self._may_serve(s, now)]
        has_warm = any(s.is_at_hand for s in below)
        if not below or not (has_warm or model.is_doubted):
            return
        for request_id in model.line.ids():
            request, left_ms = model.line.get(request_id), model.line.due_of(request_id) - now
            last_ms = _last_moment_ms(request)
            if not self._may_step_down(model, request):
                continue
            if model.is_doubted and not has_warm:
                forecast = min(self.policy.forecast(self._state, s, request, now).ms for s in below)
                if forecast <= left_ms < model.recovery_ms(now):
                    self._move(model, request_id, now, must=False)
            elif model.is_doubted or left_ms <= last_ms:
                self._move(model, request_id, now, must=False)
            else:
                self._state.wakes.append(now + left_ms - last_ms)

    def _may_step_down(self, model: ModelState, request: Request) -> bool:
        """Whether something else may serve this request: a smaller model, unless it opted out, or another site."""
        if not request.exact and model.spec.family is not None:
            return True
        copies = self._state.copies.get(model.name, ())
        return any(bar_of(self._state, copy, request) is None for copy in copies)

    def _step_down(self, model: Candidate, now: int) -> None:
        """Moves the requests for which the next try of a failing model would come too late, where another one can take
        them; and those that would be too late for the other one if that try failed, too."""
        tried_at = max(now, model.retry_at) + model.next_load_ms
        others = () if model.is_set else self._state.smaller_models(model.serving)
        below = [s for s in others if self._may_serve(s, now)]
        other_ms = min((0.0 if s.is_at_hand else s.next_load_ms for s in below), default=0.0)
        for request_id in model.line.ids():
            last_ms = other_ms + _last_moment_ms(model.line.get(request_id)) if below else 0.0
            if model.line.due_of(request_id) < tried_at + last_ms:
                self._move(model, request_id, now, must=False)

    def _hindrance(self, model: Candidate, now: int) -> "_Hindrance | None":
        for member in model.members:  # asked of every line in every turn: `any` takes twice the time
            if member.is_retired or member.is_quarantined(now):
                return _Hindrance.GONE
        if closing_of(self._state, model.serving) is not None:
            return _Hindrance.GONE
        if not model.is_set:
            if model.stage not in _COMING and not self._state.can_ever_fit(model.serving):
                return _Hindrance.GONE  # a size that was not declared is known after the first load
            if self._is_away(model.serving, now):
                return _Hindrance.AWAY
        is_lent = model.stage is not Stage.READY and self._state.ledger.in_maintenance(model.needs)
        is_lent = is_lent or (model.stage in AWAY and self._state.lent_out(model) is not None)
        return _Hindrance.LENT if is_lent else None

    def _move(self, model: Candidate, request_id: str, now: int, *, must: bool) -> None:
        state, request, due = self._state, model.line.get(request_id), model.line.due_of(request_id)
        if missing := state.missing_of(request):
            state.withdraw(model, request_id)
            state.refuse(request_id, Refusal.MODEL_NOT_FOUND, f"{missing} is no longer in the config")
            return
        asked = state.models[request.model]
        usable = [s for s in self._choices(request, asked, now) if s is not model]
        if model.stage is Stage.READY:
            usable.sort(key=lambda s: not s.serving.is_at_hand)  # its wait is nearly over: no load in its way
        chosen = next(
            (s for s in usable if self._hindrance(s, now) is None), usable[0] if must and usable else None
        )
        if chosen is not None:
            state.withdraw(model, request_id)
            forecast = now - request.arrived_at + self.policy.forecast(state, chosen, request, now).ms
            self._admit(request, chosen, min(forecast, request.max_wait_ms), now, due)
            if chosen.spec.site is None:
                state.note(
                    JournalEvent.SMALLER, InPlaceOf(model.serving.name), chosen.serving, request=request_id
                )
        elif must:
            state.withdraw(model, request_id)
            self._refuse_unservable(request, asked, now)

    def leave_site(self, request_id: str, now: int) -> None:
        """Moves a request that the server of its site refused or failed to another site, or refuses it."""
        model = self._state.home.get(request_id)
        if model is not None and request_id in model.line:
            self._move(model, request_id, now, must=True)

    def can_leave_site(self, request_id: str, now: int) -> bool:
        """Whether something else than its model's site may serve a running request."""
        model = self._state.home.get(request_id)
        running = None if model is None else model.running.get(request_id)
        if model is None or running is None or self._state.is_closing or running.request.companions:
            return False
        request, site = running.request, model.serving.spec.site
        asked = self._state.models.get(request.model)
        others = () if asked is None else self._choices(request, asked, now)
        return any(s is not model and (site is None or s.serving.spec.site != site) for s in others)

    def is_out_of_reach(self, request_id: str) -> bool:
        """Whether the site of a running request may not serve it any more, as the config says now."""
        model = self._state.home.get(request_id)
        running = None if model is None else model.running.get(request_id)
        return (
            model is not None
            and running is not None
            and is_out_of_reach(self._state, model.serving, running.request)
        )

    def drop_held_turns(self, now: int) -> None:
        """Drops held turns whose caller did not come back in time."""
        if not self._state.has_held_turns:
            return
        self._state.has_held_turns = False
        for model in (*self._state.managed, *self._state.companion_sets.values()):
            if model.held_turn is not None and not model.line and now >= model.held_turn_ends:
                model.held_turn = None
            self._state.has_held_turns |= model.held_turn is not None

    def expire(self, now: int) -> None:
        """Answers every request whose patience ends now."""
        while (first := self._state.patience.first()) and now >= first[0]:
            due, request_id = first
            self._expire_one(self._state.home[request_id], request_id, due, now)

    def _expire_one(self, model: Candidate, request_id: str, due: int, now: int) -> None:
        request = self._state.withdraw(model, request_id)
        bound, is_again = self._bound(request, due), due < request.bound_at  # of its wait since its last turn
        explicit = request.work_class is not WorkClass.ROTATION
        if explicit and model.stage in AWAY and self.policy.refuses_late:
            due = due if model.held_turn is None else min(due, model.held_turn.due)
            self._state.hold_turn(model, HeldTurn(due, request.work_class))
        waited = now - request.arrived_at
        why = f" ({model.failure})" if model.failure else ""
        text = f"{model.name} could not start this within {waited / 1000:.1f} s, {bound}"
        if is_again:
            text = f"{model.name} could not start this again, {waited / 1000:.1f} s after it came: {bound} is over"
        code = (
            Refusal.MAINTENANCE if self._state.ledger.in_maintenance(model.needs) else Refusal.WAIT_EXCEEDED
        )
        if request.ends_at:  # whichever bound came first: without the engine's death it would not wait
            code, text = Refusal.ENGINE_FAILED, _out_of_time(model.name, request)
        why += ": its memory is lent for maintenance" if code == Refusal.MAINTENANCE else ""
        why += self._lent_text(model) if code == Refusal.WAIT_EXCEEDED else ""
        why += self._obstacle_text(model, now) if code == Refusal.WAIT_EXCEEDED else ""
        why += self._rest_text(request, now)
        retry_ms = model.load.ms
        if isinstance(model, ModelState) and model.stage is Stage.LOADING:
            retry_ms = model.load_left_ms(now)
        elif model.serving.is_doubted:
            retry_ms = model.serving.recovery_ms(now)
        self._state.refuse(request.id, code, text + why, max(RETRY_AFTER_MIN_MS, retry_ms))
        self._state.note(JournalEvent.EXPIRE, bound, model, request=request.id, ms=waited)

    def _rest_text(self, request: Request, now: int) -> str:
        return f": {AT_WORK}" if self._state.rest_ms(request, now) else ""

    def _lent_text(self, model: Candidate) -> str:
        book = self._state.lent_out(model) if model.stage in AWAY else None
        return "" if book is None else f": {format_bytes(book.lent)} of {book.device.name} is lent"

    def _obstacle_text(self, model: Candidate, now: int) -> str:
        """What no other request can change: a card in bad health, or a program that does not answer."""
        away = [s for s in model.members if s.stage in AWAY]
        obstacles = (obstacle_of(self._state, s, now) for s in away)
        told = (describe(o) for o in obstacles if o is not None and o.why in _BEYOND_US)
        return next((f": {text}" for text in told), "")

    def _bound(self, request: Request, due: int | None = None) -> str:
        """The bound that the request waited up to, until `due` if it had begun to wait, in words."""
        if request.is_hurried:
            return "the deadline of its caller"
        if request.bound_at and due is not None and due >= request.bound_at:
            return f"the max_wait and the timeout of lane {request.lane} together"
        if request.bound_at:  # it had a turn and went back to its line
            return f"the max_wait of lane {request.lane} since it went back to its line"
        return f"the max_wait of lane {request.lane}"


def _last_moment_ms(request: Request) -> int:
    """How long before the end of its wait a request goes to a smaller model in memory."""
    return min(STEP_DOWN_MS, request.max_wait_ms // 4)


def _out_of_time(model: str, request: Request) -> str:
    """The text for a request whose engine died and whose next try could not begin in time."""
    return f"{model} died during this request, and was not back within the time that lane {request.lane} gives it"


# ------------------------------------------------------------------ companion sets


_Members = tuple[ModelState, ...]


class SetChoices:
    """The companion sets that can serve a request."""

    def __init__(self, state: State) -> None:
        self._state = state

    def choices(self, request: Request, now: int) -> list[CompanionSet]:
        """The sets that could serve it, the requested one first."""
        found: list[CompanionSet] = []
        for members in self._ladder(request):
            if self._is_usable(members, now) and bar_of(self._state, members[0], request) is None:
                companion_set, self._state.is_still = self._state.companion_sets.of(members, now), False
                companion_set.refresh(self._state.models, now)
                found.append(companion_set)
        if len(found) > 1:
            found.sort(key=self._must_wait_for_health)  # stable: only health changes the order
        return found

    def is_barred(self, request: Request, now: int) -> bool:
        """Whether only the site of a model keeps the request from it: its answer would come from there."""
        return any(
            bar_of(self._state, members[0], request) is not None and self._is_usable(members, now)
            for members in self._ladder(request)
        )

    def _is_usable(self, members: _Members, now: int) -> bool:
        if any(s.is_retired or s.is_quarantined(now) for s in members):
            return False
        return all(s.stage is Stage.READY for s in members) or self._fits(members)

    def refusal(self, request: Request, now: int) -> tuple[Refusal, str, int | None]:
        """Code, text and Retry-After for a request that no rung of its ladder can serve."""
        ladder = list(self._ladder(request))
        fitting = [members for members in ladder if self._fits(members)]
        for model in fitting[0] if fitting else ():
            if model.is_quarantined(now):
                return Refusal.MODEL_FAILED, f"{model.name}: {model.failure}", model.retry_at - now
        names = " and ".join(s.name for s in ladder[0])
        if unread := self._state.ledger.unread(total_needs(ladder[-1])):
            return Refusal.DEVICE_UNREADABLE, _unread_text(names, unread), UNREAD_RETRY_MS
        text = f"{names} can never be in memory together: {self._shortage_text(ladder[-1])}"
        return Refusal.NEVER_FITS, text, None

    def _ladder(self, request: Request) -> Iterator[_Members]:
        """The set as asked, then with smaller models in it."""
        models = self._state.models
        asked = (request.model, *request.companions)
        if request.exact:
            yield tuple(models[name] for name in asked)
            return
        for names in ladder(asked, self._smaller_models, lambda name: sum(models[name].sizes().values())):
            yield tuple(models[name] for name in names)

    def _smaller_models(self, name: str) -> list[str]:
        return [s.name for s in self._state.smaller_models(self._state.models[name])]

    def _fits(self, members: _Members) -> bool:
        """Whether all members could be resident beside the models that never leave."""
        return self._state.ledger.fits_ever(total_needs(members), self._kept(members))

    def _kept(self, members: _Members) -> list[Needs]:
        """The needs of models that never leave and are not of the set: permanent models, and reserved core models."""
        return self._state.permanents(*members)

    def _must_wait_for_health(self, companion_set: CompanionSet) -> bool:
        """RES-27, RES-14: a device that is too hot, too full or lent takes no loads, so a tier elsewhere goes first."""
        ledger = self._state.ledger
        if any(ledger.in_maintenance(s.needs) for s in companion_set.members):
            return companion_set.stage is not Stage.READY
        return companion_set.stage is Stage.ABSENT and (
            ledger.is_constrained(companion_set.needs) or self._state.lent_out(companion_set) is not None
        )

    def _shortage_text(self, members: _Members) -> str:
        """The sizes of each resource that is too small; a group is a resource of one place."""
        kept, ledger = self._kept(members), self._state.ledger
        parts: list[str] = []
        needs = total_needs(members)
        for resource in in_order(needs):
            staying = sum(k.get(resource, 0) for k in kept)
            if needs[resource] + staying <= ledger.capacity_of(resource):
                continue
            mine = [s for s in members if s.needs.get(resource)]
            if isinstance(resource, GroupPlace):
                parts.append(f"{' and '.join(s.name for s in mine)} exclude each other on {resource.device}")
            elif isinstance(resource, Places):
                where = resource.engine if isinstance(resource, HostPlaces) else resource.device
                parts.append(f"{where} takes {ledger.capacity_of(resource)} models at a time")
            else:
                device = resource
                sizes = " + ".join(f"{s.name} {format_bytes(s.needs[device])}" for s in mine)
                room = format_bytes(ledger.capacity_of(device))
                less = f" less {format_bytes(staying)} of what stays" if staying else ""
                parts.append(f"{sizes} on {device}, where {room}{less} is all there is")
        return "; ".join(parts)


def _unread_text(names: str, devices: Iterable[str]) -> str:
    return (
        f"{names}: there is no reading of {', '.join(devices)}; watchbill doctor says why it cannot be read"
    )
