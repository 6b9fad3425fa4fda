"""Reads a command as bash reads it: from a text with placeholders to a script with parameters.

A placeholder stands for one word whatever its value holds (`command`), as long as nothing reads the value a second
time. Where something would (another shell, arithmetic, a here-document ...) the placeholder is refused, with the way to
write it instead. To know where a placeholder stands, the text is read as bash reads it: quotes, substitutions,
here-documents and the words of each command.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from watchbill.plans import limits
from watchbill.plans.command import Command, Refusal, binding
from watchbill.plans.fed_input import BEFORE_COMMAND, Feed, Flow
from watchbill.plans.limits import HERE_SEARCHED_MAX
from watchbill.plans.placeholders import PLACEHOLDER, Placeholder
from watchbill.plans.second_reading import EXPANSION, VALUE, Use, Word, split_paths

__all__ = ["Reading", "parse_command", "read_command"]


@dataclass(frozen=True, slots=True)
class Reading:
    """All simple commands that a script may run, wherever they stand in it.

    Where bash might see another structure than the parser, `is_certain` is false.
    """

    simple: tuple[tuple[Word, ...], ...]  # the words of each, those that redirections name among them
    is_certain: bool = True
    calculated: tuple[Placeholder, ...] = ()  # values that bash reads again, as arithmetic or inside ${...}


def parse_command(text: str) -> Command:
    """Reads a command. Never fails: what cannot be taken is in `refusals`."""
    return _Parser(text).parse()


def read_command(text: str) -> Reading:
    """Reads a command as the simple commands that it may run. Never fails: what is doubtful is not certain."""
    return _Parser(text).read()


_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@%^~*?!\[\]-]+")
_REDIRECT = re.compile(r"<<<|>>|<>|>\||[<>]&|[<>]")
_CONTROL = re.compile(r"\|[|&]|&&|;;&|;[;&]|[;&|]")
#: An operator with the end of a line in its middle, which bash takes out before it looks.
_TORN = re.compile(
    r"""\$(?:\\\n)+[({\['"]|<(?:\\\n)+[<>&(]|>(?:\\\n)+[>&|(]|\|(?:\\\n)+[|&]|&(?:\\\n)+[&>]|\((?:\\\n)+\("""
)
_HERE = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|(\\?[^\s;&|<>()'\"`]+))")
_VARIABLE = re.compile(r"\w+|[@*#?$!-]")
#: The braces of `\x{73}` are not in bash's manual, but in bash.
_ANSI_ESCAPE = re.compile(
    r"\\(?:x\{([0-9A-Fa-f]+)\}?|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})|c(.)|(.))",
    re.DOTALL,
)
_ANSI_LETTERS = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))
_BACKTICK_ESCAPE = re.compile(r"\\([$`\\])")
_IN_DOUBLE = re.compile(r"[^\"\\$`{]+")

_BACKTICKS = (
    "stands inside back-ticks, where bash reads quotes differently",
    "write $( ... ) instead of the back-ticks",
)
_ANSI = ("stands inside $'...'", "close the quote first, as in $'a\\t'{PLACE}$'\\n'")
_QUOTED_HERE = (
    "stands in a here-document with a quoted end word, where bash fills in nothing",
    "write printf '%s\\n' {PLACE}, or give it to the program as an argument",
)
_HERE_DOCUMENT = (
    "stands in a here-document",
    "write printf '%s\\n' {PLACE}, or give it to the program as an argument",
)
_ARITHMETIC = (
    "stands in arithmetic, which would run commands that the value holds",
    "write n={PLACE}; [[ $n =~ ^[0-9]+$ ]] || exit 1; and then calculate with n",
)
_PARAMETER = (
    "stands inside ${...}",
    'write value={PLACE}; and then use value there, as in "${value##*/}"',
)
_AS_VARIABLE = ("is written like a variable of the shell", "leave out the $: write {PLACE}")


def _joined(torn: re.Match[str]) -> str:
    return torn[0].replace("\\\n", "")


def _ansi_text(text: str) -> str:
    """What stands in $'...', as bash reads it: a NUL ends it."""
    return _ANSI_ESCAPE.sub(_unescaped, text).partition("\0")[0]


def _unescaped(match: re.Match[str]) -> str:
    """What an escape in $'...' stands for; an expansion, as something unknown, where that is not plain text."""
    in_braces, byte, short, long, octal, control, letter = match.groups()
    if digits := in_braces or byte or octal:
        return _character(int(digits, 8 if octal else 16) & 0xFF)
    if digits := short or long:
        return _character(int(digits, 16))
    if control:
        return _character(ord(control) & 0x1F)
    if letter in _ANSI_LETTERS:
        return _ANSI_LETTERS[letter]
    return letter if letter in "\\'\"?" else EXPANSION


def _character(code: int) -> str:
    return chr(code) if code < 128 else EXPANSION


class _Kind(Enum):
    """What bash makes of the characters in a frame; the value names what opened it."""

    CODE = "this ("
    DOUBLE = "this double quote"
    HERE = "this here-document"
    PARAMETER = "this ${"
    ARITHMETIC = "this (("


@dataclass(slots=True)
class _Frame:
    """One level of nesting. Code frames also hold the words of the command that is being read."""

    kind: _Kind
    close: str = ""
    opened_at: int = 0
    end: int = 0  # of a here-document
    parens: int = 0
    cases: int = 0
    is_list: bool = False  # a=( ... ): its words are data
    ends_outer: bool = False  # behind its end a new command begins: f() { ... }, a pattern of `case`
    words: list[Word] = field(default_factory=list[Word])
    word: Word | None = None
    redirect: str = ""  # the operator whose target is the next word
    feed: Feed = field(default_factory=Feed)
    opener: str = ""  # what it began with, where that is not a bare parenthesis


class _Parser:
    """The text, the place in it, and the frames that are open."""

    def __init__(self, text: str, depth: int = 0, inherited: Sequence[Use] = ()) -> None:
        """`inherited` is what its commands may read from their input."""
        self._text = text
        self._depth = depth  # of the back-ticks around it
        self._at = 0
        self._out: list[str] = []
        self._copied = 0  # up to here the text is in `out`
        self._frames = [_Frame(_Kind.CODE, feed=Feed(inherited))]
        self._flow = Flow(text)
        self._here_documents = 0
        self._here: list[tuple[str, bool, bool]] = []  # end word, is quoted, tabs are cut
        self._parameters: dict[Placeholder, int] = {}  # in the order of their numbers
        self._offsets: dict[Placeholder, int] = {}
        self._refusals: dict[tuple[int, str], Refusal] = {}
        self._doubts: dict[int, Refusal] = {}
        self._left_alone: list[tuple[int, Placeholder]] = []
        self._simple: list[tuple[Word, ...]] = []
        self._calculated: list[Placeholder] = []
        self._is_certain = True

    def read(self) -> Reading:
        """Goes through the text once, for the commands in it."""
        command = self.parse()
        is_certain = self._is_certain and not command.refusals
        return Reading(tuple(self._simple), is_certain, tuple(self._calculated))

    def parse(self) -> Command:
        """Goes through the text once."""
        while self._at < len(self._text):
            self._step()
        self._finish()
        refusals = sorted(self._refusals.values(), key=lambda each: each.offset)
        offsets = tuple(self._offsets[place] for place in self._parameters)
        script = binding(len(self._parameters)) + "".join(self._out)
        return Command(
            script, tuple(self._parameters), offsets, tuple(refusals), tuple(self._doubts.values()),
            tuple(self._left_alone),
        )  # fmt: skip

    def _step(self) -> None:
        """Reads on by a few characters, as the innermost frame says."""
        if len(self._frames) > limits.PLAN_NESTING_MAX:
            self._refuse(self._at, "the command nests deeper than Watchbill reads", "put it into a script")
            self._at = len(self._text)
            return
        if torn := _TORN.match(self._text, self._at):
            self._refuse(
                self._at, "the end of a line tears an operator apart", f"write {_joined(torn)} on one line"
            )
        frame = self._frames[-1]
        match frame.kind:
            case _Kind.CODE:
                self._code(frame)
            case _Kind.DOUBLE | _Kind.HERE:
                self._double(frame)
            case _Kind.PARAMETER:
                self._parameter(frame)
            case _Kind.ARITHMETIC:
                self._arithmetic(frame)

    def _finish(self) -> None:
        """Ends what is open at the end of the text."""
        for frame in reversed(self._frames):
            if frame.kind is _Kind.CODE:
                self._end_command(frame, "")
            if frame.close:
                self._refuse(frame.opened_at, f"{frame.kind.value} is not closed", f"add {frame.close}")
        for offset, place, text, hint in self._flow.end():
            self._refuse_place(offset, place, (text, hint))
        self._copy(len(self._text))

    # ------------------------------------------------------------ code

    def _code(self, frame: _Frame) -> None:
        text, at = self._text, self._at
        if plain := _PLAIN.match(text, at):
            self._add(frame, plain[0])
            self._at = plain.end()
            return
        character = text[at]
        if character == "\\":
            if text[at + 1 : at + 2] != "\n":
                self._add(frame, "")
                self._add(frame, text[at + 1 : at + 2])
            self._at += 2
        elif character == "'":
            self._single(frame)
        elif character == '"':
            self._add(frame, "")
            self._push(_Frame(_Kind.DOUBLE, '"', at), 1)
        elif character == "$":
            self._dollar(frame)
        elif character == "`":
            self._backticks(frame)
        elif character == "{" and (match := PLACEHOLDER.match(text, at)):
            self._put(match, '"${watchbill_%d}"')
        elif character == "#" and frame.word is None:
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
        elif character in "<>":
            self._angle(frame)
        else:
            self._operator(frame, character)

    def _operator(self, frame: _Frame, character: str) -> None:
        text, at = self._text, self._at
        self._at += 1
        if character in " \t":
            self._end_word(frame)
        elif character == "\n":
            self._end_command(frame, "")
            self._read_here_documents()
        elif character == "&" and text[at + 1 : at + 2] == ">":
            self._end_word(frame)
        elif control := _CONTROL.match(text, at):
            self._at = control.end()
            self._end_command(frame, "|" if control[0] in ("|", "|&") else "")
        elif character == "(":
            is_list = frame.word is not None and frame.word.text.endswith("=")
            self._end_word(frame)
            # Behind words it is a function, a list, or a pattern of `case`: what follows is no argument.
            behind_words = any(not (word.is_plain and word.text in BEFORE_COMMAND) for word in frame.words)
            self._is_certain = self._is_certain and not behind_words
            is_calculation = text[at + 1 : at + 2] == "(" and all(word.text == "for" for word in frame.words)
            if is_calculation:
                self._push(_Frame(_Kind.ARITHMETIC, "))", at), 1)
            else:
                ends_outer = behind_words and not is_list
                inner = _Frame(_Kind.CODE, ")", at, is_list=is_list, ends_outer=ends_outer)
                inner.feed = Feed(() if ends_outer or is_list else frame.feed.piped)
                self._push(inner, 0)
        elif character == ")":
            self._end_command(frame, "")
            if frame.close == ")" and not frame.cases:
                self._close_code(frame)
            else:
                self._is_certain = False
        else:
            self._add(frame, character)

    def _angle(self, frame: _Frame) -> None:
        text, at = self._text, self._at
        if self._is_descriptor(frame.word):
            frame.word = None
        self._end_word(frame)
        if text[at + 1 : at + 2] == "(":  # <(command)
            self._add(frame, EXPANSION)
            assert frame.word is not None, "a word that was just added to is there"
            frame.word.is_process = text[at] == "<"
            self._substitute(at, text[at])
        elif text.startswith("<<", at) and not text.startswith("<<<", at) and (here := _HERE.match(text, at)):
            quoted = here[2] if here[2] is not None else here[3]
            word = quoted if quoted is not None else here[4]
            self._here.append(
                (word.removeprefix("\\"), quoted is not None or word.startswith("\\"), bool(here[1]))
            )
            self._at = here.end()
            self._note_here_document(frame, word.removeprefix("\\"), is_quoted=self._here[-1][1])
            # <<E"O"F: bash takes the end word together, the pattern does not.
            behind = text[self._at : self._at + 1]
            self._is_certain = self._is_certain and (not behind or behind in " \t\n;&|<>)")
            self._is_certain = self._is_certain and not set(word.removeprefix("\\")) & set("$`\\")
        else:
            self._is_certain = self._is_certain and (
                not text.startswith("<<", at) or text.startswith("<<<", at)
            )
            operator = _REDIRECT.match(text, at)
            assert operator is not None
            frame.redirect = operator[0]
            self._at = operator.end()

    def _is_descriptor(self, word: Word | None) -> bool:
        """Whether the word right before a redirection is the number of a descriptor: `2>` and not `"2">`."""
        if word is None or len(word.parts) != 1 or not word.text.isdecimal():
            return False
        start = self._at - len(word.text)
        return self._text[start : self._at] == word.text and self._text[start - 1 : start] not in ("\\", '"')

    def _single(self, frame: _Frame) -> None:
        """In single quotes nothing but a placeholder means anything."""
        start = self._at + 1
        end = self._text.find("'", start)
        if end < 0:
            self._refuse(self._at, "this single quote is not closed", "add '")
            end = len(self._text)
        self._add(frame, "")
        for match in PLACEHOLDER.finditer(self._text, start, end):
            self._add(frame, self._text[start : match.start()])
            self._put(match, "'\"${watchbill_%d}\"'")
            start = match.end()
        self._add(frame, self._text[start:end])
        self._at = end + 1

    def _dollar(self, frame: _Frame) -> None:
        """`$` in code, in double quotes and wherever else bash expands."""
        text, at = self._text, self._at
        in_code = frame.kind is _Kind.CODE
        match = PLACEHOLDER.match(text, at + 1)
        if text.startswith("$((", at):
            self._add(frame, EXPANSION)
            self._push(_Frame(_Kind.ARITHMETIC, "))", at), 3)
        elif text.startswith("$(", at):
            self._add(frame, EXPANSION)
            self._substitute(at, "$")
        elif text.startswith("$[", at):
            self._add(frame, EXPANSION)
            self._push(_Frame(_Kind.ARITHMETIC, "]", at), 2)
        elif match is not None and (Placeholder.of(match).is_item or match[2]):
            self._refuse_place(at, Placeholder.of(match), _AS_VARIABLE)
            self._at = match.end()
        elif text.startswith("${", at):
            self._add(frame, EXPANSION)
            self._push(_Frame(_Kind.PARAMETER, "}", at), 2)
        elif in_code and text.startswith("$'", at):
            self._ansi(frame)
        else:
            self._add(frame, EXPANSION)
            name = _VARIABLE.match(text, at + 1)
            self._at = at + 1 if name is None else name.end()

    def _ansi(self, frame: _Frame) -> None:
        end = self._at + 2
        while end < len(self._text) and self._text[end] != "'":
            end += 2 if self._text[end] == "\\" else 1
        for match in PLACEHOLDER.finditer(self._text, self._at, end):
            self._refuse_place(match.start(), Placeholder.of(match), _ANSI)
        self._add(frame, _ansi_text(self._text[self._at + 2 : end]))
        self._at = end + 1

    def _backticks(self, frame: _Frame) -> None:
        end = self._at + 1
        while end < len(self._text) and self._text[end] != "`":
            end += 2 if self._text[end] == "\\" else 1
        if end >= len(self._text):
            self._refuse(self._at, "this back-tick is not closed", "write $( ... ) instead of back-ticks")
        for match in PLACEHOLDER.finditer(self._text, self._at, end):
            self._refuse_place(match.start(), Placeholder.of(match), _BACKTICKS)
        self._add(frame, EXPANSION)
        self._read_inside_backticks(self._text[self._at + 1 : end])
        self._at = end + 1

    def _read_inside_backticks(self, text: str) -> None:
        if len(self._frames) + self._depth > limits.PLAN_NESTING_MAX:
            self._is_certain = False
            return
        fed = self._enclosing_code().feed.piped
        parser = _Parser(_BACKTICK_ESCAPE.sub(r"\1", text), self._depth + len(self._frames), fed)
        inner = parser.read()
        self._simple += inner.simple
        self._is_certain = self._is_certain and inner.is_certain
        reader = parser._frames[0].feed.reader
        if reader:
            for offset, place in fed:
                self._refuse_place(offset, place, (f"is read as commands by {reader}", _BACKTICKS[1]))

    # ------------------------------------------------------------ double quotes and here-documents

    def _double(self, frame: _Frame) -> None:
        text, at = self._text, self._at
        stop = frame.end if frame.kind is _Kind.HERE else len(text)
        if plain := _IN_DOUBLE.match(text, at, stop):
            self._add(frame, plain[0])
            self._at = plain.end()
            return
        character = text[at]
        match = PLACEHOLDER.match(text, at + (character == "\\"), stop)
        if character == "\\" and match is not None:
            # The backslash is literal before a brace; before the parameter it would escape its dollar sign.
            self._copy(at)
            self._out.append("\\")
            self._add(frame, "\\")
            self._at += 1
        elif character == "\\":
            escaped = text[at + 1 : at + 2]
            self._add(frame, "" if escaped == "\n" else escaped if escaped in '$`"\\' else "\\" + escaped)
            self._at += 2
        elif character == "$":
            self._dollar(frame)
        elif character == "`":
            self._backticks(frame)
        elif match is not None:
            if frame.kind is _Kind.HERE and Placeholder.of(match).is_item:
                self._refuse_place(at, Placeholder.of(match), _HERE_DOCUMENT)
            self._put(match, "${watchbill_%d}")
        elif character == '"' and frame.kind is _Kind.DOUBLE:
            self._frames.pop()
            self._at += 1
        else:
            self._add(frame, character)
            self._at += 1

    def _read_here_documents(self) -> None:
        """The line with `<<END` has ended: what follows, up to a line END, is not code."""
        pending, self._here = self._here, []
        for word, is_quoted, cuts_tabs in pending:
            start = self._at
            end, behind = self._here_end(start, word, cuts_tabs=cuts_tabs)
            if is_quoted:
                for match in PLACEHOLDER.finditer(self._text, start, end):
                    place = Placeholder.of(match)
                    if place.name.islower():  # {n} in a program of another language: the text itself
                        self._left_alone.append((match.start(), place))
                    else:
                        self._refuse_place(match.start(), place, _QUOTED_HERE)
            else:
                self._read_here_document(start, end)
            self._at = behind

    def _read_here_document(self, start: int, end: int) -> None:
        outside = len(self._frames)
        self._frames.append(_Frame(_Kind.HERE, opened_at=start, end=end))
        while self._at < end and len(self._frames) > outside:
            self._step()
        for frame in self._frames[outside + 1 :]:
            self._refuse(
                frame.opened_at, "this substitution in a here-document is not closed", f"add {frame.close}"
            )
        del self._frames[outside:]
        self._enclosing_code().word = None  # what it says is no word of the command that follows

    def _here_end(self, at: int, word: str, *, cuts_tabs: bool) -> tuple[int, int]:
        """Where the here-document ends, and where the line behind its end word begins."""
        text = self._text
        while at < len(text):
            line_end = text.find("\n", at)
            line_end = len(text) if line_end < 0 else line_end
            line = text[at:line_end]
            if (line.lstrip("\t") if cuts_tabs else line) == word:
                return at, min(line_end + 1, len(text))
            at = line_end + 1
        return len(text), len(text)

    # ------------------------------------------------------------ ${...} and arithmetic

    def _parameter(self, frame: _Frame) -> None:
        text, at = self._text, self._at
        character = text[at]
        if character == "\\":
            self._at += 2
        elif character == "}":
            self._frames.pop()
            self._at += 1
        elif character == "{" and (match := PLACEHOLDER.match(text, at)):
            self._put_inside(match, _PARAMETER)
        elif character == '"':
            self._push(_Frame(_Kind.DOUBLE, '"', at), 1)
        elif character == "'":  # a quote even inside double quotes: "${V:-'}'}"
            end = text.find("'", at + 1)
            for match in PLACEHOLDER.finditer(text, at, len(text) if end < 0 else end):
                self._refuse_place(match.start(), Placeholder.of(match), _PARAMETER)
            self._at = len(text) if end < 0 else end + 1
        elif character == "$":
            self._dollar(frame)
        elif character == "`":
            self._backticks(frame)
        else:
            self._at += 1

    def _arithmetic(self, frame: _Frame) -> None:
        text, at = self._text, self._at
        character = text[at]
        if not frame.parens and text.startswith(frame.close, at):
            self._frames.pop()
            self._at += len(frame.close)
        elif character == "{" and (match := PLACEHOLDER.match(text, at)):
            self._put_inside(match, _ARITHMETIC)
        elif character == "$":
            self._dollar(frame)
        elif character == "`":
            self._backticks(frame)
        else:
            # A single ) that closes nothing: to bash it was no arithmetic, but a subshell in a substitution.
            self._is_certain = self._is_certain and not (character == ")" and not frame.parens)
            frame.parens += (character == "(") - (character == ")" and frame.parens > 0)
            self._at += 1

    def _put_inside(self, match: re.Match[str], why: tuple[str, str]) -> None:
        """Values that the operator gives may stand where bash calculates; those of items may not."""
        if Placeholder.of(match).is_item:
            self._refuse_place(match.start(), Placeholder.of(match), why)
        self._calculated.append(Placeholder.of(match))
        self._put(match, "${watchbill_%d}")

    # ------------------------------------------------------------ words and commands

    def _add(self, frame: _Frame, text: str) -> None:
        """Literal text of a word. In quotes and substitutions it belongs to the word around them."""
        code = frame if frame.kind is _Kind.CODE else self._enclosing_code()
        if code.word is None:
            code.word = Word()
        code.word.parts.append(text)

    def _enclosing_code(self) -> _Frame:
        return next(each for each in reversed(self._frames) if each.kind is _Kind.CODE)

    def _put(self, match: re.Match[str], form: str) -> None:
        """Replaces a placeholder by its parameter."""
        place = Placeholder.of(match)
        number = self._parameters.setdefault(place, len(self._parameters) + 1)
        self._offsets.setdefault(place, match.start())
        self._copy(match.start())
        self._out.append(form % number)
        self._copied = self._at = match.end()
        self._add(self._frames[-1], VALUE)
        holder = self._enclosing_code().word
        assert holder is not None, "a word that was just added to is there"
        holder.values.append(place)
        for frame in self._frames:  # a value inside $( ... ) is part of the word around it, too
            if frame.kind is _Kind.CODE:
                if frame.word is None:
                    frame.word = Word()
                frame.word.places.append((match.start(), place))

    def _end_word(self, frame: _Frame) -> None:
        if frame.word is None:
            return
        word, frame.word = frame.word, None
        word.redirect, frame.redirect = frame.redirect, ""
        frame.words.append(word)
        if len(frame.words) == 1:
            frame.cases += (word.text == "case") - (word.text == "esac" and frame.cases > 0)

    def _end_command(self, frame: _Frame, operator: str) -> None:
        self._end_word(frame)
        if frame.is_list:
            self._flow.carry(frame.words)
        else:
            for offset, place, text, hint in self._flow.end_command(
                frame.feed, frame.words, is_piped=operator == "|"
            ):
                self._refuse_place(offset, place, (text, hint))
            for offset, place, text, hint in split_paths(frame.words):
                doubt = Refusal(offset, f"{place} {text}", hint.replace("{PLACE}", str(place)))
                self._doubts.setdefault(offset, doubt)
        if frame.words and not frame.is_list:
            self._simple.append(tuple(frame.words))
        frame.words = []

    def _substitute(self, at: int, opener: str) -> None:
        """`$(`, `<(` and `>(`. The first two read what the command around them reads."""
        fed = () if opener == ">" else self._enclosing_code().feed.piped
        self._push(_Frame(_Kind.CODE, ")", at, feed=Feed(fed), opener=opener), 2)

    def _close_code(self, frame: _Frame) -> None:
        """A parenthesis closes a frame of code."""
        self._frames.pop()
        outer = self._enclosing_code()
        if frame.ends_outer:
            self._end_command(outer, "")
        elif frame.opener == ">":
            assert outer.word is not None, "it is a part of this word"
            outer.word.feeds = frame.feed.reader
        elif frame.opener:
            outer.feed.take_substitution(frame.feed)
        elif not frame.is_list:
            outer.feed.take_subshell(frame.feed)

    def _note_here_document(self, frame: _Frame, word: str, *, is_quoted: bool) -> None:
        begin = self._text.find("\n", self._at) + 1
        end = len(self._text) if begin else 0
        self._here_documents += 1
        if begin and self._here_documents <= HERE_SEARCHED_MAX:
            end, _ = self._here_end(begin, word, cuts_tabs=True)
        frame.feed.has_here = True
        frame.feed.here_expands = frame.feed.here_expands or (not is_quoted and "$" in self._text[begin:end])

    def _push(self, frame: _Frame, length: int) -> None:
        self._frames.append(frame)
        self._at += length

    # ------------------------------------------------------------ output

    def _copy(self, until: int) -> None:
        self._out.append(self._text[self._copied : until])
        self._copied = until

    def _refuse(self, offset: int, text: str, hint: str) -> None:
        self._refusals.setdefault((offset, text), Refusal(offset, text, hint))

    def _refuse_place(self, offset: int, place: Placeholder, why: tuple[str, str]) -> None:
        text, hint = why
        self._refuse(offset, f"{place} {text}", hint.replace("{PLACE}", str(place)))
