"""The coordinator as a process: it waits until it may start, then turns when something arrives, until it is stopped.

    wait     a living coordinator of this machine is a refusal; one of another machine, or one of this machine that
             hangs, is waited for until it has been silent for 90 s
    turn     woken by inotify where the folder is local, else by the clock: each second with work, each 5 s without
    again    the disk refused something, or we failed ourselves: a new coordinator starts from the files; a batch at
             which two of them failed is set aside, so that the others go on
    leave    told to stop, or superseded

One thread does everything: a hung mount stops this process and nothing else.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from watchbill.errors import IllegalTransition, OursError
from watchbill.files.atomic import open_shared
from watchbill.files.host import boot_id, host_name, start_time
from watchbill.files.lock import try_lock
from watchbill.files.watch import Watch
from watchbill.fleet import limits
from watchbill.fleet.coordinator.active import Locked, denied
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.coordinator.retention import Keeping, clean
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk, is_of_the_path
from watchbill.fleet.folder.heartbeat import Pulse, Watcher
from watchbill.fleet.logs import Part
from watchbill.fleet.state import epochs
from watchbill.fleet.state.epochs import Incumbent, Office, Superseded
from watchbill.limits import STUCK_AFTER_MS
from watchbill.plans.batch import ExecutePlan

__all__ = ["Leaving", "Service", "Settings"]

_LOG = Part.COORDINATOR.logger
_LOCK = "brain/.lock"


class Leaving(Enum):
    """Why the process ends."""

    STOPPED = "stopped"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the config says."""

    keeping: Keeping = field(default_factory=Keeping)
    stuck_after_ms: int = STUCK_AFTER_MS


