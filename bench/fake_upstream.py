"""A fast fake engine: answers chats with constant bytes, so that what is measured is the gateway.

    python bench/fake_upstream.py PORT

Listens on 127.0.0.1 (port 0 picks one) and prints the port. A chat without `stream` gets one JSON object; with it
a stream of `max_tokens` events: all in one write when `max_tokens` is 1, else one write each.
"""

import asyncio
import json
import sys
from typing import cast

import httptools

BASE = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
USAGE = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
HEALTHY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n" + b'{"status":"ok"}'
)


def event(choices: list[dict[str, object]], **fields: object) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps({**BASE, "choices": choices, **fields}).encode() + b"\n\n"


def chunk(content: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def whole_answer() -> bytes:
    """The answer to a chat that is not streamed."""
    message = {"role": "assistant", "content": "Hello from the bench."}
    body = json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1,
            "model": "bench",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": USAGE,
        }
    ).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WORD = event([{"index": 0, "delta": {"content": "word "}, "finish_reason": None}])
LAST = event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
COUNT = event([], usage=USAGE)
DONE = b"data: [DONE]\n\n"
WHOLE = whole_answer()
SHORT = HEAD + chunk(WORD + LAST + COUNT + DONE) + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """httptools' callback."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """httptools' callback."""
        self._body += body

    def on_message_complete(self) -> None:
        """httptools' callback: answers."""
        url, body, self._url, self._body = self._url, self._body, b"", b""
        assert self._transport is not None
        if not url.startswith(b"/v1/"):
            self._transport.write(HEALTHY)
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            self._transport.write(WHOLE)
        elif asked["max_tokens"] == 1:
            self._transport.write(SHORT)
        else:
            self._transport.write(HEAD)
            self._stream(asked["max_tokens"])

    def _stream(self, left: int) -> None:
        if self._transport is None:
            return
        if left:
            self._transport.write(chunk(WORD))
            self._loop.call_soon(self._stream, left - 1)
        else:
            self._transport.write(chunk(LAST) + chunk(DONE) + b"0\r\n\r\n")


async def main(port: int) -> None:
    """Serves until it is killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Engine(loop), "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
