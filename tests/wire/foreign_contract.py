"""The contract of engines whose models run elsewhere. A driver proves itself by inheriting it.

The same promises as `engine_contract`, without those about processes, which a driver of this kind does not have. A
subclass brings a world: the program that hosts the models, and ways to look into it and to make it fail that do not
go through the code under test.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.eventually import eventually
from watchbill.catalog import EngineRules, Model
from watchbill.core.messages import Blame
from watchbill.engines.base import Engine, HostState, LoadError, Warm
from watchbill.engines.registry import make_engine
from watchbill.units import Millis
from wire.engine_contract import ask, cancel_twice, until_warm_inside, within


class World(Protocol):
    """The other program."""

    rules: EngineRules
    root: Path

    def model(self, name: str, *, slow: bool = False) -> Model:
        """A model of this world: `one` or `two`; a slow one needs ten seconds to load."""
        ...

    def present(self) -> set[str]:
        """The names of the models that occupy memory there, or are on their way."""
        ...

    async def take_away(self, name: str) -> None:
        """The model is gone, and nobody asked us."""
        ...

    async def bring(self, name: str) -> None:
        """The model is there, and nobody asked us."""
        ...

    async def vanish(self) -> None:
        """Nobody answers any more."""
        ...


class Foreign:
    """An engine in its world, and the deaths it reported."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.deaths: list[tuple[str, int, str]] = []
        self.blames: list[Blame] = []
        self.states: list[HostState] = []
        self.engine: Engine = self.another()

    def another(self) -> Engine:
        return make_engine(
            self.world.rules,
            root=self.world.root,
            on_death=self._died,
            on_host=self.states.append,
        )

    def _died(self, model: str, attempt: int, reason: str, blame: Blame = Blame.MODEL, /) -> None:
        self.deaths.append((model, attempt, reason))
        self.blames.append(blame)


#: What of the process contract does not apply: the driver has no process of its own to kill, fork, freeze or reap.
#: A host that dies under a load is shown by each driver's own tests.
ABOUT_PROCESSES = {
    "test_a_stopped_model_leaves_no_process_and_no_listener",
    "test_a_death_while_loading_fails_the_load_at_once",
    "test_an_engine_that_ignores_term_is_gone_within_the_ladder",
    "test_a_hard_stop_does_not_ask",
    "test_a_frozen_engine_is_gone_within_the_ladder",
    "test_an_engine_that_forks_and_exits_is_gone_with_its_whole_tree",
    "test_engines_die_with_a_killed_daemon",
    "test_a_stubborn_engine_dies_with_a_killed_daemon",
    "test_the_next_start_reaps_what_outlived_daemon_and_guard",
}


