"""OTLP over HTTP: finished spans go to a collector of OpenTelemetry, from a thread of their own.

Writes the few messages of `opentelemetry/proto/trace/v1` that a span needs as protobuf by hand: the format of version 1
does not change, and no package has to be installed for it. `take` never waits: spans go into a bounded queue, and while
the collector is slow or away, those that find no room are dropped and counted. Nothing here decides what is traced.
"""

import logging
import struct
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from watchbill.blocking_http import FAILURES, connect, reason_of
from watchbill.limits import (
    SPANS_CLOSE_MS,
    SPANS_FLUSH_MS,
    SPANS_SENT_MAX,
    SPANS_SILENT_MS,
    SPANS_TIMEOUT_MS,
    SPANS_WAITING_MAX,
)

__all__ = ["CLIENT", "INTERNAL", "SERVER", "Exporter", "Span", "encode"]

_LOG = logging.getLogger("watchbill.otlp")
Value = str | int | float | bool

#: Kinds of spans, as the protocol numbers them.
INTERNAL, SERVER, CLIENT = 1, 2, 3
_STATUS_ERROR = 2
_VARINT, _FIXED64, _BYTES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of a request, with times of the wall clock in nanoseconds."""

    trace_id: bytes  # 16
    span_id: bytes  # 8
    parent_id: bytes  # 8, or none
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict[str, Value])
    error: str = ""  # what went wrong; empty: nothing did


class Exporter:
    """Sends spans to one collector. `take` and `close` are called on the event loop's thread."""

    def __init__(
        self, endpoint: str, service: str, version: str, token: str = "", *, flush_ms: int = SPANS_FLUSH_MS
    ) -> None:
        self._flush_ms = flush_ms
        self._endpoint, self._resource = (
            urlsplit(endpoint),
            {"service.name": service, "service.version": version},
        )
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"watchbill/{version}"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._wake = threading.Condition()  # guards the queue
        self._waiting: deque[Sequence[Span]] = deque()
        self._closing = False
        self._is_failing = False
        self.sent = self.dropped = 0
        self._thread = threading.Thread(target=self._carry, name="watchbill-otlp", daemon=True)
        self._thread.start()

    def take(self, spans: Sequence[Span]) -> None:
        """Takes the spans of one request. Never waits, never raises."""
        with self._wake:
            if len(self._waiting) >= SPANS_WAITING_MAX:
                self.dropped += len(spans)
                return
            self._waiting.append(spans)

    def close(self) -> None:
        """Sends the last spans, for at most SPANS_CLOSE_MS."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(SPANS_CLOSE_MS / 1000)

    # -------------------------------------------------------------- the thread

    def _carry(self) -> None:
        pause_ms = self._flush_ms
        while True:
            with self._wake:
                closing = self._wake.wait_for(lambda: self._closing, pause_ms / 1000)
                count = min(len(self._waiting), SPANS_SENT_MAX)
                spans = [span for _ in range(count) for span in self._waiting.popleft()]
                rest = len(self._waiting)
            is_well = not spans or self._send(spans)
            if closing and (not rest or not is_well):
                return
            # A collector that is away is asked less and less often; spans wait meanwhile, as far as there is room.
            pause_ms = (
                (0 if rest else self._flush_ms) if is_well else min(2 * pause_ms + 1_000, SPANS_SILENT_MS)
            )

    def _send(self, spans: Sequence[Span]) -> bool:
        try:
            status = self._post(encode(spans, self._resource))
            why = "" if 200 <= status < 300 else f"it answered with status {status}"
        except FAILURES as error:
            why = reason_of(error)
        if not why:
            self.sent += len(spans)
            self._is_failing = False
            return True
        with self._wake:
            self.dropped += len(spans)
        if not self._is_failing:
            self._is_failing = True
            _LOG.warning("traces are lost: %s: %s", self._endpoint.netloc.rpartition("@")[2], why)
        return False

    def _post(self, body: bytes) -> int:
        is_tls = self._endpoint.scheme == "https"
        connection = connect(
            self._endpoint.hostname or "",
            self._endpoint.port,
            is_tls=is_tls,
            timeout_s=SPANS_TIMEOUT_MS / 1000,
        )
        try:
            connection.request("POST", self._endpoint.path or "/v1/traces", body, self._headers)
            answer = connection.getresponse()
            answer.read(1024)
            return answer.status
        finally:
            connection.close()


# ------------------------------------------------------------------ protobuf


def encode(spans: Iterable[Span], resource: Mapping[str, Value]) -> bytes:
    """An ExportTraceServiceRequest."""
    scope = _field(1, _text(1, "watchbill"))  # InstrumentationScope.name
    in_scope = scope + b"".join(_field(2, _span(span)) for span in spans)  # ScopeSpans
    described = _field(1, _attributes(1, resource))  # Resource.attributes
    return _field(1, described + _field(2, in_scope))  # ResourceSpans


def _span(span: Span) -> bytes:
    parts = [_field(1, span.trace_id), _field(2, span.span_id)]
    parts += [_field(4, span.parent_id)] if span.parent_id else []
    parts += [_text(5, span.name), _number(6, span.kind), _fixed(7, span.start_ns), _fixed(8, span.end_ns)]
    parts.append(_attributes(9, span.attributes))
    if span.error:
        parts.append(_field(15, _text(2, span.error) + _number(3, _STATUS_ERROR)))
    return b"".join(parts)


def _attributes(number: int, values: Mapping[str, Value]) -> bytes:
    return b"".join(_field(number, _text(1, name) + _field(2, _any(value))) for name, value in values.items())


def _any(value: Value) -> bytes:
    if isinstance(value, bool):
        return _number(2, int(value))
    if isinstance(value, int):
        return _number(3, value)
    if isinstance(value, float):
        return _key(4, _FIXED64) + struct.pack("<d", value)
    return _text(1, value)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value & (2**64 - 1))


def _fixed(number: int, value: int) -> bytes:
    return _key(number, _FIXED64) + struct.pack("<Q", value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
