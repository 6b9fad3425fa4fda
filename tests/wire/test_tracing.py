"""Traces: one span per stage, the caller's trace continued, and a collector that can do no harm."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from e2e.place import Place, scripted
from support.collector import Collector, collector
from support.eventually import eventually
from support.open_gateway import OpenGateway, open_gateway
from watchbill.catalog import TraceRules
from watchbill.config import parse
from watchbill.errors import ConfigError
from watchbill.gateway.tracing import Tracing
from watchbill.limits import SPANS_WAITING_MAX
from watchbill.otlp import CLIENT, SERVER, Exporter, Span, encode

CHAT = "/v1/chat/completions"
BODY = {"model": "a", "messages": [{"role": "user", "content": "a secret of the caller"}]}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def received() -> Iterator[Collector]:
    with collector() as found:
        yield found


@asynccontextmanager
async def traced(endpoint: str, sample: float = 1.0) -> AsyncIterator[OpenGateway]:
    """A gateway that sends its traces there."""
    async with open_gateway() as opened:
        exporter = Exporter(endpoint, "watchbill", "1", flush_ms=20)
        opened.gateway.tracing = Tracing(exporter, TraceRules(endpoint, sample=sample))
        yield opened


async def until(found: Collector, count: int) -> None:
    await eventually(lambda: len(found.spans) >= count)


async def test_each_stage_is_a_span_in_the_callers_trace(received: Collector) -> None:
    """The caller's trace is continued, and the engine gets it, too; no span holds what was asked."""
    async with traced(received.url) as opened:
        given = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        assert (await opened.ask(CHAT, {**BODY, "stream": True}, headers=given)).status == 200
        asked = opened.peer.asked[-1].headers["traceparent"]
        await until(received, 5)
    root, wait, engine = (received.named(name) for name in (f"POST {CHAT}", "wait", "engine"))
    first, stream = received.named("first token"), received.named("stream")
    assert {span.trace_id.hex() for span in received.spans} == {TRACE}
    assert root.parent_span_id.hex() == PARENT and root.kind == SERVER and engine.kind == CLIENT
    assert wait.parent_span_id == engine.parent_span_id == root.span_id
    assert first.parent_span_id == stream.parent_span_id == engine.span_id
    assert asked == f"00-{TRACE}-{engine.span_id.hex()}-01"
    times = [
        root.start_time_unix_nano,
        wait.end_time_unix_nano,
        first.end_time_unix_nano,
        stream.end_time_unix_nano,
    ]
    assert times == sorted(times) and first.end_time_unix_nano == stream.start_time_unix_nano
    facts = received.facts(root)
    assert facts["gen_ai.response.model"] == "a" and facts["watchbill.outcome"] == "ok"
    assert facts["watchbill.lane"] == "default" and facts["http.response.status_code"] == 200
    assert b"secret" not in b"".join(span.SerializeToString() for span in received.spans)


@pytest.mark.parametrize(
    ("given", "is_new"),
    [
        (f"00-{TRACE}-{PARENT}-00", None),
        (f"00-{'0' * 32}-{PARENT}-01", True),
        (f"ff-{TRACE}-{PARENT}-01", True),
        ("00-xyz", True),
        ("\u00e4" * 40, True),
        (f"01-{TRACE}-{PARENT}-03-more", False),
    ],
)
async def test_a_parent_is_believed_only_if_it_is_one(
    received: Collector, given: str, is_new: bool | None
) -> None:
    """A caller that decided against recording is not recorded; nonsense begins a trace of our own."""
    async with traced(received.url) as opened:
        assert (await opened.ask(CHAT, BODY, headers={"traceparent": given})).status == 200
        if is_new is None:
            assert (await opened.ask(CHAT, BODY)).status == 200  # what comes after it is
            assert "traceparent" not in opened.peer.asked[0].headers
        await eventually(lambda: any(span.name == "engine" for span in received.spans))
    roots = [span for span in received.spans if span.name.startswith("POST")]
    assert len(roots) == 1
    assert (roots[0].trace_id.hex() == TRACE) is (is_new is False)
    assert bool(roots[0].parent_span_id) is (is_new is False)


