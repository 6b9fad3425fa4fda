"""A company: models that a request needs at the same time, as one thing that waits, is planned and is ready (RES-13).

It has a line like a model, and no memory of its own: what it needs of the ledger is what its absent members need, all
of it or nothing. So one plan has one cover for the whole set, and no two sets can hold a part each and wait for the
rest.

- **under way**: planned, and not complete yet. Until it is, no swap takes a member away: the first of two would
  otherwise be evicted while the second loads.
- **ready**: every member is warm. Then its requests start on the first member like any others of it.

Whatever else may happen to a member (an emergency, a failed load, the operator) ends the way: the company waits on and
is planned anew. A company without a line and a ghost is forgotten.
"""

from collections.abc import Iterable, Mapping

from watchbill.core.estimate import MedianEstimate
from watchbill.core.messages import Footprint, Knowledge
from watchbill.core.station import AWAY, Stage, Station

__all__ = ["Companies", "Company", "company_name", "total_needs"]

_LEAVING = frozenset({Stage.DRAINING, Stage.STOPPING})


def company_name(names: Iterable[str]) -> str:
    """What a company is called. No model is called so: their names have no spaces."""
    first, *others = names
    return " + ".join([first, *sorted(others)])


class Company(Station):
    """The first member serves, the others are there while it does."""

    def __init__(self, members: tuple[Station, ...], now: int) -> None:
        first = members[0]
        super().__init__(first.model, first.rules, Knowledge(Footprint({})))
        self.name = company_name(s.name for s in members)
        self.members = members
        self.service = first.service
        self.muster({s.name: s for s in members}, now)

    @property
    def serving(self) -> Station:
        """The member that answers."""
        return self.members[0]

    @property
    def arriving(self) -> tuple[Station, ...]:
        """The members that a plan for it would load."""
        return tuple(s for s in self.members if s.stage in AWAY)

    @property
    def wants_memory(self) -> bool:
        """Whether there is work for which a member would have to be loaded, and none is still on its way out."""
        return self.stage is Stage.ABSENT and bool(self.line or self.ghost)

    def muster(self, stations: Mapping[str, Station], now: int) -> None:
        """Looks where every member is. The stations may have been replaced by a new config; the names stay."""
        self.members = tuple(stations[s.name] for s in self.members)
        self.service, self.slowdown = self.serving.service, self.serving.slowdown
        stages = {s.stage for s in self.members}
        if stages == {Stage.READY}:
            self.stage, self.ghost = Stage.READY, None  # its owner finds the models here
        elif stages & _LEAVING:
            self.stage = Stage.DRAINING
        elif not stages.isdisjoint(AWAY):
            self.stage = Stage.ABSENT
        else:
            self.stage = Stage.LOADING
        if self.stage is Stage.READY and self.is_under_way:
            for station in self.members:  # their turn begins now: who came first has waited for the others
                station.ready_at = now
        self.is_under_way &= self.stage is Stage.LOADING and bool(self.line or self.ghost)
        self.since = now
        self.needs = total_needs(self.arriving)
        self.silence = next((s.silence for s in self.members if s.silence is not None), None)
        self.retry_at = max((s.retry_at for s in self.arriving), default=self.serving.retry_at)
        self._foresee(now)

    def _foresee(self, now: int) -> None:
        """Its load time: those of the members that are not there, one after the other as on one bus."""
        missing = [s for s in self.members if s.stage is not Stage.READY]
        left = [
            max(0.0, s.load.ms - (now - s.since)) if s.stage is Stage.LOADING else s.load.ms for s in missing
        ]
        self.load = MedianEstimate(sum(left))
        if not any(s.load.is_guess for s in missing):
            self.load.learn(sum(left))

    def drain_ms(self, now: int) -> float:
        """Milliseconds until the last member that is leaving is gone."""
        return max((s.drain_ms(now) for s in self.members if s.stage in _LEAVING), default=0.0)

    def mark_members(self) -> None:
        """Tells the members for whom they stay: while the company is under way, or ready and not served yet."""
        if not (self.is_under_way or (self.stage is Stage.READY and self.line)):
            return
        wanted = self.turn_class()
        for station in self.members:
            station.awaited = wanted if station.awaited is None else min(station.awaited, wanted)
            station.is_called |= self.is_under_way
        if self.stage is Stage.READY and self.silence is None:
            self.serving.companies.append(self)


class Companies(dict[str, Company]):
    """Every company that somebody waits for, by its name."""

    def of(self, members: tuple[Station, ...], now: int) -> Company:
        """The company of these models, the first of which serves. It is kept while somebody waits for it."""
        name = company_name(s.name for s in members)
        if name not in self:
            self[name] = Company(members, now)
        return self[name]

    def muster(self, stations: Mapping[str, Station], now: int) -> None:
        """Looks where all members are, tells them who waits for them, and forgets what nobody waits for."""
        for station in stations.values():
            station.awaited, station.is_called, station.companies = None, False, []
        for name in sorted(self):
            company = self.pop(name)  # and back: the order is that of the names
            if company.line or company.ghost:
                company.muster(stations, now)
                company.mark_members()
                self[name] = company


def total_needs(stations: Iterable[Station]) -> dict[str, int]:
    """What they take from the ledger together."""
    total: dict[str, int] = {}
    for station in stations:
        for resource, amount in station.needs.items():
            total[resource] = total.get(resource, 0) + amount
    return total
