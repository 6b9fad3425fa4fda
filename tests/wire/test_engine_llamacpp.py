"""llama.cpp itself keeps the contract: the real server, with small real models made of noise."""

import asyncio
import http.client
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_models import GgufFiles
from support.eventually import eventually
from watchbill.catalog import RAM, Model
from watchbill.core.messages import Blame
from watchbill.engines import llama_server
from watchbill.engines.base import LoadError, Warm
from watchbill.engines.llamacpp import LlamaRecipe, flags_for
from watchbill.processes import keeper
from watchbill.units import Bytes
from wire.engine_contract import (
    DIES_LOADING,
    FORKS_AND_EXITS,
    IGNORES_TERM,
    SLOW,
    EngineContract,
    Engines,
    Variant,
    ask,
    within,
)

pytest.importorskip("xllamacpp", reason="the embedded llama.cpp is not installed (extra `local`)")

SERVER = f"{sys.executable} -I {llama_server.__file__}"
#: Programs called llama-server that misbehave; all of them end up in the real one, or would.
PROGRAMS = {
    SLOW: f'sleep 30; exec {SERVER} "$@"',
    DIES_LOADING: "echo about to die; exit 9",
    IGNORES_TERM: f"trap '' TERM; {SERVER} \"$@\" & while :; do sleep 1; done",
    FORKS_AND_EXITS: f'setsid {SERVER} "$@" & exit 0',
}


