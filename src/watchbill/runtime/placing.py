"""Placing: on which card a model goes whose config does not say where it goes.

A GGUF file goes to a card that has room for it, where the engine's llama.cpp computes on cards; otherwise it stays in
the machine's memory. Of several cards that have room, the one with the most left so far: models of different cards
are in memory together. A model that has a place keeps it while the daemon runs. Room is what the card's owner leaves
for models: other programs' memory, as it was at the start, is not counted as free.
"""

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from watchbill.catalog import RAM, Catalog, Device, Model
from watchbill.engines.computing import OnProcessor, why_no_card
from watchbill.errors import OursError
from watchbill.footprint import predict_model
from watchbill.gguf import GgufError, read_header
from watchbill.probes import ProbeError, Reading
from watchbill.probes.cards import find_cards
from watchbill.processes.device_lock import CardLocks
from watchbill.runtime.limits import CARDS_FOUND_S_MAX
from watchbill.units import format_bytes

__all__ = ["Placing", "find_places"]

_LLAMACPP = "llamacpp"
#: There where NVIDIA's driver is loaded.
_DRIVER = Path("/dev/nvidiactl")
_UNREADABLE = "a card is here, and it cannot be read"


@dataclass(frozen=True, slots=True)
class Card:
    """A card of this machine that models may be placed on."""

    device: Device
    reading: Reading

    @property
    def room(self) -> int:
        """What it has for models: its capacity without the reserve and what other programs hold."""
        whole = self.reading.capacity
        capacity = min(self.device.capacity or whole, whole)
        taken = whole - self.reading.available
        if taken > whole * self.device.max_vram_percent / 100:
            return 0  # nothing would be loaded there
        return max(0, int(capacity * self.device.share) - self.device.reserve - taken)

    def __str__(self) -> str:
        title = f"{self.reading.title}, " if self.reading.title else ""
        free, whole = format_bytes(self.reading.available), format_bytes(self.reading.capacity)
        return f"{self.device.name} ({title}{free} of {whole} free)"


@dataclass(slots=True)
class Placing:
    """The cards of this machine, and where models were placed. Does no I/O but in `learn`."""

    cards: tuple[Card, ...] = ()
    computing: frozenset[str] = frozenset()  # engines that compute on cards
    on_processor: Mapping[str, OnProcessor] = field(default_factory=dict[str, OnProcessor])  # the others
    locks: CardLocks = field(default_factory=CardLocks)
    notes: list[str] = field(default_factory=list[str])  # what a person should know about cards
    is_for_tasks: bool = False  # the cards are used although no engine computes on them
    _sizes: dict[str, int] = field(default_factory=dict[str, int])
    _chosen: dict[str, str] = field(default_factory=dict[str, str])

    def learn(self, catalog: Catalog) -> None:
        """Reads the headers of the model files that may be placed; blocks."""
        for model in self._movable(catalog):
            size = _size_of(model)
            if size is not None:
                self._sizes[model.name] = size

    def place(self, catalog: Catalog) -> Catalog:
        """The catalog with the cards, and with every movable model on one that has room for it."""
        moved: dict[str, Model] = {}
        filled = {card.device.name: 0 for card in self.cards}
        for model in self._movable(catalog):
            card = self._card_for(model.name, filled)
            if card is not None:
                filled[card] += self._sizes[model.name]
                memory = MappingProxyType({card: sum(model.memory.values())} if model.memory else {})
                moved[model.name] = replace(model, devices=(card,), memory=memory)
        self._chosen = {name: model.devices[0] for name, model in moved.items()}
        if not self.cards or not (self.computing or self.is_for_tasks):
            return catalog
        return replace(
            catalog,
            models={name: moved.get(name, model) for name, model in catalog.models.items()},
            devices={**catalog.devices, **{card.device.name: card.device for card in self.cards}},
        )

    def unused(self) -> dict[str, str] | None:
        """The cards that no engine at hand computes on, and what to do about it."""
        if not self.cards or not self.on_processor or self.computing or self.is_for_tasks:
            return None
        listed, (_, first) = ", ".join(map(str, self.cards)), next(iter(self.on_processor.items()))
        return {"cards": listed, "why": first.why, "mend": first.mend}

    def told(self, catalog: Catalog) -> list[str]:
        """What was found and where models go, as sentences."""
        lines = list[str]()
        for card in self.cards:
            here = [name for name, device in self._chosen.items() if device == card.device.name]
            lines.append(f"found {card}" + (f"; {_listed(here)} {_go(here)} there" if here else ""))
        known = (model.name for model in self._movable(catalog) if model.name in self._sizes)
        large = [name for name in known if name not in self._chosen]
        if self.cards and large:
            whom = "it" if len(large) == 1 else "them"
            lines.append(
                f"{_listed(large)} {_go(large)} to the machine's memory: no card has room for {whom}"
            )
        return lines

    def _movable(self, catalog: Catalog) -> list[Model]:
        kept = {each.reservation.model for each in catalog.devices.values() if each.reservation is not None}
        return [
            model
            for model in catalog.models.values()
            if not model.is_placed and model.devices == (RAM,) and not model.asleep and model.name not in kept
            and catalog.engines[model.engine].driver == _LLAMACPP and model.engine in self.computing
            and model.copy_of is None
        ]  # fmt: skip

    def _card_for(self, name: str, filled: Mapping[str, int]) -> str | None:
        size = self._sizes.get(name)
        if size is None:
            return None
        rooms = {card.device.name: card.room for card in self.cards}
        fitting = [each for each, room in rooms.items() if room >= size]
        if (before := self._chosen.get(name)) in fitting:
            return before
        return max(fitting, key=lambda each: rooms[each] - filled[each], default=None)


