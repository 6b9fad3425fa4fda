"""Tasks that ask a model: through a real gateway, in the lane of plans, against an engine that misbehaves."""

import asyncio
import json

import pytest

from support.open_gateway import open_gateway
from support.peer import Asked, Talk, chat_events, sse, stream_of
from watchbill.errors import EngineFailed, TheirsError
from watchbill.fleet.agent.answers import Answers, NoAnswer, first_object
from watchbill.fleet.agent.questions import Question, decision
from watchbill.plans.task import TaskType

SCHEMA = json.dumps(
    {"type": "object", "required": ["score"], "properties": {"score": {"type": "integer", "maximum": 5}}}
)


def saying(*texts: str) -> Talk:
    """An engine that gives these answers, one after the other, and then the last one again."""
    answers, asked = [stream_of(sse(*chat_events(text))) for text in texts], iter(range(1_000))

    async def talk(question: Asked, writer: asyncio.StreamWriter) -> None:
        await answers[min(next(asked), len(answers) - 1)](question, writer)

    return talk


async def test_a_text_is_generated_in_the_lane_of_plans() -> None:
    """PLAN-08, FLEET-10: chat stays ahead, because the request is of class normal."""
    async with open_gateway(saying("two sentences")) as gateway:
        answers = Answers(gateway.url)
        try:
            assert await answers.generate(Question("a", "Summarize.", "Be brief.")) == "two sentences"
        finally:
            await answers.close()
        assert 'lane="plans"' in gateway.driver.metrics.render().decode()


async def test_a_question_that_waits_shows_progress_before_its_answer_begins() -> None:
    """FLEET-07: the daemon's signs of life are heard, so a long wait in the lane is not taken for a stuck task."""
    may_answer, heard = asyncio.Event(), asyncio.Event()

    async def talk(question: Asked, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        await stream_of(sse(*chat_events("at last")))(question, writer)

    async with open_gateway(talk) as gateway:
        answers = Answers(gateway.url, on_bytes=lambda _: heard.set())
        try:
            asking = asyncio.ensure_future(answers.generate(Question("a", "Summarize.")))
            await asyncio.wait_for(heard.wait(), 60)
            assert not asking.done()
            may_answer.set()
            assert await asking == "at last"
        finally:
            may_answer.set()
            await answers.close()


async def test_the_first_object_of_an_answer_counts_whatever_stands_around_it() -> None:
    """PLAN-02: models talk before and after the JSON that they were asked for."""
    said = 'Sure {not json}: ```json\n{"score": 4, "why": "a {brace}"}\n``` and {"score": 1}'
    async with open_gateway(saying(said)) as gateway:
        answers = Answers(gateway.url)
        try:
            assert await answers.parse(Question("a", "Rate.", schema=SCHEMA)) == {
                "score": 4,
                "why": "a {brace}",
            }
        finally:
            await answers.close()


async def test_an_answer_that_does_not_match_its_schema_is_repaired_once() -> None:
    """PLAN-02: the model is told what is wrong; what is still wrong then is a failure that says why."""
    async with open_gateway(saying('{"score": 9}', '{"score": 5}')) as gateway:
        answers = Answers(gateway.url)
        try:
            assert await answers.parse(Question("a", "Rate.", schema=SCHEMA)) == {"score": 5}
        finally:
            await answers.close()
    async with open_gateway(saying("none", '{"score": "high"}')) as gateway:
        answers = Answers(gateway.url)
        try:
            with pytest.raises(NoAnswer, match="score"):
                await answers.parse(Question("a", "Rate.", schema=SCHEMA))
        finally:
            await answers.close()


async def test_a_decision_has_a_reason() -> None:
    """PLAN-08: an object with the decision and why, in whatever words around it."""
    async with open_gateway(
        saying("Hm.", '{"decision": "retry", "reason": "it was the network"}')
    ) as gateway:
        answers = Answers(gateway.url)
        try:
            made = json.loads(await answers.answer(decision("a", "What now?")))
        finally:
            await answers.close()
        assert made == {"decision": "retry", "reason": "it was the network"}
        assert len(gateway.peer.asked) == 2


async def test_a_question_is_asked_once_more_where_the_engine_failed_and_not_where_it_was_refused() -> None:
    """FLEET-10: one transparent retry."""
    cut = stream_of(sse(*chat_events("half"))[:200], end=False)
    async with open_gateway(cut) as gateway:
        answers = Answers(gateway.url)
        try:
            with pytest.raises(EngineFailed):
                await answers.generate(Question("a", "Go."))
            with pytest.raises(TheirsError, match="404"):
                await answers.generate(Question("nobody", "Go."))
        finally:
            await answers.close()
        assert len(gateway.peer.asked) == 2


async def test_the_form_of_an_answer_is_asked_for_and_left_out_where_the_engine_refuses_it() -> None:
    """PLAN-08: what the engine allows alone need not be repaired; an engine without that is asked as before."""
    answer = stream_of(sse(*chat_events('{"score": 4}')))

    async def talk(question: Asked, writer: asyncio.StreamWriter) -> None:
        if b"response_format" in question.body:
            told = b'{"error": {"message": "response_format is not supported"}}'
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(told), told))
        else:
            await answer(question, writer)

    for engine in (answer, talk):
        async with open_gateway(engine) as gateway:
            answers = Answers(gateway.url)
            try:
                assert await answers.parse(Question("a", "Rate.", "", SCHEMA, TaskType.PARSE)) == {"score": 4}
            finally:
                await answers.close()
            first, *rest = (json.loads(each.body) for each in gateway.peer.asked)
            assert first["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA)
            assert ["response_format" in each for each in rest] == ([False] if engine is talk else [])


def test_no_object_is_found_in_a_text_without_one() -> None:
    assert first_object("[1, 2] and {no") is None
    assert first_object("{" * 100_000) is None


def cut_off(text: str, tokens: int) -> Talk:
    """An engine whose answer ends before its end, after so many tokens."""
    begun = chat_events(text, usage=False)[:-2]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
    return stream_of(sse(*begun, last, usage, "[DONE]"))


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (Question("a", "Go."), "the context of the model was full after 40 tokens"),
        (Question("a", "Go.", tokens_max=50), "the context of the model was full after 40 tokens"),
        (Question("a", "Go.", tokens_max=40), None),
        (Question("a", "Go.", "", SCHEMA, TaskType.PARSE, 40), "cut off at max_tokens 40"),
        (Question("a", "Go.", "", SCHEMA, TaskType.PARSE), "the context of the model was full"),
    ],
)
async def test_an_answer_that_was_cut_off_is_a_failure_unless_the_plan_bounds_it(
    question: Question, why: str | None
) -> None:
    """PLAN-02, PLAN-08: half an answer is none; only a text that the plan itself bounds ends there."""
    async with open_gateway(cut_off("once upon", 40)) as gateway:
        answers = Answers(gateway.url)
        try:
            if why is None:
                assert await answers.answer(question) == "once upon"
            else:
                with pytest.raises(NoAnswer, match=why) as caught:
                    await answers.answer(question)
                assert "once upon" in str(caught.value)  # what it said is kept
        finally:
            await answers.close()
        asked = [json.loads(each.body)["max_tokens"] for each in gateway.peer.asked]
        assert asked == [question.tokens_max or 8_192]
