"""Tiers at runtime: what a request elsewhere may cost, what it did cost, and when a tier closes for the day.

The core routes requests to tiers and knows of money only whether a tier is spent out. This keeps the figures: it
reserves what a request may cost, settles what it did cost, charges the time that a burst tier runs, and tells the core
when a daily limit is reached and when it no longer is. The first request that does not fit into the rest of the day
closes a tier, until a reservation turns out smaller, the day ends or the limit is raised. A server that does not accept
this machine's key closes its tier for a minute.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

from watchbill.catalog import Catalog, Tier, TierRules
from watchbill.core.messages import Alert, AlertKind, Event, JournalEvent, Note, SiteClosed
from watchbill.core.reasons import Bar, Cost
from watchbill.core.routing import bar_text
from watchbill.errors import TierClosed
from watchbill.runtime.limits import TIER_AGAIN_MS, TIER_CHARGE_MS
from watchbill.runtime.spending import Reserved, Spending

__all__ = ["Tiers"]

#: What a server says of the machine that asks, whoever its caller is: nothing that a caller could mend.
_REFUSALS = {401: Bar.KEY, 402: Bar.MONEY}


class Tiers:
    """The tiers of one daemon. `running` names the burst tiers that run now."""

    def __init__(
        self,
        catalog: Catalog,
        spending: Spending,
        *,
        feed: Callable[[Event], None],
        note: Callable[[Note], None],
        alert: Callable[[Alert], None],
        count: Callable[[str, str, float], None],
        running: Callable[[], Iterable[str]],
    ) -> None:
        self._rules: Mapping[str, TierRules] = catalog.tiers
        self._spending = spending
        self._feed, self._note, self._alert, self._count, self._running = feed, note, alert, count, running
        self._lacking: dict[str, float] = {}  # closed tiers -> the amount that did not fit
        self._refused: dict[
            str, tuple[Bar, float]
        ] = {}  # tiers whose server refuses us -> why, and until when
        self._charged_at: dict[str, float] = {}  # running burst tiers -> until when they are charged
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Reads what was spent today. Raises OSError."""
        if self._rules:
            await self._begin()

    async def _begin(self) -> None:
        await self._spending.start()
        self._task = asyncio.create_task(self._charge_often(), name="tiers")
        self._review()

    async def reconfigure(self, catalog: Catalog) -> None:
        """Takes over changed limits and prices."""
        self._rules = catalog.tiers
        if self._task is None and self._rules:
            await self._begin()
        elif self._task is not None:
            for site in list(self._refused):  # its key may be another one now
                del self._refused[site]
                self._tell(site)
            self._review()

    async def close(self) -> None:
        """Charges the last of the time, and writes it down."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._charge_time()
            await self._spending.close()

    # ------------------------------------------------------------------ requests

    def rules(self, site: str) -> TierRules | None:
        """The rules of a tier; None for one that is no longer in the config."""
        return self._rules.get(site)

    async def reserve(self, site: str, amount: float) -> Reserved | None:
        """Reserves what a request may cost. None: the tier is spent out, which the core knows by then.

        Raises TierClosed for a request that would cost more than a whole day may, or whose cost cannot be kept.
        """
        rules = self._rules.get(site)
        if rules is None or self._task is None:
            raise TierClosed(f"the tier {site} is no longer in the config")
        if rules.daily is not None:
            if amount > rules.daily:
                text = f"it may cost {amount:.4g}, and the tier {site} may cost {rules.daily:g} a day"
                raise TierClosed(f"{text}; ask for fewer tokens, or raise daily")
            if self._spending.spent(site) + amount > rules.daily:
                self._close_for_today(rules, amount)
                return None
        try:
            return await self._spending.reserve(site, amount)
        except OSError as error:
            raise TierClosed(
                f"what the tier {site} costs cannot be written down: {error.strerror}"
            ) from error

    def is_refused(self, site: str, status: int) -> bool:
        """Whether the status of a tier's answer is about this machine and not about the request: the tier is closed for
        a while, and the core knows."""
        bar = _REFUSALS.get(status)
        if bar is None or site not in self._rules or self._task is None:
            return False
        if site not in self._refused:
            told = (
                f"the tier {site} is closed for {TIER_AGAIN_MS // 1000} s: {bar_text(bar, site)} ({status})"
            )
            self._alert(Alert(AlertKind.TIER, told))
        self._refused[site] = bar, time.monotonic() + TIER_AGAIN_MS / 1000
        asyncio.get_running_loop().call_later(TIER_AGAIN_MS / 1000, self._review)
        self._tell(site)
        return True

    def settle(self, reserved: Reserved, cost: Cost, model: str, request: str) -> None:
        """Counts what an answer did cost."""
        self._spending.settle(reserved, cost.amount)
        self._count(cost.tier, cost.site, cost.amount)
        self._note(Note(JournalEvent.COST, cost, model, request=request))
        self._review()

    # ------------------------------------------------------------------ time

    async def _charge_often(self) -> None:
        while True:
            await asyncio.sleep(TIER_CHARGE_MS / 1000)
            self._charge_time()
            self._review()

    def _charge_time(self) -> None:
        """Charges the time since the last look that each running burst tier has cost."""
        now, running = time.monotonic(), set(self._running())
        for site in sorted(running | self._charged_at.keys()):
            rules, since = self._rules.get(site), self._charged_at.pop(site, now)
            if site in running:
                self._charged_at[site] = now
            if rules is not None and rules.price_hour and now > since:
                amount = rules.price_hour * (now - since) / 3600
                self._spending.spend(site, amount)
                self._count(Tier.BURST, site, amount)

    # ------------------------------------------------------------------ limits

    def _close_for_today(self, rules: TierRules, amount: float) -> None:
        if rules.name in self._lacking:
            return
        self._lacking[rules.name] = amount
        spent = f"{self._spending.spent(rules.name):.4f} of {rules.daily or 0:g}"
        self._note(Note(JournalEvent.SPENT, f"the tier {rules.name} has cost {spent} today: it is closed"))
        self._alert(
            Alert(
                AlertKind.TIER, f"the tier {rules.name} has cost {spent} today and is closed until tomorrow"
            )
        )
        self._tell(rules.name)

    def _review(self) -> None:
        """Closes tiers whose limit is reached, and opens those that have room again."""
        for site, rules in self._rules.items():
            spent = self._spending.spent(site)
            if rules.daily is not None and spent >= rules.daily:
                self._close_for_today(rules, 0.0)
        for site in list(self._lacking):
            rules = self._rules.get(site)
            if rules is None or rules.daily is None or self._has_room(rules):
                del self._lacking[site]
                self._note(Note(JournalEvent.UNSPENT, f"the tier {site} is open again"))
                self._tell(site)
        now = time.monotonic()
        for site, (_, until) in list(self._refused.items()):
            if site not in self._rules or now >= until:
                del self._refused[site]
                self._tell(site)

    def _tell(self, site: str) -> None:
        """Tells the core whether a tier takes requests."""
        why = self._refused.get(site)
        bar = Bar.LIMIT if site in self._lacking else None if why is None else why[0]
        self._feed(SiteClosed(site, bar))

    def _has_room(self, rules: TierRules) -> bool:
        spent, daily = self._spending.spent(rules.name), rules.daily or 0.0
        return spent < daily and spent + self._lacking[rules.name] <= daily

    # ------------------------------------------------------------------ what people see

    def _barred(self, site: str) -> str | None:
        """Why a tier is closed, in words."""
        bar = (
            Bar.LIMIT if site in self._lacking else self._refused[site][0] if site in self._refused else None
        )
        return None if bar is None else bar_text(bar, site)

    def view(self) -> dict[str, dict[str, object]]:
        """Each tier: what it is, whether it takes requests, and what it cost today."""
        return {
            site: {
                "tier": rules.kind.value,
                "enabled": rules.enabled,
                "closed": site in self._lacking or site in self._refused,
                "barred": self._barred(site),
                "spent_today": round(self._spending.spent(site), 6),
                "daily": rules.daily,
            }
            for site, rules in self._rules.items()
        }