async def test_a_refusal_and_a_share_of_none(received: Collector) -> None:
    """What is refused at once is told with its code; with sample = 0 only callers' own traces are recorded."""
    async with traced(received.url, sample=0) as opened:
        assert (await opened.ask(CHAT, BODY)).status == 200
        given = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Watchbill-Deadline": "1"}
        opened.engine.gate.clear()
        await opened.ask("/wb/v1/models/a/evict", {})
        refused = await opened.ask(CHAT, {**BODY, "model": "nothing"}, headers=given)
        await until(received, 1)
    assert refused.status == 404
    (span,) = received.spans
    assert span.status.code == 2 and received.facts(span)["error.type"] == "model_not_found"


async def test_a_collector_that_hangs_or_is_away_delays_nobody(received: Collector) -> None:
    """Answers go on, the queue is bounded, what finds no room is dropped and counted, and later spans arrive."""
    received.gate.clear()
    async with traced(received.url) as opened:
        tracing = opened.gateway.tracing
        assert tracing is not None
        exporter = tracing._exporter
        for _ in range(20):
            assert (await opened.ask(CHAT, BODY)).status == 200
        one = Span(b"t" * 16, b"s" * 8, b"", "x", SERVER, 1, 2)
        for _ in range(SPANS_WAITING_MAX + 300):
            exporter.take([one])
        assert exporter.dropped and len(exporter._waiting) <= SPANS_WAITING_MAX
        received.gate.set()
        await until(received, 100)
    async with traced("http://127.0.0.1:9/v1/traces") as opened:
        assert (await opened.ask(CHAT, BODY)).status == 200
        tracing = opened.gateway.tracing
        assert tracing is not None
        exporter = tracing._exporter
        await eventually(lambda: exporter.dropped > 0)
        assert (await opened.ask(CHAT, BODY)).status == 200


def test_the_bytes_are_what_the_protocols_own_package_reads() -> None:
    odd = {"text": "ä\udc80\n", "whole": -5, "large": 2**40, "real": 0.5, "flag": True, "none": ""}
    span = Span(bytes(range(16)), b"\xff" * 8, b"", "n" * 300, CLIENT, 2**60, 2**60 + 1, odd, "broken")
    read = ExportTraceServiceRequest.FromString(encode([span, span], {"service.name": "s"}))
    (scope,) = read.resource_spans[0].scope_spans
    assert len(scope.spans) == 2 and scope.scope.name == "watchbill"
    found = scope.spans[0]
    assert (found.trace_id, found.span_id, found.parent_span_id) == (span.trace_id, span.span_id, b"")
    assert (found.start_time_unix_nano, found.end_time_unix_nano) == (span.start_ns, span.end_ns)
    assert Collector.facts(found) == {**odd, "text": "ä?\n"} and found.status.message == "broken"


def test_a_secret_without_a_collector_is_an_error(tmp_path: Path) -> None:
    model = '[models.a]\nengine = "scripted"\n'
    with pytest.raises(ConfigError, match="means nothing without endpoint"):
        parse(f'{model}[traces]\ntoken = "0123456789abcdef"\n', base=tmp_path)
    rules = parse(
        f'{model}[traces]\nendpoint = "http://127.0.0.1:4318/v1/traces"\nsample = 0.1\n', base=tmp_path
    )
    assert rules.traces == TraceRules("http://127.0.0.1:4318/v1/traces", sample=0.1)
    assert parse(model, base=tmp_path).traces.endpoint is None


def test_a_daemon_sends_its_last_spans_when_it_stops(received: Collector, tmp_path: Path) -> None:
    """From the config alone, with the header that the collector asks for."""
    traces = f'[traces]\nendpoint = "{received.url}"\ntoken = "env:COLLECTOR"\nservice = "harbour"\n'
    place = Place(tmp_path, scripted("quick", 'load = "100ms", tokens = 4') + traces)
    place.environment["COLLECTOR"] = "0123456789abcdef"
    try:
        daemon = place.up()
        assert daemon.chat("quick")[0] == 200
        daemon.stop()
    finally:
        place.close()
    wait, load = received.named("wait"), received.named("load")
    assert load.parent_span_id == wait.span_id and received.services == {"harbour"}
    assert wait.start_time_unix_nano <= load.start_time_unix_nano < load.end_time_unix_nano
    assert received.headers[0]["authorization"] == "Bearer 0123456789abcdef"
