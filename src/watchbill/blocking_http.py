"""Blocking HTTP calls with the standard library, for commands that wait for their answer. The event loop uses none."""

import errno
import http.client
import socket
import ssl
import urllib.error

__all__ = ["FAILURES", "connect", "reason_of"]

#: What a call may raise: refused, unreachable, unknown host, bad certificate, too slow, or no HTTP at all.
FAILURES = (OSError, http.client.HTTPException)

_WORDS = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "it hung up",
    errno.EPIPE: "it hung up",
    errno.ENETUNREACH: "no network leads there: check whether this machine is online",
    errno.EHOSTUNREACH: "that machine cannot be reached; is it on?",
    errno.ETIMEDOUT: "no answer in time",
}


def connect(
    host: str, port: int | None, *, is_tls: bool = False, timeout_s: float
) -> http.client.HTTPConnection:
    """A connection, to be opened by its first request. `timeout_s` bounds the silence, not the whole call."""
    if is_tls:
        return http.client.HTTPSConnection(
            host, port, timeout=timeout_s, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def reason_of(error: Exception) -> str:
    """Why a call failed, in words for a person."""
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
        return reason_of(error.reason)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS; try http:// instead of https://"
    if isinstance(error, socket.gaierror):
        return "no such host is known: check the name, and whether this machine is online"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.RemoteDisconnected | http.client.IncompleteRead):
        return "it hung up"
    if isinstance(error, http.client.HTTPException):
        return "what answers there does not speak HTTP"
    if isinstance(error, OSError):
        return _WORDS.get(error.errno or 0) or (error.strerror or str(error) or type(error).__name__).lower()
    return str(error) or type(error).__name__
