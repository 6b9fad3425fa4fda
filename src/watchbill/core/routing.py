"""Routing: which sites may serve a request, in which order, and why the others may not (SPOOL-10).

A site is this machine or a tier of the config. A model that is served elsewhere, too, has a copy for each such site:
a model of its own with a line, places and a stage, which occupies no memory here. So a request that goes elsewhere is
still a request in a lane for a model. Admission asks for the candidates in their order and takes the first that
starts the request in time. Nothing here chooses by itself, and nothing changes the state.
"""

from collections.abc import Sequence

from watchbill.catalog import Reach, Tier
from watchbill.core.messages import Request
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import Bar
from watchbill.core.state import Closing, State

__all__ = [
    "Bar",
    "bar_of",
    "bar_text",
    "closing_of",
    "in_order",
    "is_out_of_reach",
    "is_private",
    "is_spent_out",
]


_TEXTS = {
    Bar.HERE: "the request must be served on this machine",
    Bar.PRIVATE: "private work is never sent to an external tier",
    Bar.OFF: "it is not enabled; add enabled = true to [tiers.{site}]",
    Bar.LIMIT: "its daily limit is reached",
    Bar.KEY: "its server does not accept our key; set key of [tiers.{site}], or the variable that it names",
    Bar.FORBIDDEN: "its server does not let our key use the model; see to the account behind key of [tiers.{site}]",
    Bar.MONEY: "its server asks to be paid first; see to the account behind key of [tiers.{site}]",
    Bar.BUSY: "its server wants to be asked later",
    Bar.UNKNOWN: "its server does not know the model; correct models of [tiers.{site}]",
    Bar.AWAY: "its server cannot be reached; see url of [tiers.{site}]",
    Bar.FAILED: "it has failed this request, or could not take it",
}
_LASTING = (Bar.HERE, Bar.PRIVATE, Bar.OFF)
_REACHED: dict[Tier, Reach] = {
    Tier.LOCAL: Reach.HERE,
    Tier.PEER: Reach.PRIVATE,
    Tier.BURST: Reach.PRIVATE,
    Tier.EXTERNAL: Reach.ANYWHERE,
}


def bar_of(state: State, model: ModelState, request: Request) -> Bar | None:
    """Why this model's site may not serve the request; None where it may."""
    spec = model.spec
    if spec.site is None:
        return None
    if request.reach > _REACHED[spec.where]:
        return Bar.HERE if request.reach is Reach.HERE else Bar.PRIVATE
    if spec.where is Tier.EXTERNAL and is_private(state, model, request):
        return Bar.PRIVATE
    rules = state.catalog.tiers.get(spec.site)
    if rules is not None and not rules.enabled:
        return Bar.OFF
    if (closing := closing_of(state, model)) is not None:
        return closing.bar
    return Bar.FAILED if spec.site in request.failed_at else None


def is_private(state: State, model: ModelState, request: Request) -> bool:
    """Whether a request counts as private at this model: by its marks, or as the config says now, which may be another
    one than when it came."""
    return (
        request.reach is not Reach.ANYWHERE
        or model.spec.private
        or state.catalog.lane_for(request.lane).private
    )


def is_out_of_reach(state: State, model: ModelState, request: Request) -> bool:
    """Whether a request may not go to this model's site at all, whatever is closed now. It may have been let into its
    line: a reload gives a model to another site, or makes it or its lane private."""
    return bar_of(state, model, request) in _LASTING


def closing_of(state: State, model: ModelState) -> Closing | None:
    """Why the site of a model, or this model of it, takes no request now; None where it does, and for this machine."""
    site, closed = model.spec.site, state.closed_sites
    if site is None or not closed:
        return None
    return closed.get((site, "")) or closed.get((site, model.name))


def is_spent_out(state: State, model: ModelState, until: int) -> bool:
    """SPOOL-09: whether the daily limit of a model's site keeps requests away until then: its time costs money."""
    closing = closing_of(state, model)
    return (
        closing is not None and closing.bar is Bar.LIMIT and (closing.until is None or closing.until >= until)
    )


def bar_text(bar: Bar, site: str) -> str:
    """The same in words."""
    return _TEXTS[bar].format(site=site)


def in_order(state: State, model: ModelState, below: Sequence[ModelState]) -> list[ModelState]:
    """The model that was asked for, the smaller models of its family, and its copies, in the order of the sites."""
    copies = state.copies.get(model.name)
    if not copies:
        return [model, *below]
    place_of = state.catalog.routing.place_of
    own = place_of(model.spec.site)
    before = [copy for copy in copies if place_of(copy.spec.site) < own]
    return [*before, model, *below, *(copy for copy in copies if copy not in before)]
