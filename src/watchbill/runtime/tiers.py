"""Tiers at runtime: what a request elsewhere may cost, what it did cost, and when a tier closes for the day.

The core routes requests to tiers and knows of money only whether a tier is spent out. This keeps the figures: it
reserves what a request may cost, settles what it did cost, charges the time that a burst tier runs, and tells the core
when a daily limit is reached and when it no longer is. A request that does not fit into the rest of the day is served
elsewhere or refused. When little is left, the first such request closes the tier, until a reservation turns out
smaller, the day ends or the limit is raised.

The status of a server's answer may be about the tier, and not about the request:

    401  the key is not accepted                       the tier is closed for a minute
    402  it wants to be paid first                     the tier, for a minute
    403  the key may not use the model                 the model there, for a minute
    404  it does not know the model                    the model there, for a minute
    429  it wants to be asked later                    the tier, for as long as it says
    5xx  with a time after which it wants to be asked  the model there, for as long as it says

A server that cannot be reached closes its tier for a few seconds. All these are closings of one kind, which the core
knows with the time at which they end.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from watchbill.catalog import Catalog, Tier, TierRules
from watchbill.core.messages import Alert, AlertKind, Event, JournalEvent, Note, SiteClosed
from watchbill.core.reasons import Bar, Cost
from watchbill.core.routing import bar_text
from watchbill.core.stages import Stage
from watchbill.errors import TierClosed
from watchbill.runtime.limits import (
    TIER_AGAIN_MS,
    TIER_AWAY_MS,
    TIER_BUSY_MS,
    TIER_BUSY_MS_MAX,
    TIER_BUSY_MS_MIN,
    TIER_CHARGE_MS,
)
from watchbill.runtime.spending import Reserved, Spending, left_of_day_ms

__all__ = ["Tiers"]

#: What a server says of the machine that asks, whoever its caller is: nothing that a caller could mend. And whether it
#: holds for the one model alone.
_REFUSALS = {
    401: (Bar.KEY, False),
    402: (Bar.MONEY, False),
    403: (Bar.FORBIDDEN, True),
    404: (Bar.UNKNOWN, True),
    429: (Bar.BUSY, False),
}
#: Closings that a person has to mend.
_ALERTED = frozenset({Bar.KEY, Bar.FORBIDDEN, Bar.MONEY, Bar.UNKNOWN})
#: A tier that has less than this share of its daily limit left is closed by the first request that does not fit.
#: While more is left, one caller that asks for very many tokens closes it for no other.
SPENT_OUT_SHARE = 0.1
_LATE_S = 0.01


class _Place(NamedTuple):
    """A tier, or one model of it."""

    site: str
    model: str = ""  # empty: all of them


@dataclass(slots=True)
class _Meter:
    """The time of a burst tier that runs: until when it is charged, and what its start was charged so far."""

    charged_at: float
    start: Reserved | None = None  # None once its machine answers


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
        running: Callable[[], Mapping[str, Stage]],
    ) -> None:
        self._rules: Mapping[str, TierRules] = catalog.tiers
        self._spending = spending
        self._feed, self._note, self._alert, self._count, self._running = feed, note, alert, count, running
        self._lacking: dict[str, float] = {}  # closed tiers -> the amount that did not fit
        # Tiers -> what is reserved for requests that have not ended.
        self._pending: dict[str, dict[str, float]] = {}
        self._refused: dict[_Place, tuple[Bar, float]] = {}  # what servers closed -> why, and until when
        self._meters: dict[str, _Meter] = {}  # of burst tiers that run
        self._task: asyncio.Task[None] | None = None
        self._next_day: asyncio.TimerHandle | None = None  # opens what a daily limit has closed

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
            for place in list(self._refused):  # its key, its address or its models may be others now
                self._open(place)
            self._review()

    async def close(self) -> None:
        """Charges the last of the time, and writes it down."""
        if self._next_day is not None:
            self._next_day.cancel()
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

        Raises TierClosed for a request that may cost more than is left, or whose cost cannot be written down.
        """
        rules = self._rules.get(site)
        if rules is None or self._task is None:
            raise TierClosed(f"the tier {site} is no longer in the config")
        try:
            await self._spending.know_today()
        except OSError as error:
            text = f"what the tier {site} has cost today cannot be read: {error.strerror}"
            raise TierClosed(text, retry_after_ms=TIER_BUSY_MS) from error
        if rules.daily is not None:
            if amount > rules.daily:
                text = f"it may cost {amount:.4g}, and the tier {site} may cost {rules.daily:g} a day"
                raise TierClosed(f"{text}; ask for fewer tokens, or raise daily")
            left = rules.daily - self._spending.spent(site)
            if amount > left >= SPENT_OUT_SHARE * rules.daily:
                text = f"it may cost {amount:.4g}, and the tier {site} has {left:.4g} of {rules.daily:g} left today"
                raise TierClosed(
                    f"{text}; ask for fewer tokens, or raise daily",
                    retry_after_ms=self._fits_in_ms(rules, amount),
                )
            if amount > left:
                self._close_for_today(rules, amount)
                return None
        try:
            reserved = await self._spending.reserve(site, amount)
            self._pending.setdefault(site, {})[reserved.id] = amount
            return reserved
        except OSError as error:
            text = f"what the tier {site} costs cannot be written down: {error.strerror}"
            raise TierClosed(text, retry_after_ms=TIER_BUSY_MS) from error

    def is_refused(
        self, site: str, model: str, status: int, retry_after_ms: int | None, *, lacks_model: bool
    ) -> bool:
        """Whether the status of a tier's answer is about this machine or its config, and not about the request: then
        the tier, or the model there, is closed for a while. `lacks_model`: a 404 can mean nothing else."""
        if site not in self._rules or self._task is None or (status == 404 and not lacks_model):
            return False
        bar, is_model = _REFUSALS.get(status, (Bar.BUSY, True))
        if status not in _REFUSALS and (status < 500 or retry_after_ms is None):
            return False
        lasts_ms = TIER_AGAIN_MS
        if bar is Bar.BUSY:
            told_ms = TIER_BUSY_MS if retry_after_ms is None else retry_after_ms
            lasts_ms = min(max(told_ms, TIER_BUSY_MS_MIN), TIER_BUSY_MS_MAX)
        self._close(_Place(site, model if is_model else ""), bar, lasts_ms, f" ({status})")
        return True

    def is_away(self, site: str) -> None:
        """The server of a tier cannot be reached: the tier is closed for a few seconds."""
        if site in self._rules and self._task is not None:
            self._close(_Place(site), Bar.AWAY, TIER_AWAY_MS)

    def _close(self, place: _Place, bar: Bar, lasts_ms: int, status: str = "") -> None:
        if bar in _ALERTED and place not in self._refused:
            what = f"the tier {place.site}" + (f", model {place.model}," if place.model else "")
            told = f"{what} is closed for {lasts_ms // 1000} s: {bar_text(bar, place.site)}{status}"
            self._alert(Alert(AlertKind.TIER, told))
        until = time.monotonic() + lasts_ms / 1000
        if place in self._refused and self._refused[place][1] > until:
            return  # a later answer does not open it earlier
        self._refused[place] = bar, until
        # A little later than due: a timer may come a moment early, and the next look would be seconds away.
        asyncio.get_running_loop().call_later(lasts_ms / 1000 + _LATE_S, self._review)
        self._tell(place)

    def _open(self, place: _Place) -> None:
        del self._refused[place]
        self._tell(place)

    def settle(self, reserved: Reserved, cost: Cost, model: str, request: str) -> None:
        """Counts what an answer did cost."""
        self._spending.settle(reserved, cost.amount)
        self._pending.get(reserved.site, {}).pop(reserved.id, None)
        self._count(cost.tier, cost.site, cost.amount)
        self._note(Note(JournalEvent.COST, cost, model, request=request))
        self._review()

    # ------------------------------------------------------------------ time

    async def _charge_often(self) -> None:
        while True:
            await asyncio.sleep(TIER_CHARGE_MS / 1000)
            self._charge_time()
            try:
                await self._spending.know_today()
            except OSError:  # the next request is told so; nothing opens before the day is known
                continue
            self._review()

    def _charge_time(self) -> None:
        """Charges the time since the last look that each running burst tier has cost.

        The time of a start is counted, so that the limit holds, and given back when the machine never answered."""
        now, running = time.monotonic(), self._running()
        for site in sorted(running.keys() | self._meters.keys()):
            stage, meter = running.get(site), self._meters.pop(site, None) or _Meter(now)
            rules = self._rules.get(site)
            price = 0.0 if rules is None else rules.price_hour
            amount = price * max(0.0, now - meter.charged_at) / 3600
            if meter.start is None:
                self._spend_time(site, amount)
            elif stage in (Stage.LOADING, Stage.STOPPING):
                meter.start = self._spending.change(meter.start, meter.start.amount + amount)
            else:
                amount += meter.start.amount
                self._spending.change(meter.start, 0.0)
                meter.start = None
                self._spend_time(site, 0.0 if stage is None else amount)
            if meter.start is None and stage is Stage.LOADING:
                meter.start = self._spending.open(site)
            if stage is not None:
                meter.charged_at, self._meters[site] = now, meter

    def _spend_time(self, site: str, amount: float) -> None:
        if amount:
            self._spending.spend(site, amount)
            self._count(Tier.BURST, site, amount)

    # ------------------------------------------------------------------ limits

    def _close_for_today(self, rules: TierRules, amount: float) -> None:
        if rules.name in self._lacking:
            return
        self._lacking[rules.name] = amount
        spent = f"{self._spending.spent(rules.name):.4f} of {rules.daily or 0:g}"
        until, pending = "tomorrow", sum(self._pending.get(rules.name, {}).values())
        if self._fits_without_pending(rules, amount):
            spent += f", {pending:.4f} of it reserved for requests that have not ended,"
            until = "these have ended"
        self._note(Note(JournalEvent.SPENT, f"the tier {rules.name} has cost {spent} today: it is closed"))
        text = f"the tier {rules.name} has cost {spent} today and is closed until {until}"
        self._alert(Alert(AlertKind.TIER, text))
        self._tell(_Place(rules.name))
        if self._next_day is not None:
            self._next_day.cancel()
        # Callers are told to come again when the day ends: the next look may be seconds later.
        self._next_day = asyncio.get_running_loop().call_later(
            left_of_day_ms() / 1000 + _LATE_S, self._review
        )

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
            # Also of one that stays closed: the requests that it waited for may have ended.
            self._tell(_Place(site))
        now = time.monotonic()
        for place, (_, until) in list(self._refused.items()):
            if place.site not in self._rules or now >= until:
                self._open(place)

    def _tell(self, place: _Place) -> None:
        """Tells the core whether a tier, or a model of it, takes requests."""
        if not place.model and place.site in self._lacking:
            rules = self._rules.get(place.site)
            amount = self._lacking[place.site]
            lasts_ms = left_of_day_ms() if rules is None else self._fits_in_ms(rules, amount)
            self._feed(SiteClosed(place.site, Bar.LIMIT, lasts_ms=lasts_ms))
            return
        bar, until = self._refused.get(place, (None, 0.0))
        left_ms = None if bar is None else max(0, round((until - time.monotonic()) * 1000))
        self._feed(SiteClosed(place.site, bar, place.model, left_ms))

    def _has_room(self, rules: TierRules) -> bool:
        spent, daily = self._spending.spent(rules.name), rules.daily or 0.0
        return spent < daily and spent + self._lacking[rules.name] <= daily

    def _fits_without_pending(self, rules: TierRules, amount: float) -> bool:
        """Whether an amount would fit if the requests that have not ended cost nothing: they mostly cost less than
        was reserved."""
        pending = sum(self._pending.get(rules.name, {}).values())
        left = (rules.daily or 0.0) - self._spending.spent(rules.name) + pending
        return pending > 0 and left > 0 and amount <= left

    def _fits_in_ms(self, rules: TierRules, amount: float) -> int:
        """When an amount that does not fit now may be asked for again."""
        return TIER_BUSY_MS if self._fits_without_pending(rules, amount) else left_of_day_ms()

    # ------------------------------------------------------------------ what people see

    def _barred(self, site: str) -> str | None:
        """Why a tier, or models of it, are closed, in words."""
        if site in self._lacking:
            return bar_text(Bar.LIMIT, site)
        closed = {place.model: bar for place, (bar, _) in self._refused.items() if place.site == site}
        if "" in closed:
            return bar_text(closed[""], site)
        return "; ".join(f"{model}: {bar_text(bar, site)}" for model, bar in closed.items()) or None

    def view(self) -> dict[str, dict[str, object]]:
        """Each tier: what it is, whether it takes requests, and what it cost today."""
        return {
            site: {
                "tier": rules.kind.value,
                "enabled": rules.enabled,
                "closed": site in self._lacking or _Place(site) in self._refused,
                "barred": self._barred(site),
                "spent_today": round(self._spending.spent(site), 6),
                "daily": rules.daily,
            }
            for site, rules in self._rules.items()
        }
