"""Background rotation: models take turns at their own small tasks when nobody else wants the memory (RES-16).

A slow heartbeat, not a fast pulse. At each tick the next model in the configured order runs its task in the lowest
class: into free memory, or over models that nobody uses. Loading more than working doubles the interval, up to a
maximum; working more than loading brings it back.
"""

from watchbill.catalog import WorkClass
from watchbill.core.messages import RunTask, TaskEnded
from watchbill.core.model_state import ModelState, Stage
from watchbill.core.state import State

__all__ = ["Rotation"]


class Rotation:
    """Whose turn it is, and when the next one comes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._interval_ms: int | None = None
        self._next_at: int | None = None
        self._last = ""  # the model that had the last turn
        self._running: str | None = None

    @property
    def interval_ms(self) -> int | None:
        """The present interval; None while rotation is off."""
        every = self._state.catalog.rotation.every_ms
        return None if every is None else max(every, self._interval_ms or every)

    @property
    def running(self) -> str | None:
        """The model whose task runs now."""
        return self._running

    def next_turn(self, now: int) -> tuple[str | None, int | None]:
        """Whose turn is next, and in how many milliseconds; None while rotation is off, or has no task."""
        if self.interval_ms is None or self._next_at is None:
            return None, None
        return self._next_model(now), max(0, self._next_at - now)

    def task_ended(self, event: TaskEnded, now: int) -> None:
        """Adapts the interval to what the task was worth."""
        self._running, self._state.active_at = None, now
        rules, interval = self._state.catalog.rotation, self.interval_ms
        if rules.every_ms is not None and interval is not None:
            wasteful = event.load_ms > event.useful_ms
            self._interval_ms = (
                min(2 * interval, rules.max_ms) if wasteful else max(interval // 2, rules.every_ms)
            )
        text = f"{event.text}; loaded for {event.load_ms} ms, useful for {event.useful_ms} ms"
        model = self._state.models.get(event.model)
        self._state.note("rotation" if event.ok else "rotation_failed", text, model, ms=event.useful_ms)

    def turn(self, now: int) -> None:
        """Starts the next task when its time has come and nothing explicit wants the memory."""
        interval = self.interval_ms
        if interval is None or self._state.is_closing:
            return
        if self._next_at is None or self._next_at > now + interval:
            self._next_at = now + interval
        if now < self._next_at:
            self._state.wakes.append(self._next_at)
            return
        self._next_at = now + interval
        self._state.wakes.append(self._next_at)
        model = None if self._running or self._is_wanted() else self._next_model(now)
        if model is not None:
            self._last = self._running = model
            self._state.out.append(RunTask(model))

    def _is_wanted(self) -> bool:
        """Whether somebody waits for a model that is not in memory."""
        return any(
            s.stage is not Stage.READY and s.line.top_class() is not WorkClass.ROTATION
            for s in self._state.lines()
        )

    def _next_model(self, now: int) -> str | None:
        models = self._state.models
        tasks = [name for name, s in models.items() if _has_task(s)]
        order = [name for name in self._state.catalog.rotation.order if name in tasks] or tasks
        if not order:
            return None
        first = order.index(self._last) + 1 if self._last in order else 0
        turns = order[first:] + order[:first]
        return next((name for name in turns if not models[name].is_quarantined(now)), None)


def _has_task(model: ModelState) -> bool:
    """Whether the config has a task for it. One whose definition changed has none before the new one is in force:
    nobody could run the old one, and the rotation would wait for its end for ever."""
    return model.spec.background is not None and not model.is_retired and model.successor is None
