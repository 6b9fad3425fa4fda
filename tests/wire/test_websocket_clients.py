"""Websockets by a real library on both sides of the gateway, and by OpenAI's own client for realtime sessions."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import Server as Listening
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus

from support.open_gateway import CATALOG, OpenGateway, open_gateway
from watchbill.catalog import ApiKey, Server
from watchbill.engines.base import Endpoint

LARGE = 3 * 2**20
SERVER = Server(keys=(ApiKey("me", "k" * 16),))
KEY = {"Authorization": f"Bearer {'k' * 16}"}
Handler = Callable[[ServerConnection], Awaitable[None]]


async def echo(connection: ServerConnection) -> None:
    """Says everything back, and ends as it is told."""
    async for message in connection:
        if message == "end":
            await connection.close(4001, "as you wished")
        elif message == "break":
            connection.transport.abort()
        else:
            await connection.send(message)


@asynccontextmanager
async def realtime(
    handler: Handler = echo, **options: Any
) -> AsyncIterator[tuple[OpenGateway, Listening, str]]:
    """A gateway before an engine of the library, and the address of its websocket."""
    async with (
        serve(handler, "127.0.0.1", 0, max_size=2 * LARGE, **options) as engine,
        open_gateway(catalog=CATALOG, server=SERVER) as opened,
    ):
        opened.engine.endpoint = Endpoint("127.0.0.1", engine.sockets[0].getsockname()[1])
        yield opened, engine, f"ws://127.0.0.1:{opened.serving.port}/v1/realtime?model=alias/of-a"
        await opened.until_idle()


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_messages_of_every_kind_pass(compression: str | None) -> None:
    """LANE-01: texts, bytes, large and empty ones, pieces, pings; compressed or not, as both sides agree."""
    async with realtime() as (_opened, _engine, url):
        async with connect(
            url, additional_headers=KEY, compression=compression, max_size=2 * LARGE
        ) as client:
            agreed = [extension.name for extension in client.protocol.extensions]
            assert agreed == (["permessage-deflate"] if compression else [])
            for message in (
                "ahoy, wörld",
                b"\x00\xff" * 500,
                "",
                b"",
                "x" * LARGE,
                bytes(range(256)) * 4_096,
            ):
                await client.send(message)
                assert await client.recv() == message
            await client.send(["in ", "three ", "pieces"])
            assert await client.recv() == "in three pieces"
            async with asyncio.timeout(10):
                await (await client.ping())
        assert client.close_code == 1000


async def test_the_end_of_either_side_is_told_to_the_other() -> None:
    """LANE-01: close codes and reasons pass; a connection that breaks is one that breaks."""
    async with realtime() as (opened, _engine, url):
        async with connect(url, additional_headers=KEY) as client:
            await client.send("end")
            with pytest.raises(ConnectionClosedError) as ended:
                await client.recv()
            assert ended.value.rcvd is not None
            assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (4001, "as you wished")
        async with connect(url, additional_headers=KEY) as client:
            await client.send("break")
            with pytest.raises(ConnectionClosedError):
                await client.recv()
        heard: asyncio.Future[tuple[int | None, str | None]] = asyncio.get_running_loop().create_future()

        async def listen(connection: ServerConnection) -> None:
            await connection.wait_closed()
            heard.set_result((connection.close_code, connection.close_reason))

        async with serve(listen, "127.0.0.1", 0) as other:
            opened.engine.endpoint = Endpoint("127.0.0.1", other.sockets[0].getsockname()[1])
            client = await connect(url.replace("alias/of-a", "b/with:slash"), additional_headers=KEY)
            await client.close(4002, "enough")
            async with asyncio.timeout(10):
                assert await heard == (4002, "enough")


async def test_a_subprotocol_is_agreed_and_a_refusal_is_one() -> None:
    """LANE-01: the engine chooses; no key, an unknown model and an engine that refuses are statuses of HTTP."""

    def choose(_connection: ServerConnection, offered: Any) -> Any:
        return next((name for name in offered if name == "realtime"), None)

    async with realtime(subprotocols=["realtime"], select_subprotocol=choose) as (_opened, _engine, url):
        async with connect(url, additional_headers=KEY, subprotocols=["odd", "realtime"]) as client:
            assert client.subprotocol == "realtime"
        for address, headers, status in ((url, {}, 401), (url.replace("alias/of-a", "nope"), KEY, 404)):
            with pytest.raises(InvalidStatus) as refused:
                await connect(address, additional_headers=headers)
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["error"]["message"]


async def test_many_at_once_and_a_slow_reader_hold_nobody_up() -> None:
    """LANE-08: eight sessions of one model; one that does not read leaves the others alone."""
    async with realtime() as (_opened, _engine, url):
        clients = [await connect(url, additional_headers=KEY, max_size=2 * LARGE) for _ in range(8)]
        await clients[0].send("y" * LARGE)  # nobody reads what comes back
        for number, client in enumerate(clients[1:]):
            await client.send(f"hello {number}")
        async with asyncio.timeout(20):
            assert [await client.recv() for client in clients[1:]] == [f"hello {n}" for n in range(7)]
            assert await clients[0].recv() == "y" * LARGE
        for client in clients:
            await client.close()


async def test_openais_client_has_a_realtime_session() -> None:
    """LANE-01: its events go to the engine and come back, and leaving ends the turn."""
    heads: list[str] = []

    async def session(connection: ServerConnection) -> None:
        assert connection.request is not None
        heads.append(connection.request.path)
        await connection.send(
            json.dumps({"type": "session.created", "event_id": "e1", "session": {"type": "realtime"}})
        )
        async for message in connection:
            asked = json.loads(message)
            told = {"type": "response.output_text.delta", "event_id": "e2", "delta": asked["type"]}
            await connection.send(json.dumps(told))

    async with realtime(session) as (opened, _engine, url):
        base = url.replace("ws://", "http://").partition("/v1/")[0] + "/v1"
        async with openai.AsyncOpenAI(
            base_url=base, websocket_base_url=base.replace("http", "ws"), api_key="k" * 16
        ) as client, client.realtime.connect(model="a") as connection:  # fmt: skip
            first = await connection.recv()
            assert first.type == "session.created" and opened.count("running") == 1
            await connection.response.create()
            answer = await connection.recv()
            assert (answer.type, answer.delta) == ("response.output_text.delta", "response.create")
        with pytest.raises(ConnectionClosedOK):
            await connection.recv()
    assert heads == ["/v1/realtime?model=a"]
