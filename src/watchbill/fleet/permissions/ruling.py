"""Permissions: whether a worker may run a command, and which rule says so.

Rules stand in `permissions.toml`, in the fleet's root and in the folder of a plan. A rule is about one part of a
command line (`shellparts`): a program with its arguments, a file that a redirection writes, a host, or the whole line.

    "python3 scripts/*.py *"    the same as "Bash(python3 scripts/*.py *)"
    "Write(/data/out/**)"       the file behind > or >>
    "Net(*.example.org)"        a host that a program or a redirection names (`network`)
    "Line(make -C tools all)"   the whole command, letter by letter as it stands in plan.md

The first that has something to say decides, for each part; the worst of its parts decides about a line:

    1. a `deny` rule, in either file        4. `default` of the root
    2. an `ask` rule of the root            5. `ask`, `allow` and `default` of the plan, in this order
    3. an `allow` rule of the root          6. without any: what stands literally in plan.md and the plan's own scripts/
                                               are allowed, the rest asks

What is not known from the text (a doubt) is never allowed by a rule, and never by number 6 where there are rules that
it could hide from. `deny` and `ask` are read widely: by the program's name wherever it lies, with options in any order;
`allow` is read narrowly, word by word. A broken file allows nothing.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path

from watchbill.errors import ConfigError, Problem
from watchbill.files.atomic import NotAFile, read_regular
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.permissions.rules import (
    FILE,
    About,
    Action,
    Match,
    Pattern,
    Rule,
    RuleBook,
    Rules,
    allows,
    allows_host,
    allows_path,
    concerns,
    concerns_host,
    concerns_path,
    parse_rules,
)
from watchbill.fleet.permissions.shellparts import ANYTHING, Doubt, Kind, Part, changes_lookup, split
from watchbill.plans.placeholders import Placeholder, places_in
from watchbill.quoting import cut
from watchbill.toml import spell_value

__all__ = ["Line", "Ruling", "Why", "decide", "load_book", "read_rules", "told"]

ValueOf = Callable[[Placeholder], str]


class Why(Enum):
    """What decided."""

    RULE = "rule"
    DEFAULT = "default"  # the file's
    IN_PLAN = "in_plan"  # it stands literally in plan.md, or is one of the plan's scripts
    HARMLESS = "harmless"  # a builtin without effect outside its shell
    FROM_VALUE = "from_value"  # a value names the program or is program text
    LEADS_OUT = "leads_out"  # a value leads a file that is written out of the folder that plan.md names
    DOUBT = "doubt"  # the text does not tell
    BROKEN = "broken"  # the file of rules cannot be read


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verdict on a command line, and what decided."""

    action: Action
    why: Why
    part: str = ""  # the part that it is about
    rule: Rule | None = None
    doubt: Doubt | None = None
    error: str = ""  # of a broken file

    @property
    def yields_to_a_person(self) -> bool:
        """Whether a person may let the command run all the same."""
        return self.action is Action.ASK and self.why is not Why.BROKEN

    def __str__(self) -> str:
        about = f"`{self.part}`" if self.part else "the command"
        verdict = {
            Action.ALLOW: "is allowed",
            Action.ASK: "needs approval",
            Action.DENY: "is blocked",
        }[self.action]
        return f"{about} {verdict}: {self._reason()}"

    def _reason(self) -> str:
        reasons = {
            Why.IN_PLAN: "it stands in plan.md",
            Why.HARMLESS: "it has no effect outside its shell",
            Why.FROM_VALUE: "a value, not plan.md, names what it runs",
            Why.LEADS_OUT: "a value leads it out of the folder that plan.md names",
            Why.BROKEN: self.error,
        }
        if self.why is Why.DOUBT:
            return f"it {self.doubt.value if self.doubt is not None else 'is not known from its text'}"
        return reasons.get(self.why) or (str(self.rule) if self.rule is not None else self.why.value)


@dataclass(frozen=True, slots=True)
class Line:
    """A command of a plan, where it would run."""

    command: str  # as it stands in plan.md
    value_of: ValueOf = str
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # the task's, as plan.md has it
    plan_path: str = ""
    batch_path: str = ""


