"""Values from a shared folder: JSON that another machine, another version or a person wrote, read with its types.

A reader asks for a field by its kind and gets it or a default; nothing of what was read is believed to have a shape.
"""

import json
from collections.abc import Mapping
from typing import cast

from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder.disk import Disk

__all__ = ["Fields", "encode", "fields_at", "fields_of"]


class Fields:
    """A JSON object, asked field by field. A field of another kind counts as absent."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def text(self, key: str, default: str = "") -> str:
        value = self._values.get(key)
        return value if isinstance(value, str) else default

    def whole(self, key: str, default: int = 0) -> int:
        value = self._values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def optional_whole(self, key: str) -> int | None:
        value = self._values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, key: str) -> bool:
        return self._values.get(key) is True

    def items(self, key: str) -> list[object]:
        value = self._values.get(key)
        return cast("list[object]", value) if isinstance(value, list) else []

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(each for each in self.items(key) if isinstance(each, str))

    def fields(self, key: str) -> "Fields":
        return Fields(self.mapping(key))

    def mapping(self, key: str) -> dict[str, object]:
        value = self._values.get(key)
        return cast("dict[str, object]", value) if isinstance(value, dict) else {}

    def all(self) -> Mapping[str, object]:
        """The object as it was read."""
        return self._values


def fields_at(disk: Disk, path: str, bytes_max: int = limits.FLEET_FILE_BYTES_MAX) -> Fields | None:
    """The JSON object of a file in the shared folder. None where there is none, or none that this user may read."""
    try:
        return fields_of(disk.read(path, bytes_max))
    except (FileNotFoundError, PermissionError, NotAFile, ValueError):
        return None


def fields_of(data: bytes) -> Fields:
    """Read a JSON object. Raises ValueError for anything else, also for an empty file."""
    try:
        value = cast("object", json.loads(data))
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return Fields(cast("dict[str, object]", value))


def encode(values: Mapping[str, object]) -> bytes:
    """Write a JSON object in one line."""
    return json.dumps(values, separators=(",", ":")).encode()
