"""Options of callers: for Watchbill itself, in headers and body fields, and numbers for an engine.

Owns the X-Watchbill-* request headers, our own fields in a body (honoured, then taken out: engines answer 400 to
unknown ones), the companions that a caller names (`X-Watchbill-With: vision, see`, RES-13), and the ranges of numbers
that are passed on (an engine that trusts them can crash). An option with an unknown value degrades to the default and
is counted; a number out of range is refused.
"""

import re
from collections.abc import Iterable, Mapping
from typing import cast

import msgspec

from watchbill.catalog import LOCAL_SITE, ApiKey, Catalog, Reach
from watchbill.config.limits import CONTEXT_TOKENS_MAX
from watchbill.errors import ModelNotFound, NoLease, RequestError, UnitError
from watchbill.gateway.http.messages import MAIN_DOOR, Door
from watchbill.gateway.limits import (
    CHOICES_MAX,
    COMPANIONS_MAX,
    METADATA_MAX,
    METADATA_NAME_CHARS_MAX,
    METADATA_VALUE_CHARS_MAX,
    PASSED_MAX,
)
from watchbill.gateway.request_context import RequestContext
from watchbill.limits import DURATION_MS_MAX, REQUEST_ID_CHARS_MAX
from watchbill.quoting import quoted
from watchbill.runtime.ticket import Submission
from watchbill.units import parse_millis

__all__ = [
    "RANGES",
    "CallerOptions",
    "Range",
    "check_ranges",
    "is_marked_private",
    "marks_of",
    "read_companions",
    "read_metadata",
    "split_alias",
]

_HEADERS = tuple(
    f"x-watchbill-{name}"
    for name in (
        "lane",
        "priority",
        "deadline-ms",
        "tier",
        "supersede-key",
        "with",
        "private",
        "lease",
        "passed",
        "elsewhere",
    )
)
_HEADER_SET = frozenset(_HEADERS)
#: All that takes the mark of private work away: a caller that writes anything else means that it is private.
_NOT_PRIVATE = frozenset({"", "0", "false", "no", "off"})
#: A daemon, in the list of those that have sent a request to a tier of theirs.
_MARK = re.compile(r"[0-9a-f]{12}")
#: Our own fields in a body.
_FIELDS = frozenset({"priority", "keep_alive", "ttl"})


def is_marked_private(headers: Mapping[str, str]) -> bool:
    """Whether a caller marks its request as private (`X-Watchbill-Private`). A value that nobody knows does not degrade
    here: the request would leave the machine."""
    return headers.get("x-watchbill-private", "").strip().lower() not in _NOT_PRIVATE


def marks_of(reach: Reach) -> dict[str, str]:
    """The headers that say so again, when the work is asked for in its caller's place."""
    marks = {"x-watchbill-private": "1"} if reach >= Reach.PRIVATE else {}
    return marks | ({"x-watchbill-tier": LOCAL_SITE} if reach is Reach.HERE else {})


class Range(msgspec.Struct, frozen=True):
    """The numbers that are passed on to an engine."""

    low: float
    high: float
    whole: bool = True  # an integer
    flag: bool = False  # true and false are legal, too

    def fits(self, value: object) -> bool:
        """Whether a value may be passed on."""
        if isinstance(value, float):
            return self.low <= value <= self.high and (not self.whole or value.is_integer())
        if isinstance(value, int) and value is not True and value is not False:
            return self.low <= value <= self.high
        return self.flag and isinstance(value, bool)

    def __str__(self) -> str:
        return f"a {'whole ' if self.whole else ''}number from {_plain(self.low)} to {_plain(self.high)}"


def _plain(number: float) -> str:
    """16777216, not 1.67772e+07."""
    return str(number) if isinstance(number, int) else f"{number:g}"


_TOKENS = Range(-2, CONTEXT_TOKENS_MAX)
_SHARE = Range(0, 1, whole=False)
_FACTOR = Range(-100, 100, whole=False)
_SPAN = Range(-1, DURATION_MS_MAX)

