"""Texts from outside in messages: escaped and cut, so that none harms a terminal or fills a log."""

import re

from watchbill.limits import QUOTED_CHARS_MAX, SAID_CHARS_MAX

__all__ = ["cut", "described", "harmless", "on_one_line", "quoted", "why_no_json"]

#: Tab and newline stay; ESC, bell, carriage return, C1 codes and the like do not reach a terminal.
_UNSAFE = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}

#: The first half of a UTF-16 pair without the second one. It begins with a literal, which is found fast.
_HALF_CHARACTER = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def harmless(text: str) -> str:
    """A text from outside with its lines, for a terminal: without control characters."""
    return text.translate(_UNSAFE)


def cut(text: str, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """A text with dots in place of its end, where it is long."""
    return text if len(text) <= chars_max else text[: chars_max - 3] + "..."


def quoted(value: object, chars_max: int = QUOTED_CHARS_MAX) -> str:
    """A value as a message shows it: in quotes where it is a text, in ASCII, on one line, and short."""
    if not isinstance(value, str):
        return cut(ascii(value), chars_max)
    shown = ascii(cut(value, chars_max))  # escapes make a text up to ten times as long: "\U0010ffff"
    return shown if len(shown) <= 2 * chars_max else f"{shown[: 2 * chars_max - 4]}...{shown[-1]}"


def why_no_json(error: Exception, content: bytes | bytearray) -> str:
    """What a decoder said of a text. Half a character, the commonest cause, is called truncated input by msgspec."""
    if "surrogate" in str(error) or _has_half_character(content):
        return "a text was cut in the middle of a character, such as an emoji, and has half of it (\\ud83e)"
    return str(error)


def _has_half_character(content: bytes | bytearray) -> bool:
    for match in _HALF_CHARACTER.finditer(content):
        before = match.start()
        while before and content[before - 1] == ord("\\"):
            before -= 1
        if (match.start() - before) % 2 == 0:  # of several backslashes each second one is a character
            return True
    return False


def on_one_line(text: str, chars_max: int = SAID_CHARS_MAX) -> str:
    """The words of another program: on one line, without control characters, and short."""
    # Four characters for each that is shown: a text of megabytes is not split whole.
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * chars_max])
    return cut(" ".join(plain.split()), chars_max)


def described(error: BaseException) -> str:
    """An error of code that is not ours: its type and its words."""
    return f"{type(error).__name__}: {on_one_line(str(error))}"
