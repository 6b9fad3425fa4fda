"""Background work that the core schedules by itself: the rotation of small tasks, and ingestion epochs.

**Rotation** (RES-16): models take turns at their own small tasks while no other work needs the memory. At each tick
of a slow heartbeat, the next model in the configured order runs its task in the lowest class, in free memory or in
place of idle models. The interval doubles, up to a maximum, when a task spent more time loading than working. It
returns to its configured value when a task worked longer than it loaded.

**Epochs** (RES-19): a bounded window in which ingestion work counts as normal work. A window opens by its schedule,
or earlier when an ingestion item is about to run out of patience. It closes when the work is done or the time is
over. Inside it the work goes before background work and after interactive work, and its model's turn is due at once:
a higher class alone would not move a model that is busy with a long backlog.
"""

from msgspec.structs import replace

from watchbill.catalog import Epoch, WorkClass
from watchbill.core.messages import JournalEvent, Request, RunTask, TaskEnded
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import EpochClosed, EpochOpened, TaskTook
from watchbill.core.stages import Stage
from watchbill.core.state import State

__all__ = ["Epochs", "Rotation"]


class Rotation:
    """The order of the rotation, and the time of its next task."""

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
        """The next model and the milliseconds until its turn; None while rotation is off, or has no task."""
        if self.interval_ms is None or self._next_at is None:
            return None, None
        return self._next_model(now), max(0, self._next_at - now)

    def task_ended(self, event: TaskEnded, now: int) -> None:
        """Adapts the interval to the ratio of useful time to load time."""
        self._running, self._state.active_at = None, now
        rules, interval = self._state.catalog.rotation, self.interval_ms
        if rules.every_ms is not None and interval is not None:
            wasteful = event.load_ms > event.useful_ms
            self._interval_ms = (
                min(2 * interval, rules.max_ms) if wasteful else max(interval // 2, rules.every_ms)
            )
        took, model = (
            TaskTook(event.text, event.load_ms, event.useful_ms),
            self._state.models.get(event.model),
        )
        what = JournalEvent.ROTATION if event.ok else JournalEvent.ROTATION_FAILED
        self._state.note(what, took, model, ms=event.useful_ms)

    def turn(self, now: int) -> None:
        """Starts the next task when its time has come and no other request needs the memory."""
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
        """Whether a request waits for a model that is not in memory."""
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
    """Whether the config has a task for it.

    A model whose definition changed has none until the new definition is in force: no task could run under the old
    one, and the rotation would wait for its end without a limit.
    """
    return model.spec.background is not None and not model.is_retired and model.successor is None


#: An item that has used up this share of its patience opens the window early.
IMPATIENCE = 0.9


class Epochs:
    """The windows that are open."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._opened: dict[str, int] = {}
        self._next: dict[str, int] = {}

    def turn(self, now: int) -> None:
        """Opens and closes windows, and raises the class of requests inside an open one."""
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
        """Milliseconds until a window opens by its schedule, if there is work then; None before it is planned."""
        due = self._next.get(name)
        return None if due is None else max(0, due - now)

    def _open_or_close(self, epoch: Epoch, models: list[ModelState], now: int) -> None:
        work = any(s.line or s.running for s in models)
        opened = self._opened.get(epoch.name)
        if opened is not None:
            if not work or now >= opened + epoch.window_ms:
                del self._opened[epoch.name]
                self._state.note(JournalEvent.EPOCH_END, EpochClosed(epoch.name, is_done=not work))
            else:
                self._state.wakes.append(opened + epoch.window_ms)
            return
        due = self._next.setdefault(epoch.name, now + epoch.every_ms)
        early = min((self._impatient_at(s) for s in models if s.line), default=due)
        if work and now >= min(due, early):
            self._opened[epoch.name] = now
            self._next[epoch.name] = now + epoch.every_ms
            self._state.note(JournalEvent.EPOCH, EpochOpened(epoch.name, by_schedule=now >= due))
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
