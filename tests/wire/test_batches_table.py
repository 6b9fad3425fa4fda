"""The tables of docs/batches.md: complete by OpenAI's and Anthropic's own clients, and true of a running gateway."""

import json
import typing
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from anthropic.types.beta.messages import batch_create_params as message_batch_params
from anthropic.types.messages import MessageBatch
from openai.types import Batch, batch_create_params, file_create_params

from support.documented import assert_documented, literals, rows_of, working
from support.eventually import eventually
from support.open_gateway import OpenGateway, RawAnswer
from watchbill.gateway.dialects.batches.treatment import (
    BATCH,
    BATCH_FIELDS,
    ENDPOINTS,
    FILE_FIELDS,
    MESSAGE_BATCH,
    MESSAGE_BATCH_FIELDS,
    PURPOSES,
)
from wire.test_door_batches import ended, jsonl, line, served

PAGE = "batches.md"
TABLES: dict[str, Mapping[str, str]] = {
    "Fields of an upload": FILE_FIELDS,
    "Purposes": PURPOSES,
    "Fields of POST /v1/batches": BATCH_FIELDS,
    "Endpoints": ENDPOINTS,
    "Fields of a batch": BATCH,
    "Fields of POST /v1/messages/batches": MESSAGE_BATCH_FIELDS,
    "Fields of a message batch": MESSAGE_BATCH,
}
HOUR = {"anchor": "created_at", "seconds": 3600}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
}
#: A body that is wrong for each field of a new batch, by which it is seen to be heeded.
WRONG: dict[str, object] = {
    "input_file_id": "file-none", "endpoint": "/v1/odd", "completion_window": "1s", "metadata": {"a": 1},
    "output_expires_after": {"anchor": "created_at", "seconds": 1},
}  # fmt: skip
MESSAGE = {"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
REQUESTS = [{"custom_id": "one", "params": MESSAGE}]


@pytest.mark.parametrize("title", TABLES)
def test_the_page_says_what_the_code_does_with_each(title: str) -> None:
    """LANE-01: nothing is silently ignored; the table is in the docs. What does not work has its reason."""
    assert_documented(PAGE, title, TABLES[title])


def test_the_tables_have_everything_that_the_clients_know() -> None:
    """Compared with the types of OpenAI's and Anthropic's own clients."""
    asked = typing.get_type_hints(batch_create_params.BatchCreateParams)
    assert set(BATCH_FIELDS) == set(asked) and set(ENDPOINTS) == literals(asked["endpoint"])
    upload = typing.get_type_hints(file_create_params.FileCreateParams)
    assert set(FILE_FIELDS) == set(upload) and set(PURPOSES) == literals(upload["purpose"])
    assert set(BATCH) == set(Batch.model_fields) and set(MESSAGE_BATCH) == set(MessageBatch.model_fields)
    assert set(MESSAGE_BATCH_FIELDS) == set(typing.get_type_hints(message_batch_params.BatchCreateParams))


async def upload(opened: OpenGateway, content: bytes, **fields: str) -> RawAnswer:
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in fields.items()
    ]
    head = '--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + content + b"\r\n--b--\r\n"
    return await opened.ask("/v1/files", body, headers={"Content-Type": "multipart/form-data; boundary=b"})


async def test_every_row_of_an_upload_is_true() -> None:
    """LANE-01: the content, what it is for, and how long it stays; other purposes and fields are refused by name."""
    async with served() as (opened, client):
        fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        told = (await upload(opened, b"{}\n", purpose="batch", **fields)).json
        assert told["expires_at"] == told["created_at"] + 3600
        assert (await client.files.content(str(told["id"]))).content == b"{}\n"
        for purpose, (what, _) in rows_of(PAGE, "Purposes").items():
            answer = await upload(opened, b"{}\n", purpose=purpose)
            assert answer.status == (200 if what == "works" else 400), purpose
            assert (answer.json["purpose"] if what == "works" else purpose) == purpose
        refused = await upload(opened, b"{}\n", purpose="batch", odd="x")
        assert refused.status == 400 and b"odd" in refused.body