def read_rules(text: str, origin: str) -> Rules:
    """Read the text of a permissions.toml and try its tests. Raises ConfigError."""
    rules = parse_rules(text, origin)
    problems: list[Problem] = []
    for place, test in enumerate(rules.tests):
        found = decide(Line(test.command), RuleBook(rules))
        if found.action is not test.expect:
            said = f"expects {test.expect.value}, but {found}"
            problems.append(
                Problem(origin, test.line, f"test[{place}]", said, "change the rules or the test")
            )
    if problems:
        raise ConfigError(problems=problems)
    return rules


def load_book(root: Path, plan: str) -> RuleBook:
    """The rules that hold for a plan now; without a plan those for all. A file that cannot be read allows nothing.

    Raises OSError.
    """
    try:
        for_all = _load(root, FILE)
        for_plan = _load(root, f"plans/{plan}/{FILE}") if plan else None
    except ConfigError as error:
        return RuleBook(broken=str(error))
    has_none = for_all is None and for_plan is None
    return _NO_RULES if has_none else RuleBook(for_all, for_plan)


#: What follows from it is kept in it, for task after task.
_NO_RULES = RuleBook()


def _load(root: Path, name: str) -> Rules | None:
    try:
        content = read_regular(f"{root}/{name}", bytes_max=limits.PERMISSIONS_BYTES_MAX)
        return _read_rules_once(content.decode(), name)
    except FileNotFoundError:
        return None
    except (NotAFile, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read: {error}") from None


@lru_cache(maxsize=limits.PERMISSION_FILES_KEPT)
def _read_rules_once(text: str, origin: str) -> Rules:
    """It is the same for task after task."""
    return read_rules(text, origin)


def told(ruling: Ruling, command: str, batch: str, task: str, root: Path | str = "") -> str:
    """A ruling against a command for people: what happened, which rule says so, and what to do."""

    def typed(verb: str) -> str:
        return places.fleet_command(root, "plan", verb, task, "--batch", batch)

    once = f"to let it run, use: {typed('approve')}; " if ruling.yields_to_a_person else ""
    return f"{ruling}; {once}{_way_out(ruling, command)}, then run: {typed('retry')}"


def _way_out(ruling: Ruling, command: str) -> str:
    always = _rule_for_always(ruling, command)
    if always is not None:
        return f"to allow it always, add {spell_value(always)} to the list allow in {FILE}"
    if ruling.why is Why.FROM_VALUE:
        return "name the program in plan.md, or put it into the plan's scripts/"
    if ruling.why is Why.LEADS_OUT:
        return "correct the item, or name the folder in plan.md"
    return "mend the file" if ruling.why is Why.BROKEN else "change the plan or that rule"


#: What no rule about the whole line answers.
_BEYOND_LINES = (Why.RULE, Why.FROM_VALUE, Why.LEADS_OUT, Why.BROKEN)


def _rule_for_always(ruling: Ruling, command: str) -> str | None:
    """The `allow` rule that answers a question once and for all: about the whole line, as a person has read it.

    None where no rule could. What a value names is asked about each time; a rule that denies or asks has to be changed
    itself.
    """
    if ruling.action is Action.DENY or ruling.why in _BEYOND_LINES:
        return None
    return f"Line({command.strip()})"


# ------------------------------------------------------------------ deciding


def decide(line: Line, book: RuleBook) -> Ruling:
    """Whether a command may run. Never raises for anything that a command or its values hold."""
    if book.broken:
        return Ruling(Action.ASK, Why.BROKEN, error=book.broken)
    rulings = _Decision(line, book).rulings()
    return max(rulings, key=lambda ruling: (_SEVERITY.index(ruling.action), ruling.why is Why.RULE))


_SEVERITY = (Action.ALLOW, Action.ASK, Action.DENY)
_LITERAL = Ruling(Action.ALLOW, Why.IN_PLAN)

#: Builtins without an effect outside the shell that runs them. What they write is a part of its own.
_HARMLESS = frozenset(
    [
        ":", "true", "false", "exit", "return", "shift", "break", "continue", "wait", "set", "test", "[", "[[", "echo",
        "printf", "pwd", "export", "declare", "typeset", "local", "readonly", "read", "unset", "getopts", "umask",
        "times", "exec", "command", "let",
    ]
)  # fmt: skip
_STREAMS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"})


class _Decision:
    """One line and the rules."""

    def __init__(self, line: Line, book: RuleBook) -> None:
        self._line, self._book = line, book
        self._split = split(line.command, line.value_of)
        self._doubts = [*self._split.doubts, *self._environment_doubts()]
        self._files = [each for each in (book.root, book.plan) if each is not None]
        self._has_rules = any(each.restricts for each in self._files)

    def _environment_doubts(self) -> list[Doubt]:
        return [Doubt.LOOKUP for name in self._line.env if changes_lookup(name)]

    def rulings(self) -> list[Ruling]:
        """What is said about each part, and about the line as a whole; denials and questions of the root first."""
        first = self._whole_line(Action.DENY) or self._first(self._denied)
        first = first or self._whole_line(Action.ASK) or self._first(self._asked_by_root)
        if first is not None:
            return [first]
        if self._values_run():
            return [Ruling(Action.ASK, Why.FROM_VALUE, _shown_command(self._line.command))]
        allowed = self._whole_line(Action.ALLOW)
        if allowed is not None and not any(part.from_values for part in self._split.parts):
            return [allowed]
        return [*self._line_doubts(), *map(self._decided, self._split.parts)] or [_LITERAL]

    def _first(self, look: Callable[[Part], Ruling | None]) -> Ruling | None:
        return next((found for part in self._split.parts if (found := look(part)) is not None), None)

    def _values_run(self) -> bool:
        """Whether bash reads a value a second time, or a value says where programs are looked for."""
        given = (
            name for name, text in self._line.env.items() if changes_lookup(name) and any(places_in(text))
        )
        may_hide = self._has_rules and self._split.may_hide_value
        return self._split.calculates_value or may_hide or any(given)

    def _whole_line(self, action: Action) -> Ruling | None:
        for rules in self._files:
            for pattern in rules.of(action, About.LINE):
                if pattern.words[0] == self._line.command.strip():
                    return Ruling(action, Why.RULE, _shown_command(self._line.command), pattern.rule)
            if action is Action.ALLOW and rules.default is not None:
                return None  # the root's word comes before the plan's
        return None

    def _line_doubts(self) -> list[Ruling]:
        """A doubt about the line could hide any program from the rules."""
        if not self._has_rules:
            return []
        command = _shown_command(self._line.command)
        return [Ruling(Action.ASK, Why.DOUBT, command, doubt=doubt) for doubt in self._doubts]

    # ------------------------------------------------------------ one part

    def _denied(self, part: Part) -> Ruling | None:
        for rules in self._files:
            for pattern in rules.of(Action.DENY, _about(part)):
                if self._concerns(pattern, part) is Match.YES:
                    return Ruling(Action.DENY, Why.RULE, _shown(part), pattern.rule)
        return None

    def _asked_by_root(self, part: Part) -> Ruling | None:
        root = self._book.root
        return None if root is None else self._asked(part, root)

    def _asked(self, part: Part, rules: Rules) -> Ruling | None:
        for pattern in rules.of(Action.ASK, _about(part)):
            match = self._concerns(pattern, part)
            if match is Match.YES or (match is Match.MAYBE and part.doubt is not Doubt.PROGRAM):
                return Ruling(Action.ASK, Why.RULE, _shown(part), pattern.rule)
        return None

    def _is_in_doubt(self, part: Part) -> bool:
        """Without rules only where a value of an item may become what is run: all the rest stands in plan.md."""
        if part.doubt is None or self._has_rules:
            return part.doubt is not None
        return part.doubt in (Doubt.PROGRAM, Doubt.CODE) and self._split.items > part.items

    def _decided(self, part: Part) -> Ruling:
        if part.doubt is Doubt.PROGRAM and self._is_in_doubt(part):  # no rule is about it more than any other
            return Ruling(Action.ASK, Why.DOUBT, _shown(part), doubt=part.doubt)
        for rules in self._files:
            for pattern in rules.of(Action.DENY, _about(part)):
                if self._concerns(pattern, part) is Match.MAYBE:
                    return Ruling(Action.ASK, Why.RULE, _shown(part), pattern.rule)
        if self._is_in_doubt(part):
            return Ruling(Action.ASK, Why.DOUBT, _shown(part), doubt=part.doubt)
        if self._is_harmless(part):
            return Ruling(Action.ALLOW, Why.HARMLESS, _shown(part))
        for rules in self._files:
            ruling = self._asked(part, rules) or self._allowed(part, rules)
            ruling = ruling or self._hidden(part) or _by_default(part, rules)
            if ruling is not None:
                return ruling
        return self._without_rules(part)

    def _allowed(self, part: Part, rules: Rules) -> Ruling | None:
        for pattern in rules.of(Action.ALLOW, _about(part)):
            if self._covers(pattern, part):
                return Ruling(Action.ALLOW, Why.RULE, _shown(part), pattern.rule)
        return None

    def _covers(self, pattern: Pattern, part: Part) -> bool:
        match part.kind:
            case Kind.WRITE:
                return allows_path(pattern, self._paths(part)[-1])
            case Kind.NET:
                return allows_host(pattern, part.words[0])
            case Kind.RUN:
                return allows(pattern, part.words)

    def _hidden(self, part: Part) -> Ruling | None:
        """What it starts is seen by no rule: only a rule about itself allows it."""
        if not part.is_opaque or not self._has_rules:
            return None
        return Ruling(Action.ASK, Why.DOUBT, _shown(part), doubt=Doubt.STRUCTURE)

    def _without_rules(self, part: Part) -> Ruling:
        """What stands literally in plan.md, and the plan's own scripts."""
        if part.kind is Kind.WRITE and part.from_values:
            return Ruling(Action.ASK, Why.LEADS_OUT, _shown(part))
        if all(map(self._is_own_script, part.from_values)):
            return Ruling(Action.ALLOW, Why.IN_PLAN, _shown(part))
        return Ruling(Action.ASK, Why.FROM_VALUE, _shown(part))

    def _is_own_script(self, path: str) -> bool:
        if not path or not self._line.plan_path or "/" not in path:
            return False
        scripts = os.path.realpath(os.path.join(self._line.plan_path, "scripts"))
        return os.path.realpath(os.path.join(self._line.plan_path, path)).startswith(scripts + "/")

    def _is_harmless(self, part: Part) -> bool:
        if part.kind is Kind.RUN:
            return part.starts_another or part.program in _HARMLESS
        if part.kind is Kind.NET:
            return False
        path = self._paths(part)[-1]
        inside = self._line.batch_path and path.startswith(self._line.batch_path.rstrip("/") + "/")
        return path in _STREAMS or bool(inside)

    def _concerns(self, pattern: Pattern, part: Part) -> Match:
        match part.kind:
            case Kind.WRITE:
                return concerns_path(pattern, self._paths(part))
            case Kind.NET:
                return concerns_host(pattern, part.words[0])
            case Kind.RUN:
                return concerns(pattern, part.words)

    def _paths(self, part: Part) -> list[str]:
        """The spellings of a file: as it is written, and whole."""
        written = part.words[0]
        return [
            written,
            os.path.normpath(os.path.join(self._line.plan_path or "/", os.path.expanduser(written))),
        ]


def _shown(part: Part) -> str:
    """A part for people; what is known only when it runs as dots."""
    words = [shlex.quote(word.replace(ANYTHING, "...")) for word in part.words]
    before = {Kind.WRITE: [">"], Kind.NET: ["connect to"], Kind.RUN: []}[part.kind]
    return _shortened(" ".join([*before, *words]))


def _shown_command(command: str) -> str:
    return _shortened(" ".join(command.split()))


def _shortened(text: str) -> str:
    return cut(text, limits.PERMISSION_SHOWN_CHARS_MAX)


def _about(part: Part) -> About:
    return {Kind.WRITE: About.WRITE, Kind.NET: About.NET, Kind.RUN: About.BASH}[part.kind]


def _by_default(part: Part, rules: Rules) -> Ruling | None:
    # A file that says nothing about hosts leaves them to the rules about the programs.
    says_nothing = part.kind is Kind.NET and not any(each.about is About.NET for each in rules.patterns)
    if rules.default is None or says_nothing:
        return None
    return Ruling(rules.default.action, Why.DEFAULT, _shown(part), rules.default)
