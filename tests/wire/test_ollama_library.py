"""Names and files of models that Ollama's clients make: what they do, where they lie, and what outlives a restart."""

import asyncio
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_models import make_chat_model
from support.open_gateway import CATALOG, OpenGateway, open_gateway
from support.peer import Asked, chat_events, sse
from support.registry import serving_registry
from watchbill.catalog import EngineRules, Model
from watchbill.errors import RequestError
from watchbill.gateway.dialects.ollama.context import read_context, write_context
from watchbill.runtime.library import Entry, Library, extended
from watchbill.units import Bytes
from wire.ollama_standin import Kept, OllamaStandin

MIB = {"ram": Bytes(2**20)}
MODELS = {
    "smol": Model("smol", "peer", concurrency=8, memory=MIB, aliases=("small",)),
    "vectors": Model("vectors", "peer", memory=MIB, embedding=True),
}
HERE = replace(CATALOG, models=MODELS, engines={"peer": EngineRules("peer", "llamacpp")})
SAY = [{"role": "user", "content": "hi"}]
TOO_LONG = {"error": {"code": 400, "type": "exceed_context_size_error", "message": "too long"}}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    make_chat_model(path, 300_000)
    return path.read_bytes()


async def hello(asked: Asked, writer: asyncio.StreamWriter) -> None:
    body = sse(*chat_events("hello there"), "[DONE]")
    writer.write(b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)


