"""Where each key of a TOML file stands: from its path to its line.

`tomllib` says what a file means and forgets where it was said. This scanner reads a text that `tomllib` has
already accepted, so it only has to find its way, not to judge. Never raises on such a text.
"""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping

__all__ = ["KeyPath", "line_of", "locate", "spell_key"]

#: Keys of tables and indexes of arrays, outermost first.
KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'",
    re.DOTALL,
)
#: A number, boolean or date; a date may hold a space.
_SCALAR = re.compile(r"[^,\]}\n#]+")


def locate(text: str) -> dict[KeyPath, int]:
    """The line of every key and every array element, and of every table that a key implies."""
    return _Scanner(text).scan()


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of the path, or of the innermost table around it that the file has."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in lines:
            return lines[path[:depth]]
    return None


def spell_key(path: KeyPath) -> str:
    """The path as TOML writes it: devices."gpu:0".reserve, models.a.aliases[1]."""
    spelled = ""
    for part in path:
        if isinstance(part, int):
            spelled += f"[{part}]"
        else:
            quoted = part if _BARE_KEY.fullmatch(part) else ascii(part).replace('"', '\\"')
            quoted = quoted if quoted == part else f'"{quoted[1:-1]}"'
            spelled += f".{quoted}" if spelled else quoted
    return spelled


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[KeyPath, int] = {}
        self._counts: dict[KeyPath, int] = {}  # elements so far of each array of tables

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._read_header()
            else:
                self._read_pair(table)
            self._skip(_BLANK)
        return self._lines

    def _read_header(self) -> KeyPath:
        start = self._at
        is_array = self._text.startswith("[[", start)
        self._at += 2 if is_array else 1
        path = self._within_arrays(self._read_key())
        if is_array:
            self._counts[path] = self._counts.get(path, -1) + 1
            self._note(path, start)
            path = (*path, self._counts[path])
        self._note(path, start)
        self._at = self._text.index("]", self._at) + (2 if is_array else 1)
        return path

    def _within_arrays(self, key: tuple[str, ...]) -> KeyPath:
        """`[a.b]` after `[[a]]` means the last element of a."""
        path: KeyPath = ()
        for place, part in enumerate(key):
            path = (*path, part)
            if path in self._counts and place < len(key) - 1:
                path = (*path, self._counts[path])
        return path

    def _read_pair(self, table: KeyPath) -> None:
        start = self._at
        path = (*table, *self._read_key())
        self._note(path, start)
        self._at = self._text.index("=", self._at) + 1
        self._skip(_SPACE)
        self._read_value(path)

    def _read_key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            bare = _BARE_KEY.match(self._text, self._at)
            word = bare or _STRING.match(self._text, self._at)
            if word is None:  # not reached on a valid text; whatever this is, it is no key
                return tuple(parts)
            self._at = word.end()
            parts.append(word[0] if bare else str(tomllib.loads(f"key = {word[0]}")["key"]))
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return tuple(parts)
            self._at += 1

    def _read_value(self, path: KeyPath) -> None:
        opener = self._text[self._at : self._at + 1]
        if opener == "[":
            self._read_array(path)
        elif opener == "{":
            self._read_inline_table(path)
        else:
            word = _STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at)
            self._at = word.end() if word else len(self._text)

    def _read_array(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while self._before("]"):
            self._note((*path, index), self._at)
            self._read_value((*path, index))
            index += 1
            self._skip_comma()

    def _read_inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._before("}"):
            self._read_pair(path)
            self._skip_comma()

    def _before(self, closer: str) -> bool:
        """Whether another element comes; steps over the closing bracket when none does."""
        self._skip(_BLANK)
        if self._at < len(self._text) and self._text[self._at] != closer:
            return True
        self._at += 1
        return False

    def _skip_comma(self) -> None:
        self._skip(_BLANK)
        if self._text.startswith(",", self._at):
            self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _note(self, path: KeyPath, at: int) -> None:
        line = bisect_right(self._ends, at - 1) + 1
        while path and path not in self._lines:  # with a path all that leads to it is known
            self._lines[path] = line
            path = path[:-1]
