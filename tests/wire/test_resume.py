"""Answers in several parts: what is asked, what is passed on, and when there is nothing to go on from (RES-12)."""

import asyncio
import itertools
import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eventually import eventually
from support.open_gateway import CATALOG, RawAnswer, open_gateway
from support.peer import Asked, chat_events, sse, stream_of
from watchbill.catalog import Lane, WorkClass
from watchbill.engines.base import Endpoint
from watchbill.engines.connection import Outgoing
from watchbill.gateway.limits import RESUME_TOKENS_MAX
from watchbill.gateway.resume import Resumption

CHAT = {"model": "a", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 50}
NOWHERE = Endpoint("127.0.0.1", 1, continues=True)


def outgoing(body: dict, path: str = "/v1/chat/completions") -> Outgoing:
    return Outgoing(NOWHERE, "POST", path, json.dumps(body).encode())


def asked_of(resume: Resumption, body: dict, path: str = "/v1/chat/completions") -> dict:
    return json.loads(resume.ask(outgoing(body, path)).body)


def said(text: str) -> bytes:
    return sse(
        {
            "id": "x",
            "created": 5,
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        }
    )


def begun(*texts: str, body: dict = CHAT, path: str = "/v1/chat/completions") -> Resumption:
    """An answer that has come so far."""
    resume = Resumption("a", set())
    resume.ask(outgoing(body, path))
    for text in texts:
        assert resume.hear(said(text)) == said(text)
    return resume


def test_the_rest_of_a_chat_is_asked_for_with_its_beginning() -> None:
    """RES-12: prompt and text so far are kept to continue from, and what was used of a limit is taken off."""
    resume = begun("One ", "two.")
    assert resume.go_on()
    body = asked_of(resume, CHAT)
    assert body["messages"] == [*CHAT["messages"], {"role": "assistant", "content": "One two."}]
    assert body["max_tokens"] == 48


def test_the_rest_of_a_completion_is_asked_for_behind_its_prompt() -> None:
    """RES-12: every engine can do that."""
    body = {"model": "a", "prompt": "Count: ", "stream": True, "n_predict": 9}
    resume = Resumption("a", {"a"})
    resume.ask(outgoing(body, "/v1/completions"))
    resume.hear(sse({"id": "x", "choices": [{"index": 0, "text": "one, ", "finish_reason": None}]}))
    assert resume.go_on()
    assert asked_of(resume, body, "/v1/completions") == {**body, "prompt": "Count: one, ", "n_predict": 8}


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{}]}, {"response_format": {"type": "json_object"}}, {"grammar": "root ::= x"}, {"logprobs": True},
        {"stop": ["x"]}, {"n": 2}, {"stream": False}, {"messages": []}, {"messages": "hi"},
        {"messages": [{"role": "assistant", "content": "My name is"}]},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_more_than_plain_text_begins_anew(more: dict) -> None:
    """RES-12: a grammar would begin again, a tool call cannot be half made."""
    resume = Resumption("a", set())
    body = {**CHAT, **more}
    resume.ask(outgoing(body))
    resume.hear(said("One."))
    resume.wind_up()
    assert not resume.is_at_boundary
    assert not resume.go_on()
    assert asked_of(resume, body) == body


@pytest.mark.parametrize("delta", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}], ids=str)
def test_an_answer_that_turns_out_to_be_more_is_not_continued(delta: dict) -> None:
    """RES-12: it is not seen from the request alone."""
    resume = begun("One.")
    resume.hear(sse({"id": "x", "choices": [{"index": 0, "delta": delta}]}))
    resume.wind_up()
    assert not resume.is_at_boundary
    assert resume.hear(b"data: hal") == b"data: hal", "from now on everything passes as it comes"


