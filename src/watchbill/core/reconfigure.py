"""Reconfiguring: a new catalog takes the place of the old one while everything runs.

Unchanged models are not affected. A new one is added. Where only keys changed that the process does not see, the
model takes them over and stays warm (`EFFECTS` is the table). Any other change, or a removal, closes the model like a
victim, and it is replaced or forgotten when its memory is back. A model that is put back into the config before that
is not removed. Requests that wait for a changed model keep their place. Those that wait for a removed one are moved
or refused by `admission` before the model is forgotten. A shorter max_wait of a lane holds for those that wait, too.

A changed key restarts a model only if the running process, its address or its memory would differ. Every other key is
read by Watchbill itself, and takes effect while the model stays warm.
"""

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from operator import attrgetter

from msgspec import structs

from watchbill.catalog import Catalog, Lane, Model
from watchbill.core.companions import Candidate
from watchbill.core.messages import Footprint, Knowledge, Reconfigured
from watchbill.core.model_state import ModelState
from watchbill.core.stages import STAYING, Stage
from watchbill.core.state import State

__all__ = ["EFFECTS", "SEEN_BY", "Effect", "Reconfigure", "effect_of"]


class Reconfigure:
    """The changes of the config that are not in force yet."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: Mapping[str, Knowledge] = {}
        self.is_settled = True  # every model matches the config

    def reconfigured(self, event: Reconfigured, now: int) -> None:
        """Takes the new catalog over. Models that changed while in memory follow when they have left it."""
        state, self.is_settled = self._state, False
        self._known = event.known
        lanes, engines = state.catalog.lanes, state.catalog.engines
        state.declare(event.catalog)
        self._shorten(lanes, now)
        state.ledger.reconfigure(event.catalog)
        state.remeasured()
        for name, model in list(state.models.items()):
            model.rules = event.catalog.policy
            spec = event.catalog.models.get(name)
            model.is_retired, model.successor = spec is None, None
            if spec is None:
                self._drop_held_turns(model)
            else:
                self._redefine(model, spec, event)
                is_elsewhere = engines.get(spec.engine) != event.catalog.engines.get(spec.engine)
                if is_elsewhere and model.failure is not None and model.stage is Stage.ABSENT:
                    model.forgive(now)  # another key or address: what failed there says nothing about it
                    state.remeasured()
            state.weigh(model)
        specs = event.catalog.models.items()
        state.add((spec, self._known_of(name)) for name, spec in specs if name not in state.models)
        state.reorder()
        self.settle()

    def _shorten(self, before: Mapping[str, Lane], now: int) -> None:
        """Applies a shorter max_wait to those that wait already, counted from their arrival.

        A request whose new bound is over ends now. A longer one holds for new requests only: the callers that wait were
        promised the old one. A caller's own deadline stays, and so does the bound of a request that had a turn.
        """
        state, lanes = self._state, self._state.catalog.lanes
        shorter = {
            name: lane.max_wait_ms
            for name, lane in lanes.items()
            if (old := before.get(name)) is not None and lane.max_wait_ms < old.max_wait_ms
        }
        for line in state.lines() if shorter else ():
            for request_id in line.line.ids():
                request, due = line.line.get(request_id), line.line.due_of(request_id)
                max_wait_ms = shorter.get(request.lane, request.max_wait_ms)
                if max_wait_ms >= request.max_wait_ms or due != request.arrived_at + request.max_wait_ms:
                    continue
                state.withdraw(line, request_id)
                sooner = max(now, request.arrived_at + max_wait_ms)
                shortened = structs.replace(request, max_wait_ms=max_wait_ms, is_hurried=False)
                state.join(line, shortened, sooner)

    def _known_of(self, name: str) -> Knowledge:
        return self._known.get(name) or Knowledge(Footprint({}))

    def _drop_held_turns(self, model: ModelState) -> None:
        """Drops the held turns of a model that is removed, its own and those of its sets."""
        for line in (model, *self._sets_of(model)):
            line.held_turn = None

    def _sets_of(self, model: Candidate) -> list[Candidate]:
        companion_sets = self._state.companion_sets.values()
        return [c for c in companion_sets if any(s.name == model.name for s in c.members)]

    @staticmethod
    def _redefine(model: ModelState, spec: Model, event: Reconfigured) -> None:
        """Takes a definition over at once, or keeps it until the model is out of memory."""
        effect = effect_of(model.spec, spec, event.catalog)
        is_away = model.stage is Stage.ABSENT and not model.running
        if effect is Effect.RESTART or (
            effect is Effect.NEXT_LOAD and is_away
        ):  # also a new chance after failures
            model.successor = spec
        elif effect is not Effect.NONE:
            if spec.memory != model.spec.memory and spec.name in event.known:
                model.footprint = event.known[spec.name].footprint
            model.spec = spec
            model.keep_alive(model.keep_alive_ms)

    def outdated(self) -> list[ModelState]:
        """The models in memory that must leave because their definition changed."""
        return [
            s for s in self._state.managed if (s.is_retired or s.successor is not None) and s.stage in STAYING
        ]

    def settle(self) -> None:
        """Replaces and forgets models that are out of memory by now."""
        if self.is_settled:
            return
        changed = [s for s in self._state.models.values() if s.is_retired or s.successor is not None]
        self.is_settled = not changed
        gone: list[ModelState] = []
        replaced: list[ModelState] = []
        for model in changed:
            # Another operator's server goes on with what it has not let go of.
            is_busy = bool(model.running or model.users or (model.spec.shared and model.lingering))
            if model.is_retired:
                is_there = not model.spec.shared and model.stage is not Stage.ABSENT
                is_wanted = any(line.line for line in (model, *self._sets_of(model)))
                if not (is_there or is_busy or is_wanted):
                    gone.append(model)
            elif model.spec.shared or (model.stage is Stage.ABSENT and not is_busy):
                replaced.append(model)
        if gone:
            self._state.remove(gone)
        if replaced:
            self._state.add(
                (s.successor, self._known_of(s.name)) for s in replaced if s.successor is not None
            )
        for model in replaced:
            self._take_over(model, self._state.models[model.name])

    def _take_over(self, old: ModelState, new: ModelState) -> None:
        new.line, new.attempt, new.loads, new.evictions = old.line, old.attempt, old.loads, old.evictions
        # A shared model: another operator's server goes on answering them.
        new.users, new.running, new.lingering = old.users, old.running, old.lingering
        for request_id in (*new.line.ids(), *new.running):
            self._state.home[request_id] = new
        self._state.has_barred |= old.spec.site != new.spec.site and new.spec.site is not None


class Effect(Enum):
    """The effect of a changed key of a model."""

    NONE = 0  # nothing changed
    AT_ONCE = 1  # Watchbill reads it: the new value holds from now on
    NEXT_LOAD = 2  # read when a process is started, checked or stopped: the running one keeps the old value
    #: The running process, its address or its memory would differ: it leaves until the next request.
    RESTART = 3


#: Every field of a model in the catalog. A test compares it with the fields and with the keys of the config.
EFFECTS: Mapping[str, Effect] = {
    "name": Effect.RESTART,
    "engine": Effect.RESTART,
    "source": Effect.RESTART,
    "served_as": Effect.RESTART,
    "devices": Effect.RESTART,
    "is_placed": Effect.AT_ONCE,  # where it goes is its devices
    "shared": Effect.RESTART,
    "writes_here": Effect.RESTART,
    "context": Effect.RESTART,
    "threads": Effect.RESTART,
    "mmap": Effect.RESTART,
    "embedding": Effect.RESTART,
    "prompt_cache": Effect.RESTART,
    "command": Effect.RESTART,
    "env": Effect.RESTART,
    "arguments": Effect.RESTART,
    "script": Effect.RESTART,
    "url": Effect.RESTART,
    "unit": Effect.RESTART,
    "sleeps_when_told": Effect.RESTART,  # sleep was switched on or off
    "concurrency": Effect.RESTART,
    "sleep_ms": Effect.RESTART,
    "load_timeout_ms": Effect.NEXT_LOAD,
    "health": Effect.NEXT_LOAD,
    "stop": Effect.NEXT_LOAD,
    "probe": Effect.NEXT_LOAD,
    "image": Effect.NEXT_LOAD,
    "memory": Effect.AT_ONCE,  # what the ledger counts; another device is another process
    "aliases": Effect.AT_ONCE,
    "permanent": Effect.AT_ONCE,
    "priority": Effect.AT_ONCE,
    "inertia": Effect.AT_ONCE,
    "idle_ms": Effect.AT_ONCE,
    "stays_if_room": Effect.AT_ONCE,
    "group": Effect.AT_ONCE,
    "family": Effect.AT_ONCE,
    "family_rank": Effect.AT_ONCE,
    "exact": Effect.AT_ONCE,
    "background": Effect.AT_ONCE,
    "capture": Effect.AT_ONCE,
    "asleep": Effect.AT_ONCE,
    "quota": Effect.AT_ONCE,
    "private": Effect.AT_ONCE,
    "requests": Effect.AT_ONCE,
    "abilities": Effect.AT_ONCE,
    "where": Effect.RESTART,
    "site": Effect.RESTART,
    "copy_of": Effect.AT_ONCE,
}
#: Fields that only the processes of these drivers are started with; with any other driver they take effect at once.
SEEN_BY: Mapping[str, frozenset[str]] = {
    "concurrency": frozenset({"llamacpp", "scripted"}),
    "sleep_ms": frozenset({"llamacpp"}),
}
_FIELDS = tuple(field.name for field in fields(Model))
#: All fields in one call: a reload compares every field of every model within one turn of the loop.
_values = attrgetter(*_FIELDS)


def effect_of(old: Model, new: Model, catalog: Catalog) -> Effect:
    """The strongest effect of the differences between two definitions. `catalog` is that of the new one."""
    engine = catalog.engines.get(new.engine)
    driver = engine.driver if engine is not None else ""
    if old.memory.keys() != new.memory.keys():
        return Effect.RESTART
    before, after = _values(old), _values(new)
    if before == after:
        return Effect.NONE
    changed = (
        name for name, was, now in zip(_FIELDS, before, after, strict=True) if was is not now and was != now
    )
    return max((_effect(name, driver) for name in changed), key=lambda e: e.value, default=Effect.NONE)


def _effect(name: str, driver: str) -> Effect:
    seen_by = SEEN_BY.get(name)
    return EFFECTS[name] if seen_by is None or driver in seen_by else Effect.AT_ONCE
