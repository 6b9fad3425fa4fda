"""Texts from outside in messages: escaped and cut, so that none harms a terminal or fills a log."""

from watchbill.limits import QUOTED_CHARS_MAX

__all__ = ["cut", "quoted"]


def cut(text: str, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """A text with dots in place of its end, where it is long."""
    return text if len(text) <= chars_max else text[: chars_max - 3] + "..."


def quoted(value: object, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """A value as a message shows it: in quotes where it is a text, in ASCII, on one line, and short."""
    if not isinstance(value, str):
        return cut(ascii(value), chars_max)
    shown = ascii(cut(value, chars_max))  # escapes make a text up to ten times as long: "\U0010ffff"
    return shown if len(shown) <= 2 * chars_max else f"{shown[: 2 * chars_max - 4]}...{shown[-1]}"
