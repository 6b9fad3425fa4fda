"""Fed input: values of items that reach an interpreter as its program, through pipes, groups, functions and variables.

`echo {ITEM.name} | { true; bash; }` runs what the name says. A `Feed` follows what the commands of one list read: what
a pipe brings, also into groups, subshells and loops, and what those say to the next command. A `Flow` knows what holds
for the whole text: the variables that may hold a value, and the functions.

Errs on the safe side, and stays close to the text: every program is taken to say what it is given, except those that
read files; every variable may hold a value once one does; a function may do whatever any function of the text does.
What a command writes into a file, and another one reads from there, is not followed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from watchbill.plans.limits import FED_USES_MAX, STARTED_WORDS_MAX
from watchbill.plans.programs import (
    INPUT,
    PROGRAMS,
    Code,
    Input,
    Kind,
    Program,
    is_long,
    program_named,
    unversioned,
)
from watchbill.plans.second_reading import (
    ASSIGNMENT,
    EXPANSION,
    Refused,
    Use,
    Word,
    is_starter,
    second_reading,
)

__all__ = ["BEFORE_COMMAND", "Feed", "Flow"]


_OPENS = frozenset({"{", "if", "while", "until"})
_CLOSES = frozenset({"}", "fi", "done", "esac"})
_BETWEEN = frozenset({"!", "time", "then", "else", "elif", "do", "coproc"})
#: Reserved words behind which a command begins.
BEFORE_COMMAND = _OPENS | _BETWEEN
#: They open a compound command, and the words behind them are no command.
_HEADS = frozenset({"for", "case", "select"})
#: They leave what they are given in variables.
_STORES = frozenset(
    {"set", "export", "declare", "typeset", "local", "readonly", "read", "mapfile", "readarray", "printf"}
)
#: A shell or an interpreter without a script, in program text.
_STARTS_READER = re.compile(
    r"(?:^|[;&|({\n]|\b(?:do|then|else|exec|sudo|env)\s)\s*(?:[\w/]*/)?(?:"
    + "|".join(re.escape(name) for name, program in PROGRAMS.items() if program.is_interpreter)
    + r")(?:-?\d[\d.]*)?(?:\s+-s?)?\s*(?:$|[;&|)}\n])"
)
_FUNCTION = re.compile(
    r"(?:^|[\s;&|(){}])(?:function[ \t]+([^\s(){};]+)|([A-Za-z_][\w.-]*)[ \t]*\([ \t]*\))", re.MULTILINE
)

_HINT = "run the command itself instead of writing it to an interpreter, or give {PLACE} to a script as an argument"


@dataclass(slots=True)
class _Level:
    """A list of commands: the frame's own, or that of a compound command in it."""

    inherited: list[Use]  # what each of its commands reads, unless a pipe comes first
    said: list[Use] = field(default_factory=list[Use])
    reader: str = ""  # an interpreter in it that reads the input of the list


class Feed:
    """What the commands of one frame read and say."""

    def __init__(self, inherited: Sequence[Use] = ()) -> None:
        self.piped: list[Use] = list(inherited)  # the input of the command that is being read
        self.levels = [_Level(list(inherited))]
        self.has_here = False  # the command has a here-document
        self.here_expands = False  # with variables in it
        self._inner_said: list[Use] = []
        self._inner_reader = ""

    @property
    def reader(self) -> str:
        """An interpreter that reads the input of this frame; "" where there is none."""
        return next((level.reader for level in self.levels if level.reader), "")

    def take_subshell(self, inner: "Feed") -> None:
        """A subshell of the present command has ended."""
        self._inner_said = _joined(self._inner_said, *(level.said for level in inner.levels))
        self._inner_reader = self._inner_reader or inner.reader

    def take_substitution(self, inner: "Feed") -> None:
        """A substitution has ended. What it says is in a word; what it reads is the input of the list."""
        self.levels[-1].reader = self.levels[-1].reader or inner.reader

    # ------------------------------------------------------------ compound commands

    def open(self) -> None:
        """A compound command begins: all of its commands read its input."""
        self.levels.append(_Level(self.piped))

    def close(self) -> None:
        """A compound command ends: together, its commands are one that said all of it."""
        if len(self.levels) > 1:
            level = self.levels.pop()
            self.piped = level.inherited
            self._inner_said = _joined(self._inner_said, level.said)
            self._inner_reader = self._inner_reader or level.reader

    def redirect(self, uses: Sequence[Use]) -> None:
        """`exec < ...`: everything behind it reads this."""
        for level in self.levels:
            level.inherited = _joined(level.inherited, uses)

    def end(self, said: Sequence[Use], reader: str, *, is_piped: bool) -> None:
        """A command has ended."""
        level = self.levels[-1]
        level.reader = level.reader or reader
        level.said = _joined(level.said, said)
        self.piped = _joined(self.piped, said) if is_piped else level.inherited
        self.has_here = self.here_expands = False
        self._inner_said, self._inner_reader = [], ""

    def inner(self) -> tuple[list[Use], str]:
        """What the subshells and compound commands that the present command consists of say, and who reads in them."""
        return self._inner_said, self._inner_reader


