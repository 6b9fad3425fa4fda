"""Signals that do not say which task they mean: an abort or a kill without a name, or with one that cannot be read.

The file may still be being written, so nothing happens at once. After a while an empty one means the only task that
runs. One that makes no sense ends nothing; it is told of once and stays where it is.
"""

import time
from collections.abc import Sequence

from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.signals import Order, Signal
from watchbill.fleet.logs import Part

__all__ = ["UnclearSignals"]

_LOG = Part.AGENT.logger


class UnclearSignals:
    """Those of one agent that it has seen."""

    def __init__(self, agent: str, told_root: str) -> None:
        self._agent, self._told_root = agent, told_root
        self._first_seen: dict[str, float] = {}  # file -> when
        self._told: set[str] = set()

    def look(self, signals: Sequence[Signal]) -> None:
        """Forget those that are gone."""
        files = {each.file for each in signals}
        self._first_seen = {file: at for file, at in self._first_seen.items() if file in files}
        self._told &= files

    def has(self, signal: Signal, running: int) -> bool:
        """Whether a signal is not to be obeyed, or not yet, while so many tasks run."""
        if not signal.order.is_about_a_task or signal.task:
            return False
        seen_at = self._first_seen.setdefault(signal.file, time.monotonic())
        if time.monotonic() - seen_at < limits.SIGNAL_SETTLE_MS / 1000:
            return True
        if (signal.is_garbled or running != 1) and signal.file not in self._told:
            self._told.add(signal.file)
            _LOG.warning("signals/%s names no task that could be read, and %d run: nothing is ended; write: %s",
                         signal.file, running, self._how_to_end(signal.order))  # fmt: skip
        return signal.is_garbled

    def _how_to_end(self, order: Order) -> str:
        return places.fleet_command(self._told_root, "signal", self._agent, order.value, "TASK")
