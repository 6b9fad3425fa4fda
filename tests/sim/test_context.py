"""Context that a swap would lose is part of a model's momentum."""

from collections.abc import Callable

import pytest

from watchbill.catalog import Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.core.policy import Rate
from watchbill.simulate.world import World

MIB = 2**20


@pytest.fixture
def core(world_of: Callable[..., World], model: Callable[..., Model]) -> Machine:
    """A core in which `a` is warm, and `b` fits only without it."""
    world = world_of(model("a", concurrency=2), model("b"))
    world.run(1)
    world.arrive("a", 100, lane="chat")
    return world.run(10_000).core


def answer(core: Machine, now: int, prompt_bytes: int) -> None:
    """`a` answers a prompt that it has read within half a second."""
    request = m.Request(f"asked {now}", "a", "chat", WorkClass.INTERACTIVE, now, 60_000, 600_000)
    core.step(m.Arrived(request), now)
    core.step(m.Ended(request.id, True, None, 500, prompt_bytes), now + 1_000)


def round_trip_ms(core: Machine, now: int) -> float:
    models = core.state.models
    return Rate().balance(core.state, models["b"], (models["a"],), now).round_trip_ms


def test_lost_context_makes_a_round_trip_longer(core: Machine) -> None:
    """RES-11: the contexts in the slots, times the learned time to read a prompt, count as part of the reload."""
    answer(core, 20_000, 100)
    short = round_trip_ms(core, 29_000)
    answer(core, 30_000, MIB)
    answer(core, 40_000, MIB)
    assert round_trip_ms(core, 49_000) - short == 1_000  # two slots, half a second each
    answer(core, 50_000, 100)  # the older of the two contexts has gone from its slot
    assert 500 <= round_trip_ms(core, 59_000) - short <= 501


def test_context_is_lost_with_its_model(core: Machine) -> None:
    """RES-11: a model that was away has none to lose."""
    answer(core, 20_000, MIB)
    model = core.state.models["a"]
    assert model.context.rebuild_ms == 500
    core.step(m.Died("a", model.attempt, "killed"), 30_000)
    assert model.context.rebuild_ms == 0
