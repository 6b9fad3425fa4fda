"""Rules: one permissions.toml, and whether a rule is about a part of a command line.

    default = "ask"
    allow = ["python3 scripts/*.py *", "Write(/data/out/**)"]
    ask   = ["pip install *", "Net(*)"]
    deny  = ["sudo *", "rm -rf /*"]
    [sandbox]                       # what every task gets at least
    level = "light"
    net = "none"
    write = ["/data/out"]
    memory = "8GiB"                 # limits of each task, whatever its sandbox
    processes = 200
    [[test]]                        # rules are tested when they are read
    command = "sudo ls"
    expect = "deny"

`allow` is read narrowly: word by word, `*` stays within a folder, only a last `*` takes what is not known. `deny` and
`ask` are read widely: the program counts by its name wherever it lies, `*` reaches over words, options count in any
order, and text that is known only when the line runs may be anything.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar, cast

from watchbill.errors import ConfigError, Problem, UnitError
from watchbill.fleet import limits
from watchbill.fleet.permissions.shellparts import ANYTHING
from watchbill.limits import CONFIG_PROBLEMS_MAX
from watchbill.plans.task import Sandbox
from watchbill.quoting import cut
from watchbill.suggest import did_you_mean
from watchbill.toml import KeyPath, Raw, line_of, read_toml, show_key, spell_value
from watchbill.units import parse_bytes

__all__ = [
    "FILE", "About", "Action", "Match", "Network", "Pattern", "Rule", "RuleBook", "RuleTest", "Rules", "SandboxRules",
    "allows", "allows_host", "allows_path", "concerns", "concerns_host", "concerns_path", "parse_rules",
]  # fmt: skip

FILE = "permissions.toml"

_Word = TypeVar("_Word", bound=Enum)


class Action(Enum):
    """What becomes of a command."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Network(Enum):
    """What a task in a sandbox reaches."""

    ALL = "all"
    NONE = "none"


class About(Enum):
    """What a rule is about; the value is how it is written."""

    BASH = "Bash"
    WRITE = "Write"
    LINE = "Line"
    NET = "Net"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and where it stands."""

    action: Action
    text: str
    file: str  # relative to the fleet's root
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.action.value} {spell_value(self.text)}"


class RuleTest(NamedTuple):
    """A [[test]]: what the rules of the file say about a command."""

    command: str
    expect: Action
    line: int


@dataclass(frozen=True, slots=True)
class SandboxRules:
    """The table [sandbox]: what every task gets at least."""

    level: Sandbox = Sandbox.NONE
    net: Network = Network.ALL
    write: tuple[str, ...] = ()  # further folders that tasks may write to, with placeholders of paths
    memory_bytes: int = 0  # resident, of all processes of a task together; 0: no limit
    processes: int = 0  # of a task; 0: no limit


class Pattern(NamedTuple):
    """A rule as it is compared."""

    rule: Rule
    about: About
    words: tuple[str, ...]  # one for Write, Line and Net


@dataclass(frozen=True, slots=True)
class Rules:
    """One permissions.toml."""

    file: str
    patterns: tuple[Pattern, ...] = ()
    default: Rule | None = None
    tests: tuple[RuleTest, ...] = ()
    sandbox: SandboxRules = field(default_factory=SandboxRules)

    def of(self, action: Action, about: About) -> Iterator[Pattern]:
        """The patterns of a kind, in the order of the file."""
        return (each for each in self.patterns if each.rule.action is action and each.about is about)

    @property
    def restricts(self) -> bool:
        """Whether some command is asked about or denied by it."""
        return self.default is not None or any(each.rule.action is not Action.ALLOW for each in self.patterns)


@dataclass(frozen=True)  # without slots: what follows from it is kept in it
class RuleBook:
    """The rules that hold for a plan: those of the root and its own. `broken`: what is wrong with them."""

    root: Rules | None = None
    plan: Rules | None = None
    broken: str = ""

    @cached_property
    def sandbox(self) -> SandboxRules:
        """What tasks of the plan get at least. The plan's own file can only add restrictions."""
        root = self.root.sandbox if self.root is not None else SandboxRules()
        plan = self.plan.sandbox if self.plan is not None else SandboxRules()
        level = max(root.level, plan.level, key=lambda each: each.strength)
        net = Network.NONE if Network.NONE in (root.net, plan.net) else Network.ALL
        return SandboxRules(
            level, net, root.write, _tighter(root.memory_bytes, plan.memory_bytes),
            _tighter(root.processes, plan.processes),
        )  # fmt: skip


def _tighter(one: int, other: int) -> int:
    """The smaller of two limits; 0 is none."""
    return min(one, other) if one and other else one or other


