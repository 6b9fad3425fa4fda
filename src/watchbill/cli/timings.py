"""The figures of one answer, as `ollama run --verbose` prints them.

The engine's own figures are taken where the stream has them. Those of other engines are measured here: from the first
piece of the answer to its last one.
"""

import time
from collections.abc import Callable, Mapping

from watchbill.cli.status import Fields, fields

__all__ = ["Timings"]

_LABEL_CHARS = 22


class Timings:
    """Collects the figures of one answer while it arrives."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = now()
        self._first: float | None = None
        self._last = self._begun
        self._headers: Mapping[str, str] = {}
        self._usage: Fields = {}
        self._engine: Fields = {}

    def take_headers(self, headers: Mapping[str, str]) -> None:
        """Takes the headers of the answer: they say how long the request waited, unless it waited very long."""
        self._headers = headers

    def take(self, chunk: Fields) -> None:
        """Takes what a chunk of the stream says of the answer's cost."""
        self._usage = fields(chunk.get("usage")) or self._usage
        self._engine = fields(chunk.get("timings")) or self._engine

    def count_piece(self) -> None:
        """A piece of the answer has arrived."""
        self._last = self._now()
        if self._first is None:
            self._first = self._last

    def lines(self) -> list[str]:
        """The figures, a line each, in Ollama's words; what is not known is left out."""
        total_ms = (self._now() - self._begun) * 1000
        wait_ms, load_ms = self._header("x-watchbill-wait-ms"), self._header("x-watchbill-load-ms")
        first_ms = None if self._first is None else (self._first - self._begun) * 1000
        prompt_ms = _number(self._engine.get("prompt_ms"))
        if prompt_ms is None and first_ms is not None and wait_ms is not None:
            prompt_ms = max(0.0, first_ms - wait_ms)
        eval_ms = _number(self._engine.get("predicted_ms"))
        if eval_ms is None and self._first is not None:
            eval_ms = (self._last - self._first) * 1000
        prompt = _number(self._usage.get("prompt_tokens"))
        # A rate is of the tokens that were computed; the others were still in the engine's cache.
        computed = _number(self._engine.get("prompt_n"))
        answered = _number(self._usage.get("completion_tokens"))
        rows = [("total duration", _span(total_ms))]
        rows += [("load duration", _span(load_ms))] if load_ms is not None else []
        if wait_ms is not None and wait_ms > (load_ms or 0):
            rows.append(("wait duration", f"{_span(wait_ms)} (with the load)"))
        rows += _part("prompt eval", prompt, prompt_ms, prompt if computed is None else computed)
        rows += _part("eval", answered, eval_ms, answered)
        return [f"{label + ':':<{_LABEL_CHARS}}{value}" for label, value in rows]

    def _header(self, name: str) -> float | None:
        return _number(self._headers.get(name))


def _part(what: str, count: float | None, ms: float | None, of_rate: float | None) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if count is not None:
        rows.append((f"{what} count", f"{count:.0f} token(s)"))
    if ms is not None:
        rows.append((f"{what} duration", _span(ms)))
        if of_rate and ms > 0:
            rows.append((f"{what} rate", f"{of_rate / ms * 1000:.2f} tokens/s"))
    return rows


def _number(value: object) -> float | None:
    """A figure of a header or of JSON; None for anything else."""
    try:
        return None if value is None or isinstance(value, bool) else float(str(value))
    except ValueError:
        return None


def _span(ms: float) -> str:
    return f"{ms / 1000:.3f}s" if ms >= 1000 else f"{ms:.1f}ms"
