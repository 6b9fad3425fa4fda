"""Durable stasis: responses that were asked for in the background outlive the daemon that was asked (RES-12)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, HELLO, open_gateway
from support.peer import Asked, EnginePeer, Talk, chat_events, sse, stream_of
from support.responses import until
from support.small_disk import free_up, leave_files, small_disks
from watchbill.catalog import ApiKey, Server
from watchbill.engines.base import Endpoint
from watchbill.gateway.dialects.responses import api
from watchbill.spool import Spool, stats

#: The first words of an answer that goes on for ever.
BEGUN = sse(*chat_events("One two three")[:3])


@contextlib.asynccontextmanager
async def daemon(
    root: Path, talk: Talk = HELLO, *, server: Server | None = None, key: str = "x"
) -> AsyncGenerator[Any]:
    """One life of a daemon."""
    async with (
        open_gateway(talk, root=root, server=server, catalog=CATALOG) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield opened, client


async def endless(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"%x\r\n%b\r\n" % (len(BEGUN), BEGUN))
    await writer.drain()
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is of an answer is written down without delay, and the engine continues answers."""
    monkeypatch.setattr(api, "RESPONSE_NOTED_MS", 20)
    going_on = property(lambda self: Endpoint("127.0.0.1", self.port, continues=True))
    monkeypatch.setattr(EnginePeer, "endpoint", going_on)


def is_noted(root: Path) -> bool:
    """Whether the first words are on disk."""
    files = (root / "stasis" / "queue-in-flight").rglob("*.jsonl")
    with contextlib.suppress(FileNotFoundError):  # it was replaced meanwhile
        return any(json.loads(file.read_bytes()).get("said") == "One two " for file in files)
    return False


def waiting(root: Path) -> int:
    with Spool(root / "stasis") as spool:
        return stats(spool).queue


async def test_a_response_that_waits_is_made_by_the_next_daemon(tmp_path: Path) -> None:
    """RES-12: its model was still loading. It keeps its id, its lane and its input, and is asked for once."""
    async with daemon(tmp_path) as (opened, client):
        opened.engine.gate.clear()
        made = await client.responses.create(
            model="a",
            input="hi",
            background=True,
            metadata={"k": "v"},
            extra_headers={"X-Watchbill-Lane": "tiny"},
        )
        assert made.status == "queued"
    assert waiting(tmp_path) == 1
    async with daemon(tmp_path) as (opened, client):
        done = await until(client, made.id, "completed")
        assert (done.output_text, done.metadata, done.background) == ("hello there", {"k": "v"}, True)
        assert [item.id for item in (await client.responses.input_items.list(made.id)).data]
        await opened.until_idle()
        assert len(opened.peer.asked) == 1
        assert not opened.gateway.is_busy
    assert waiting(tmp_path) == 0
    assert list((tmp_path / "stasis").rglob("*.jsonl")) == [], "what was said is not left behind"
    assert (tmp_path / "stasis").stat().st_mode & 0o077 == 0


async def test_an_answer_that_comes_at_once_is_accepted(tmp_path: Path) -> None:
    """RES-12: the answer was there before the request was on the disk, and its caller was told that the disk refuses
    it."""
    async with daemon(tmp_path) as (opened, client):
        for _ in range(20):
            made = await client.responses.create(model="a", input="hi", background=True)
            assert (await until(client, made.id, "completed")).output_text == "hello there"
        assert len(opened.peer.asked) == 20
    assert waiting(tmp_path) == 0
    async with daemon(tmp_path) as (opened, client):
        assert (await client.responses.retrieve(made.id)).output_text == "hello there"
        assert opened.peer.asked == []


