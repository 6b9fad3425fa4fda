"""Companion sets at the door: which tiers of a set can be resident together, and what to say when none can (RES-13).

A set is taken as it was asked for, or with its largest member that has a smaller sibling stepped down, again and again,
until it fits beside what never leaves. Who waits too long for one rung of that ladder may be served by the next.
"""

from collections.abc import Iterator, Mapping

from watchbill.core.companions import CompanionSet, total_needs
from watchbill.core.messages import Request
from watchbill.core.model_state import ModelState, Stage
from watchbill.core.state import State
from watchbill.ladder import ladder
from watchbill.units import format_bytes

__all__ = ["Sets"]

_Members = tuple[ModelState, ...]


class Sets:
    """What a request with companions may have."""

    def __init__(self, state: State) -> None:
        self._state = state

    def choices(self, request: Request, now: int) -> list[CompanionSet]:
        """The sets that could serve it, the one asked for first."""
        found: list[CompanionSet] = []
        for members in self._ladder(request):
            usable = not any(s.is_retired or s.is_quarantined(now) for s in members)
            if usable and (all(s.stage is Stage.READY for s in members) or self._fits(members)):
                companion_set, self._state.is_still = self._state.companion_sets.of(members, now), False
                companion_set.refresh(self._state.models, now)
                found.append(companion_set)
        if len(found) > 1:
            found.sort(key=self._must_wait_for_health)  # stable: a tier steps down only for that
        return found

    def refusal(self, request: Request, now: int) -> tuple[str, str, int | None]:
        """Code, text and advice for a request that no rung of its ladder can serve."""
        ladder = list(self._ladder(request))
        fitting = [members for members in ladder if self._fits(members)]
        for model in fitting[0] if fitting else ():
            if model.is_quarantined(now):
                return "model_failed", f"{model.name}: {model.failure}", model.retry_at - now
        names = " and ".join(s.name for s in ladder[0])
        text = f"{names} can never be in memory together: {self._shortage_text(ladder[-1])}"
        return "never_fits", text, None

    def _ladder(self, request: Request) -> Iterator[_Members]:
        """The set as asked, then with smaller tiers in it."""
        models = self._state.models
        asked = (request.model, *request.companions)
        if request.exact:
            yield tuple(models[name] for name in asked)
            return
        for names in ladder(asked, self._tiers_below, lambda name: sum(models[name].sizes().values())):
            yield tuple(models[name] for name in names)

    def _tiers_below(self, name: str) -> list[str]:
        return [s.name for s in self._state.tiers_below(self._state.models[name])]

    def _fits(self, members: _Members) -> bool:
        """Whether they could all be resident beside what never leaves."""
        return self._state.ledger.fits_ever(total_needs(members), self._kept(members))

    def _kept(self, members: _Members) -> list[Mapping[str, int]]:
        """What never leaves and is not of the set: permanent models, and what is reserved for core models."""
        return self._state.permanents(*members)

    def _must_wait_for_health(self, companion_set: CompanionSet) -> bool:
        """RES-27, RES-14: a device that is too hot, too full or lent takes nothing new: a tier elsewhere goes first."""
        ledger = self._state.ledger
        if any(ledger.in_maintenance(s.needs) for s in companion_set.members):
            return companion_set.stage is not Stage.READY
        return companion_set.stage is Stage.ABSENT and ledger.is_constrained(companion_set.needs)

    def _shortage_text(self, members: _Members) -> str:
        """The sizes, resource by resource, of what is too much; groups are resources of one place."""
        kept, ledger = self._kept(members), self._state.ledger
        parts: list[str] = []
        for resource, amount in sorted(total_needs(members).items()):
            staying = sum(k.get(resource, 0) for k in kept)
            if amount + staying <= ledger.capacity_of(resource):
                continue
            device, _, what = resource.partition("#")
            mine = [s for s in members if s.needs.get(resource)]
            if what.startswith("group:"):
                parts.append(f"{' and '.join(s.name for s in mine)} exclude each other on {device}")
            elif what:
                parts.append(f"{device} takes {ledger.capacity_of(resource)} models at a time")
            else:
                sizes = " + ".join(f"{s.name} {format_bytes(s.needs[device])}" for s in mine)
                room = format_bytes(ledger.capacity_of(device))
                less = f" less {format_bytes(staying)} of what stays" if staying else ""
                parts.append(f"{sizes} on {device}, where {room}{less} is all there is")
        return "; ".join(parts)
