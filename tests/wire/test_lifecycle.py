"""The life of a model at any engine: the races that the contract suites cannot bring about with real programs."""

import asyncio
from collections.abc import Mapping

import pytest

from watchbill.catalog import Model
from watchbill.core.messages import Blame
from watchbill.engines.base import Capabilities, Endpoint, LoadError, Warm
from watchbill.engines.lifecycle import Hold, Lifecycle
from watchbill.engines.readiness import Progress
from watchbill.errors import EngineFailed
from watchbill.units import Millis

WARM = Warm(Endpoint("127.0.0.1", 1), None, {})
MODEL = Model("m", "hand", load_timeout_ms=Millis(100))


class HandEngine(Lifecycle[Hold]):
    """An engine whose every step does what the test says."""

    capabilities = Capabilities(owned=True, measures_memory=False, stops_generation=False)

    def __init__(self) -> None:
        self.deaths: list[tuple[object, ...]] = []
        super().__init__(lambda *told: self.deaths.append(told))
        self.acts: list[str] = []
        self.gate = asyncio.Event()  # a load waits for it
        self.gate.set()
        self.fails: Exception | None = None
        self.sticks = False  # whether nothing can be taken down

    def memory(self, model: str) -> Mapping[str, int]:
        return {}

    def _new_hold(self, model: Model, attempt: int, expected_ms: int | None) -> Hold:
        return Hold(model, attempt, Progress("it was waiting for the gate", expected_ms))

    async def _bring_up(self, hold: Hold) -> Warm:
        self.acts.append("up")
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return WARM

    async def _too_slow(self, hold: Hold, what: str) -> LoadError:
        return LoadError(f"{hold.model.name} {what}", blame=Blame.HOST)

    async def _undo(self, hold: Hold) -> None:
        self.acts.append("undo")
        self._stick()

    async def _take_down(self, hold: Hold, *, hard: bool) -> None:
        self.acts.append("down")
        self._stick()

    def _stick(self) -> None:
        if self.sticks:
            raise EngineFailed("it is still there")

    def _watch(self, hold: Hold) -> None:
        self.acts.append("watch")

    def die(self, hold: Hold) -> None:
        self._report(hold, "it died")


@pytest.mark.parametrize("how", ["fails", "takes too long", "is cancelled"])
@pytest.mark.parametrize("sticks", [False, True], ids=["undone", "not undone"])
async def test_a_load_that_cannot_be_undone_stays_held_until_it_is_stopped(how: str, sticks: bool) -> None:
    """RES-04: memory that may still be taken never counts as free, and can be freed later."""
    engine = HandEngine()
    engine.sticks = sticks
    if how == "fails":
        engine.fails = LoadError("m is broken")
    else:
        engine.gate.clear()
    loading = asyncio.ensure_future(engine.load(MODEL, 1))
    if how == "is cancelled":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
    else:
        with pytest.raises(LoadError) as caught:
            await loading
        assert caught.value.remains is sticks
        assert (caught.value.blame is Blame.HOST) == (how == "takes too long")
    assert engine.acts == ["up", "undo"]
    engine.gate.set()
    engine.fails = None
    if sticks:
        with pytest.raises(LoadError, match="already up or still stopping"):
            await engine.load(MODEL, 2)
        with pytest.raises(EngineFailed):
            await engine.stop("m")
        engine.sticks = False
        await engine.stop("m")
    assert await engine.load(MODEL, 3) is WARM


async def test_a_stop_waits_for_the_end_of_a_load_and_of_its_clearing_up() -> None:
    """Race 7: a stop never races a start."""
    engine = HandEngine()
    engine.gate.clear()
    loading = asyncio.ensure_future(engine.load(MODEL, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await engine.stop("m")
    assert engine.acts == ["up", "undo"]
    with pytest.raises(LoadError, match="stopped while it loaded"):
        await loading


async def test_a_death_during_a_stop_is_not_reported() -> None:
    """RES-20: the caller of the stop hears of the end."""
    engine = HandEngine()
    await engine.load(MODEL, 1)
    hold = engine._holds["m"]
    engine.die(hold)
    assert engine.deaths == [("m", 1, "it died", Blame.MODEL)]
    await engine.stop("m")
    engine.die(hold)
    assert len(engine.deaths) == 1


async def test_a_closed_engine_loads_nothing_and_has_stopped_everything() -> None:
    """Also what does not go keeps nothing else from being stopped."""
    engine = HandEngine()
    for name in ("m", "n"):
        await engine.load(Model(name, "hand"), 1)
    engine.sticks = True
    await engine.close()
    assert engine.acts.count("down") == 2
    with pytest.raises(LoadError, match="shut down"):
        await engine.load(Model("o", "hand"), 1)
