"""TOML: from a text to its values and the line of each key, and from values back to a text.

`tomllib` says what a file means and forgets where it was said. The scanner below reads a text that `tomllib` has
already accepted, so it only has to find its way, not to judge; it never raises on such a text. Bounds on keys, depth
and digits are applied here, because the parser has none.
"""

import re
import shlex
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import cast

from watchbill import limits
from watchbill.errors import ConfigError, Problem
from watchbill.quoting import cut

__all__ = [
    "KeyPath",
    "Raw",
    "line_of",
    "locate",
    "read_toml",
    "show_key",
    "spell_key",
    "spell_value",
    "too_deep",
]

#: Keys of tables and indexes of arrays, outermost first.
KeyPath = tuple[str | int, ...]
#: What `tomllib` makes of a file.
Raw = dict[str, object]

#: Without the sign.
INTEGER_BITS_MAX = 63
#: A config of llama-swap, under whatever name.
_YAML_MODELS = re.compile(r"^models:[ \t]*$", re.MULTILINE)
_AT_LINE = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)")
_TWICE = re.compile(r"Cannot declare \((.*?),?\) twice")
#: A key of more parts than any table of ours is deep. Comments, strings and all other words are stepped over, so that
#: no position is looked at twice.
_QUOTED = r""""(?:[^"\\\n]++|\\.)*"|'[^'\n]*+'"""
_LONG_QUOTED = r"""\"{3}(?:[^"\\]++|\\.|"(?!""))*\"{3,5}|'{3}(?:[^']++|'(?!''))*'{3,5}"""
_LONG_KEY = re.compile(
    rf"#[^\n]*+|{_LONG_QUOTED}"
    rf"|(?P<key>(?:(?:[\w-]++|{_QUOTED})[ \t]*+\.[ \t]*+){{{limits.CONFIG_DEPTH_MAX}}})"
    rf"|{_QUOTED}|[\w-]++",
    re.DOTALL,
)
#: Texts and comments, which may hold marks of values that are none.
_NO_VALUES = re.compile(rf"#[^\n]*+|{_LONG_QUOTED}|{_QUOTED}", re.DOTALL)
#: A key with a value that is neither quoted nor a number, as people write who know YAML or Python.
_BARE_VALUE = re.compile(
    r"[ \t]*(?P<key>[\w.-]+)[ \t]*=[ \t]*(?P<value>[^\s\"'\[\]{}#=,][^\"'\[\]{}#=,]*?)[ \t]*(?:#.*)?"
)
_BARE_HEADER = re.compile(r"[ \t]*\[(?P<path>[^\[\]\"'#]+)\][ \t]*(?:#.*)?")
_FIGURES = re.compile(r"[\d.,_+-]+")
_TRUTHS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
#: Quotes of word processors.
_CURLY_QUOTES = frozenset("\u2018\u2019\u201a\u201c\u201d\u201e")
#: Longer lines get no hint of their own.
_HINTED_CHARS_MAX = 200
#: More digits than Python reads into an integer.
_LONG_NUMBER = re.compile(r"[0-9_]{4301,}")


