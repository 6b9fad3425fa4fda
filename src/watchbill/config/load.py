"""Reading: from a file to a catalog, or to the whole list of what is wrong with it.

Promises that every problem is reported at once with its file, line and key (only a text that is not TOML at all
stops at its first error), and that a catalog which is returned has passed every check. Never looks at model
files or at the machine.
"""

import copy
import os
import re
import tomllib
from collections.abc import Mapping
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
from watchbill.config.settle import settle
from watchbill.config.starter import EMBEDDED
from watchbill.errors import ConfigError, Problem
from watchbill.root import find_root

__all__ = ["Loaded", "default_catalog", "find_config", "load", "parse", "read", "read_text"]

EMBEDDED_ORIGIN = "the embedded default"

#: Values are taken out in rounds: a wrong one first, then the table that lacks it.
_PRUNING_ROUNDS_MAX = 8
_AT_LINE = re.compile(r" ?\(at (?:line (\d+), column \d+|end of document)\)")
_TWICE = re.compile(r"Cannot declare \((.*?),?\) twice")


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
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read(
    path: Path | None = None,
    *,
    root: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    only: str | None = None,
) -> Loaded:
    """As `load`, with everything that is needed to show or examine the config.

    `only` names the one table that matters to the caller: whoever asks for a spool is not to fail for the want of
    an API key.
    """
    found = find_config(path, environment)
    if found is None:
        base = find_root(root, environment).path
        return read_text(EMBEDDED, base=base, origin=EMBEDDED_ORIGIN, environment=environment)
    text = _read_file(found)
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


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(limits.CONFIG_FILE_BYTES_MAX + 1)
    except (
        OSError
    ) as error:  # whatever the reason, the operator named this file and must see why it is not read
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
    try:
        return cast("Raw", tomllib.loads(text)), locate(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(problems=[_syntax_problem(str(error), text, origin)]) from error
    except RecursionError as error:
        raise _too_deep(origin) from error


def _too_deep(origin: str) -> ConfigError:
    return ConfigError(problems=[Problem(origin, None, "", "is nested too deeply")])


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
