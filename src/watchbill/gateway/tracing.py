"""Tracing: one span for each stage of a request, made when it ends, from the times that its ticket has anyway.

    POST /v1/chat/completions             received ──────────────────────────────────────────────▶ done
      ├─ wait                                └─ arrived ──▶ its turn
      │    └─ load                                   └─ the part of the wait that was the model's load
      └─ engine                                             └─ asked ─────────────────────────────▶ answered
           ├─ first token                                        └─ prompt ──▶ first token
           └─ stream                                                              └─ first token ──▶ the end

A caller that sends `traceparent` (W3C) has its trace continued, and its own decision whether to record it is kept;
engines get a `traceparent` below the span `engine`. `tracestate` is not passed on. Spans hold names, times and codes:
no prompts, no answers, no keys. Where no collector is configured none of this exists.
"""

import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from watchbill.catalog import TraceRules
from watchbill.engines.upstream import Outgoing
from watchbill.errors import TheirsError
from watchbill.gateway.request_context import RequestContext
from watchbill.otlp import CLIENT, INTERNAL, SERVER, Exporter, Span, Value
from watchbill.runtime.ticket import Start, Ticket

if TYPE_CHECKING:
    from watchbill.gateway.relay import Relay

__all__ = ["Trace", "Tracing"]

_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED = 1
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Trace:
    """One traced request: where its spans belong."""

    trace_id: bytes
    parent_id: bytes
    root_id: bytes
    engine_id: bytes

    def carrying(self, send: Callable[[Start], Outgoing]) -> Callable[[Start], Outgoing]:
        """The same questions to engines, with the header that continues this trace there."""
        value = f"00-{self.trace_id.hex()}-{self.engine_id.hex()}-01"

        def with_parent(start: Start) -> Outgoing:
            asked = send(start)
            return msgspec.structs.replace(asked, headers={**asked.headers, "traceparent": value})

        return with_parent


class Tracing:
    """Decides which requests are traced, and makes their spans."""

    def __init__(self, exporter: Exporter, rules: TraceRules) -> None:
        self._exporter, self._rules = exporter, rules
        self._random = random.Random(os.urandom(16))  # ids of traces are no secrets

    def begin(self, context: RequestContext) -> Trace | None:
        """The trace of a request; None for one that is not recorded."""
        given = _PARENT.fullmatch(context.request.headers.get("traceparent", ""))
        if given is not None:
            if not int(given[3], 16) & _SAMPLED:
                return None
            return self._new(bytes.fromhex(given[1]), bytes.fromhex(given[2]))
        if self._random.random() >= self._rules.sample:
            return None
        return self._new(self._id(16), b"")

    def close(self) -> None:
        """Sends the last spans; blocks for a bounded time."""
        self._exporter.close()

    def refused(self, context: RequestContext, error: TheirsError) -> None:
        """A request that was refused at once: one span with the reason."""
        trace = self.begin(context)
        if trace is not None:
            end_ns = time.time_ns()
            facts: dict[str, Value] = {"error.type": error.code, "gen_ai.request.model": context.model}
            self._exporter.take([self._root(trace, context, end_ns, facts, error.code)])

    def ended(self, trace: Trace, relay: "Relay") -> None:
        """A request that is over, whichever way: all its stages."""
        context, ticket, end_ns = relay.context, relay.ticket, time.time_ns()
        facts: dict[str, Value] = {
            "gen_ai.request.model": ticket.request.model,
            "gen_ai.response.model": ticket.model,
            "watchbill.lane": ticket.request.lane,
            "watchbill.outcome": relay.outcome,
            "watchbill.request_id": ticket.id,
        }
        if relay.status:
            facts["http.response.status_code"] = relay.status
        failed = "" if relay.outcome in ("ok", "cancelled") else relay.outcome
        spans = [self._root(trace, context, end_ns, facts, failed)]
        self._exporter.take([*spans, *self._stages(trace, ticket, relay, end_ns)])

    def _root(
        self, trace: Trace, context: RequestContext, end_ns: int, facts: dict[str, Value], error: str
    ) -> Span:
        request = context.request
        start_ns = end_ns - max(0, round(context.age_s() * 1e9))
        name = f"{request.method} {request.path}"
        return Span(
            trace.trace_id, trace.root_id, trace.parent_id, name, SERVER, start_ns, end_ns, facts, error
        )

    def _stages(self, trace: Trace, ticket: Ticket, relay: "Relay", end_ns: int) -> list[Span]:
        """The stages that the request came to. Milliseconds of the daemon's clock become times of the wall clock."""
        zero_ns = end_ns - time.monotonic_ns()
        arrived_ns, start = zero_ns + ticket.request.arrived_at * _MS, relay.context.start
        if start is None or ticket.started_at is None:
            return [self._stage(trace, "wait", trace.root_id, arrived_ns, end_ns)]
        started_ns = zero_ns + ticket.started_at * _MS
        wait = self._stage(trace, "wait", trace.root_id, arrived_ns, started_ns)
        spans = [wait]
        if start.load_ms:
            spans.append(
                self._stage(
                    trace, "load", wait.span_id, max(arrived_ns, started_ns - start.load_ms * _MS), started_ns
                )
            )
        facts: dict[str, Value] = {"gen_ai.response.model": start.model, "watchbill.tier": start.tier.value}
        spans.append(
            Span(trace.trace_id, trace.engine_id, trace.root_id, "engine", CLIENT, started_ns, end_ns, facts)
        )
        if ticket.first_at is not None and ticket.first_at >= ticket.started_at:
            first_ns = zero_ns + ticket.first_at * _MS
            spans.append(self._stage(trace, "first token", trace.engine_id, started_ns, first_ns))
            spans.append(self._stage(trace, "stream", trace.engine_id, first_ns, max(first_ns, end_ns)))
        return spans

    def _stage(self, trace: Trace, name: str, parent: bytes, start_ns: int, end_ns: int) -> Span:
        return Span(trace.trace_id, self._id(8), parent, name, INTERNAL, start_ns, max(start_ns, end_ns))

    def _new(self, trace_id: bytes, parent_id: bytes) -> Trace:
        return Trace(trace_id, parent_id, self._id(8), self._id(8))

    def _id(self, size: int) -> bytes:
        return self._random.randbytes(size)
