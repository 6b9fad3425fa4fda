"""The operator's commands: a model out of memory by hand, a device lent for maintenance (RES-14)."""

from watchbill.core.messages import EvictAsked, MaintenanceAsked, Reply
from watchbill.core.state import State
from watchbill.core.station import HOLDING, Stage
from watchbill.core.transition import Transitions

__all__ = ["Operator"]


class Operator:
    """Commands, and who waits for their end."""

    def __init__(self, state: State, transitions: Transitions) -> None:
        self._state, self._do = state, transitions
        self._commands: dict[str, list[int]] = {}  # model -> operators who wait for it to be gone
        self._claims: dict[str, list[int]] = {}  # device -> operators who wait for it to be empty

    def evict_asked(self, event: EvictAsked, now: int) -> None:
        """Takes a model out by hand; the reply comes when its memory is back."""
        station, reply = self._state.stations[event.model], self._state.out.append
        if station.model.shared:
            reply(
                Reply(event.command, False, f"{station.name} runs on a shared engine, which is never managed")
            )
        elif station.model.permanent and not event.force:
            reply(
                Reply(
                    event.command,
                    False,
                    f"{station.name} is permanent; add --force to take it out all the same",
                )
            )
        elif station.stage is Stage.ABSENT:
            reply(Reply(event.command, True, f"{station.name} is not in memory"))
        elif station.stage is Stage.PLANNED:
            self._do.unplan(station, now)
            reply(Reply(event.command, True, f"the planned load of {station.name} was dropped"))
        else:
            station.is_benched = True
            self._commands.setdefault(station.name, []).append(event.command)
            self._do.close(station, "", "the operator asked for it", now)
            if event.force and station.stage is Stage.DRAINING:
                for running in (*station.running.values(), *station.users.values()):
                    self._state.cut(running, "preempted" if running.begun else "requeue", now)

    def maintenance_asked(self, event: MaintenanceAsked, now: int) -> None:
        """RES-14: lends all memory of a device; the reply comes when everything has left it."""
        book = self._state.ledger.books.get(event.device)
        if book is None:
            self._state.out.append(Reply(event.command, False, f"there is no device {event.device}"))
            return
        book.in_maintenance = event.claimed
        self._state.remeasured()
        self._state.note(
            "maintenance" if event.claimed else "maintenance_end", event.why, device=event.device
        )
        if event.claimed:
            self._claims.setdefault(event.device, []).append(event.command)
        else:
            self._state.out.append(Reply(event.command, True, f"{event.device} is back in service"))

    def answer(self) -> None:
        """Tells the operators whose model is gone, or whose device is empty, by now."""
        for name in list(self._commands):
            if self._state.stations[name].stage is Stage.ABSENT:
                for command in self._commands.pop(name):
                    self._state.out.append(Reply(command, True, f"{name} is out of memory"))
        for device in list(self._claims):
            if not self._state.used(device, *HOLDING, Stage.PLANNED):
                for command in self._claims.pop(device):
                    self._state.out.append(Reply(command, True, f"{device} is empty and yours"))
