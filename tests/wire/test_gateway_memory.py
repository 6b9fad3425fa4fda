"""Memory at the edge: what clients and engines send is bounded while it is there, and gone when it is over."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, HELLO, OpenGateway, RawAnswer, open_gateway, raw
from support.peer import Asked
from watchbill.catalog import ApiKey, Lane, Server
from watchbill.engines.limits import UPSTREAM_ANSWER_BYTES_MAX
from watchbill.units import Bytes, Millis

MIB = 2**20
SIZE = 4 * MIB
STORM = 8
LANES = {
    **CATALOG.lanes,
    "full": Lane("full", queue_max=0, concurrency=1),
    "kind": Lane("kind", timeout_ms=Millis(200), fallback="Later."),
}
Storm = Callable[[OpenGateway], Awaitable[object]]


def head(path: str = "/v1/chat/completions", size: int = 0, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n{lines}\r\n".encode()


def body(model: str = "a", **more: object) -> bytes:
    return json.dumps(
        {"model": model, **more, "messages": [{"role": "user", "content": "x" * SIZE}]}
    ).encode()


async def refuse(opened: OpenGateway, content: bytes, status: int, **headers: str) -> None:
    answer = await opened.send(head(size=len(content), **headers) + content)
    assert answer.status == status, answer.body


async def count(opened: OpenGateway, path: str, content: bytes) -> None:
    """Counts tokens at an engine that does not: the answer is an estimate."""
    answer = await opened.send(head(path, len(content)) + content)
    assert answer.status == 200 and b"estimated" in answer.body, answer.body


async def leave(opened: OpenGateway, sent: bytes, *, once: Callable[[], object]) -> None:
    """Sends bytes, and hangs up once something is so."""
    _, writer = await opened.connect()
    writer.write(sent)
    await eventually(once)
    writer.transport.abort()


async def leave_in_the_body(opened: OpenGateway) -> None:
    content = body()
    sent = head(size=len(content)) + content[: SIZE // 2]
    await leave(opened, sent, once=lambda: opened.gateway.bodies.held >= SIZE // 4)


async def leave_at_the_engine(opened: OpenGateway, *, stream: bool) -> None:
    content = body("hang", stream=stream)
    await leave(opened, head(size=len(content)) + content, once=lambda: opened.peer.working > 0)
    await opened.until_idle()


async def leave_waiting(opened: OpenGateway) -> None:
    opened.engine.gate.clear()
    content = body("b/with:slash")
    await leave(opened, head(size=len(content)) + content, once=lambda: opened.count("waiting") == 1)
    await opened.until_idle()


STORMS: dict[str, Storm] = {
    "an unknown model": lambda opened: refuse(opened, body("nope"), 404),
    "no JSON": lambda opened: refuse(opened, body()[:-1], 400),
    "a wrong number": lambda opened: refuse(opened, body(n=-1), 400),
    "a full lane": lambda opened: refuse(opened, body(), 429, X_Watchbill_Lane="full"),
    "a fallback": lambda opened: refuse(opened, body("hang"), 200, X_Watchbill_Lane="kind"),
    "a failing engine": lambda opened: refuse(opened, body("fail"), 502),
    "leaving in the body": leave_in_the_body,
    "leaving while waiting": leave_waiting,
    "leaving an answer": lambda opened: leave_at_the_engine(opened, stream=False),
    "leaving a stream": lambda opened: leave_at_the_engine(opened, stream=True),
    "an answer": lambda opened: refuse(opened, body(), 200),
    "a count": lambda opened: count(opened, "/v1/messages/count_tokens", body()),
    "a count of input": lambda opened: count(
        opened, "/v1/responses/input_tokens", json.dumps({"model": "a", "input": "x" * SIZE}).encode()
    ),
}


async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Answers, hangs or breaks off, by the model's name."""
    model = asked.json["model"]
    if asked.path.endswith("input_tokens"):
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        return
    if model == "fail":
        raise ConnectionResetError
    if model == "hang":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n")
        await asyncio.sleep(60)
    await HELLO(asked, writer)


@pytest.mark.parametrize("storm", STORMS.values(), ids=STORMS.keys())
async def test_a_request_that_is_over_leaves_nothing_of_its_body(storm: Storm) -> None:
    """LANE-08: however it ended, its body is gone at once; nothing waits for the garbage collector."""
    models = {name: replace(CATALOG.models["a"], name=name, aliases=()) for name in ("a", "hang", "fail")}
    catalog = replace(CATALOG, lanes=LANES, models={**CATALOG.models, **models})
    async with open_gateway(talk, catalog=catalog) as opened:
        await storm(opened)  # what is made once: connections, caches
        await eventually(lambda: opened.connections == 0)
        opened.peer.asked.clear()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(STORM):
                await storm(opened)
                opened.peer.asked.clear()
            await eventually(lambda: opened.connections == 0)
            await eventually(lambda: opened.gateway.bodies.held == 0)
            # The engine of this test keeps the last request of its connection.
            await eventually(lambda: tracemalloc.get_traced_memory()[0] < 2 * SIZE)
        finally:
            tracemalloc.stop()
            gc.enable()


