"""Readiness: whether a model is warm. Asks its engine for its health, then for one real answer.

Health alone proves nothing: there are engines that say 200 and never answer. A model counts as warm when its probe was
answered, too: `chat` (one token), `embed` (one vector), `http` (health is all there is) or `none` (nothing is asked).
"""

import asyncio
import time
from collections.abc import Mapping

from watchbill.engines import limits
from watchbill.engines.base import Endpoint, LoadError, Warm
from watchbill.engines.engine_calls import Proving, prove, prove_whole
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed
from watchbill.errors import EngineFailed

__all__ = ["Progress", "ask_again", "can_be_asked", "check_health", "is_there", "warm_up"]

#: Tells the scripted engine that this is part of a load, not a request.
_PROBE_HEADERS = {"X-Watchbill-Probe": "1"}
#: The probes that a model answers itself.
_PROVING: Mapping[str, Proving] = {"chat": "chat", "embed": "embed"}
#: What mends a probe that failed, by the engine's words.
_HINTS = (
    (
        "Pooling type 'none'",
        '; its file does not say how one vector is made of those of all tokens: add arguments = ["--pooling", "mean"], '
        "or cls, or last, as the model's author says",
    ),
)


class Progress:
    """How far a load has come, for the message of one that runs out of time, and how long it usually takes."""

    def __init__(self, text: str = "", expected_ms: int | None = None) -> None:
        self.text = text
        self.expected_ms = expected_ms
        self.is_silent = False  # nothing answered when it was asked last
        self.began = time.monotonic()

    def pause_ms(self) -> float:
        """When to ask again whether it is ready.

        Often in the first second and around the time that its loads usually take. Otherwise the less often the
        longer it has taken: a fiftieth of a load's time does not matter, and an engine that reads its file should not
        be disturbed."""
        took = (time.monotonic() - self.began) * 1000
        if took < limits.HEALTH_POLL_OFTEN_MS:
            return limits.HEALTH_POLL_MS_MIN
        pause = min(
            max(took * limits.HEALTH_POLL_SHARE, limits.HEALTH_POLL_MS_MIN), limits.HEALTH_POLL_MS_MAX
        )
        if self.expected_ms is None:
            return pause
        early = self.expected_ms * (1 - limits.HEALTH_POLL_AROUND) - limits.HEALTH_POLL_OFTEN_MS
        late = self.expected_ms * (1 + limits.HEALTH_POLL_AROUND) + limits.HEALTH_POLL_OFTEN_MS
        if took > late:
            return pause
        return max(limits.HEALTH_POLL_MS_MIN, min(pause, early - took))


async def warm_up(endpoint: Endpoint, health: str, probe: str, progress: Progress) -> None:
    """Returns when the engine is warm; waits as long as it takes. Raises LoadError when the probe fails."""
    if probe == "none":
        return
    upstream = Upstream()
    try:
        await _wait_for_health(upstream, endpoint, health, progress)
        if probe in _PROVING:
            progress.text = "it said it was healthy, but had not answered the probe"
            await _prove(upstream, endpoint, _PROVING[probe], _PROBE_HEADERS)
    finally:
        await upstream.close()  # an idle connection would hold one of the engine's threads


def can_be_asked(warm: Warm) -> bool:
    """Whether a warm model can prove itself once more.

    Health is no proof: an engine that hangs says 200, too. A good answer would save hung models from their reset, and
    a bad one only confirms what their failed answers have shown."""
    return warm.probe in _PROVING


async def ask_again(warm: Warm) -> None:
    """Asks a warm model for a whole short answer, as its callers do. Raises LoadError without one."""
    upstream, kind = Upstream(), _PROVING[warm.probe]
    try:
        await prove_whole(upstream, warm.endpoint, kind)
    except EngineFailed as failure:
        raise LoadError(f"failed the {kind} probe: {failure}") from failure
    finally:
        await upstream.close()


async def is_there(warm: Warm) -> None:
    """Asks a warm model that has no other proof for its health. Raises LoadError when it does not answer."""
    if warm.probe != "http" or not warm.health:
        return
    upstream, progress = Upstream(), Progress()
    try:
        async with asyncio.timeout(limits.PROBE_MS_MAX / 1000):
            await _wait_for_health(upstream, warm.endpoint, warm.health, progress)
    except TimeoutError:
        raise LoadError(progress.text) from None
    finally:
        await upstream.close()


async def check_health(upstream: Upstream, endpoint: Endpoint, path: str) -> int:
    """Asks for an engine's health once. Returns the status; 200 means healthy. Raises UpstreamFailed."""
    outgoing = Outgoing(endpoint, "GET", path, headers=_PROBE_HEADERS)
    return (await upstream.fetch(outgoing, timeout_ms=limits.HEALTH_MS_MAX)).status


async def _wait_for_health(upstream: Upstream, endpoint: Endpoint, path: str, progress: Progress) -> None:
    while True:
        try:
            status = await check_health(upstream, endpoint, path)
            progress.is_silent = False
            if status == 200:
                return
            progress.text = f"{path} still answered with status {status}"
        except UpstreamFailed as failure:
            progress.is_silent = True
            progress.text = f"nothing answers {path} on port {endpoint.port} ({failure})"
        await asyncio.sleep(progress.pause_ms() / 1000)


async def _prove(upstream: Upstream, endpoint: Endpoint, kind: Proving, headers: Mapping[str, str]) -> None:
    try:
        await prove(upstream, endpoint, kind, headers)
    except UpstreamFailed as failure:
        raise LoadError(f"says it is healthy, but failed the {kind} probe: {failure}") from failure
    except EngineFailed as failure:
        hint = next((hint for words, hint in _HINTS if words in str(failure)), "")
        raise LoadError(f"failed the {kind} probe: {failure}{hint}") from failure