class Flow:
    """What is known about a whole text, and what of it is refused."""

    def __init__(self, text: str) -> None:
        self._functions = frozenset(match[1] or match[2] for match in _FUNCTION.finditer(text))
        self._items: list[Use] = []
        self._carried: list[Use] = []  # values that variables may hold
        self._into_functions: list[Use] = []
        self._reader = ""

    def carry(self, words: Iterable[Word]) -> None:
        """The elements of a list are in a variable from here on."""
        self._carried = _joined(self._carried, _items(words))

    def end_command(self, feed: Feed, words: Sequence[Word], *, is_piped: bool) -> Iterator[Refused]:
        """A simple command, or the end of a compound one. Yields every value that is read again."""
        self._items = _joined(self._items, _items(words))
        plain = [word for word in words if not word.redirect]
        command = self._enter(feed, plain)
        fed = self._fed(feed, words)
        is_redirected = feed.has_here or any(map(_is_from_file, words))
        read = _joined([] if is_redirected else feed.piped, fed)
        yield from second_reading(words, _joined(self._carried, feed.piped, fed))
        said, inner_reader = feed.inner()
        reader = reader_of(command)
        program = command[0].program if command else ""
        if reader:
            yield from _refused(read, reader)
        if inner_reader:
            yield from _refused(fed, inner_reader)
        if _takes_script(program):
            yield from _refused(_items(word for word in command if word.is_process), program)
        if program in self._functions:
            self._into_functions = _joined(self._into_functions, read)
        self._reader = self._reader or reader
        self._keep(program, command, words, feed)
        said = _joined(said, self._said(program, plain, words, feed))
        for word in words:
            if word.feeds:
                yield from _refused(_joined(read, said), word.feeds)
        if program == "exec" and len(command) == 1:
            feed.redirect(fed)
        is_own_input = is_redirected or any(word.redirect == "<<<" for word in words)
        feed.end(said, "" if is_own_input else reader or inner_reader, is_piped=is_piped)

    def end(self) -> Iterator[Refused]:
        """The end of the text: now it is known what its functions do."""
        if self._reader:
            yield from _refused(self._into_functions, self._reader)

    def _enter(self, feed: Feed, words: Sequence[Word]) -> Sequence[Word]:
        """The command behind reserved words and assignments; compound commands open and close on the way."""
        is_name = False
        for at, word in enumerate(words):
            text = word.text if word.is_plain else ""
            if text in _HEADS and not is_name:
                feed.open()
                self.carry(words)
                return ()
            if is_name or text == "function":
                # `function f { bash`: the body begins in the same command.
                is_name = not is_name
            elif text in _OPENS:
                feed.open()
            elif text in _CLOSES:
                feed.close()
            elif ASSIGNMENT.match(word.text):
                self.carry([word])
            elif text not in _BETWEEN:
                return words[at:]
        return ()

    def _fed(self, feed: Feed, words: Sequence[Word]) -> list[Use]:
        """What a command reads from a here-string, a here-document or a process."""
        strings = [word for word in words if word.redirect == "<<<"]
        processes = [word for word in words if word.redirect == "<" and word.is_process]
        expands = feed.here_expands or any(EXPANSION in word.text for word in strings)
        return _joined(_items([*strings, *processes]), self._carried if expands else ())

    def _keep(self, program: str, command: Sequence[Word], words: Sequence[Word], feed: Feed) -> None:
        if program in _STORES or program in self._functions:
            self.carry([*command, *words])
            if program.startswith(("read", "map")):
                self._carried = _joined(self._carried, feed.piped)

    def _said(self, program: str, plain: Sequence[Word], words: Sequence[Word], feed: Feed) -> list[Use]:
        """What a command may print of the values that it is given."""
        given = (
            [word for word in plain if word.is_process]
            if program_named(program).prints_files
            else list(plain)
        )
        expands = any(EXPANSION in word.text for word in given)
        said = _joined(_items(given), self._fed(feed, words), self._carried if expands else ())
        return _joined(said, self._items) if program in self._functions else said


def _joined(*lists: Iterable[Use]) -> list[Use]:
    found: dict[Use, None] = {}
    for uses in lists:
        for use in uses:
            if len(found) >= FED_USES_MAX:
                return list(found)
            found[use] = None
    return list(found)


def _items(words: Iterable[Word]) -> list[Use]:
    return [(offset, place) for word in words for offset, place in word.places if place.is_item]


def _refused(uses: Iterable[Use], program: str) -> Iterator[Refused]:
    return ((offset, place, f"is read as commands by {program}", _HINT) for offset, place in uses)


