"""Inputs: the values that a plan is started with, as its section Inputs lists them.

A numbered list, bullets or a table; names in back-ticks, bold, in braces or plain capitals; defaults in prose. A list
entry without a name is prose.
"""

import re
from dataclasses import dataclass

from watchbill.plans import limits
from watchbill.plans.findings import Findings

__all__ = ["BUILT_INS", "LIST_SIGN", "Input", "inputs_of"]

#: Filled in by Watchbill, on the machine that runs the task.
BUILT_INS = ("BATCH_ID", "BATCH_PATH", "PLAN_PATH", "TASK_PATH", "ROOT")

#: How an entry of a list begins. A word processor makes dashes and other signs of hyphens.
LIST_SIGN = r"[-*+•‣◦–—]|\d{1,9}[.)]"
_ENTRY = re.compile(rf"( *)(?:{LIST_SIGN}|\|)[ \t]+(.*)$")
_NAME = re.compile(r"([*_`{]{0,5})([A-Za-z][A-Za-z0-9_]{0,99}?)([*_`}]{0,5})(?=[\s:,(=|–—-]|$)")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]*")
_AFTER_CAPITALS = re.compile(r"\s*(?:[:(=|–—-]|$)")
_AND = re.compile(r"\s*(?:,|/|and\b|&)\s*(?=[*_`{])")
_DEFAULT = re.compile(
    r"(?<!no )\bdefaults?(?:\s+value)?(?:\s*[:=]\s*|\s+(?:is|to)[:\s]\s*|\s+(?=[`\"'\d]))"
    r"(?:`([^`]*)`|\"([^\"]*)\"|'([^']*)'|([^`\"'\s),;|][^),;|]*))",
    re.IGNORECASE,
)
_NOTHING = {"none", "empty", "nothing", "null"}


@dataclass(frozen=True, slots=True)
class Input:
    """One input: its name, what it is for, and its value where none is given."""

    name: str
    line: int
    description: str
    default: str | None = None
    is_optional: bool = False


def inputs_of(lines: list[tuple[int, str]], findings: Findings) -> list[Input]:
    """The inputs that these lines of the section name."""
    found: dict[str, Input] = {}
    for line, text in _entries(_with_default_column(lines)):
        names, rest = _names(text)
        for name in names:
            if name in found:
                findings.wrong(
                    line, f"the input {name} is listed twice", f"it is also on line {found[name].line}"
                )
            elif len(found) >= limits.PLAN_INPUTS_MAX:
                findings.wrong(
                    line, f"the plan has more than {limits.PLAN_INPUTS_MAX:,} inputs", "give it a file"
                )
                return list(found.values())
            else:
                found[name] = _input(name, line, rest)
    return [each for each in found.values() if each.name not in BUILT_INS]


def _with_default_column(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines, where the value in a column `default` of a table is written as a default in prose is."""
    found: list[tuple[int, str]] = []
    column = None
    for number, line in lines:
        bare = line.strip()
        cells = [cell.strip() for cell in bare.strip("|").split("|")] if bare.startswith("|") else []
        words = [cell.strip("*_` ").lower() for cell in cells]
        default = ""
        if not cells:
            column = None
        elif column is None:
            column = next((at for at, word in enumerate(words) if word in ("default", "defaults")), None)
        elif column < len(cells) and words[column].strip("-: –—"):
            default = f" default: `{cells[column].strip('`')}`"
        found.append((number, line + default))
    return found


def _entries(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The entries of the list, each with the lines that continue it."""
    entries: list[tuple[int, list[str]]] = []
    depth = 0
    for number, line in lines:
        entry = _ENTRY.match(line.expandtabs(4))
        if entry is not None and (not entries or len(entry[1]) <= depth + 1):
            depth = len(entry[1])
            entries.append((number, [entry[2]]))
        elif entries and line[:1] in (" ", "\t"):
            entries[-1][1].append(line.strip())
    return [(number, " ".join(parts)) for number, parts in entries]


def _names(text: str) -> tuple[list[str], str]:
    """The names that an entry begins with, and the rest of it."""
    names: list[str] = []
    match = _NAME.match(text)
    while match is not None and _is_name(match, text):
        names.append(match[2])
        text = text[match.end() :]
        following = _AND.match(text)
        match = _NAME.match(text, following.end()) if following is not None else None
    return names, text


def _is_name(match: re.Match[str], text: str) -> bool:
    if match[1]:
        return bool(match[3]) or text[match.end() : match.end() + 1] == ":"  # **NAME:** text
    return bool(_CAPITALS.fullmatch(match[2]) and _AFTER_CAPITALS.match(text, match.end()))


def _input(name: str, line: int, rest: str) -> Input:
    default = _default_of(rest)
    is_optional = default is not None or "optional" in rest.lower()
    return Input(name, line, rest.strip(" \t:|*_-–—"), default, is_optional)


def _default_of(text: str) -> str | None:
    match = _DEFAULT.search(text)
    if match is None:
        return None
    quoted = next((each for each in match.groups()[:3] if each is not None), None)
    if quoted is not None:
        return quoted
    plain = re.split(r"\.\s", match[4] + " ", maxsplit=1)[0].strip(" \t*_")
    return "" if plain.lower() in _NOTHING else plain
