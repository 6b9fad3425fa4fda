"""Hosts that fall silent, in worlds that nobody designed; and controls that must break a law."""

from typing import Any

import pytest

from watchbill.core.companions import Candidate
from watchbill.core.messages import HostSeen
from watchbill.core.residency import Residency
from watchbill.core.state import State
from watchbill.simulate.fuzz import random_world, run_out

#: Worlds in which a host is silent while models wait for it, and those in which it stops no model for a while.
SEEDS = (34, 40, 41, 83)
DEAF = (10, 26, 91, 103, 825)


def laws_broken(*seeds: int) -> set[str]:
    worlds = [run_out(random_world(seed)) for seed in seeds]
    assert all(any("silent" in note.event for _, note in world.journal) for world in worlds)
    return {law for world in worlds for law in world.judge.broken}


def test_silent_hosts_break_no_law() -> None:
    """RES-13, P3: no request and no load is sent there, nobody waits past the bound, and all goes on afterwards."""
    assert not laws_broken(*SEEDS)


def test_hosts_that_stop_no_model_break_no_law() -> None:
    """RES-22, P3: their models serve, none leaves for a load that cannot be, and all goes on afterwards."""
    assert not laws_broken(*DEAF)


@pytest.mark.parametrize("seeds", [SEEDS, DEAF], ids=["silent", "deaf"])
def test_a_core_that_loads_at_a_silent_host_is_found(
    seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load = State.may_load

    def careless(self: State, model: Candidate, now: int) -> bool:
        silences = [s.silence for s in model.arriving]
        for each in model.arriving:
            each.silence = None
        try:
            return may_load(self, model, now)
        finally:
            for each, silence in zip(model.arriving, silences, strict=True):
                each.silence = silence

    monkeypatch.setattr(State, "may_load", careless)
    assert "asked of a host that is silent" in laws_broken(*seeds)


def test_a_core_that_overlooks_a_silence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    host_seen = Residency.host_seen

    def deaf(self: Residency, event: HostSeen, now: int) -> Any:
        host_seen(self, event, now)
        for model in self._state.managed:  # pyright: ignore[reportPrivateUsage]
            model.silence, model.is_cut_off = None, False

    monkeypatch.setattr(Residency, "host_seen", deaf)
    assert "asked of a host that is silent" in laws_broken(*SEEDS)
