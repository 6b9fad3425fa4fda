"""Reading: from a file to a catalog, or to the whole list of what is wrong with it.

Promises that every problem is reported at once with its file, line and key (only a text that is not TOML at all
stops at its first error), and that a catalog which is returned has passed every check. Never looks at model
files or at the machine.
"""

import copy
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from watchbill import limits
from watchbill.catalog import Catalog
from watchbill.config.build import build
from watchbill.config.check import check
from watchbill.config.document import Document
from watchbill.config.draft import Draft, Raw
from watchbill.config.locate import KeyPath, line_of, locate, spell_key
from watchbill.config.problems import Wrong, wrongs_of
from watchbill.config.reading import read_once
from watchbill.config.settle import settle
from watchbill.config.starter import EMBEDDED
from watchbill.errors import ConfigError, Problem
from watchbill.root import find_root

__all__ = ["Loaded", "default_catalog", "find_config", "load", "parse", "read", "read_text"]

EMBEDDED_ORIGIN = "the embedded default"

#: Without the sign.
INTEGER_BITS_MAX = 63
#: Values are taken out in rounds: a wrong one first, then the table that lacks it.
_PRUNING_ROUNDS_MAX = 8
_AT_LINE = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)")
_TWICE = re.compile(r"Cannot declare \((.*?),?\) twice")
#: A key of more parts than any table of ours is deep. Comments, strings and all other words are stepped over, so that
#: no position is looked at twice.
_QUOTED = r""""(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'"""
_LONG_KEY = re.compile(
    r"""#[^\n]*+|\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}.*?'{3}"""
    rf"|(?P<key>(?:(?:[\w-]++|{_QUOTED})[ \t]*+\.[ \t]*+){{{limits.CONFIG_DEPTH_MAX}}})"
    rf"|{_QUOTED}|[\w-]++",
    re.DOTALL,
)
#: More digits than Python reads into an integer.
_LONG_NUMBER = re.compile(r"[0-9_]{4301,}")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config that was read, and what is needed to talk about it."""

    catalog: Catalog
    document: Document  # settled: every default is written out
    raw: Raw  # what the file itself says
    lines: Mapping[KeyPath, int]
    base: Path  # what its paths are relative to
    origin: str  # how to call the file in a message
    file: Path | None  # None for the embedded default

    def problem(self, path: KeyPath, text: str, hint: str = "") -> Problem:
        """Something about a key of this file."""
        return Problem(self.origin, line_of(self.lines, path), spell_key(path), text, hint)


def load(
    path: Path | None = None, *, root: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Catalog:
    """The catalog of the config at `path`, or of the first one found. Raises ConfigError."""
    return read(path, root=root, environment=environment).catalog


def parse(
    text: str, *, base: Path, origin: str = "watchbill.toml", environment: Mapping[str, str] = os.environ
) -> Catalog:
    """The catalog that the text describes; its paths are relative to `base`. Raises ConfigError."""
    return read_text(text, base=base, origin=origin, environment=environment).catalog


def default_catalog(root: Path) -> Catalog:
    """What runs without any config: one small model under the root."""
    return read_text(EMBEDDED, base=root, origin=EMBEDDED_ORIGIN, environment={}).catalog


def find_config(path: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The config to read: the one named, else ./watchbill.toml, else ~/.config/watchbill/watchbill.toml."""
    if path is not None:
        return path
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    candidates = (Path("watchbill.toml"), home / "watchbill" / "watchbill.toml")
    # Whatever it is: a broken link or a pipe with that name is refused when it is read, not passed over in silence.
    return next((candidate for candidate in candidates if os.path.lexists(candidate)), None)


def read(
    path: Path | None = None,
    *,
    root: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    only: str | None = None,
    source: Callable[[Path], bytes] = read_once,
) -> Loaded:
    """As `load`, with everything that is needed to show or examine the config.

    `source` reads the file and raises OSError. `only` names the one table that matters to the caller: a command for a
    spool does not fail because an API key is missing.
    """
    found = find_config(path, environment)
    if found is None:
        base = find_root(root, environment).path
        return read_text(EMBEDDED, base=base, origin=EMBEDDED_ORIGIN, environment=environment)
    text = _read_file(found, source)
    return read_text(
        text, base=found.absolute().parent, origin=str(found), environment=environment, file=found, only=only
    )


def read_text(
    text: str,
    *,
    base: Path,
    origin: str,
    environment: Mapping[str, str],
    file: Path | None = None,
    only: str | None = None,
) -> Loaded:
    """Reads, checks and builds. Raises ConfigError with every problem there is."""
    raw, lines = _read_toml(text.removeprefix("\ufeff"), origin)
    if only is not None:
        raw = {key: value for key, value in raw.items() if key == only}
    try:
        document, wrongs = _examine_values(raw, base, environment)
    except RecursionError as error:  # dotted keys nest without a bracket that the parser would count
        raise _too_deep(origin) from error
    if wrongs or document is None:
        raise _refusal(wrongs, lines, origin)
    return Loaded(build(document, base, environment), document, raw, lines, base, origin, file)


# ------------------------------------------------------------------ the file


