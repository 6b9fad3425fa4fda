"""The protocol of a policy: which model is loaded next, and which leave for it (RES-21).

One object, chosen in the config by `[policy] name`. The shipped ones are in `tipping`; any class that keeps this
protocol can take their place. A policy only chooses among legal changes: the ledger, exclusive groups, permanent models
and reservations bind every one of them. It is called inside a step of the core, so it must not wait, read a clock or a
file, be random, or change the state that it is given.
"""

from dataclasses import dataclass
from typing import Protocol

from watchbill.core.cover import Cover
from watchbill.core.forecast import Forecast
from watchbill.core.messages import PlanKind, Request
from watchbill.core.model_state import ModelState
from watchbill.core.state import State

__all__ = ["Plan", "Policy"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of what is resident: the target comes in, the victims leave."""

    target: ModelState
    victims: Cover
    kind: PlanKind
    reason: str  # with figures, for the journal and `explain`


class Policy(Protocol):
    """Which change comes next. Has no state of its own: the same state and time give the same answer."""

    refuses_late: bool  # a request whose forecast exceeds its max_wait is refused when it arrives
    in_order: bool  # no request starts before an earlier one, whichever model it is for

    def forecast(self, state: State, model: ModelState, request: Request, now: int) -> Forecast:
        """When a request would start on this model, by means and without margins."""
        ...

    def choose(self, state: State, now: int) -> Plan | None:
        """The next change, or None when nothing should change now."""
        ...
