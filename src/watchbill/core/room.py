"""What is free: the two sums over the ledger, of what occupies memory now and of what will.

Books and machine are both asked, and the stricter counts: a load that is promised its memory and has not taken it yet
is free only in the machine's eyes, one that is leaving only in the plan's.
"""

from collections.abc import Mapping, Sequence

from watchbill.core.budget import Ledger
from watchbill.core.companions import total_needs
from watchbill.core.model_state import HOLDING, STAYING, ModelState, Stage

__all__ = ["actual_room", "has_room", "own_share", "planned_room"]


def planned_room(ledger: Ledger, models: Sequence[ModelState]) -> dict[str, int]:
    """What is free of every resource when every change under way has ended."""
    return _free(ledger, models, STAYING, promised=(Stage.LOADING, Stage.PLANNED))


def actual_room(ledger: Ledger, models: Sequence[ModelState]) -> dict[str, int]:
    """What is free of every resource now."""
    return _free(ledger, models, HOLDING, promised=(Stage.LOADING,))


def _free(
    ledger: Ledger, models: Sequence[ModelState], counted: frozenset[Stage], promised: tuple[Stage, ...]
) -> dict[str, int]:
    present = [s for s in models if s.stage is not Stage.ABSENT]
    used: dict[str, int] = {}
    for model in present:
        for resource, amount in _counted(model, counted).items():
            used[resource] = used.get(resource, 0) + amount
    free = {r: ledger.limit(r) - used.get(r, 0) for r in _resources(ledger, models)}
    for name, book in ledger.books.items():
        waiting = sum(_not_taken_yet(s, name) for s in present if s.stage in promised)
        leaving = sum(_held(s, name) for s in present if s.stage not in counted)
        free[name] = min(free[name], book.headroom(waiting) + leaving)
    return free


def has_room(models: Sequence[ModelState], free: Mapping[str, int]) -> bool:
    """Whether everything that is not in memory, and ever could be, fits into what is free."""
    away = (s for s in models if (s.stage not in STAYING or s.sleeps) and not s.hopeless)
    return all(amount <= free[resource] for resource, amount in total_needs(away).items())


def own_share(asking: ModelState) -> dict[str, int]:
    """What somebody who asks in order to wake up holds already; of a device only what was seen."""
    share: dict[str, int] = {}
    for model in asking.members or (asking,):
        for resource, amount in model.asleep_needs.items() if model.sleeps else ():
            own = amount if "#" in resource else min(amount, model.held.get(resource, 0))
            share[resource] = share.get(resource, 0) + own
    return share


def _counted(model: ModelState, counted: frozenset[Stage]) -> dict[str, int]:
    """What a model has of the ledger; of one that is, or will be, asleep only what it keeps then."""
    if model.stage in counted and model.stage is not Stage.ASLEEP:
        return model.needs
    return model.asleep_needs if model.sleeps else {}


def _resources(ledger: Ledger, models: Sequence[ModelState]) -> list[str]:
    groups = {r for s in models for r in s.needs} - ledger.books.keys()
    return [*ledger.books, *sorted(groups)]


def _not_taken_yet(model: ModelState, device: str) -> int:
    """Memory that a load was promised and that the machine still shows as free."""
    taken = model.held.get(device, 0) if model.stage is Stage.LOADING or model.sleeps else 0
    return max(0, model.needs.get(device, 0) - taken)


def _held(model: ModelState, device: str) -> int:
    """Memory that will be back when a model has gone, or sleeps; nothing is counted that was not seen."""
    kept = model.asleep_needs.get(device, 0) if model.sleeps else 0
    return max(0, model.held.get(device, 0) - kept)