_KEYS = ("default", "allow", "ask", "deny", "sandbox", "test")
_SANDBOX_KEYS = ("level", "net", "write", "memory", "processes")
#: How a folder in [sandbox] write begins.
_BEGINS = ("/", "{ROOT}/", "{PLAN_PATH}/", "{BATCH_PATH}/")
_TEST_KEYS = ("command", "expect")
#: What becomes of a command, as people say it.
_OUTCOMES = {"allowed": "allow", "needs_approval": "ask", "blocked": "deny"}
_HOST = re.compile(r"[A-Za-z0-9.:*?_-]+")
_WRITTEN = re.compile(r"([A-Za-z]+)\((.*)\)", re.DOTALL)


def parse_rules(text: str, origin: str) -> Rules:
    """Read the text of a file. Raises ConfigError with everything that is wrong with it, each with its line."""
    raw, lines = read_toml(text, origin)
    reader = _Reader(raw, lines, origin)
    rules = reader.read()
    if reader.problems:
        raise ConfigError(problems=reader.problems[:CONFIG_PROBLEMS_MAX])
    return rules


class _Reader:
    """One file on its way to rules, and what is wrong with it."""

    def __init__(self, raw: Raw, lines: Mapping[KeyPath, int], origin: str) -> None:
        self._raw, self._lines, self._origin = raw, lines, origin
        self.problems: list[Problem] = []

    def read(self) -> Rules:
        self._known(self._raw, (), _KEYS)
        patterns = [
            pattern
            for action in (Action.DENY, Action.ASK, Action.ALLOW)
            for place, text in enumerate(self._texts(action.value))
            if (pattern := self._pattern(action, text, (action.value, place))) is not None
        ]
        if len(patterns) > limits.PERMISSION_RULES_MAX:
            self._wrong((), f"has more than {limits.PERMISSION_RULES_MAX:,} rules", "use patterns")
        return Rules(self._origin, tuple(patterns), self._default(), tuple(self._tests()), self._sandbox())

    def _sandbox(self) -> SandboxRules:
        table = self._raw.get("sandbox", {})
        if not isinstance(table, dict):
            self._wrong(("sandbox",), "is no table", "write [sandbox]")
            return SandboxRules()
        found = cast("Raw", table)
        self._known(found, ("sandbox",), _SANDBOX_KEYS)
        level = self._word(("sandbox", "level"), found.get("level", Sandbox.NONE.value), Sandbox)
        net = self._word(("sandbox", "net"), found.get("net", Network.ALL.value), Network)
        write = self._texts("sandbox", "write")
        for place, folder in enumerate(write):
            if not folder.startswith(_BEGINS):
                self._wrong(("sandbox", "write", place), f"{cut(spell_value(folder))} is no whole path",
                            f"begin it with {', '.join(_BEGINS)}")  # fmt: skip
        return SandboxRules(
            level or Sandbox.NONE, net or Network.ALL, tuple(write), self._size(found.get("memory")),
            self._count(found.get("processes")),
        )  # fmt: skip

    def _size(self, value: object) -> int:
        try:
            size = 0 if value is None else parse_bytes(value) if isinstance(value, str) else -1
        except UnitError:
            size = -1
        if value is not None and size < 1:
            self._wrong(("sandbox", "memory"), f"{cut(spell_value(value))} is no size", 'write "4GiB"')
        return max(0, size)

    def _count(self, value: object) -> int:
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self._wrong(
                ("sandbox", "processes"), f"{cut(spell_value(value))} is no number of processes", "write 200"
            )
            return 0
        return value

    def _default(self) -> Rule | None:
        if "default" not in self._raw:
            return None
        action = self._word(("default",), self._raw["default"], Action)
        return None if action is None else Rule(action, "default", self._origin, self._line(("default",)))

    def _pattern(self, action: Action, text: str, path: KeyPath) -> Pattern | None:
        rule = Rule(action, text, self._origin, self._line(path))
        written = _WRITTEN.fullmatch(text.strip())
        kinds = {each.value: each for each in About}
        if written is not None and written[1] not in kinds:
            hint = did_you_mean(written[1], list(kinds))
            self._wrong(path, f"{written[1]} is no kind of rule", hint)
            return None
        about = kinds[written[1]] if written is not None else About.BASH
        body = written[2].strip() if written is not None else text.strip()
        if not body or len(body) > limits.PERMISSION_RULE_CHARS_MAX:
            what = (
                "is empty" if not body else f"is longer than {limits.PERMISSION_RULE_CHARS_MAX:,} characters"
            )
            self._wrong(path, what, "write a command, as in python3 scripts/*.py *")
            return None
        if about is About.NET:
            return self._net(rule, body, path)
        if about is not About.BASH:
            return Pattern(rule, about, (body,))
        return self._bash(rule, body, path)

    def _net(self, rule: Rule, body: str, path: KeyPath) -> Pattern | None:
        if not _HOST.fullmatch(body):
            self._wrong(
                path,
                f"{cut(spell_value(body))} is no host",
                "write Net(*.example.org), Net(10.0.*) or Net(*)",
            )
            return None
        return Pattern(rule, About.NET, (body.lower(),))

    def _bash(self, rule: Rule, body: str, path: KeyPath) -> Pattern | None:
        try:
            words = tuple(shlex.split(body))
        except ValueError as error:
            self._wrong(path, f"cannot be read: {str(error).lower()}", "close the quote")
            return None
        if re.search(r"(?:^|\s)(?:\||\|\||&&|;)(?:\s|$)|;\s*$", body):
            self._wrong(
                path, "is about several commands", "write one rule for each of them, or use Line(...)"
            )
            return None
        return Pattern(rule, About.BASH, words)

    def _tests(self) -> Iterator[RuleTest]:
        tests = self._raw.get("test", [])
        if not isinstance(tests, list) or not all(
            isinstance(each, dict) for each in cast("list[object]", tests)
        ):
            self._wrong(("test",), "is no list of tables", "write [[test]]")
            return
        for place, table in enumerate(cast("list[Raw]", tests)):
            self._known(table, ("test", place), _TEST_KEYS)
            command = table.get("command")
            said = table.get("expect")
            said = _OUTCOMES.get(said.lower(), said) if isinstance(said, str) else said
            expect = self._word(("test", place, "expect"), said, Action)
            if not isinstance(command, str):
                self._wrong(("test", place, "command"), "is no text", "write the command that is tested")
            elif expect is not None:
                yield RuleTest(command, expect, self._line(("test", place)))

    # ------------------------------------------------------------ values

    def _texts(self, *path: str) -> list[str]:
        table = self._raw if len(path) == 1 else cast("Raw", self._raw.get(path[0], {}))
        value = table.get(path[-1], [])
        if not isinstance(value, list):
            self._wrong(path, "is no list", f'write {path[-1]} = ["..."]')
            return []
        texts: list[str] = []
        for place, each in enumerate(cast("list[object]", value)):
            if isinstance(each, str):
                texts.append(each)
            else:
                self._wrong((*path, place), f"{cut(spell_value(each))} is no text", "put it into quotes")
        return texts

    def _word(self, path: KeyPath, value: object, kind: type[_Word]) -> _Word | None:
        words = {cast("str", each.value): each for each in kind}
        if isinstance(value, str) and value in words:
            return words[value]
        hint = did_you_mean(value, list(words)) if isinstance(value, str) else f"use {', '.join(words)}"
        self._wrong(path, "is missing" if value is None else f"{cut(spell_value(value))} is not known", hint)
        return None

    def _known(self, table: Raw, path: KeyPath, known: Sequence[str]) -> None:
        for key in table:
            if key not in known:
                self._wrong((*path, key), "is not known", did_you_mean(key, list(known)))

    def _line(self, path: KeyPath) -> int:
        return line_of(self._lines, path) or 1

    def _wrong(self, path: KeyPath, text: str, hint: str) -> None:
        self.problems.append(Problem(self._origin, self._line(path), show_key(path), text, hint))


