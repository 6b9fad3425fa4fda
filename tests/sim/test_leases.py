"""Leases for peers in virtual time: who makes way, how fast memory is back, and when leased work goes on."""

from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import LOCAL_SITE, Lane, PolicyRules, RoutingRules, Tier, TierRules, WorkClass
from watchbill.core import messages as m
from watchbill.core.absence import Why, absence_of
from watchbill.core.candidate import CandidateState
from watchbill.core.leases import LEASE_MS, QUIET_MS, RENEW_MS, Leases
from watchbill.core.reasons import LeaseOver
from watchbill.core.running import BOUNDARY_MS
from watchbill.core.stages import Stage
from watchbill.simulate.fuzz import random_world, run_out
from watchbill.simulate.world import World
from watchbill.units import Millis

LANES = {
    "chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000)),
    "batch": Lane("batch", WorkClass.BACKGROUND, max_wait_ms=Millis(120_000)),
    "leased": Lane("leased", WorkClass.LEASED, max_wait_ms=Millis(3_600_000), timeout_ms=Millis(3_600_000)),
}


def lease(world: World, model: str, id: str = "one", *, renewed_until: float = 600_000) -> str:
    """A lease of the peer `rig`, which renews it until then."""
    world.feed(m.LeaseAsked(1, id, "rig", model))
    at = world.now + RENEW_MS
    while at < renewed_until:
        world.at(at, lambda: world.feed(m.LeaseRenewed(id)))
        at += RENEW_MS
    return id


def leased_world(world_of: WorldOf, model: ModelOf) -> World:
    return world_of(model("far", 16), model("near", 16), lanes=LANES)


