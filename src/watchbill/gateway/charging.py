"""Charging: what one request costs at a tier, estimated before it is sent and after its answer.

Before: the tokens of its prompt by its size, and as many of an answer as it allows, in the words in which it is sent,
because each door has its own. After: what the server told, or else what its texts look like (`meters`). A request at a
burst tier costs its share of the tier's hour: nothing is reserved for it, because the time is charged whether requests
run or not.
"""

import time
from collections.abc import Mapping

import msgspec

from watchbill.catalog import Tier, TierRules
from watchbill.core.reasons import Cost
from watchbill.decodable import is_decodable, json_decoder
from watchbill.engines.upstream import Outgoing
from watchbill.gateway.limits import ANSWER_TOKENS_FORETOLD
from watchbill.gateway.meters import BYTES_PER_TOKEN, TokenCount
from watchbill.gateway.request_context import RequestContext
from watchbill.runtime.spending import Reserved
from watchbill.runtime.ticket import Start
from watchbill.runtime.tiers import Tiers

__all__ = ["Charge", "Charging"]

#: Of several the largest counts: servers differ in which they obey.
_ANSWER_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
#: How many answers a request has made; all of them are paid.
_CHOICES = ("n", "best_of")
_HOUR_MS = 3_600_000


class _Limits(msgspec.Struct):
    """The limits that a body may have, as it is sent."""

    max_completion_tokens: object = None
    max_tokens: object = None
    max_output_tokens: object = None
    n_predict: object = None
    n: object = None
    best_of: object = None


_decode_limits = json_decoder(_Limits).decode


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

    async def begin(self, start: Start, outgoing: Outgoing, context: RequestContext) -> Charge | None:
        """Reserves what the request may cost. None: the tier is spent out, and the core knows. Raises TierClosed."""
        site = start.site or ""
        rules = self._tiers.rules(site)
        size = len(outgoing.body) + sum(map(len, outgoing.rest))
        prompt = max(1, max(size, context.held) // BYTES_PER_TOKEN)
        if rules is not None and rules.kind is Tier.BURST:
            return Charge(self._tiers, rules, start, prompt, None)
        amount = 0.0 if rules is None else rules.cost_of(prompt, _answer_tokens(_limits(outgoing, context)))
        reserved = await self._tiers.reserve(site, amount)
        if reserved is None or rules is None:
            return None
        return Charge(self._tiers, rules, start, prompt, reserved)


def _limits(outgoing: Outgoing, context: RequestContext) -> Mapping[str, object]:
    """The fields that bound an answer: those of the body that is sent, or of the form that it was made of."""
    body = outgoing.body if not outgoing.rest else b"".join((outgoing.body, *outgoing.rest))
    try:
        if is_decodable(body):
            return msgspec.structs.asdict(_decode_limits(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # it is no object
    return context.asked or {}


def _answer_tokens(limits: Mapping[str, object]) -> int:
    """The most tokens of all answers."""
    answer = max(_whole(limits.get(name)) for name in _ANSWER_LIMITS) or ANSWER_TOKENS_FORETOLD
    return answer * max(1, *(_whole(limits.get(name)) for name in _CHOICES))


def _whole(value: object) -> int:
    """A count as a server may read it: 8, 8.0, and in a form "8". 0 for anything else."""
    try:
        return max(0, int(float(value))) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
        return 0


def _nothing(tokens: int) -> None:
    """The tokens are read at the end."""
