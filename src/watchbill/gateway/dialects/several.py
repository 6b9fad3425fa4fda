"""Several runs that make one answer: more prompts than one, or more choices than the engine makes at once.

Several choices of one run of llama.cpp are put together here as well, because it tells their tokens one by one, and so
are plain completions with log probabilities, which it tells as those of a chat.

An engine is asked once for each prompt, and as often as its slots demand for the choices; the runs follow each other,
each in a turn of its own. Choices are numbered as if one run had made them, and tokens are added up: those of a prompt
once, however many choices it has. Does no I/O but through the stream to its client.
"""

from typing import NamedTuple, cast

from watchbill.engines.sse import DONE, EventReader
from watchbill.errors import RequestError, TheirsError
from watchbill.gateway.answers import engine_error
from watchbill.gateway.dialects.completion_out import CompletionOut
from watchbill.gateway.dialects.text_logprobs import with_lists
from watchbill.gateway.http.messages import Stream
from watchbill.gateway.limits import COMPLETION_RUNS_MAX
from watchbill.gateway.request_context import RequestContext
from watchbill.gateway.typed import count_of, is_count
from watchbill.gateway.usage import UsageSum
from watchbill.gateway.wire import NO_STREAM, decode_fields, event

__all__ = ["Run", "SeveralOut", "choices_of", "merged", "runs_of"]

Fields = dict[str, object]


class Run(NamedTuple):
    """One question to the engine."""

    body: Fields
    first_index: int  # of its first choice in the answer
    is_new: bool  # its prompt was not counted before


def runs_of(body: Fields, places: int | None) -> list[Run]:
    """The runs of a request; one where the engine can do it at once. `places`: how many choices the engine makes at
    once; None: as many as it is asked for. Raises RequestError for more than are done for one request."""
    prompts, count = _prompts(body.get("prompt")), choices_of(body)
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


def choices_of(body: Fields) -> int:
    """How many choices are asked for."""
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
    usage = UsageSum()
    for run, answer in answers:
        choices += _numbered(answer, run, {})
        usage.begin(is_new=run.is_new)
        usage.take(answer.get("usage"))
    whole = {**answers[0][1], "choices": choices}
    whole.pop("timings", None)  # of one choice
    return {**whole, "usage": usage.total} if usage.total else whole


def _numbered(answer: Fields, run: Run, offsets: dict[int, int]) -> list[Fields]:
    """Choices under their number in the whole answer; `offsets` is how much each has said."""
    found = answer.get("choices")
    listed = cast("list[Fields]", found) if isinstance(found, list) else []
    numbered: list[Fields] = []
    for choice in listed:
        index = run.first_index + count_of(choice.get("index"))
        told, offsets[index] = with_lists({**choice, "index": index}, offsets.get(index, 0))
        numbered.append(told)
    return numbered


class SeveralOut(CompletionOut):
    """One stream of the streams of all runs. Each event is written anew, under one id and with its choice's number."""

    def __init__(self, context: RequestContext, *, chat: bool) -> None:
        super().__init__(context, chat=chat)
        self._reader = EventReader()
        self._run: Run | None = None
        self._is_last = False
        self._head: Fields = {}  # what all events of the stream share
        self._usage = UsageSum()
        self._offsets: dict[int, int] = {}
        self.has_failed = False

    def begin(self, run: Run, *, is_last: bool) -> None:
        """The next run comes."""
        self._run, self._is_last, self._reader = run, is_last, EventReader()
        self._usage.begin(is_new=run.is_new)

    async def write(self, piece: bytes) -> None:
        """Takes a piece of this run's stream. Raises what the engine says went wrong."""
        await self.send_each(self._event(payload) for payload in self._reader.feed(piece) if payload != DONE)

    def _event(self, payload: bytes) -> bytes:
        fields, run = decode_fields(payload, NO_STREAM), self._run
        assert run is not None
        if "error" in fields:
            raise engine_error(502, fields)
        self._head = self._head or {
            name: fields[name] for name in ("id", "object", "created", "model") if name in fields
        }
        choices = _numbered(fields, run, self._offsets)
        self._usage.take(fields.pop("usage", None), choices)
        return event({**fields, **self._head, "choices": choices}) if choices else b""

    async def flush(self) -> None:
        """This run has ended; the last one ends the stream."""
        if self._is_last:
            usage = self._usage.total
            used = event({**self._head, "choices": [], "usage": usage}) if usage else b""
            await self.send(used + b"data: [DONE]\n\n")

    async def fail(self, error: TheirsError) -> None:
        self.has_failed = True
        await super().fail(error)

    async def end(self) -> Stream:
        return await (super().end() if self._is_last or self.has_failed else self.open())