class Service:
    """One coordinator process on one shared folder."""

    def __init__(
        self, root: Path, settings: Settings | None = None, on_start: Callable[[], None] = lambda: None
    ) -> None:
        """Raises OursError for a folder that is no fleet. `on_start` is called once this process coordinates."""
        places.make_fleet(root)
        self._root, self._fleet = root, places.check_root(root)
        self._on_start = on_start
        self._settings = settings or Settings()
        mount = places.probe(root)
        self.mount = mount
        self._disk = FolderDisk(root, filled=not mount.is_network)
        self._watch = Watch(root, inotify=not mount.is_network, appends=True)
        self._watch.follow((places.INBOX, places.RESULTS, places.GPUS))
        self._watcher = Watcher(boot_id())
        self._stops = False
        self._faults: Counter[str] = Counter()  # batch -> coordinators of this process that failed at it
        self._set_aside: dict[str, str] = {}
        self._locked_out: list[Locked] = []  # batches whose files failed a coordinator; tried again
        self._clean_at_ms = 0
        self._epoch = 0  # the last one that this process has taken

    def stop(self) -> None:
        """Ask it to leave; may be called by a signal handler."""
        self._stops = True
        self._watch.wake()

    def run(self) -> Leaving:
        """Coordinate until told to stop. Raises OursError where another coordinator of this machine does so."""
        try:
            with self._locked():
                self._wait_for_the_office()
                if self._stops:
                    return Leaving.STOPPED
                self._on_start()
                return self._coordinate()
        finally:
            self._watch.close()

    # ------------------------------------------------------------ the office

    @contextmanager
    def _locked(self) -> Generator[None]:
        """A friendly refusal for two on one machine; what protects the records is the epoch.

        A coordinator that hangs keeps the lock. The next one goes without it, once the silence was long enough.
        """
        fd = open_shared(self._root / _LOCK, os.O_RDWR)
        try:
            if not try_lock(fd) and self._is_written_now():
                raise _refusal(self._office().occupant(_now_ms()))
            yield
        finally:
            os.close(fd)

    def _is_written_now(self) -> bool:
        """Whether the record of the present coordinator is as new as that of one that does not hang."""
        return self._disk.age_ms(places.COORDINATOR) < limits.COORDINATOR_STIRS_MS

    def _office(self) -> Office:
        return Office(self._disk, self._watcher)

    def _wait_for_the_office(self) -> None:
        """Wait until no other coordinator lives: one that cannot be asked is dead when it has been silent for long."""
        office, has_told = self._office(), False
        while not self._stops:
            occupant = office.occupant(_now_ms())
            if occupant is None:
                return
            if occupant.pulse.boot_id == boot_id() and self._is_written_now():
                raise _refusal(occupant)
            if not has_told:
                _LOG.warning(
                    "a coordinator of the host %s (pid %d) may live: waiting until it has been silent for %d s",
                    occupant.host or "?", occupant.pulse.pid, limits.SILENCE_MS_MAX // 1000,
                )  # fmt: skip
                has_told = True
            self._watch.wait(limits.COORDINATOR_POLL_MS / 1000)

    # ------------------------------------------------------------ coordinators, one after the other

    def _coordinate(self) -> Leaving:
        pause_ms = limits.COORDINATOR_AGAIN_MS[0]
        while not self._stops:
            brain = self._new_coordinator()
            started_ms = _now_ms()
            try:
                self._serve(brain)
            except Superseded:
                _LOG.warning("another coordinator has taken over; this one leaves")
                return Leaving.SUPERSEDED
            except Exception as error:  # noqa: BLE001  one batch must not stop all others, whatever it meets in us
                if _now_ms() - started_ms > limits.COORDINATOR_AGAIN_MS[1]:
                    pause_ms = limits.COORDINATOR_AGAIN_MS[0]
                self._locked_out = brain.locked
                if isinstance(error, OSError) and (order := self._whose_files(brain, error)) is not None:
                    self._note_locked(order, error)
                elif isinstance(error, OSError | OursError) and not isinstance(error, IllegalTransition):
                    # The mount is gone, full or read-only; the marker is looked for before anything is written again.
                    _LOG.error("the shared folder failed: %s; trying again in %d s", error, pause_ms // 1000)
                else:
                    why = f"the coordinator failed at it ({type(error).__name__}: {error}); report this"
                    self._note_fault(brain.at, error, why)
                self._pause(pause_ms)
                pause_ms = min(pause_ms * 2, limits.COORDINATOR_AGAIN_MS[1])
            finally:
                self._epoch = max(self._epoch, brain.epoch)
                with contextlib.suppress(
                    OSError
                ):  # what was acknowledged is on the disk; the rest does not count
                    brain.close()
        return Leaving.STOPPED

    def _whose_files(self, brain: Coordinator, error: OSError) -> ExecutePlan | None:
        """The batch one of whose files stopped a coordinator: another user keeps it to himself, it is gone, or
        something else lies in its place. None for a fault of the whole folder."""
        named = [
            os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes)
        ]
        is_its = bool(brain.at) and any(brain.at in path for path in named)
        if not is_its or not (is_of_the_path(error) or isinstance(error, FileNotFoundError)):
            return None
        try:
            places.check_root(self._root)  # without its mount everything is gone
        except (OSError, OursError):
            return None
        return brain.order_of(brain.at)

    def _note_locked(self, order: ExecutePlan, error: OSError) -> None:
        """Notes a fault at the files of a batch. The second one locks the batch out, until they can be used."""
        self._faults[order.batch] += 1
        _LOG.error("action=fault batch=%s why=%s", order.batch, denied(error))
        if self._faults[order.batch] >= limits.COORDINATOR_FAULTS_MAX:
            self._locked_out.append(Locked(order, denied(error)))

    def _note_fault(self, batch: str, error: Exception, why: str) -> None:
        """Notes a fault of our own. The second one at a batch sets the batch aside, as it is on the disk."""
        _LOG.error("action=fault batch=%s", batch or "-", exc_info=error)
        self._faults[batch] += 1
        if batch and self._faults[batch] >= limits.COORDINATOR_FAULTS_MAX:
            self._set_aside[batch] = f"{why}, and start the coordinator anew to have it tried again"

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(
            self._disk, self._watcher, _pulse(), host=host_name(),
            root=str(self._root), fleet=self._fleet, wall_ms=lambda: time.time_ns() // 1_000_000,
            stuck_after_ms=self._settings.stuck_after_ms,
            produces_ms=self.mount.shows_within_ms, hides_ms=self.mount.hides_ms,
            set_aside=self._set_aside, locked=self._locked_out,
        )  # fmt: skip

    def _serve(self, brain: Coordinator) -> None:
        places.check_root(self._root)
        if self._epoch:
            epochs.refuse_if_replaced(self._disk, self._epoch, _pulse(), self._watcher.kernel)
        brain.start(_now_ms())
        _LOG.info("action=start epoch=%d root=%s mount=%s woken_by=%s", brain.epoch, self._root, self.mount.kind,
                  "clock" if self._watch.is_blind else "inotify")  # fmt: skip
        while not self._stops:
            turn = brain.turn(_now_ms())
            self._clean()
            if not turn.has_more:
                has_arrived = self._watch.wait(self._wait_ms(turn.batches, turn.next_at_ms) / 1000)
                if has_arrived and turn.may_gather:
                    time.sleep(limits.COORDINATOR_GATHER_MS / 1000)

    @staticmethod
    def _wait_ms(batches: int, next_at_ms: int | None) -> int:
        longest_ms = limits.COORDINATOR_POLL_MS if batches else limits.COORDINATOR_IDLE_MS
        if next_at_ms is None:
            return longest_ms
        return min(longest_ms, max(1, next_at_ms - _now_ms()))

    def _clean(self) -> None:
        now_ms = _now_ms()
        if now_ms >= self._clean_at_ms:
            self._clean_at_ms = now_ms + limits.RETENTION_EVERY_MS
            clean(self._root, self._settings.keeping, time.time_ns() // 1_000_000)

    def _pause(self, pause_ms: int) -> None:
        until_ms = _now_ms() + pause_ms
        while not self._stops and (left_ms := until_ms - _now_ms()) > 0:
            self._watch.wait(left_ms / 1000)


def _pulse() -> Pulse:
    pid = os.getpid()
    return Pulse(boot_id(), pid, start_time(pid) or 0, 0)


def _refusal(occupant: Incumbent | None) -> OursError:
    who = f"this machine, {host_name()}" if occupant is None else f"{host_name()} (pid {occupant.pulse.pid})"
    return OursError(
        f"a coordinator of this shared folder already runs on {who}",
        hint="stop it first, or let it go on",
    )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
