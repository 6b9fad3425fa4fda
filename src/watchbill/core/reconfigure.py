"""Reconfiguring: a new catalog takes the place of the old one while everything runs.

Unchanged models do not notice. A new one gets a station. Where only keys changed that the process does not see, the
model takes them over and stays warm (`definition` has the table). Any other change, or a removal, closes its door like
a victim's, and it is replaced or forgotten when its memory is back. A model that is put back before is not removed.
Requests that wait for a changed model keep their place; those that wait for a removed one are moved or told by `lanes`,
before the station is forgotten.
"""

from collections.abc import Mapping

from watchbill.catalog import Catalog, Model
from watchbill.core.definition import Effect, effect_of
from watchbill.core.messages import Footprint, Knowledge, Reconfigured
from watchbill.core.state import State
from watchbill.core.station import STAYING, Stage, Station

__all__ = ["Reconfigure"]


class Reconfigure:
    """What still has to change."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: Mapping[str, Knowledge] = {}
        self.is_settled = True  # every station is as the config has it

    def reconfigured(self, event: Reconfigured, now: int) -> None:
        """Takes the new catalog over; models that are in memory and changed follow when they are out of it."""
        state, self.is_settled = self._state, False
        self._known = event.known
        state.declare(event.catalog)
        state.ledger.reconfigure(event.catalog)
        state.remeasured()
        for name, station in list(state.stations.items()):
            station.rules = event.catalog.policy
            model = event.catalog.models.get(name)
            station.is_retired, station.successor = model is None, None
            if model is None:
                self._lay_ghosts(station)
            else:
                self._redefine(station, model, event.catalog)
            state.weigh(station)
        for name, model in event.catalog.models.items():
            if name not in state.stations:
                state.add(model, event.known.get(name, Knowledge(Footprint({}))))
        self.settle()

    def _lay_ghosts(self, station: Station) -> None:
        """Keeps no turn for a model that is removed, alone or in company."""
        for line in (station, *self._companies_of(station)):
            line.ghost = None

    def _companies_of(self, station: Station) -> list[Station]:
        companies = self._state.companies.values()
        return [c for c in companies if any(s.name == station.name for s in c.members)]

    @staticmethod
    def _redefine(station: Station, model: Model, catalog: Catalog) -> None:
        """Takes a definition over at once, or keeps it for when the model is out of memory."""
        effect = effect_of(station.model, model, catalog)
        is_away = station.stage is Stage.ABSENT and not station.running
        if effect is Effect.RESTART or (
            effect is Effect.NEXT_LOAD and is_away
        ):  # also a new chance after failures
            station.successor = model
        elif effect is not Effect.NONE:
            station.model = model
            station.keep_alive(station.keep_alive_ms)

    def outdated(self) -> list[Station]:
        """The models in memory that must leave because their definition changed."""
        return [
            s for s in self._state.managed if (s.is_retired or s.successor is not None) and s.stage in STAYING
        ]

    def settle(self) -> None:
        """Replaces and forgets what is out of memory by now."""
        if self.is_settled:
            return
        changed = [s for s in self._state.stations.values() if s.is_retired or s.successor is not None]
        self.is_settled = not changed
        for station in changed:
            is_busy = bool(station.running or station.users)
            if station.is_retired:
                is_there = not station.model.shared and station.stage is not Stage.ABSENT
                is_wanted = any(line.line for line in (station, *self._companies_of(station)))
                if not (is_there or is_busy or is_wanted):
                    self._state.remove(station)
            elif station.model.shared or (station.stage is Stage.ABSENT and not is_busy):
                self._replace(station)

    def _replace(self, old: Station) -> None:
        assert old.successor is not None
        known = self._known.get(old.name, Knowledge(Footprint({})))
        new = self._state.add(old.successor, known)
        new.line, new.attempt, new.loads, new.evictions = old.line, old.attempt, old.loads, old.evictions
        # Of a shared one: the server of somebody else goes on answering them.
        new.users, new.running, new.lingering = old.users, old.running, old.lingering
        for request_id in (*new.line.ids(), *new.running):
            self._state.home[request_id] = new
