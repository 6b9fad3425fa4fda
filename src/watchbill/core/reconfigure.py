"""Reconfiguring: a new catalog takes the place of the old one while everything runs.

Unchanged models do not notice. A new one gets a station. A changed or removed one closes its door like a victim and
is replaced or forgotten when its memory is back; who waits for a changed model keeps the place, who waits for a
removed one is told.
"""

from collections.abc import Mapping

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
            if model is None:
                station.is_retired = True
                state.refuse_line(station, "model_not_found", f"{name} is no longer in the config")
            elif model != station.model:
                station.successor = model
            else:
                station.successor = None
            state.weigh(station)
        for name, model in event.catalog.models.items():
            if name not in state.stations:
                state.add(model, event.known.get(name, Knowledge(Footprint({}))))
        self.settle()

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
            if not station.model.shared and (station.stage is not Stage.ABSENT or station.running):
                continue
            if station.is_retired:
                self._state.remove(station)
            elif station.successor is not None:
                self._replace(station)

    def _replace(self, old: Station) -> None:
        assert old.successor is not None
        known = self._known.get(old.name, Knowledge(Footprint({})))
        new = self._state.add(old.successor, known)
        new.line, new.attempt, new.loads, new.evictions = old.line, old.attempt, old.loads, old.evictions
        new.users = old.users
        for request_id in new.line.ids():
            self._state.home[request_id] = new
