"""llama-swap's macros: `${name}` in its texts, filled in. Does no I/O.

Macros may hold others that stand before them; a model's own come before those of the file. `${env.NAME}` is a variable
of the environment. `${PORT}`, `${MODEL_ID}` and `${PID}` stay: Watchbill fills them in when a model starts.
"""

import re
from collections.abc import Mapping

from watchbill.config.limits import MACRO_ROUNDS_MAX, MACRO_TEXT_CHARS_MAX

__all__ = ["Macros"]

_FOUND = re.compile(r"\$\{([a-zA-Z0-9_.-]+)\}")
_KEPT = frozenset({"PORT", "MODEL_ID", "PID"})


class Macros:
    """The macros that hold for one model, and the environment."""

    def __init__(self, values: Mapping[str, str], environment: Mapping[str, str], place: str = "") -> None:
        self._values, self._environment, self._place = values, environment, place
        #: Macros that nothing defines and variables that are not set, and where the first use of each is.
        self.unknown: dict[str, str] = {}
        self.read: set[str] = set()  # variables whose value was filled in

    def within(self, values: Mapping[str, str], place: str) -> "Macros":
        """The same with the macros of a model, at this place; what is found unknown is told here, too."""
        inner = Macros({**self._values, **values}, self._environment, place)
        inner.unknown, inner.read = self.unknown, self.read
        return inner

    def fill(self, text: str) -> str:
        """The text with every macro filled in, those within macros as well."""
        for _ in range(MACRO_ROUNDS_MAX):
            filled = _FOUND.sub(self._value, text)
            if filled == text or len(filled) > MACRO_TEXT_CHARS_MAX:
                break
            text = filled
        return text[:MACRO_TEXT_CHARS_MAX]

    def _value(self, found: "re.Match[str]") -> str:
        name = found[1]
        if name in _KEPT:
            return found[0]
        if name.startswith("env."):
            return self._variable(name.removeprefix("env."), found[0])
        if name not in self._values:
            self.unknown.setdefault(found[0], self._place)
            return found[0]
        return self._values[name]

    def _variable(self, name: str, whole: str) -> str:
        if name not in self._environment:
            self.unknown.setdefault(whole, self._place)
            return whole
        self.read.add(name)
        return self._environment[name]
