"""The scripted engine keeps the contract, and misbehaves exactly as it is told."""

import asyncio
import dataclasses
import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from support.stopping import stop
from watchbill.catalog import RAM, Model
from watchbill.core.messages import Blame
from watchbill.engines.base import Endpoint, LoadError, Warm
from watchbill.engines.scripted import FAILURES, check_script
from watchbill.errors import ConfigError
from wire.engine_contract import (
    DIES_LOADING,
    FORKS_AND_EXITS,
    HEALTHY,
    IGNORES_TERM,
    SLOW,
    EngineContract,
    Engines,
    Variant,
    ask,
    within,
)

SCRIPTS: dict[str, dict[str, Any]] = {
    HEALTHY: {"load": "0.1s"},
    SLOW: {"load": "30s"},
    DIES_LOADING: {"load": "0.1s", "fail": "crash-on-load"},
    IGNORES_TERM: {"fail": "ignore-term"},
    FORKS_AND_EXITS: {"fail": "fork-and-exit"},
}


class TestScripted(EngineContract):
    """The contract, and what is particular."""

    def variant(self, kind: str, name: str, tmp_path: Path) -> Variant:
        rules = {"name": "scripted", "driver": "scripted"}
        return rules, {"name": name, "engine": "scripted", "script": SCRIPTS[kind]}

    @pytest.fixture
    def load(self, engines: Engines) -> Any:
        """Loads a model with a script of its own."""
        engine = engines.make({"name": "scripted", "driver": "scripted"})

        async def load(script: dict[str, Any], **fields: Any) -> Warm:
            model = Model(**{"name": "m", "engine": "scripted", "script": script} | fields)
            return await within(10, engine.load(model, 1))

        return load

    async def test_a_model_sleeps_when_told_and_wakes_with_all_its_memory(
        self, engines: Engines, up: Any
    ) -> None:
        """Asleep: the process stays, the memory goes; the next one who wakes it finds it warm; the attempt goes on."""
        engine, model = up(HEALTHY, script={"memory": "60MiB", "wake": "0.1s"}, sleep_ms=60_000)
        warm = await within(10, engine.load(model, 1))
        assert await engine.is_asleep(model.name) is False
        asleep = await within(10, engine.sleep(model.name, 2))
        assert asleep[RAM] < warm.memory[RAM] - 50 * 2**20
        assert await engine.is_asleep(model.name) is True
        awake = await within(10, engine.wake(model, 3))
        assert (awake.pid, awake.endpoint) == (warm.pid, warm.endpoint)
        assert awake.memory[RAM] > asleep[RAM] + 50 * 2**20
        assert await engine.is_asleep(model.name) is False
        os.kill(warm.pid, signal.SIGKILL)
        await eventually(lambda: bool(engines.deaths))
        assert engines.deaths[0][:2] == (model.name, 3)

    async def test_a_model_that_cannot_be_woken_leaves_nothing_behind(
        self, engines: Engines, up: Any
    ) -> None:
        """As for a load: when it raises, nothing of the model is left."""
        engine, model = up(HEALTHY, sleep_ms=60_000)
        warm = await within(10, engine.load(model, 1))
        await within(10, engine.sleep(model.name, 2))
        stop(warm.pid)
        with pytest.raises(LoadError, match="did not wake"):
            await within(20, engine.wake(dataclasses.replace(model, load_timeout_ms=500), 3))
        assert engines.leftovers() == []

    async def test_a_chat_stream_is_what_clients_expect(self, load: Any) -> None:
        """LANE-09: frames in order, the role first, the reason last, usage when asked for, then [DONE]."""
        warm = await load({"tokens": 3, "text": "one two three"})
        lines = await asyncio.to_thread(stream, warm.endpoint, {"stream_options": {"include_usage": True}})
        frames = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert lines[-1] == "data: [DONE]"
        assert frames[0]["choices"][0]["delta"]["role"] == "assistant"
        said = [frame["choices"][0]["delta"].get("content", "") for frame in frames if frame["choices"]]
        assert "".join(said) == "one two three "
        assert frames[-2]["choices"][0]["finish_reason"] == "stop"
        assert frames[-1]["usage"]["completion_tokens"] == 3

    async def test_max_tokens_cuts_an_answer(self, load: Any) -> None:
        warm = await load({"tokens": 9})
        question = {"messages": [], "max_tokens": 2}
        _, body = await asyncio.to_thread(ask, warm.endpoint, ("POST", "/v1/chat/completions", question))
        answer = json.loads(body)
        assert answer["usage"]["completion_tokens"] == 2
        assert answer["choices"][0]["finish_reason"] == "length"

    async def test_completions_and_embeddings_answer_too(self, load: Any) -> None:
        warm = await load({}, embedding=True)
        _, body = await asyncio.to_thread(ask, warm.endpoint, ("POST", "/v1/completions", {"prompt": "x"}))
        assert json.loads(body)["choices"][0]["text"]
        question = ("POST", "/v1/embeddings", {"input": ["a", "b", "a"]})
        _, body = await asyncio.to_thread(ask, warm.endpoint, question)
        first, second, third = (entry["embedding"] for entry in json.loads(body)["data"])
        assert first == third != second

    async def test_the_memory_of_the_script_is_really_taken(self, load: Any) -> None:
        warm = await load({"memory": "64MiB"})
        assert warm.memory[RAM] > 64 * 2**20

    async def test_untouched_memory_is_not_taken(self, load: Any) -> None:
        warm = await load({"memory": "64MiB", "touch": False})
        assert warm.memory[RAM] < 64 * 2**20

    async def test_a_client_that_leaves_stops_the_work(self, load: Any) -> None:
        """LANE-07: waiting or served, the engine stops working for a client that is gone."""
        warm = await load({"service": "60s", "concurrency": 1})
        connections = [open_request(warm.endpoint) for _ in range(2)]
        await eventually(lambda: state(warm)["active"] == 1 and state(warm)["queued"] == 1)
        for connection in connections:
            connection.close()
        await eventually(lambda: state(warm)["active"] == state(warm)["queued"] == 0, seconds=2)
        assert state(warm)["served"] == 1, "only the probe was answered"

    async def test_no_more_requests_run_than_there_are_slots(self, load: Any) -> None:
        """RES-10: concurrency."""
        warm = await load({"service": "60s"}, concurrency=2)
        connections = [open_request(warm.endpoint) for _ in range(3)]
        await eventually(lambda: state(warm)["queued"] == 1)
        assert state(warm)["active"] == 2
        for connection in connections:
            connection.close()

    async def test_a_healthy_but_silent_engine_is_never_warm(self, load: Any) -> None:
        """Race 13, R32: the verdict comes from a real request."""
        with pytest.raises(LoadError, match="healthy, but had not answered the probe"):
            await load({"fail": "healthy-but-silent"}, load_timeout_ms=800)

    @pytest.mark.parametrize("failure", ["crash-before-first-byte", "crash-after-first-byte"])
    async def test_a_crash_while_serving_is_a_death(self, load: Any, engines: Engines, failure: str) -> None:
        """R30: before and after the first byte."""
        warm = await load({"fail": failure})
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            await asyncio.to_thread(stream, warm.endpoint, {})
        await eventually(lambda: engines.deaths != [])
        assert engines.deaths == [("m", 1, "exited with status 1", Blame.MODEL)]

    @pytest.mark.parametrize("failure", ["hang-before-first-byte", "hang-mid-stream"])
    async def test_a_hang_lasts_until_the_client_leaves(self, load: Any, failure: str) -> None:
        """R31: accepts and never answers, or stops half way."""
        warm = await load({"fail": failure, "service": "10ms"})
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(stream, warm.endpoint, {}, timeout_s=0.5)
        await eventually(lambda: state(warm)["active"] == 0)

    async def test_http_500_is_what_it_says_for_so_many_times(self, load: Any) -> None:
        """R30: an engine that answers with an error, then no more."""
        warm = await load({"fail": "http-500", "fail_times": 1})
        question = ("POST", "/v1/chat/completions", {"messages": []})
        status, body = await asyncio.to_thread(ask, warm.endpoint, question)
        assert status == 500 and "error" in json.loads(body)
        status, body = await asyncio.to_thread(ask, warm.endpoint, question)
        assert status == 200 and "choices" in json.loads(body)

    async def test_bad_frames_are_what_they_say(self, load: Any) -> None:
        """R33: an answer that is no JSON, and a stream that breaks off."""
        warm = await load({"fail": "bad-frames"})
        _, body = await asyncio.to_thread(ask, warm.endpoint, ("POST", "/v1/completions", {"prompt": ""}))
        with pytest.raises(json.JSONDecodeError):
            json.loads(body)
        with pytest.raises(http.client.IncompleteRead) as broken:
            await asyncio.to_thread(stream, warm.endpoint, {})
        assert b"no field at all" in broken.value.partial

    async def test_fail_times_counts_over_starts(self, load: Any) -> None:
        """R37: a crash loop that ends."""
        script = {"fail": "crash-on-load", "fail_times": 2}
        for _ in range(2):
            with pytest.raises(LoadError):
                await load(script)
        await load(script)


def test_a_script_that_cannot_be_read_names_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="servise"):
        check_script({"servise": "1s"})
    with pytest.raises(ConfigError, match="explode"):
        check_script({"fail": "explode"})
    with pytest.raises(ConfigError, match="tokens"):
        check_script({"tokens": "many"})
    with pytest.raises(ConfigError, match="soon"):
        check_script({"load": "soon"})


def test_every_failure_can_be_asked_for() -> None:
    assert check_script({"fail": list(FAILURES), "fail-times": 1})["fail_times"] == 1


def stream(endpoint: Endpoint, fields: dict[str, Any], timeout_s: float = 5) -> list[str]:
    """The lines of a streamed chat."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps({"messages": [], "stream": True, **fields})
        )
        text = connection.getresponse().read().decode()
        return [line for line in text.split("\n") if line]
    finally:
        connection.close()


def open_request(endpoint: Endpoint) -> http.client.HTTPConnection:
    """A request whose answer nobody reads yet."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=5)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": [], "stream": True}))
    return connection


def state(warm: Warm) -> dict[str, int]:
    return json.loads(ask(warm.endpoint, ("GET", "/wb-scripted/state", None))[1])
