"""Routing among sites in a simulated world: where a request goes, and when it is moved."""

from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import (
    LOCAL_SITE,
    Catalog,
    Lane,
    Model,
    Reach,
    RoutingRules,
    Tier,
    TierRules,
    WorkClass,
)
from watchbill.core import messages as m
from watchbill.core.messages import Refusal
from watchbill.core.routing import Bar, bar_of
from watchbill.core.stages import Stage
from watchbill.runtime.explain import explain
from watchbill.simulate.world import World
from watchbill.units import Millis


def copy_of(name: str, site: str, tier: Tier, **more: object) -> Model:
    shared = tier is Tier.EXTERNAL
    return Model(
        f"{name}@{site}", "scripted", devices=(), shared=shared, concurrency=4, where=tier, site=site, copy_of=name,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def routed(world: World, after_ms: int | None = None, order: tuple[str, ...] = ()) -> World:
    """The same world with a burst tier `box` and an external tier `cloud`."""
    rules = RoutingRules(
        order or (LOCAL_SITE, "box", "cloud"), None if after_ms is None else Millis(after_ms)
    )
    tiers = {"box": TierRules("box", Tier.BURST), "cloud": TierRules("cloud", Tier.EXTERNAL)}
    catalog: Catalog = replace(world.catalog, tiers=tiers, routing=rules)
    world.reload(catalog)
    return world


def test_a_model_that_can_never_fit_is_served_elsewhere(world_of: WorldOf, model: ModelOf) -> None:
    """SPOOL-10: the first site of the order that can."""
    world = routed(world_of(model("big", 99), copy_of("big", "cloud", Tier.EXTERNAL)))
    caller = world.arrive("big", 500, lane="chat")
    world.run(2_000)
    assert (caller.outcome, caller.served_by) == ("answered", "big@cloud")
    assert not world.judge.broken


def test_a_burst_site_is_loaded_beside_everything_here(world_of: WorldOf, model: ModelOf) -> None:
    """SPOOL-09: its start waits for no memory and no bus of this machine."""
    world = routed(world_of(model("big", 99), model("other", 20), copy_of("big", "box", Tier.BURST)))
    near = world.arrive("other", 500, lane="chat")
    far = world.arrive("big", 500, lane="chat")
    world.run(1_000)
    assert {s.name for s in world.core.state.in_stage(Stage.LOADING)} == {"other", "big@box"}
    world.run(20_000)
    assert (near.outcome, far.outcome, far.served_by) == ("answered", "answered", "big@box")
    assert not world.judge.broken


def test_an_idle_burst_site_leaves_and_one_that_answers_does_not(world_of: WorldOf, model: ModelOf) -> None:
    """SPOOL-09: idle time counts from the end of the last answer."""
    far = copy_of("big", "box", Tier.BURST, idle_ms=Millis(10_000))
    world = routed(world_of(model("big", 99), far))
    caller = world.arrive("big", 30_000, lane="chat")
    world.run(30_000)
    assert world.core.state.models["big@box"].stage is Stage.READY
    world.run(60_000)
    assert caller.outcome == "answered"
    assert world.core.state.models["big@box"].stage is Stage.ABSENT
    assert not world.judge.broken


@pytest.mark.parametrize(("lasts_ms", "stays"), [(5_000, True), (None, False), (60_000, False)])
def test_a_burst_site_whose_limit_is_reached_leaves_after_its_answers(
    world_of: WorldOf, model: ModelOf, lasts_ms: int | None, stays: bool
) -> None:
    """SPOOL-09: unless it opens again while the site would be kept: what was reserved may turn out smaller."""
    far = copy_of("big", "box", Tier.BURST, idle_ms=Millis(10_000))
    world = routed(world_of(model("big", 99), far))
    caller = world.arrive("big", 30_000, lane="chat")
    world.run(25_000)
    world.feed(m.SiteClosed("box", Bar.LIMIT, lasts_ms=lasts_ms))
    world.run(26_000)
    assert world.core.state.models["big@box"].stage is Stage.READY, "never while it answers"
    world.run(38_000)
    assert caller.outcome == "answered"
    assert (world.core.state.models["big@box"].stage is Stage.READY) == stays
    assert not world.judge.broken


def test_a_long_wait_here_is_a_reason_to_go_elsewhere_only_with_the_rule(
    world_of: WorldOf, model: ModelOf
) -> None:
    far = copy_of("a", "cloud", Tier.EXTERNAL)
    for after_ms, site in ((None, "a"), (2_000, "a@cloud")):
        world = routed(world_of(model("a", 20), far), after_ms)
        world.arrive("a", 500, lane="chat")
        world.run(5_000)
        for _ in range(10):
            world.arrive("a", 5_000, lane="chat")
        last = world.arrive("a", 500, lane="chat")
        assert last.served_by == site
        assert not world.judge.broken


@pytest.mark.parametrize(
    ("reach", "tier", "bar"),
    [
        (Reach.ANYWHERE, Tier.EXTERNAL, None),
        (Reach.ANYWHERE, Tier.BURST, None),
        (Reach.PRIVATE, Tier.EXTERNAL, Bar.PRIVATE),
        (Reach.PRIVATE, Tier.BURST, None),
        (Reach.HERE, Tier.EXTERNAL, Bar.HERE),
        (Reach.HERE, Tier.BURST, Bar.HERE),
    ],
)
def test_every_mark_of_a_request_against_every_tier(
    world_of: WorldOf, model: ModelOf, reach: Reach, tier: Tier, bar: Bar | None
) -> None:
    """SPOOL-10: private work is never sent to an external tier."""
    site = "box" if tier is Tier.BURST else "cloud"
    world = routed(world_of(model("a", 20), copy_of("a", site, tier)))
    state = world.core.state
    request = m.Request("r", "a", "chat", 0, 0, 1_000, 1_000, reach=reach)  # type: ignore[arg-type]
    assert bar_of(state, state.models[f"a@{site}"], request) is bar
    assert bar_of(state, state.models["a"], request) is None


def test_a_spent_out_tier_takes_nothing_and_its_waiting_requests_go_on(
    world_of: WorldOf, model: ModelOf
) -> None:
    """The daily limit: requests that wait there are moved to the next site, and come back with the new day."""
    world = routed(
        world_of(model("big", 99), copy_of("big", "box", Tier.BURST), copy_of("big", "cloud", Tier.EXTERNAL))
    )
    waiting = world.arrive("big", 500, lane="chat")
    assert waiting.served_by == "big@box"
    world.feed(m.SiteClosed("box", Bar.LIMIT))
    assert waiting.served_by == "big@cloud"
    world.feed(m.SiteClosed("cloud", Bar.LIMIT))
    refused = world.arrive("big", 500, lane="chat")
    assert refused.outcome == "tier_closed", "it never fits here, but the tier opens again"
    world.feed(m.SiteClosed("cloud", None))
    assert world.arrive("big", 500, lane="chat").served_by == "big@cloud"
    world.run(world.now + 5_000)
    assert waiting.outcome == "answered" and not world.judge.broken


def test_an_order_that_begins_elsewhere_is_kept(world_of: WorldOf, model: ModelOf) -> None:
    """The rule is the operator's: even a warm model here comes second then."""
    world = routed(
        world_of(model("a", 20), copy_of("a", "cloud", Tier.EXTERNAL)), order=("cloud", LOCAL_SITE, "box")
    )
    assert world.arrive("a", 500, lane="chat").served_by == "a@cloud"


def test_explain_says_what_each_site_would_do_and_decides_the_same(world_of: WorldOf, model: ModelOf) -> None:
    world = routed(world_of(model("big", 99), copy_of("big", "cloud", Tier.EXTERNAL)))
    request = m.Request("probe", "big", "chat", 0, world.now, 60_000, 60_000)  # type: ignore[arg-type]
    told = explain(world.core, request, world.now)
    assert (told["served_by"], told["tier"]) == ("big@cloud", "external")
    assert told["sites"] == {
        "local": "it can never fit into the memory here",
        "cloud": "would start it in 0 ms",
    }
    assert world.arrive("big", 500, lane="chat").served_by == told["served_by"]


@pytest.mark.parametrize("is_private", [True, False], ids=["private", "closed"])
def test_models_beside_it_open_no_site_to_a_request(
    world_of: WorldOf, model: ModelOf, is_private: bool
) -> None:
    """RES-13, SPOOL-09: with companions a request went to a tier whose limit was reached, and private work left."""
    family = {"family": "f", "family_rank": 1}
    far = copy_of("big", "cloud", Tier.EXTERNAL, **family)
    world = routed(world_of(model("big", 99, family="f", family_rank=0), model("near", 4), far))
    if not is_private:
        world.feed(m.SiteClosed("cloud", Bar.LIMIT, "", None))
    reach = Reach.PRIVATE if is_private else Reach.ANYWHERE
    asked = m.Request(
        "x", "big", "chat", WorkClass.INTERACTIVE, 0, 60_000, 60_000, companions=("near",), reach=reach
    )
    (answer,) = [each for each in world.core.step(m.Arrived(asked), 0) if isinstance(each, m.Refuse)]
    assert answer.code == Refusal.TIER_CLOSED and "cloud" in answer.message


def test_an_answer_whose_lender_dies_late_waits_for_it_as_long_as_a_new_one(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-23, R36: it had run for longer than its lane's max_wait, and at most half of that was left for the machine to
    come back: one that takes a minute and a half to start was too late."""
    world = routed(world_of(model("big", 99), copy_of("big", "box", Tier.BURST)))
    caller = world.arrive("big", 400_000, lane="chat")
    world.run(200_000)
    wait_ms = caller.request.max_wait_ms
    assert caller.begun and world.now > caller.request.arrived_at + wait_ms
    running = world.core.state.models["big@box"]
    world.feed(m.Died("big@box", running.attempt, "gone", m.Blame.HOST))
    world.run(world.now + 1)
    line = world.core.state.home[caller.request.id].line
    assert line.due_of(caller.request.id) >= world.now - 1 + wait_ms
    world.run(world.now + 600_000)
    assert caller.outcome in ("answered", "run_timeout") and not world.judge.broken


def test_a_request_whose_lender_dies_before_a_word_waits_for_it(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23: its lane's timeout, shorter than its max_wait, ran on while that machine came back."""
    lanes = {"chat": Lane("chat", max_wait_ms=Millis(120_000), timeout_ms=Millis(20_000))}
    world = routed(world_of(model("big", 99), copy_of("big", "box", Tier.BURST), lanes=lanes, load_ms=30_000))
    caller = world.arrive("big", 10_000, lane="chat")
    while caller.started_at is None:
        world.run(world.now + 10)
    world.feed(m.Died("big@box", world.core.state.models["big@box"].attempt, "gone", m.Blame.HOST))
    world.run(world.now + 80_000)
    assert caller.outcome == "answered"
    assert not world.judge.broken


def test_a_pause_elsewhere_is_a_wait_with_a_bound(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23, LANE-04: the timeout does not run; max_wait and timeout together bound the request all the same."""
    world = routed(world_of(model("big", 99), copy_of("big", "box", Tier.BURST)))
    caller = world.arrive("big", 1e9, lane="chat")
    request = caller.request
    world.run(10_000)
    run = world.core.state.models["big@box"].running[request.id]
    world.feed(m.Rested(request.id, True))
    world.feed(m.Rested(request.id, True))
    assert run.deadline == request.arrived_at + request.max_wait_ms + request.timeout_ms
    world.run(40_000)
    world.feed(m.Rested(request.id, False))
    assert run.deadline == run.since + request.timeout_ms + 30_000
    world.feed(m.Rested(request.id, True))
    world.run(request.arrived_at + request.max_wait_ms + request.timeout_ms + 1_000)
    assert caller.outcome == "run_timeout"


def test_the_same_site_under_a_new_name_is_no_other_site(world_of: WorldOf, model: ModelOf) -> None:
    """SPOOL-10: what the site refused was sent back for another one, and refused as a model that can never fit."""
    world = routed(world_of(model("big", 99), copy_of("big", "box", Tier.BURST)))
    caller = world.arrive("big", 30_000, lane="chat")
    world.run(10_000)
    assert caller.served_by == "big@box"
    own, renamed = world.catalog.models["big"], copy_of("big", "box", Tier.BURST, served_as="other")
    _set_models(world, own, replace(renamed, name="big@boxx"))
    assert not world.core.can_leave_site(caller.request.id, int(world.now))
    _set_models(world, own, replace(renamed, name="big@boxx"), copy_of("big", "cloud", Tier.EXTERNAL))
    assert world.core.can_leave_site(caller.request.id, int(world.now))


def _set_models(world: World, *models: Model) -> None:
    true = world.truth["big@box"]
    world.reload(
        replace(world.catalog, models={each.name: each for each in models}),
        {each.name: replace(true, name=each.name) for each in models if each.name not in world.truth},
    )