def find_places(catalog: Catalog, owner: str | None, only: Collection[str] | None = None) -> Placing:
    """The cards of this machine, and whether the engines of the catalog compute on them; blocks.

    Cards that the config names are candidates, else all that there are and that no other process owns. They belong to
    `owner` from now on; without one they are only looked at. With `only`, the cards of an agent, there are no others,
    and they are used for its tasks also where no engine computes on them: raises OursError where one belongs to
    another process."""
    placing = Placing(is_for_tasks=only is not None)
    named = [name for name in catalog.devices if name != RAM]
    of_agents = {device for agent in catalog.fleet.agents for device in agent.devices}
    readings = _read_cards(placing.notes, only)
    placing.cards = tuple(
        Card(catalog.devices.get(name) or replace(catalog.unnamed_card, name=name), reading)
        for name, reading in readings.items()
        if name not in of_agents
        and (name in named or ((not named or only is not None) and _is_ours(placing, name, reading, owner)))
    )
    used = {
        model.engine for model in catalog.models.values() if not model.is_placed or model.devices != (RAM,)
    }
    if placing.cards:
        asked = [
            rules for rules in catalog.engines.values() if rules.name in used and rules.driver == _LLAMACPP
        ]
        placing.on_processor = {
            rules.name: found for rules in asked if (found := why_no_card(rules)) is not None
        }
        placing.computing = frozenset(rules.name for rules in asked) - set(placing.on_processor)
    if not placing.computing and only is None:
        placing.locks.release()  # another process may have more luck with them
    return placing


def _read_cards(notes: list[str], only: Collection[str] | None) -> dict[str, Reading]:
    """What the cards report now; none where there is none, or where the driver hangs."""
    found: dict[str, Reading] = {}
    told = [f"{_UNREADABLE}: the driver does not answer; does nvidia-smi work?"]

    def read() -> None:
        probe, why = find_cards(only)
        try:
            if probe is not None:
                found.update(probe.read())
            told[:] = [f"{_UNREADABLE}: {why}"] if probe is None and _DRIVER.exists() else []
        except (ProbeError, OSError) as error:  # whichever errno: models elsewhere are served
            told[:] = [f"{_UNREADABLE}: {error}"]

    # A daemon thread: a driver can hang inside the kernel, and must not keep the start.
    reading = threading.Thread(target=read, name="watchbill-cards", daemon=True)
    reading.start()
    reading.join(CARDS_FOUND_S_MAX)
    notes += told
    return dict(found)


def _is_ours(placing: Placing, name: str, reading: Reading, owner: str | None) -> bool:
    """Whether this process may use a card that the config does not name: its lock is free, and is held from now on."""
    if not reading.uuid or owner is None:
        return True
    try:
        placing.locks.take({name: reading.uuid}, owner)
    except (OursError, OSError) as error:
        if placing.is_for_tasks:
            raise
        placing.notes.append(f"{error}; it is not used")
        return False
    return True


def _size_of(model: Model) -> int | None:
    """What a model takes on one card: declared, else predicted from its file; None where that cannot be read."""
    if model.memory:
        return sum(model.memory.values())
    try:
        header = read_header(Path(model.source or ""))
    except (GgufError, OSError):  # it fails by itself, with its reason
        return None
    return predict_model(replace(model, devices=("gpu:0",)), header).total


def _listed(names: Iterable[str]) -> str:
    first, *more = names
    return f"{first} and {len(more)} more" if len(more) > 1 else " and ".join([first, *more])


def _go(names: list[str]) -> str:
    return "goes" if len(names) == 1 else "go"
