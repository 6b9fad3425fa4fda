"""Models that exclude each other and are wanted all the time: how much of their place's time goes into loading."""

from collections.abc import Sequence

import pytest

from watchbill.core.model_state import ModelState
from watchbill.simulate.fuzz import CONTENDED_MS, contended_world
from watchbill.simulate.world import World

LAW = "loading takes more than its share"
#: In one of them clients send one request after another.
SEEDS = (0, 2, 4)
MANY_SEEDS = tuple(seed for seed in range(32) if seed not in SEEDS)


def run(seed: int, policy: str = "rate", alpha: float = 1.0) -> World:
    """A world from its first request to its last answer."""
    return contended_world(seed, policy=policy, alpha=alpha).run(2 * CONTENDED_MS)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("policy", ["rate", "turns"])
def test_loading_takes_at_most_its_share_of_any_long_window(policy: str, alpha: float) -> None:
    """RES-11: 1 / (1 + min(alpha, 1)) of the time of a place for one model, turns of models with work counted."""
    assert_shares(SEEDS, policy, alpha)


@pytest.mark.torture
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_loading_takes_at_most_its_share_in_many_worlds(alpha: float) -> None:
    """RES-11: the same, in more worlds."""
    assert_shares(MANY_SEEDS, "rate", alpha)


def assert_shares(seeds: Sequence[int], policy: str, alpha: float) -> None:
    worlds = [run(seed, policy, alpha) for seed in seeds]
    assert not [world.judge.broken for world in worlds if world.judge.broken]
    assert not any(world.open for world in worlds)
    assert sum(world.judge.places.windows for world in worlds) > 20 * len(seeds)


def test_without_a_quantum_loading_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-11: the law can be broken: a policy that may close anybody at any time does nothing but load."""
    monkeypatch.setattr(ModelState, "has_had_turn", lambda self, now: True)
    assert any(LAW in run(seed).judge.broken for seed in SEEDS)


@pytest.mark.parametrize("policy", ["turns", "rate"])
def test_an_answer_longer_than_a_quantum_is_not_begun_anew_for_ever(policy: str) -> None:
    """RES-12: engines that think to the end before their first byte, in turns shorter than their answers: who was
    cut once is not cut again, so every turn gets somebody an answer."""
    for seed in range(6):
        world = contended_world(seed, policy=policy, known=False)
        world.mute = True
        world.run(CONTENDED_MS + 600_000)
        assert "cut twice before its first byte" not in world.judge.broken
        assert any(caller.was_cut for caller in world.callers.values()) or seed % 2, seed
        assert not world.open