async def test_an_answer_goes_on_from_the_words_that_the_last_daemon_had(tmp_path: Path) -> None:
    """RES-12: the text so far is on disk; the engine continues it, and the caller sees one answer."""
    async with daemon(tmp_path, endless) as (_, client):
        made = await client.responses.create(model="a", input="hi", background=True)
        await eventually(lambda: is_noted(tmp_path))
    async with daemon(tmp_path, stream_of(sse(*chat_events("three four")))) as (opened, client):
        done = await until(client, made.id, "completed")
        assert done.output_text == "One two three four"
        [asked] = opened.peer.asked
        assert asked.json["messages"][-1] == {"role": "assistant", "content": "One two "}


async def test_the_words_are_written_down_while_it_grows(tmp_path: Path) -> None:
    """RES-12: for a daemon that is killed and cannot say anything at its end."""
    async with daemon(tmp_path, endless) as (_, client):
        made = await client.responses.create(model="a", input="hi", background=True)
        await eventually(lambda: is_noted(tmp_path))
        await client.responses.cancel(made.id)
    assert waiting(tmp_path) == 0, "what was cancelled is not made again"


async def test_an_engine_that_does_not_go_on_begins_anew(tmp_path: Path) -> None:
    """RES-12: a chat template that refuses an answer to continue costs the text so far, not the response."""
    async with daemon(tmp_path, endless) as (_, client):
        made = await client.responses.create(model="a", input="hi", background=True)
        await eventually(lambda: is_noted(tmp_path))

    async def picky(asked: Asked, writer: asyncio.StreamWriter) -> None:
        messages = asked.json["messages"]
        assert isinstance(messages, list)
        if messages[-1]["role"] == "assistant":
            error = b'{"error":{"message":"the last message must be of the user"}}'
            return await stream_of(error, content_type="application/json", status=400)(asked, writer)
        return await HELLO(asked, writer)

    async with daemon(tmp_path, picky) as (_, client):
        assert (await until(client, made.id, "completed")).output_text == "hello there"


async def test_a_response_whose_key_is_gone_is_not_made(tmp_path: Path) -> None:
    """RES-12: what was asked for under a key that is not valid any more is nobody's work; another key never sees it."""
    keys = tuple(ApiKey(name, name) for name in ("ann", "bob"))
    async with daemon(tmp_path, server=Server(keys=keys), key="ann") as (opened, client):
        opened.engine.gate.clear()
        made = await client.responses.create(model="a", input="hi", background=True)
    async with daemon(tmp_path, server=Server(keys=keys[1:]), key="bob") as (opened, client):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        assert opened.peer.asked == []
    assert waiting(tmp_path) == 0


async def test_a_response_of_a_time_without_keys_is_made_once_there_are_some(tmp_path: Path) -> None:
    """RES-12, P1: it was accepted; a key with admin rights finds it and goes on from it, another key does not."""
    async with daemon(tmp_path) as (opened, client):
        opened.engine.gate.clear()
        made = await client.responses.create(model="a", input="hi", background=True)
    keys = (ApiKey("ann", "ann", admin=True), ApiKey("bob", "bob"))
    async with daemon(tmp_path, server=Server(keys=keys), key="ann") as (opened, client):
        assert (await until(client, made.id, "completed")).output_text == "hello there"
        again = await client.responses.create(model="a", input="and?", previous_response_id=made.id)
        assert again.status == "completed"
        with pytest.raises(openai.NotFoundError):
            await client.with_options(api_key="bob").responses.retrieve(made.id)
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_a_response_can_be_cancelled_before_the_next_daemon_makes_it(tmp_path: Path) -> None:
    """RES-12: it is known at once, as queued, and ends like any other."""
    async with daemon(tmp_path) as (opened, client):
        opened.engine.gate.clear()
        made = await client.responses.create(model="a", input="hi", background=True)
    async with daemon(tmp_path) as (opened, client):
        opened.engine.gate.clear()
        assert (await client.responses.retrieve(made.id)).status in ("queued", "completed")
        assert (await client.responses.cancel(made.id)).status in ("cancelled", "completed")
    assert waiting(tmp_path) == 0


