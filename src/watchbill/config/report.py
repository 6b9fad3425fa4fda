"""What the operator reads about a wrong config: the key, what is wrong, what to do, with file and line.

Owns the wording of everything that is wrong with a single value. What is wrong within a section is worded in the file
of that section, and what is wrong between sections in `across`.
"""

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple, cast

from pydantic_core import ErrorDetails

from watchbill import limits
from watchbill.config.checks import Wrong, did_you_mean
from watchbill.config.document import TABLES, find_key, place_of
from watchbill.config.keys import choices_of, keys_of
from watchbill.config.planned import planned_feature, planned_value
from watchbill.config.values import REFUSED
from watchbill.errors import ConfigError, Problem
from watchbill.quoting import cut
from watchbill.toml import KeyPath, line_of, show_key, spell_value

__all__ = ["Found", "find_wrongs", "refusal"]

_KINDS = {
    "string_type": "a text", "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "dict_type": "a table", "model_type": "a table", "model_attributes_type": "a table", "tuple_type": "a list",
    "list_type": "a list", "int_from_float": "a whole number", "finite_number": "a finite number",
}  # fmt: skip
_BOUNDS = {
    "greater_than": ("more than", "gt"), "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"), "less_than_equal": ("at most", "le"),
}  # fmt: skip


_SWITCHES = {
    "yes": "true", "on": "true", "true": "true", "1": "true", "no": "false", "off": "false", "false": "false",
    "0": "false",
}  # fmt: skip
#: "8192", and "8k" as people write contexts.
_WHOLE = re.compile(r"(\d{1,9})\s*([kK])?")


class Found(NamedTuple):
    """What is wrong with a file, and how many more problems are not shown."""

    wrongs: list[Wrong]
    more: int


#: How much of a wrong value is shown beside what it should be.
_SHOWN_CHARS = 40


def refusal(found: Found, lines: Mapping[KeyPath, int], origin: str) -> ConfigError:
    """The error with every problem, in the order of the file and within a bound."""
    problems = {
        Problem(origin, line_of(lines, path), show_key(path), text, hint) for path, text, hint in found.wrongs
    }
    ordered = sorted(problems, key=lambda problem: (problem.line or 0, problem.key, problem.text))
    shown = ordered[: limits.CONFIG_PROBLEMS_MAX]
    if more := len(ordered) - len(shown) + found.more:
        shown.append(Problem(origin, None, "", f"and {more} more problems"))
    return ConfigError(problems=shown)


def find_wrongs(details: list[ErrorDetails], lines: Mapping[KeyPath, int]) -> Found:
    """Every single value that is wrong. Those that are not shown are counted: finding words for one takes 0.1 ms."""
    ordered = sorted(details, key=lambda detail: line_of(lines, detail["loc"]) or 0)
    worded = ordered[: limits.CONFIG_PROBLEMS_MAX]
    # What a table lacks whose name was cut at its dot is in the table beyond the dot.
    halved = {each["loc"][:-1] for each in worded if _unquoted_name(each) is not None}
    told = [each for each in worded if each["type"] != "missing" or each["loc"][:-1] not in halved]
    return Found([_wrong(detail) for detail in told], len(ordered) - len(worded))


def _wrong(detail: ErrorDetails) -> Wrong:
    path, kind = detail["loc"], detail["type"]
    if path and path[-1] == "[key]":
        path = path[:-1]
    context = detail.get("ctx", {})
    if kind == REFUSED:
        at = context.get("at")
        return ((*path, str(at)) if at is not None else path, str(context["text"]), str(context["hint"]))
    if kind == "extra_forbidden":
        if (meant := _unquoted_name(detail)) is not None:
            return (path, "a name with a dot needs quotes", f"write [{show_key(meant)}]")
        return (path, *_unknown(path))
    if kind == "missing":
        return (path, "is missing", _example(path, "add"))
    if kind == "literal_error":
        return (path, *_not_one_of(path, detail["input"]))
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return (path, f"must be {words} {_bound(path, context[bound])}", "")
    expected = _KINDS.get(kind)
    if expected is None:
        return (path, detail["msg"][:1].lower() + detail["msg"][1:], _example(path, "write"))
    if path[:2] == ("server", "keys"):  # what stands there may be the key itself, and this may go into a log
        return (path, f"must be {expected}", _example(path, "write") or 'write { key = "env:ALICE_KEY" }')
    advice = _meant(path, kind, detail["input"]) or _example(path, "write")
    return (path, f"must be {expected}, not {_shown(detail['input'])}", advice)


