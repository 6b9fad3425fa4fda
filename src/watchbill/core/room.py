"""What is free: the two sums over the ledger, of what occupies memory now and of what will.

Books and machine are both asked, and the stricter counts: a load that is promised its memory and has not taken it yet
is free only in the machine's eyes, one that is leaving only in the plan's.
"""

from collections.abc import Mapping, Sequence

from watchbill.core.budget import Ledger
from watchbill.core.company import total_needs
from watchbill.core.station import HOLDING, STAYING, Stage, Station

__all__ = ["actual_room", "has_room", "own_share", "planned_room"]


def planned_room(ledger: Ledger, stations: Sequence[Station]) -> dict[str, int]:
    """What is free of every resource when every change under way has ended."""
    return _free(ledger, stations, STAYING, promised=(Stage.LOADING, Stage.PLANNED))


def actual_room(ledger: Ledger, stations: Sequence[Station]) -> dict[str, int]:
    """What is free of every resource now."""
    return _free(ledger, stations, HOLDING, promised=(Stage.LOADING,))


def _free(
    ledger: Ledger, stations: Sequence[Station], counted: frozenset[Stage], promised: tuple[Stage, ...]
) -> dict[str, int]:
    present = [s for s in stations if s.stage is not Stage.ABSENT]
    used: dict[str, int] = {}
    for station in present:
        for resource, amount in _counted(station, counted).items():
            used[resource] = used.get(resource, 0) + amount
    free = {r: ledger.limit(r) - used.get(r, 0) for r in _resources(ledger, stations)}
    for name, book in ledger.books.items():
        waiting = sum(_not_taken_yet(s, name) for s in present if s.stage in promised)
        leaving = sum(_held(s, name) for s in present if s.stage not in counted)
        free[name] = min(free[name], book.headroom(waiting) + leaving)
    return free


def has_room(stations: Sequence[Station], free: Mapping[str, int]) -> bool:
    """Whether everything that is not in memory, and ever could be, fits into what is free."""
    away = (s for s in stations if (s.stage not in STAYING or s.naps) and not s.hopeless)
    return all(amount <= free[resource] for resource, amount in total_needs(away).items())


def own_share(asking: Station) -> dict[str, int]:
    """What somebody who asks in order to wake up holds already; of a device only what was seen."""
    share: dict[str, int] = {}
    for station in asking.members or (asking,):
        for resource, amount in station.asleep_needs.items() if station.naps else ():
            own = amount if "#" in resource else min(amount, station.held.get(resource, 0))
            share[resource] = share.get(resource, 0) + own
    return share


def _counted(station: Station, counted: frozenset[Stage]) -> dict[str, int]:
    """What a station has of the ledger; of one that is, or will be, asleep only what it keeps then."""
    if station.stage in counted and station.stage is not Stage.ASLEEP:
        return station.needs
    return station.asleep_needs if station.naps else {}


def _resources(ledger: Ledger, stations: Sequence[Station]) -> list[str]:
    groups = {r for s in stations for r in s.needs} - ledger.books.keys()
    return [*ledger.books, *sorted(groups)]


def _not_taken_yet(station: Station, device: str) -> int:
    """Memory that a load was promised and that the machine still shows as free."""
    taken = station.held.get(device, 0) if station.stage is Stage.LOADING or station.naps else 0
    return max(0, station.needs.get(device, 0) - taken)


def _held(station: Station, device: str) -> int:
    """Memory that will be back when a station has gone, or sleeps; nothing is counted that was not seen."""
    kept = station.asleep_needs.get(device, 0) if station.naps else 0
    return max(0, station.held.get(device, 0) - kept)
