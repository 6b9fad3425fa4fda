"""Reading: from a file to a catalog, or to the whole list of what is wrong with it.

Promises that every problem is reported at once with its file, line and key (only a text that is not TOML at all
stops at its first error), and that a catalog which is returned has passed every check. Of model files it only sees
whether they lie beside the config or below the root; never looks at the machine.
"""

import copy
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from watchbill.catalog import Catalog
from watchbill.config.across import check_across
from watchbill.config.checks import Draft
from watchbill.config.document import Document, build, check_sections, settle
from watchbill.config.file import read_config, read_once
from watchbill.config.lookup import find_config
from watchbill.config.report import Found, find_wrongs, refusal
from watchbill.config.starter import EMBEDDED
from watchbill.errors import ConfigError, Problem
from watchbill.root import find_root
from watchbill.toml import KeyPath, Raw, line_of, read_toml, show_key, too_deep

__all__ = ["Loaded", "default_catalog", "load", "parse", "read", "read_text"]

EMBEDDED_ORIGIN = "the embedded default"

#: Values are taken out in rounds: a wrong one first, then the table that lacks it.
_PRUNING_ROUNDS_MAX = 8


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
        return Problem(self.origin, line_of(self.lines, path), show_key(path), text, hint)


def load(
    path: Path | None = None, *, root: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Catalog:
    """The catalog of the config at `path`, or of the one that a daemon would be started with. Raises ConfigError."""
    return read(find_config(path, None, environment), root=root, environment=environment).catalog


def parse(
    text: str, *, base: Path, origin: str = "watchbill.toml", environment: Mapping[str, str] = os.environ
) -> Catalog:
    """The catalog that the text describes; its paths are relative to `base`. Raises ConfigError."""
    return read_text(text, base=base, origin=origin, environment=environment).catalog


def default_catalog(root: Path) -> Catalog:
    """What runs without any config: one small model under the root."""
    return read_text(EMBEDDED, base=root, origin=EMBEDDED_ORIGIN, environment={}).catalog


def read(
    path: Path | None,
    *,
    root: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    only: Collection[str] | None = None,
    source: Callable[[Path], bytes] = read_once,
) -> Loaded:
    """The config at `path`, with everything that is needed to show or examine it; None is the embedded default.

    `find_config` says which one a command means. `source` reads the file and raises OSError. `only` names the tables
    that matter to the caller: a command for a spool does not fail because an API key is missing.
    """
    if path is None:
        base = find_root(root, environment).path
        return read_text(EMBEDDED, base=base, origin=EMBEDDED_ORIGIN, environment=environment)
    text = read_config(path, source)
    return read_text(
        text,
        base=path.absolute().parent,
        origin=str(path),
        environment=environment,
        file=path,
        only=only,
        root=_root_of(root, environment),
    )


def read_text(
    text: str,
    *,
    base: Path,
    origin: str,
    environment: Mapping[str, str],
    file: Path | None = None,
    only: Collection[str] | None = None,
    root: Path | None = None,
) -> Loaded:
    """Reads, checks and builds. Raises ConfigError with every problem there is."""
    raw, lines = read_toml(text.removeprefix("\ufeff"), origin)
    if only is not None:
        raw = {key: value for key, value in raw.items() if key in only}
    try:
        document, found = _examine_values(raw, lines, base, environment)
    except RecursionError as error:  # dotted keys nest without a bracket that the parser would count
        raise too_deep(origin) from error
    if found.wrongs or document is None:
        raise refusal(found, lines, origin)
    return Loaded(build(document, base, environment, root), document, raw, lines, base, origin, file)


def _root_of(chosen: Path | None, environment: Mapping[str, str]) -> Path | None:
    try:
        return find_root(chosen, environment).path
    except ConfigError:  # without a home folder no root is usual, and nothing was pulled there
        return None


# ------------------------------------------------------------------ the values


def _examine_values(
    raw: Raw, lines: Mapping[KeyPath, int], base: Path, environment: Mapping[str, str]
) -> tuple[Document | None, Found]:
    """The settled document and everything that is wrong, in the values and between the tables."""
    document, found, bad = _validate(raw, lines)
    if document is None:
        return None, found
    settled, draft = settle(document), Draft(raw, bad, base, environment)
    wrongs = [*found.wrongs, *check_sections(settled, draft), *check_across(settled, draft)]
    return settled, Found(wrongs, found.more)


def _validate(raw: Raw, lines: Mapping[KeyPath, int]) -> tuple[Document | None, Found, list[KeyPath]]:
    """The document without the values that are wrong by themselves, so that the rest can be checked, too."""
    found = Found([], 0)
    bad: dict[KeyPath, None] = {}  # in the order in which they were found
    rest = copy.deepcopy(raw)
    for turn in range(_PRUNING_ROUNDS_MAX):
        try:
            return Document.model_validate(rest), found, list(bad)
        except ValidationError as error:
            # Later rounds only find what the pruning itself tore: a table without its required key.
            details = error.errors(include_url=False)
            found = found if turn else find_wrongs(details, lines)
            for detail in details:
                path = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
                if not any(path[:depth] in bad for depth in range(len(path) + 1)):
                    bad[_prune(rest, path)] = None
    return None, found, list(bad)


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