class ForeignContract:
    """Inherit this, and bring a world."""

    #: Seconds in which a death is noticed.
    notice_s = 5.0
    #: When a load is cancelled; together these hit every step of it.
    cancel_ms: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 40, 80, 120)

    # A subclass has a fixture `world` that gives a World.

    @pytest.fixture
    async def foreign(self, world: World) -> AsyncIterator[Foreign]:
        foreign = Foreign(world)
        yield foreign
        await within(15, foreign.engine.close())
        await eventually(lambda: world.present() == set())

    async def test_a_loaded_model_answers(self, foreign: Foreign, world: World) -> None:
        """RES-12: a model is warm only when it answers."""
        model = world.model("one")
        warm: Warm = await within(10, foreign.engine.load(model, 1))
        assert "one" in world.present()
        status, answer = await asyncio.to_thread(ask, warm.endpoint, self.question(warm))
        assert status == 200, answer
        assert foreign.deaths == []

    async def test_a_stopped_model_is_gone(self, foreign: Foreign, world: World) -> None:
        """R35: when the stop returns, the memory is back."""
        await within(10, foreign.engine.load(world.model("one"), 1))
        await within(10, foreign.engine.stop("one"))
        assert world.present() == set()
        assert foreign.engine.memory("one") == {}
        assert foreign.deaths == []

    async def test_a_stopped_model_can_be_loaded_again(self, foreign: Foreign, world: World) -> None:
        for attempt in (1, 2):
            await within(10, foreign.engine.load(world.model("one"), attempt))
            await within(10, foreign.engine.stop("one"))
        assert world.present() == set()

    async def test_stopping_a_model_that_is_not_up_does_nothing(self, foreign: Foreign, world: World) -> None:
        """RES-09: what we did not load is not ours to stop, though it has the right name."""
        await world.bring("one")
        await within(1, foreign.engine.stop("nobody"))
        await within(1, foreign.engine.stop("one", hard=True))
        assert world.present() == {"one"}
        await world.take_away("one")

    async def test_two_models_load_at_once_without_a_clash(self, foreign: Foreign, world: World) -> None:
        models = [world.model("one"), world.model("two")]
        warms = await within(15, asyncio.gather(*(foreign.engine.load(model, 1) for model in models)))
        for warm in warms:
            status, _ = await asyncio.to_thread(ask, warm.endpoint, self.question(warm))
            assert status == 200
        await within(10, foreign.engine.stop("one"))
        assert world.present() == {"two"}

    async def test_a_model_that_is_up_is_not_loaded_twice(self, foreign: Foreign, world: World) -> None:
        await within(10, foreign.engine.load(world.model("one"), 1))
        with pytest.raises(LoadError, match="already up"):
            await within(10, foreign.engine.load(world.model("one"), 2))
        assert world.present() == {"one"}

    async def test_what_is_there_already_is_a_success(self, foreign: Foreign, world: World) -> None:
        """Race 10: somebody else loaded it; now it is ours, and leaves when we say so."""
        await world.bring("one")
        await within(10, foreign.engine.load(world.model("one"), 1))
        await within(10, foreign.engine.stop("one"))
        assert world.present() == set()

    async def test_memory_is_measured(self, foreign: Foreign, world: World) -> None:
        """RES-04: the books hold what the host says."""
        if not foreign.engine.capabilities.measures_memory:
            pytest.skip("capability measures_memory: its models declare their memory")
        warm = await within(10, foreign.engine.load(world.model("one"), 1))
        assert warm.memory["ram"] > 2**20
        assert foreign.engine.memory("one") == warm.memory

    async def test_a_cancelled_load_leaves_nothing_behind(self, foreign: Foreign, world: World) -> None:
        """Race 7: stop during start, by whoever waits for it."""
        loading = asyncio.create_task(foreign.engine.load(world.model("one", slow=True), 1))
        await eventually(lambda: "one" in world.present())
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(8, loading)
        assert world.present() == set()
        assert foreign.deaths == []

    async def test_a_load_cancelled_at_any_moment_leaves_nothing_behind(
        self, foreign: Foreign, world: World
    ) -> None:
        """Race 7: the moment of the cancel does not matter, also when it comes twice."""
        for millis in self.cancel_ms:
            loading = asyncio.create_task(foreign.engine.load(world.model("one"), 1))
            await asyncio.wait([loading], timeout=millis / 1000)
            await cancel_twice(loading)
            with contextlib.suppress(asyncio.CancelledError):
                await within(8, loading)
                await within(8, foreign.engine.stop("one"))
            assert world.present() == set(), f"cancelled after {millis} ms"

    async def test_a_load_cancelled_as_it_becomes_warm_leaves_nothing_behind(
        self, foreign: Foreign, world: World
    ) -> None:
        """Race 7: the caller gives up in the very turn of the loop in which the model became warm."""
        loading = asyncio.create_task(foreign.engine.load(world.model("one"), 1))
        inner = await until_warm_inside(foreign.engine, "one")
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(10, loading)
        assert not inner.cancelled() and inner.result(), "it was not warm, so nothing was shown"
        assert world.present() == set()

    async def test_a_model_stopped_while_it_loads_is_gone(self, foreign: Foreign, world: World) -> None:
        """Race 7: stop during start, by the scheduler."""
        loading = asyncio.create_task(foreign.engine.load(world.model("one", slow=True), 1))
        await eventually(lambda: "one" in world.present())
        await within(8, foreign.engine.stop("one"))
        assert world.present() == set()
        with pytest.raises(LoadError, match="stopped while it loaded"):
            await within(1, loading)
        assert foreign.deaths == []

    async def test_a_load_that_takes_too_long_fails_and_leaves_nothing_behind(
        self, foreign: Foreign, world: World
    ) -> None:
        """Invariant 2: everything that waits has a deadline."""
        slow = world.model("one", slow=True)
        with pytest.raises(LoadError, match="was not warm after 700 ms"):
            await within(8, foreign.engine.load(replace(slow, load_timeout_ms=Millis(700)), 1))
        assert world.present() == set()

    async def test_a_death_while_ready_is_reported_once(self, foreign: Foreign, world: World) -> None:
        """Race 7, R27: the death is noticed, with its reason, and the model can come back."""
        await within(10, foreign.engine.load(world.model("one"), 7))
        await within(10, foreign.engine.load(world.model("two"), 8))
        await world.take_away("one")
        await eventually(lambda: foreign.deaths != [], seconds=self.notice_s)
        assert foreign.deaths[0][:2] == ("one", 7)
        assert foreign.deaths[0][2]
        await within(5, foreign.engine.stop("one"))  # as the scheduler does after a death
        await within(10, foreign.engine.load(world.model("one"), 9))
        assert len(foreign.deaths) == 1

    async def test_a_stop_is_no_death(self, foreign: Foreign, world: World) -> None:
        await within(10, foreign.engine.load(world.model("one"), 1))
        await within(10, foreign.engine.load(world.model("two"), 1))
        await within(10, foreign.engine.stop("one"))
        await world.take_away("two")
        await eventually(lambda: foreign.deaths != [], seconds=self.notice_s)
        assert [death[0] for death in foreign.deaths] == ["two"]
        await within(5, foreign.engine.stop("two"))

    async def test_an_engine_that_closes_gives_everything_back(self, foreign: Foreign, world: World) -> None:
        await within(10, foreign.engine.load(world.model("one"), 1))
        await within(10, foreign.engine.load(world.model("two"), 1))
        await within(10, foreign.engine.close())
        assert world.present() == set()
        with pytest.raises(LoadError, match="shut down"):
            await foreign.engine.load(world.model("one"), 2)

    async def test_nobody_there_fails_the_load_and_says_what_to_do(
        self, foreign: Foreign, world: World
    ) -> None:
        """Errors teach: the message holds the command that helps."""
        await world.vanish()
        with pytest.raises(LoadError, match=r"ollama serve|watchbill reactor") as failure:
            await within(10, foreign.engine.load(world.model("one"), 1))
        assert not failure.value.hopeless

    def question(self, warm: Warm) -> tuple[str, str, dict[str, Any] | None]:
        """A request that a healthy model answers with 200."""
        fields = {"model": warm.endpoint.upstream_model, "messages": [{"role": "user", "content": "Hi"}]}
        return "POST", "/v1/chat/completions", fields | {"max_tokens": 3}
