"""The contract that every engine with processes of its own keeps. A driver proves itself by inheriting it.

A subclass says how its engine is made to behave, or to misbehave, in five ways (`variant`); everything else
is here. Processes are found by the mark in their environment and ports by trying them, never by asking the
code under test.
"""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from support.stopping import stop
from watchbill.catalog import RAM, EngineRules, Model
from watchbill.engines.base import Endpoint, LoadError, Warm
from watchbill.engines.registry import make_engine
from watchbill.processes import RootLock, is_taken, limits, reap
from watchbill.processes.registry import ROOT_MARK, marked_pids, root_id

HOST_PROGRAM = Path(__file__).parent / "programs" / "host_engine.py"

HEALTHY = "healthy"
SLOW = "slow"  # needs at least ten seconds to load
DIES_LOADING = "dies-loading"
IGNORES_TERM = "ignores-term"
FORKS_AND_EXITS = "forks-and-exits"

#: How an engine and a model are described so that another process can make them, too.
Variant = tuple[dict[str, Any], dict[str, Any]]


class Engines:
    """A root, the engines made in it, and the deaths they reported."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.deaths: list[tuple[str, int, str]] = []
        self.made: list[Any] = []

    def make(self, rules: dict[str, Any]) -> Any:
        engine = make_engine(
            EngineRules(**rules), root=self.root, on_death=lambda *death: self.deaths.append(death)
        )
        self.made.append(engine)
        return engine

    def pids(self) -> list[int]:
        """Every living process that carries this root's mark, guards included."""
        return marked_pids(ROOT_MARK, root_id(self.root))

    def leftovers(self) -> list[str]:
        """Everything that should not be there when no engine runs."""
        files = [path for name in ("engines", "ports") for path in self.root.joinpath("run", name).glob("*")]
        return [f"process {pid}" for pid in self.pids()] + [str(path) for path in files]


