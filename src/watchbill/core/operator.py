"""The operator's commands: evict a model by hand, lend a device for maintenance (RES-14)."""

from watchbill.core.companions import Candidate
from watchbill.core.messages import (
    Cause,
    CutKind,
    EvictAsked,
    JournalEvent,
    MaintenanceAsked,
    Refusal,
    Reply,
    RetryAsked,
)
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import Occasion, Occurred
from watchbill.core.residency import Residency
from watchbill.core.stages import HOLDING, Stage
from watchbill.core.state import State

__all__ = ["Operator"]

_BY_HAND = Occurred(Occasion.OPERATOR)


class Operator:
    """Commands, and the operators that wait for their end."""

    def __init__(self, state: State, residency: Residency) -> None:
        self._state, self._residency = state, residency
        self._commands: dict[str, list[int]] = {}  # model -> commands that wait until it is gone
        self._claims: dict[str, list[int]] = {}  # device -> commands that wait until it is empty

    def evict_asked(self, event: EvictAsked, now: int) -> None:
        """Evicts a model by hand; the reply comes when its memory is back.

        Requests that asked for nothing but the load are refused, and a held turn without waiting requests is dropped.
        Requests that wait for an answer keep their place and bring the model back; the reply says so.
        """
        model, reply = self._state.models[event.model], self._state.out.append
        if model.spec.shared:
            text = f"{model.name} runs on a shared engine, which is never managed"
            reply(Reply(event.command, False, text))
            return
        if model.spec.permanent and not event.force:
            text = f"{model.name} is permanent; add --force to unload it anyway"
            reply(Reply(event.command, False, text))
            return
        model.is_evicted_by_hand = True
        self._dismiss(model, event.loads)
        if model.stage is Stage.ABSENT:
            reply(Reply(event.command, True, self._said(model, "is not in memory")))
        elif model.stage is Stage.PLANNED and not model.sleeps:
            self._residency.unplan(model, now)
            reply(Reply(event.command, True, self._said(model, "was about to load; its plan was dropped")))
        else:
            self._commands.setdefault(model.name, []).append(event.command)
            why = Occurred(Occasion.KEEP_ALIVE) if event.cause is Cause.CALLER else _BY_HAND
            self._residency.close(model, why, now, cause=event.cause)
            if event.force and model.stage is Stage.DRAINING:
                for running in (*model.running.values(), *model.users.values()):
                    self._state.cut(running, CutKind.PREEMPTED if running.begun else CutKind.REQUEUE, now)

    def _dismiss(self, model: ModelState, loads: tuple[str, ...]) -> None:
        text = f"{model.name} was unloaded by hand before it was warm"
        for line in self._lines(model):
            line.held_turn = None
        for request_id in loads:
            if request_id in model.line:
                self._state.withdraw(model, request_id)
                self._state.refuse(request_id, Refusal.PREEMPTED, text)

    def _lines(self, model: ModelState) -> list[Candidate]:
        """The lines in which requests may wait for a model: its own, and those of its sets."""
        return [model, *(c for c in self._state.companion_sets.values() if model in c.members)]

    def _said(self, model: ModelState, what: str) -> str:
        """The reply about a model, with a warning if waiting requests bring it back."""
        waiting = sum(len(line.line) for line in self._lines(model))
        if not waiting:
            return f"{model.name} {what}"
        who = (
            "1 request waits for it and brings"
            if waiting == 1
            else f"{waiting} requests wait for it and bring"
        )
        return f"{model.name} {what}; {who} it back"

    def retry_asked(self, event: RetryAsked, now: int) -> None:
        """Lifts a quarantine by hand: the operator removed the cause."""
        model = self._state.models[event.model]
        if model.failure is None or model.stage is not Stage.ABSENT:
            return
        self._state.note(
            JournalEvent.RETRY, f"the operator asked for it; it had failed: {model.failure}", model
        )
        model.forgive(now)
        self._state.remeasured()

    def maintenance_asked(self, event: MaintenanceAsked, now: int) -> None:
        """RES-14: lends all memory of a device; the reply comes when every model has left it."""
        book = self._state.ledger.books.get(event.device)
        if book is None:
            self._state.out.append(Reply(event.command, False, f"there is no device {event.device}"))
            return
        book.in_maintenance, book.lent_for = event.claimed, event.why if event.claimed else ""
        self._state.remeasured()
        what = JournalEvent.MAINTENANCE if event.claimed else JournalEvent.MAINTENANCE_END
        self._state.note(what, event.why, device=event.device)
        if event.claimed:
            self._claims.setdefault(event.device, []).append(event.command)
        else:
            self._state.out.append(Reply(event.command, True, f"{event.device} is back in service"))

    def answer(self, now: int) -> None:
        """Replies to the operators whose model is gone, or whose device is empty, by now."""
        for name in list(self._commands):
            model = self._state.models.get(name)  # None: gone from memory, and from the config
            if model is not None and model.stage in (Stage.ASLEEP, Stage.READY):
                # It was about to sleep when the command came, or was leaving for a model that no request needs now.
                self._residency.close(model, _BY_HAND, now, cause=Cause.OPERATOR)
            elif model is None or model.stage is Stage.ABSENT:
                ok, text = True, f"{name} was unloaded"
                if model is not None:
                    # A model that was in memory a moment ago and is hopeless now did not stop when it was told to.
                    ok = not (model.hopeless and model.is_quarantined(now))
                    text = self._said(model, "was unloaded") if ok else f"{name}: {model.failure}"
                self._state.out += [Reply(command, ok, text) for command in self._commands.pop(name)]
        for device in list(self._claims):
            book = self._state.ledger.books.get(device)
            if book is not None and book.loans:
                continue  # it is empty when they are given back
            if not self._state.used(device, *HOLDING, Stage.PLANNED):
                for command in self._claims.pop(device):
                    self._state.out.append(Reply(command, True, f"{device} is empty and lent to you"))