def test_an_answer_stops_at_a_sentence_or_after_some_tokens() -> None:
    """RES-12: the next sentence end, at most 64 tokens further."""
    resume = begun("One ", "two.", " Three")
    assert not resume.is_at_boundary, "nobody asked for it"
    resume.wind_up()
    assert not resume.is_at_boundary
    resume.hear(said(' four." '))
    assert resume.is_at_boundary
    endless = begun("and ")
    endless.wind_up()
    for _ in range(RESUME_TOKENS_MAX - 1):
        endless.hear(said("so on "))
        assert not endless.is_at_boundary
    endless.hear(said("so on "))
    assert endless.is_at_boundary


def test_a_finished_answer_has_nothing_to_continue() -> None:
    """RES-12: its last words may well be a sentence."""
    resume = begun("One.")
    resume.hear(sse({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    resume.wind_up()
    assert not resume.is_at_boundary


def test_an_answer_that_has_all_its_tokens_gets_only_its_end() -> None:
    """RES-12, RES-23: its lender died between the last token and the word of its end. An engine can only be asked for
    one more token, which its caller did not ask for."""
    short = {**CHAT, "max_tokens": 2, "stream_options": {"include_usage": True}}
    resume = begun("One ", "two.", body=short)
    resume.wind_up()
    assert not resume.is_at_boundary, "there is no rest to go on with"
    assert resume.go_on()
    assert asked_of(resume, short)["max_tokens"] == 1
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    heard = resume.hear(
        said("Three")
        + sse({"id": "y", "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        + sse({"id": "y", "choices": [], "usage": usage})
        + b"data: [DONE]\n\n"
    )
    assert b"Three" not in heard and b'"length"' in heard and heard.endswith(b"data: [DONE]\n\n")
    assert b'"completion_tokens":2' in heard
    assert resume.tokens == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_last_token_of_a_whole_answer_may_come_with_its_end(path: str) -> None:
    """RES-12: the token goes, the end stays."""
    is_chat = path.endswith("chat/completions")
    body = {**CHAT, "max_tokens": 1} if is_chat else {"prompt": "1", "stream": True, "max_tokens": 1}

    def event(text: str, end: str | None) -> bytes:
        words = {"delta": {"content": text}} if is_chat else {"text": text}
        return sse({"id": "x", "choices": [{"index": 0, **words, "finish_reason": end}]})

    resume = Resumption("a", set())
    resume.ask(outgoing(body, path))
    resume.hear(event("One", None))
    assert resume.go_on()
    resume.ask(outgoing(body, path))
    heard = resume.hear(event("Two", "length"))
    assert b"Two" not in heard and b'"length"' in heard


@given(st.lists(st.integers(0, 400), max_size=6), st.sampled_from([b"\n", b"\r\n"]))
def test_a_later_part_is_the_same_however_it_is_split(places: list[int], newline: bytes) -> None:
    """RES-12: the second part goes under the first one's id, without a second role, with the usage of both."""
    resume = begun("One ", "two. ")
    assert resume.go_on()
    resume.ask(outgoing(CHAT))
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    part = (
        sse(
            {
                "id": "y",
                "created": 9,
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}],
            },
            {
                "id": "y",
                "created": 9,
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Three."}}],
            },
            {"id": "y", "created": 9, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"id": "y", "created": 9, "choices": [], "usage": usage},
        )
        + b"data: [DONE]\n\n"
    )
    part = part.replace(b"\n", newline)
    cuts = sorted({0, len(part), *(place for place in places if place < len(part))})
    heard = b"".join(resume.hear(part[a:b]) for a, b in itertools.pairwise(cuts)) + resume.rest()
    *events, done = [line.removeprefix(b"data: ") for line in heard.split(b"\n\n") if line]
    assert done == b"[DONE]"
    told = [json.loads(event) for event in events]
    assert {(event["id"], event["created"]) for event in told} == {("x", 5)}
    assert [choice["delta"] for event in told for choice in event["choices"]] == [{"content": "Three."}, {}]
    assert told[-1]["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


async def test_an_engine_that_refuses_to_continue_is_asked_for_the_whole_answer() -> None:
    """RES-12: the caller has seen nothing; it gets a whole answer, and no half of two."""
    batch = Lane("batch", work_class=WorkClass.BACKGROUND, queue_max=16)
    catalog = replace(CATALOG, lanes={**CATALOG.lanes, "batch": batch})

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.json["messages"][-1]["role"] == "assistant":
            writer.write(b"HTTP/1.1 400 -\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        elif len(opened.peer.asked) == 1:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head + b"%x\r\n%b\r\n" % (len(said("Half ")), said("Half ")))
            await writer.drain()
            writer.close()
        else:
            await stream_of(sse(*chat_events("a whole one")))(asked, writer)

    async with open_gateway(talk, catalog=catalog) as opened:
        opened.engine.endpoint = replace(opened.peer.endpoint, continues=True)
        body = {"model": "a", "messages": CHAT["messages"]}
        answer = await opened.ask("/v1/chat/completions", body, headers={"X-Watchbill-Lane": "batch"})
        assert answer.status == 200
        assert answer.json["choices"][0]["message"]["content"] == "a whole one"
        assert [asked.json["messages"][-1]["role"] for asked in opened.peer.asked] == [
            "user",
            "assistant",
            "user",
        ]
        assert opened.outcomes() == {"ok": 1}
        opened.peer.asked.clear()
        again = await opened.ask("/v1/chat/completions", body, headers={"X-Watchbill-Lane": "batch"})
        assert again.json["choices"][0]["message"]["content"] == "a whole one"
        roles = [asked.json["messages"][-1]["role"] for asked in opened.peer.asked]
        assert roles == ["user", "user"], "it is remembered, and not tried again"


@pytest.mark.parametrize(
    ("more", "delta"),
    [
        ({"response_format": {"type": "json_object"}}, {"content": "{"}),
        ({}, {"reasoning_content": "Let me think."}),
    ],
    ids=["a grammar", "thoughts"],
)
async def test_a_person_gets_the_place_of_an_answer_that_can_be_continued(
    more: dict[str, object], delta: dict[str, object]
) -> None:
    """LANE-02, RES-12: the first of two background answers runs to its end, and the scheduler knows it: the second
    makes way. The person waited for the end of the first."""
    batch = Lane("batch", work_class=WorkClass.BACKGROUND, queue_max=16)
    model = replace(CATALOG.models["a"], concurrency=2)
    catalog = replace(CATALOG, lanes={**CATALOG.lanes, "batch": batch}, models={"a": model})
    done = asyncio.Event()

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        name = asked.json["messages"][0]["content"]
        if name == "person":
            await stream_of(sse(*chat_events("hello")))(asked, writer)
            return
        event = sse({"choices": [{"index": 0, "delta": delta}]}) if name == "long" else said("Half. ")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        with suppress(ConnectionError):
            while not done.is_set() and not writer.is_closing():
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()

    def ask(name: str, headers: dict[str, str], **more: object) -> "asyncio.Task[RawAnswer]":
        body = {"model": "a", "messages": [{"role": "user", "content": name}], "stream": True, **more}
        return asyncio.create_task(opened.ask("/v1/chat/completions", body, headers=headers))

    def begun_ones() -> list[str]:
        running = opened.driver._core.state.models["a"].running
        return [name for name, each in running.items() if each.begun]

    async with open_gateway(talk, catalog=catalog) as opened:
        opened.engine.endpoint = replace(opened.peer.endpoint, continues=True)
        others: list[asyncio.Task[RawAnswer]] = []
        for name, extra in (("long", more), ("short", {})):
            others.append(ask(name, {"X-Watchbill-Lane": "batch"}, **extra))
            await eventually(lambda: len(begun_ones()) == len(others))
        person = await asyncio.wait_for(ask("person", {}), 10)
        assert person.status == 200 and b"hello" in person.body
        assert not others[0].done()
        done.set()
        await asyncio.gather(*others)
