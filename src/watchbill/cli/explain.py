"""How `explain` and `events` are shown.

The daemon decides which facts an explanation has, so their keys are not known here. Units are found by the ending of
the key (`_ms`, `_bytes`).
"""

from datetime import UTC, datetime
from typing import cast

from watchbill.cli.status import Fields, fields
from watchbill.cli.terminal import Terminal, plain
from watchbill.units import format_bytes, format_millis

__all__ = ["draw_event", "draw_explanation"]

_SIZES = frozenset(
    {"memory", "measured", "capacity", "reserve", "budget", "available", "used", "free", "bytes"}
)
_INDENT = 2

#: How a key ends that says whether a time was measured.
_GUESS = "_is_guess"

#: Events that are highlighted.
_STYLES = {
    "load": "yellow",
    "ready": "green",
    "evict": "magenta",
    "alert": "red",
    "failed": "red",
    "refuse": "red",
}


def draw_explanation(subject: str, explanation: Fields, terminal: Terminal) -> list[str]:
    """The explanation, one fact a line, nested ones indented."""
    return [terminal.mark(plain(subject), "bold"), *_facts(explanation, _INDENT, terminal)]


def draw_event(event: Fields, terminal: Terminal) -> str:
    """One line of the journal."""
    kind = plain(event.get("event") or "?")
    style = next((style for start, style in _STYLES.items() if kind.startswith(start)), "")
    told = [
        terminal.mark(_moment(event.get("t")), "dim"),
        terminal.mark(kind.ljust(10), style) if style else kind.ljust(10),
        plain(event.get("model") or "-").ljust(16),
        plain(event.get("reason") or ""),
    ]
    figures = [_told(key, event[key]) for key in ("ms", "bytes") if event.get(key)]
    return "  ".join(told).rstrip() + (f"  ({', '.join(figures)})" if figures else "")


def _facts(facts: Fields, indent: int, terminal: Terminal) -> list[str]:
    width = max((len(_named(key)) for key in facts), default=0)
    lines: list[str] = []
    for key, value in facts.items():
        if key.endswith(_GUESS) and _figure_of(key) in facts:
            continue  # told beside its figure
        name = terminal.mark(_named(key).ljust(width), "cyan")
        inner = fields(value)
        if inner:
            lines += [f"{' ' * indent}{name.rstrip()}", *_facts(inner, indent + _INDENT, terminal)]
            continue
        told = _told(key, value) + _origin(facts.get(_named(key).replace(" ", "_") + _GUESS))
        first, *rest = terminal.wrapped(told, indent + width + 2)
        lines += [f"{' ' * indent}{name}  {first.strip()}", *rest]
    return lines


def _figure_of(key: str) -> str:
    """The figure that a key about its origin belongs to: `load_is_guess` is about `load_ms`."""
    return key.removesuffix(_GUESS) + "_ms"


def _origin(is_guess: object) -> str:
    match is_guess:
        case True:
            return " (a guess)"
        case False:
            return " (measured)"
        case _:
            return ""


def _named(key: str) -> str:
    """A key as words, without its unit, which is shown with the value."""
    return plain(key.removesuffix("_ms").removesuffix("_bytes")).replace("_", " ")


def _told(key: str, value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() | float() if key.endswith("_ms") or key == "ms":
            return format_millis(round(value))
        case int() if key in _SIZES or key.endswith("_bytes"):
            return format_bytes(value)
        case float():
            return f"{value:.3g}"
        case list():
            return ", ".join(_told(key, each) for each in cast("list[object]", value)) or "none"
        case dict():
            inner = cast("dict[str, object]", value)
            return " ".join(f"{_named(each)} {_told(each, inner[each])}" for each in inner) or "none"
        case _:
            return plain(value)


def _moment(value: object) -> str:
    """The time of day of an event, whose `t` is in seconds or milliseconds since 1970, or already a text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value / 1000 if value > 10**11 else value
        return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%H:%M:%S")
    try:
        return datetime.fromisoformat(str(value)).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return plain(value or "--:--:--")
