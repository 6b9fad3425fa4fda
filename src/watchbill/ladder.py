"""The ladder of a set: as it was asked for, then one tier lower each time, the largest that can first (RES-13).

The same order for the check of a config and for the scheduler at the door, so that they cannot disagree.
"""

from collections.abc import Callable, Iterator, Sequence

__all__ = ["ladder"]


def ladder(
    names: Sequence[str], tiers_below: Callable[[str], Sequence[str]], size: Callable[[str], int]
) -> Iterator[tuple[str, ...]]:
    """Every rung, from the set as asked to the smallest. A set never has one model twice."""
    members = tuple(names)
    while True:
        yield members
        lower = {
            name: below[0]
            for name in members
            if (below := [tier for tier in tiers_below(name) if tier not in members])
        }
        if not lower:
            return
        largest = max(lower, key=lambda name: (size(name), name))
        members = tuple(lower[largest] if name == largest else name for name in members)
