"""A table of another program's config, and which of its keys were read. Does no I/O.

An import loses nothing without a word: every key that no code asked for, and every value of an unexpected kind, is in
`rest`. So a key of a later version of the other program is named, too, although this import has never heard of it.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

from watchbill.quoting import quoted

__all__ = ["Reading"]

T = TypeVar("T")
#: Why a key is in `rest`.
UNKNOWN = "it is not known to this import"


class Reading:
    """One table. A value of the wrong kind reads as if it were missing, and is told in `rest`."""

    def __init__(self, value: object, path: tuple[str, ...] = ()) -> None:
        fields = cast("Mapping[object, object]", value if isinstance(value, Mapping) else {})
        self._fields: dict[str, object] = {str(key): each for key, each in fields.items()}
        self._path = path
        self._read: set[str] = set()
        self._told: dict[str, str] = {}
        self._inner: dict[str, Reading] = {}

    def __contains__(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def value(self, key: str) -> object:
        """Whatever stands there; None where nothing does."""
        self._read.add(key)
        return self._fields.get(key)

    def text(self, key: str) -> str:
        """A text, or a number or switch as a text; empty where there is none."""
        value = self.value(key)
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, bool):
            return str(value).lower()
        return str(value) if isinstance(value, int | float) else self._refuse(key, "a text", "")

    def whole(self, key: str, default: int = 0) -> int:
        """A whole number, also one in quotes."""
        value = self.value(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
            return int(value)
        return default if value is None else self._refuse(key, "a whole number", default)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.value(key)
        if isinstance(value, bool):
            return value
        return default if value is None else self._refuse(key, "true or false", default)

    def listed(self, key: str) -> list[object]:
        """The items of a list; a single text or number counts as a list of one."""
        value = self.value(key)
        if isinstance(value, list):
            return cast("list[object]", value)
        if isinstance(value, str | int | float):
            return [value]
        return [] if value is None else self._refuse(key, "a list", [])

    def table(self, key: str) -> "Reading":
        """The table there; an empty one where there is none."""
        value = self.value(key)
        if value is not None and not isinstance(value, Mapping):
            self._refuse(key, "a table", None)
        return self._inner.setdefault(key, Reading(self._fields.get(key), (*self._path, key)))

    def tables(self) -> dict[str, "Reading"]:
        """Every key as a table."""
        return {key: self.table(key) for key in self._fields}

    def drop(self, key: str, why: str) -> None:
        """Notes that this key is not carried over, and why."""
        if key in self._fields:
            self._told[key] = why

    def rest(self) -> dict[tuple[str, ...], str]:
        """Path of every key that is not carried over -> why. Tables that were opened are told by their keys."""
        found: dict[tuple[str, ...], str] = {}
        for key in self._fields:
            if (why := self._told.get(key)) is not None:
                found[(*self._path, key)] = why
            elif key in self._inner:
                found |= self._inner[key].rest()
            elif key not in self._read:
                found[(*self._path, key)] = UNKNOWN
        return found

    def _refuse(self, key: str, kind: str, instead: T) -> T:
        self._told[key] = f"it is not {kind}: {quoted(str(self._fields[key]))}"
        return instead
