"""Places that hold one model at a time, and the share of their time that goes into loading.

A place is an exclusive group on a device, or a device on which no two models fit beside each other. Where models take
turns at a place, each turn lasts a quantum, alpha times its load. So at most 1 / (1 + min(alpha, 1)) of any long window
is loading (docs/scheduling.md). The invariant holds for models that still had work when they left. A model that ran dry
may leave earlier for one that waits: its place was unused, so the change did not waste its load.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from watchbill.catalog import Catalog

__all__ = ["Places"]

#: A window is long when this many of its largest loads fit into it; windows longer than the second figure are skipped.
LONG_LOADS = 10
LONGEST_LOADS = 40
#: The core knows a load time after this many loads; before, its quantum is a guess.
LOADS_KNOWN = 3
#: A quantum is a median, a share is a mean: in a window of ten loads the two differ by this factor.
TOLERANCE = 0.1


@dataclass(slots=True)
class _Place:
    """The turns that ended at one place while their model had work: the start and the length of each load."""

    turns: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])
    largest_ms: float = 0.0


class Places:
    """Every place of a world."""

    def __init__(self, catalog: Catalog, capacity: Mapping[str, int]) -> None:
        self._share_max = 1 / (1 + min(catalog.policy.alpha, 1.0)) + TOLERANCE
        self._places: dict[str, _Place] = {}
        self._of: dict[str, list[str]] = {name: [] for name in catalog.models}
        self._loads: dict[str, int] = {}
        self.windows = 0  # number of windows long enough to be judged
        for device, rules in catalog.devices.items():
            on = [model for model in catalog.models.values() if model.memory.get(device)]
            smallest = sorted(model.memory[device] for model in on)[:2]
            is_narrow = len(smallest) == 2 and sum(smallest) > capacity[device] * rules.share - rules.reserve
            for model in on:
                if is_narrow:
                    self._of[model.name].append(device)
                elif model.group is not None:
                    self._of[model.name].append(f"{device} {model.group}")

    def loaded(self, model: str, took_ms: float) -> None:
        """Notes that a model became warm."""
        self._loads[model] = self._loads.get(model, 0) + 1
        for name in self._of.get(model, ()):
            place = self._places.setdefault(name, _Place())
            place.largest_ms = max(place.largest_ms, took_ms)

    def turn_ended(self, model: str, began: float, took_ms: float, now: float) -> str | None:
        """Notes that a model with work left for another one. Returns the window with too much loading, if any."""
        if self._loads[model] < LOADS_KNOWN:
            return None
        for name in self._of.get(model, ()):
            place = self._places[name]
            place.turns.append((began, took_ms))
            while place.turns and now - place.turns[0][0] > LONGEST_LOADS * place.largest_ms:
                place.turns.popleft()
            loading = 0.0
            for since, load_ms in reversed(place.turns):
                loading += load_ms
                window = now - since
                if window < LONG_LOADS * place.largest_ms:
                    continue
                self.windows += 1
                if loading > self._share_max * window:
                    return f"{name}: {loading:.0f} of the last {window:.0f} ms"
        return None
