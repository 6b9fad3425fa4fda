"""Cover: the cheapest set of victims that frees enough of every resource.

The search is exact for a small pool: branch and bound over the victims in order of their cost. A large pool is
covered greedily, with reverse deletion. Ties are decided by the shorter reload, then by the name, so that the same
state gives the same choice.
"""

from collections.abc import Callable, Iterable, Sequence

from watchbill.core.model_state import ModelState
from watchbill.core.resources import Needs

__all__ = ["Cover", "can_cover", "cover"]

Cover = tuple[ModelState, ...]
Cost = Callable[[ModelState], float]

#: Up to this many candidates the search is exact.
EXACT_POOL_MAX = 12


def cover(short: Needs, candidates: Iterable[ModelState], cost: Cost) -> Cover | None:
    """The cheapest victims that cover a shortage; an empty set when there is none, None when it cannot be met."""
    if not short:
        return ()
    able = [s for s in candidates if any(s.frees().get(resource) for resource in short)]
    if not _enough(able, short):
        return None
    if len(able) == 1:
        return (able[0],)
    pool = sorted(able, key=lambda s: (cost(s), s.load.ms, s.name))
    return _exact(pool, short, cost) if len(pool) <= EXACT_POOL_MAX else _greedy(pool, short, cost)


def can_cover(short: Needs, candidates: Sequence[ModelState]) -> bool:
    """Whether these victims together would cover a shortage."""
    return _enough(candidates, short)


def _enough(victims: Sequence[ModelState], short: Needs) -> bool:
    return all(sum([v.frees().get(r, 0) for v in victims]) >= amount for r, amount in short.items())


def _exact(pool: Sequence[ModelState], short: Needs, cost: Cost) -> Cover:
    costs = [(cost(s), s.load.ms) for s in pool]
    best: tuple[tuple[float, float, int], Cover] | None = None

    def search(index: int, chosen: Cover, total: float, reload_ms: float) -> None:
        nonlocal best
        key = (total, reload_ms, len(chosen))
        if best is not None and key >= best[0]:
            return
        if _enough(chosen, short):
            best = (key, chosen)
            return
        if index == len(pool) or not _enough((*chosen, *pool[index:]), short):
            return
        search(index + 1, (*chosen, pool[index]), total + costs[index][0], reload_ms + costs[index][1])
        search(index + 1, chosen, total, reload_ms)

    search(0, (), 0.0, 0.0)
    assert best is not None, "the whole pool was enough"
    return best[1]


def _greedy(pool: Sequence[ModelState], short: Needs, cost: Cost) -> Cover:
    chosen: list[ModelState] = []
    by_value = sorted(pool, key=lambda s: (cost(s) / sum(s.frees().get(r, 0) for r in short), s.name))
    for model in by_value:
        if _enough(chosen, short):
            break
        chosen.append(model)
    for model in sorted(chosen, key=lambda s: (-cost(s), s.name)):
        if _enough(rest := [s for s in chosen if s is not model], short):
            chosen = rest
    return tuple(chosen)
