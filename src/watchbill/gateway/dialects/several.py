"""Several runs that make one answer: more prompts than one, or more choices than the engine makes at once.

An engine is asked once for each prompt, and as often as its slots demand for the choices; the runs follow each other,
each in a turn of its own. Choices are numbered as if one run had made them, and tokens are added up: those of a prompt
once, however many choices it has. Does no I/O but through the stream to its client.
"""

from typing import NamedTuple, cast

from watchbill.engines.sse import DONE, EventReader
from watchbill.errors import RequestError, TheirsError
from watchbill.gateway.answers import engine_error
from watchbill.gateway.dialects.completion_out import CompletionOut
from watchbill.gateway.http.messages import Stream
from watchbill.gateway.limits import COMPLETION_RUNS_MAX
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.typed import count_of, is_count
from watchbill.gateway.wire import NO_STREAM, decode_fields, event

__all__ = ["Run", "SeveralOut", "merged", "runs_of"]

Fields = dict[str, object]


class Run(NamedTuple):
    """One question to the engine."""

    body: Fields
    first_index: int  # of its first choice in the answer
    is_new: bool  # its prompt was not counted before


def runs_of(body: Fields, places: int | None) -> list[Run]:
    """The runs of a request; one where the engine can do it at once. `places`: how many choices the engine makes at
    once; None: as many as it is asked for. Raises RequestError for more than are done for one request."""
    prompts, count = _prompts(body.get("prompt")), _count(body)
    most = count if places is None else max(1, places)
    parts = [min(most, count - begin) for begin in range(0, count, most)]
    if len(prompts) * len(parts) == 1:
        return [Run(body, 0, True)]
    if len(prompts) * len(parts) > COMPLETION_RUNS_MAX:
        raise RequestError(f"prompts and choices would take more than {COMPLETION_RUNS_MAX} runs; send fewer")
    runs: list[Run] = []
    index = 0
    for prompt in prompts:
        for place, part in enumerate(parts):
            asked = body if prompt is None else {**body, "prompt": prompt}
            runs.append(Run({**asked, "n": part} if "n" in body else asked, index, place == 0))
            index += part
    return runs


def _count(body: Fields) -> int:
    count = body.get("n")
    return int(count) if isinstance(count, int | float) and count > 1 else 1


def _prompts(prompt: object) -> list[object]:
    """The prompts of a request. A list of numbers, or of numbers and texts, is one prompt of tokens.

    Raises RequestError for a list that is no prompt: engines fail at it, which looks like a fault of theirs."""
    if not isinstance(prompt, list):
        return [None]
    listed = cast("list[object]", prompt)
    inner = [cast("list[object]", each) for each in listed if isinstance(each, list)]
    if not all(map(_is_prompt, inner)) or not (inner or _is_prompt(listed)):
        raise RequestError("prompt must be a text, a list of tokens, or a list of these; none may be empty")
    if len(inner) + sum(isinstance(each, str) for each in listed) == len(listed) > 1:
        return listed
    if inner and len(listed) > 1:
        raise RequestError("a list of prompts has texts and lists of tokens, and no single tokens")
    return [None]


def _is_prompt(parts: list[object]) -> bool:
    """Whether these are tokens and texts; some engines take objects, with images."""
    return bool(parts) and all(is_count(part) or isinstance(part, str | dict) for part in parts)


def merged(answers: list[tuple[Run, Fields]]) -> Fields:
    """The answers of all runs as one."""
    choices: list[Fields] = []
    usage: Fields = {}
    for run, answer in answers:
        choices += _numbered(answer, run)
        usage = _added(usage, answer.get("usage"), run)
    whole = {**answers[0][1], "choices": choices}
    whole.pop("timings", None)  # of one run
    return {**whole, "usage": usage} if usage else whole


def _numbered(answer: Fields, run: Run) -> list[Fields]:
    found = answer.get("choices")
    listed = cast("list[Fields]", found) if isinstance(found, list) else []
    return [{**choice, "index": run.first_index + count_of(choice.get("index"))} for choice in listed]


def _added(usage: Fields, told: object, run: Run) -> Fields:
    """Tokens of one more run. Those of a prompt count once."""
    if not isinstance(told, dict):
        return usage
    fields = cast("Fields", told)
    if not run.is_new:
        fields = {name: value for name, value in fields.items() if not name.startswith("prompt_")}
    summed = {**usage, **{name: _sum(usage.get(name), value) for name, value in fields.items()}}
    if "total_tokens" in summed:
        summed["total_tokens"] = count_of(summed.get("prompt_tokens")) + count_of(
            summed.get("completion_tokens")
        )
    return summed


def _sum(before: object, value: object) -> object:
    if isinstance(value, dict):
        inner = cast("Fields", before) if isinstance(before, dict) else {}
        return {name: _sum(inner.get(name), each) for name, each in cast("Fields", value).items()}
    return count_of(before) + count_of(value) if isinstance(value, int) else value


class SeveralOut(CompletionOut):
    """One stream of the streams of all runs. Each event is written anew, under one id and with its choice's number."""

    def __init__(self, context: RequestContext, *, chat: bool) -> None:
        super().__init__(context, chat=chat)
        self._reader = EventReader()
        self._run: Run | None = None
        self._is_last = False
        self._head: Fields = {}  # what all events of the stream share
        self._usage: Fields = {}
        self.has_failed = False

    def begin(self, run: Run, *, is_last: bool) -> None:
        """The next run comes."""
        self._run, self._is_last, self._reader = run, is_last, EventReader()

    async def write(self, piece: bytes) -> None:
        """Takes a piece of this run's stream. Raises what the engine says went wrong."""
        told = [self._event(payload) for payload in self._reader.feed(piece) if payload != DONE]
        await self.send(b"".join(told))

    def _event(self, payload: bytes) -> bytes:
        fields, run = decode_fields(payload, NO_STREAM), self._run
        assert run is not None
        if "error" in fields:
            raise engine_error(502, fields)
        self._head = self._head or {
            name: fields[name] for name in ("id", "object", "created", "model") if name in fields
        }
        usage = fields.pop("usage", None)
        self._usage = _added(self._usage, usage, run)
        choices = _numbered(fields, run)
        return event({**fields, **self._head, "choices": choices}) if choices else b""

    async def flush(self) -> None:
        """This run has ended; the last one ends the stream."""
        if self._is_last:
            used = event({**self._head, "choices": [], "usage": self._usage}) if self._usage else b""
            await self.send(used + b"data: [DONE]\n\n")

    async def fail(self, error: TheirsError) -> None:
        self.has_failed = True
        await super().fail(error)

    async def end(self) -> Stream:
        return await (super().end() if self._is_last or self.has_failed else self.open())
