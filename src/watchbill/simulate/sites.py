"""Sites of a world: servers of other machines that refuse a request, fail it, or take none for a while.

Does what the relay does in a daemon: a server that refuses this machine is closed, all of it or one model, and the
request goes to another site or is told that there is none. One that fails a request, or breaks off an answer of which
the caller has seen nothing, gives it to another site where one may serve it. A server that begins every answer anew
never gets one that another had begun.

The laws: no private request is sent to an external tier, and none that must be served here to any site; no request is
sent to a site that has failed it, or to one that is closed; none is refused while another site may serve it; none waits
for a peer that is away while an external tier could take it.
"""

from collections.abc import Callable
from typing import Protocol

from watchbill.catalog import Catalog, Model, Reach, Tier
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.core.model_state import HOST_AWAY_MS
from watchbill.core.reasons import Bar
from watchbill.core.stages import Stage
from watchbill.simulate.callers import Caller, CallerState
from watchbill.simulate.engine import Power, SimEngine

__all__ = ["Sites"]

#: What servers say of the machine that asks: why it is closed, and whether that holds for one model alone.
_REFUSALS = (
    (Bar.KEY, False),
    (Bar.MONEY, False),
    (Bar.BUSY, False),
    (Bar.AWAY, False),
    (Bar.FORBIDDEN, True),
    (Bar.UNKNOWN, True),
    (Bar.BUSY, True),
)
#: How long a server stays closed.
_CLOSED_MS = (1_000.0, 60_000.0)
_REFUSED_SHARE = 0.5
_FAILS_WITHIN_MS = 150.0


#: What a request is told that no site may serve.
_NOWHERE = frozenset({m.Refusal.TIER_CLOSED, m.Refusal.NEVER_FITS})


class Around(Protocol):
    """The part of the world that its sites use."""

    @property
    def now(self) -> float: ...

    catalog: Catalog
    declared: dict[str, Model]
    engines: dict[str, SimEngine]
    open: dict[str, Caller]
    core: Machine

    def at(self, when: float, act: Callable[[], None]) -> None: ...

    def feed(self, event: m.Event) -> None: ...

    def draw(self, low: float, high: float) -> float: ...

    def give_back(self, caller: Caller, site: str, *, is_fault: bool) -> None: ...

    def break_off(self, caller: Caller) -> None: ...


