"""The ladder of a set: as it was asked for, then with a smaller model of a family in it each time (RES-13).

The largest that has a smaller one is replaced first. The check of a config and the scheduler at the door use the same
order, so that they cannot disagree.
"""

from collections.abc import Callable, Iterator, Sequence

__all__ = ["ladder"]


def ladder(
    names: Sequence[str], smaller: Callable[[str], Sequence[str]], size: Callable[[str], int]
) -> Iterator[tuple[str, ...]]:
    """Every rung, from the set as asked to the smallest. A set never has one model twice."""
    members = tuple(names)
    while True:
        yield members
        lower = {
            name: below[0]
            for name in members
            if (below := [other for other in smaller(name) if other not in members])
        }
        if not lower:
            return
        largest = max(lower, key=lambda name: (size(name), name))
        members = tuple(lower[largest] if name == largest else name for name in members)