RANGES: dict[str, Range] = {
    "max_tokens": _TOKENS, "max_completion_tokens": _TOKENS, "n_predict": _TOKENS, "min_tokens": _TOKENS,
    "n_keep": _TOKENS, "n_discard": Range(0, CONTEXT_TOKENS_MAX), "n_cache_reuse": Range(0, CONTEXT_TOKENS_MAX),
    "n_indent": Range(0, 1024), "min_keep": Range(0, CONTEXT_TOKENS_MAX), "repeat_last_n": _TOKENS,
    "dry_penalty_last_n": _TOKENS, "dry_allowed_length": Range(0, CONTEXT_TOKENS_MAX),
    "n": Range(1, CHOICES_MAX), "best_of": Range(1, CHOICES_MAX), "n_cmpl": Range(1, CHOICES_MAX),
    "logprobs": Range(0, 100, flag=True), "top_logprobs": Range(0, 100), "n_probs": Range(0, 100),
    "prompt_logprobs": Range(0, 100), "top_k": Range(-1, 2**31 - 1), "seed": Range(-(2**63), 2**64 - 1),
    "id_slot": Range(-1, 1023), "mirostat": Range(0, 2), "dimensions": Range(1, 2**20),
    "t_max_predict_ms": _SPAN, "t_max_prompt_ms": _SPAN,
    "top_p": _SHARE, "min_p": _SHARE, "typical_p": _SHARE, "xtc_probability": _SHARE, "xtc_threshold": _SHARE,
    "top_n_sigma": _FACTOR, "temperature": _FACTOR, "presence_penalty": _FACTOR, "frequency_penalty": _FACTOR,
    "repeat_penalty": _FACTOR, "repetition_penalty": _FACTOR, "dynatemp_range": _FACTOR,
    "dynatemp_exponent": _FACTOR, "mirostat_tau": _FACTOR, "mirostat_eta": _FACTOR, "dry_multiplier": _FACTOR,
    "dry_base": _FACTOR,
}  # fmt: skip


def check_ranges(body: Mapping[str, object], ranges: Mapping[str, Range] = RANGES) -> None:
    """Raises RequestError for a known number that is out of its range, or no number at all."""
    for name in filter(ranges.__contains__, body):
        value = body[name]
        if value is not None and not ranges[name].fits(value):
            raise RequestError(f"{name} must be {ranges[name]}")


def split_alias(model: str, catalog: Catalog) -> tuple[str, str | None]:
    """`qwen:bg` is the model `qwen` in the lane `bg`, for callers who cannot send a header."""
    base, _, lane = model.rpartition(":")
    if lane in catalog.lanes and catalog.find_model(model) is None and catalog.find_model(base):
        return base, lane
    return model, None


def read_metadata(metadata: object) -> dict[str, str] | None:
    """A caller's own notes about something that is kept for it. Raises RequestError."""
    if metadata is None:
        return None
    pairs = cast("Mapping[str, object]", metadata) if isinstance(metadata, dict) else None
    if pairs is None or len(pairs) > METADATA_MAX:
        raise RequestError(f"metadata must be an object of at most {METADATA_MAX} texts")
    for name, value in pairs.items():
        is_short = len(name) <= METADATA_NAME_CHARS_MAX
        if not is_short or not isinstance(value, str) or len(value) > METADATA_VALUE_CHARS_MAX:
            raise RequestError(
                f"metadata has names of at most {METADATA_NAME_CHARS_MAX} characters and texts of at most "
                f"{METADATA_VALUE_CHARS_MAX}"
            )
    return cast("dict[str, str]", pairs)