class EngineContract:
    """Inherit this, and name your variants."""

    def variant(self, kind: str, name: str, tmp_path: Path) -> Variant:
        """The engine's table and the model's, as keyword arguments, that behave like `kind`."""
        raise NotImplementedError

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "root"
        root.mkdir()
        return root

    @pytest.fixture
    async def engines(self, root: Path) -> AsyncIterator[Engines]:
        engines = Engines(root)
        yield engines
        for engine in engines.made:
            await engine.close()
        assert engines.leftovers() == []

    @pytest.fixture
    def up(self, engines: Engines, tmp_path: Path) -> Callable[..., Any]:
        """Makes the engine of a variant and gives it with its model."""

        def make(kind: str, name: str = "m", **changes: Any) -> tuple[Any, Model]:
            rules, model = self.variant(kind, name, tmp_path)
            return engines.make(rules), Model(**{**model, **changes})

        return make

    # ------------------------------------------------------------------ up and down

    async def test_a_loaded_model_answers(self, engines: Engines, up: Callable[..., Any]) -> None:
        """RES-12: a model is warm only when it answers."""
        engine, model = up(HEALTHY)
        warm = await within(10, engine.load(model, 1))
        status, answer = await asyncio.to_thread(ask, warm.endpoint, self.question(model))
        assert status == 200, answer
        assert engines.deaths == []

    async def test_a_stopped_model_leaves_no_process_and_no_listener(self, engines: Engines, up: Any) -> None:
        """R35: what is stopped is gone: tree, port, records."""
        engine, model = up(HEALTHY)
        warm: Warm = await within(10, engine.load(model, 1))
        assert is_taken(warm.endpoint.port) and warm.pid in engines.pids()
        await within(10, engine.stop(model.name))
        assert not is_taken(warm.endpoint.port)
        assert engines.leftovers() == []
        assert engines.deaths == []

    async def test_a_stopped_model_can_be_loaded_again(self, up: Any) -> None:
        engine, model = up(HEALTHY)
        first = await within(10, engine.load(model, 1))
        await within(10, engine.stop(model.name))
        second = await within(10, engine.load(model, 2))
        assert second.pid != first.pid

    async def test_stopping_a_model_that_is_not_up_does_nothing(self, engines: Engines, up: Any) -> None:
        engine, _ = up(HEALTHY)
        await within(1, engine.stop("nobody"))
        await within(1, engine.stop("nobody", hard=True))
        assert engines.leftovers() == []

    async def test_two_models_load_at_once_without_a_clash(
        self, engines: Engines, up: Any, tmp_path: Path
    ) -> None:
        """R36: never a port clash."""
        engine, one = up(HEALTHY, "one")
        two = Model(**self.variant(HEALTHY, "two", tmp_path)[1])
        warms = await within(15, asyncio.gather(engine.load(one, 1), engine.load(two, 1)))
        assert len({warm.endpoint.port for warm in warms}) == 2
        for model, warm in zip((one, two), warms, strict=True):
            status, _ = await asyncio.to_thread(ask, warm.endpoint, self.question(model))
            assert status == 200
        await within(10, engine.close())
        assert engines.leftovers() == []

    async def test_a_model_that_is_up_is_not_loaded_twice(self, engines: Engines, up: Any) -> None:
        engine, model = up(HEALTHY)
        await within(10, engine.load(model, 1))
        before = engines.pids()
        with pytest.raises(LoadError, match="already up"):
            await within(10, engine.load(model, 2))
        assert engines.pids() == before

    async def test_memory_is_measured(self, up: Any) -> None:
        """RES-04: the books hold what the machine says."""
        engine, model = up(HEALTHY)
        warm: Warm = await within(10, engine.load(model, 1))
        assert warm.memory[RAM] > 2**20
        assert (await asyncio.to_thread(engine.memory, model.name))[RAM] > 2**20
        await within(10, engine.stop(model.name))
        assert engine.memory(model.name) == {}

    # ------------------------------------------------------------------ races

    async def test_a_cancelled_load_leaves_nothing_behind(self, engines: Engines, up: Any) -> None:
        """Race 7: stop during start, by whoever waits for it."""
        engine, model = up(SLOW)
        loading = asyncio.create_task(engine.load(model, 1))
        await eventually(lambda: len(engines.pids()) >= 2)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(5, loading)
        assert engines.leftovers() == []
        assert engines.deaths == []

    async def test_a_load_cancelled_at_any_moment_leaves_nothing_behind(
        self, engines: Engines, up: Any
    ) -> None:
        """Race 7: the moment of the cancel does not matter, also when it comes twice."""
        engine, model = up(HEALTHY)
        for millis in (0, 1, 5, 20, 40, 60, 100, 200, 300, 400, 600):
            loading = asyncio.create_task(engine.load(model, 1))
            await asyncio.wait([loading], timeout=millis / 1000)
            await cancel_twice(loading)
            with contextlib.suppress(asyncio.CancelledError):
                await within(20, loading)
                await within(20, engine.stop(model.name))
            assert engines.leftovers() == [], f"cancelled after {millis} ms"

    async def test_a_load_cancelled_as_it_becomes_warm_leaves_nothing_behind(
        self, engines: Engines, up: Any
    ) -> None:
        """Race 7: the caller gives up in the very turn of the loop in which the model became warm, and is told so
        again while the model is taken down. It can be loaded again."""
        engine, model = up(HEALTHY)
        loading = asyncio.create_task(engine.load(model, 1))
        inner = await until_warm_inside(engine, model.name)
        await cancel_twice(loading)
        with pytest.raises(asyncio.CancelledError):
            await within(10, loading)
        assert not inner.cancelled() and inner.result().pid, "it was not warm, so nothing was shown"
        assert engines.leftovers() == []
        await within(20, engine.load(model, 2))

    async def test_a_model_stopped_while_it_loads_is_gone(self, engines: Engines, up: Any) -> None:
        """Race 7: stop during start, by the scheduler."""
        engine, model = up(SLOW)
        loading = asyncio.create_task(engine.load(model, 1))
        await eventually(lambda: len(engines.pids()) >= 2)
        await within(5, engine.stop(model.name))
        assert engines.leftovers() == []
        with pytest.raises(LoadError, match="stopped while it loaded"):
            await within(1, loading)
        assert engines.deaths == []

    async def test_a_load_that_takes_too_long_fails_and_leaves_nothing_behind(
        self, engines: Engines, up: Any
    ) -> None:
        """Invariant 2: everything that waits has a deadline."""
        engine, model = up(SLOW, load_timeout_ms=700)
        with pytest.raises(LoadError, match="was not warm after 700 ms"):
            await within(5, engine.load(model, 1))
        assert engines.leftovers() == []

    async def test_a_death_while_loading_fails_the_load_at_once(self, engines: Engines, up: Any) -> None:
        """Race 7: the caller of the load hears of it, with the reason, and nobody else does."""
        engine, model = up(DIES_LOADING)
        with pytest.raises(LoadError, match=r"^exited with status") as failure:
            await within(8, engine.load(model, 1))
        assert not failure.value.hopeless
        assert engines.leftovers() == []
        assert engines.deaths == []

    async def test_a_death_while_ready_is_reported_once(self, engines: Engines, up: Any) -> None:
        """Race 7, R27: the death is known at once, with its reason."""
        engine, model = up(HEALTHY)
        warm = await within(10, engine.load(model, 7))
        os.kill(warm.pid, signal.SIGKILL)
        await eventually(lambda: engines.deaths != [])
        assert engines.deaths[0][:2] == (model.name, 7)
        assert "SIGKILL" in engines.deaths[0][2]
        assert engines.leftovers() == []
        await within(5, engine.stop(model.name))
        assert len(engines.deaths) == 1
        await within(10, engine.load(model, 8))  # and it can come back

    # ------------------------------------------------------------------ the ladder

    async def test_an_engine_that_ignores_term_is_gone_within_the_ladder(
        self, engines: Engines, up: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R35: TERM is asked, KILL is not."""
        monkeypatch.setattr(limits, "STOP_TERM_MS", 500)
        engine, model = up(IGNORES_TERM)
        await within(10, engine.load(model, 1))
        began = time.monotonic()
        await within(5, engine.stop(model.name))
        assert time.monotonic() - began >= 0.4, "it did not ignore TERM, so nothing was shown"
        assert engines.leftovers() == []

    async def test_a_hard_stop_does_not_ask(self, engines: Engines, up: Any) -> None:
        """RES-06: in an emergency the ladder begins at KILL."""
        engine, model = up(IGNORES_TERM)
        await within(10, engine.load(model, 1))
        await within(2, engine.stop(model.name, hard=True))
        assert engines.leftovers() == []

    async def test_a_frozen_engine_is_gone_within_the_ladder(self, engines: Engines, up: Any) -> None:
        """R31, R35: a process that is stopped acts on no signal but KILL."""
        engine, model = up(HEALTHY)
        warm = await within(10, engine.load(model, 1))
        stop(warm.pid)
        await within(8, engine.stop(model.name))
        assert engines.leftovers() == []

    async def test_an_engine_that_forks_and_exits_is_gone_with_its_whole_tree(
        self, engines: Engines, up: Any
    ) -> None:
        """R35, race 7: a daemonised engine serves, and still is all ours."""
        engine, model = up(FORKS_AND_EXITS)
        warm = await within(10, engine.load(model, 1))
        assert not Path(f"/proc/{warm.pid}").exists(), "its first process should have gone"
        status, _ = await asyncio.to_thread(ask, warm.endpoint, self.question(model))
        assert status == 200
        assert (await asyncio.to_thread(engine.memory, model.name))[RAM] > 2**20
        await within(10, engine.stop(model.name))
        assert not is_taken(warm.endpoint.port)
        assert engines.leftovers() == []

    # ------------------------------------------------------------------ kill -9

    async def test_engines_die_with_a_killed_daemon(self, engines: Engines, tmp_path: Path) -> None:
        """P6, R36: kill -9 of the daemon, and its guard takes the engine along."""
        with daemon(engines.root, self.variant(HEALTHY, "m", tmp_path)) as host:
            port = host.port
            assert is_taken(port) and len(engines.pids()) >= 2
            host.kill()
            await eventually(lambda: engines.pids() == [], seconds=5)
        assert not is_taken(port)
        reap(engines.root)  # forgets the records that the dead daemon left

    async def test_a_stubborn_engine_dies_with_a_killed_daemon(
        self, engines: Engines, tmp_path: Path
    ) -> None:
        """P6, R35: also one that ignores TERM."""
        with daemon(engines.root, self.variant(IGNORES_TERM, "m", tmp_path)) as host:
            host.kill()
            await eventually(lambda: engines.pids() == [], seconds=8)
        reap(engines.root)

    async def test_the_next_start_reaps_what_outlived_daemon_and_guard(
        self, engines: Engines, tmp_path: Path
    ) -> None:
        """R36: even when the guards were killed, too, nothing survives the next start."""
        with daemon(engines.root, self.variant(FORKS_AND_EXITS, "m", tmp_path)) as host:
            stop(host.process.pid)  # or it would see its guards go
            for pid in host.guard_pids:
                os.kill(pid, signal.SIGKILL)
            host.kill()
            await eventually(lambda: not set(host.guard_pids) & set(engines.pids()))
            assert engines.pids() != [], "nothing survived, so nothing was shown"
            with RootLock(engines.root / "run" / "daemon.lock"):
                reaped = await asyncio.to_thread(reap, engines.root)
            assert reaped and all(one.is_gone for one in reaped)
            assert not is_taken(host.port)
        assert engines.leftovers() == []

    # ------------------------------------------------------------------ what a subclass may change

    def question(self, model: Model) -> tuple[str, str, dict[str, Any] | None]:
        """A request that a healthy model answers with 200."""
        messages = [{"role": "user", "content": "Hi"}]
        return "POST", "/v1/chat/completions", {"model": model.name, "messages": messages, "max_tokens": 3}


class Host:
    """A process that plays the daemon, with one model loaded."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the host ended before its model was loaded"
        facts = json.loads(line)
        self.port: int = facts["port"]
        self.guard_pids: list[int] = facts["guard_pids"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def daemon(root: Path, variant: Variant) -> Iterator[Host]:
    words = json.dumps({"root": str(root), "rules": variant[0], "model": variant[1]})
    with subprocess.Popen(
        [sys.executable, str(HOST_PROGRAM), words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Host(process)
        finally:
            process.kill()


def ask(endpoint: Endpoint, question: tuple[str, str, dict[str, Any] | None]) -> tuple[int, bytes]:
    """One question by the standard library's client."""
    method, path, fields = question
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=10)
    try:
        body = None if fields is None else json.dumps(fields)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.key}"}
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


async def cancel_twice(loading: "asyncio.Task[Any]") -> None:
    """A caller that gives up, and is told so again while the model is taken down."""
    loading.cancel()
    await asyncio.sleep(0)
    loading.cancel()


async def until_warm_inside(engine: Any, name: str) -> Any:
    """The part of a load that brings the model up, in the turn of the loop in which it became warm."""
    await asyncio.sleep(0)
    inner = engine._holds[name].coming_up
    # Each turn, not an Event: this must see it before the load, which waits for it, is woken.
    while not inner.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    return inner


async def within(seconds: float, work: Any) -> Any:
    """The result, or a failure when it takes longer."""
    async with asyncio.timeout(seconds):
        return await work
