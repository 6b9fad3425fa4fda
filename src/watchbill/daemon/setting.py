"""What a daemon was started with: the options of `up`, the screen of the person, and what stays the same until it ends.

Also owns how the options change the config: the address that is listened on, and the number of connections.
"""

import contextlib
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from watchbill import config
from watchbill.catalog import Catalog
from watchbill.config.limits import PORT_MAX
from watchbill.errors import ConfigError
from watchbill.limits import DESCRIPTORS_KEPT
from watchbill.notify import Notifier
from watchbill.processes import RootLock, Withheld
from watchbill.root import Root
from watchbill.runtime.library import Library
from watchbill.runtime.placing import Placing

__all__ = ["Options", "Progress", "Screen", "Setting", "owner_of", "with_address"]

Progress = Callable[[int, int | None], None]


class Options(Protocol):
    """The options of `up`. None means: as in the config."""

    @property
    def config(self) -> Path | None: ...
    @property
    def root(self) -> Path: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def ollama_port(self) -> int | None: ...
    @property
    def record(self) -> Path | None: ...
    @property
    def no_fleet(self) -> bool: ...
    @property
    def with_nats(self) -> bool: ...
    @property
    def cards(self) -> tuple[str, ...] | None: ...
    @property
    def no_fetch(self) -> bool: ...


class Screen(Protocol):
    """The daemon's output to the person who started it."""

    def pulling(self, text: str) -> "contextlib.AbstractContextManager[Progress]":
        """A bar for a download."""
        ...

    def warn(self, text: str) -> None:
        """Prints a warning; Watchbill goes on."""
        ...

    def tell(self, text: str) -> None:
        """Prints something good to know."""
        ...

    def ready(self, url: str, model: str, *, newcomer: bool) -> None:
        """Prints that the start is complete."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """Values that stay the same while the daemon runs."""

    root: Root
    lock: RootLock
    file: Path | None  # the config; None: the embedded default
    options: Options
    screen: Screen
    withheld: Withheld  # from engines
    notifier: Notifier
    library: Library
    placing: Placing


def with_address(catalog: Catalog, options: Options) -> Catalog:
    server = catalog.server
    host = server.host if options.host is None else options.host
    port = server.port if options.port is None else options.port
    for asked in (port, options.ollama_port or 0):
        if not 0 <= asked <= PORT_MAX:  # 99999 would silently become 34463
            raise ConfigError(
                f"{asked} is not a port; ports are 1 to {PORT_MAX}, and 0 picks one that is free"
            )
    config.refuse_open_bind(host, server.asks_for_keys)
    room = _allow_descriptors(server.connections_max)
    return replace(catalog, server=replace(server, host=host, port=port, connections_max=room))


def _allow_descriptors(connections: int) -> int:
    """Raises the limit of open files for these connections, each perhaps with one to an engine.

    Returns how many connections there is room for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + DESCRIPTORS_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, (soft - DESCRIPTORS_KEPT) // 2))


def owner_of(root: Root) -> str:
    return f"the daemon of {root.path}"
