"""Sleep: how an engine that can give its weights back is told to sleep, is woken, and is asked whether it sleeps.

Two kinds. llama.cpp's server falls asleep by itself after its idle time, cannot be told to, and wakes with the next
request; `/props` says whether it sleeps and does not wake it. Others, of which vLLM is one, are told by
`POST /sleep` and `POST /wake_up`, and say `/is_sleeping`.
"""

from dataclasses import dataclass

import msgspec

from watchbill.engines import limits
from watchbill.engines.base import Endpoint, LoadError
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed

__all__ = ["LLAMA", "TOLD", "Sleep", "is_sleeping", "tell"]


@dataclass(frozen=True, slots=True)
class Sleep:
    """The addresses of an engine that sleeps."""

    look: str  # says {"is_sleeping": ...}
    sleep: str | None = None  # None: it cannot be told
    wake: str | None = None


class _Look(msgspec.Struct):
    """What an engine says about its sleep, among other things."""

    is_sleeping: bool | None = None


LLAMA = Sleep("/props")
TOLD = Sleep("/is_sleeping", "/sleep", "/wake_up")


async def tell(endpoint: Endpoint, path: str, timeout_ms: int = limits.PROBE_MS_MAX) -> None:
    """Asks for it and waits until it is done. Raises LoadError when the engine refuses or does not answer."""
    upstream = Upstream()
    try:
        reply = await upstream.fetch(Outgoing(endpoint, "POST", path), timeout_ms=timeout_ms)
    except UpstreamFailed as failure:
        raise LoadError(f"{path} failed: {failure}") from failure
    finally:
        await upstream.close()
    if reply.status // 100 != 2:
        raise LoadError(f"{path} was answered with status {reply.status}")


async def is_sleeping(endpoint: Endpoint, sleep: Sleep) -> bool | None:
    """Whether the engine sleeps; None when it does not say: it is busy, gone, or has no such address."""
    upstream = Upstream()
    try:
        reply = await upstream.fetch(
            Outgoing(endpoint, "GET", sleep.look),
            timeout_ms=limits.SLEEP_LOOK_MS,
            limit_bytes=limits.SLEEP_ANSWER_BYTES_MAX,
        )
        return msgspec.json.decode(reply.body, type=_Look).is_sleeping
    except (UpstreamFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    finally:
        await upstream.close()