def _is_from_file(word: Word) -> bool:
    return (
        word.redirect == "<" and not word.is_process and EXPANSION not in word.text and word.text not in INPUT
    )


# ------------------------------------------------------------------ who takes its program from its input


def reader_of(command: Sequence[Word]) -> str:
    """The interpreter in a command that takes its program from its input; "" where there is none."""
    if not command:
        return ""
    starts_another = is_starter(command[0])
    if (starts_another and len(command) > STARTED_WORDS_MAX) or _reads(command):
        return command[0].program or "a program that a variable names"
    if starts_another:
        for at in range(1, len(command)):
            if command[at].program and _reads(command[at:]):
                return command[at].program
    return ""


def _takes_script(program: str) -> bool:
    return program_named(program).is_interpreter or program in ("source", ".")


def _reads(command: Sequence[Word]) -> bool:
    name, rest = unversioned(command[0].program), [word.text for word in command[1:]]
    program = program_named(name)
    if program.kind is Kind.SHELL or not name:
        return _shell_reads(rest)
    if program.is_interpreter:
        return _interpreter_reads(program, rest)
    if name in ("source", "."):
        return bool(rest) and rest[0] in INPUT
    if name == "ssh":
        return _ssh_reads(command)
    if name == "xargs":
        return _xargs_reads(rest)
    return program.input is not None and _takes_commands(program.input, rest)


def _takes_commands(when: Input, rest: Sequence[str]) -> bool:
    pairs = zip_longest(rest, rest[1:], fillvalue="")
    if any(text in when.asks for text in rest[:1]) or any(_is_input_file(*pair, when) for pair in pairs):
        return True
    return when.unless is not None and not any(text.startswith(when.unless) for text in rest)


def _is_input_file(text: str, behind: str, when: Input) -> bool:
    """Whether an option names the input as a file of commands: `-f -`, `-f-`, `--file=-`."""
    for option in when.files:
        attached = text.removeprefix(option).removeprefix("=") if text.startswith(option) else ""
        if (text == option and behind in INPUT) or attached in INPUT:
            return True
    return False


def _shell_reads(rest: Sequence[str]) -> bool:
    valued = _code_of(program_named("bash")).valued
    is_code = False
    at = 0
    while at < len(rest) and rest[at][:1] in ("-", "+") and rest[at] not in INPUT:
        text = rest[at]
        if not text.startswith("--"):
            if "s" in text:
                return True
            is_code = is_code or "c" in text
        at += 2 if text in valued else 1
    if is_code:
        return at < len(rest) and _STARTS_READER.search(rest[at]) is not None
    return at >= len(rest) or rest[at] in INPUT


def _interpreter_reads(program: Program, rest: Sequence[str]) -> bool:
    code = _code_of(program)
    letters = code.letters + ("m" if program.kind is Kind.PYTHON else "")
    at = 0
    while at < len(rest) and (
        rest[at] in program.verbs or (rest[at].startswith("-") and rest[at] not in INPUT)
    ):
        text = rest[at]
        if is_long(text, code.long) or text.startswith(("--version", "--help", "-V", "-h")):
            return False
        if text.startswith("-") and text[1:2] != "-":
            if any(letter in text[1:] for letter in letters):
                return False
            if "i" in text[1:]:
                return True  # it reads commands when its script has ended
        at += 2 if text in code.valued else 1
    return at >= len(rest) or rest[at] in INPUT


def _code_of(program: Program) -> Code:
    return program.code or Code()


def _ssh_reads(command: Sequence[Word]) -> bool:
    reach = program_named("ssh").reach
    valued = {f"-{letter}" for letter in reach.valued} if reach is not None else set[str]()
    at = 1
    while at < len(command) and command[at].text.startswith("-"):
        at += 2 if command[at].text in valued else 1
    there = command[at + 1 :]
    if not there:
        return True
    return bool(reader_of(there)) or (len(there) == 1 and _STARTS_READER.search(there[0].text) is not None)


def _xargs_reads(rest: Sequence[str]) -> bool:
    """Whether a word of the input becomes program text: `xargs sh -c`, `xargs -I_ sh -c 'run _'`."""
    for at, text in enumerate(rest):
        if not program_named(text.rpartition("/")[2]).is_interpreter:
            continue
        behind = rest[at + 1 :]
        if behind and behind[-1].startswith("-") and set("ceE") & set(behind[-1]):
            return True
        return any(_mark_of(rest[:at], place) in word for place in range(at) for word in behind)
    return False


def _mark_of(options: Sequence[str], place: int) -> str:
    """What `-I MARK`, `-IMARK` or `-i` puts the input in place of; a text that stands nowhere for other options."""
    text = options[place]
    if text == "-I":
        return options[place + 1] if place + 1 < len(options) else "\n\n"
    if text.startswith("-I"):
        return text[2:]
    if text.startswith(("-i", "--replace")):
        return text.removeprefix("-i").removeprefix("--replace").removeprefix("=") or "{}"
    return "\n\n"