def read_toml(text: str, origin: str) -> tuple[Raw, dict[KeyPath, int]]:
    """The values of a TOML text and the line of each key. Raises ConfigError with what is wrong and where."""
    _refuse_many_values(text, origin)
    _refuse_long_keys(text, origin)
    try:
        raw = cast("Raw", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(problems=[_syntax_problem(str(error), text, origin)]) from error
    except RecursionError as error:
        raise too_deep(origin) from error
    except ValueError as error:  # tomllib lets through what int() says of more than 4,300 digits
        raise _too_many_digits(text, origin) from error
    _refuse_deep_values(raw, origin)
    lines = locate(text)
    _refuse_values(raw, lines, origin)
    return raw, lines


def _refuse_many_values(text: str, origin: str) -> None:
    """By their marks. Most files have few, also with those in texts and comments, which are then left out."""
    if _count_marks(text) > limits.CONFIG_VALUES_MAX and (
        _count_marks(_NO_VALUES.sub('""', text)) > limits.CONFIG_VALUES_MAX
    ):
        complaint = f"has more than {limits.CONFIG_VALUES_MAX:,} keys and values"
        raise ConfigError(problems=[Problem(origin, None, "", complaint, "is this the right file?")])


def _count_marks(text: str) -> int:
    return text.count("=") + text.count(",") + text.count("\n[")


def _refuse_long_keys(text: str, origin: str) -> None:
    """Before the parser sees them: it keeps every prefix of a key, ten gigabytes for one of 50,000 parts."""
    for match in _LONG_KEY.finditer(text):
        if match["key"] is not None:
            raise too_deep(origin, text.count("\n", 0, match.start()) + 1)


def _refuse_deep_values(raw: Raw, origin: str) -> None:
    """Every element is noted with its whole path: deep and wide at once is what memory has no room for."""
    level: list[object] = [raw]
    for _ in range(limits.CONFIG_DEPTH_MAX + 1):
        level = [inner for value in level for inner in _inside(value)]
    if level:
        raise too_deep(origin)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _refuse_values(raw: Raw, lines: Mapping[KeyPath, int], origin: str) -> None:
    """Raises ConfigError for values that nothing behind could work with in time, or name in a message."""
    rest: list[tuple[KeyPath, object]] = [((), raw)]
    problems: list[Problem] = []
    while rest:
        path, value = rest.pop()
        if complaint := _too_large(value):
            problems.append(Problem(origin, line_of(lines, path), show_key(path), complaint))
        elif isinstance(value, dict):
            rest += [((*path, key), inner) for key, inner in cast("dict[str, object]", value).items()]
        elif isinstance(value, list):
            rest += [((*path, place), inner) for place, inner in enumerate(cast("list[object]", value))]
    if problems:
        raise ConfigError(problems=problems[: limits.CONFIG_PROBLEMS_MAX])


def _too_large(value: object) -> str | None:
    """What is too much of a value. TOML's integers have 64 bits; larger ones come through as hexadecimals, and no
    message could print them."""
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        return "is too large a number"
    if isinstance(value, dict | list):
        count = len(cast("dict[str, object] | list[object]", value))
        if count > limits.CONFIG_TABLE_LEN_MAX:
            return f"has {count:,} entries; the most is {limits.CONFIG_TABLE_LEN_MAX:,}"
    return None


def too_deep(origin: str, line: int | None = None) -> ConfigError:
    """The error of a text whose tables nest deeper than any of ours."""
    return ConfigError(problems=[Problem(origin, line, "", "is nested too deeply")])


def _too_many_digits(text: str, origin: str) -> ConfigError:
    found = _LONG_NUMBER.search(text)
    line = text.count("\n", 0, found.start()) + 1 if found else None
    return ConfigError(problems=[Problem(origin, line, "", "has a number of too many digits")])


def _syntax_problem(message: str, text: str, origin: str) -> Problem:
    match = _AT_LINE.search(message)
    last = text.count("\n") + (0 if text.endswith("\n") else 1)
    line = int(match[1]) if match and match[1] else max(last, 1)
    said = _AT_LINE.sub("", message)
    if twice := _TWICE.search(said):
        path = tuple(part.strip().strip("'\"") for part in twice[1].split(","))
        return Problem(origin, line, show_key(path), "is declared twice", "merge the two tables")
    if said == "Cannot overwrite a value":
        return Problem(origin, line, "", "sets a key that is already set", "keep one of them")
    if origin.endswith((".yaml", ".yml")) or _YAML_MODELS.search(text):
        hint = f"a config of llama-swap becomes one with: watchbill config import llama-swap {shlex.quote(origin)}"
    else:
        lines = text.split("\n")
        hint = _syntax_hint(said, lines[line - 1] if line <= len(lines) else "") or "see https://toml.io"
    return Problem(origin, line, "", f"is not TOML: {said[:1].lower()}{said[1:200]}", hint)


def _syntax_hint(said: str, line: str) -> str | None:
    """What to write instead, for the slips that are commonest; None for the others."""
    line = line.removesuffix("\r")
    if len(line) > _HINTED_CHARS_MAX:
        return None
    if not _CURLY_QUOTES.isdisjoint(line):
        return 'write plain quotes: "'
    if said.startswith("Illegal character '\\n'"):
        return "a quote is missing on this line"
    if said.startswith("Unescaped '\\'"):
        return "put a text with backslashes into single quotes"
    if header := _BARE_HEADER.fullmatch(line):
        return _quoted_header(header["path"])
    if assigned := _BARE_VALUE.fullmatch(line):
        return _quoted_value(assigned["key"], assigned["value"])
    return None


def _quoted_header(path: str) -> str | None:
    """The header with quotes around its name. Dots after the first character that needs quotes belong to the name."""
    parts = path.strip().split(".")
    bare = list(takewhile(_BARE_KEY.fullmatch, parts))
    if not bare or len(bare) == len(parts):
        return None
    return f"write [{'.'.join(bare)}.{spell_value('.'.join(parts[len(bare) :]))}]"


def _quoted_value(key: str, value: str) -> str | None:
    if truth := _TRUTHS.get(value.lower()):
        return f"write {key} = {truth}"
    if value in ("None", "null"):
        return "leave the key out, for its default"
    return None if _FIGURES.fullmatch(value) else f"write {key} = {spell_value(value)}"


# ------------------------------------------------------------------ lines of keys

_BLANK = re.compile(r"(?:\s++|#[^\n]*+)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(rf"{_LONG_QUOTED}|{_QUOTED}", re.DOTALL)
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


# ------------------------------------------------------------------ back to a text


def spell_key(path: KeyPath) -> str:
    """The path as TOML writes it: devices."gpu:0".reserve, models.a.aliases[1]."""
    spelled = ""
    for part in path:
        if isinstance(part, int):
            spelled += f"[{part}]"
        else:
            quoted = part if _BARE_KEY.fullmatch(part) else spell_value(part)
            spelled += f".{quoted}" if spelled else quoted
    return spelled


def show_key(path: KeyPath) -> str:
    """The path as a message shows it: a part that is longer than any name is cut."""
    return spell_key(
        tuple(part if isinstance(part, int) else cut(part, limits.MODEL_NAME_CHARS_MAX) for part in path)
    )


def spell_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_ESCAPES.get(letter) or _escape(letter) for letter in value) + '"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell_value, cast('list[object]', value)))}]"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        inside = ", ".join(f"{spell_key((key,))} = {spell_value(each)}" for key, each in pairs)
        return f"{{ {inside} }}" if inside else "{}"
    return str(value)


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape(letter: str) -> str:
    return letter if letter.isprintable() else f"\\U{ord(letter):08X}"