async def test_every_row_of_a_new_batch_is_true() -> None:
    """LANE-01: each field is told or has its effect, and a wrong value of it is refused; so is an unknown field."""
    async with served() as (opened, client):
        file = await client.files.create(file=("in.jsonl", jsonl([line("one")])), purpose="batch")
        body: dict[str, Any] = {
            "input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "2h",
            "metadata": {"a": "b"}, "output_expires_after": HOUR,
        }  # fmt: skip
        assert working(PAGE, "Fields of POST /v1/batches") == set(body) == set(WRONG)
        made = (await opened.ask("/v1/batches", body)).json
        assert {name: made.get(name) for name in body if name in made} == {
            name: value for name, value in body.items() if name != "output_expires_after"
        }
        assert made["expires_at"] == made["created_at"] + 7200
        batch = await ended(client, str(made["id"]))
        output = await client.files.retrieve(str(batch.output_file_id))
        assert output.expires_at == output.created_at + 3600
        for name, value in WRONG.items():
            refused = await opened.ask("/v1/batches", {**body, name: value})
            assert refused.status in (400, 404), name
            assert name in refused.body.decode() or str(value) in refused.body.decode()
        refused = await opened.ask("/v1/batches", {**body, "odd": 1, "null": None})
        assert refused.status == 400 and b"'odd'" in refused.body and b"'null'" not in refused.body


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_every_endpoint_is_as_its_row_says(path: str) -> None:
    """LANE-01: a line is answered there, or the batch is refused."""
    async with served() as (opened, client):
        content = jsonl([{**line("one", url=path), "body": {"model": "a", **BODIES.get(path, {})}}])
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        asked = {"input_file_id": file.id, "endpoint": path, "completion_window": "24h"}
        made = await opened.ask("/v1/batches", asked)
        if path in working(PAGE, "Endpoints"):
            batch = await ended(client, str(made.json["id"]))
            assert batch.request_counts is not None and batch.request_counts.completed == 1
        else:
            assert made.status == 400 and b"endpoint must be one of" in made.body


async def test_every_row_of_a_batch_is_true() -> None:
    """LANE-01: what works is told by batches that end in each way, what is ignored never is."""
    told: set[str] = set()
    ends: list[tuple[object, ...]] = []
    async with served() as (opened, client):

        async def follow(content: bytes, *, cancel: bool = False) -> None:
            file = await client.files.create(file=("in.jsonl", content), purpose="batch")
            asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            made = (await opened.ask("/v1/batches", {**asked, "metadata": {"a": "b"}})).json
            if cancel:
                await eventually(lambda: opened.batches.view()["running"] == 1)
                await opened.ask(f"/v1/batches/{made['id']}/cancel", {})
            await ended(client, str(made["id"]))
            last = (await opened.ask(f"/v1/batches/{made['id']}")).json
            told.update(name for name, value in last.items() if value is not None)
            ends.append((last["status"], last["model"], (last["usage"] or {}).get("total_tokens")))
            assert set(last) == working(PAGE, "Fields of a batch")

        await follow(jsonl([line("one"), line("two", "bad"), line("three")]))
        await follow(b"no json\n")
        opened.engine.gate.clear()
        await follow(jsonl([line("one", model="b/with:slash")]), cancel=True)
        opened.engine.gate.set()
    assert ends == [("completed", "a", 12), ("failed", None, None), ("cancelled", "b/with:slash", 0)]
    assert told | {"expired_at"} == working(PAGE, "Fields of a batch")  # an own test lets a window close


async def test_every_row_of_a_message_batch_is_true() -> None:
    """LANE-01: the same of Anthropic's; a field that nobody heeds is refused."""
    async with served() as (opened, _client):
        ignored = {name: "x" for name, (what, _) in rows_of(PAGE, "Fields of POST /v1/messages/batches").items()
                   if what == "ignored"}  # fmt: skip
        made = await opened.ask("/v1/messages/batches", {"requests": REQUESTS, **ignored})
        assert made.status == 200 and set(made.json) == working(PAGE, "Fields of a message batch")
        opened.engine.gate.clear()
        cancelled = (await opened.ask("/v1/messages/batches", {"requests": REQUESTS})).json
        last = (await opened.ask(f"/v1/messages/batches/{cancelled['id']}/cancel", {})).json
        opened.engine.gate.set()
        assert last["cancel_initiated_at"] is not None and last["results_url"] is None
        refused = await opened.ask("/v1/messages/batches", {"requests": REQUESTS, "odd": [1]})
        assert (refused.status, refused.json["error"]["type"]) == (400, "invalid_request_error")
        assert "'odd'" in refused.json["error"]["message"]


async def test_the_clients_send_no_field_that_is_refused() -> None:
    """LANE-01: OpenAI's client with every argument it has."""
    async with served() as (_opened, client):
        file = await client.files.create(
            file=("in.jsonl", jsonl([line("one")])), purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )  # fmt: skip
        made = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        )  # fmt: skip
        assert isinstance(made, openai.types.Batch) and json.dumps(made.metadata) == '{"a": "b"}'