class CallerOptions:
    """Reads the options of requests, and counts those with unknown values."""

    def __init__(self) -> None:
        self.degraded = 0

    def submission(self, context: RequestContext, body: dict[str, object], catalog: Catalog) -> Submission:
        """What a request asks of the scheduler; takes our own fields out of its body."""
        request, context.asked = context.request, body
        lane = request.match.get("lane")
        return self.read(request.headers, body, catalog, context.key, lane, door=request.door)

    def read(
        self,
        headers: Mapping[str, str],
        body: dict[str, object],
        catalog: Catalog,
        key: ApiKey | None,
        lane_of_path: str | None = None,
        *,
        door: Door = MAIN_DOOR,
    ) -> Submission:
        """The submission of a request; takes our own fields out of its body. Raises RequestError without a model."""
        if door is not MAIN_DOOR and door.model and (door.is_model_fixed or not body.get("model")):
            body["model"] = door.model
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise RequestError(
                "name a model, in the body (`model`) or the query of a GET; GET /v1/models lists those there are"
            )
        if (
            key is None
            and lane_of_path is None
            and door is MAIN_DOOR
            and _FIELDS.isdisjoint(body)
            and _HEADER_SET.isdisjoint(headers)
            and ":" not in model
        ):
            return Submission(model)  # nearly always: it asks nothing of Watchbill itself
        lane_of_alias = None
        if ":" in model:
            model, lane_of_alias = split_alias(model, catalog)
            body["model"] = model  # an engine does not know our lanes
        lane, priority, deadline, tier, supersede, beside, _, lease, passed, elsewhere = map(
            headers.get, _HEADERS
        )
        of_body, keep_alive = body.pop("priority", None), body.pop("keep_alive", body.pop("ttl", None))
        if key is not None and key.peer is not None:
            wait_ms = None if deadline is None else self._number(deadline, 0, DURATION_MS_MAX)
            return self._leased(model, key, lease, wait_ms, catalog, is_elsewhere=elsewhere == "1")
        if lease is not None:
            raise NoLease("no machine of [peers] shows this key; only those have leases")
        priority = of_body if priority is None else priority
        lanes = (lane, lane_of_path, lane_of_alias, door.lane)
        lane = self._lane(lanes, catalog, key)
        return Submission(
            model,
            lane,
            None if priority is None else self._number(priority, 1, 5),
            None if deadline is None else self._number(deadline, 0, DURATION_MS_MAX),
            key is not None and key.admin,
            1 if key is None else key.max_priority,
            None if keep_alive is None else self._span(keep_alive),
            tier is not None and self._is_exact(_words(tier)),
            None if supersede is None else self._supersede_key(supersede, key),
            () if beside is None else self._companions(beside, model, catalog),
            None if key is None else catalog.server.sharer(key),
            _reach(headers, (*lanes, lane, None if key is None else key.lane), catalog),
            passed=() if passed is None else tuple(filter(_MARK.fullmatch, _words(passed)))[-PASSED_MAX:],
        )

    def reach(self, context: RequestContext, catalog: Catalog) -> Reach:
        """How far from this machine work may be served that a caller leaves here: as a request of it would be."""
        request = context.request
        headers, door, key = request.headers, request.door, context.key
        lanes = (headers.get("x-watchbill-lane"), request.match.get("lane"), door.lane)
        lane = self._lane(lanes, catalog, key)
        return _reach(headers, (*lanes, lane, None if key is None else key.lane), catalog)

    @staticmethod
    def _leased(
        model: str,
        key: ApiKey,
        lease: str | None,
        wait_ms: int | None,
        catalog: Catalog,
        *,
        is_elsewhere: bool,
    ) -> Submission:
        """Work of another machine: in its lane, under its lease, and never passed on to a third. It waits no longer
        than it would there."""
        found = catalog.find_model(model)
        if found is None or key.peer is None or not key.peer.may_use(found):
            raise ModelNotFound(f"no model that {key.name} may use is called {quoted(model)}")
        return Submission(
            found.name,
            key.lane,
            deadline_ms=wait_ms,
            best_priority=key.max_priority,
            exact=True,
            reach=Reach.HERE,
            lease=lease or "",
            is_elsewhere=is_elsewhere,
        )

    def _lane(self, asked: Iterable[str | None], catalog: Catalog, key: ApiKey | None) -> str | None:
        """The first lane that is named, known, and not of a higher class than the caller's own."""
        own = catalog.lanes.get(key.lane) if key is not None and key.lane is not None else None
        for name in asked:
            if name is None:
                continue
            lane = catalog.offered_lane(name)
            if lane is not None and (own is None or lane.work_class >= own.work_class):
                return name
            self.degraded += 1
        return None if own is None else own.name

    def _is_exact(self, asked: tuple[str, ...]) -> bool:
        """Whether no smaller member of the model's family will do."""
        if not {"exact", "family", LOCAL_SITE}.issuperset(asked):
            self.degraded += 1
        return "exact" in asked

    def _supersede_key(self, asked: str, key: ApiKey | None) -> str | None:
        """What the caller's newer requests supersede. One caller's key never meets another's."""
        if not asked:
            return None
        if len(asked) > REQUEST_ID_CHARS_MAX:
            self.degraded += 1
            return None
        return f"{key.name if key else ''}/{asked}"

    def _companions(self, asked: str, model: str, catalog: Catalog) -> tuple[str, ...]:
        """The models that must be warm beside this one."""
        found, unknown = read_companions(asked, model, catalog)
        self.degraded += len(unknown)
        return found

    def _span(self, asked: object) -> int | None:
        """A number of seconds or a text such as "10m"; a negative one means long, 0 means: leave now."""
        if isinstance(asked, str) and asked.startswith("-"):
            return DURATION_MS_MAX
        if isinstance(asked, int | float) and asked < 0:
            return DURATION_MS_MAX
        if isinstance(asked, int | float | str):
            try:
                return min(parse_millis(asked), DURATION_MS_MAX)
            except UnitError:
                pass
        self.degraded += 1
        return None

    def _number(self, asked: object, low: int, high: int) -> int | None:
        if isinstance(asked, str) and asked.isascii() and asked.isdecimal() and len(asked) < 20:
            asked = int(asked)
        if isinstance(asked, int) and not isinstance(asked, bool) and low <= asked <= high:
            return asked
        self.degraded += 1
        return None