def reply(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def names(opened: OpenGateway) -> set[str]:
    models = (await opened.ask("/api/tags")).json["models"]
    assert isinstance(models, list)
    return {model["name"] for model in models}


# ------------------------------------------------------------------ names


async def test_a_created_name_brings_its_system_text_and_parameters_to_every_door() -> None:
    """LANE-03: one name space: /api, /v1 and /v1/messages know the name, and answer in the same way."""
    made = {"model": "Mario", "from": "smol", "system": "You are Mario.", "parameters": {"temperature": 0.25}}
    async with open_gateway(hello, catalog=HERE) as opened:
        assert (await opened.ask("/api/create", made)).status == 200
        for path, more in (
            ("/api/chat", {}),
            ("/v1/chat/completions", {}),
            ("/v1/messages", {"max_tokens": 5}),
        ):
            answer = await opened.ask(
                path, {"model": "mario" if path[1:4] == "api" else "Mario", "messages": SAY, **more}
            )
            assert answer.status == 200, answer.body
            asked = opened.peer.asked[-1].json
            assert asked["messages"][0] == {"role": "system", "content": "You are Mario."}
            assert asked["temperature"] == 0.25
        own = [{"role": "system", "content": "Be Luigi."}, *SAY]
        await opened.ask("/v1/chat/completions", {"model": "Mario", "messages": own, "temperature": 1})
        asked = opened.peer.asked[-1].json
        assert (asked["messages"], asked["temperature"]) == (own, 1)


async def test_names_outlive_a_restart_and_share_the_model_in_memory(tmp_path: Path) -> None:
    """LANE-03: a copy is no second load."""
    async with open_gateway(hello, catalog=HERE, root=tmp_path) as opened:
        assert (await opened.ask("/api/copy", {"source": "small", "destination": "mine:v1"})).status == 200
        assert (await opened.ask("/api/generate", {"model": "mine:v1"})).status == 200
        assert opened.engine.attempts.keys() == {"smol"}
    async with open_gateway(hello, catalog=HERE, root=tmp_path) as opened:
        assert "mine:v1" in await names(opened)
        assert (await opened.ask("/v1/chat/completions", {"model": "mine:v1", "messages": SAY})).status == 200


async def test_a_name_is_not_copied_over_the_model_that_it_is_made_of(tmp_path: Path) -> None:
    """LANE-03: the name stays that of the config, so the copy would have no effect."""
    async with open_gateway(hello, catalog=HERE, root=tmp_path) as opened:
        made = {"model": "brief", "from": "smol", "system": "Be brief."}
        assert (await opened.ask("/api/create", made)).status == 200
        answer = await opened.ask("/api/copy", {"source": "brief", "destination": "smol"})
        assert answer.status == 400 and "a model of the config" in answer.json["error"]
        assert (await opened.ask("/api/copy", {"source": "smol", "destination": "SMOL:latest"})).status == 200


def test_the_config_wins_over_the_library(tmp_path: Path) -> None:
    """LANE-03: an entry whose name the config takes, or whose file is gone, is not served, and breaks nothing."""
    entries = [
        Entry("smol", base="vectors"),
        Entry("gone", file="blobs/none"),
        Entry("x", base="nobody"),
        Entry("y", base="smol"),
    ]
    catalog = extended(HERE, entries, tmp_path)
    assert set(catalog.models) == set(HERE.models)
    assert catalog.models["smol"].aliases == ("small", "y")


async def test_an_unreadable_library_is_put_aside(tmp_path: Path) -> None:
    """R31: the daemon starts, and nothing is overwritten."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "library.json").write_text("{")
    async with open_gateway(hello, catalog=HERE, root=tmp_path) as opened:
        assert await names(opened) == {"smol:latest", "vectors:latest"}
    assert (tmp_path / "models" / "library.json.unreadable").read_text() == "{"


# ------------------------------------------------------------------ files


async def test_a_file_is_uploaded_served_shared_and_deleted_with_its_last_name(
    tmp_path: Path, model_file: bytes
) -> None:
    """LANE-03: blobs lie in the models folder under their hash."""
    digest = hashlib.sha256(model_file).hexdigest()
    blob = tmp_path / "models" / "blobs" / f"sha256-{digest}"
    async with open_gateway(hello, catalog=HERE, root=tmp_path) as opened:
        assert (await opened.ask(f"/api/blobs/sha256:{digest}", model_file)).status == 201
        made = {"model": "own", "files": {"m.gguf": f"sha256:{digest}"}}
        assert (await opened.ask("/api/create", made)).status == 200
        assert (await opened.ask("/api/copy", {"source": "own", "destination": "other"})).status == 200
        assert opened.driver.catalog.models["own"].source == str(blob)
        assert opened.driver.catalog.models["own"].aliases == ("other",)
        assert (await opened.ask("/api/chat", {"model": "other", "messages": SAY})).status == 200
        for name, stays in (("own", True), ("other", False)):
            assert (await opened.ask("/api/delete", {"model": name}, method="DELETE")).status == 200
            assert blob.exists() is stays
        assert await names(opened) == {"smol:latest", "vectors:latest"}


async def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path, model_file: bytes) -> None:
    """R31: neither a wrong file nor half of one is ever there under a digest."""
    digest = hashlib.sha256(model_file).hexdigest()
    async with open_gateway(hello, catalog=HERE, root=tmp_path) as opened:
        assert (await opened.ask(f"/api/blobs/sha256:{digest}", model_file[:-1])).status == 400
        _, writer = await opened.connect()
        head = f"POST /api/blobs/sha256:{digest} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999\r\n\r\n"
        writer.write(head.encode() + b"some of it")
        await writer.drain()
        writer.close()
        await opened.until_idle()
    assert [path.name for path in (tmp_path / "models" / "blobs").iterdir()] == []


async def test_a_model_is_pulled_from_a_registry_with_all_its_layers(
    tmp_path: Path, model_file: bytes
) -> None:
    """LANE-03: into the models folder, checked by its hash, with progress; llama.cpp serves it."""
    with serving_registry() as registry:
        registry.add(
            "library/tiny:1b",
            model=model_file,
            system=b"Be tiny.",
            params=b'{"temperature": 0.5}',
            license=b"free",
        )
        async with (
            open_gateway(hello, catalog=HERE, root=tmp_path, registry=registry.url) as opened,
            ollama.AsyncClient(host=opened.url) as client,
        ):
            steps = [step async for step in await client.pull("tiny:1b", stream=True)]
            assert (steps[0].status, steps[-1].status) == ("pulling manifest", "success")
            assert any(step.total == len(model_file) == step.completed for step in steps)
            shown = await client.show("tiny:1b")
            assert shown.license == "free" and "Be tiny." in str(shown.modelfile)
            await client.chat("tiny:1b", SAY)
            assert opened.peer.asked[-1].json["temperature"] == 0.5
            before = len(registry.asked)
            assert (await client.pull("tiny:1b")).status == "success"
            assert len(registry.asked) == before  # it is there
            with pytest.raises(ollama.ResponseError, match="file does not exist"):
                await client.pull("nothing")
            await client.delete("tiny:1b")
    left = {path.name for path in (tmp_path / "models" / "blobs").iterdir() if path.is_file()}
    assert f"sha256-{hashlib.sha256(model_file).hexdigest()}" not in left


async def test_a_pulled_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    """R31: and no name is made of it."""
    with serving_registry() as registry:
        registry.add("library/bad:latest", model=b"rubbish")
        async with open_gateway(hello, catalog=HERE, root=tmp_path, registry=registry.url) as opened:
            answer = await opened.ask("/api/pull", {"model": "bad"})
            assert "no model" in json.loads(answer.body.splitlines()[-1])["error"]
            assert await names(opened) == {"smol:latest", "vectors:latest"}


@pytest.mark.parametrize(
    ("size", "status", "said"),
    [
        (-5, 500, "cannot be"),
        (2**62, 500, "cannot be"),
        (10, 500, "declared were 10"),
        (10**12, 507, "are missing"),
        (None, 500, "cannot be"),
    ],
)
async def test_a_layer_has_the_size_that_its_manifest_declares(
    tmp_path: Path, size: int | None, status: int, said: str
) -> None:
    """R31: what cannot be, or has no room, is refused before a byte is fetched; nothing of it stays."""
    with serving_registry() as registry:
        registry.add("library/odd:latest", model=b"GGUF" + bytes(5_000))
        [(place, manifest)] = registry.manifests.items()
        layer = json.loads(manifest)["layers"][0]
        sized = (
            {**layer, "size": size} if size is not None else {n: v for n, v in layer.items() if n != "size"}
        )
        registry.manifests[place] = json.dumps({"layers": [sized]}).encode()
        async with open_gateway(hello, catalog=HERE, root=tmp_path, registry=registry.url) as opened:
            answer = await opened.ask("/api/pull", {"model": "odd", "stream": False})
        assert answer.status == status and said in answer.json["error"], answer
        assert size == 10 or len(registry.asked) == 1
    blobs = tmp_path / "models" / "blobs"
    assert not [path for path in blobs.rglob("*") if path.is_file()]


async def test_a_server_that_sends_without_end_is_cut_at_the_declared_size(tmp_path: Path) -> None:
    """R31: it says no length, so only the manifest bounds it; the part is removed."""
    with serving_registry() as registry:
        registry.endless = True
        registry.add("library/odd:latest", model=b"GGUF" + bytes(5_000))
        async with open_gateway(hello, catalog=HERE, root=tmp_path, registry=registry.url) as opened:
            answer = await opened.ask("/api/pull", {"model": "odd", "stream": False})
        assert answer.status == 500 and "larger than the 5,004 bytes" in answer.json["error"], answer
    blobs = tmp_path / "models" / "blobs"
    assert not [path for path in blobs.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in (blobs, blobs / ".pull")} == {0o700}


def test_a_start_removes_halves_of_uploads_and_files_that_no_name_uses(tmp_path: Path) -> None:
    """R31: not those of a name, of the config, or of yesterday's upload; and none while the names are unreadable."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    used, seen, declared, unused, fresh = (blobs / f"sha256-{digit * 64}" for digit in "12345")
    half = blobs / f".{unused.name}.http-0badcafe-7"
    for path in (used, seen, declared, unused, fresh, half, blobs / "mine.txt"):
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    os.utime(fresh)
    entry = Entry("a", file=f"blobs/{used.name}", projector=f"blobs/{seen.name}")
    asyncio.run(Library.of(tmp_path, HERE).put(None, entry))
    models = {
        **HERE.models,
        "own": replace(HERE.models["smol"], name="own", aliases=(), source=str(declared)),
    }
    library = Library.of(tmp_path, replace(HERE, models=models))
    (tmp_path / "library.json.unreadable").touch()
    assert library.sweep() == 1 and not half.exists() and unused.exists()
    (tmp_path / "library.json.unreadable").unlink()
    assert library.sweep() == 1
    assert {path.name for path in blobs.iterdir()} == {
        each.name for each in (used, seen, declared, fresh)
    } | {"mine.txt"}
    assert blobs.stat().st_mode & 0o777 == 0o700


# ------------------------------------------------------------------ generation


TURNS = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text().filter(lambda t: "\x01" not in t))
)


