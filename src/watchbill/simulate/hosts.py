"""Hosts of a world: programs that hold several models (Ollama), and are silent now and then.

While a host is silent it goes on working, but nothing that it or its models report arrives: first tokens, ends of
answers, loads and stops come when it is heard again. The core learns of the silence some time after it began, or never
where it was short.

A host that is deaf (the reactor of systemd's units is gone) stops no model until it is back, for longer than an engine
may take to stop; its models serve all the same. The core learns of it after some time, too.

The law: once the core knows of a silence it loads no model there, and sends no request to one that does not serve.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Protocol

from watchbill.catalog import Model
from watchbill.core import messages as m

__all__ = ["Hosts", "schedule_silence"]

_SILENCES_MAX = 4
#: The share of worlds in which the host is the systemd of a machine: deaf now and then in place of silent.
_UNITS = 0.4
#: How long a silence lasts: some are over before anybody has noticed, some last for longer than a patience.
_SILENT_MS = ((200.0, 4_000.0), (4_000.0, 70_000.0))
#: How late the core is told that a host is silent, and that it answers again.
_NOTICED_MS = (0.0, 6_000.0)
_BACK_MS = (0.0, 2_000.0)


class Around(Protocol):
    """The part of the world that its hosts use."""

    @property
    def now(self) -> float: ...

    declared: dict[str, Model]

    def at(self, when: float, act: Callable[[], None]) -> None: ...

    def feed(self, event: m.Event) -> None: ...


class _Spells:
    """The spells of one kind that hosts have, what each holds back until its end, and of which the core knows."""

    def __init__(self, world: Around) -> None:
        self._world = world
        self._held: dict[str, list[Callable[[], None]]] = {}  # host -> what happens at the end, in order
        self.known: set[str] = set()

    def has(self, host: str) -> bool:
        """Whether this host has one now."""
        return host in self._held

    def let(self, host: str, act: Callable[[], None]) -> None:
        """Lets this happen now, or when the spell of the host ends."""
        held = self._held.get(host)
        if held is None:
            act()
        else:
            held.append(act)

    def begin(self, told: m.HostSeen, lasts_ms: float, noticed_ms: float, back_ms: float) -> None:
        """One begins. The core is told so, and told of its end, unless it is over before that."""
        host = told.engine
        self._held[host] = []
        ends = self._world.now + lasts_ms
        if noticed_ms < lasts_ms:
            self._world.at(self._world.now + noticed_ms, partial(self._notice, told))
            self._world.at(ends + back_ms, partial(self._forget, host))
        self._world.at(ends, partial(self._end, host))

    def _notice(self, told: m.HostSeen) -> None:
        self.known.add(told.engine)
        self._world.feed(told)

    def _forget(self, host: str) -> None:
        self.known.discard(host)
        self._world.feed(m.HostSeen(host))

    def _end(self, host: str) -> None:
        for act in self._held.pop(host):
            self._world.at(self._world.now, act)


class Hosts:
    """Who is silent, and what waits to be heard."""

    def __init__(self, world: Around, say: Callable[[str, str], None]) -> None:
        self._world, self._say = world, say
        self._silent, self._deaf = _Spells(world), _Spells(world)

    def is_silent(self, model: str) -> bool:
        """Whether its host is silent, or counts as such."""
        return self.is_unheard(model) or self.is_known_silent(model)

    def is_unheard(self, model: str) -> bool:
        """Whether nothing that this model reports arrives now."""
        return self._silent.has(self._world.declared[model].engine)

    def is_known_silent(self, model: str) -> bool:
        """Whether the core was told that the host of this model is silent."""
        return self._world.declared[model].engine in self._silent.known

    def heard(self, model: str, when: float, report: Callable[[], None]) -> None:
        """Makes a model report at this time, or when its host is heard again."""
        self._world.at(when, lambda: self._silent.let(self._world.declared[model].engine, report))

    def stopped(self, model: str, when: float, report: Callable[[], None]) -> None:
        """Lets a model stop at this time, or when its host hears again."""
        self.heard(model, when, lambda: self._deaf.let(self._world.declared[model].engine, report))

    def fall_deaf(self, host: str, lasts_ms: float, noticed_ms: float, back_ms: float) -> None:
        """A host stops no model for a while."""
        if self._is_well(host):
            told = m.HostSeen(host, "no reactor", serves=True)
            self._deaf.begin(told, lasts_ms, noticed_ms, back_ms)

    def fall_silent(self, host: str, lasts_ms: float, noticed_ms: float, back_ms: float) -> None:
        """A host is not heard for a while."""
        if self._is_well(host):
            self._silent.begin(m.HostSeen(host, "no answer"), lasts_ms, noticed_ms, back_ms)

    def _is_well(self, host: str) -> bool:
        return not any(spells.has(host) or host in spells.known for spells in (self._silent, self._deaf))

    def asking(self, model: str, what: str) -> None:
        """Judges a request at the moment at which it is sent."""
        if self.is_known_silent(model):
            self._say("asked of a host that is silent", f"{what} on {model}")

    def loading(self, model: str) -> None:
        """Judges a load at the moment at which it begins."""
        self.asking(model, "a load")
        if self._world.declared[model].engine in self._deaf.known:
            self._say("asked of a host that is silent", f"a load of {model}")


def schedule_silence(draw: random.Random, world: Around, hosts: Hosts, host: str, until_ms: float) -> None:
    """A host is silent, or deaf, now and then."""
    is_unit = draw.random() < _UNITS
    for _ in range(draw.randint(1, _SILENCES_MAX)):
        lasts_ms, noticed_ms = draw.uniform(*draw.choice(_SILENT_MS)), draw.uniform(*_NOTICED_MS)
        fall = hosts.fall_deaf if is_unit else hosts.fall_silent
        silence = partial(fall, host, lasts_ms, noticed_ms, draw.uniform(*_BACK_MS))
        world.at(draw.uniform(0, until_ms), silence)
