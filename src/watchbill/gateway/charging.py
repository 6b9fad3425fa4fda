"""Charging: what one request costs at a tier, estimated before it is sent and after its answer.

Before: the tokens of its prompt by its size, and as many of an answer as it allows. After: what the server told, or
else what its texts look like (`meters`). A request at a burst tier costs its share of the tier's hour: nothing is
reserved for it, because the time is charged whether requests run or not.
"""

import time

from watchbill.catalog import Tier, TierRules
from watchbill.core.reasons import Cost
from watchbill.gateway.limits import ANSWER_TOKENS_FORETOLD
from watchbill.gateway.meters import BYTES_PER_TOKEN, TokenCount
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.typed import is_count
from watchbill.runtime.spending import Reserved
from watchbill.runtime.ticket import Start
from watchbill.runtime.tiers import Tiers

__all__ = ["Charge", "Charging"]

_ANSWER_LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
#: How many answers a request has made; all of them are paid.
_CHOICES = ("n", "best_of")
_HOUR_MS = 3_600_000


class Charge:
    """What one turn of a request costs."""

    def __init__(
        self, tiers: Tiers, rules: TierRules, start: Start, prompt: int, reserved: Reserved | None
    ) -> None:
        self._tiers, self._rules, self._start, self._reserved = tiers, rules, start, reserved
        self._began = time.monotonic()
        self.tokens = TokenCount(_nothing, prompt)
        self.estimate = 0.0 if reserved is None else reserved.amount
        self.is_free = True  # until it is sent; no server was there to take it, or it refused

    def end(self, request: str) -> float:
        """The turn is over. Returns an estimate of what it cost."""
        rules, tokens = self._rules, self.tokens
        if self._reserved is None:
            took_ms = (time.monotonic() - self._began) * 1000
            return rules.price_hour * took_ms / _HOUR_MS
        prompt, answer = (0, 0) if self.is_free else (tokens.prompt, tokens.answer)
        amount = rules.cost_of(prompt, answer)
        cost = Cost(rules.name, rules.kind, amount, prompt, answer)
        self._tiers.settle(self._reserved, cost, self._start.model, request)
        return amount


class Charging:
    """Makes the charges of a daemon's requests."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def is_refused(self, start: Start, status: int, retry_after_ms: int | None, *, lacks_model: bool) -> bool:
        """Whether a tier's server refuses this machine and not the request; then the tier is closed by now."""
        site = start.site or ""
        return self._tiers.is_refused(site, start.model, status, retry_after_ms, lacks_model=lacks_model)

    def is_away(self, start: Start) -> None:
        """The server of a tier cannot be reached."""
        self._tiers.is_away(start.site or "")

    async def begin(self, start: Start, context: RequestContext) -> Charge | None:
        """Reserves what the request may cost. None: the tier is spent out, and the core knows. Raises TierClosed."""
        site = start.site or ""
        rules = self._tiers.rules(site)
        asked = context.asked or {}
        prompt = max(1, context.held // BYTES_PER_TOKEN)
        if rules is not None and rules.kind is Tier.BURST:
            return Charge(self._tiers, rules, start, prompt, None)
        limits = (asked.get(name) for name in _ANSWER_LIMITS)
        answer = next((n for n in limits if isinstance(n, int) and n > 0), ANSWER_TOKENS_FORETOLD)
        answer *= max((n for n in map(asked.get, _CHOICES) if is_count(n)), default=1) or 1
        amount = 0.0 if rules is None else rules.cost_of(prompt, answer)
        reserved = await self._tiers.reserve(site, amount)
        if reserved is None or rules is None:
            return None
        return Charge(self._tiers, rules, start, prompt, reserved)


def _nothing(tokens: int) -> None:
    """The tokens are read at the end."""
