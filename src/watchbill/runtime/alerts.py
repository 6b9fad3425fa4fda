"""Alerts: messages for a person go to the journal, the log, and the command or webhook that the config names.

An alert never delays a decision. Alerts are sent one at a time in the background, with a bound on how many wait and on
how long each may take. An alert that cannot be delivered is logged, not repeated.

The command gets two further words, the kind and the text. The webhook gets a JSON object.
"""

import asyncio
import base64
import logging
import shlex
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from watchbill.catalog import AlertRules
from watchbill.core.messages import Alert, JournalEvent, Note
from watchbill.engines.base import endpoint_of, escape_path
from watchbill.engines.limits import ERROR_BYTES_MAX
from watchbill.engines.upstream import FailureKind, Outgoing, Upstream, UpstreamFailed
from watchbill.errors import TheirsError
from watchbill.processes import Keeper
from watchbill.runtime.limits import ALERT_SEND_MS, ALERTS_KEPT_MAX, ALERTS_WAITING_MAX

__all__ = ["Alerts", "Deliverer"]

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
        self.counts: Counter[str] = Counter()  # by kind, since the start

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
        """Records the alert at once and sends it when it can."""
        _LOG.warning("alert=%s model=%s %s", alert.kind, alert.model or "-", alert.text)
        self._recent.append((time.time(), alert))
        self.counts[alert.kind] += 1
        self._journal(Note(JournalEvent.ALERT, alert.text, alert.model, alert.device, alert=alert.kind))
        if self._deliver is None or not (self._rules.command or self._rules.webhook):
            return
        try:
            self._waiting.put_nowait(alert)
        except asyncio.QueueFull:
            _LOG.warning("alert=%s not sent: %d alerts wait already", alert.kind, ALERTS_WAITING_MAX)
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all(self._deliver), name="alerts")

    async def _send_all(self, deliver: Deliver) -> None:
        while not self._waiting.empty():
            alert = self._waiting.get_nowait()
            try:
                async with asyncio.timeout(ALERT_SEND_MS / 1000):
                    await deliver(self._rules, alert)
            except Exception as error:  # noqa: BLE001  a failing receiver must not stop the daemon
                _LOG.warning("alert=%s not sent: %s", alert.kind, error)

    async def close(self) -> None:
        """Lets the alert that is being sent finish, for a bounded time."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=ALERT_SEND_MS / 1000)
            self._task.cancel()


# ------------------------------------------------------------------ delivery

#: Why a webhook was not reached.
_WHY: Mapping[FailureKind, str] = {
    FailureKind.CONNECT: "nothing answers at its address",
    FailureKind.TIMEOUT: "it did not answer in time",
    FailureKind.CLOSED: "it closed the connection without an answer",
}


class Deliverer:
    """Runs the operator's command and posts to the operator's webhook."""

    def __init__(self, root: Path) -> None:
        self._keeper = Keeper(root)

    async def deliver(self, rules: AlertRules, alert: Alert) -> None:
        """Sends one alert to the command and the webhook at the same time. Raises when one of them did not get it.

        A command that fails or hangs does not keep the alert from the webhook.
        """
        sending = [self._run(rules.command, alert)] if rules.command else []
        if rules.webhook:
            sending.append(self._post(rules.webhook, alert))
        for outcome in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _run(self, command: str, alert: Alert) -> None:
        words = (*shlex.split(command), f"Watchbill: {alert.kind}", alert.text)
        finished = await self._keeper.run("alert command", words, timeout_ms=ALERT_SEND_MS)
        if finished.code != 0:
            raise TheirsError(f"{words[0]} ended with {finished.code}: {finished.output.strip()[-200:]}")

    @staticmethod
    async def _post(url: str, alert: Alert) -> None:
        told = {"kind": alert.kind, "text": alert.text, "model": alert.model, "device": alert.device}
        client = Upstream()
        try:
            reply = await client.fetch(
                _outgoing(url, msgspec.json.encode(told)),
                timeout_ms=ALERT_SEND_MS,
                limit_bytes=ERROR_BYTES_MAX,
            )
        except UpstreamFailed as failure:
            why = _WHY.get(failure.kind, "its answer cannot be read")
            raise TheirsError(f"the webhook was not told: {why}") from failure
        finally:
            await client.close()
        if reply.status >= 400:
            raise TheirsError(f"the webhook answered {reply.status}")


def _outgoing(url: str, body: bytes) -> Outgoing:
    """The request to a webhook. Unlike an engine's, its address may hold a name, a password and a query."""
    parts = urlsplit(url)
    headers: dict[str, str] = {}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    host = parts.netloc.rpartition("@")[2]
    endpoint = endpoint_of(f"{parts.scheme}://{host}")
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return Outgoing(endpoint, "POST", escape_path(path), body, headers)