# ------------------------------------------------------------------ comparing


class Match(Enum):
    """Whether a rule is about a part."""

    NO = 0
    MAYBE = 1  # it depends on text that is known only when the line runs
    YES = 2


#: What bash may turn into other text. A bracket at the end of a word begins no pattern: `[` and `[[` are programs.
_EXPANDED = re.compile(r"[*?]+|\[(?!\[?\Z).*|\{.*|^~[^/]*", re.DOTALL)
_OPTION = re.compile(r"-[A-Za-z0-9]+")


def allows(pattern: Pattern, words: Sequence[str]) -> bool:
    """Whether an `allow` rule covers all of these words, word by word."""
    wanted = list(pattern.words)
    is_open = wanted[-1] == "*"
    if is_open:
        wanted.pop()
    if len(words) < len(wanted) or (len(words) > len(wanted) and not is_open):
        return False
    return all(_covers(want, word) for want, word in zip(wanted, words, strict=False))


def allows_host(pattern: Pattern, host: str) -> bool:
    """Whether an `allow` rule covers a host; `Net(*)` also covers one that is not known."""
    return pattern.words[0] == "*" or _covers(pattern.words[0], host)


def allows_path(pattern: Pattern, path: str) -> bool:
    """Whether an `allow` rule covers a file that is written."""
    return _covers(os.path.expanduser(pattern.words[0]), path)


