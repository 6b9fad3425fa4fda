"""Embedding epochs: a bounded window in which ingestion work counts as normal work (RES-19).

Opened by its schedule, or earlier when an ingestion item is about to run out of patience; closed when the work is done
or the window ends. Inside it the work goes before background work and still after every person, and its model's turn is
due at once: a higher class alone would not move a model that is busy with a long backlog.
"""

from msgspec.structs import replace

from watchbill.catalog import Epoch, WorkClass
from watchbill.core.messages import Request
from watchbill.core.model_state import ModelState
from watchbill.core.state import State

__all__ = ["Epochs"]

#: An item that has used up this part of its patience opens the window early.
IMPATIENCE = 0.9


class Epochs:
    """Which windows are open."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._opened: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def turn(self, now: int) -> None:
        """Opens and closes windows, and raises what waits inside an open one."""
        for epoch in self._state.catalog.epochs.values():
            models = [self._state.models[n] for n in epoch.models if n in self._state.models]
            self._open_or_close(epoch, models, now)
            for model in models:
                model.in_epoch = epoch.name in self._opened
                if model.in_epoch:
                    self._raise(model, epoch)

    def ends_in(self, name: str, now: int) -> int | None:
        """Milliseconds until an open window ends; None while it is closed."""
        opened, epoch = self._opened.get(name), self._state.catalog.epochs.get(name)
        return None if opened is None or epoch is None else max(0, opened + epoch.window_ms - now)

    def next_in(self, name: str, now: int) -> int | None:
        """Milliseconds until a window opens by its schedule, if there is work then; None before it was planned."""
        due = self._next.get(name)
        return None if due is None else max(0, due - now)

    def _open_or_close(self, epoch: Epoch, models: list[ModelState], now: int) -> None:
        work = any(s.line or s.running for s in models)
        opened = self._opened.get(epoch.name)
        if opened is not None:
            if not work or now >= opened + epoch.window_ms:
                del self._opened[epoch.name]
                self._state.note(
                    "epoch_end", f"epoch {epoch.name}: " + ("the window is over" if work else "done")
                )
            else:
                self._state.wakes.append(opened + epoch.window_ms)
            return
        due = self._next.setdefault(epoch.name, now + epoch.every_ms)
        early = min((self._impatient_at(s) for s in models if s.line), default=due)
        if work and now >= min(due, early):
            self._opened[epoch.name] = now
            self._next[epoch.name] = now + epoch.every_ms
            self._state.note(
                "epoch", f"epoch {epoch.name}: " + ("by schedule" if now >= due else "an item waited long")
            )
        elif work:
            self._state.wakes.append(min(due, early))
        elif now >= due:
            self._next[epoch.name] = now + epoch.every_ms

    @staticmethod
    def _impatient_at(model: ModelState) -> float:
        first = model.line.earliest_due()
        return float("inf") if first is None else first[0] - (1 - IMPATIENCE) * first[1].max_wait_ms

    def _raise(self, model: ModelState, epoch: Epoch) -> None:
        for request in [model.line.get(id) for id in model.line.ids()]:
            if request.work_class > WorkClass.NORMAL:
                self._lift(model, request, epoch)

    def _lift(self, model: ModelState, request: Request, epoch: Epoch) -> None:
        due = model.line.due_of(request.id)
        self._state.withdraw(model, request.id)
        priority = min(request.priority, epoch.priority)
        self._state.join(model, replace(request, work_class=WorkClass.NORMAL, priority=priority), due)
