"""Ollama's own API, as much of it as the driver needs: what is loaded, load, unload.

Answers become small records; whatever cannot be read counts as a failure of Ollama, not as an empty answer: "nothing
is loaded" is what a death looks like. Asks nothing by itself and remembers nothing.
"""

from datetime import datetime

import msgspec

from watchbill.engines import limits
from watchbill.engines.base import Endpoint
from watchbill.engines.upstream import FailureKind, Outgoing, Reply, Upstream, UpstreamFailed
from watchbill.processes import limits as processes_limits
from watchbill.quoting import on_one_line

__all__ = ["NO_LIMIT", "Loaded", "OllamaApi", "OllamaSaid", "full_name"]

#: `keep_alive`: a negative number has Ollama keep the model until it is told to unload it.
NO_LIMIT = -1


class Loaded(msgspec.Struct, frozen=True):
    """One model of /api/ps."""

    name: str
    size: int = 0
    size_vram: int = 0
    expires_at: datetime | None = None


class OllamaSaid(Exception):
    """Ollama answered with an error; its own words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Models(msgspec.Struct):
    models: list[Loaded]


class _Error(msgspec.Struct):
    error: str = ""


def full_name(name: str) -> str:
    """The name as Ollama lists it: `foo` is `foo:latest`, and case does not matter."""
    tagged = name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"
    return tagged.casefold()


class OllamaApi:
    """One Ollama server. Every method raises UpstreamFailed when it does not answer, OllamaSaid when it refuses."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._upstream = Upstream()

    async def loaded(self) -> dict[str, Loaded]:
        """What is in its memory, or on the way into it, by full name."""
        reply = await self._ask("GET", "/api/ps", None, limits.OLLAMA_ASK_MS)
        try:
            models = msgspec.json.decode(reply.body, type=_Models).models
        except msgspec.DecodeError as error:
            raise UpstreamFailed(
                FailureKind.GARBLED, f"/api/ps cannot be read: {error}", received=True
            ) from error
        return {full_name(model.name): model for model in models}

    async def load(self, name: str, keep_alive: int | str, *, embedding: bool, timeout_ms: int) -> None:
        """Loads a model and returns when it is there; a loaded one only gets another time to live."""
        fields: dict[str, object] = {"model": name, "keep_alive": keep_alive}
        if embedding:  # a model that only embeds refuses to generate, even nothing
            await self._ask("POST", "/api/embed", fields | {"input": "Hi"}, timeout_ms)
        else:
            await self._ask("POST", "/api/generate", fields | {"stream": False}, timeout_ms)

    async def unload(self, name: str) -> None:
        """Tells Ollama to unload a model; it does so when the model's last answer has ended."""
        fields: dict[str, object] = {"model": name, "keep_alive": 0, "stream": False}
        await self._ask("POST", "/api/generate", fields, limits.OLLAMA_ASK_MS)

    async def close(self) -> None:
        """Ends every connection."""
        await self._upstream.close()

    async def _ask(self, method: str, path: str, fields: dict[str, object] | None, timeout_ms: int) -> Reply:
        body = b"" if fields is None else msgspec.json.encode(fields)
        reply = await self._upstream.fetch(
            Outgoing(self._endpoint, method, path, body),
            timeout_ms=timeout_ms,
            limit_bytes=limits.OLLAMA_ANSWER_BYTES_MAX,
        )
        if reply.status != 200:
            raise OllamaSaid(reply.status, _words(reply.body))
        return reply


def _words(body: bytes) -> str:
    try:
        said = msgspec.json.decode(body, type=_Error).error
    except msgspec.DecodeError:
        said = body.decode("utf-8", "replace")
    return on_one_line(said, processes_limits.LOG_LINE_CHARS_MAX)
