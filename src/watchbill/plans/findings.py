"""Findings: what a plan gets wrong, and what is worth knowing about it, each with its line.

Bounded: a hopeless plan of 100,000 tasks lists its first errors and counts the rest. A hint that is costly to find
(the nearest of many names) is a function, which is called for the first errors only.
"""

from collections.abc import Callable
from typing import NamedTuple

from watchbill.plans import limits
from watchbill.quoting import cut

__all__ = ["Finding", "Findings", "shown"]

Hint = str | Callable[[], str]


class Finding(NamedTuple):
    """One thing about a plan: the line it stands on, what it is, and what to do about it."""

    line: int
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.text}; {self.hint}" if self.hint else self.text


class Findings:
    """Collects errors, which refuse the plan, and notes, which do not."""

    __slots__ = ("_errors", "_hints_left", "_notes", "errors_unlisted", "notes_unlisted")

    def __init__(self) -> None:
        self._errors: list[Finding] = []
        self._notes: list[Finding] = []
        self._hints_left = limits.PLAN_HINTS_MAX
        self.errors_unlisted = 0
        self.notes_unlisted = 0

    def wrong(self, line: int, text: str, hint: Hint = "") -> None:
        """Notes an error."""
        if len(self._errors) < limits.PLAN_FINDINGS_MAX:
            self._errors.append(Finding(line, text, self._found(hint)))
        else:
            self.errors_unlisted += 1

    def note(self, line: int, text: str, hint: str = "") -> None:
        """Notes something worth knowing."""
        if len(self._notes) < limits.PLAN_FINDINGS_MAX:
            self._notes.append(Finding(line, text, hint))
        else:
            self.notes_unlisted += 1

    def _found(self, hint: Hint) -> str:
        if isinstance(hint, str):
            return hint
        self._hints_left -= 1
        return hint() if self._hints_left >= 0 else ""

    @property
    def errors(self) -> list[Finding]:
        """The errors in the order of their lines."""
        return sorted(self._errors, key=lambda each: each.line)

    @property
    def notes(self) -> list[Finding]:
        """The notes in the order of their lines."""
        return sorted(self._notes, key=lambda each: each.line)


def shown(text: str) -> str:
    """A word of the author's for a message: one short line without control characters."""
    printable = text if text.isprintable() else ascii(text)[1:-1]
    return cut(printable)
