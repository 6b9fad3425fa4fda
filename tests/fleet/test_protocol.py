"""The board protocol under all interleavings: every task is accepted once, nothing is lost, one token counts.

Each case explores every world that its bounds allow. In each of them all processes are killed and started anew, and the
power fails in three ways; the batch must come to its end each time. The mutants show that the laws can be broken.
"""

from collections.abc import Callable
from typing import Any

import pytest

from fleet import laws
from fleet.laws import (
    APART,
    ASKING,
    IN_A_CHAIN,
    BrokenLaw,
    World,
    checker,
    choices,
    first_world,
    working_world,
)
from support.interleavings import Exploration
from watchbill.errors import IllegalTransition
from watchbill.fleet.coordinator import judging
from watchbill.fleet.coordinator import publication as publishing
from watchbill.fleet.coordinator.active import ActiveBatches, Offer
from watchbill.fleet.coordinator.loop import Coordinator
from watchbill.fleet.folder.record import read_whole
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.matching import policy
from watchbill.fleet.state import journal
from watchbill.fleet.state.entries import Fail

#: Explorations compute and never wait: on a busy machine they take several times as long, and nothing is wrong.
pytestmark = pytest.mark.timeout(900)

ALL = -1
ONE = ("a",)
BOTH = ("a", "b")


def explore(world: World, *, cuts: bool = True, worlds_max: int = 2_000_000) -> int:
    return Exploration(choices, checker(cuts=cuts), worlds_max).run(world)


def test_every_interleaving_of_a_coordinator_and_an_agent_ends_with_each_task_accepted_once() -> None:
    """FLEET-09: from the submitted plan to its end, one rename may lose its reply, and anybody dies at any step."""
    assert explore(first_world(APART, ONE, interruptions=ALL, lost_replies=1)) > 1_000


def test_a_task_that_waits_for_another_is_not_lost_either() -> None:
    """PLAN-05, FLEET-09."""
    assert explore(first_world(IN_A_CHAIN, ONE, interruptions=ALL)) > 300


def test_two_agents_that_interrupt_each_other_never_take_one_token_to_two_ends() -> None:
    """FLEET-09."""
    assert explore(working_world(APART, BOTH, interruptions=1), cuts=False) > 1_000


def test_a_successor_may_take_over_at_any_time_while_the_first_coordinator_goes_on() -> None:
    """R13, R17: what a superseded coordinator does later counts for nothing, and nothing is lost."""
    assert explore(working_world(APART, BOTH, successors=1)) > 1_000


def test_a_successor_may_take_over_in_the_middle_of_a_turn() -> None:
    """R13, R17: the same, while a coordinator or an agent is interrupted between two steps."""
    assert explore(working_world(APART, ONE, successors=1, interruptions=1), cuts=False) > 1_000


def test_an_agent_that_was_given_up_and_comes_back_is_refused() -> None:
    """R13: silence for 90 s, then the agent goes on as if nothing had happened; its new life may start as well."""
    assert explore(working_world(APART, ONE, silences=1, restarts=1), cuts=False) > 100


def test_a_batch_that_is_cancelled_at_any_moment_ends_and_may_go_on_with_a_corrected_plan() -> None:
    """PLAN-07, FLEET-09: a cancel at any moment, and a resume that is refused while the batch runs."""
    assert explore(working_world(IN_A_CHAIN, ONE, cancels=1)) > 200
    assert explore(working_world(IN_A_CHAIN, ONE, cancels=1, resumes=1), cuts=False) > 1_000


def test_a_task_that_is_retried_at_any_moment_runs_again_and_so_does_what_depends_on_it() -> None:
    """PLAN-07, FLEET-09: also while the other task is in an agent's hands."""
    assert explore(working_world(IN_A_CHAIN, ONE, retries=1)) > 300


def test_an_answer_is_scored_and_published_once_whatever_dies() -> None:
    """FLEET-05, FLEET-08, FLEET-09: the model is loaded for it; what is published is the answer that was accepted."""
    assert explore(first_world(ASKING, ONE)) > 200
    assert explore(working_world(ASKING, BOTH)) > 300


@pytest.mark.torture
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("plan", [APART, IN_A_CHAIN, ASKING], ids=["apart", "chain", "asking"])
@pytest.mark.parametrize(
    ("begin", "hands", "mishaps"),
    [
        (first_world, ONE, {"interruptions": ALL, "restarts": 1, "lost_replies": 1}),
        (working_world, ONE, {"interruptions": ALL, "successors": 1}),
        (working_world, ONE, {"interruptions": 1, "successors": 1, "silences": 1, "restarts": 1}),
        (working_world, BOTH, {"interruptions": 1, "successors": 1, "silences": 1, "lost_replies": 1}),
        (working_world, BOTH, {"interruptions": ALL}),
        (working_world, BOTH, {"silences": 1, "restarts": 1}),
        (first_world, BOTH, {"interruptions": 1, "successors": 1}),
        (working_world, ONE, {"interruptions": 1, "cancels": 1, "resumes": 1}),
        (working_world, ONE, {"interruptions": 1, "retries": 1, "successors": 1}),
        (working_world, BOTH, {"cancels": 1, "resumes": 1, "retries": 1}),
    ],
)
def test_the_laws_hold_in_the_long_form(
    begin: Callable[..., World], hands: tuple[str, ...], mishaps: dict[str, int], plan: str
) -> None:
    """FLEET-09, R13, R17."""
    assert explore(begin(plan, hands, **mishaps), worlds_max=20_000_000) > 100


