"""Blocking HTTP calls with the standard library, for commands that wait for their answer. The event loop uses none."""

import http.client
import ssl

__all__ = ["FAILURES", "connect", "reason_of"]

#: What a call may raise: refused, unreachable, unknown host, bad certificate, too slow, or no HTTP at all.
FAILURES = (OSError, http.client.HTTPException)


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
    """Why a call failed, in the fewest words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
