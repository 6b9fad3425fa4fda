"""A load generator that costs little: one request at a time on each of N kept connections.

    python bench/load_generator.py PORT CONNECTIONS SECONDS [TOKENS]

Without TOKENS it asks for whole answers, with it for streams of that many events. Prints one line of JSON:
requests, seconds, p50_ms, p99_ms, and for streams ttft_p50_ms, ttft_p99_ms, events.
"""

import asyncio
import json
import sys
import time
from typing import cast

import httptools


def request(port: int, tokens: int) -> bytes:
    """A small chat, as an editor would send it."""
    fields: dict[str, object] = {
        "model": "bench",
        "messages": [{"role": "user", "content": "Why is the sky blue? Answer in one sentence."}],
        "temperature": 0.2,
        "max_tokens": tokens or 1,
    }
    if tokens:
        fields["stream"] = True
    body = json.dumps(fields, separators=(",", ":")).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json\r\nUser-Agent: bench\r\nAuthorization: Bearer none\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Caller(asyncio.Protocol):
    """One connection that asks again and again until time is up."""

    def __init__(self, message: bytes, end: float, book: "Book") -> None:
        self._message = message
        self._end = end
        self._book = book
        self._parser = httptools.HttpResponseParser(self)
        self._sent_at = 0.0
        self._first_at = 0.0
        self._transport: asyncio.Transport | None = None
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._first_at = 0.0
        self._sent_at = time.perf_counter()
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """httptools' callback."""
        if not self._first_at:
            self._first_at = time.perf_counter()
        self._book.events += body.count(b"data: {")

    def on_message_complete(self) -> None:
        """httptools' callback: writes the times down and asks again."""
        now = time.perf_counter()
        if self._parser.get_status_code() != 200:
            self.done.set_exception(RuntimeError(f"status {self._parser.get_status_code()}"))
            return
        self._book.times.append(now - self._sent_at)
        self._book.firsts.append(self._first_at - self._sent_at)
        if now < self._end:
            self._ask()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError("the connection was closed"))


class Book:
    """What was measured."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.firsts: list[float] = []
        self.events = 0


def quantile(values: list[float], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 4)


async def main(port: int, connections: int, seconds: float, tokens: int) -> None:
    """Asks, and prints what was measured."""
    loop = asyncio.get_running_loop()
    book = Book()
    message = request(port, tokens)
    began = time.perf_counter()
    callers = [
        (await loop.create_connection(lambda: Caller(message, began + seconds, book), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(caller.done for caller in callers))
    spent = time.perf_counter() - began
    found: dict[str, float] = {
        "requests": len(book.times),
        "seconds": round(spent, 3),
        "p50_ms": quantile(book.times, 0.5),
        "p99_ms": quantile(book.times, 0.99),
    }
    if tokens:
        found["ttft_p50_ms"] = quantile(book.firsts, 0.5)
        found["ttft_p99_ms"] = quantile(book.firsts, 0.99)
        found["events"] = book.events
    print(json.dumps(found))


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[1:]]
    asyncio.run(
        main(int(numbers[0]), int(numbers[1]), numbers[2], int(numbers[3]) if len(numbers) > 3 else 0)
    )
