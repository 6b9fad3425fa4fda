"""The peer engine: models of another Watchbill machine, which serves them under leases (RES-23).

A model is warm while this machine holds a lease for it there. A lease is asked for, renewed every 20 s, and given back
when the model has been idle here. Its time is counted by this machine's own clock, from before each question: the
other clock does not matter. A lease that could not be renewed in time, or that the peer does not know any more (it
was started anew), is gone, and the requests under it go back to their line.

A peer whose person is at work does not end the lease: the answers under it pause, and the connection shows signs of
life.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec

from watchbill.catalog import EngineRules
from watchbill.core.messages import Blame
from watchbill.decodable import json_decoder
from watchbill.engines import limits
from watchbill.engines.base import Capabilities, HostState, LoadError, Warm, endpoint_of
from watchbill.engines.foreign import ForeignHold, Gone
from watchbill.engines.upstream import Outgoing, Reply, Upstream, UpstreamFailed
from watchbill.errors import ConfigError

__all__ = ["PeerHost"]

_PATH = "/wb/v1/leases"
#: It does not know our key, or does not lend this model: a later question gets the same answer.
_FINAL_STATUSES = frozenset({401, 403, 404})
#: What an answer of no Watchbill machine raises when it is read.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: The name of a lease stands in a header and in addresses, as it was told.
_LeaseId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,100}\Z")]


class _Granted(msgspec.Struct):
    """What a peer answers to the question for a lease."""

    id: _LeaseId
    lasts_ms: int
    renew_ms: int
    continues: bool = False


_decode_granted = json_decoder(_Granted).decode


class _Held(msgspec.Struct):
    """A lease that this machine holds."""

    id: str
    lasts_ms: int
    renewed_at: float  # when the last question that was answered was asked


class PeerHost:
    """One peer, as far as it serves this machine."""

    capabilities = Capabilities(owned=True, measures_memory=False, stops_generation=True)
    leaves_remains = False  # what is left there ends by itself

    def __init__(self, rules: EngineRules) -> None:
        if rules.url is None:
            raise ConfigError(f"engine {rules.name!r}: a peer that is asked needs its url")
        self._name = rules.name.removeprefix("@")
        self._endpoint = replace(endpoint_of(rules.url), key=rules.key)
        self._upstream = Upstream()
        self._leases: dict[ForeignHold, _Held] = {}

    def show_key(self, key: str) -> None:
        """Its leases go on: the peer knows this machine by either key."""
        self._endpoint = replace(self._endpoint, key=key)

    @property
    def state(self) -> HostState:
        """Nothing is known of a peer but its leases."""
        return HostState()

    @property
    def is_awaited(self) -> bool:
        """Whether there is something to look after although nothing is warm: never."""
        return False

    @property
    def look_ms(self) -> int:
        """The time between two renewals."""
        return limits.LEASE_RENEW_MS

    async def bring_up(self, hold: ForeignHold) -> Warm:
        """Asks for a lease. Raises LoadError when there is none now."""
        there = hold.model.source or hold.model.name
        hold.progress.text = f"the peer {self._name} had not answered"
        asked_at = time.monotonic()
        reply = await self._ask("POST", _PATH, {"model": there})
        if reply.status in _FINAL_STATUSES:  # its config or ours is wrong: waiting does not mend that
            raise LoadError(f"the peer {self._name} gives no lease: {_said(reply)}", hopeless=True)
        if reply.status != 200:
            raise LoadError(f"the peer {self._name} gives no lease: {_said(reply)}", blame=Blame.HOST)
        try:
            granted = _decode_granted(reply.body)
        except _UNREADABLE as error:
            raise LoadError(
                f"the peer {self._name} is no Watchbill machine: {error}", hopeless=True
            ) from error
        self._leases[hold] = _Held(granted.id, granted.lasts_ms, asked_at)
        endpoint = replace(
            self._endpoint, upstream_model=there, lease=granted.id, continues=granted.continues
        )
        return Warm(endpoint, None, {})

    async def _ask(self, method: str, path: str, body: object = None) -> Reply:
        content = b"" if body is None else msgspec.json.encode(body)
        try:
            return await self._upstream.fetch(
                Outgoing(self._endpoint, method, path, content),
                timeout_ms=limits.PEER_ANSWER_MS,
                limit_bytes=limits.ERROR_BYTES_MAX,
            )
        except UpstreamFailed as failure:
            if failure.distrusted:  # waiting does not mend a certificate
                text = f"the peer {self._name} is not trusted: {failure}"
                raise LoadError(text, hopeless=True) from failure
            raise LoadError(
                f"the peer {self._name} does not answer: {failure}", blame=Blame.HOST
            ) from failure

    async def blame_for_delay(self, hold: ForeignHold) -> Blame:
        """The peer's: a model is not at fault."""
        return Blame.HOST

    async def undo(self, hold: ForeignHold) -> None:
        """Gives a lease back that came too late."""
        await self.take_down(hold)

    async def take_down(self, hold: ForeignHold) -> None:
        """Gives the lease back. A peer that does not answer sweeps it by itself."""
        held = self._leases.pop(hold, None)
        if held is not None:
            try:
                await self._ask("DELETE", f"{_PATH}/{held.id}")
            except LoadError:
                return

    async def look(self, holds: list[ForeignHold]) -> Mapping[str, Gone]:
        """Renews every lease, all at the same time."""
        reasons = await asyncio.gather(*map(self._renew, holds))
        return {
            hold.model.name: Gone(reason, Blame.HOST)
            for hold, reason in zip(holds, reasons, strict=True)
            if reason is not None
        }

    async def _renew(self, hold: ForeignHold) -> str | None:
        """Renews a lease. Returns why it is gone, if it is."""
        held = self._leases.get(hold)
        if held is None:
            return None  # it is being given back
        asked_at = time.monotonic()
        try:
            reply = await self._ask("POST", f"{_PATH}/{held.id}/renew")
        except LoadError as error:
            cause = error.__cause__
            is_away = isinstance(cause, UpstreamFailed) and cause.is_unheard
            is_over = (time.monotonic() - held.renewed_at) * 1000 >= held.lasts_ms
            return str(error) if is_away or is_over else None
        if reply.status == 200:
            held.renewed_at = asked_at
            return None
        return f"the peer {self._name} ended the lease: {_said(reply)}"

    async def close(self) -> None:
        """Ends every connection."""
        await self._upstream.close()


class _Error(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)


_decode_refusal = json_decoder(_Refusal).decode


def _said(reply: Reply) -> str:
    """What the peer answered, in its words."""
    try:
        text = _decode_refusal(reply.body).error.message
    except _UNREADABLE:
        text = ""
    return text or f"it answered {reply.status}"
