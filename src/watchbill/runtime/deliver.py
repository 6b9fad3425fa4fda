"""Delivers alerts: runs the operator's command, or posts to the operator's webhook.

The command gets two further words, the kind and the text. The webhook gets a JSON object. Both come from the config
and from nowhere else.
"""

import asyncio
import shlex
from pathlib import Path

import aiohttp

from watchbill.catalog import AlertRules
from watchbill.core.messages import Alert
from watchbill.errors import TheirsError
from watchbill.limits import ALERT_SEND_MS
from watchbill.processes import Keeper

__all__ = ["Deliverer"]


class Deliverer:
    """Knows how to reach a person."""

    def __init__(self, root: Path) -> None:
        self._keeper = Keeper(root)

    async def deliver(self, rules: AlertRules, alert: Alert) -> None:
        """Sends one alert everywhere the config says, at the same time: one way that fails, or hangs, does not close
        the other. Raises when it did not arrive everywhere."""
        ways = [self._run(rules.command, alert)] if rules.command else []
        if rules.webhook:
            ways.append(self._post(rules.webhook, alert))
        for outcome in await asyncio.gather(*ways, return_exceptions=True):
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
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=told, allow_redirects=False) as answer,
        ):
            if answer.status >= 400:
                raise TheirsError(f"the webhook answered {answer.status}")
