"""The terminal: output for people, with colours, tables and bars that fit its width.

Owns the decision whether a person is watching, the colours, tables and memory bars. Results go to standard output,
everything else to standard error; without a terminal there are no colours and no bars.
Text from outside (names, reasons, log lines, answers) is stripped of control characters before it reaches a
terminal, because a model may write escape sequences. Drawn by hand and not with rich, whose import alone would take
the 150 ms that `status` has.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TextIO

from watchbill.quoting import harmless

__all__ = ["Column", "Part", "Terminal", "plain"]

_CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35",
    "cyan": "36", "reverse": "7",
}  # fmt: skip

#: Bars and marks need a terminal that can show them.
_ASCII_FOR = {"█": "#", "▓": "+", "▒": "-", "░": ":", "·": ".", "●": "*", "◐": "~", "◌": "-", "○": "o",
              "✗": "x", "✓": "v", "⊘": "x", "…": "~", "→": ">", "—": "-"}  # fmt: skip

#: A column is not made narrower than this.
_COLUMN_MIN = 3
#: A column of at most so many has states or figures; a wider one has names or free text.
_SHORT = 12
#: In a table a newline would look like another row.
_BREAKS = {ord(letter): "�" for letter in "\n\t\u2028\u2029"}


class Column(NamedTuple):
    """One column of a table."""

    title: str
    right: bool = False  # figures line up on the right
    spare: int = 0  # left out where the terminal is narrow, the highest first; 0: never


class Part(NamedTuple):
    """One part of a bar."""

    amount: int
    cell: str
    style: str


def plain(text: object) -> str:
    """Text from outside, made harmless for a terminal."""
    return harmless(str(text))


class Terminal:
    """The output of one command."""

    __slots__ = ("_ascii", "_colour", "_error", "_out", "_whispering", "is_live", "quiet", "width")

    def __init__(
        self,
        *,
        quiet: bool = False,
        out: TextIO | None = None,
        error: TextIO | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._out = out or sys.stdout
        self._error = error or sys.stderr
        self._whispering = False
        self.quiet = quiet
        dumb = environment.get("TERM") == "dumb"
        #: Whether standard error is a terminal: bars and spinners only then.
        self.is_live = self._error.isatty() and not dumb and not quiet
        self._colour = not environment.get("NO_COLOR") and (
            bool(environment.get("FORCE_COLOR")) or (self._out.isatty() and not dumb)
        )
        self._ascii = "utf" not in (self._out.encoding or "utf-8").lower()
        self.width = _width(self._out, environment)

    def show(self, *lines: str) -> None:
        """Writes results."""
        for line in lines:
            self._out.write(self._spelled(line) + "\n")
        self._out.flush()

    def write(self, text: str) -> None:
        """Writes a piece of a result as it arrives."""
        self._out.write(plain(text) if self._out.isatty() else text)
        self._out.flush()

    def show_json(self, content: bytes) -> None:
        """Writes an answer of the API exactly as it came, with a newline at the end."""
        self._out.flush()
        buffer = self._out.buffer
        buffer.write(content if content.endswith(b"\n") else content + b"\n")
        buffer.flush()

    def frame(self, lines: Sequence[str]) -> None:
        """Draws a whole screen over the one before, without a flicker."""
        self._out.write("\x1b[H" + "\x1b[K\n".join(self._spelled(line) for line in lines) + "\x1b[K\x1b[J")
        self._out.flush()

    def note(self, text: str) -> None:
        """Prints a message that is not a result; nothing with --quiet."""
        if not self.quiet:
            print(self._spelled(text), file=self._error, flush=True)

    def mutter(self, text: str) -> None:
        """Writes a piece of what is not a result as it arrives; nothing with --quiet."""
        if not self.quiet:
            self._error.write(self.mark(self._spelled(plain(text)), "dim"))
            self._error.flush()

    def whisper(self, text: str) -> None:
        """Shows a temporary message on a terminal; the next one replaces it, and an empty one erases it."""
        if not self.is_live or not (text or self._whispering):
            return  # nothing of ours to erase: the line may hold a model's answer
        self._error.write("\r\x1b[2K" + self.mark(self.shortened(self._spelled(text), 72), "dim"))
        self._error.flush()
        self._whispering = bool(text)

    def mark(self, text: str, *styles: str) -> str:
        """The text in these styles, where there are colours."""
        if not self._colour or not styles or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def shortened(self, text: str, width: int) -> str:
        """The text in at most `width` columns."""
        return text if len(text) <= width else text[: max(width - 1, 0)] + "…"

    def wrapped(self, text: str, indent: int) -> list[str]:
        """The text in lines that start at column `indent` and end at the terminal's edge."""
        if self.width is None:
            return [" " * indent + " ".join(text.split())]
        room, lines, line = max(self.width - indent, 20), [""], 0
        for word in text.split():
            if lines[line] and len(lines[line]) + 1 + len(word) > room:
                lines.append(word)
                line += 1
            else:
                lines[line] = f"{lines[line]} {word}".strip()
        return [" " * indent + self.shortened(each, room) for each in lines]

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
        """A table's lines, head first. Cells are plain text of one line; colour a line afterwards.

        A table that is too wide loses its empty columns first, then its spare ones as far as shorter texts would not
        do; then its widest columns are shortened.
        """
        rows = [[cell.translate(_BREAKS) for cell in row] for row in rows]
        widths = _widths(columns, rows)
        if rows and self._excess(widths) > 0:
            filled = [place for place in range(len(columns)) if any(row[place] for row in rows)]
            columns, rows = _only(filled, columns, rows)
            columns, rows = self._without_spare(columns, rows)
            widths = _widths(columns, rows)
        self._squeeze(widths)
        lines = [[column.title for column in columns], *rows]
        return [
            "  ".join(
                self.shortened(cell, width).rjust(width)
                if column.right
                else self.shortened(cell, width).ljust(width)
                for cell, width, column in zip(line, widths, columns, strict=True)
            ).rstrip()
            for line in lines
        ]

    def _without_spare(
        self, columns: Sequence[Column], rows: list[list[str]]
    ) -> tuple[Sequence[Column], list[list[str]]]:
        """Leaves spare columns out until texts of `_SHORT` characters would make the table fit."""
        while (most := max(column.spare for column in columns)) > 0:
            widths = [min(width, _SHORT) for width in _widths(columns, rows)]
            if self._excess(widths) <= 0:
                break
            kept = [place for place, column in enumerate(columns) if column.spare != most]
            columns, rows = _only(kept, columns, rows)
        return columns, rows

    def bar(self, parts: Sequence[Part], cells: int) -> str:
        """A bar of `cells` cells; every part above 0 gets at least one, at the expense of the largest."""
        whole = sum(part.amount for part in parts)
        if whole <= 0:
            return self.mark("·" * cells, "dim")
        shares = [max(round(part.amount * cells / whole), 1) if part.amount > 0 else 0 for part in parts]
        largest = shares.index(max(shares))
        shares[largest] += cells - sum(shares)
        return "".join(
            self.mark(part.cell * share, part.style) for part, share in zip(parts, shares, strict=True)
        )

    def _squeeze(self, widths: list[int]) -> None:
        """Shortens the widest columns, one character at a time, until the table fits: first those of free text, then
        the first one, which names the row, and figures and states, which a cut makes illegible, at last."""
        excess = self._excess(widths)
        texts = [place for place, width in enumerate(widths) if place and width > _SHORT]
        for places, least in ((texts, _COLUMN_MIN), ([0], _SHORT), (range(len(widths)), _COLUMN_MIN)):
            while excess > 0 and (widest := max(places, key=widths.__getitem__, default=None)) is not None:
                if widths[widest] <= least:
                    break
                widths[widest] -= 1
                excess -= 1

    def _excess(self, widths: list[int]) -> int:
        """By how much a table of these columns is too wide; 0 where it fits."""
        if self.width is None or not widths:
            return 0
        return max(sum(widths) + 2 * (len(widths) - 1) - self.width, 0)

    def _spelled(self, text: str) -> str:
        if not self._ascii:
            return text
        return "".join(_ASCII_FOR.get(letter, letter) for letter in text)


def _only(
    places: Sequence[int], columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], list[list[str]]]:
    return [columns[place] for place in places], [[row[place] for place in places] for row in rows]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(len(column.title), *(len(row[place]) for row in rows), 0) for place, column in enumerate(columns)
    ]


def _width(out: TextIO, environment: Mapping[str, str]) -> int | None:
    """The width of the terminal; None without one, where nothing is cut."""
    if (columns := environment.get("COLUMNS", "")).isdecimal() and int(columns) > 0:
        return max(int(columns), 40)
    if not out.isatty():
        return None
    try:
        return max(os.get_terminal_size(out.fileno()).columns, 40)
    except OSError:  # ENOTTY: a terminal that does not know its size
        return 80
