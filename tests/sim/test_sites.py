"""Sites that refuse, fail, close and are away, in worlds that nobody designed; and controls that must break a law."""

import pytest

from watchbill.core import admission, dispatch, routing
from watchbill.core.messages import Refusal, Request
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import Bar
from watchbill.core.state import Closing, State
from watchbill.simulate.fuzz import random_world, run_out

SEEDS = (7, 13, 16, 37)


def laws_broken(*seeds: int) -> tuple[set[str], int]:
    """The laws that worlds of these seeds break, and how often a site failed a request there."""
    worlds = [run_out(random_world(seed)) for seed in seeds]
    failures = sum(len(caller.failed_at) for world in worlds for caller in world.callers.values())
    return {law for world in worlds for law in world.judge.broken}, failures


def test_failing_sites_break_no_law() -> None:
    """SPOOL-10, P3: not sent twice to a site that failed it, nor to a closed one; every request ends in its bound."""
    broken, failures = laws_broken(*SEEDS)
    assert not broken
    assert failures > 10, "the worlds draw failures of sites"


def test_a_core_that_forgets_who_failed_a_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(state: State, model: ModelState, request: Request) -> Bar | None:
        bar = routing.bar_of(state, model, request)
        return None if bar is Bar.FAILED else bar

    monkeypatch.setattr(admission, "bar_of", forgetful)
    assert "sent to a site that has failed it" in laws_broken(*SEEDS)[0]


def test_a_core_that_overlooks_the_closing_of_one_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(state: State, model: ModelState) -> Closing | None:
        return state.closed_sites.get((model.spec.site or "", ""))

    monkeypatch.setattr(admission, "closing_of", coarse)
    monkeypatch.setattr(routing, "closing_of", coarse)
    assert "sent to a site that is closed" in laws_broken(*SEEDS)[0]


def test_a_core_that_overlooks_what_is_private_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-10: some requests are private in these worlds."""

    def careless(state: State, model: ModelState, request: Request) -> Bar | None:
        bar = routing.bar_of(state, model, request)
        return None if bar in (Bar.PRIVATE, Bar.HERE) else bar

    monkeypatch.setattr(admission, "bar_of", careless)
    monkeypatch.setattr(dispatch, "is_out_of_reach", lambda _state, _model, _request: False)  # pyright: ignore
    assert "sent beyond its reach" in laws_broken(*SEEDS)[0]


@pytest.mark.parametrize("said", [Refusal.TIER_CLOSED, Refusal.NEVER_FITS])
def test_a_core_that_refuses_what_another_site_may_serve_is_found(
    monkeypatch: pytest.MonkeyPatch, said: Refusal
) -> None:
    def give_up(self: admission.Admission, request_id: str, now: int) -> None:
        state = self._state  # pyright: ignore[reportPrivateUsage]
        if (model := state.home.get(request_id)) is not None and request_id in model.line:
            state.withdraw(model, request_id)
            state.refuse(request_id, said, "it was refused there")

    monkeypatch.setattr(admission.Admission, "leave_site", give_up)
    assert "refused although another site may serve it" in laws_broken(*SEEDS)[0]


def test_a_core_that_waits_for_an_absent_peer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(_self: admission.Admission, _model: ModelState, _now: int) -> bool:
        return False

    monkeypatch.setattr(admission.Admission, "_is_away", blind)
    assert "waits for a peer that is away" in laws_broken(*SEEDS)[0]
