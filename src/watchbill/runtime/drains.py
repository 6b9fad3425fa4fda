"""Drains beside the scheduler: every spool of the config is drained and maintained in threads of its own.

    keeper, one per spool:  open ─▶ workers run ─▶ look each second ─▶ collect finished events each hour
                             ▲                        │ a worker failed
                             └────── a growing pause ─┘

Nothing here runs on the event loop, and no spool can stop another one or the daemon. A folder that cannot be made, a
schema that cannot be read, or a disk that fails is reported once and tried again. Events that a drain cannot finish at
shutdown stay leased and are delivered again.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from watchbill.catalog import SpoolRules
from watchbill.core.messages import Alert, AlertKind
from watchbill.root import command_for
from watchbill.runtime.limits import (
    DONE_COLLECT_MS,
    DRAIN_AGAIN_MS,
    DRAIN_AGAIN_MS_MAX,
    DRAIN_COUNT_SHARE,
    DRAIN_LOOK_MS,
    DRAIN_POISON_TOLD_MS,
    DRAIN_SERVERS_MS,
    DRAIN_STOP_MS,
    DRAIN_SWITCH_MS,
)
from watchbill.runtime.spools import folder_of, is_on_broker, make_drains, open_spool, other_side
from watchbill.spool import Drain, SpoolBroken, SpoolFull, SpoolLayout, State
from watchbill.spool.backend import AnySpool
from watchbill.spool.by_hand import by_hand
from watchbill.spool.githook import warnings
from watchbill.spool.inspect import counts
from watchbill.spool.layout import walk_events
from watchbill.spool.moving import move

__all__ = ["Drains"]

_LOG = logging.getLogger("watchbill.drains")
#: Takes an alert from any thread.
Tell = Callable[[Alert], object]


class Drains:
    """All spools of one daemon. Blocks for at most DRAIN_STOP_MS and a little: call it from a thread."""

    def __init__(self, root: Path, tell: Tell) -> None:
        self._root, self._tell = root, tell
        self._keepers: dict[str, _Keeper] = {}
        self._lock = threading.Lock()

    def reconfigure(self, spools: Mapping[str, SpoolRules]) -> list[str]:
        """Drains exactly these spools from now on. Returns the changes as sentences."""
        if spools:
            # At Python's own 5 ms a bulk drain added 2 to 3 ms to every iteration of the event loop, now 0.1 ms.
            sys.setswitchinterval(DRAIN_SWITCH_MS / 1000)
        with self._lock:
            gone = [name for name, keeper in self._keepers.items() if spools.get(name) != keeper.rules]
            self._stop(gone)
            changes = [f"spool {name} {'changed' if name in spools else 'was removed'}" for name in gone]
            for name, rules in spools.items():
                if name not in self._keepers:
                    changes += [] if name in gone else [f"spool {name} is new"]
                    self._keepers[name] = keeper = _Keeper(rules, self._root, self._tell)
                    keeper.start()
        return changes

    def close(self) -> None:
        """Lets every worker finish its batch, for a bounded time."""
        with self._lock:
            self._stop(list(self._keepers))

    def view(self) -> dict[str, dict[str, object]]:
        """For each spool: its contents, its counts since the start, and its current problem."""
        return {name: keeper.view() for name, keeper in self._keepers.items()}

    def _stop(self, names: list[str]) -> None:
        stopped = [self._keepers.pop(name) for name in names]
        for keeper in stopped:
            keeper.ask_to_stop()
        deadline = time.monotonic() + DRAIN_STOP_MS / 1000
        for keeper in stopped:
            if not keeper.join(deadline):
                _LOG.warning(
                    "spool=%s a drain does not end; its events will be delivered again", keeper.rules.name
                )


class _Keeper:
    """One spool's thread and its workers."""

    def __init__(self, rules: SpoolRules, root: Path, tell: Tell) -> None:
        self.rules = rules
        self._root, self._tell = root, tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"spool-{rules.name}", daemon=True)
        self._drains: list[Drain] = []
        self._done_before = dict.fromkeys(("appended", "duplicates", "poisoned", "released"), 0)
        self._complaint = ""  # a reported problem that is not over yet
        self._poisoned_told, self._poisoned_told_at_s = 0, float("-inf")
        self._collect_at_s = time.monotonic()
        self._hooks_told: list[str] = []
        self._settled = 0
        self._held = dict.fromkeys(("waiting", "leased", "poison"), 0)
        self._lookout: AnySpool | None = None  # by which events on a broker are counted, and forwarded to it
        self._has_forwarded = False  # also what a dead writer left in its log
        self._count_at_s = self._servers_at_s = time.monotonic()
        self._found_ill: list[str] = []  # by the last look at the servers of a broker
        self._ill_server = self._unforwarded = self._uncounted = ""

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stopped.set()

    def join(self, deadline_s: float) -> bool:
        """Waits for the end until the deadline; False when it did not come."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self._thread.is_alive()

    def view(self) -> dict[str, object]:
        return {**self._held, **self._counts(), "complaint": self._complaint}

    def _counts(self) -> dict[str, int]:
        """Counts of events since the start, including workers that failed."""
        return {
            name: before + sum(int(getattr(drain.report, name)) for drain in self._drains)
            for name, before in self._done_before.items()
        }

    def _run(self) -> None:
        pause_ms = DRAIN_AGAIN_MS
        while not self._stopped.is_set():
            settled = self._settled
            try:
                self._work()
            except Exception as error:  # noqa: BLE001  any fault of one spool ends here: reported and tried again
                self._complain(f"{type(error).__name__}: {error}" if not str(error) else str(error))
                _LOG.debug("spool=%s", self.rules.name, exc_info=True)
            pause_ms = DRAIN_AGAIN_MS if self._settled > settled else min(pause_ms * 2, DRAIN_AGAIN_MS_MAX)
            self._stopped.wait(pause_ms / 1000)
        if self._lookout is not None:
            self._lookout.close()

    def _work(self) -> None:
        """Runs the workers until the end, or until one of them fails. Raises its error."""
        if not self.rules.drain:
            self._look_after_until_stopped()
            return
        self._drains = make_drains(self.rules, self._root)
        for warning in [] if is_on_broker(self.rules) else self._drains[0].spool.warnings():
            _LOG.warning("spool=%s %s", self.rules.name, warning)
        errors: list[Exception] = []
        workers = [
            threading.Thread(
                target=self._drain, args=(drain, errors), name=f"drain-{self.rules.name}", daemon=True
            )
            for drain in self._drains
        ]
        try:
            for worker in workers:
                worker.start()
            while not errors and not self._stopped.wait(DRAIN_LOOK_MS / 1000):
                self._look()
        finally:
            self._end(workers)
        if errors:
            raise errors[0]

    @staticmethod
    def _drain(drain: Drain, errors: list[Exception]) -> None:
        try:
            drain.run()
        except Exception as error:  # noqa: BLE001  raised again by the keeper
            errors.append(error)

    def _end(self, workers: list[threading.Thread]) -> None:
        for drain in self._drains:
            drain.stop()
        deadline = time.monotonic() + DRAIN_STOP_MS / 1000
        for drain, worker in zip(self._drains, workers, strict=True):
            worker.join(max(0.0, deadline - time.monotonic()))
            if not worker.is_alive():
                drain.spool.close()
        self._done_before, self._drains = self._counts(), []

    def _look(self) -> None:
        """Checks the problems and counts of the workers, and collects finished events when they are due."""
        known = self._counts()
        settled = known["appended"] + known["duplicates"] + known["poisoned"]
        if settled != self._settled:
            self._settled = settled
            for drain in self._drains:
                drain.last_error = ""
        trouble = next((drain.last_error for drain in self._drains if drain.last_error), "") or self._barred()
        self._complain(trouble or self._own_trouble())
        self._tell_of_poison(known["poisoned"])
        self._forward()
        self._count_if_due()
        self._collect_if_due()

    def _barred(self) -> str:
        """A text about files and folders of the spool that this user may not access: the rest is drained."""
        barred = {path: why for drain in self._drains for path, why in drain.spool.barred.items()}
        first = next(iter(barred), "")
        return (
            f"{len(barred)} of its files or folders cannot be drained, {first}: {barred[first]}"
            if first
            else ""
        )

    def _look_after_until_stopped(self) -> None:
        while not self._stopped.wait(DRAIN_LOOK_MS / 1000):
            self._forward()
            self._count_if_due()
            self._collect_if_due()
            self._complain(self._own_trouble())

    def _own_trouble(self) -> str:
        """What the keeper itself failed at last, or found."""
        return self._ill_server or self._unforwarded or self._uncounted

    def _count_if_due(self) -> None:
        """Counts the events in the folders, from names alone. A million of them take a second, so that is rare."""
        began_s = time.monotonic()
        if began_s < self._count_at_s:
            return
        try:
            held = self._count(State.QUEUE, State.IN_FLIGHT, State.POISON)
        except (SpoolBroken, SpoolFull, SpoolLayout) as error:
            self._uncounted = str(error)
            again_ms = DRAIN_SERVERS_MS if is_on_broker(self.rules) else DRAIN_AGAIN_MS_MAX
            self._count_at_s = time.monotonic() + again_ms / 1000
            return
        self._uncounted = ""
        self._held = dict(zip(self._held, held.values(), strict=True))
        self._look_at_servers()
        took_s = time.monotonic() - began_s
        pause_s = took_s / DRAIN_COUNT_SHARE
        if is_on_broker(self.rules):  # what took long was a wait for it, and no work
            pause_s = min(pause_s, DRAIN_SERVERS_MS / 1000)
        self._count_at_s = time.monotonic() + pause_s

    def _look_at_servers(self) -> None:
        """Finds a server of the broker that is ill. One that was restarted is behind for seconds, so one look in which
        it is does not count."""
        if not is_on_broker(self.rules) or time.monotonic() < self._servers_at_s:
            return
        self._servers_at_s = time.monotonic() + DRAIN_SERVERS_MS / 1000
        found = self._broker().warnings()
        self._ill_server = next((warning for warning in found if warning in self._found_ill), "")
        self._found_ill = found

    def _forward(self) -> None:
        """Moves events to the broker that git hooks, and programs without one, put into the spool's folder here."""
        folder = folder_of(self.rules, self._root) / State.QUEUE.value
        if not is_on_broker(self.rules) or not folder.is_dir():
            return
        if self._has_forwarded and next(walk_events(folder), None) is None:
            self._unforwarded = ""
            return
        try:
            with closing(open_spool(other_side(self.rules, "files"), self._root)) as files:
                moved = move(files, self._broker(), stop=self._stopped.is_set)
        except (
            SpoolBroken,
            SpoolFull,
            SpoolLayout,
        ) as error:  # they are safe where they are, and tried again
            self._unforwarded = str(error)
            return
        self._has_forwarded, self._unforwarded = True, ""
        if moved.waiting or moved.poison:
            _LOG.info("action=forward spool=%s events=%d", self.rules.name, moved.waiting + moved.poison)

    def _broker(self) -> AnySpool:
        if self._lookout is None:
            self._lookout = open_spool(self.rules, self._root)
        return self._lookout

    def _count(self, *states: State) -> dict[State, int]:
        if not is_on_broker(self.rules):
            return counts(folder_of(self.rules, self._root), *states)
        return by_hand(self._broker()).counts(*states)

    def _tell_of_poison(self, poisoned: int) -> None:
        new = poisoned - self._poisoned_told
        now_s = time.monotonic()
        if new <= 0 or now_s - self._poisoned_told_at_s < DRAIN_POISON_TOLD_MS / 1000:
            return
        self._poisoned_told += new
        self._poisoned_told_at_s = now_s
        events = "an event was" if new == 1 else f"{new} events were"
        named = self.rules.name if is_on_broker(self.rules) else str(folder_of(self.rules, self._root))
        advice = f"see: {command_for(self._root, 'spool', 'list', '--spool', named, '--state', 'poison')}"
        self._tell(Alert(AlertKind.SPOOL_POISON, f"spool {self.rules.name}: {events} poisoned; {advice}"))

    def _tell_of_hooks(self) -> None:
        """Alerts once about each repository that has lost its hook: its commits would be missed without notice."""
        lost = warnings(folder_of(self.rules, self._root))
        for warning in lost:
            if warning not in self._hooks_told:
                self._tell(Alert(AlertKind.SPOOL_HOOK, f"spool {self.rules.name}: {warning}"))
        self._hooks_told = lost

    def _complain(self, text: str) -> None:
        """Reports a problem once; it is over when a check finds none, which is an empty text."""
        if text == self._complaint:
            return
        self._complaint = text
        if text:
            self._tell(Alert(AlertKind.SPOOL, f"spool {self.rules.name}: {text}"))

    def _collect_if_due(self) -> None:
        if time.monotonic() < self._collect_at_s or not folder_of(self.rules, self._root).is_dir():
            return
        self._collect_at_s = time.monotonic() + DONE_COLLECT_MS / 1000
        self._tell_of_hooks()
        if is_on_broker(self.rules):
            return  # the broker removes finished events by itself
        archive = self._root / self.rules.archive if self.rules.archive else None
        try:
            with closing(open_spool(self.rules, self._root)) as spool:
                done = by_hand(spool).collect(keep_done_s=self.rules.keep_done_ms / 1000, archive=archive)
        except (SpoolBroken, SpoolFull, SpoolLayout) as error:  # draining goes on
            self._complain(str(error))
            return
        _LOG.info(
            "action=collect spool=%s compacted=%d removed=%d archived=%d",
            self.rules.name, done.compacted, done.removed, done.archived,
        )  # fmt: skip