# ------------------------------------------------------------------ mutants


def test_a_coordinator_that_accepts_any_token_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_task(self: ActiveBatches, name: str) -> Offer | None:
        for batch, _ in self.tokens.values():
            ledger = self.batches[batch].ledger
            for task in ledger.by_token.values():
                if f"-{task}.a" in name:
                    return Offer(ledger, task)
        return None

    monkeypatch.setattr(ActiveBatches, "offer_of", by_task)
    with pytest.raises((BrokenLaw, IllegalTransition)):
        explore(working_world(APART, ONE, silences=1, interruptions=1), cuts=False)


def test_a_coordinator_that_acts_before_it_writes_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def act_first(self: Any) -> int:
        self._acts.carry_out()
        return self._active.write()

    monkeypatch.setattr(Coordinator, "_finish", act_first)
    with pytest.raises(BrokenLaw):
        explore(first_world(APART, ONE), cuts=False)


def test_a_coordinator_that_does_not_look_before_it_acts_breaks_a_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blind(self: Any) -> int:
        written = self._active.write()
        self._acts.carry_out()
        return written

    monkeypatch.setattr(Coordinator, "_finish", blind)
    with pytest.raises(BrokenLaw):
        explore(working_world(APART, ONE, successors=1, interruptions=1), cuts=False)


def test_a_successor_that_forgets_how_much_it_believed_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(disk: Any, plan: str, batch: str, epochs: list[int]) -> dict[int, int]:
        return {
            epoch: read_whole(disk, f"plans/{plan}/history/{batch}/journal.{epoch}.jsonl")[1]
            for epoch in epochs
        }

    monkeypatch.setattr(journal, "believed", everything)
    with pytest.raises((BrokenLaw, IllegalTransition)):
        explore(working_world(APART, ONE, successors=1, interruptions=1), cuts=False)


def test_what_a_successor_believed_survives_a_power_cut_that_its_writer_did_not_live_to_sync() -> None:
    """FLEET-09: the first coordinator is killed between writing and syncing an acceptance."""
    assert laws.take_over_from_the_unsynced() == 2


def test_a_successor_that_believes_what_is_not_synced_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws.Steps, "sync", lambda self, path: None)
    with pytest.raises(BrokenLaw):
        laws.take_over_from_the_unsynced()


def test_an_agent_that_reports_an_answer_before_it_is_on_the_disk_breaks_a_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def put_unsynced(
        self: laws.Steps, path: str, data: bytes, *, draft: str = "", durable: bool = False
    ) -> None:
        self.perform("put", path, data, durable and not path.endswith("/stdout"))

    monkeypatch.setattr(laws.Steps, "put", put_unsynced)
    with pytest.raises(BrokenLaw):
        explore(first_world(ASKING, ONE))


def test_a_coordinator_that_publishes_before_it_accepts_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(disk: Any, publication: Any) -> None:
        publishing.make_draft(disk, publication)
        publishing.publish(disk, publication)

    monkeypatch.setattr(judging, "make_draft", at_once)
    with pytest.raises(BrokenLaw):
        explore(first_world(ASKING, ONE))


def test_four_dead_agents_under_a_task_are_no_failures() -> None:
    """FLEET-08: a loss is not a failed attempt."""
    assert laws.lose_and_finish(losses=4) == 2


def test_a_policy_that_counts_losses_as_failures_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def blame(task: str, state: Any, spec: Any, result: Result, crowd: Any, *, need: Any) -> Any:
        if result.end is End.LOST:
            return Fail(
                task, state.attempt, result.agent, result.end, is_final=state.failures + 1 >= spec.attempts
            )
        return policy.judge(task, state, spec, result, crowd, need=need)

    monkeypatch.setattr(judging, "judge", blame)
    with pytest.raises(BrokenLaw):
        laws.lose_and_finish(losses=4)


def test_the_fifth_dead_agent_leaves_the_task_to_a_person() -> None:
    """FLEET-08: it may be what kills them."""
    verdict = laws.lose(losses=5)
    assert [entry["cause"] for entry in verdict.of("hold")] == ["losses", "losses"]
    assert verdict.of("accept") == []
