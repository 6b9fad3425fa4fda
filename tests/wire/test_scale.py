"""Many at once: memory is bounded, nothing leaks, nobody is forgotten."""

import asyncio
import gc
import json
import random
from dataclasses import replace

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, MIB, OpenGateway, open_gateway
from support.peer import Asked, chat_events, sse
from watchbill.catalog import Lane, Model
from watchbill.core.messages import Request
from watchbill.errors import LaneFull
from watchbill.runtime.ticket import Submission, Ticket
from watchbill.units import Millis

QUEUED = 10_000
CLIENTS = 5_000
#: Connections that are open at once; the test shares its process with both servers.
AT_ONCE = 100
MODELS = {f"m{n}": Model(f"m{n}", "peer", concurrency=4, memory=MIB) for n in range(8)}
PATIENT = {"default": Lane("default", queue_max=QUEUED, max_wait_ms=Millis(10**9))}
LARGE = replace(CATALOG, models=MODELS, lanes=PATIENT)


def alive(kind: type) -> int:
    """How many objects of a kind are there."""
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def assert_empty(opened: OpenGateway) -> None:
    """Neither the core nor the driver remembers anybody."""
    state = opened.driver._core.state  # pyright: ignore[reportPrivateUsage]  a leak hides in private places
    assert not opened.driver.requests()
    assert not opened.driver._tickets  # pyright: ignore[reportPrivateUsage]
    assert not state.home
    assert state.waiting == 0
    assert not any(state.lane_waiting.values())
    assert not any(model.line or model.running for model in state.models.values())
    # The heap of dues keeps a few entries of those who left, and no more.
    assert all(len(model.line._dues) <= 64 for model in state.models.values())  # pyright: ignore[reportPrivateUsage]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_loading", [True, False], ids=["loading", "busy"])
async def test_ten_thousand_waiting_requests_are_bounded_and_leave_nothing(is_loading: bool) -> None:
    """R23: before models that load, or before busy ones: the lane's bound holds, then all leave, and all are gone."""
    async with open_gateway(catalog=LARGE) as opened:
        tickets_before, requests_before = alive(Ticket), alive(Request)
        if is_loading:
            opened.engine.gate.clear()
        else:
            for name in MODELS:
                await opened.driver.load(name)
        tickets = [opened.driver.submit(Submission(f"m{n % len(MODELS)}")) for n in range(QUEUED)]
        running = 0 if is_loading else 4 * len(MODELS)
        assert opened.count("waiting") == QUEUED - running
        waits = [asyncio.ensure_future(ticket.granted()) for ticket in tickets]
        if is_loading:
            with pytest.raises(LaneFull):
                opened.driver.submit(Submission("m0"))
        await asyncio.sleep(0)
        random.Random(7).shuffle(tickets)
        for ticket in tickets:
            ticket.close()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert_empty(opened)
        del tickets, waits, ticket, wait
        await eventually(lambda: (alive(Ticket), alive(Request)) == (tickets_before, requests_before))


def body(number: int) -> bytes:
    """A chat, streamed or whole, as bytes on the wire."""
    asked = {"model": f"m{number % 8}", "messages": [], "stream": number % 2 == 0}
    content = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def slow(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An answer that takes about 30 ms, so that clients leave before, during and after it."""
    writer.write(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for event in chat_events("one two three"):
        piece = sse(event)
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(0.004)
    writer.write(b"0\r\n\r\n")


async def leave_somewhere(opened: OpenGateway, number: int, chance: random.Random) -> None:
    """A client that sends some or all of a request and is gone, politely or not, some time later."""
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.serving.port)
    sent = body(number)
    try:
        writer.write(sent if chance.random() < 0.8 else sent[: chance.randrange(len(sent))])
        try:
            async with asyncio.timeout(chance.uniform(0, 0.08)):
                await reader.read(-1)
        except TimeoutError:
            pass
    finally:
        if chance.random() < 0.5:
            writer.transport.abort()
        writer.close()


@pytest.mark.timeout(60)
async def test_five_thousand_clients_that_leave_anywhere_release_everything() -> None:
    """R41: while sending, queued, before the first byte, mid-stream: each grant is released once, engines stop."""
    async with open_gateway(slow, catalog=LARGE) as opened:
        chance, room = random.Random(41), asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                await leave_somewhere(opened, number, chance)

        await asyncio.gather(*(one(number) for number in range(CLIENTS)))
        await opened.until_idle()
        await eventually(lambda: opened.connections == 0)
        assert_empty(opened)
        assert opened.driver.status()["late_answers"] == 0
        assert set(opened.outcomes()) <= {"ok", "cancelled"}
        # How many leave at which point depends on how busy the machine is; each point is met often enough on any.
        assert opened.outcomes()["cancelled"] > CLIENTS / 50
        assert opened.peer.left > CLIENTS / 500
        answer = await opened.ask("/v1/chat/completions", {"model": "m1", "messages": []})
        assert answer.status == 200
