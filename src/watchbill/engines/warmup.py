"""Warming up: asks a starting engine for its health, then for one real answer.

Health alone proves nothing: engines exist that say 200 and never answer. A model counts as warm when its
probe was answered, too: `chat` (one token), `embed` (one vector), `http` (health is all there is) or
`none`. The private client here is as small as its two questions; streams belong to `upstream`.
"""

import asyncio
from typing import cast

import msgspec

from watchbill import limits
from watchbill.engines.base import Endpoint, LoadError

__all__ = ["PROBES", "Progress", "warm_up"]

PROBES = ("chat", "embed", "http", "none")

_QUESTIONS = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
        "choices",
    ),
    "embed": ("/v1/embeddings", {"input": "Hi"}, "data"),
}


class Progress:
    """How far a load has come, for the message of one that runs out of time."""

    def __init__(self) -> None:
        self.text = "its process was starting"


async def warm_up(endpoint: Endpoint, health: str, probe: str, progress: Progress) -> None:
    """Returns when the engine is warm; waits as long as it takes. Raises LoadError when the probe fails."""
    await _wait_for_health(endpoint, health, progress)
    if probe in _QUESTIONS:
        progress.text = "it said it was healthy, but had not answered the probe"
        await _probe(endpoint, probe)


async def _wait_for_health(endpoint: Endpoint, path: str, progress: Progress) -> None:
    pause_ms = float(limits.HEALTH_POLL_MS_MIN)
    while True:
        try:
            async with asyncio.timeout(limits.HEALTH_MS_MAX / 1000):
                status, _ = await _ask(endpoint, "GET", path)
        except ConnectionError:
            progress.text = f"its port {endpoint.port} was not open"
        except TimeoutError:
            progress.text = f"its port {endpoint.port} was open, but {path} did not answer"
        else:
            if status == 200:
                return
            progress.text = f"{path} still answered with status {status}"
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(pause_ms * 1.2, limits.HEALTH_POLL_MS_MAX)


async def _probe(endpoint: Endpoint, kind: str) -> None:
    path, fields, wanted = _QUESTIONS[kind]
    body = msgspec.json.encode({"model": endpoint.upstream_model, **fields})
    try:
        async with asyncio.timeout(limits.PROBE_MS_MAX / 1000):
            status, answer = await _ask(endpoint, "POST", path, body)
    except TimeoutError:
        raise LoadError(
            f"says it is healthy, but did not answer the {kind} probe within {limits.PROBE_MS_MAX // 1000} s"
        ) from None
    except ConnectionError as error:
        raise LoadError(f"closed the connection instead of answering the {kind} probe ({error})") from error
    if status != 200 or not _has(answer, wanted):
        shown = answer[:300].decode("utf-8", "replace")
        raise LoadError(f"answered the {kind} probe with status {status}: {shown}")


def _has(answer: bytes, wanted: str) -> bool:
    try:
        found = cast("object", msgspec.json.decode(answer))
    except msgspec.DecodeError:
        return False
    return isinstance(found, dict) and bool(cast("dict[str, object]", found).get(wanted))


async def _ask(endpoint: Endpoint, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One question on a connection of its own. HTTP/1.0 spares us chunks: the answer ends with the connection."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        head = (
            f"{method} {endpoint.path_prefix}{path} HTTP/1.0\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
            f"X-Watchbill-Probe: 1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = b""
        while len(answer) < limits.PROBE_ANSWER_BYTES_MAX and (fresh := await reader.read(65536)):
            answer += fresh
    finally:
        writer.transport.abort()  # nothing of ours may linger: an idle connection holds an engine's thread
    head_text, _, rest = answer.partition(b"\r\n\r\n")
    words = head_text.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ConnectionResetError(f"port {endpoint.port} does not speak HTTP")
    return int(words[1]), rest
