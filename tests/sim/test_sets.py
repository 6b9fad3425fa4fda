"""Companion sets: resident together or not at all, in worlds where exactly one thing happens (RES-13)."""

from dataclasses import replace

import pytest

from support.worlds import ModelOf, WorldOf, stage
from watchbill.catalog import Device, Lane, WorkClass
from watchbill.core import messages as m
from watchbill.core.residency import Residency
from watchbill.core.stages import STAYING, Stage
from watchbill.runtime.explain import explain
from watchbill.runtime.views import request_view
from watchbill.simulate.fuzz import random_world, run_out
from watchbill.simulate.world import Faults, World
from watchbill.units import Bytes, Millis

GB = 10**9


def notes(world: World, event: str) -> list[str | None]:
    return [n.model for _, n in world.journal if n.event == event]


def refusal(world: World, request: m.Request) -> m.Refuse:
    actions = world.core.step(m.Arrived(request), int(world.now))
    return next(a for a in actions if isinstance(a, m.Refuse))


def request(world: World, model: str, *companions: str, **more: object) -> m.Request:
    lane = world.catalog.lanes["chat"]
    return m.Request(
        "probe", model, "chat", lane.work_class, int(world.now), lane.max_wait_ms, lane.timeout_ms,
        companions=companions, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_request_starts_when_all_its_companions_are_warm(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: both load for it, one plan for both, and it starts with the second."""
    world = world_of(model("A", 8), model("B", 8))
    world.run(1_000)
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    assert [str(n.reason).split(":")[0] for _, n in world.journal if n.event == "plan"] == ["fits (A + B)"]
    world.run(4_500)
    assert (stage(world, "A"), stage(world, "B"), caller.state) == (Stage.READY, Stage.LOADING, "waiting")
    world.run(8_000)
    assert (caller.outcome, caller.started_at) == ("answered", 7_000)
    assert not world.judge.broken


def with_a_and_c_in_memory(world_of: WorldOf, model: ModelOf) -> World:
    """A world in which B fits beside A, and not beside A and C, which are both ready."""
    world = world_of(model("A", 8), model("B", 10), model("C", 12), capacity_gb=24)
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.arrive("C", 500, lane="chat")
    world.run(60_000)
    return world


def test_a_set_has_one_cover_and_leaves_its_own_members_alone(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: the warm member is no victim of its own set; what leaves makes room for all that is missing."""
    world = with_a_and_c_in_memory(world_of, model)
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(70_000)
    assert caller.outcome == "answered"
    assert notes(world, "evict") == ["C"]
    assert world.tally.loads_by_model == {"A": 1, "B": 1, "C": 1}


def test_a_member_that_came_first_is_not_evicted_while_the_other_loads(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, race 2: a rival whose pressure would displace an idle model finds none in a set that is under way."""
    world = world_of(model("A", 11), model("B", 11), model("C", 11), capacity_gb=24)
    world.run(1_000)
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(4_100)
    for _ in range(8):
        world.arrive("C", 500, lane="chat")
    world.run(7_100)
    assert caller.state == "running"
    world.run(60_000)
    assert world.tally.loads_by_model == {"A": 1, "B": 1, "C": 1}
    assert not world.judge.broken


@pytest.mark.parametrize("rest", ["sleep_ms", "idle_ms"])
@pytest.mark.parametrize("beside", ["loading", "busy"])
def test_a_member_stays_warm_while_a_request_waits_for_the_whole_set(
    world_of: WorldOf, model: ModelOf, rest: str, beside: str
) -> None:
    """RES-07, RES-13: it was put to sleep, or unloaded, as idle while its companion loaded for another request."""
    short = (
        {"sleep_ms": Millis(4_000), "sleeps_when_told": True} if rest == "sleep_ms" else {"idle_ms": 4_000}
    )
    world = world_of(model("A", 8, **short), model("B", 8), model("C", 12), load_ms=2_000)
    world.engines["B"].model = replace(world.truth["B"], load_ms=15_000)
    world.core.state.models["B"].load.learn(15_000)
    world.run(1_000)
    if beside == "busy":  # C has no room beside them, and its answer ends late
        world.arrive("C", 12_000, lane="chat")
    world.arrive("A", 500, lane="chat")
    world.run(6_000)
    assert stage(world, "A") is Stage.READY
    if beside == "loading":
        world.arrive("B", 500, lane="chat")
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(60_000)
    assert caller.outcome == "answered"
    assert world.tally.loads_by_model["A"] == 1 and not world.tally.wakings
    left = [at for at, n in world.journal if n.model == "A" and n.event in ("evict", "asleep")]
    assert caller.ended_at is not None and not [at for at in left if at <= caller.ended_at]
    assert not world.judge.broken


def test_a_turn_takes_no_member_of_a_set_that_is_under_way(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: A's quantum is over while B still loads, and C's turn is due: it waits for the set's one start."""
    lanes = {
        "chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000)),
        "soon": Lane("soon", WorkClass.INTERACTIVE, max_wait_ms=Millis(14_000)),
    }
    world = world_of(model("A", 11), model("B", 11), model("C", 11), capacity_gb=24, lanes=lanes)
    world.engines["B"].model = replace(world.truth["B"], load_ms=12_000)
    world.core.state.models["B"].load.learn(12_000)
    world.core.state.models["B"].load.learn(12_000)
    world.run(1_000)
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(4_500)
    world.arrive("C", 500, lane="soon")
    world.run(16_100)
    assert caller.state == "running"
    assert notes(world, "evict") == []


def test_a_companion_in_use_does_not_leave_until_the_request_has_ended(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13: an operator's eviction waits for the request; requests for the companion itself go on."""
    world = world_of(model("A", 8), model("B", 8))
    world.run(1_000)
    caller = world.arrive("A", 20_000, lane="chat", companions=("B",))
    world.run(8_000)
    inner = world.arrive("B", 500, lane="chat")
    assert inner.state == "running", "a companion takes no slot of its own"
    world.run(10_000)
    world.feed(m.EvictAsked(1, "B"))
    world.run(26_000)
    assert (stage(world, "B"), caller.state) == (Stage.DRAINING, "running")
    world.run(28_000)
    assert (stage(world, "B"), caller.outcome) == (Stage.ABSENT, "answered")
    assert [r.ok for r in world.replies] == [True]


def test_an_idle_companion_stays_for_a_long_answer(world_of: WorldOf, model: ModelOf) -> None:
    """RES-07, RES-13: its idle time begins when the request that needs it has ended."""
    world = world_of(model("A", 8), model("B", 8, idle_ms=Millis(5_000)))
    world.run(1_000)
    world.arrive("A", 30_000, lane="chat", companions=("B",))
    world.run(36_000)
    assert stage(world, "B") is Stage.READY
    world.run(44_000)
    assert stage(world, "B") is Stage.ABSENT


def test_the_largest_family_steps_down_until_the_set_fits(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: 22 + 12 GB do not fit into 24, 10 + 12 do; the grant says who is there, and `exact` opts out."""
    tiers = [model("big", 22, family="f"), model("mid", 10, family="f"), model("low", 3, family="f")]
    world = world_of(*tiers, model("vision", 12))
    world.run(1_000)
    caller = world.arrive("big", 500, lane="chat", companions=("vision",))
    assert (caller.served_by, caller.beside) == ("mid", ("vision",))
    other = world.arrive("vision", 500, lane="chat", companions=("big",))
    assert (other.served_by, other.beside) == ("vision", ("mid",))
    world.run(12_000)
    assert (caller.outcome, other.outcome) == ("answered", "answered")
    refused = refusal(world, request(world, "big", "vision", exact=True))
    assert refused.code == "never_fits"


def test_a_set_that_can_never_fit_is_refused_with_its_sizes(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: beside what is permanent; the text names the sizes, there is no advice to come back."""
    world = world_of(model("A", 10), model("B", 12), model("P", 4, permanent=True), capacity_gb=24)
    world.run(5_000)
    refused = refusal(world, request(world, "A", "B"))
    assert (refused.code, refused.retry_after_ms) == ("never_fits", None)
    assert (
        "A 10 GB + B 12 GB on gpu:0, where 24 GB less 4 GB of what stays is all there is" in refused.message
    )
    assert refusal(world, request(world, "A", "B", "P")).code == "never_fits"


def test_members_that_exclude_each_other_are_refused(world_of: WorldOf, model: ModelOf) -> None:
    """RES-08, RES-13: the law of the group holds for a set as well."""
    world = world_of(model("A", 2, group="g"), model("B", 2, group="g"))
    world.run(1_000)
    assert "A and B exclude each other on gpu:0" in refusal(world, request(world, "A", "B")).message


def test_a_companion_that_fails_to_load_is_tried_again_and_then_told(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, RES-20: as for the request's own model: attempts with a pause, then quarantine and a clear answer."""
    world = world_of(model("A", 8), model("B", 8), faults=Faults(load_fails=1.0))
    world.run(1_000)
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(60_000)
    assert caller.outcome == "model_failed"
    world.faults = Faults()
    assert refusal(world, request(world, "A", "B")).code == "model_failed"


def test_a_companion_that_dies_takes_nothing_with_it(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: the answer that has begun goes on; the next request waits until the companion is back."""
    world = world_of(model("A", 8, concurrency=2), model("B", 8))
    world.run(1_000)
    first = world.arrive("A", 20_000, lane="chat", companions=("B",))
    world.run(9_000)
    world.feed(m.Died("B", world.core.state.models["B"].attempt, "shot"))
    second = world.arrive("A", 500, lane="chat", companions=("B",))
    assert (first.state, second.state) == ("running", "waiting")
    world.run(60_000)
    assert (first.outcome, second.outcome) == ("answered", "answered")
    assert world.tally.loads_by_model == {"A": 1, "B": 2}


@pytest.mark.parametrize("when", [2_000, 4_500, 9_000])
def test_a_caller_who_leaves_releases_the_whole_set(world_of: WorldOf, model: ModelOf, when: float) -> None:
    """RES-13, race 4: while the first loads, while the second does, while it runs: nothing stays in use."""
    world = world_of(
        model("A", 11, idle_ms=Millis(9_000)), model("B", 11, idle_ms=Millis(9_000)), model("C", 20)
    )
    world.run(1_000)
    caller = world.arrive("A", 20_000, lane="chat", companions=("B",))
    world.run(when)
    world.leave(caller)
    after = world.arrive("C", 500, lane="chat")
    world.run(60_000)
    assert after.outcome == "answered"
    assert not any(s.users or s.awaited is not None or s.is_kept_for_set for s in world.core.state.managed)
    assert not world.core.state.companion_sets


def test_a_request_without_companions_passes_one_that_waits_for_its_own(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-13, race 12: the set is not complete, the model is warm: nobody else waits for that."""
    world = world_of(model("A", 8), model("B", 8))
    world.run(1_000)
    world.arrive("A", 500, lane="chat")
    world.run(6_000)
    together = world.arrive("A", 500, lane="chat", companions=("B",))
    alone = world.arrive("A", 500, lane="chat")
    assert (together.state, alone.state) == ("waiting", "running")


def test_maintenance_takes_a_set_and_gives_it_back(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13, RES-14: who waits for a set waits through it."""
    world = world_of(model("A", 8), model("B", 8))
    world.run(1_000)
    world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(10_000)
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "forge"))
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(20_000)
    assert (caller.state, world.replies[-1].ok) == ("waiting", True)
    world.feed(m.MaintenanceAsked(2, "gpu:0", False, "forge"))
    world.run(40_000)
    assert caller.outcome == "answered"


def test_a_set_over_two_devices_is_planned_on_both(model: ModelOf) -> None:
    """RES-01, RES-13: each member where it belongs, one plan."""
    from watchbill.catalog import Catalog, EngineRules
    from watchbill.simulate.engine import TrueModel

    devices = {name: Device(name, capacity=Bytes(24 * GB)) for name in ("gpu:0", "gpu:1")}
    models = [model("A", 20), model("B", 20, "gpu:1"), model("C", 20, "gpu:1")]
    lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(60_000))}
    engines = {"scripted": EngineRules("scripted", "scripted")}
    catalog = Catalog(devices, engines, {each.name: each for each in models}, lanes)
    truth = {each.name: TrueModel(each.name, 2_000, dict(each.memory)) for each in models}
    world = World(catalog, truth, dict.fromkeys(devices, 24 * GB))
    world.run(1_000)
    world.arrive("C", 500, lane="chat")
    world.run(30_000)
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(60_000)
    assert caller.outcome == "answered"
    assert notes(world, "evict") == ["C"]


@pytest.mark.parametrize("policy", ["rate", "turns", "fifo"])
def test_overlapping_sets_take_turns_and_never_deadlock(
    world_of: WorldOf, model: ModelOf, policy: str
) -> None:
    """RES-13: {A,B}, {B,C}, {C,A} with room for two: who holds a part and waits for the rest would wait for ever."""
    world = world_of(*(model(name, 11, concurrency=2) for name in "ABC"), capacity_gb=24)
    world.core = type(world.core)(
        replace(world.catalog, policy=replace(world.catalog.policy, name=policy)),
        {
            n: m.Knowledge(m.Footprint(dict(t.memory), dict(t.memory)), 3_000, 500)
            for n, t in world.truth.items()
        },
    )
    world.run(1_000)
    callers = [
        world.arrive(first, 500, lane="chat", companions=(second,))
        for first, second in [("A", "B"), ("B", "C"), ("C", "A")] * 2
    ]
    world.run(70_000)
    assert {c.outcome for c in callers} == {"answered"}
    assert world.tally.loads <= 8
    assert not world.judge.broken


def test_what_is_asked_of_a_set_is_explained_and_shown(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11, RES-13: `explain` shows the set and who would leave; the request says which member is missing."""
    world = with_a_and_c_in_memory(world_of, model)
    said = explain(world.core, request(world, "A", "B"), int(world.now))
    assert (said["verdict"], said["leaving"], said["companions"]) == ("these leave", ["C"], {"B": "absent"})
    caller = world.arrive("A", 500, lane="chat", companions=("B",))
    view = request_view(world.core, caller.request.id, {}, int(world.now))
    assert view is not None
    assert (view["model"], view["companions"]) == ("A", ["B"])
    assert "needs A + B in memory together; B is next to be loaded" in str(view["reason"])


# ------------------------------------------------------------------ the judge sees what these tests are about


def _in_part(patch: pytest.MonkeyPatch) -> None:
    """Only the first missing member is planned: hold and wait."""
    from watchbill.core.companions import CompanionSet

    whole = CompanionSet.arriving.fget  # type: ignore[attr-defined]
    patch.setattr(CompanionSet, "arriving", property(lambda self: whole(self)[:1]))


def _careless(patch: pytest.MonkeyPatch) -> None:
    """A companion counts as unused."""
    original = Residency.advance

    def advance(self: Residency, now: int) -> None:
        for model in self._state.managed:  # pyright: ignore[reportPrivateUsage]
            model.users = {}
        original(self, now)

    patch.setattr(Residency, "advance", advance)


def _impatient(patch: pytest.MonkeyPatch) -> None:
    """One warm member is enough to start."""
    from watchbill.core.companions import CompanionSet

    original = CompanionSet.refresh

    def refresh(self: CompanionSet, models: dict[str, object], now: int) -> None:
        original(self, models, now)  # type: ignore[arg-type]
        if self.serving.stage is Stage.READY:
            self.stage = Stage.READY

    patch.setattr(CompanionSet, "refresh", refresh)


BUGS = {
    "a set was planned in part": _in_part,
    "a companion was stopped while in use": _careless,
    "a grant without all its companions": _impatient,
}


@pytest.mark.parametrize("law", BUGS)
def test_the_judge_sees_broken_sets(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-13: each rule taken out turns its law red in random worlds."""
    BUGS[law](monkeypatch)
    for seed in range(60):
        world = run_out(random_world(seed, faults=False))
        if law in world.judge.broken:
            return
    pytest.fail(f"nobody saw: {law}")


def test_random_worlds_really_use_sets() -> None:
    """RES-13: a law about sets means nothing where none is served; some are, in half of the worlds."""
    started = 0
    for seed in range(16):
        world = run_out(random_world(seed, faults=False))
        started += sum(c.started_at is not None and bool(c.beside) for c in world.callers.values())
        assert not any(s.users for s in world.core.state.managed)
        assert all(s.stage in STAYING or not s.is_kept_for_set for s in world.core.state.managed)
    assert started > 50
