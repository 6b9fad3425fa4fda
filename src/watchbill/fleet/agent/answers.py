"""Answers: the questions of tasks (`questions`) as requests to the host daemon.

Every question is a request in the lane `plans`, so chat stays ahead of it. It is streamed: an agent that stops asking
leaves, and the engine stops with it. A question whose engine failed is asked once more; one that was refused is not.

`parse` and `decide` want a JSON object, and the engine is asked to allow no other answer (`response_format`). An engine
that refuses that, or fails with it, is asked without. The first object in the answer counts, whatever stands around it.
Where it does not match the schema, or there is none, the model is told so and asked once more. Then the task has
failed, and its error output has what the model said.

An answer that was cut off is none: the context of the model was full, or the answer would not end. Only a text that the
plan itself bounds (`max_tokens`) ends there.
"""

import json
from collections.abc import Callable, Mapping
from typing import cast

from watchbill.catalog import PLANS_LANE
from watchbill.engines.base import endpoint_of
from watchbill.engines.engine_calls import ChatText, ask_chat
from watchbill.engines.upstream import Deadlines, Outgoing, Upstream, UpstreamFailed
from watchbill.errors import EngineFailed, TheirsError
from watchbill.fleet import limits
from watchbill.fleet.agent.questions import Message, Question
from watchbill.plans.task import TaskType
from watchbill.spool.schema import JsonSchema, Schema

__all__ = ["Answers", "NoAnswer", "first_object"]

_CHAT = "/v1/chat/completions"


class NoAnswer(TheirsError):
    """The model gave no usable answer."""


class Answers:
    """Asks the models behind one address of a daemon."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        on_bytes: Callable[[int], None] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        """`on_bytes` hears how many bytes came, signs of life before the answer included, `on_text` what is said."""
        self._endpoint = endpoint_of(url)
        self._headers = {"X-Watchbill-Lane": PLANS_LANE.name} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        # A request may wait for its model as long as its lane allows: the task's own time limit ends it sooner.
        wait_ms = PLANS_LANE.max_wait_ms + limits.ANSWER_SLACK_MS
        self._client = Upstream(Deadlines(first_byte_ms=wait_ms, silence_ms=wait_ms))
        self._on_bytes, self._on_text = on_bytes, on_text
        self._refuses_forms = False
        self.is_private = False  # whether the daemon has counted a question as private

    async def close(self) -> None:
        """Ends the idle connections."""
        await self._client.close()

    async def answer(self, question: Question) -> str:
        """The answer to a question as a text, of an object its JSON. Raises as `generate` and `parse` do."""
        if question.type is TaskType.GENERATE:
            return await self.generate(question)
        return json.dumps(await self.parse(question), ensure_ascii=False)

    async def generate(self, question: Question) -> str:
        """The model's text. Raises EngineFailed after the second failure, TheirsError when it is refused, and NoAnswer
        where it was cut off before the plan's own bound."""
        said = await self._ask(question, question.messages)
        if said.is_cut and not _reaches_own_bound(question, said):
            raise NoAnswer(f"{said.text}\n{_why_cut(question, said)}")
        return said.text

    async def parse(self, question: Question) -> dict[str, object]:
        """A JSON object that matches the schema. Raises NoAnswer when the second answer does not either."""
        schema = JsonSchema(question.schema, "the schema of the task") if question.schema else None
        said = await self._ask(question, question.messages)
        found, wrong = _judged(said.text, schema)
        if found is None and said.is_cut:
            raise NoAnswer(f"{said.text}\nthe model gave no usable JSON object: {_why_cut(question, said)}")
        earlier = ""
        if found is None:
            earlier = f"the first answer: {said.text}\nwas not usable: {wrong}\nthe second answer: "
            repair = f"That is not usable: {wrong}. Answer with the corrected JSON object and nothing else."
            turns: list[Message] = [
                *question.messages, {"role": "assistant", "content": said.text}, {"role": "user", "content": repair},
            ]  # fmt: skip
            said = await self._ask(question, turns)
            found, wrong = _judged(said.text, schema)
        if found is None:
            wrong = _why_cut(question, said) if said.is_cut else wrong
            raise NoAnswer(
                f"{earlier}{said.text}\nthe model gave no usable JSON object, also when asked again: {wrong}"
            )
        return found

    async def _ask(self, question: Question, messages: list[Message]) -> ChatText:
        """Asks, and once more where the engine failed, or did not take the form that the answer shall have."""
        form = {} if self._refuses_forms else _form(question)
        try:
            return await self._ask_once(question, messages, form)
        except (EngineFailed, UpstreamFailed):
            return await self._ask_once(question, messages, {})
        except TheirsError:
            if not form:
                raise
            self._refuses_forms = True
            return await self._ask_once(question, messages, {})

    async def _ask_once(
        self, question: Question, messages: list[Message], form: Mapping[str, object]
    ) -> ChatText:
        fields: dict[str, object] = {
            "messages": messages, "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": question.tokens_max or limits.ANSWER_TOKENS_MAX, **form,
        }  # fmt: skip
        if question.model:
            fields["model"] = question.model
        body = json.dumps(fields).encode("utf-8", "replace")
        headers = self._headers | ({"X-Watchbill-Private": "1"} if question.is_private else {})
        asked = Outgoing(self._endpoint, "POST", _CHAT, body, headers)
        said = await ask_chat(
            self._client,
            asked,
            chars_max=limits.ANSWER_CHARS_MAX,
            on_bytes=self._on_bytes,
            on_text=self._on_text,
        )
        self.is_private = self.is_private or said.is_private
        return said


def _reaches_own_bound(question: Question, said: ChatText) -> bool:
    """Whether an answer was cut off where the plan says so; an engine that does not count is believed."""
    return bool(question.tokens_max) and (said.tokens is None or said.tokens >= question.tokens_max)


def _why_cut(question: Question, said: ChatText) -> str:
    """Why an answer that was cut off is none, and what to do."""
    if _reaches_own_bound(question, said):
        return f"it was cut off at max_tokens {question.tokens_max}; raise it, or ask for less"
    if said.tokens is None or said.tokens >= limits.ANSWER_TOKENS_MAX:
        most = limits.ANSWER_TOKENS_MAX
        return f"the answer did not end within {most:,} tokens; ask for less, or bound it with max_tokens"
    return (
        f"the answer did not end: the context of the model was full after {said.tokens:,} tokens of it; "
        "ask for less, bound it with max_tokens, or give the model a larger context"
    )


def _form(question: Question) -> dict[str, object]:
    """The field of the request by which an engine allows only answers of this form."""
    if question.type is TaskType.GENERATE:
        return {}
    if not question.schema:
        return {"response_format": {"type": "json_object"}}
    schema = {"name": "answer", "schema": cast("object", json.loads(question.schema))}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _judged(said: str, schema: Schema | None) -> tuple[dict[str, object] | None, str]:
    """The object in an answer, or what is wrong with it."""
    found = first_object(said)
    if found is None:
        return None, "it holds no JSON object"
    wrong = schema.refuse(found) if schema is not None else None
    return (found, "") if wrong is None else (None, wrong)


def first_object(text: str) -> dict[str, object] | None:
    """The first JSON object in a text, whatever stands around it; None where there is none."""
    decoder, at = json.JSONDecoder(), -1
    for _ in range(limits.ANSWER_BRACES_MAX):
        at = text.find("{", at + 1)
        if at < 0:
            return None
        try:
            found, _ = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        return cast("dict[str, object]", found)
    return None
