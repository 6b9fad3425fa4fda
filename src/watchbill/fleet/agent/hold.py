"""The hold of an agent: why it claims nothing, until when, and the probation after it.

A person's word counts for more than the coordinator's: neither its hold nor its resume changes a person's hold. That is
a file in the agent's private folder and outlives the agent. A hold for failures ends by the clock; the agent then takes
one task at a time until one succeeds. Running tasks go on in any case.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from watchbill.files.atomic import replace_file
from watchbill.fleet.agent.file_thread import FileThread
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import HeldWhy, OnHold
from watchbill.fleet.folder.signals import Order, Signal
from watchbill.fleet.logs import Part

__all__ = ["Hold"]

_LOG = Part.AGENT.logger


@dataclass(frozen=True, slots=True)
class _Present:
    """Why this agent claims nothing, and until when by its monotonic clock."""

    why: HeldWhy
    until: float | None = None


class Hold:
    """Whether one agent is held. `on_change` is called when that changes."""

    def __init__(self, name: str, told_root: str, folder: Path, on_change: Callable[[], None]) -> None:
        """`folder` is the agent's private one; `told_root` the shared folder in commands for people."""
        self._how_to_lift = places.fleet_command(told_root, "signal", name, "resume")
        self._file = folder / "held"
        self._on_change = on_change
        self._present = _Present(HeldWhy.PERSON) if self._file.exists() else None
        self.is_on_probation = False  # after a hold for failures, until a task succeeds

    def __bool__(self) -> bool:
        return self._present is not None

    def shown(self) -> OnHold | None:
        """The hold in the heartbeat."""
        if self._present is None:
            return None
        until = self._present.until
        left_ms = None if until is None else max(0, round((until - time.monotonic()) * 1000))
        return OnHold(self._present.why, left_ms)

    def tell_at_start(self) -> None:
        """Say that the agent is held since an earlier life."""
        if self:
            _LOG.warning(
                "it was told to hold before this start, and claims nothing until: %s", self._how_to_lift
            )

    async def obey(self, signal: Signal, files: FileThread) -> None:
        """Take a hold or a resume."""
        is_persons = self._present is not None and self._present.why is HeldWhy.PERSON
        if signal.why is HeldWhy.FAILURES and is_persons:
            return
        if signal.order is Order.RESUME:
            if self:
                _LOG.info("told to claim again: it goes on")
            await files.do(lambda: self._file.unlink(missing_ok=True))
            self._set(None)
        elif signal.why is HeldWhy.PERSON:
            _LOG.info("told to claim nothing, until: %s", self._how_to_lift)
            await files.do(lambda: replace_file(self._file, b""))
            self._set(_Present(HeldWhy.PERSON))
        else:
            seconds = signal.for_ms // 1000
            _LOG.warning("told to claim nothing for %d s: tasks failed here that did not fail elsewhere; at once: %s",
                         seconds, self._how_to_lift)  # fmt: skip
            self._set(_Present(HeldWhy.FAILURES, time.monotonic() + signal.for_ms / 1000))

    def end_in_time(self) -> None:
        """End a hold whose time is over."""
        if (
            self._present is not None
            and self._present.until is not None
            and time.monotonic() >= self._present.until
        ):
            _LOG.info("the hold is over: it goes on with one task at a time, until one succeeds")
            self.is_on_probation = True
            self._set(None)

    def _set(self, present: _Present | None) -> None:
        self._present = present
        self._on_change()