#: Keys of Ollama, llama.cpp and llama-swap, in small letters without - and _, and what to write here.
_ELSEWHERE: dict[tuple[str, ...], dict[str, str]] = {
    ("models", "*"): {
        **dict.fromkeys(("ttl", "keepalive", "unloadafter"), 'write idle = "5m"'),
        **dict.fromkeys(
            ("nctx", "numctx", "ctxsize", "contextlength", "maxmodellen"), "write context = 8192"
        ),
        **dict.fromkeys(("path", "file", "model", "modelpath", "gguf", "from"), "write source = ..."),
        **dict.fromkeys(
            ("gpulayers", "ngpulayers", "ngl", "numgpu", "gpu"),
            'models go to a card where one has room; write devices = ["gpu:0"] to choose one',
        ),
        **dict.fromkeys(("numparallel", "parallel", "np", "slots"), "write concurrency = 4"),
        **dict.fromkeys(("numthread", "nthreads"), "write threads = 4"),
        **dict.fromkeys(("args", "extraargs", "flags"), 'write arguments = ["--flash-attn", "on"]'),
        "proxy": 'write url = "http://127.0.0.1:9000" for a server that others run',
    },
}


def _unknown(path: KeyPath) -> tuple[str, str]:
    place = place_of(path)
    feature = planned_feature(place)
    if feature is not None:
        return f"this version of Watchbill does not have {feature}", "remove it"
    table = TABLES.get(place[:-1])
    known = list(keys_of(table)) if table else []
    meant = _ELSEWHERE.get(place[:-1], {}).get(re.sub(r"[-_]", "", place[-1].lower()))
    return "is not a key that Watchbill knows", meant or did_you_mean(place[-1], known)


def _unquoted_name(detail: ErrorDetails) -> KeyPath | None:
    """[models.qwen2.5] is a table 5 in the table models.qwen2: the path that was meant, if that is plain."""
    path, value = detail["loc"], cast("object", detail["input"])
    table = TABLES.get(place_of(path)[:-1])
    if detail["type"] != "extra_forbidden" or table is None or place_of(path)[-2:-1] != ("*",):
        return None
    name = [str(part) for part in path[-2:]]
    while isinstance(value, dict) and not keys_of(table).keys() & value.keys():
        inner = cast("dict[str, object]", value)
        if len(inner) != 1:
            return None
        ((part, value),) = inner.items()
        name.append(part)
    return (*path[:-2], ".".join(name)) if isinstance(value, dict) else None


def _not_one_of(path: KeyPath, value: object) -> tuple[str, str]:
    key = find_key(path)
    choices = choices_of(key) if key else []
    feature = planned_value(place_of(path), value)
    if feature is not None:
        return f"this version of Watchbill does not have {feature}", f"use {' or '.join(choices)}"
    near = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"must be one of {', '.join(choices)}, not {_shown(value)}", near if "?" in near else ""


def _meant(path: KeyPath, kind: str, value: object) -> str:
    """`write permanent = true`: what a value of the wrong kind was meant to be, where that is plain."""
    key = find_key(path)
    spelled = None
    if kind == "bool_type":
        spelled = _SWITCHES.get(str(value).strip().lower())
    elif kind in ("int_type", "int_from_float") and isinstance(value, str):
        found = _WHOLE.fullmatch(value.strip())
        spelled = str(int(found[1]) * (1024 if found[2] else 1)) if found else None
    elif kind in ("list_type", "tuple_type") and isinstance(value, str) and value.isprintable():
        is_command = key is not None and key.name == "arguments"
        spelled = spell_value(_words(value) if is_command else [value[:_SHOWN_CHARS]])
    return f"write {key.name} = {spelled}" if key and spelled else ""


def _words(text: str) -> list[str]:
    """The words of a command line, in a few of them."""
    try:
        return shlex.split(text[:_SHOWN_CHARS])
    except ValueError:  # a quote that does not end
        return text[:_SHOWN_CHARS].split()


def _example(path: KeyPath, verb: str) -> str:
    """`write port = 8470`: the key's example, or its default."""
    key = find_key(path)
    return f"{verb} {key.name} = {key.example}" if key and key.example else ""


def _bound(path: KeyPath, bound: object) -> str:
    key = find_key(path)
    if isinstance(bound, float):
        return f"{bound:g}"
    return key.spell(bound).strip('"') if key else str(bound)


def _shown(value: object) -> str:
    """What was found, in a few words."""
    if isinstance(value, bool):
        return spell_value(value)
    if isinstance(value, str | int | float):
        shown = spell_value(value[:_SHOWN_CHARS]) if isinstance(value, str) else str(value)
        return cut(shown, _SHOWN_CHARS).encode("ascii", "backslashreplace").decode()
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"
