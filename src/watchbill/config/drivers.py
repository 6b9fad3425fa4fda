"""Which keys each driver reads.

A key that a driver ignores is refused: somebody who writes `context` for a process means to bound its memory,
and would learn otherwise from the kernel.
"""

from dataclasses import dataclass

__all__ = ["DRIVERS", "Driver", "available_drivers"]


@dataclass(frozen=True, slots=True)
class Driver:
    """What one driver needs and reads of its tables."""

    is_available: bool = True
    needs: frozenset[str] = frozenset()  # keys a model must have
    reads: frozenset[str] = frozenset()  # keys a model may have beside those every model has
    engine_reads: frozenset[str] = frozenset()  # keys of its [engines.NAME] table beside `driver`
    source_is_path: bool = True
    declares: frozenset[str] = frozenset()  # keys of every model that this driver cannot do without
    needs_url: bool = False  # its engine has no address by itself
    is_shared: bool = False  # its engines are always somebody else's
    sleeps_when_told: bool = (
        False  # its models have addresses for it; otherwise they sleep by themselves or never
    )


#: Everything that runs as a process of ours.
_OWNED = frozenset({"health", "probe", "env"})
_SLEEP = frozenset({"sleep", "asleep"})

DRIVERS: dict[str, Driver] = {
    "llamacpp": Driver(
        needs=frozenset({"source"}),
        reads=_OWNED | _SLEEP | {"context", "threads", "mmap", "embedding", "prompt_cache", "arguments"},
        engine_reads=frozenset({"binary"}),
    ),
    "process": Driver(
        needs=frozenset({"command"}), reads=_OWNED | _SLEEP | {"source", "stop"}, sleeps_when_told=True
    ),
    "scripted": Driver(reads=_OWNED | _SLEEP | {"script"}, sleeps_when_told=True),
    "ollama": Driver(
        needs=frozenset({"source"}),
        reads=frozenset({"probe", "embedding"}),
        engine_reads=frozenset({"url", "shared"}),
        source_is_path=False,
    ),
    "remote": Driver(
        reads=frozenset({"source"}),
        engine_reads=frozenset({"url", "shared"}),
        source_is_path=False,
        needs_url=True,
        is_shared=True,
    ),
    "systemd": Driver(
        needs=frozenset({"url"}),
        reads=_OWNED | {"source", "command", "unit", "image"},
        declares=frozenset({"memory"}),
    ),
}


def available_drivers() -> list[str]:
    """The drivers this version has."""
    return [name for name, driver in DRIVERS.items() if driver.is_available]
