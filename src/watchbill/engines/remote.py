"""Shared engines: servers that others run and that we only route to.

Knows an address and nothing else. Never loads, unloads, stops or probes anything by itself: a model of a shared engine
is where the config says. A server that does not answer fails the request that was sent to it, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import replace

from watchbill.catalog import EngineRules, Model
from watchbill.engines import limits
from watchbill.engines.base import Capabilities, LoadError, Warm, endpoint_of
from watchbill.engines.statuses import Said, said_by
from watchbill.engines.upstream import Outgoing, Upstream, UpstreamFailed
from watchbill.errors import ConfigError

__all__ = ["SharedEngine"]

#: What every server of this kind has.
_LIST = "/v1/models"


class SharedEngine:
    """The engine protocol for a server that is not ours to manage."""

    capabilities = Capabilities(owned=False, measures_memory=False, stops_generation=False)

    def __init__(self, rules: EngineRules, default_url: str | None = None) -> None:
        url = rules.url or default_url
        if url is None:
            raise ConfigError(f"engine {rules.name!r}: a shared engine needs its address: add url")
        endpoint_of(url)  # a wrong one is found now, not at the first request
        self._url, self._key = url, rules.key

    def route(self, model: Model) -> Warm:
        """Where the model answers. Asks nothing."""
        endpoint = endpoint_of(self._url, upstream_model=model.source or model.name)
        return Warm(replace(endpoint, key=self._key), None, {})

    async def load(self, model: Model, attempt: int, expected_ms: int | None = None) -> Warm:
        """Asks whether the server is there: any answer counts, and nothing is loaded. Raises LoadError."""
        warm = self.route(model)
        if model.probe == "none":
            return warm
        upstream = Upstream()
        try:
            outgoing = Outgoing(warm.endpoint, "GET", _LIST)
            reply = await upstream.fetch(outgoing, timeout_ms=limits.HEALTH_MS_MAX)
        except UpstreamFailed as failure:
            raise LoadError(f"no answer from {self._url}: {failure}") from failure
        finally:
            await upstream.close()
        if said_by(reply.status) is Said.FAILED:
            raise LoadError(f"{self._url} answered with status {reply.status}")
        return warm

    async def stop(self, model: str, *, hard: bool = False) -> None:
        """Does nothing: it is not ours."""

    def memory(self, model: str) -> Mapping[str, int]:
        """Nothing of ours."""
        return {}

    async def close(self) -> None:
        """Does nothing: it is not ours."""