LONG_ANSWERS = {
    "/v1/embeddings": b'{"data":[{"embedding":[' + b"0.25," * (SIZE // 5) + b'1]}],"usage":{}}',
    "/api/embed": b'{"data":[{"embedding":[' + b"0.25," * (MIB // 6) + b'1]}],"usage":{}}',
    "/v1/chat/completions": b'{"choices":[{"message":{"content":"' + b"x" * SIZE + b'"}}]}',
}


@pytest.mark.parametrize("path", LONG_ANSWERS)
async def test_an_answer_that_was_read_leaves_nothing_of_itself(path: str) -> None:
    """LANE-08: it is gone with its connection; nothing waits for the garbage collector."""
    content = LONG_ANSWERS[path]

    async def tell(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)

    asking = {"model": "a", "input": "x", "messages": []}
    async with open_gateway(tell) as opened:
        await opened.ask(path, asking)
        await eventually(lambda: opened.connections == 0)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(STORM):
                assert (await opened.ask(path, asking)).status == 200
            await eventually(lambda: opened.connections == 0)
            await eventually(lambda: tracemalloc.get_traced_memory()[0] < len(content))
        finally:
            tracemalloc.stop()
            gc.enable()


async def send_slowly(opened: OpenGateway, size: int, sent: int, **headers: str) -> asyncio.StreamReader:
    """Announces a body and sends a part of it."""
    reader, writer = await opened.connect()
    writer.write(head(size=size, **headers) + b" " * sent)
    return reader


async def test_bodies_of_all_requests_together_are_bounded() -> None:
    """LANE-08: beyond `bodies_max` 503 with Retry-After, before more is received; then there is room again."""
    server = Server(body_max=Bytes(4 * MIB), bodies_max=Bytes(4 * MIB))
    async with open_gateway(server=server) as opened:
        await send_slowly(opened, 4 * MIB, 3 * MIB)
        await eventually(lambda: opened.gateway.bodies.held == 3 * MIB)
        refused = await raw(await send_slowly(opened, 2 * MIB, 0))
        assert (refused.status, refused.code) == (503, "overloaded") and int(
            refused.headers["retry-after"]
        ) > 0
        assert (await opened.ask("/v1/chat/completions", {"model": "a", "messages": []})).status == 200
        opened.writers[0].transport.abort()
        await eventually(lambda: opened.gateway.bodies.held == 0)


async def test_bodies_without_a_length_are_bounded_as_they_come() -> None:
    """LANE-08: what announces nothing is refused when it has become too much."""
    server = Server(body_max=Bytes(4 * MIB), bodies_max=Bytes(2 * MIB))
    async with open_gateway(server=server) as opened:
        reader, writer = await opened.connect()
        start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(start + b"%x\r\n" % (3 * MIB) + b" " * (3 * MIB))
        assert (await raw(reader)).status == 503
        await eventually(lambda: opened.gateway.bodies.held == 0)


def auth(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def test_bodies_of_one_key_leave_room_for_others() -> None:
    """LANE-08: beyond a key's `bodies_max` it gets 429; another key is served."""
    keys = (ApiKey("big", "big", bodies_max=Bytes(MIB)), ApiKey("other", "other"))
    async with open_gateway(server=Server(keys=keys)) as opened:
        refused = await raw(await send_slowly(opened, 2 * MIB, 0, **auth("big")))
        assert (refused.status, refused.code) == (429, "lane_full") and "bodies_max" in refused.body.decode()
        content = {"model": "a", "messages": [{"role": "user", "content": "x" * 2 * MIB}]}
        assert (await opened.ask("/v1/chat/completions", content, headers=auth("other"))).status == 200


async def test_large_uploads_keep_neither_small_bodies_nor_operators_out() -> None:
    """LANE-08: with `bodies_max` full of half-sent bodies a small one comes in, and so does any of an operator; also
    these have a bound."""
    keys = (*(ApiKey(name, name) for name in "abcdo"), ApiKey("boss", "boss", admin=True))
    server = Server(keys=keys, body_max=Bytes(4 * MIB), bodies_max=Bytes(16 * MIB))
    small, large = 64 * 2**10, 200 * 2**10
    said = {"model": "a", "messages": [{"role": "user", "content": "x"}]}
    async with open_gateway(server=server) as opened:
        for name in "abcd":
            await send_slowly(opened, 4 * MIB, 4 * MIB - 1, **auth(name))
        await eventually(lambda: opened.gateway.bodies.held == 16 * MIB - 4)
        assert (await raw(await send_slowly(opened, large, 0, **auth("o")))).code == "overloaded"
        assert (await opened.ask("/v1/chat/completions", said, headers=auth("o"))).status == 200
        for _ in range(16):  # the reserve of small ones
            await send_slowly(opened, small, small - 1, **auth("o"))
        await eventually(lambda: opened.gateway.bodies.held == 16 * MIB - 4 + 16 * (small - 1))
        assert (await raw(await send_slowly(opened, small, 0, **auth("o")))).code == "overloaded"
        said["messages"] = [{"role": "user", "content": "x" * large}]
        assert (await opened.ask("/v1/chat/completions", said, headers=auth("boss"))).status == 200
        assert (await raw(await send_slowly(opened, 2 * MIB, 0, **auth("boss")))).code == "overloaded"


async def test_a_key_has_a_quarter_of_all_bodies_unless_it_says_otherwise() -> None:
    """LANE-08: two keys cannot take everything."""
    server = Server(keys=(ApiKey("a", "a"),), body_max=Bytes(MIB), bodies_max=Bytes(8 * MIB))
    async with open_gateway(server=server) as opened:
        for _ in range(2):
            await send_slowly(opened, MIB, MIB - 1, **auth("a"))
        await eventually(lambda: opened.gateway.bodies.held == 2 * MIB - 2)
        assert (await raw(await send_slowly(opened, MIB, 0, **auth("a")))).code == "lane_full"


async def test_a_key_over_its_bounds_is_refused_before_its_body_is_sent() -> None:
    """LANE-08: a request counts as open while its body comes, so uploads in progress are bounded, too."""
    server = Server(keys=(ApiKey("bot", "bot", requests_max=1),))
    async with open_gateway(server=server) as opened:
        await send_slowly(opened, 2 * MIB, MIB, **auth("bot"))
        await eventually(lambda: opened.gateway.bodies.held == MIB)
        refused = await raw(await send_slowly(opened, 2 * MIB, 0, **auth("bot")))
        assert refused.status == 429 and "requests_max" in refused.body.decode()
        opened.writers[0].transport.abort()
        await eventually(lambda: opened.gateway.bodies.held == 0)
        said = {"model": "a", "messages": []}
        assert (await opened.ask("/v1/chat/completions", said, headers=auth("bot"))).status == 200


async def test_connections_in_all_are_bounded() -> None:
    """LANE-08: one too many is told so, and those that are there do not notice."""
    async with open_gateway(server=Server(connections_max=2)) as opened:
        first, writer = await opened.connect()
        await opened.connect()
        await eventually(lambda: opened.connections == 2)
        third, _ = await opened.connect()
        refused = await raw(third)
        assert (refused.status, refused.code) == (503, "overloaded") and await third.read() == b""
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await raw(first)).status == 200
        opened.writers[1].transport.abort()
        await eventually(lambda: opened.connections == 1)
        assert (await opened.ask("/health")).status == 200


async def test_requests_that_come_before_their_turn_are_not_collected_without_bound() -> None:
    """LANE-08: on one connection, too, what nobody has read yet is bounded."""
    async with open_gateway(talk) as opened:
        opened.engine.gate.clear()
        _, writer = await opened.connect()
        one = b'{"model": "a", "messages": ["' + b"x" * 200_000 + b'"]}'
        writer.write((head(size=len(one)) + one) * 40)
        await opened.until_waiting()
        [connection] = opened.serving._listener.connections  # pyright: ignore[reportPrivateUsage]  its parser is what grew
        await eventually(lambda: connection._is_paused)  # pyright: ignore[reportPrivateUsage]
        assert len(connection._parser.requests) < 8  # pyright: ignore[reportPrivateUsage]


async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """An answer that is no stream, and has no end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
    while not writer.is_closing():
        writer.write(b"1," * MIB)
        await writer.drain()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/embeddings"])
async def test_an_engines_answer_without_end_is_cut(path: str, stream: bool) -> None:
    """R34: also where the client asked for a stream and the engine answers with something else."""
    asked = {"model": "a", "messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 1}

    async def ask(opened: OpenGateway) -> RawAnswer:
        return await opened.ask(path, {**asked, "stream": stream})

    async with open_gateway(endless) as opened:
        tracemalloc.start()
        try:
            answer = await ask(opened)
            assert tracemalloc.get_traced_memory()[1] < 3 * UPSTREAM_ANSWER_BYTES_MAX
        finally:
            tracemalloc.stop()
        assert answer.status == 502
        await opened.until_idle()
