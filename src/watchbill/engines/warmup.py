"""Warming up: asks a starting engine for its health, then for one real answer.

Health alone proves nothing: engines exist that say 200 and never answer. A model counts as warm when its
probe was answered, too: `chat` (one token), `embed` (one vector), `http` (health is all there is) or `none`
(not even that is asked).
"""

import asyncio
from collections.abc import Mapping
from typing import cast

import msgspec

from watchbill import limits
from watchbill.engines.base import Endpoint, LoadError, Warm
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed

__all__ = ["PROBES", "Progress", "ask_again", "can_be_asked", "warm_up"]

PROBES = ("chat", "embed", "http", "none")

#: Says to whom it may concern (our scripted engine) that this is part of a load, not a request.
PROBE_HEADERS = {"X-Watchbill-Probe": "1"}
_CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
#: Where each probe goes, what it asks, and what the answer must have.
_QUESTIONS = {
    "chat": ("/v1/chat/completions", _CHAT, "choices"),
    "embed": ("/v1/embeddings", {"input": "Hi"}, "data"),
}


class Progress:
    """How far a load has come, for the message of one that runs out of time."""

    def __init__(self) -> None:
        self.text = "its process was starting"


async def warm_up(endpoint: Endpoint, health: str, probe: str, progress: Progress) -> None:
    """Returns when the engine is warm; waits as long as it takes. Raises LoadError when the probe fails."""
    if probe == "none":
        return
    upstream = Upstream()
    try:
        await _wait_for_health(upstream, endpoint, health, progress)
        if probe in _QUESTIONS:
            progress.text = "it said it was healthy, but had not answered the probe"
            await _probe(upstream, endpoint, probe, PROBE_HEADERS, limits.PROBE_MS_MAX)
    finally:
        await upstream.close()  # an idle connection would hold one of the engine's threads


def can_be_asked(warm: Warm) -> bool:
    """Whether a warm model can prove itself once more.

    Health would be no proof: an engine that hangs says 200, so a good word could not save a model from a reset without
    saving those that hang, and a bad one only confirms what its failed answers have shown."""
    return warm.probe in _QUESTIONS


async def ask_again(warm: Warm) -> None:
    """Asks a warm model once more for what proved it warm, as any caller would. Raises LoadError without an answer."""
    upstream = Upstream()
    try:
        await _probe(upstream, warm.endpoint, warm.probe, {}, limits.PROBE_MS_MAX)
    finally:
        await upstream.close()


async def _wait_for_health(upstream: Upstream, endpoint: Endpoint, path: str, progress: Progress) -> None:
    pause_ms = float(limits.HEALTH_POLL_MS_MIN)
    while True:
        try:
            outgoing = Outgoing(endpoint, "GET", path, headers=PROBE_HEADERS)
            reply = await upstream.fetch(outgoing, timeout_ms=limits.HEALTH_MS_MAX)
            if reply.status == 200:
                return
            progress.text = f"{path} still answered with status {reply.status}"
        except UpstreamFailed as failure:
            progress.text = f"{path} on port {endpoint.port} could not be asked: {failure}"
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(pause_ms * 1.2, limits.HEALTH_POLL_MS_MAX)


async def _probe(
    upstream: Upstream, endpoint: Endpoint, kind: str, headers: Mapping[str, str], timeout_ms: int
) -> None:
    path, fields, wanted = _QUESTIONS[kind]
    body = msgspec.json.encode({"model": endpoint.upstream_model, **fields})
    outgoing = Outgoing(endpoint, "POST", path, body, headers)
    try:
        reply = await upstream.fetch(
            outgoing, timeout_ms=timeout_ms, limit_bytes=limits.PROBE_ANSWER_BYTES_MAX
        )
    except UpstreamFailed as failure:
        raise LoadError(f"says it is healthy, but failed the {kind} probe: {failure}") from failure
    if reply.status != 200 or not _has(reply.body, wanted):
        shown = reply.body[: limits.LOG_LINE_CHARS_MAX].decode("utf-8", "replace")
        raise LoadError(f"answered the {kind} probe with status {reply.status}: {shown}")


def _has(answer: bytes, wanted: str) -> bool:
    try:
        found = cast("object", msgspec.json.decode(answer))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(found, dict) and bool(cast("dict[str, object]", found).get(wanted))
