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


class Hosts:
    """Who is silent, and what waits to be heard."""

    def __init__(self, world: Around, say: Callable[[str, str], None]) -> None:
        self._world, self._say = world, say
        self._unheard: dict[str, list[Callable[[], None]]] = {}  # silent host -> its reports, in order
        self._known: set[str] = set()  # hosts of whose silence the core knows
        self._deaf: dict[str, list[Callable[[], None]]] = {}  # deaf host -> its stops, in order
        self._known_deaf: set[str] = set()  # hosts that the core knows to be deaf

    def is_silent(self, model: str) -> bool:
        """Whether its host is silent, or counts as such."""
        return self.is_unheard(model) or self.is_known_silent(model)

    def is_unheard(self, model: str) -> bool:
        """Whether nothing that this model reports arrives now."""
        return self._world.declared[model].engine in self._unheard

    def is_known_silent(self, model: str) -> bool:
        """Whether the core was told that the host of this model is silent."""
        return self._world.declared[model].engine in self._known

    def heard(self, model: str, when: float, report: Callable[[], None]) -> None:
        """Makes a model report at this time, or when its host is heard again."""

        def hear() -> None:
            unheard = self._unheard.get(self._world.declared[model].engine)
            if unheard is None:
                report()
            else:
                unheard.append(report)

        self._world.at(when, hear)

    def stopped(self, model: str, when: float, report: Callable[[], None]) -> None:
        """Lets a model stop at this time, or when its host hears again."""

        def stop() -> None:
            unheard = self._deaf.get(self._world.declared[model].engine)
            if unheard is None:
                report()
            else:
                unheard.append(report)

        self.heard(model, when, stop)

    def fall_deaf(self, host: str, lasts_ms: float, noticed_ms: float, back_ms: float) -> None:
        """A host stops no model for a while."""
        if host in self._unheard or host in self._known or host in self._deaf or host in self._known_deaf:
            return
        self._deaf[host] = []
        ends = self._world.now + lasts_ms
        if noticed_ms < lasts_ms:
            self._world.at(self._world.now + noticed_ms, partial(self._notice_deaf, host))
            self._world.at(ends + back_ms, partial(self._see_hearing, host))
        self._world.at(ends, partial(self._hear, host))

    def _notice_deaf(self, host: str) -> None:
        self._known_deaf.add(host)
        self._world.feed(m.HostSeen(host, "no reactor", serves=True))

    def _see_hearing(self, host: str) -> None:
        self._known_deaf.discard(host)
        self._world.feed(m.HostSeen(host))

    def _hear(self, host: str) -> None:
        for stop in self._deaf.pop(host):
            self._world.at(self._world.now, stop)

    def fall_silent(self, host: str, lasts_ms: float, noticed_ms: float, back_ms: float) -> None:
        """A host is not heard for a while."""
        if host in self._unheard or host in self._known or host in self._deaf or host in self._known_deaf:
            return
        self._unheard[host] = []
        ends = self._world.now + lasts_ms
        if noticed_ms < lasts_ms:
            self._world.at(self._world.now + noticed_ms, partial(self._notice, host))
            self._world.at(ends + back_ms, partial(self._see_back, host))
        self._world.at(ends, partial(self._be_heard, host))

    def _notice(self, host: str) -> None:
        self._known.add(host)
        self._world.feed(m.HostSeen(host, "no answer"))

    def _see_back(self, host: str) -> None:
        self._known.discard(host)
        self._world.feed(m.HostSeen(host))

    def _be_heard(self, host: str) -> None:
        for report in self._unheard.pop(host):
            self._world.at(self._world.now, report)

    def asking(self, model: str, what: str) -> None:
        """Judges a request at the moment at which it is sent."""
        if self.is_known_silent(model):
            self._say("asked of a host that is silent", f"{what} on {model}")

    def loading(self, model: str) -> None:
        """Judges a load at the moment at which it begins."""
        self.asking(model, "a load")
        if self._world.declared[model].engine in self._known_deaf:
            self._say("asked of a host that is silent", f"a load of {model}")


def schedule_silence(draw: random.Random, world: Around, hosts: Hosts, host: str, until_ms: float) -> None:
    """A host is silent, or deaf, now and then."""
    is_unit = draw.random() < _UNITS
    for _ in range(draw.randint(1, _SILENCES_MAX)):
        lasts_ms, noticed_ms = draw.uniform(*draw.choice(_SILENT_MS)), draw.uniform(*_NOTICED_MS)
        fall = hosts.fall_deaf if is_unit else hosts.fall_silent
        silence = partial(fall, host, lasts_ms, noticed_ms, draw.uniform(*_BACK_MS))
        world.at(draw.uniform(0, until_ms), silence)