def _covers(want: str, word: str) -> bool:
    if ANYTHING in word:
        return False
    if want in ("*", word):
        return True
    return ".." not in word.split("/") and _narrow(want).fullmatch(word) is not None


@lru_cache(maxsize=4096)
def _narrow(want: str) -> re.Pattern[str]:
    """`**` is anything, `*` anything within a folder, `?` one letter."""
    parts = re.split(r"(\*\*|\*|\?)", want)
    spelled = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(spelled.get(part, re.escape(part)) for part in parts), re.DOTALL)


def concerns(pattern: Pattern, words: Sequence[str]) -> Match:
    """Whether a `deny` or `ask` rule is about these words, or may be."""
    wanted = pattern.words
    program = words[0].rpartition("/")[2] if "/" not in wanted[0] else words[0]
    plain = [program, *words[1:]]
    as_written = _glob(_pattern_text(wanted), _text(plain))
    tidy = _glob(_pattern_text(wanted), _text([program, *map(_tidy, words[1:])]))
    return max(as_written, tidy, _in_any_order(wanted, plain), key=lambda match: match.value)


def concerns_host(pattern: Pattern, host: str) -> Match:
    """Whether a `deny` or `ask` rule is about a host that is reached."""
    return _glob(pattern.words[0], host)


def concerns_path(pattern: Pattern, paths: Iterable[str]) -> Match:
    """Whether a `deny` or `ask` rule is about a file that is written, by any of its spellings."""
    want = os.path.expanduser(pattern.words[0]).replace("**", "*")
    return max((_glob(want, _text([path])) for path in paths), key=lambda match: match.value)


def _in_any_order(wanted: Sequence[str], words: Sequence[str]) -> Match:
    """`rm -rf /*` is also about `rm -f -r /etc`: options are compared as a set."""
    options = [word for word in wanted[1:] if word.startswith("-") and len(word) > 1 and "*" not in word]
    if not options:
        return Match.NO
    given = [word for word in words[1:] if word.startswith("-") and len(word) > 1]
    letters = set("".join(word[1:] for word in given if _OPTION.fullmatch(word)))
    for option in options:
        is_cluster = _OPTION.fullmatch(option) is not None and set(option[1:]) <= letters
        if option not in given and not is_cluster and not any(ANYTHING in word for word in words):
            return Match.NO
    rest_wanted = [word for word in wanted if word not in options]
    rest = [word for word in words if word not in given]
    found = _glob(_pattern_text(rest_wanted), _text([rest[0], *map(_tidy, rest[1:])]))
    return Match.MAYBE if found is Match.YES and any(ANYTHING in word for word in words) else found


def _tidy(word: str) -> str:
    """A path without detours: //etc/./x/../passwd is /etc/passwd."""
    tidy = os.path.normpath(word) if "/" in word and "://" not in word else word
    return tidy.replace("//", "/", 1) if tidy.startswith("//") else tidy


def _text(words: Sequence[str]) -> str:
    """Words as one text in which whatever bash may change can be anything."""
    return " ".join(_EXPANDED.sub(ANYTHING, word) for word in words)


def _pattern_text(words: Sequence[str]) -> str:
    return " ".join(words)


def _glob(want: str, text: str) -> Match:
    """Compare a text with a pattern: all places of the pattern that can be reached, letter by letter."""
    wants = (want, want[:-2]) if want.endswith(" *") else (want,)
    if any(_reaches(each, text, is_sure=True) for each in wants):
        return Match.YES
    return Match.MAYBE if any(_reaches(each, text, is_sure=False) for each in wants) else Match.NO


def _reaches(want: str, text: str, *, is_sure: bool) -> bool:
    """Whether the pattern takes the text: for sure where only a star takes what may be anything."""
    places = _past_stars(want, {0})
    for letter in text:
        stay = {place for place in places if want[place : place + 1] == "*"}
        if letter != ANYTHING:
            ahead = {place + 1 for place in places if want[place : place + 1] in (letter, "?")}
            places = _past_stars(want, ahead | stay)
        elif is_sure:
            places = _past_stars(want, stay)
        else:
            places = set(range(min(places), len(want) + 1))
        if not places:
            return False
    return len(want) in places


def _past_stars(want: str, places: set[int]) -> set[int]:
    for place in list(places):
        after = place
        while want[after : after + 1] == "*":
            after += 1
            places.add(after)
    return places
