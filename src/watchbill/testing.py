"""Contract tests for policies of your own: inherit the class, name your policy, and let pytest run it (RES-21).

    from watchbill.testing import PolicyContract
    from my_policies import Mine

    class TestMine(PolicyContract):
        strategy = Mine

The tests play random worlds with faults and reloads against the real core, and judge every step. Needs no daemon, no
model, no GPU, and nothing but pytest.
"""

from typing import ClassVar

from watchbill.core.guarded import Guarded
from watchbill.simulate.fuzz import TRAFFIC_MS, random_world, run_out
from watchbill.simulate.world import World

__all__ = ["PolicyContract"]


class PolicyContract:
    """What every policy promises."""

    strategy: ClassVar[type[object]]
    #: How many random worlds each test plays.
    worlds: ClassVar[int] = 12

    def world(self, seed: int) -> World:
        """A random world that the policy under test decides in; every fourth one has no faults."""
        name = f"{self.strategy.__module__}:{self.strategy.__qualname__}"
        return random_world(seed, faults=seed % 4 != 0, policy=name, strategy=self.strategy)

    def test_it_chooses_only_legal_changes(self) -> None:
        """It raises nothing, closes no model that must stay, and frees what its target lacks."""
        for seed in range(self.worlds):
            policy = run_out(self.world(seed)).core.policy
            assert isinstance(policy, Guarded)
            assert not policy.failures, f"seed {seed}: {policy.last_failure} ({policy.failures} times)"

    def test_no_law_is_broken(self) -> None:
        """Memory, exclusive groups, permanent models, doors and deadlines, judged from the world's own truth."""
        for seed in range(self.worlds):
            broken = run_out(self.world(seed)).judge.broken
            assert not broken, f"seed {seed}: {broken}"

    def test_every_request_ends(self) -> None:
        """No request waits past its bound, whatever the policy prefers."""
        for seed in range(self.worlds):
            world = run_out(self.world(seed))
            assert not world.open, f"seed {seed}: {sorted(world.open)[:3]}"

    def test_the_same_world_gives_the_same_decisions(self) -> None:
        """It keeps no state of its own, reads no clock and is not random."""
        one, two = (run_out(self.world(self.worlds)) for _ in range(2))
        assert one.journal == two.journal

    def test_asking_changes_nothing(self) -> None:
        """`choose` may append to `state.wakes` when it wants to be asked again, and changes nothing else."""
        for seed in range(self.worlds):
            world = self.world(seed)
            for part in range(1, 5):
                world.run(part * TRAFFIC_MS / 5)
                state, now = world.core.state, int(world.now)
                before = (
                    state.changes,
                    len(state.out),
                    [(s.name, s.stage, len(s.line)) for s in state.lines()],
                )
                world.core.policy.choose(state, now)
                after = (
                    state.changes,
                    len(state.out),
                    [(s.name, s.stage, len(s.line)) for s in state.lines()],
                )
                assert before == after, f"seed {seed} at {now} ms"
