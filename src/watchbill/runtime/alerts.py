"""Alerts: what a person should know goes to the journal and the log, and to a command or webhook if one is named.

Never delays a decision: sending happens beside everything else, one at a time, with a bound on what waits and on how
long each may take. An alert that cannot be delivered is logged, not repeated.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from watchbill.catalog import AlertRules
from watchbill.core.messages import Alert, Note
from watchbill.limits import ALERT_SEND_MS, ALERTS_KEPT_MAX, ALERTS_WAITING_MAX

__all__ = ["Alerts"]

_LOG = logging.getLogger("watchbill.alerts")
Deliver = Callable[[AlertRules, Alert], Awaitable[None]]


class Alerts:
    """Takes alerts from the driver."""

    def __init__(
        self, rules: AlertRules, journal: Callable[[Note], None], deliver: Deliver | None = None
    ) -> None:
        self._rules, self._journal, self._deliver = rules, journal, deliver
        self._waiting: asyncio.Queue[Alert] = asyncio.Queue(ALERTS_WAITING_MAX)
        self._task: asyncio.Task[None] | None = None
        self._recent: deque[tuple[float, Alert]] = deque(maxlen=ALERTS_KEPT_MAX)

    def recent(self) -> list[dict[str, object]]:
        """The last alerts, the newest first, for `status`. `t` is seconds since the epoch."""
        return [
            {"t": round(at, 3), "kind": a.kind, "text": a.text, "model": a.model, "device": a.device}
            for at, a in reversed(self._recent)
        ]

    def reconfigure(self, rules: AlertRules) -> None:
        """Sends to the new address from now on."""
        self._rules = rules

    def raise_(self, alert: Alert) -> None:
        """Writes the alert down at once and sends it when it can."""
        _LOG.warning("alert=%s model=%s %s", alert.kind, alert.model or "-", alert.text)
        self._recent.append((time.time(), alert))
        self._journal(Note("alert", f"{alert.kind}: {alert.text}", alert.model, alert.device))
        if self._deliver is None or not (self._rules.command or self._rules.webhook):
            return
        try:
            self._waiting.put_nowait(alert)
        except asyncio.QueueFull:
            _LOG.warning("alert=%s not sent: %d wait already", alert.kind, ALERTS_WAITING_MAX)
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all(self._deliver), name="alerts")

    async def _send_all(self, deliver: Deliver) -> None:
        while not self._waiting.empty():
            alert = self._waiting.get_nowait()
            try:
                async with asyncio.timeout(ALERT_SEND_MS / 1000):
                    await deliver(self._rules, alert)
            except Exception as error:  # noqa: BLE001  whatever the receiver does, the daemon goes on
                _LOG.warning("alert=%s not sent: %s", alert.kind, error)

    async def close(self) -> None:
        """Gives what is being sent its last chance."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=ALERT_SEND_MS / 1000)
            self._task.cancel()
