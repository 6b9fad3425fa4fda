"""The connections to one address: how they are opened, kept, and given out again.

Owns the idle connections to one engine, and those whose engine has not let go of a cut request yet. A connection is
kept after a whole answer, within the pool's bound, for a few seconds; one that the engine has closed is never given
out. Over TLS the engine's certificate is checked against the system's authorities, or those of SSL_CERT_FILE.

A name may stand for several addresses, of which some may lead nowhere (IPv6 without a route is the usual case). They
are tried in turn, each with a short head start (RFC 8305), so that a dead one does not use up the time to connect.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from watchbill.engines.connection import Connection, UpstreamFailed
from watchbill.limits import (
    UPSTREAM_ADDRESSES_MAX,
    UPSTREAM_CLOSE_NOTICE_MS,
    UPSTREAM_HEAD_START_MS,
    UPSTREAM_IDLE_CONNECTIONS_MAX,
    UPSTREAM_IDLE_MS,
)

__all__ = ["Address", "ConnectionPool"]

#: This machine has no way to such an address. It says nothing about a program that may listen there.
_NO_WAY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH})


class Address(NamedTuple):
    """Where connections lead."""

    host: str
    port: int
    tls: bool


class ConnectionPool:
    """Connections to one address."""

    __slots__ = ("_address", "_idle", "_is_number", "_parting", "_sweeper", "closes")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._is_number = _is_number(address.host)
        self._idle: list[Connection] = []
        self._parting: set[Connection] = set()  # each leaves within `UPSTREAM_LET_GO_MS`
        self._sweeper: asyncio.TimerHandle | None = None
        #: The engine closes the connection after a streamed answer although it announced otherwise (llama.cpp does):
        #: it is asked with `Connection: close`, which spares every second request a retry.
        self.closes = False

    def take(self) -> Connection | None:
        """A kept connection that is still open, the youngest first."""
        while self._idle:
            connection = self._idle.pop()
            if connection.can_serve():
                return connection
        return None

    def keep(self, connection: Connection) -> None:
        """Takes a connection back after an answer, for the next request."""
        if not connection.keeps_alive or connection.failure is not None:
            if connection.keeps_alive and connection.streamed:
                self.closes = True
            connection.close()
        elif len(self._idle) >= UPSTREAM_IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            connection.is_kept = True
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._sweeper is None:
                self._sweep_later()

    def part(self, connection: Connection) -> None:
        """Cuts the request on a connection; the connection goes when its engine has let go."""
        self._parting.add(connection)
        connection.part()
        if not connection.can_part:
            self._parting.discard(connection)

    def close(self) -> None:
        """Ends every connection that serves no request."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        for connection in list(self._parting):
            connection.abort()

    def _lost(self, connection: Connection) -> None:
        self._parting.discard(connection)
        if connection not in self._idle:
            return
        self._idle.remove(connection)
        idle_ms = (time.monotonic() - connection.idle_since) * 1000
        if connection.streamed and idle_ms < UPSTREAM_CLOSE_NOTICE_MS:
            self.closes = True

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(UPSTREAM_IDLE_MS / 2000, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = time.monotonic() - UPSTREAM_IDLE_MS / 1000
        stale = [connection for connection in self._idle if connection.idle_since <= oldest]
        self._idle = [connection for connection in self._idle if connection.idle_since > oldest]
        for connection in stale:
            connection.close()
        if self._idle:
            self._sweep_later()

    # ------------------------------------------------------------------ new connections

    async def connect(self, connect_ms: int) -> Connection:
        """Opens a connection. Raises UpstreamFailed."""
        try:
            async with asyncio.timeout(connect_ms / 1000):
                return await self._open()
        except TimeoutError:
            raise UpstreamFailed("timeout", "the engine does not accept connections") from None
        except ssl.SSLCertVerificationError as error:
            text = f"the engine's certificate is refused: {error.verify_message}"
            raise UpstreamFailed("connect", text) from None
        except OSError as error:
            # Every errno means the same to the caller: the engine is not there. The text says which it was.
            text = f"the engine cannot be reached: {_reason(error)}"
            raise UpstreamFailed("connect", text, refused=error.errno == errno.ECONNREFUSED) from None

    async def _open(self) -> Connection:
        loop, (host, port, tls) = asyncio.get_running_loop(), self._address
        trust = await asyncio.to_thread(_trust) if tls else None  # reads files the first time

        def make() -> Connection:
            return Connection(loop, self._lost)

        if self._is_number:
            _, connection = await loop.create_connection(make, host, port, ssl=trust)
        else:
            reached = await _reach(loop, host, port)
            _, connection = await loop.create_connection(
                make, sock=reached, ssl=trust, server_hostname=host if tls else None
            )
        return connection


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _is_number(host: str) -> bool:
    """Whether a host is an IP address, and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _reach(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A socket that is connected to one of the addresses of a name. Raises OSError when none of them answers."""
    waiting = _in_turn(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    trying: set[asyncio.Task[socket.socket]] = set()
    errors: list[OSError] = []
    try:
        while waiting or trying:
            if waiting:
                trying.add(asyncio.create_task(_dial(loop, *waiting.pop(0))))
            head_start_s = UPSTREAM_HEAD_START_MS / 1000 if waiting else None
            done, trying = await asyncio.wait(
                trying, timeout=head_start_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    reached = task.result()
                except OSError as error:  # any errno: another address may answer
                    errors.append(error)
                else:
                    trying |= done - {task}
                    return reached
    finally:
        for task in trying:
            task.add_done_callback(_close_late)
            task.cancel()
    raise _worst(errors)


def _in_turn(found: Sequence[tuple[int, int, int, str, object]]) -> list[tuple[int, object]]:
    """Family and address of what a name stands for, the families by turns."""
    seen: Counter[int] = Counter()
    ranked: list[tuple[int, int, object]] = []
    for family, _, _, _, address in found:
        ranked.append((seen[family], family, address))
        seen[family] += 1
    ranked.sort(key=lambda each: each[0])
    return [(family, address) for _, family, address in ranked[:UPSTREAM_ADDRESSES_MAX]]


async def _dial(loop: asyncio.AbstractEventLoop, family: int, address: object) -> socket.socket:
    dialled = socket.socket(family, socket.SOCK_STREAM)
    try:
        dialled.setblocking(False)
        await loop.sock_connect(dialled, address)  # pyright: ignore[reportArgumentType] # as getaddrinfo gave it
    except BaseException:
        dialled.close()
        raise
    return dialled


def _close_late(task: asyncio.Task[socket.socket]) -> None:
    """Closes a socket that was connected after another one."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _reason(error: OSError) -> str:
    """What went wrong, in the system's own words: asyncio puts the address in their place."""
    if error.errno is None or isinstance(error, ssl.SSLError | socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _worst(errors: list[OSError]) -> OSError:
    """The error that says most: a refusal only where no other address may have been the right one."""
    telling = [error for error in errors if error.errno not in _NO_WAY] or errors
    unclear = [error for error in telling if error.errno != errno.ECONNREFUSED]
    return (unclear or telling)[0]
