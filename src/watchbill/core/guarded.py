"""Guarded policies: a policy from the config decides, and `turns` replaces it in each step in which it fails
(RES-21).

A policy that the config names by its class may have faults. An exception, or a change that it may not choose, costs
it one decision and nothing more: the step goes on with `turns`, and an alert of bounded rate gives the reason.
"""

import math
from collections.abc import Callable
from typing import cast

from watchbill.catalog import PolicyRules
from watchbill.core.companions import Candidate
from watchbill.core.forecast import Forecast
from watchbill.core.messages import Alert, AlertKind, PlanKind, Request
from watchbill.core.policy import ABORTS_MAX, POLICIES, Plan, Policy, Turns, movable, waiting, yielding
from watchbill.core.stages import Stage
from watchbill.core.state import State
from watchbill.quoting import described

__all__ = ["Guarded", "illegal", "make_policy"]

#: A policy that fails in every step raises an alert this often.
ALERT_EVERY_MS = 600_000


def make_policy(rules: PolicyRules) -> Policy:
    """The policy that the config chose."""
    if rules.strategy is None:
        return POLICIES[rules.name]()
    return Guarded(rules.name, cast("Callable[[], Policy]", rules.strategy))


class Guarded:
    """A policy whose faults cannot do harm."""

    def __init__(self, name: str, make: Callable[[], Policy]) -> None:
        self._name, self._make = name, make
        self._fallback = Turns()
        self.failures = 0
        self.last_failure: str | None = None
        self._told_at: int | None = None
        try:
            self._policy: Policy = make()
            self.refuses_late, self.in_order = bool(self._policy.refuses_late), bool(self._policy.in_order)
        except (Exception, SystemExit) as error:  # noqa: BLE001  foreign code; the daemon goes on without it
            self._policy, self.last_failure = self._fallback, described(error)
            self.refuses_late, self.in_order = self._fallback.refuses_late, self._fallback.in_order

    def __deepcopy__(self, memo: dict[int, object]) -> "Guarded":
        """`explain` decides on a copy of the core. A policy has no state of its own, so the copy shares it."""
        copied = Guarded(self._name, lambda: self._policy)
        copied.failures, copied.last_failure, copied._told_at = (
            self.failures,
            self.last_failure,
            self._told_at,
        )
        return copied

    def forecast(self, state: State, model: Candidate, request: Request, now: int) -> Forecast:
        """The policy's forecast, if it is a valid time."""
        try:
            ms, is_guess, *early = self._policy.forecast(state, model, request, now)
            early_ms = early[0] if early else 0.0
            if math.isfinite(ms) and 0 <= early_ms <= ms:
                return Forecast(float(ms), bool(is_guess), float(early_ms))
            wrong = f"it forecast {ms!r} ms"
        except (Exception, SystemExit) as error:  # noqa: BLE001  see above
            wrong = described(error)
        self._failed(state, "forecast", wrong, now)
        return self._fallback.forecast(state, model, request, now)

    def choose(self, state: State, now: int) -> Plan | None:
        """The policy's choice, if it is allowed."""
        try:
            plan = self._policy.choose(state, now)
            wrong = None if plan is None else illegal(state, plan, now)
            if wrong is None:
                return plan
        except (Exception, SystemExit) as error:  # noqa: BLE001  see above
            wrong = described(error)
        self._failed(state, "choose", wrong, now)
        return self._fallback.choose(state, now)

    def _failed(self, state: State, what: str, why: str, now: int) -> None:
        self.failures, self.last_failure = self.failures + 1, f"{what}: {why}"
        if self._told_at is None or now >= self._told_at + ALERT_EVERY_MS:
            self._told_at = now
            text = f"policy {self._name} failed in {what}, and turns decides instead: {why}"
            state.out.append(Alert(AlertKind.POLICY, text))


def illegal(state: State, plan: Plan, now: int) -> str | None:
    """Why a policy may not choose this change; None when it may."""
    if not isinstance(plan, Plan):  # pyright: ignore[reportUnnecessaryIsInstance]  it may come from anywhere
        return f"it chose {type(plan).__name__}, which is no Plan"
    if not isinstance(plan.kind, PlanKind):  # pyright: ignore[reportUnnecessaryIsInstance]  the same
        return f"the kind of its plan is {plan.kind!r}, which is no PlanKind"
    target, name = plan.target, plan.target.name
    must_return = not target.is_set and target.serving.must_return
    may_return = must_return and now >= target.retry_at and state.may_load(target, now)
    if target not in waiting(state, now) and not may_return:
        return f"it chose {name}, which no request waits for, or which may not load now"
    if len({victim.name for victim in plan.victims}) != len(plan.victims):
        return f"it named a victim of {name} twice"
    own, free_to_go, hung = target.members, movable(state, target), yielding(state, target, now)
    for victim in plan.victims:
        aborts = victim.stage is Stage.LOADING and not victim.spec.permanent and victim.aborts < ABORTS_MAX
        if victim in own or not (victim in free_to_go or victim in hung or aborts):
            return f"it closed {victim.name} for {name}, which may not leave now"
    for resource, amount in state.shortage_of(target).items():
        freed = sum(victim.frees().get(resource, 0) for victim in plan.victims)
        if freed < amount:
            return f"what it closed for {name} frees {freed:,} of {resource}, and {amount:,} are missing"
    return None
