"""Companion sets: models that a request needs at the same time, as one candidate for memory (RES-13).

A set has a line like a model, and no memory of its own. Its needs are those of its absent members, all of them or
none. So one plan has one cover for the whole set, and two sets can never hold a part each and wait for the rest.

- **under way**: planned, and not complete yet. Until then no swap evicts a member; otherwise the first of two would
  be evicted while the second loads.
- **ready**: every member is warm. Then the requests of the set start on its first member.

Anything else that happens to a member (an emergency, a failed load, an operator's command) ends both: the set goes on
waiting and is planned again. A set without a line and a held turn is forgotten.
"""

from collections.abc import Iterable, Mapping

from watchbill.core.candidate import CandidateState
from watchbill.core.estimate import MedianEstimate
from watchbill.core.model_state import ModelState
from watchbill.core.resources import Resource
from watchbill.core.stages import AWAY, LEAVING, Stage

__all__ = ["Candidate", "CompanionSet", "CompanionSets", "set_name", "total_needs"]


def set_name(names: Iterable[str]) -> str:
    """The name of a set. It never collides with a model's name, because those have no spaces."""
    first, *others = names
    return " + ".join([first, *sorted(others)])


class CompanionSet(CandidateState):
    """A set of models. The first member serves, and the others stay in memory while it does."""

    is_set = True
    serving: ModelState  # the first member, which answers the requests of its line

    def __init__(self, members: tuple[ModelState, ...], now: int) -> None:
        first = members[0]
        super().__init__(set_name(s.name for s in members), first.spec, first.rules)
        self.members = members  # all that must be in memory for it, the serving one first
        self.refresh({s.name: s for s in members}, now)

    @property
    def arriving(self) -> tuple[ModelState, ...]:
        """The members that a plan for it would load."""
        return tuple(s for s in self.members if s.stage in AWAY)

    @property
    def wants_memory(self) -> bool:
        """Whether it has work for which a member must be loaded, and no member is still leaving."""
        return self.stage is Stage.ABSENT and bool(self.line or self.held_turn)

    def refresh(self, models: Mapping[str, ModelState], now: int) -> None:
        """Updates its stage from its members. A new config may have replaced the model states; the names stay."""
        self.members = tuple(models[s.name] for s in self.members)
        self.serving = self.members[0]
        self.service, self.slowdown = self.serving.service, self.serving.slowdown
        stages = {s.stage for s in self.members}
        if stages == {Stage.READY}:
            # The caller whose turn is held finds the models in memory when it comes back.
            self.stage, self.held_turn = Stage.READY, None
        elif not stages.isdisjoint(LEAVING):
            self.stage = Stage.DRAINING
        elif not stages.isdisjoint(AWAY):
            self.stage = Stage.ABSENT
        else:
            self.stage = Stage.LOADING
        if self.stage is Stage.READY and self.is_under_way:
            # The turn of all members begins now: the one that loaded first has waited for the others.
            for model in self.members:
                model.ready_at = now
        self.is_under_way &= self.stage is Stage.LOADING and bool(self.line or self.held_turn)
        self.since = now
        self.needs = total_needs(self.arriving)
        self.silence = next((s.silence for s in self.members if s.silence is not None), None)
        self.is_cut_off = any(s.is_cut_off for s in self.members)
        self.retry_at = max((s.retry_at for s in self.arriving), default=self.serving.retry_at)
        self._foresee(now)

    def _foresee(self, now: int) -> None:
        """Its load time: the sum over the absent members, which load one after the other as on one bus."""
        missing = [s for s in self.members if s.stage is not Stage.READY]
        left = [s.load_left_ms(now) if s.stage is Stage.LOADING else s.next_load_ms for s in missing]
        self.load = MedianEstimate(sum(left))
        if not any(s.is_load_unsure for s in missing):
            self.load.learn(sum(left))

    def drain_ms(self, now: int, *, least: bool = False) -> float:
        """Milliseconds until the last member that is leaving is gone."""
        leaving = (s for s in self.members if s.stage in LEAVING)
        return max((s.drain_ms(now, least=least) for s in leaving), default=0.0)

    def mark_members(self) -> None:
        """Tells its members the class that waits for them while it is under way, or ready and not served yet."""
        if not (self.is_under_way or (self.stage is Stage.READY and self.line)):
            return
        wanted = self.turn_class()
        for model in self.members:
            model.awaited = wanted if model.awaited is None else min(model.awaited, wanted)
            model.is_kept_for_set |= self.is_under_way
        if self.stage is Stage.READY and not self.is_cut_off:
            self.serving.companion_sets.append(self)


#: What requests wait for and a policy chooses between. A request in its line runs on the model that is `serving`.
Candidate = ModelState | CompanionSet


class CompanionSets(dict[str, CompanionSet]):
    """Every set with waiting requests or a held turn, by its name."""

    def of(self, members: tuple[ModelState, ...], now: int) -> CompanionSet:
        """The set of these models, of which the first serves. It is kept while requests wait for it."""
        name = set_name(s.name for s in members)
        if name not in self:
            self[name] = CompanionSet(members, now)
        return self[name]

    def awaited(self) -> frozenset[str]:
        """The names of the models that are members of a set for which a request waits."""
        return frozenset(s.name for each in self.values() if each.line for s in each.members)

    def refresh(self, models: Mapping[str, ModelState], now: int) -> None:
        """Updates all sets and their members, and forgets sets without waiting requests."""
        for model in models.values():
            model.awaited, model.is_kept_for_set, model.companion_sets = None, False, []
        for name in sorted(self):
            companion_set = self.pop(name)  # inserted again below: the sets stay in the order of their names
            if companion_set.line or companion_set.held_turn:
                companion_set.refresh(models, now)
                companion_set.mark_members()
                self[name] = companion_set


def total_needs(models: Iterable[ModelState]) -> dict[Resource, int]:
    """The sum of their needs in the ledger."""
    total: dict[Resource, int] = {}
    for model in models:
        for resource, amount in model.needs.items():
            total[resource] = total.get(resource, 0) + amount
    return total
