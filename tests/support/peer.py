"""An engine of raw sockets for tests: it hears requests as they are and answers what the test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.eventually import eventually
from watchbill.engines.base import Endpoint

__all__ = ["Asked", "EnginePeer", "Talk", "chat_events", "peer_listening", "sse", "stream_of"]


@dataclass
class Asked:
    """A request as the engine received it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)


Talk = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class EnginePeer:
    """A server whose every answer is given by `talk`."""

    talk: Talk
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    working: int = 0  # answers under way
    left: int = 0  # callers who hung up before their answer's end
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port)

    async def until(self, ready: Callable[["EnginePeer"], bool]) -> None:
        """Waits until the peer has seen what the test waits for."""
        await eventually(lambda: ready(self))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        try:
            while asked := await hear(reader):
                await self._answer(asked, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(asked)
        self.working += 1
        answering = asyncio.ensure_future(self.talk(asked, writer))
        leaving = asyncio.ensure_future(_gone(reader))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() or isinstance(answering.exception(), ConnectionError):
                self.left += 1
                answering.cancel()
                raise ConnectionResetError
            await answering
            await writer.drain()
        finally:
            leaving.cancel()
            self.working -= 1


async def _gone(reader: asyncio.StreamReader) -> None:
    """Returns when the caller hung up. Looks at the reader without taking bytes of a next request."""
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110  streams have no such event
        await asyncio.sleep(0.01)


async def hear(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


@asynccontextmanager
async def peer_listening(talk: Talk) -> AsyncIterator[EnginePeer]:
    peer = EnginePeer(talk)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, limit=2**20)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        for writer in list(peer.writers):
            writer.transport.abort()
        if peer.tasks:
            await asyncio.wait(set(peer.tasks), timeout=5)
        await server.wait_closed()


def sse(*events: object) -> bytes:
    """Events as an engine writes them; a text is written as it is."""
    return b"".join(
        b"data: " + (event.encode() if isinstance(event, str) else json.dumps(event).encode()) + b"\n\n"
        for event in events
    )


def chat_events(text: str, *, usage: bool = True) -> list[object]:
    """A chat's events: the role, a word each, the end, the usage."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "engine-name"}
    words = text.split(" ")
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": None}]
    deltas += [{"content": word + (" " if at < len(words) - 1 else "")} for at, word in enumerate(words)]
    events: list[object] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        counts = {"prompt_tokens": 3, "completion_tokens": len(words), "total_tokens": 3 + len(words)}
        events.append({**base, "choices": [], "usage": counts})
    return [*events, "[DONE]"]


def tool_events(*said: str) -> list[object]:
    """A chat's events that think, say something, and call two tools, the first one piece by piece."""

    def delta(fields: dict[str, object], reason: str | None = None) -> dict[str, object]:
        return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}

    def call(index: int, **function: str) -> dict[str, object]:
        head = {"id": f"call_{index}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index, **head, "function": function}]}

    return [
        delta({"role": "assistant", "reasoning_content": "hm"}), *(delta({"content": text}) for text in said),
        delta(call(0, name="look", arguments="")), delta(call(0, arguments='{"at"')),
        delta(call(0, arguments=': "x"}')), delta(call(1, name="go", arguments="{}")),
        delta({}, "tool_calls"), "[DONE]",
    ]  # fmt: skip


def stream_of(
    *pieces: bytes, end: bool = True, content_type: str = "text/event-stream", status: int = 200
) -> Talk:
    """A talk that answers in chunks, one per piece."""

    async def talk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if end:
            writer.write(b"0\r\n\r\n")
        else:
            writer.close()

    return talk
