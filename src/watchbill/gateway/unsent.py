"""Requests that no client sends now: lines of batches, and work that an earlier daemon was asked for."""

import asyncio
from collections.abc import Callable, Mapping

from watchbill.catalog import ApiKey
from watchbill.errors import AuthenticationFailed
from watchbill.gateway.http.messages import Request
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.services import Services

__all__ = ["key_of", "unsent"]


def unsent(url: str, body: bytes, headers: Mapping[str, str]) -> RequestContext:
    """The context of a request with this body. Nothing can be written to its client."""
    request = Request(_NoClient(), "POST", url, "1.1", dict(headers), False)
    request.pieces, request.is_whole = [body], True
    context = RequestContext(request, asyncio.get_running_loop().time())
    context.is_detached = True
    return context


def key_of(services: Services, owner: str, what: str) -> ApiKey | None:
    """The key that work belongs to; None for work of a time without keys, which was accepted from everybody. Raises
    AuthenticationFailed when the key is not valid any more."""
    if not owner:
        return None
    for key in services.server.keys:
        if key.name == owner:
            return key
    raise AuthenticationFailed(f"the key that this {what} belongs to is not in the config any more")


class _NoClient:
    """The connection of a request that no client sent. Nothing is ever written to it."""

    transport: asyncio.Transport | None = None

    @property
    def remote(self) -> str:
        return "batch"

    def has_left(self) -> bool:
        return False

    async def wait_for_body(self, request: Request, /) -> None:
        raise AssertionError("the body of an unsent request is whole")

    async def send(self, content: bytes, /) -> None:
        raise ConnectionResetError("an unsent request has no client")

    def hand_over(self, hear: Callable[[bytes], bool], /) -> None:
        raise AssertionError("an unsent request is no websocket")

    def go_on(self) -> None:
        raise AssertionError("an unsent request is no websocket")
