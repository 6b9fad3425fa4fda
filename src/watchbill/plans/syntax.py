"""Syntax: whether bash can parse a command, asked of bash itself (`bash -n`). Nothing of the command is run.

A command that bash cannot parse fails on every machine and in every attempt, and its first lines may have run before
bash comes to the wrong one. So it is refused before anything runs. Where there is no bash, as on a machine that only
submits plans, or where a plan has more commands than can be asked about in time, the check says so.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from watchbill.plans import limits
from watchbill.plans.command import Command

__all__ = ["BashSyntax", "Mistake", "Unchecked"]

#: What bash says about a script within some seconds; "" where it can parse it. Raises FileNotFoundError where there is
#: no bash, and TimeoutError.
Complaint = Callable[[str, float], str]

_SAID = re.compile(r"watchbill: (?:-c: )?line (\d+): (.+)")
_PARAMETER = re.compile(r'"?\$\{watchbill_(\d+)\}"?')


@dataclass(frozen=True, slots=True)
class Mistake:
    """What bash says about a command, and the line of the command that it says it about, from 1."""

    line: int
    text: str

    @property
    def hint(self) -> str:
        """What is mostly behind it."""
        if "end of file" in self.text or "EOF" in self.text:
            return "something is not closed: a quote, a bracket, an if, for, while or case"
        if "`('" in self.text or "`)'" in self.text:
            return "put brackets that are meant as text into quotes"
        return "correct it; a word that is meant as text needs quotes"


class Unchecked(Enum):
    """Why a command was not checked."""

    NO_BASH = "there is no bash on this machine"
    NO_TIME = "checking took too long"


class BashSyntax:
    """Asks bash about commands, each once, as long as there is time."""

    def __init__(self, complaint_of: Complaint, ms_max: int = limits.PLAN_SYNTAX_MS_MAX) -> None:
        self._complaint_of = complaint_of
        self._until = time.monotonic() + ms_max / 1000
        self._known: dict[str, Mistake | Unchecked | None] = {}

    def look_at(self, command: Command) -> Mistake | Unchecked | None:
        """The first mistake in a command; None where bash can parse it."""
        if command.script not in self._known:
            self._known[command.script] = self._ask(command)
        return self._known[command.script]

    def _ask(self, command: Command) -> Mistake | Unchecked | None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            return Unchecked.NO_TIME
        try:
            said = self._complaint_of(command.script, left_s)
        except FileNotFoundError:
            return Unchecked.NO_BASH
        except TimeoutError:
            return Unchecked.NO_TIME
        return _mistake(command, said) if said else None


def _mistake(command: Command, said: str) -> Mistake:
    """The first line of what bash says, with the author's placeholders. Its second repeats the line as we wrote it."""
    found = _SAID.search(said)
    if found is None:
        return Mistake(1, "syntax error")
    lines = command.script.count("\n") + 1
    text = _PARAMETER.sub(lambda match: str(command.parameters[int(match[1]) - 1]), found[2])
    return Mistake(min(int(found[1]), lines), text)