def _read_file(path: Path, source: Callable[[Path], bytes]) -> str:
    try:
        content = source(path)
    except OSError as error:  # any errno: the operator named this file and must see why it is not read
        reason = (error.strerror or str(error)).lower()
        hint = "watchbill config init FILE writes one" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(
            problems=[Problem(str(path), None, "", f"cannot be read: {reason}", hint)]
        ) from error
    if len(content) > limits.CONFIG_FILE_BYTES_MAX:
        size = f"larger than {limits.CONFIG_FILE_BYTES_MAX // 1024} KiB"
        raise ConfigError(problems=[Problem(str(path), None, "", size, "is this the right file?")])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            problems=[Problem(str(path), line, "", "is not UTF-8 text", "save the file as UTF-8")]
        ) from error


def _read_toml(text: str, origin: str) -> tuple[Raw, dict[KeyPath, int]]:
    _refuse_long_keys(text, origin)
    try:
        raw = cast("Raw", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(problems=[_syntax_problem(str(error), text, origin)]) from error
    except RecursionError as error:
        raise _too_deep(origin) from error
    except ValueError as error:  # tomllib lets through what int() says of more than 4,300 digits
        raise _too_many_digits(text, origin) from error
    _refuse_deep_values(raw, origin)
    lines = locate(text)
    _refuse_large_integers(raw, lines, origin)
    return raw, lines


def _refuse_long_keys(text: str, origin: str) -> None:
    """Before the parser sees them: it keeps every prefix of a key, ten gigabytes for one of 50,000 parts."""
    for match in _LONG_KEY.finditer(text):
        if match["key"] is not None:
            raise _too_deep(origin, text.count("\n", 0, match.start()) + 1)


def _refuse_deep_values(raw: Raw, origin: str) -> None:
    """Every element is noted with its whole path: deep and wide at once is what memory has no room for."""
    level: list[object] = [raw]
    for _ in range(limits.CONFIG_DEPTH_MAX + 1):
        level = [inner for value in level for inner in _inside(value)]
    if level:
        raise _too_deep(origin)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _refuse_large_integers(raw: Raw, lines: Mapping[KeyPath, int], origin: str) -> None:
    """TOML's integers have 64 bits. Larger ones come through as hexadecimals, and no message could print them."""
    rest: list[tuple[KeyPath, object]] = [((), raw)]
    problems: list[Problem] = []
    while rest:
        path, value = rest.pop()
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
            problems.append(Problem(origin, line_of(lines, path), spell_key(path), "is too large a number"))
        elif isinstance(value, dict):
            rest += [((*path, key), inner) for key, inner in cast("dict[str, object]", value).items()]
        elif isinstance(value, list):
            rest += [((*path, place), inner) for place, inner in enumerate(cast("list[object]", value))]
    if problems:
        raise ConfigError(problems=problems[: limits.CONFIG_PROBLEMS_MAX])


def _too_deep(origin: str, line: int | None = None) -> ConfigError:
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
        return Problem(origin, line, spell_key(path), "is declared twice", "merge the two tables")
    if said == "Cannot overwrite a value":
        return Problem(origin, line, "", "sets a key that is already set", "keep one of them")
    return Problem(origin, line, "", f"is not TOML: {said[:1].lower()}{said[1:200]}", "see https://toml.io")


# ------------------------------------------------------------------ the values


def _examine_values(
    raw: Raw, base: Path, environment: Mapping[str, str]
) -> tuple[Document | None, list[Wrong]]:
    """The settled document and everything that is wrong, in the values and between the tables."""
    document, wrongs, bad = _validate(raw)
    if document is None:
        return None, wrongs
    settled = settle(document)
    return settled, [*wrongs, *check(Draft(settled, raw, bad, base, environment))]


def _validate(raw: Raw) -> tuple[Document | None, list[Wrong], list[KeyPath]]:
    """The document without the values that are wrong by themselves, so that the rest can be checked, too."""
    wrongs: list[Wrong] = []
    bad: list[KeyPath] = []
    rest = copy.deepcopy(raw)
    for turn in range(_PRUNING_ROUNDS_MAX):
        try:
            return Document.model_validate(rest), wrongs, bad
        except ValidationError as error:
            # Later rounds only find what the pruning itself tore: a table without its required key.
            wrongs = wrongs if turn else wrongs_of(error)
            for detail in error.errors(include_url=False):
                path = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
                if not any(path[: len(gone)] == gone for gone in bad):
                    bad.append(_prune(rest, path))
    return None, wrongs, bad


def _prune(rest: Raw, path: KeyPath) -> KeyPath:
    """Takes out the value at the path, or the innermost one around it that stands in a table."""
    keys = [str(part) for part in takewhile(lambda part: isinstance(part, str) and part != "[key]", path)]
    table = rest
    for depth, key in enumerate(keys[:-1], start=1):
        inner = table.get(key)
        if not isinstance(inner, dict) or keys[depth] not in inner:
            keys = keys[:depth]
            break
        table = cast("Raw", inner)
    table.pop(keys[-1], None)
    return tuple(keys)


def _refusal(wrongs: list[Wrong], lines: Mapping[KeyPath, int], origin: str) -> ConfigError:
    problems = {
        Problem(origin, line_of(lines, path), spell_key(path), text, hint) for path, text, hint in wrongs
    }
    ordered = sorted(problems, key=lambda problem: (problem.line or 0, problem.key, problem.text))
    shown = ordered[: limits.CONFIG_PROBLEMS_MAX]
    if len(ordered) > len(shown):
        shown.append(Problem(origin, None, "", f"and {len(ordered) - len(shown)} more problems"))
    return ConfigError(problems=shown)
