"""Deliveries: the messages that a broker gives this worker when it pulls, and how one is put back.

A pull asks for what waits now. In a cluster its end overtakes its messages, which their servers agree on first: the end
says how many there are, and they are waited for. What comes later still is kept for the next pull. A message that was
kept too long may be another worker's by now, and goes back. For the loop of the link only.
"""

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from watchbill.spool.jetstream.link import Link, Received
from watchbill.spool.jetstream.streams import CONSUMER, Stored, Streams, stored_of
from watchbill.spool.limits import BROKER_AGAIN_S, BROKER_REPLY_S

__all__ = ["Deliveries", "Delivery", "put_back", "put_back_word"]

#: A pull has ended: no messages, its time is over, or its consumer refuses more.
_SERVED_STATUSES = frozenset({"404", "408", "409"})
#: How many of the messages that a pull asked for were not sent when it ended; without it, none were.
_UNSENT = "Nats-Pending-Messages"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivered event, the address by which it is settled, and how often it was delivered."""

    stored: Stored
    reply: str
    times: int


class Deliveries:
    """The pulls of one worker."""

    def __init__(self, link: Link, streams: Streams, lease_s: float, on_arrival: Callable[[], None]) -> None:
        self._link, self._streams, self._lease_s, self._on_arrival = link, streams, lease_s, on_arrival
        self._inbox, self._pull, self._asked = "", 0, 0
        self._came = asyncio.Event()
        self._awaited = 0  # messages of the present pull that have not come
        self._pulled: deque[tuple[float, Received]] = deque()  # each with the time when it came

    async def pull(self, count: int, bytes_max: int) -> list[Delivery]:
        """What waits now, at most `count`, in the order of arrival."""
        if not self._inbox:
            inbox = f"_INBOX.{os.urandom(12).hex()}"
            await self._link.listen(f"{inbox}.*", self._hear)
            self._inbox = inbox
        while not self._pulled:
            self._pull += 1
            body = {
                "batch": count,
                "no_wait": True,
                "max_bytes": max(bytes_max, self._link.payload_bytes_max),
            }
            self._asked = self._awaited = count
            await self._link.tell(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._streams.name}.{CONSUMER}", json.dumps(body).encode(),
                reply=f"{self._inbox}.{self._pull}",
            )  # fmt: skip
            if await self._serve():
                break
            await asyncio.sleep(BROKER_AGAIN_S)
        return [self._delivery(each) for each in await self._take(count)]

    async def put_all_back(self) -> None:
        """Put back what was delivered and not taken."""
        while self._pulled:
            await put_back(self._link, self._pulled.popleft()[1].reply)

    async def _serve(self) -> bool:
        """Wait until all messages of the present pull have come; False if the broker did not answer."""
        while self._awaited > 0:
            self._came.clear()
            try:
                async with asyncio.timeout(BROKER_REPLY_S):
                    await self._came.wait()
            except TimeoutError:
                return False
        return True

    async def _take(self, count: int) -> list[Received]:
        """The oldest messages that have come. One that came too long ago may be another worker's by now."""
        too_old_s, found = time.monotonic() - self._lease_s / 2, list[Received]()
        while self._pulled and len(found) < count:
            came_at_s, message = self._pulled.popleft()
            if came_at_s > too_old_s:
                found.append(message)
            else:
                await put_back(self._link, message.reply)
        return found

    def _hear(self, message: Received) -> None:
        """Take what a pull delivers. A message keeps the subject of its event, so only a status tells its pull."""
        if not message.status:
            self._pulled.append((time.monotonic(), message))
            self._awaited -= 1
            self._on_arrival()
        elif message.subject != f"{self._inbox}.{self._pull}":
            return
        elif message.status in _SERVED_STATUSES:
            self._awaited -= int(message.headers.get(_UNSENT, self._asked))
        else:
            return  # no server has the stream now: the pull is sent again
        self._came.set()

    def _delivery(self, message: Received) -> Delivery:
        # $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<number>.<ns>.<pending>, with domain and account before in some
        parts = message.reply.split(".")
        times, seq, _, at_ns = (int(part) for part in parts[-5:-1])
        if len(parts) >= 12:  # <domain>.<account> in front, a random token at the end
            times, seq, _, at_ns = (int(part) for part in parts[-6:-2])
        stored = stored_of(self._streams, message, stream=self._streams.name, seq=seq, at_ns=at_ns)
        return Delivery(stored, message.reply, times)


async def put_back(link: Link, reply: str, delay_s: float = 0.0) -> None:
    """Put a message back. Not confirmed: if it is lost, the message comes again when its time is over."""
    await link.tell(reply, put_back_word(delay_s))


def put_back_word(delay_s: float) -> bytes:
    """What puts a message back, for others to get after this time."""
    return f'-NAK {{"delay": {int(delay_s * 1e9)}}}'.encode() if delay_s > 0 else b"-NAK"