async def test_a_response_that_could_not_outlive_the_daemon_is_refused(tmp_path: Path) -> None:
    """RES-12, R42: the disk does not take the request: 507, and nothing is made that a restart would lose."""
    (tmp_path / "stasis").write_text("a file in the folder's place")
    async with daemon(tmp_path, endless) as (opened, client):
        with pytest.raises(openai.InternalServerError) as refused:
            await client.responses.create(model="a", input="hi", background=True)
        assert (refused.value.status_code, refused.value.code) == (507, "disk_failed")
        await opened.until_idle()
        assert not opened.gateway.is_busy
    assert list((tmp_path / "responses").rglob("*.json")) == []


@contextlib.contextmanager
def in_the_way_of(folder: Path) -> Generator[None]:
    """A file in the folder's place: the disk refuses whatever goes there."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    yield
    folder.unlink()
    aside.rename(folder)


def records(root: Path) -> Path:
    """Where the responses of a daemon without keys are kept."""
    [folder] = (root / "responses").iterdir()
    return folder


async def test_a_response_whose_record_the_disk_refuses_is_not_accepted(tmp_path: Path) -> None:
    """RES-12, P1: the next daemon takes a request without a record for a response that was deleted, so a request alone
    is no promise: 507, and nothing is made."""
    async with daemon(tmp_path, endless) as (opened, client):
        first = await client.responses.create(model="a", input="hi", background=True)
        await client.responses.cancel(first.id)
        with in_the_way_of(records(tmp_path)):
            with pytest.raises(openai.InternalServerError) as refused:
                await client.responses.create(model="a", input="hi", background=True)
            assert (refused.value.status_code, refused.value.code) == (507, "disk_failed")
            await opened.until_idle()
            assert not opened.gateway.is_busy
    assert waiting(tmp_path) == 0


async def test_a_disk_that_refuses_at_the_start_only_delays_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-12, P7: what an earlier daemon was asked for waits until the disk tells it, and is not failed meanwhile."""
    monkeypatch.setattr(api, "RESPONSE_AGAIN_MS", 20)
    async with daemon(tmp_path) as (opened, client):
        opened.engine.gate.clear()
        made = await client.responses.create(model="a", input="hi", background=True)
    with contextlib.ExitStack() as closing:
        closing.enter_context(in_the_way_of(tmp_path / "stasis" / "queue-in-flight"))
        async with daemon(tmp_path) as (opened, client):
            assert (await client.responses.retrieve(made.id)).status == "queued"
            with pytest.raises(openai.InternalServerError) as refused:
                await client.responses.cancel(made.id)
            assert (refused.value.status_code, refused.value.code) == (507, "disk_failed")
            assert opened.peer.asked == []
            closing.close()
            assert (await until(client, made.id, "completed")).output_text == "hello there"
            await opened.until_idle()
    assert waiting(tmp_path) == 0


async def test_what_only_a_log_holds_because_the_disk_is_full_is_waited_for(tmp_path: Path) -> None:
    """RES-12, P1: the disk took the request into the log and not as a file. The next daemon found room for its own
    folders and not for that file, took what it saw for all that there is, and the response was failed."""
    with small_disks(tmp_path) as mount:
        disk = mount("size=20M,nr_inodes=200")
        root = disk / "root"
        async with daemon(root) as (opened, client):
            opened.engine.gate.clear()
            first = await client.responses.create(model="a", input="hi", background=True)
            leave_files(disk, 1)  # for its record
            made = await client.responses.create(model="a", input="hi", background=True)
            assert not any(made.id in file.read_text() for file in (root / "stasis").rglob("*~*.jsonl"))
        for room in range(16):
            free_up(disk)
            leave_files(disk, room)
            async with daemon(root, endless) as (_, client):
                told = await client.responses.retrieve(made.id)
                assert told.status in ("queued", "in_progress"), (room, told.error)
        free_up(disk)
        async with daemon(root) as (opened, client):
            for id in (first.id, made.id):
                await until(client, id, "completed")
            # Each leaves once its record is on the disk, which is tried now and then.
            await eventually(lambda: waiting(root) == 0)
