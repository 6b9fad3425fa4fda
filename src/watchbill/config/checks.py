"""What the checks of every section work with: the file's own words, and the shape of a complaint.

A check reads tables that are settled and yields what is wrong. It never looks at the machine (`examine` does) and never
stops at its first find: the operator gets the whole list.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from watchbill.catalog import DEFAULT_LANE
from watchbill.suggest import did_you_mean
from watchbill.toml import KeyPath, Raw

__all__ = ["Draft", "Wrong", "did_you_mean", "unknown"]

#: (path, what is wrong, what to do): a Problem before its file and line are known.
Wrong = tuple[KeyPath, str, str]


@dataclass(frozen=True, slots=True)
class Draft:
    """What the file itself says, while its tables are checked."""

    raw: Raw  # with the values that are wrong by themselves
    bad: Collection[KeyPath]  # those values: the tables under check were read without them
    base: Path  # what its paths are relative to
    environment: Mapping[str, str]

    def is_sound(self, *prefix: str) -> bool:
        """Whether nothing below this table was left out, so that a conclusion from it can be trusted."""
        return not any(path[: len(prefix)] == prefix for path in self.bad)

    def names(self, table: str) -> list[str]:
        """Every name the file declares in devices, engines, models or lanes, rightly or not."""
        said = list(self.keys_at(table))
        return said if table != "lanes" or DEFAULT_LANE in said else [DEFAULT_LANE, *said]

    def knows(self, table: str, name: str) -> bool:
        """Whether the file declares such a name."""
        return name in self.names(table)

    def keys_at(self, *path: str) -> Set[str]:
        """The keys that the file itself gives in the table at this path, in their order."""
        table = self.raw
        for part in path:
            inner = table.get(part)
            table = cast("Raw", inner) if isinstance(inner, dict) else {}
        return table.keys()


def unknown(path: KeyPath, what: str, name: str, known: Collection[str]) -> Wrong:
    """A reference to something that the file does not declare."""
    return path, f"there is no {what} {name}", did_you_mean(name, sorted(known)) or f"add one to [{what}s]"
