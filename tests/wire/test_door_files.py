"""/v1/files, asked by OpenAI's own client: streamed to the disk, bounded, and each key's own."""

import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, open_gateway
from watchbill.batches.disk import DiskThread
from watchbill.batches.files import FileStore, StoredFile
from watchbill.catalog import ApiKey, BatchRules, Catalog, Server
from watchbill.errors import RequestError
from watchbill.gateway.form import Content, FormReader, PartHead
from watchbill.units import Bytes, Millis

KEYS = Server(keys=(ApiKey("alice", "alice-key"), ApiKey("bob", "bob-key")))
LINES = b'{"custom_id": "1"}\n' * 1000
SMALL = replace(
    CATALOG,
    batches=BatchRules(file_max=Bytes(4096), storage_max=Bytes(8192), disk_max=Bytes(10_000), files_max=3),
)


@asynccontextmanager
async def served(
    *, key: str = "x", server: Server | None = None, catalog: Catalog = CATALOG, root: Path | None = None
) -> AsyncIterator[tuple[OpenGateway, openai.AsyncOpenAI]]:
    async with (
        open_gateway(catalog=catalog, server=server, root=root) as opened,
        openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield opened, client


async def test_the_openai_client_uploads_lists_reads_and_deletes(tmp_path: Path) -> None:
    """LANE-01: the whole life of a file; on the disk only its owner can read it, and nothing is left of it."""
    async with served(root=tmp_path) as (_, client):
        made = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
        assert (made.object, made.purpose, made.bytes, made.filename) == (
            "file",
            "batch",
            len(LINES),
            "in.jsonl",
        )
        assert made.expires_at is not None and made.expires_at > made.created_at
        other = await client.files.create(
            file=("\u00fc\n.jsonl", b""),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert other.expires_at == other.created_at + 3600
        assert [file.id async for file in client.files.list()] == [other.id, made.id]
        assert [file.id async for file in client.files.list(order="asc", limit=1)] == [made.id, other.id]
        assert (await client.files.retrieve(made.id)).id == made.id
        assert (await client.files.content(made.id)).content == LINES
        kept = [path for path in (tmp_path / "batches").rglob("*") if path.is_file()]
        assert len(kept) == 4
        assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
        assert (await client.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(made.id)
        await client.files.delete(other.id)
        assert [path for path in (tmp_path / "batches").rglob("*") if path.is_file()] == []


async def test_a_file_belongs_to_the_key_that_uploaded_it() -> None:
    """LANE-01, R44: another key neither sees nor reads nor deletes it, and learns nothing from the attempt."""
    async with served(server=KEYS, key="alice-key") as (opened, alice):
        made = await alice.files.create(file=("in.jsonl", LINES), purpose="batch")
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="bob-key", max_retries=0) as bob:
            assert [file async for file in bob.files.list()] == []
            for forbidden in (bob.files.retrieve, bob.files.content, bob.files.delete):
                with pytest.raises(openai.NotFoundError):
                    await forbidden(made.id)
        assert (await alice.files.content(made.id)).content == LINES
        answer = await opened.ask("/v1/files")
        assert answer.status == 401


async def test_files_survive_a_restart_and_drafts_do_not(tmp_path: Path) -> None:
    """R57: what was acknowledged is there; what a dead daemon had half received, or half removed, is gone."""
    async with served(root=tmp_path) as (_, client):
        made = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
    folder = next((tmp_path / "batches").glob("*/files"))
    (folder / (".file-" + "0" * 32 + ".part")).write_bytes(b"half")
    (folder / ("file-" + "1" * 32 + ".data")).write_bytes(b"without a word about it")
    (folder / ("file-" + "2" * 32 + ".json")).write_bytes(b"damaged")
    (folder / ("file-" + "2" * 32 + ".data")).write_bytes(b"x")
    async with served(root=tmp_path) as (_, client):
        assert [file.id async for file in client.files.list()] == [made.id]
        assert (await client.files.content(made.id)).content == LINES
    left = {path.name[:8] for path in folder.iterdir()}
    assert left == {made.id[:8], "file-222"}  # what is damaged stays for a person to look at


async def test_a_client_that_leaves_leaves_no_draft(tmp_path: Path) -> None:
    """LANE-07, R41: half an upload takes neither room nor a place."""
    async with served(root=tmp_path) as (opened, _):
        _, writer = await opened.connect()
        head = (
            f"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1:{opened.serving.port}\r\nContent-Length: 100000\r\n"
        )
        writer.write(head.encode() + b"Content-Type: multipart/form-data; boundary=b\r\n\r\n")
        part = 'Content-Disposition: form-data; name="file"; filename="f"'
        writer.write(b"--b\r\n" + part.encode() + b"\r\n\r\n" + b"x" * 50_000)
        drafts = lambda: list((tmp_path / "batches").rglob("*.part"))  # noqa: E731
        await eventually(lambda: len(drafts()) == 1)
        writer.transport.abort()
        await eventually(lambda: drafts() == [])
        assert opened.batches.files.size == 0


async def test_every_bound_of_files_holds() -> None:
    """R42: a file, the files of a key, those of all keys, and their number; nothing of a refused one is counted."""
    async with served(catalog=SMALL, server=KEYS, key="alice-key") as (opened, alice):
        with pytest.raises(openai.APIStatusError) as refused:
            await alice.files.create(file=("in.jsonl", b"x" * 4097), purpose="batch")
        assert refused.value.status_code == 413 and "file_max" in str(refused.value)
        kept = [await alice.files.create(file=("in.jsonl", b"x" * 4000), purpose="batch") for _ in range(2)]
        with pytest.raises(openai.APIStatusError, match="storage_max"):
            await alice.files.create(file=("in.jsonl", b"x" * 200), purpose="batch")
        async with openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key="bob-key", max_retries=0) as bob:
            with pytest.raises(openai.APIStatusError) as full:
                await bob.files.create(file=("in.jsonl", b"x" * 2001), purpose="batch")
            assert full.value.status_code == 507 and "disk_max" in str(full.value)
            await bob.files.create(file=("in.jsonl", b"x" * 2000), purpose="batch")
        await alice.files.delete(kept[0].id)
        await alice.files.create(file=("in.jsonl", b""), purpose="batch")
        await alice.files.create(file=("in.jsonl", b""), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="files_max"):
            await alice.files.create(file=("in.jsonl", b""), purpose="batch")
        assert opened.batches.files.size == 6000


def form(*parts: tuple[str, bytes], end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n%b\r\n\r\n%b\r\n" % (head.encode(), content) for head, content in parts) + end


FILE = 'Content-Disposition: form-data; name="file"; filename="f.jsonl"'
PURPOSE = 'Content-Disposition: form-data; name="purpose"'
WRONG = {
    "no file": form((PURPOSE, b"batch")),
    "no purpose": form((FILE, b"x")),
    "another purpose": form((FILE, b"x"), (PURPOSE, b"fine-tune")),
    "two files": form((FILE, b"x"), (FILE, b"y"), (PURPOSE, b"batch")),
    "two purposes": form((FILE, b"x"), (PURPOSE, b"batch"), (PURPOSE, b"batch")),
    "an unknown field": form((FILE, b"x"), (PURPOSE, b"batch"), (PURPOSE.replace("purpose", "p"), b"")),
    "no end": form((FILE, b"x"), (PURPOSE, b"batch"), end=b""),
    "another boundary": form((FILE, b"x"), (PURPOSE, b"batch")).replace(b"--b", b"--c"),
    "a tail": form((FILE, b"x"), (PURPOSE, b"batch"), end=b"--b--\r\nmore"),
    "a head without end": b"--b\r\n" + b"x" * 10_000,
    "many parts": form(*[(FILE.replace("file", f"f{number}"), b"") for number in range(70)]),
    "a long purpose": form((FILE, b"x"), (PURPOSE, b"b" * 70_000)),
    "a wrong term": form(
        (FILE, b"x"), (PURPOSE, b"batch"), (PURPOSE.replace("purpose", "expires_after[seconds]"), b"1")
    ),
    "nothing": b"",
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_form_that_is_no_upload_is_refused(wrong: str) -> None:
    """R42: 400 with the reason, and nothing is kept of it."""
    async with served() as (opened, _):
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = await opened.ask("/v1/files", WRONG[wrong], headers=headers)
        assert answer.status == 400, answer.body
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert (await opened.ask("/v1/files")).json["data"] == []
        assert opened.batches.files.size == 0


async def test_another_kind_of_body_and_other_queries_are_refused() -> None:
    """R42, R47: what cannot be understood is 4xx, never 500."""
    async with served() as (opened, _):
        assert (await opened.ask("/v1/files", {"purpose": "batch"})).status == 415
        for query in ("limit=0", "limit=x", "limit=99999999999999999999", "order=up"):
            assert (await opened.ask(f"/v1/files?{query}")).status == 400, query
        assert (await opened.ask("/v1/files?after=file-1")).status == 404
        for id in ("x", "..%2f..%2fetc", "file-" + "0" * 32, "%00"):
            assert (await opened.ask(f"/v1/files/{id}")).status == 404, id
            assert (await opened.ask(f"/v1/files/{id}/content")).status == 404, id


def read(pieces: list[bytes]) -> list[tuple[str, str, bytes]]:
    """The parts of a form that arrives in pieces."""
    reader, parts = FormReader("multipart/form-data; boundary=b"), list[tuple[str, str, bytes]]()
    for piece in pieces:
        for found in reader.feed(piece):
            if isinstance(found, PartHead):
                parts.append((found.name, found.filename, b""))
            else:
                assert isinstance(found, Content)
                parts[-1] = (*parts[-1][:2], parts[-1][2] + found.piece)
    reader.finish()
    return parts


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_a_line_end_before_the_first_boundary_of_an_upload_is_no_part_of_it(size: int) -> None:
    """LANE-01: in pieces of any size."""
    whole = b"\r\n--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\nx\r\n--b--\r\n"
    cut = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert read(cut) == [("file", "f", b"x")]
    for wrong in (b"\r\n", b"\n", b"x"):
        with pytest.raises(RequestError):
            read([wrong, *cut])


CONTENTS = st.lists(st.sampled_from([b"\r\n", b"--", b"--b", b"\r\n--", b"\r\n--a", b"x", b"\n", b"\r"])).map(
    b"".join
)


@given(CONTENTS.filter(lambda content: b"\r\n--b" not in b"\r\n" + content), st.data())
def test_a_form_is_the_same_however_its_bytes_arrive(content: bytes, data: st.DataObject) -> None:
    """R33: split anywhere, the parts are those of the whole."""
    body = form((FILE, content), (PURPOSE, b"batch"))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=12)))
    pieces = [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    wanted = [("file", "f.jsonl", content), ("purpose", "", b"batch")]
    assert read(pieces) == wanted
    assert read([body[at : at + 1] for at in range(len(body))]) == wanted
    with pytest.raises(RequestError):
        read([body[: data.draw(st.integers(0, len(body) - 5))]])


async def test_a_file_leaves_when_its_time_is_over(tmp_path: Path) -> None:
    """SPOOL-05: after its time it is unknown at once, and removed by the next sweep, unless a batch needs it."""
    now, used = [1000.0], dict[str, str]()
    disk = DiskThread("files")
    store = FileStore(
        tmp_path, BatchRules(keep_ms=Millis(60_000)), disk, in_use=used.get, clock=lambda: now[0]
    )
    kept: list[StoredFile] = []
    for _ in range(2):
        draft = await store.begin("")
        await draft.write(b"x")
        kept.append(await draft.keep("f", "batch"))
    used[kept[0].id] = "batch_1"
    await store.sweep()
    assert len(store.listed("")) == 2
    now[0] += 61
    assert store.listed("") == []
    await store.sweep()
    assert [path.exists() for path in map(store.path, kept)] == [True, False]
    disk.close()


async def test_a_full_disk_refuses_an_upload_and_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    """R4: 507 before the acknowledgement, nothing half visible."""

    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    async with served(root=tmp_path) as (opened, client):
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=("in.jsonl", LINES), purpose="batch")
        assert refused.value.status_code == 507
        monkeypatch.undo()
        await eventually(lambda: [path for path in (tmp_path / "batches").rglob("*") if path.is_file()] == [])
        assert opened.batches.files.size == 0
        await client.files.create(file=("in.jsonl", LINES), purpose="batch")
