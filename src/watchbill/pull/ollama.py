"""Ollama: asks an Ollama server to fetch a model into its own store, and passes its progress on."""

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from watchbill.blocking_http import connect, reason_of
from watchbill.errors import NameRefused, PullFailed
from watchbill.names import header_text
from watchbill.pull import limits
from watchbill.pull.landing import Progress, Pulled

__all__ = ["pull"]


class Step(msgspec.Struct):
    """One line of Ollama's progress."""

    status: str = ""
    error: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0


def pull(model: str, url: str, progress: Progress) -> Pulled:
    """Returns when Ollama says `success`. Raises PullFailed with what it says instead, or when it is not there."""
    layers: dict[str, Step] = {}
    grown = False
    for step in _steps(model, url):
        if step.error:
            raise PullFailed(f"Ollama cannot pull {model}: {header_text(step.error)}")
        if step.status == "success":
            return Pulled(None, sum(layer.total for layer in layers.values()), fetched=grown)
        if step.digest:
            grown = grown or (step.digest in layers and step.completed > layers[step.digest].completed)
            layers[step.digest] = step
            done = sum(layer.completed for layer in layers.values())
            progress(done, sum(layer.total for layer in layers.values()))
    raise PullFailed(f"Ollama broke off while it pulled {model}; the same command goes on from there")


def _steps(model: str, url: str) -> Iterator[Step]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise NameRefused(
            f"{header_text(url)!r} is not the address of an Ollama server, as http://127.0.0.1:11434"
        )
    connection = connect(parts.hostname, parts.port, timeout_s=limits.PULL_SILENCE_S)
    try:
        body = msgspec.json.encode({"model": model, "stream": True})
        connection.request("POST", "/api/pull", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while line := answer.readline(limits.PULL_LINE_BYTES_MAX):
            yield msgspec.json.decode(line, type=Step)
        if answer.status != http.HTTPStatus.OK:
            raise PullFailed(f"Ollama at {header_text(url)} answers {answer.status}")
    except (ConnectionError, TimeoutError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise PullFailed(
            f"Ollama at {header_text(url)} does not answer as one: {reason_of(error)}; is it running?"
        ) from error
    finally:
        connection.close()