class TestLlamaCpp(EngineContract):
    """The contract, and what is particular."""

    source: str

    @pytest.fixture(autouse=True)
    def _source(self, gguf_files: GgufFiles) -> None:
        self.source = str(gguf_files.chat("5MB"))

    def variant(self, kind: str, name: str, tmp_path: Path) -> Variant:
        rules: dict[str, Any] = {"name": "llamacpp", "driver": "llamacpp"}
        if kind in PROGRAMS:
            program = tmp_path / "llama-server"
            program.write_text(f'#!/bin/sh\n[ "$1" = --help ] && exec {SERVER} --help\n{PROGRAMS[kind]}\n')
            program.chmod(0o755)
            rules["binary"] = str(program)
        return rules, self.fields(name)

    def fields(self, name: str) -> dict[str, Any]:
        return {"name": name, "engine": "llamacpp", "source": self.source, "threads": 1, "context": 512}

    @pytest.fixture
    def load(self, engines: Engines) -> Any:
        engine = engines.make({"name": "llamacpp", "driver": "llamacpp"})

        async def load(**changes: Any) -> Warm:
            return await within(60, engine.load(Model(**self.fields("m") | changes), 1))

        return load

    # ------------------------------------------------------------------ whom it serves

    async def test_nobody_but_the_daemon_may_ask_it(self, load: Any) -> None:
        """Every local user can reach its port; none can read its key, neither in `ps` nor in what we log or show."""
        warm = await load()
        key = warm.endpoint.key
        assert len(key) >= 32 and key not in repr(warm)
        assert key.encode() not in Path(f"/proc/{warm.pid}/cmdline").read_bytes()
        for path in (
            "/v1/chat/completions",
            "/completion",
            "/slots",
            "/props",
            "/v1/embeddings",
            "/tokenize",
        ):
            body = None if path in ("/slots", "/props") else {"content": "x", "prompt": "x", "messages": []}
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {key}x"}):
                status = await asyncio.to_thread(status_of, warm, path, body, headers)
                assert status == 401, (path, headers)
        right = {"Authorization": f"Bearer {key}"}
        assert await asyncio.to_thread(status_of, warm, "/slots", None, right) == 200

    async def test_each_load_has_a_key_of_its_own(self, engines: Engines) -> None:
        engine = engines.make({"name": "llamacpp", "driver": "llamacpp"})
        model = Model(**self.fields("m"))
        first = (await within(60, engine.load(model, 1))).endpoint.key
        await within(60, engine.stop("m"))
        assert (await within(60, engine.load(model, 2))).endpoint.key != first

    @pytest.mark.parametrize(
        "own",
        [
            {"env": {"LLAMA_API_KEY": "mine,theirs"}},
            {"arguments": ("--api-key", "mine")},
            {"arguments": ("--api-key=mine",)},
        ],
    )
    async def test_a_key_that_the_model_itself_sets_is_used(self, load: Any, own: dict[str, Any]) -> None:
        assert (await load(**own)).endpoint.key == "mine"

    # ------------------------------------------------------------------ what it serves

    async def test_a_reply_names_the_model_not_its_file(self, load: Any) -> None:
        warm = await load()
        status, body = await asyncio.to_thread(ask, warm.endpoint, self.question(Model("m", "llamacpp")))
        answer = json.loads(body)
        assert status == 200 and answer["model"] == "m"
        assert answer["usage"]["completion_tokens"] == 3

    async def test_an_embedding_model_is_proved_warm_by_a_vector(
        self, load: Any, gguf_files: GgufFiles
    ) -> None:
        warm = await load(source=str(gguf_files.embedding()), embedding=True)
        question = ("POST", "/v1/embeddings", {"input": "the quick brown fox"})
        status, body = await asyncio.to_thread(ask, warm.endpoint, question)
        assert status == 200 and len(json.loads(body)["data"][0]["embedding"]) == 128

    async def test_a_chat_model_that_is_declared_an_encoder_still_fails_its_probe_loudly(
        self, load: Any
    ) -> None:
        """Race 13: what is asked in the probe is what clients will ask."""
        with pytest.raises(LoadError, match="probe"):
            await load(probe="embed")

    async def test_it_sleeps_by_itself_and_wakes_when_asked(
        self, engines: Engines, gguf_files: GgufFiles
    ) -> None:
        """Asleep: llama.cpp gives its weights back after its idle time. Looking does not wake it; waking it does."""
        engine = engines.make({"name": "llamacpp", "driver": "llamacpp"})
        fields = self.fields("m") | {"source": str(gguf_files.chat("60MB")), "sleep_ms": 1_000}
        warm = await within(60, engine.load(Model(**fields), 1))

        async def is_asleep() -> bool:
            return await engine.is_asleep("m") is True

        await eventually(is_asleep)
        asleep = await asyncio.to_thread(engine.memory, "m")
        assert asleep["ram"] < warm.memory["ram"] - 40 * 10**6
        assert await is_asleep(), "looking woke it"
        with pytest.raises(LoadError, match="cannot be put to sleep"):
            await engine.sleep("m", 2)
        awake = await within(60, engine.wake(Model(**fields), 3))
        assert (awake.pid, awake.memory["ram"] > asleep["ram"] + 40 * 10**6) == (warm.pid, True)

    async def test_every_slot_has_the_whole_context(self, load: Any) -> None:
        """RES-10: llama.cpp divides --ctx-size among its slots."""
        warm = await load(concurrency=3, context=512)
        _, body = await asyncio.to_thread(ask, warm.endpoint, ("GET", "/slots", None))
        assert [slot["n_ctx"] for slot in json.loads(body)] == [512, 512, 512]

    async def test_a_client_that_leaves_frees_its_slot(self, load: Any, gguf_files: GgufFiles) -> None:
        """LANE-07: the engine stops working on 2,000 tokens nobody reads, by its own account."""
        warm = await load(source=str(gguf_files.chat("60MB")), context=2560)
        connection = http.client.HTTPConnection(warm.endpoint.host, warm.endpoint.port, timeout=10)
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2000, "stream": True}
        right = {"Authorization": f"Bearer {warm.endpoint.key}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), right)
        reply = connection.getresponse()
        assert reply.readline().startswith(b"data:")
        assert await asyncio.to_thread(is_busy, warm)
        reply.close()
        connection.close()
        await eventually(lambda: not is_busy(warm), seconds=2)

    async def test_web_pages_are_not_welcome(self, load: Any) -> None:
        """An engine without a key must not be open to any web page in a browser on this machine."""
        warm = await load()
        connection = http.client.HTTPConnection(warm.endpoint.host, warm.endpoint.port, timeout=5)
        connection.request("OPTIONS", "/v1/models", headers={"Origin": "https://example.com"})
        allowed = connection.getresponse().getheader("Access-Control-Allow-Origin")
        connection.close()
        assert allowed not in {"*", "https://example.com"}

    async def test_without_mmap_the_weights_are_counted(self, load: Any, gguf_files: GgufFiles) -> None:
        """RES-04: what a model occupies holds its weights."""
        source = gguf_files.chat("20MB")
        warm = await load(source=str(source))
        assert warm.memory[RAM] > source.stat().st_size

    # ------------------------------------------------------------------ what goes wrong

    async def test_a_file_that_cannot_be_a_model_is_hopeless_and_said_in_one_line(
        self, load: Any, tmp_path: Path
    ) -> None:
        """Missing, not a GGUF, cut off, a folder: no retry, and a sentence that names the file."""
        whole = Path(self.source).read_bytes()
        (tmp_path / "junk.gguf").write_bytes(b"no model at all" * 100)
        (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "folder.gguf").mkdir()
        for name in ("missing.gguf", "junk.gguf", "cut.gguf", "folder.gguf"):
            with pytest.raises(LoadError) as failure:
                await load(source=str(tmp_path / name))
            assert failure.value.hopeless
            assert name in str(failure.value) and "\n" not in str(failure.value)

    async def test_a_header_that_lies_is_found_by_llama_cpp(self, load: Any, tmp_path: Path) -> None:
        """What our own reader lets through, llama.cpp's log explains."""
        broken = tmp_path / "strange.gguf"
        broken.write_bytes(Path(self.source).read_bytes().replace(b"llama", b"xlama"))
        with pytest.raises(LoadError, match="does not know it: unknown model architecture") as failure:
            await load(source=str(broken))
        assert failure.value.hopeless

    async def test_an_unknown_parameter_is_refused(self, load: Any) -> None:
        with pytest.raises(LoadError, match="refused: unknown parameter --fancy") as failure:
            await load(arguments=("--fancy",))
        assert failure.value.hopeless
        with pytest.raises(LoadError, match="--pooling sideways"):
            await load(arguments=("--pooling", "sideways"))

    async def test_a_binary_that_is_not_there_is_named(self, engines: Engines) -> None:
        engine = engines.make({"name": "l", "driver": "llamacpp", "binary": "/nowhere/llama-server"})
        with pytest.raises(LoadError, match="/nowhere/llama-server") as failure:
            await engine.load(Model(**self.fields("m")), 1)
        assert failure.value.hopeless

    async def test_the_last_lines_of_the_log_are_in_the_error(self, up: Any) -> None:
        engine, model = up(DIES_LOADING)
        with pytest.raises(LoadError, match=r"status 9 while it loaded\n  about to die$"):
            await engine.load(model, 1)

    async def test_a_port_that_somebody_took_is_exchanged(
        self, engines: Engines, load: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R36: between our choice of a port and the engine's bind anybody may take it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            taken = listener.getsockname()[1]
            draws, draw = iter([taken]), keeper.claim_port
            monkeypatch.setattr(keeper, "claim_port", lambda folder: next(draws, None) or draw(folder))
            warm = await load()
        assert warm.endpoint.port != taken

    async def test_a_frozen_server_acts_on_term_when_it_thaws(self, load: Any, engines: Engines) -> None:
        """R31: the signal may reach another thread than the one that waits for it."""
        warm = await load()
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            os.kill(warm.pid, number)
        await eventually(lambda: engines.deaths == [("m", 1, "exited with status 143", Blame.MODEL)])

    async def test_a_stopped_engine_exits_as_one_that_was_asked_to(self, engines: Engines, load: Any) -> None:
        """143 for TERM: a crash never looks like a stop."""
        warm = await load()
        os.kill(warm.pid, signal.SIGTERM)
        await eventually(lambda: engines.deaths != [])
        assert engines.deaths == [("m", 1, "exited with status 143", Blame.MODEL)]


def is_busy(warm: Warm) -> bool:
    return any(slot["is_processing"] for slot in json.loads(ask(warm.endpoint, ("GET", "/slots", None))[1]))


def test_old_and_new_builds_get_the_flags_they_know() -> None:
    model = Model("m", "llamacpp", prompt_cache=Bytes(64 * 2**20), concurrency=2, context=1000)
    old = flags_for(model, Path("/x.gguf"), 1, frozenset({"--no-mmap"}))
    assert "--no-mmap" in old and "--load-mode" not in old and "--cache-ram" not in old
    new = flags_for(model, Path("/x.gguf"), 1, frozenset(llama_server.known_flags()))
    assert new[new.index("--load-mode") + 1] == "none"
    assert new[new.index("--cache-ram") + 1] == "64"
    assert new[new.index("--ctx-size") + 1] == "2000"
    assert new[new.index("--threads-http") + 1] == "64"


def test_the_embedded_server_takes_llama_servers_own_words() -> None:
    params = llama_server.embedded().CommonParams()
    words = [
        "-m",
        "x.gguf",
        "--flash-attn",
        "on",
        "--load-mode=dio",
        "-ctk",
        "q8_0",
        "-np",
        "2",
        "--embeddings",
        "--no-jinja",
    ]
    llama_server.set_all(params, words)
    assert params.model.path == "x.gguf" and params.n_parallel == 2 and params.embedding
    assert not params.use_jinja
    llama_server.set_all(params, ["--jinja"])  # the default, and still in many a command line
    assert params.use_jinja
    names = (params.flash_attn_type.name, params.load_mode.name, params.cache_type_k.name)
    assert names == ("LLAMA_FLASH_ATTN_TYPE_ENABLED", "LLAMA_LOAD_MODE_DIRECT_IO", "GGML_TYPE_Q8_0")


@pytest.mark.parametrize(
    "words", [["--port"], ["--port", "many"], ["--fit", "maybe"], ["model.gguf"], ["--no-ui=1"]]
)
def test_the_embedded_server_refuses_what_it_cannot_use(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        llama_server.set_all(llama_server.embedded().CommonParams(), words)


def test_memory_that_ran_out_is_not_hopeless() -> None:
    """R27: the same load may work when others have gone."""
    lines = [
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 1",
        "failed to load model",
    ]
    diagnosis = LlamaRecipe().diagnose(lines)
    assert diagnosis is not None and not diagnosis.hopeless and "memory" in diagnosis.reason


def status_of(warm: Warm, path: str, body: object, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(warm.endpoint.host, warm.endpoint.port, timeout=20)
    try:
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        return connection.getresponse().status
    finally:
        connection.close()