def read_companions(asked: str, model: str, catalog: Catalog) -> tuple[tuple[str, ...], list[str]]:
    """The models that are to be beside this one, and the names that mean nothing. Raises RequestError."""
    found: dict[str, None] = {}
    unknown: list[str] = []
    for name in filter(None, (part.strip() for part in asked.split(","))):
        one = catalog.find_model(name)
        members = catalog.sets.get(name, ()) if one is None else (one.name,)
        if not members:
            unknown.append(name)
        found.update(dict.fromkeys(members))
    own = catalog.find_model(model)
    if own is None:
        return (), unknown  # who asks for a model that is not there is told so first
    found.pop(own.name, None)
    if len(found) > COMPANIONS_MAX:
        raise RequestError(f"X-Watchbill-With names {len(found)} models; {COMPANIONS_MAX} is the most")
    _refuse_exclusive((own.name, *found), catalog)
    return tuple(found), unknown


def _refuse_exclusive(names: tuple[str, ...], catalog: Catalog) -> None:
    """Two of an exclusive group on one device are never there together, unless a smaller model can stand in."""
    owners: dict[tuple[str, str], str] = {}
    for model in (catalog.models[name] for name in names):
        for device in model.devices if model.group is not None and model.family is None else ():
            other = owners.setdefault((device, model.group or ""), model.name)
            if other != model.name:
                raise RequestError(
                    f"{other} and {model.name} exclude each other on {device} (group {model.group}): "
                    "they can never be in memory together"
                )


def _reach(headers: Mapping[str, str], lanes: Iterable[str | None], catalog: Catalog) -> Reach:
    """How far from this machine a request may be served: by its caller's marks, and by the lanes that it names, the one
    that it gets and that of its key. One that is private counts also where the key may not use it, or the work ends up
    in another."""
    if LOCAL_SITE in _words(headers.get("x-watchbill-tier", "")):
        return Reach.HERE
    if is_marked_private(headers):
        return Reach.PRIVATE
    # Of a header that came twice, as from a client and its proxy, each value counts.
    names = (part.strip() for name in lanes if name is not None for part in name.split(","))
    found = map(catalog.offered_lane, names)
    return Reach.PRIVATE if any(lane is not None and lane.private for lane in found) else Reach.ANYWHERE


def _words(value: str) -> tuple[str, ...]:
    """The words of a header that may have several, or may have come several times."""
    return tuple(word.strip() for word in value.lower().split(","))