@given(TURNS)
def test_a_context_is_handed_back_as_it_was(turns: list[tuple[str, str]]) -> None:
    """LANE-03: every conversation survives being numbers."""
    written = write_context(turns)
    assert written is not None and all(0 <= number < 2**24 for number in written)
    assert read_context(written) == turns


@given(st.lists(st.integers(min_value=-5, max_value=2**25), min_size=1))
def test_other_numbers_are_refused(numbers: list[int]) -> None:
    """R47"""
    with pytest.raises(RequestError):
        read_context(numbers)


async def test_a_context_continues_a_conversation() -> None:
    """LANE-03: what was said before comes before the next prompt."""
    async with open_gateway(hello, catalog=HERE) as opened:
        asked = {"model": "smol", "prompt": "One?", "system": "Count.", "stream": False}
        first = (await opened.ask("/api/generate", asked)).json
        await opened.ask("/api/generate", {"model": "smol", "prompt": "Two?", "context": first["context"]})
        assert [(m["role"], m["content"]) for m in opened.peer.asked[-1].json["messages"]] == [
            ("system", "Count."), ("user", "One?"), ("assistant", "hello there"), ("user", "Two?"),
        ]  # fmt: skip


async def test_a_chat_that_is_too_long_loses_its_oldest_turns() -> None:
    """LANE-03: `truncate` is on unless the client says otherwise; the system text and the last message stay."""

    async def strict(asked: Asked, writer: asyncio.StreamWriter) -> None:
        size = len(asked.body)
        if size > 900:
            error = {**TOO_LONG["error"], "n_prompt_tokens": size, "n_ctx": 900}
            reply(writer, 400, {"error": error})
        else:
            await hello(asked, writer)

    turns = [{"role": "user", "content": f"{place} " + "x" * 200} for place in range(8)]
    body = {"model": "smol", "messages": [{"role": "system", "content": "stay"}, *turns]}
    async with open_gateway(strict, catalog=HERE) as opened:
        for stream in (True, False):
            assert (await opened.ask("/api/chat", {**body, "stream": stream})).status == 200
            kept = [message["content"][:4] for message in opened.peer.asked[-1].json["messages"]]
            assert kept[0] == "stay" and kept[-1] == "7 xx" and len(kept) < 6
        answer = await opened.ask("/api/chat", {**body, "truncate": False})
        assert answer.status == 400