class Sites:
    """What the servers of other machines do, and what must hold then."""

    def __init__(self, world: Around, say: Callable[[str, str], None]) -> None:
        self._world, self._say = world, say
        # Site and model, or all of them -> the closing's number.
        self._closed: dict[tuple[str, str], int] = {}
        self._closings = 0
        self._away: dict[str, float] = {}  # models of peers -> until when other sites go first

    # ------------------------------------------------------------------ what happens

    def close(self, site: str, bar: Bar, model: str = "", lasts_ms: float | None = None) -> None:
        """A site takes nothing, or not this model; it opens by itself where a time is told."""
        self._closings += 1
        number = self._closings
        self._closed[site, model] = number
        lasts = None if lasts_ms is None else round(lasts_ms)
        self._world.feed(m.SiteClosed(site, bar, model, lasts))
        if lasts is not None:
            self._world.at(self._world.now + lasts, lambda: self.open_again(site, model, number))

    def open_again(self, site: str, model: str = "", number: int | None = None) -> None:
        """A site takes requests again, unless it was closed anew meanwhile."""
        if number is None or self._closed.get((site, model)) == number:
            self._closed.pop((site, model), None)
            self._world.feed(m.SiteClosed(site, None, model))

    def fail(self, caller: Caller) -> None:
        """The server of a request's site refuses or fails the request some time after it was sent."""
        granted = caller.granted_at
        when = self._world.now + self._world.draw(0.0, _FAILS_WITHIN_MS)
        self._world.at(when, lambda: self._fail_now(caller, granted))

    def _fail_now(self, caller: Caller, granted: float) -> None:
        world, model = self._world, self._world.declared[caller.served_by]
        if caller.state is not CallerState.RUNNING or caller.granted_at != granted or model.site is None:
            return
        is_refused = not caller.begun and model.where is not Tier.PEER and world.draw(0, 1) < _REFUSED_SHARE
        if is_refused:
            bar, is_one = _REFUSALS[int(world.draw(0, len(_REFUSALS) - 0.001))]
            self.close(model.site, bar, model.name if is_one else "", world.draw(*_CLOSED_MS))
            if caller.state is not CallerState.RUNNING or caller.granted_at != granted:
                return  # the closing itself has moved it
        if is_refused or self._can_leave(caller):
            self._leave(caller, model.site, is_fault=not is_refused)
        else:
            world.break_off(caller)

    def begins_anew(self, caller: Caller) -> bool:
        """Whether the server that has the turn would begin an answer anew of which the caller has words: it goes to
        another site, or ends."""
        model = self._world.declared[caller.served_by]
        if not caller.has_words or model.where is not Tier.EXTERNAL:
            return False
        granted = caller.granted_at

        def refuse() -> None:
            if caller.state is CallerState.RUNNING and caller.granted_at == granted:
                if self._can_leave(caller):
                    self._leave(caller, model.site or "", is_fault=False)
                else:
                    self._world.break_off(caller)

        self._world.at(self._world.now, refuse)
        return True

    def _can_leave(self, caller: Caller) -> bool:
        return self._world.core.can_leave_site(caller.request.id, int(self._world.now))

    def _leave(self, caller: Caller, site: str, *, is_fault: bool) -> None:
        could = self._can_leave(caller)
        caller.failed_at.add(site)
        self._world.give_back(caller, site, is_fault=is_fault)
        if could and caller.outcome in _NOWHERE:
            self._say("refused although another site may serve it", caller.request.id)

    def host_failed(self, model: str) -> None:
        """A peer gave no lease."""
        self._away[model] = self._world.now + HOST_AWAY_MS

    # ------------------------------------------------------------------ what must hold

    def granting(self, caller: Caller, name: str) -> None:
        """Judges a grant at a site."""
        site = self._world.declared[name].site
        if site is None:
            return
        model, request = self._world.declared[name], caller.request
        if request.reach is Reach.HERE or (request.reach is Reach.PRIVATE and model.where is Tier.EXTERNAL):
            self._say("sent beyond its reach", f"{request.id} to {name} at {site}")
        if site in caller.failed_at:
            self._say("sent to a site that has failed it", f"{caller.request.id} to {name}")
        if (site, "") in self._closed or (site, name) in self._closed:
            self._say("sent to a site that is closed", f"{caller.request.id} to {name}")

    def look(self) -> None:
        """No request waits for a peer that is away, where an external tier takes it."""
        world = self._world
        for name, until in list(self._away.items()):
            if world.now >= until or world.engines[name].power is Power.WARM:
                del self._away[name]
        if self._away:
            for caller in world.open.values():
                if caller.state is CallerState.WAITING and caller.served_by in self._away:
                    self._judge_waiting(caller)

    def _judge_waiting(self, caller: Caller) -> None:
        request, state = caller.request, self._world.core.state
        if state.is_closing or request.companions or request.reach is not Reach.ANYWHERE:
            return
        for name, model in self._world.catalog.models.items():
            is_copy = model.copy_of == request.model and model.where is Tier.EXTERNAL
            if not is_copy or model.site is None or model.site in caller.failed_at:
                continue
            is_closed = (model.site, "") in self._closed or (model.site, name) in self._closed
            core = state.models[name]
            may_serve = core.stage is Stage.READY and not core.is_quarantined(int(self._world.now))
            if may_serve and not is_closed:
                self._say("waits for a peer that is away", f"{request.id} at {caller.served_by}, not {name}")
