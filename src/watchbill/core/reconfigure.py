"""Reconfiguring: a new catalog takes the place of the old one while everything runs.

Unchanged models do not notice. A new one gets a model. Where only keys changed that the process does not see, the
model takes them over and stays warm (`definition` has the table). Any other change, or a removal, closes its door like
a victim's, and it is replaced or forgotten when its memory is back. A model that is put back before is not removed.
Requests that wait for a changed model keep their place; those that wait for a removed one are moved or told by `lanes`,
before the model is forgotten.
"""

from collections.abc import Mapping

from watchbill.catalog import Catalog, Model
from watchbill.core.definition import Effect, effect_of
from watchbill.core.messages import Footprint, Knowledge, Reconfigured
from watchbill.core.model_state import STAYING, ModelState, Stage
from watchbill.core.state import State

__all__ = ["Reconfigure"]


class Reconfigure:
    """What still has to change."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: Mapping[str, Knowledge] = {}
        self.is_settled = True  # every model is as the config has it

    def reconfigured(self, event: Reconfigured, now: int) -> None:
        """Takes the new catalog over; models that are in memory and changed follow when they are out of it."""
        state, self.is_settled = self._state, False
        self._known = event.known
        state.declare(event.catalog)
        state.ledger.reconfigure(event.catalog)
        state.remeasured()
        for name, model in list(state.models.items()):
            model.rules = event.catalog.policy
            spec = event.catalog.models.get(name)
            model.is_retired, model.successor = spec is None, None
            if spec is None:
                self._drop_held_turns(model)
            else:
                self._redefine(model, spec, event.catalog)
            state.weigh(model)
        for name, spec in event.catalog.models.items():
            if name not in state.models:
                state.add(spec, event.known.get(name, Knowledge(Footprint({}))))
        self.settle()

    def _drop_held_turns(self, model: ModelState) -> None:
        """Keeps no turn for a model that is removed, alone or in set."""
        for line in (model, *self._sets_of(model)):
            line.held_turn = None

    def _sets_of(self, model: ModelState) -> list[ModelState]:
        companion_sets = self._state.companion_sets.values()
        return [c for c in companion_sets if any(s.name == model.name for s in c.members)]

    @staticmethod
    def _redefine(model: ModelState, spec: Model, catalog: Catalog) -> None:
        """Takes a definition over at once, or keeps it for when the model is out of memory."""
        effect = effect_of(model.spec, spec, catalog)
        is_away = model.stage is Stage.ABSENT and not model.running
        if effect is Effect.RESTART or (
            effect is Effect.NEXT_LOAD and is_away
        ):  # also a new chance after failures
            model.successor = spec
        elif effect is not Effect.NONE:
            model.spec = spec
            model.keep_alive(model.keep_alive_ms)

    def outdated(self) -> list[ModelState]:
        """The models in memory that must leave because their definition changed."""
        return [
            s for s in self._state.managed if (s.is_retired or s.successor is not None) and s.stage in STAYING
        ]

    def settle(self) -> None:
        """Replaces and forgets what is out of memory by now."""
        if self.is_settled:
            return
        changed = [s for s in self._state.models.values() if s.is_retired or s.successor is not None]
        self.is_settled = not changed
        for model in changed:
            is_busy = bool(model.running or model.users)
            if model.is_retired:
                is_there = not model.spec.shared and model.stage is not Stage.ABSENT
                is_wanted = any(line.line for line in (model, *self._sets_of(model)))
                if not (is_there or is_busy or is_wanted):
                    self._state.remove(model)
            elif model.spec.shared or (model.stage is Stage.ABSENT and not is_busy):
                self._replace(model)

    def _replace(self, old: ModelState) -> None:
        assert old.successor is not None
        known = self._known.get(old.name, Knowledge(Footprint({})))
        new = self._state.add(old.successor, known)
        new.line, new.attempt, new.loads, new.evictions = old.line, old.attempt, old.loads, old.evictions
        # Of a shared one: the server of somebody else goes on answering them.
        new.users, new.running, new.lingering = old.users, old.running, old.lingering
        for request_id in (*new.line.ids(), *new.running):
            self._state.home[request_id] = new
