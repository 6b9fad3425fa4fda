"""Sleep: how engines that can give their weights back are told to, are woken, and are asked whether they sleep.

Two kinds. llama.cpp's server falls asleep by itself after its idle time, cannot be told to, and wakes with the next
request; `/props` says whether it sleeps and does not wake it. Others, of which vLLM is one, are told by
`POST /sleep` and `POST /wake_up`, and say `/is_sleeping`.
"""

import http.client
import json
from dataclasses import dataclass
from typing import cast

from watchbill import limits
from watchbill.engines.base import Endpoint, LoadError
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed

__all__ = ["LLAMA", "TOLD", "Sleep", "is_sleeping", "tell"]

#: An answer about sleep; llama.cpp's /props holds its chat template, too.
ANSWER_BYTES_MAX = 4 * 2**20
LOOK_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Sleep:
    """The addresses of an engine that sleeps."""

    look: str  # says {"is_sleeping": ...}
    sleep: str | None = None  # None: it cannot be told
    wake: str | None = None


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


def is_sleeping(endpoint: Endpoint, sleep: Sleep) -> bool | None:
    """Whether the engine sleeps; None when it does not say. Blocks: call it in a thread."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=LOOK_S_MAX)
    try:
        headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        connection.request("GET", sleep.look, headers=headers)
        answer = cast("object", json.loads(connection.getresponse().read(ANSWER_BYTES_MAX)))
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ):  # busy, gone, or no such address: nothing is known
        return None
    finally:
        connection.close()
    said = cast("dict[str, object]", answer).get("is_sleeping") if isinstance(answer, dict) else None
    return said if isinstance(said, bool) else None
