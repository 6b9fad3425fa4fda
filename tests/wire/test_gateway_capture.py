"""Finished requests go into the spool that a lane, a model or a key names, and nobody waits for it."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, open_gateway
from support.peer import Asked, chat_events, sse
from support.recorded import Recorded
from support.running import running
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, SpoolRules
from watchbill.engines.base import Endpoint
from watchbill.engines.upstream import Outgoing, Upstream
from watchbill.runtime.capture import SpoolCapture
from watchbill.spool import Spool

SPOOLS = {"corpus": SpoolRules("corpus", "spool", {"*": "corpus.jsonl"}, drain=False)}
ASKED = {"model": "talker", "messages": [{"role": "user", "content": "Say something."}]}


def catalog_with(spools: dict[str, SpoolRules]) -> Catalog:
    script = {"load": "50ms", "service": "50ms", "memory": "1MiB", "tokens": 4}
    return Catalog(
        {"ram": Device("ram")},
        {"scripted": EngineRules("scripted", "scripted")},
        {"talker": Model("talker", "scripted", script=script)},
        {"default": Lane("default", capture="corpus"), "quiet": Lane("quiet")},
        spools=spools,
    )


def events_in(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    with Spool(folder) as spool:
        while True:
            with spool.dequeue() as item:
                if item is None:
                    return found
                found.append(item.event)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_request_becomes_one_event(tmp_path: Path, stream: bool) -> None:
    """SPOOL-13: id, kind, time, lane, model, tier, prompt, answer, outcome; whole or streamed; private ones never."""
    rules = {"corpus": SpoolRules("corpus", "spool", {"*": "corpus.jsonl"}, drain=False)}
    catalog, told = catalog_with(rules), []
    captures = SpoolCapture(tmp_path, rules, told.append)
    async with running(tmp_path, catalog) as (serving, _), AsyncExitStack() as stack:
        client = Upstream()
        stack.push_async_callback(client.close)
        serving.gateway.capturing.sink = captures
        endpoint, body = Endpoint("127.0.0.1", serving.port), json.dumps({**ASKED, "stream": stream}).encode()
        private, quiet = {"X-Watchbill-Private": "1"}, {"X-Watchbill-Lane": "quiet"}
        for headers in ({}, private, quiet):
            outgoing = Outgoing(endpoint, "POST", "/v1/chat/completions", body, headers)
            assert (await client.fetch(outgoing, timeout_ms=30_000)).status == 200
        await asyncio.sleep(0)  # the hand-over is on the next turn of the loop
        await asyncio.to_thread(captures.close)
    (event,) = events_in(tmp_path / "spool")
    assert set(event) == {"id", "kind", "ts", "lane", "model", "tier", "prompt", "answer", "outcome"}
    assert (event["kind"], event["lane"], event["model"], event["tier"]) == (
        "request",
        "default",
        "talker",
        "local",
    )
    assert event["prompt"] == ASKED["messages"]
    assert event["outcome"] == "ok"
    said = event["answer"]
    assert isinstance(said, dict)
    assert said["role"] == "assistant"
    assert said["content"]
    assert not told


async def in_pieces(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """The first answers in many pieces, the others in one."""
    events = [sse(event) for event in chat_events("word " * 300)]
    pieces = events if b"first" in asked.body else [b"".join(events)]
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in pieces:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        for _ in range(3):  # turns in which the gateway, on the same loop, reads it by itself
            await asyncio.sleep(0)
    writer.write(b"0\r\n\r\n")


async def test_events_come_in_the_order_in_which_requests_ended() -> None:
    """SPOOL-13: a long answer takes longer to put together; the next one overtook it."""
    lanes = {**CATALOG.lanes, "default": replace(CATALOG.lanes["default"], capture="corpus")}
    sink = Recorded()
    async with open_gateway(in_pieces, catalog=replace(CATALOG, lanes=lanes, spools=SPOOLS)) as opened:
        opened.gateway.capturing.sink = sink
        for said in ("first", "second", "third"):
            body = {"model": "a", "messages": [{"role": "user", "content": said}]}
            assert (await opened.ask("/v1/chat/completions", body)).status == 200
        await eventually(lambda: len(sink.events) == 3)
    assert [event.prompt[0]["content"] for event in sink.events] == ["first", "second", "third"]
    assert [event.ts for event in sink.events] == sorted(event.ts for event in sink.events)