async def test_a_text_to_embed_is_cut_and_its_vector_too() -> None:
    """LANE-03: `truncate` and `dimensions`; a cut vector has length one again."""

    async def short(asked: Asked, writer: asyncio.StreamWriter) -> None:
        text = asked.json["input"][0]
        if len(text) > 100:
            size = "increase the physical batch size (current batch size: 100)"
            message = f"input ({len(text)} tokens) is too large to process. {size}"
            reply(writer, 500, {"error": {"code": 500, "message": message, "type": "server_error"}})
        else:
            reply(writer, 200, {"data": [{"embedding": [0.6, 0.8, 9]}], "usage": {}})

    async with open_gateway(short, catalog=HERE) as opened:
        answer = await opened.ask("/api/embed", {"model": "vectors", "input": "y" * 250, "dimensions": 2})
        assert answer.json["embeddings"] == [[pytest.approx(0.6), pytest.approx(0.8)]]
        assert (
            await opened.ask("/api/embed", {"model": "vectors", "input": "y" * 250, "truncate": False})
        ).status == 400


async def test_a_suffix_is_filled_in_by_llamacpp() -> None:
    """LANE-03: through /infill; a model that cannot is refused in Ollama's words."""
    events = sse(
        {"content": "mid", "stop": False},
        {"content": "dle", "stop": True, "stop_type": "limit", "tokens_predicted": 2, "tokens_evaluated": 9},
    )

    async def fill(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path != "/infill" or asked.json["input_prefix"] == "refuse":
            reply(
                writer,
                501,
                {
                    "error": {
                        "code": 501,
                        "message": "Infill is not supported by this model",
                        "type": "not_supported_error",
                    }
                },
            )
        else:
            writer.write(
                b"HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
                % len(events)
                + events
            )

    async with open_gateway(fill, catalog=HERE) as opened:
        body = {"model": "smol", "prompt": "begin", "suffix": "end", "options": {"num_predict": 2}}
        whole = (await opened.ask("/api/generate", {**body, "stream": False})).json
        assert (whole["response"], whole["done_reason"], whole["eval_count"]) == ("middle", "length", 2)
        asked = opened.peer.asked[-1].json
        assert (asked["input_prefix"], asked["input_suffix"], asked["n_predict"]) == ("begin", "end", 2)
        lines = [json.loads(each) for each in (await opened.ask("/api/generate", body)).body.splitlines()]
        assert "".join(each["response"] for each in lines) == "middle" and lines[-1]["prompt_eval_count"] == 9
        for stream in (True, False):
            refused = await opened.ask("/api/generate", {**body, "prompt": "refuse", "stream": stream})
            assert refused.status == 400 and "does not support insert" in str(refused.json["error"])


async def test_a_larger_context_than_there_is_is_said_to_be_none() -> None:
    """LANE-03: num_ctx reloads nothing; the answer says what there is."""
    async with open_gateway(hello, catalog=HERE) as opened:
        for asked, note in ((2048, None), (8192, {"num_ctx": 4096})):
            body = {"model": "smol", "prompt": "x", "stream": False, "options": {"num_ctx": asked}}
            assert (await opened.ask("/api/generate", body)).json.get("watchbill") == note


# ------------------------------------------------------------------ an Ollama behind us


async def test_models_of_an_ollama_show_what_it_says_of_them() -> None:
    """LANE-03: sizes, details, abilities and context, at /api and at /v1; without it the catalog answers alone."""
    theirs = OllamaStandin(Kept("smol", size=12345))
    await theirs.start()
    engines = {"peer": EngineRules("peer", "ollama", url=theirs.url)}
    models = {"smol": replace(MODELS["smol"], source="smol", context=100_000)}
    try:
        async with open_gateway(hello, catalog=replace(HERE, models=models, engines=engines)) as opened:
            item = (await opened.ask("/api/tags")).json["models"][0]
            assert (item["size"], item["digest"], item["details"]["family"]) == (12345, "0" * 64, "llama")
            assert (item["details"]["context_length"], item["capabilities"]) == (8192, ["completion"])
            shown = (await opened.ask("/api/show", {"model": "smol"})).json
            assert shown["template"] == "{{ .Prompt }}" and shown["tensors"]
            listed = (await opened.ask("/v1/models/smol")).json
            assert listed["meta"] == {"n_ctx": 8192, "continues": False}
            assert listed["capabilities"] == ["completion"]
    finally:
        await theirs.die()
    async with open_gateway(hello, catalog=replace(HERE, models=models, engines=engines)) as opened:
        item = (await opened.ask("/api/tags")).json["models"][0]
        assert item["size"] == 2**20


async def test_a_name_that_an_ollama_pulled_is_one_of_the_library() -> None:
    """LANE-03: run, cp and rm have one name space."""
    theirs = OllamaStandin(Kept("new"))
    await theirs.start()
    engines = {**HERE.engines, "there": EngineRules("there", "ollama", url=theirs.url)}
    try:
        async with open_gateway(hello, catalog=replace(HERE, engines=engines)) as opened:
            assert (await opened.ask("/api/pull", {"model": "new"})).status == 200
            assert "new:latest" in await names(opened)
            assert (await opened.ask("/api/copy", {"source": "new", "destination": "newer"})).status == 200
            assert (await opened.ask("/api/delete", {"model": "new"}, method="DELETE")).status == 200
            assert theirs.models == {} and "new:latest" not in await names(opened)
    finally:
        await theirs.die()
