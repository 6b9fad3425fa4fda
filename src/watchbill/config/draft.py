"""A draft: a document on its way through the checks."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from watchbill.catalog import DEFAULT_LANE
from watchbill.config.document import Document
from watchbill.config.locate import KeyPath

__all__ = ["Draft", "Raw"]

#: What `tomllib` makes of a file.
Raw = dict[str, object]


@dataclass(frozen=True, slots=True)
class Draft:
    """What the file says, and what it means so far."""

    document: Document  # settled, without the values that are wrong by themselves
    raw: Raw  # with them
    bad: Collection[KeyPath]  # what was left out
    base: Path
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
