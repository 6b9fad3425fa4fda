"""How a connection to an engine is opened.

Over TLS the engine's certificate is checked against the system's authorities, or those of SSL_CERT_FILE.

A name may stand for several addresses, of which some may lead nowhere (IPv6 without a route is the usual case). They
are tried in turn, each with a short head start (RFC 8305), so that a dead one does not use up the time to connect.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from watchbill.engines.connection import Connection, FailureKind, UpstreamFailed
from watchbill.engines.limits import UPSTREAM_ADDRESSES_MAX, UPSTREAM_HEAD_START_MS

__all__ = ["Address", "dial", "dial_streams"]

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)

#: OpenSSL numbers why it does not trust a certificate: it is its own authority, or its authority is not known here.
_UNKNOWN_AUTHORITY = frozenset({18, 19, 20, 21})
#: What a port without TLS answers looks like.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
#: This machine has no way to such an address. It says nothing about a program that may listen there.
_NO_WAY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH})


class Address(NamedTuple):
    """Where connections lead."""

    host: str
    port: int
    tls: bool


async def dial(address: Address, connect_ms: int, on_lost: Callable[[Connection], None]) -> Connection:
    """Opens a connection. Raises UpstreamFailed."""
    loop = asyncio.get_running_loop()
    _, connection = await _dialled(address, connect_ms, lambda: Connection(loop, on_lost))
    return connection


async def dial_streams(
    address: Address, connect_ms: int, buffer_bytes: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection for bytes that are not HTTP behind their head: websockets. Raises UpstreamFailed."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=buffer_bytes, loop=loop)
    transport, protocol = await _dialled(
        address, connect_ms, lambda: asyncio.StreamReaderProtocol(reader, loop=loop)
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _dialled(
    address: Address, connect_ms: int, make: Callable[[], _Protocol]
) -> tuple[asyncio.Transport, _Protocol]:
    try:
        async with asyncio.timeout(connect_ms / 1000):
            return await _open(address, make)
    except TimeoutError:
        raise UpstreamFailed(FailureKind.TIMEOUT, "the engine does not accept connections") from None
    except ssl.SSLCertVerificationError as error:
        text = f"the engine's certificate is refused: {error.verify_message.rstrip('.')}"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            text += "; a private authority is trusted when SSL_CERT_FILE names its certificate"
        raise UpstreamFailed(FailureKind.CONNECT, text, distrusted=True) from None
    except ssl.SSLError as error:
        # The other side closed in the middle: a tunnel does that for a machine that is away.
        is_over = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        hint = "; does its url need http:// in place of https://?" if error.reason in _NO_TLS else ""
        text = f"the engine cannot be reached over TLS: {_reason(error)}{hint}"
        raise UpstreamFailed(FailureKind.CONNECT, text, distrusted=not is_over) from None
    except OSError as error:
        # Every errno means the same to the caller: the engine is not there. The text says which it was.
        text = f"the engine cannot be reached: {_reason(error)}"
        raise UpstreamFailed(FailureKind.CONNECT, text, refused=error.errno == errno.ECONNREFUSED) from None


async def _open(address: Address, make: Callable[[], _Protocol]) -> tuple[asyncio.Transport, _Protocol]:
    loop, (host, port, tls) = asyncio.get_running_loop(), address
    trust = await asyncio.to_thread(_trust) if tls else None  # reads files the first time
    if _is_number(host):
        return await loop.create_connection(make, host, port, ssl=trust)
    reached = await _reach(loop, host, port)
    return await loop.create_connection(make, sock=reached, ssl=trust, server_hostname=host if tls else None)


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
