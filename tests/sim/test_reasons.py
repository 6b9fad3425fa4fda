"""Reasons of decisions are records with figures; the sentence is made from them (RES-26)."""

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import PolicyRules, Tier
from watchbill.core import messages as m
from watchbill.core import reasons
from watchbill.core.reasons import BecameWarm, Idle, PlanKind, Planned, Reason, Swapped, TurnCame
from watchbill.simulate.fuzz import random_world, run_out
from watchbill.simulate.world import World
from watchbill.units import Millis

#: One of each record.
EXAMPLES: list[Reason] = [
    reasons.AboveUsual("A", "ram", 3_000_000, 1_000_000),
    reasons.BecameWarm(reasons.Proof.CHAT, 900, {"ram": 1}),
    reasons.Cost("cloud", Tier.EXTERNAL, 0.002, prompt_tokens=20, answer_tokens=100),
    reasons.Cost("box", Tier.BURST, 0.5, up_ms=90_000),
    reasons.Elsewhere("cloud"),
    reasons.EpochClosed("night", is_done=True),
    reasons.EpochOpened("night", by_schedule=True),
    *(reasons.Excess(what, "ram", "nightly backup") for what in reasons.Exceeded),
    reasons.Fits(),
    reasons.HostHolds("ollama", 2),
    reasons.HostUnloads("ollama"),
    reasons.Idle(300_000, as_asked=True),
    reasons.InPlaceOf("large"),
    reasons.Lent("ram", 2_000_000, "whisper"),
    reasons.Outweighs(0.001, 0.0002),
    reasons.OverQuota("A", "ram", 3_000_000, 1_000_000),
    reasons.LeaseGranted("rig", 60_000),
    reasons.LeaseOver("rig"),
    reasons.LeaseOver("rig", 60_000),
    reasons.LeaseRevoked(()),
    reasons.LeaseRevoked(("rig", "box")),
    reasons.LeasesPaused(2),
    reasons.LeasesRestored(2),
    *(reasons.Occurred(occasion) for occasion in reasons.Occasion),
    reasons.PermanentMissing(),
    reasons.PlanDropped("B"),
    reasons.Planned(PlanKind.FITS, "A + B", ("A", "B"), reasons.Fits(), ("C",)),
    reasons.RoutedTo("cloud", Tier.EXTERNAL, "big"),
    reasons.Shortfall("ram"),
    reasons.Shortfall("ram", 1_000_000, 2_000_000),
    reasons.Stalls(3),
    reasons.Swapped(PlanKind.RATE, "B", reasons.Outweighs(0.001, 0.0002)),
    reasons.TaskDue(),
    reasons.TaskTook("summarized", 100, 200),
    reasons.TurnCame(1_500, None),
    *(reasons.Uncertainty(figure, "A") for figure in reasons.Uncertain),
    reasons.Unwell(3, 0, "no answer within 60 s"),
    reasons.Unwell(1, 1, None),
    reasons.WaitedLongest(),
    reasons.Well(3),
]


def written(world: World, kind: type[Reason]) -> list[Reason]:
    return [note.reason for _, note in world.journal if isinstance(note.reason, kind)]


@pytest.mark.parametrize("reason", EXAMPLES, ids=lambda reason: type(reason).__name__)
def test_every_reason_has_a_sentence_of_its_own(reason: Reason) -> None:
    """RES-26: no record reaches a person as the name of its class and a list of fields."""
    text = str(reason)
    assert text and "{" not in text and type(reason).__name__ not in text
    assert text == text.strip()


def test_the_examples_are_complete() -> None:
    """A record that is added gets its sentence tested."""
    assert {type(reason) for reason in EXAMPLES} == set(Reason.__subclasses__())


def test_a_swap_tells_its_kind_its_target_and_its_figures_in_fields(
    world_of: WorldOf, model: ModelOf
) -> None:
    """RES-26: plan and eviction carry the same reason; the sentence holds the figures of the fields."""
    world = world_of(model("A"), model("B"))
    world.arrive("A", 20_000, lane="batch")
    world.run(5_000)
    world.arrive("A", 20_000, lane="batch")
    world.arrive("B", 500, lane="chat")
    world.run(60_000)
    plans = [plan for plan in written(world, Planned) if isinstance(plan, Planned) and plan.leaving == ("A",)]
    swaps = [swap for swap in written(world, Swapped) if isinstance(swap, Swapped) and swap.target == "B"]
    assert plans and swaps
    assert (plans[0].kind, plans[0].target, plans[0].members) == (swaps[0].kind, "B", ("B",))
    turn = swaps[0].why
    assert isinstance(turn, TurnCame) and turn.left_ms is not None
    assert f"{turn.left_ms / 1000:.1f} s left" in str(swaps[0])


def test_a_set_is_named_by_its_members(world_of: WorldOf, model: ModelOf) -> None:
    """RES-13: nobody has to take the name of a set apart."""
    world = world_of(model("A", 8), model("B", 8))
    world.arrive("A", 500, lane="chat", companions=("B",))
    world.run(30_000)
    [plan] = [plan for plan in written(world, Planned) if isinstance(plan, Planned)]
    assert plan.is_set and plan.members == ("A", "B")


def test_a_warm_model_tells_how_long_it_took_and_what_it_holds(world_of: WorldOf, model: ModelOf) -> None:
    """RES-23: learning reads the fields of the load that the core accepted."""
    world = world_of(model("A", idle_ms=Millis(10_000)), rules=PolicyRules())
    world.arrive("A", 500, lane="chat")
    world.run(60_000)
    [warm] = [warm for warm in written(world, BecameWarm) if isinstance(warm, BecameWarm)]
    assert not warm.woke and 2_900 <= warm.ms <= 3_100
    assert warm.memory == world.truth["A"].memory
    [idle] = [idle for idle in written(world, Idle) if isinstance(idle, Idle)][:1]
    assert (idle.ms, idle.as_asked) == (10_000, False)


def test_every_line_of_the_journal_has_an_event_of_the_closed_list() -> None:
    """RES-26: in random worlds with faults, too."""
    worlds = [random_world(seed) for seed in range(1, 8)]
    for world in worlds:
        run_out(world)
    notes = [note for world in worlds for _, note in world.journal]
    assert len(notes) > 100
    assert all(isinstance(note.event, m.JournalEvent | m.Mishap) for note in notes)