def test_a_lease_never_outlives_its_time_without_a_renewal(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23: swept after 60 s by this machine's own clock, and its requests end with it."""
    world = leased_world(world_of, model)
    id = lease(world, "far", renewed_until=70_000)
    running = world.arrive("far", 500_000, lane="leased", lease=id)
    waiting = world.arrive("far", 500, lane="leased", lease=id)
    world.run(60_000 + LEASE_MS - 1)
    assert id in world.core.state.leases, "renewed at 60 s"
    world.run(60_000 + LEASE_MS + 1_000)
    assert id not in world.core.state.leases
    assert LeaseOver("rig", LEASE_MS) in [note.reason for _, note in world.journal]
    assert (running.outcome, waiting.outcome) == ("preempted", "no_lease")
    assert world.arrive("far", 500, lane="leased", lease=id).outcome == "no_lease"
    assert not world.judge.broken


@pytest.mark.parametrize("begun_ms", [100, 5_000, 20_000])
def test_a_person_has_the_memory_within_one_step_and_the_drain(
    world_of: WorldOf, model: ModelOf, begun_ms: int
) -> None:
    """RES-23: revoked at once: before the first byte, in the middle of an answer, and while the model loads."""
    world = leased_world(world_of, model)
    id = lease(world, "far")
    far = world.arrive("far", 30_000, lane="leased", lease=id)
    world.run(begun_ms)
    person = world.arrive("near", 500, lane="chat")
    assert world.core.state.leases_held_back
    assert world.core.state.models["far"].stage in (Stage.DRAINING, Stage.STOPPING, Stage.ABSENT)
    world.run(world.now + BOUNDARY_MS + 3_000)
    assert world.core.state.models["far"].stage is Stage.ABSENT
    world.run(world.now + 10_000)
    assert person.outcome == "answered"
    assert far.outcome == "", "it is held, not ended"
    absence = absence_of(world.core.state, world.core.state.models["far"], int(world.now))
    assert absence is not None and absence.why is Why.RESTS, "RES-01: it was said to wait for its turn"
    quiet_from = world.now
    world.run(quiet_from + QUIET_MS + 60_000)
    assert far.outcome == "answered"
    assert not world.judge.broken


def test_no_leased_work_starts_before_it_was_quiet_for_long_enough(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23: 60 s after the end of the last interactive work, not after its arrival."""
    world = leased_world(world_of, model)
    id = lease(world, "far")
    world.run(1_000)
    person = world.arrive("near", 20_000, lane="chat")
    far = world.arrive("far", 500, lane="leased", lease=id)
    while person.outcome != "answered":
        world.run(world.now + 500)
    ended = person.ended_at
    assert ended is not None
    world.run(ended + QUIET_MS - 500)
    assert far.state == "waiting" and world.core.state.models["far"].stage is Stage.ABSENT
    world.run(ended + QUIET_MS + 30_000)
    assert far.outcome == "answered"
    assert not world.judge.broken


def test_a_person_who_asks_the_same_model_keeps_it(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23: memory that the person needs is not unloaded; the leased answer yields its place."""
    world = leased_world(world_of, model)
    id = lease(world, "far")
    far = world.arrive("far", 60_000, lane="leased", lease=id)
    world.run(10_000)
    person = world.arrive("far", 500, lane="chat")
    world.run(world.now + 20_000)
    assert person.outcome == "answered"
    assert far.outcome == ""
    assert world.core.state.models["far"].evictions == 0
    assert not world.judge.broken


def test_a_person_whom_another_machine_serves_revokes_nothing(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23: two machines that ask each other at once would hold each other's leases back until both give up."""
    theirs = replace(model("theirs", 0), devices=(), shared=True, concurrency=1, where=Tier.PEER, site="rig")
    world = world_of(model("far", 16), model("near", 16), theirs, lanes=LANES)
    id = lease(world, "far")
    world.run(5_000)
    first = world.arrive("theirs", 20_000, lane="chat")
    second = world.arrive("theirs", 500, lane="chat")
    far = world.arrive("far", 500, lane="leased", lease=id)
    world.run(world.now + 10_000)
    assert (first.state, second.state, far.outcome) == ("running", "waiting", "answered")
    assert not world.core.state.leases_held_back
    world.run(world.now + 30_000)
    later = world.arrive("far", 500, lane="leased", lease=id)
    world.run(world.now + 10_000)
    assert (first.outcome, second.outcome, later.outcome) == ("answered",) * 3, "nor after its end"
    assert not world.judge.broken


def test_a_core_that_takes_whoever_is_served_elsewhere_for_a_person_here_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RES-23: in a world that nobody designed. Leases are given there also where somebody was here before."""

    def quiet_in_ms(leases: Leases, now: int) -> int:
        state = leases._state  # pyright: ignore[reportPrivateUsage]
        return max(0, state.quiet_at - now) if state.leases_held_back else 0

    monkeypatch.setattr(Leases, "_quiet_in_ms", quiet_in_ms)
    assert not run_out(random_world(614)).judge.broken

    always = property(lambda _: True, lambda _self, _found: None)
    monkeypatch.setattr(CandidateState, "is_here", always, raising=False)
    assert "leased work made way for nobody here" in run_out(random_world(614)).judge.broken


def test_a_person_who_comes_back_from_another_machine_has_the_memory(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-23, SPOOL-10: the site failed the request, which waits here now: leased work makes way."""
    copy = replace(model("near@rig", 0), devices=(), shared=True, where=Tier.PEER, site="rig", copy_of="near")
    world = world_of(model("far", 16), model("near", 16), copy, lanes=LANES)
    rules = {"rig": TierRules("rig", Tier.PEER)}
    world.reload(replace(world.catalog, tiers=rules, routing=RoutingRules(("rig", LOCAL_SITE))))
    id = lease(world, "far")
    far = world.arrive("far", 60_000, lane="leased", lease=id)
    world.run(20_000)
    person = world.arrive("near", 500, lane="chat")
    assert person.state == "running" and not world.core.state.leases_held_back
    world.feed(m.Returned(person.request.id, None, "rig"))
    assert world.core.state.leases_held_back and far.outcome == ""
    assert world.core.state.models["far"].stage is Stage.DRAINING


def test_background_work_of_this_machine_revokes_nothing(world_of: WorldOf, model: ModelOf) -> None:
    world = leased_world(world_of, model)
    id = lease(world, "far")
    far = world.arrive("far", 5_000, lane="leased", lease=id)
    world.run(4_000)
    world.arrive("far", 500, lane="batch")
    assert not world.core.state.leases_held_back
    world.run(60_000)
    assert far.outcome == "answered" and not world.judge.broken


def test_a_request_that_comes_back_after_its_lease_was_given_back_does_not_wait(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-23: its machine is told that it has no lease, and asks anew, instead of being served without one."""
    world = leased_world(world_of, model)
    id = lease(world, "far")
    far = world.arrive("far", 5_000, lane="leased", lease=id)
    while not world.core.state.models["far"].running:
        world.run(world.now + 10)
    world.arrive("near", 500, lane="chat")  # it makes way
    world.feed(m.LeaseEnded(id))
    world.run(world.now + 10)
    assert far.outcome == m.Refusal.NO_LEASE and not world.judge.broken


def test_no_lease_is_given_while_somebody_works_and_a_peer_holds_a_bounded_number(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-23: the peer may ask elsewhere, and is told when to come back."""
    world = leased_world(world_of, model)
    for number in range(20):
        lease(world, "far", f"n{number}", renewed_until=0)
    assert len(world.core.state.leases) == 16
    world.arrive("near", 500, lane="chat")
    world.feed(m.LeaseEnded("n1"))
    lease(world, "far", "late", renewed_until=0)
    assert "late" not in world.core.state.leases
    lease(world, "nowhere", "unknown", renewed_until=0)
    assert "unknown" not in world.core.state.leases


def test_a_person_who_was_here_when_no_lease_was_held_is_left_alone_as_well(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-23: a lease was given in the second after her answer, because there had been none that she could revoke; and
    one in the middle of her work, when the last of those that rested was given back."""
    world = leased_world(world_of, model)
    lease(world, "far", "first", renewed_until=0)
    world.arrive("near", 500, lane="chat")
    world.feed(m.LeaseEnded("first"))
    world.run(world.now + 5_000)
    lease(world, "far", "amid her work", renewed_until=0)
    world.run(world.now + QUIET_MS + 5_000)
    world.arrive("near", 500, lane="chat")
    world.run(world.now + 5_000)
    lease(world, "far", "just after", renewed_until=0)
    assert not world.core.state.leases
    world.run(world.now + QUIET_MS)
    lease(world, "far", "when she has left", renewed_until=0)
    assert [*world.core.state.leases] == ["when she has left"]
    assert not world.judge.broken


@pytest.mark.parametrize("policy", ["rate", "fifo"])
def test_a_leased_request_that_rests_holds_up_no_person(
    world_of: WorldOf, model: ModelOf, policy: str
) -> None:
    """RES-23: however urgent it is, and in strict order of arrival, too: it may not start, so it is not next."""
    lanes = LANES | {"leased": replace(LANES["leased"], max_wait_ms=Millis(4_000))}
    world = world_of(model("far", 16), lanes=lanes, rules=PolicyRules(policy))
    id = lease(world, "far")
    world.arrive("far", 500, lane="chat")
    world.run(10_000)
    rests = world.arrive("far", 500, lane="leased", lease=id)
    world.run(world.now + 3_900)
    person = world.arrive("far", 500, lane="chat")
    world.run(world.now + 60)
    assert person.state == "running", "the leased request is about to give up, and rests all the same"
    world.run(world.now + 2_000)
    assert (person.outcome, rests.outcome) == ("answered", "wait_exceeded")
    assert not world.judge.broken


def test_a_deadline_of_a_peer_is_for_the_start_of_its_answer(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23, LANE-04: what has not begun rests no longer than that, and is refused at once where the rest is known to
    be longer. What has begun pauses for as long as its lane allows."""
    world = leased_world(world_of, model)
    id = lease(world, "far")
    begun = world.arrive("far", 30_000, lane="leased", lease=id, deadline_ms=20_000)
    world.run(15_000)
    world.arrive("near", 500, lane="chat")
    world.run(world.now + 5_000)
    late = world.arrive("far", 500, lane="leased", lease=id, deadline_ms=20_000)
    assert late.outcome == "wait_exceeded", "60 s of quiet are to come"
    rests = world.arrive("far", 500, lane="leased", lease=id, deadline_ms=70_000)
    for _ in range(8):
        world.run(world.now + 10_000)
        world.arrive("near", 500, lane="chat")
    assert (rests.outcome, begun.outcome) == ("wait_exceeded", "")
    world.run(world.now + QUIET_MS + 60_000)
    assert begun.outcome == "answered"
    assert not world.judge.broken


def test_nothing_is_loaded_for_leased_work_that_gave_up_while_a_person_works(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-23: its turn is held for it as for others, and comes when the person is gone, not before."""
    lanes = LANES | {"leased": replace(LANES["leased"], max_wait_ms=Millis(5_000))}
    world = world_of(model("far", 16), model("near", 16), lanes=lanes)
    id = lease(world, "far")
    world.arrive("near", 500, lane="chat")
    world.run(6_000)
    gone = world.arrive("far", 500, lane="leased", lease=id)
    for _ in range(20):
        world.run(world.now + 1_000)
        world.arrive("near", 500, lane="chat")
        assert world.core.state.models["far"].stage is Stage.ABSENT
    assert gone.outcome == "wait_exceeded" and not world.judge.broken


def test_a_core_that_lets_wait_what_another_site_may_serve_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-23: a third of what peers ask for in random worlds has another site."""
    seeds = (10, 111, 117)
    for seed in seeds:
        assert not run_out(random_world(seed)).judge.broken
    monkeypatch.setattr(Leases, "send_away", lambda _self, _request_id: None)  # pyright: ignore
    law = "waits for a person where another site may serve it"
    assert all(law in run_out(random_world(seed)).judge.broken for seed in seeds)
