"""Calls to engines that are not on loopback, or speak TLS: aiohttp's client behind `upstream`'s interface.

Redirects are never followed, proxies of the environment never used, answers never decompressed: an address
comes from the config only, and what an engine sends stays as it was sent. A cut request is closed and counts as let go
at once: over TLS there is no half-close, and engines on other machines are others' to schedule.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar, cast

import aiohttp

from watchbill.engines.call import Call
from watchbill.engines.connection import Deadlines, Outgoing, UpstreamFailed
from watchbill.limits import FAR_PIECE_BYTES_MAX, UPSTREAM_BUFFER_BYTES_MAX, UPSTREAM_HEAD_BYTES_MAX

__all__ = ["FarCall", "FarSession"]

Outcome = TypeVar("Outcome")


class FarSession:
    """aiohttp's session, made on first use: importing this module opens nothing."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def get(self) -> aiohttp.ClientSession:
        """The session of this event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=UPSTREAM_BUFFER_BYTES_MAX,
                max_field_size=UPSTREAM_HEAD_BYTES_MAX,
                max_line_size=UPSTREAM_HEAD_BYTES_MAX,
            )
        return self._session

    async def close(self) -> None:
        """Ends every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class FarCall(Call):
    """One request over aiohttp's client."""

    def __init__(self, session: FarSession, outgoing: Outgoing, deadlines: Deadlines) -> None:
        self._session = session
        self._url = f"{outgoing.endpoint.url}{outgoing.path}"
        self._method = outgoing.method
        self._body = (outgoing.body, *outgoing.rest)
        key = outgoing.endpoint.key
        self._headers = {"Accept-Encoding": "identity", **outgoing.headers}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        if outgoing.body:
            self._headers.setdefault("Content-Type", "application/json")
        if outgoing.rest:
            self._headers["Content-Length"] = str(sum(map(len, self._body)))
        self._deadlines = deadlines
        self.content_type = ""
        self._answer: aiohttp.ClientResponse | None = None
        self._piece: bytes | None = None  # that has come and was not taken yet
        self._failure: UpstreamFailed | None = None
        self._step: asyncio.Task[object] | None = None
        self._step_until = 0.0  # however often whoever waits for it is interrupted
        self._aborted = False
        self._begun = False
        self._asked_at = self._heard_at = 0.0
        self.has_ended = False

    def poll(self) -> int:
        if self._failure is not None:
            raise self._failure
        return 0 if self._answer is None else self._answer.status

    def take(self) -> bytes | None:
        piece, self._piece = self._piece, None
        if piece is None and self._failure is not None:
            raise self._failure
        return piece

    async def news(self) -> None:
        try:
            if self._answer is None:
                await self._hear_head()
            else:
                await self._hear_piece(self._answer)
        except UpstreamFailed as error:
            self._failure = error

    async def _hear_head(self) -> None:
        answer = await self._guarded(self._open, self._deadlines.connect_ms + self._deadlines.first_byte_ms)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            answer.close()
            raise UpstreamFailed(
                "garbled", "the engine compressed its answer although asked not to", received=True
            )
        self._answer = answer
        self.content_type = answer.content_type.lower()

    async def _open(self) -> aiohttp.ClientResponse:
        self._asked_at = asyncio.get_running_loop().time()
        return await self._session.get().request(
            self._method,
            self._url,
            data=_pieces(self._body) if len(self._body) > 1 else self._body[0] or None,
            headers=self._headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._deadlines.connect_ms / 1000),
        )

    async def _hear_piece(self, answer: aiohttp.ClientResponse) -> None:
        bound_ms = self._deadlines.silence_ms if self._begun else self._deadlines.first_byte_ms
        piece = self._piece = await self._guarded(answer.content.readany, bound_ms)
        self._begun = True
        self._heard_at = asyncio.get_running_loop().time()
        if not piece:
            self.has_ended = True
            answer.release()

    @property
    def has_spoken(self) -> bool:
        return self._begun

    @property
    def silent_ms(self) -> int:
        asked = self._heard_at or self._asked_at
        return round((asyncio.get_running_loop().time() - asked) * 1000) if asked else 0

    def on_let_go(self, tell: Callable[[bool], None]) -> bool:
        return False

    def abort(self) -> None:
        self._aborted, self._piece, self._body = True, None, (b"",)
        self._failure = self._failure or UpstreamFailed("aborted", "the request to the engine was cut")
        if self._step is not None:
            self._step.cancel()
            self._step.add_done_callback(_drop)  # it may be done already, and nobody looked
        if self._answer is not None:
            self._answer.close()

    async def _guarded(
        self, step: Callable[[], Coroutine[object, object, Outcome]], bound_ms: int
    ) -> Outcome:
        """Runs a step in a task of its own, so that `abort` can end it and an interrupted caller can come back."""
        received, loop = self._answer is not None, asyncio.get_running_loop()
        if self._step is None:
            self._step = asyncio.ensure_future(step())
            self._step_until = loop.time() + bound_ms / 1000
        task = cast("asyncio.Task[Outcome]", self._step)
        if self._aborted:
            task.cancel()
        await asyncio.wait({task}, timeout=max(0.0, self._step_until - loop.time()))
        self._step = None
        if not task.done():
            task.cancel()
            raise UpstreamFailed("timeout", "the engine is silent", received=received)
        if self._aborted:  # in the moment in which it was done
            raise UpstreamFailed("aborted", "the request to the engine was cut", received=received)
        try:
            return task.result()
        except asyncio.CancelledError:
            raise UpstreamFailed("aborted", "the request to the engine was cut", received=received) from None
        except aiohttp.ClientConnectorError as error:
            refused = error.os_error.errno == errno.ECONNREFUSED
            text = f"the engine cannot be reached: {error.strerror}"
            raise UpstreamFailed("connect", text, refused=refused) from None
        except aiohttp.ClientPayloadError as error:
            raise UpstreamFailed(
                "truncated", f"the engine broke off its answer: {error}", received=True
            ) from None
        except aiohttp.ServerTimeoutError:
            raise UpstreamFailed("timeout", "the engine does not accept connections") from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            raise UpstreamFailed("closed", "the engine closed the connection without an answer") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamFailed(
                "garbled", f"the engine's answer is not HTTP: {error}", received=received
            ) from None


async def _pieces(body: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    """A large body, a little at a time: encrypted at once it would hold up everybody."""
    for piece in body:
        view = memoryview(piece)
        for at in range(0, len(view), FAR_PIECE_BYTES_MAX):
            yield bytes(view[at : at + FAR_PIECE_BYTES_MAX])


def _drop(step: asyncio.Task[object]) -> None:
    """Closes what a step found that nobody waits for any more."""
    if not step.cancelled() and step.exception() is None:
        found = step.result()
        if isinstance(found, aiohttp.ClientResponse):
            found.close()
