"""Shell parts: which programs a bash command line would start, as far as its text tells.

`plans.command` reads the text as bash does. Here each simple command is taken apart further: assignments before it,
programs that start other programs (`env`, `timeout`, `xargs`, `sudo` ...), shells and `eval` with program text, the
files that redirections write, and the hosts that are reached (`network`). A rule is about one such **part**.

Whatever is known only when the line runs is a **doubt**, and a doubt is never allowed by a rule:

    PROGRAM     a variable, a substitution or a pattern names the program
    CODE        a shell or an interpreter reads text that is not in the line
    LOOKUP      the line changes what the names of programs mean: PATH, LD_PRELOAD, functions, aliases
    STRUCTURE   bash might take the line apart in another way than this module does

Pure. Errs on the side of doubt: a harmless line may be asked about, a harmful one is not taken for a harmless one.
Rules are still a convenience. An allowed interpreter runs whatever its script says; `sandbox` is the boundary.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from watchbill.fleet import limits
from watchbill.fleet.permissions.network import host_of_device, hosts_of
from watchbill.plans import programs
from watchbill.plans.bash_reader import Reading, read_command
from watchbill.plans.inputs import BUILT_INS
from watchbill.plans.placeholders import Placeholder
from watchbill.plans.programs import INPUT, Hides, Program, Wraps, code_in, program_named
from watchbill.plans.second_reading import EXPANSION, VALUE, Word

__all__ = ["ANYTHING", "Doubt", "Kind", "Part", "Split", "changes_lookup", "split"]

#: Stands in the words of a part for text that is known only when the line runs.
ANYTHING = EXPANSION

ValueOf = Callable[[Placeholder], str]


class Kind(Enum):
    """What a part does."""

    RUN = "run"
    WRITE = "write"  # a redirection; the only word is the file
    NET = "net"  # a connection; the only word is the host


class Doubt(Enum):
    """Why a command line is not known from its text; the value completes "it ..."."""

    PROGRAM = "starts a program whose name is known only when it runs"
    CODE = "runs text that is known only when it runs"
    LOOKUP = "changes what the names of programs mean"
    STRUCTURE = "cannot be taken apart with certainty"


@dataclass(frozen=True, slots=True)
class Part:
    """One program that would be started, one file that would be written, or one host that would be reached."""

    kind: Kind
    words: tuple[str, ...]
    starts_another: bool = False  # a harmless program whose only effect is to start the one in the next part
    is_opaque: bool = False  # it starts programs that are not among the parts
    #: What a value of the plan, not its text, says of it: the program, its script, program text (""), a file to write
    #: outside of the folder that the text names.
    from_values: tuple[str, ...] = ()
    doubt: Doubt | None = None
    items: int = 0  # words of it with a value of an item

    @property
    def program(self) -> str:
        """The first word."""
        return self.words[0]


@dataclass(frozen=True, slots=True)
class Split:
    """A whole line."""

    parts: tuple[Part, ...]
    doubts: tuple[Doubt, ...] = ()  # about the line as a whole
    calculates_value: bool = False  # a value stands in arithmetic and could run commands there
    may_hide_value: bool = False  # values are somewhere in a line that is not taken apart for sure
    items: int = 0  # words with a value of an item that a program may get to see


def split(text: str, value_of: ValueOf) -> Split:
    """The parts of a command of a plan, with these values in its placeholders."""
    splitter = _Splitter(value_of)
    splitter.read(text, from_value=False, depth=0)
    doubts = tuple(dict.fromkeys(splitter.doubts))
    may_hide_value = splitter.has_value and not splitter.is_taken_apart
    return Split(tuple(splitter.parts), doubts, splitter.calculates_value, may_hide_value, splitter.items)


@lru_cache(maxsize=limits.COMMANDS_PARSED_MAX)
def _reading(text: str) -> Reading:
    """All tasks of a fan-out have the same text."""
    return read_command(text)


def changes_lookup(variable: str) -> bool:
    """Whether a variable of the environment decides which programs or libraries are used."""
    return bool(_LOOKUP.fullmatch(variable)) or not _NAME.fullmatch(variable)


# ------------------------------------------------------------------ what is known about programs

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[.*\])?\+?=(.*)", re.DOTALL)
_LOOKUP = re.compile(
    r"PATH|LD_\w+|ENV|IFS|PS[0-4]|PROMPT_COMMAND|SHELL|SHELLOPTS|HOME|CDPATH|BASH\w*|GCONV_PATH|GLIBC_TUNABLES|LOCPATH"
    r"|PYTHON\w*|PERL\w*|RUBY\w*|NODE_\w+|LUA_\w+|JAVA_\w+|_JAVA_OPTIONS|CLASSPATH|GIT_\w+|SSH_ASKPASS|EDITOR|VISUAL"
    r"|\w*PAGER|BROWSER|LESS\w*|TAR_OPTIONS|RSYNC_RSH|MAKE\w*|XDG_CONFIG_\w+|OPENSSL_\w+|TERMINFO|TCLLIBPATH|R_\w+"
)
_RESERVED = frozenset(
    {"{", "}", "!", "if", "then", "else", "elif", "fi", "do", "done", "while", "until", "time"}
)
_PATTERN = re.compile(r"[*?{]|.\[|\[(?!\[?$)|^~")
_RUNS_IN_ARITHMETIC = re.compile(r"[\[$`]")
_SUBSTITUTION = re.compile(r"\$[({]|`")

_STANDARD = re.compile(r"/(?:usr/)?(?:local/)?s?bin/")

#: Builtins that run, or will run, text that they are given, or that change what names mean.
_CODE_BUILTINS = frozenset({"trap", "mapfile", "readarray", "complete", "compgen", "bind", "fc", "coproc"})
_LOOKUP_BUILTINS = frozenset({"alias", "hash", "enable", "shopt", "unalias"})
_DECLARATIONS = frozenset({"export", "declare", "typeset", "local", "readonly"})
#: They write to the variables that their words name.
_NAMES_VARIABLES = frozenset({"read", "getopts", "unset", "let"})
_STRUCTURES = frozenset({"case", "esac", "select", "function", "for"})
_LOADER = re.compile(r"ld(?:-linux[\w.-]*|-musl[\w.-]*)?\.so(?:\.\d+)?")


# ------------------------------------------------------------------ splitting


class _Piece(NamedTuple):
    """A word with its values: what the program gets, and whether a value is in it."""

    text: str
    has_value: bool = False
    redirect: str = ""
    has_item: bool = False
    leads_out: bool = False  # a value of an item leads out of the folder that stands in front of it

    @property
    def is_known(self) -> bool:
        return ANYTHING not in self.text

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]


class _Splitter:
    """One line, and what is found in it."""

    def __init__(self, value_of: ValueOf) -> None:
        self._value_of = value_of
        self.parts: list[Part] = []
        self.doubts: list[Doubt] = []
        self.calculates_value = False
        self.has_value = False
        self.items = 0
        self.is_taken_apart = True

    def read(self, text: str, *, from_value: bool, depth: int) -> None:
        """Add the parts of a text. Text that comes from a value holds no placeholders: it is read as it is."""
        if depth > limits.SHELL_DEPTH_MAX or len(self.parts) > limits.SHELL_PARTS_MAX or VALUE in text:
            self.not_taken_apart()
            return
        reading = _reading(text)
        if not reading.is_certain or "@P}" in text:  # ${x@P} runs what the variable says
            self.not_taken_apart()
        calculated = (self._value_of(place) for place in reading.calculated if not depth)
        self.calculates_value = self.calculates_value or any(map(_RUNS_IN_ARITHMETIC.search, calculated))
        for words in reading.simple:
            pieces = [self._piece(word, is_text=depth > 0) for word in words]
            _Simple(self, from_value, depth).take(pieces)

    def not_taken_apart(self) -> None:
        """Bash might see other commands in the line than are listed here."""
        self.doubts.append(Doubt.STRUCTURE)
        self.is_taken_apart = False

    def _piece(self, word: Word, *, is_text: bool) -> _Piece:
        values = iter(word.values)
        if is_text:  # what looks like a placeholder in text that was filled already is no placeholder
            parts = [str(next(values)) if part == VALUE else part for part in word.parts]
            return _Piece("".join(parts), redirect=word.redirect)
        filled = [self._value_of(next(values)) if part == VALUE else part for part in word.parts]
        # Watchbill's own values are as good as text of the plan.
        has_value = any(place.name not in BUILT_INS for place in word.values)
        self.has_value = self.has_value or has_value
        has_item = any(place.is_item for place in word.values)
        self.items += has_item and not word.redirect.startswith(">")
        leads_out = bool(word.redirect) and has_item and _leads_out(word, filled)
        return _Piece("".join(filled), has_value, word.redirect, has_item, leads_out)


class _Simple:
    """One simple command on its way to parts."""

    def __init__(self, splitter: _Splitter, from_value: bool, depth: int) -> None:
        self._splitter = splitter
        self._from_value = from_value
        self._depth = depth

    def take(self, pieces: Sequence[_Piece]) -> None:
        """A simple command as the parser found it, with redirections and reserved words."""
        for piece in pieces:
            if piece.redirect:
                self._redirection(piece)
        words = [piece for piece in pieces if not piece.redirect]
        while words and words[0].text in _RESERVED:
            words = words[1:]
        if words and words[0].text in _STRUCTURES:
            self._structure(words)
            return
        words = self._assignments(words)
        if words:
            self.program(words)

    def _doubt(self, doubt: Doubt) -> None:
        self._splitter.doubts.append(doubt)

    def _doubt_text(self, text: str) -> None:
        """A literal "$(" in data may be read again: by arithmetic, by a prompt."""
        if _SUBSTITUTION.search(text):
            self._doubt(Doubt.STRUCTURE)

    def _add(
        self, words: Sequence[_Piece], *, starts_another: bool = False, doubt: Doubt | None = None,
        from_values: tuple[str, ...] = (), is_opaque: bool = False,
    ) -> None:  # fmt: skip
        texts = tuple(word.text for word in words)
        if not starts_another:
            self._doubt_text(" ".join(texts))
        named = (texts[0],) if self._from_value or words[0].has_value else ()
        items = sum(word.has_item for word in words)
        self._splitter.parts.append(
            Part(Kind.RUN, texts, starts_another, is_opaque, (*named, *from_values), doubt, items)
        )
        if not starts_another:
            self._splitter.parts += [Part(Kind.NET, (host,)) for host in hosts_of(texts)]

    def _redirection(self, piece: _Piece) -> None:
        if host := host_of_device(piece.text):
            self._splitter.parts.append(Part(Kind.NET, (host,)))
        is_descriptor = piece.redirect in (">&", "<&") and re.fullmatch(r"\d+-?|-", piece.text)
        if piece.redirect.startswith((">", "<>")) and not is_descriptor:
            # A file that is written is data, so a value may name it, as it may with tee or cp.
            from_values = (piece.text,) if self._from_value or piece.leads_out else ()
            self._splitter.parts.append(Part(Kind.WRITE, (piece.text,), from_values=from_values))

    def _structure(self, words: Sequence[_Piece]) -> None:
        """`for NAME in ...` names a variable and starts nothing; the others are not taken apart."""
        if words[0].text == "for" and len(words) > 1 and _NAME.fullmatch(words[1].text):
            self._note_variable(words[1].text)
            self._doubt_text(" ".join(word.text for word in words))
        else:
            self._splitter.not_taken_apart()

    def _assignments(self, words: list[_Piece]) -> list[_Piece]:
        """The command behind `A=1 B=2`."""
        at = 0
        while at < len(words) and (match := _ASSIGNMENT.fullmatch(words[at].text)):
            self._assign(match)
            at += 1
        return words[at:]

    def _assign(self, match: re.Match[str]) -> None:
        self._note_variable(match[1])
        self._doubt_text(match[3])
        if match[2] is not None:  # an index is arithmetic
            self._doubt(Doubt.STRUCTURE)

    def _note_variable(self, name: str) -> None:
        if changes_lookup(name):
            self._doubt(Doubt.LOOKUP)

    # ------------------------------------------------------------ programs

    def program(self, words: Sequence[_Piece]) -> None:
        """A command without what stands before it: by the name of its program."""
        name = words[0].name
        if not name or ANYTHING in name or (_PATTERN.search(name) and name not in ("[", "[[")):
            self._add(words, doubt=Doubt.PROGRAM, from_values=_named_by_values(words))
            return
        if not words[0].is_known or _PATTERN.search(words[0].text.removesuffix(name)):
            # "$VENV/bin/python": the folder is known only when it runs, the program is not.
            self._doubt(Doubt.LOOKUP)
        known = program_named(name)
        wraps = known.wraps
        if wraps is not None and wraps.behind:
            self._find(words, wraps.behind)
        elif wraps is not None and wraps.is_followed:
            self._starter(words, wraps)
        elif known.kind is programs.Kind.SHELL:
            self._shell(words)
        elif known.is_interpreter:
            self._interpreter(words, known)
        elif name == "eval":
            self._eval(words)
        elif name in ("source", "."):
            self._source(words)
        elif name in _CODE_BUILTINS or _LOADER.fullmatch(name):
            self._add(words, doubt=Doubt.CODE if self._reads_unknown(words) else Doubt.STRUCTURE)
        elif wraps is not None or known.hides is not Hides.NOTHING:
            # Only a rule about the program itself allows it: what it starts is not followed here.
            is_unknown = known.hides is Hides.TEXT and self._reads_unknown(words)
            self._add(words, is_opaque=True, doubt=Doubt.CODE if is_unknown else None)
        else:
            self._ordinary(words, name, known)

    @staticmethod
    def _reads_unknown(words: Sequence[_Piece]) -> bool:
        return any(not word.is_known or word.has_value for word in words[1:])

    def _ordinary(self, words: Sequence[_Piece], name: str, known: Program) -> None:
        doubt = None
        if name in _LOOKUP_BUILTINS:
            doubt = Doubt.LOOKUP
        elif name in _DECLARATIONS:
            self._declaration(words[1:])
        elif name in _NAMES_VARIABLES or (name == "printf" and any(word.text == "-v" for word in words)):
            self._named_variables(words[1:])
        elif self._may_start_others(words, known):
            doubt = Doubt.CODE if self._reads_unknown(words) else Doubt.STRUCTURE
        self._add(words, doubt=doubt)

    @staticmethod
    def _may_start_others(words: Sequence[_Piece], known: Program) -> bool:
        """Whether the arguments of an ordinary program make it run text or start programs."""
        texts = [word.text for word in words[1:]]
        if known.doubtful is not None and any(map(known.doubtful.search, texts)):
            return True
        return known.code is not None and any(True for _ in code_in(known, texts))

    def _declaration(self, words: Sequence[_Piece]) -> None:
        for word in words:
            match = _ASSIGNMENT.fullmatch(word.text)
            if match is not None:
                self._assign(match)
            elif word.text.startswith("-"):
                if re.search(r"[aAinf]", word.text):
                    self._doubt(Doubt.STRUCTURE)
            elif word.is_known:
                self._note_variable(word.text)
            else:
                self._doubt(Doubt.LOOKUP)

    def _named_variables(self, words: Sequence[_Piece]) -> None:
        for word in words:
            if not word.is_known:
                self._doubt(Doubt.LOOKUP)
            elif _NAME.fullmatch(word.text):
                self._note_variable(word.text)
            elif "[" in word.text or word.text.startswith("PATH"):
                self._doubt(Doubt.STRUCTURE)

    # ------------------------------------------------------------ programs that start others

    @staticmethod
    def _is_standard(program: _Piece) -> bool:
        """Whether this is the program of that name, and not some file that is called so."""
        return (
            "/" not in program.text
            or _STANDARD.fullmatch(program.text.removesuffix(program.name)) is not None
        )

    def _starter(self, words: Sequence[_Piece], starter: Wraps) -> None:
        if words[0].name == "command" and len(words) > 1 and words[1].text in ("-v", "-V"):
            self._add(words)
            return
        at = self._past_options(words, starter)
        if at is None or not all(word.is_known for word in words[1:at]):
            self._add(words, doubt=Doubt.STRUCTURE)
            return
        rest = list(words[at:])
        if starter.takes_assignments:
            while rest and "=" in rest[0].text:
                self._note_variable(rest.pop(0).text.partition("=")[0])
        if words[0].name == "xargs" and rest:
            rest = _with_unknown_words(rest, words[1:at])
        if not rest:
            # `exec > log`, `command -v x` and a bare `env` start nothing.
            self._add(words)
            return
        self._add(words, starts_another=starter.is_harmless and self._is_standard(words[0]))
        self._within(rest)

    def _within(self, words: Sequence[_Piece]) -> None:
        if self._depth >= limits.SHELL_DEPTH_MAX:
            self._doubt(Doubt.STRUCTURE)
        else:
            _Simple(self._splitter, self._from_value, self._depth + 1).program(words)

    @staticmethod
    def _past_options(words: Sequence[_Piece], starter: Wraps) -> int | None:
        """Where the program begins; None where an option is not known."""
        at = 1
        while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
            text = words[at].text
            at += 1
            if text == "--":
                break
            if text.startswith("--"):
                if text.partition("=")[0] not in starter.long:
                    return None
                continue
            letters = text[1:].lstrip(starter.flags) if starter.flags else text[1:]
            if not letters:
                continue
            if letters[0] not in starter.valued:
                return None
            at += len(letters) == 1
        at += starter.words
        return at if at <= len(words) or not starter.words else None

    def _find(self, words: Sequence[_Piece], starts: tuple[str, ...]) -> None:
        self._add(words)
        at = 1
        while at < len(words):
            if words[at].text in starts:
                end = at + 1
                while end < len(words) and words[end].text not in (";", "+"):
                    end += 1
                inner = [_Piece(ANYTHING) if "{}" in word.text else word for word in words[at + 1 : end]]
                if inner:
                    self._within(inner)
                at = end
            elif not words[at].is_known:
                self._doubt(Doubt.STRUCTURE)  # it may be -exec
            at += 1

    # ------------------------------------------------------------ program text

    def _shell(self, words: Sequence[_Piece]) -> None:
        at, is_code = 1, False
        while at < len(words):
            text = words[at].text
            if text == "--" or not text.startswith(("-", "+")) or len(text) == 1:
                at += text in ("--", "-")
                break
            if not text.startswith("--"):
                at += text.count("o") + text.count("O")  # each is followed by the name of an option
            elif text in ("--rcfile", "--init-file"):
                at += 1
            if text.startswith("--") and text not in ("--noprofile", "--norc", "--login", "--posix"):
                self._doubt(Doubt.STRUCTURE)
            elif "s" in text[1:] and not text.startswith("--"):
                self._add(words, doubt=Doubt.CODE)
                return
            is_code = is_code or ("c" in text[1:] and not text.startswith("--"))
            at += 1
        if at >= len(words):
            self._add(words, doubt=Doubt.CODE)  # it reads its commands from its input
        elif is_code:
            self._code(words, words[at : at + 1])
        else:
            self._script(words, words[at])

    def _interpreter(self, words: Sequence[_Piece], known: Program) -> None:
        texts = [word.text for word in words[1:]]
        code = [words[1 + place] for place in code_in(known, texts)]
        from_values = ("",) if any(word.has_value for word in code) else ()
        is_known = all(word.is_known for word in code)
        if not is_known or any(True for _ in code_in(known, texts, beside=False)):
            self._add(words, doubt=None if is_known else Doubt.CODE, from_values=from_values)
            return
        self._scripted(words, known, from_values)

    def _scripted(self, words: Sequence[_Piece], known: Program, from_values: tuple[str, ...]) -> None:
        """An interpreter whose program is not in its words: in a module, in a script, or in its input."""
        valued = known.code.valued if known.code is not None else ()
        at = 2 if len(words) > 2 and words[1].text in known.verbs else 1
        first = at
        while at < len(words):
            word = words[at]
            if known.kind is programs.Kind.PYTHON and word.text == "-m" and at + 1 < len(words):
                # A module by its name: the rest are its arguments.
                doubt = None if words[at + 1].is_known else Doubt.PROGRAM
                self._add(words, doubt=doubt, from_values=("",) if words[at + 1].has_value else from_values)
                return
            if not word.text.startswith("-") or len(word.text) == 1:
                # Options before it may take values that are not told apart from the script.
                is_unclear = at > first and any(each.has_value for each in words[1:] if each is not word)
                self._script(words, word, ("",) if is_unclear else from_values)
                return
            at += 2 if word.text in valued else 1
        is_question = len(words) > 1 and words[-1].text in ("--version", "-V", "-v", "--help", "-h")
        self._add(words, doubt=None if is_question else Doubt.CODE, from_values=from_values)

    def _script(self, words: Sequence[_Piece], script: _Piece, from_values: tuple[str, ...] = ()) -> None:
        """A shell or an interpreter with a script: the script is the program."""
        is_input = script.text in INPUT
        is_named = script.is_known or ANYTHING not in script.name
        doubt = Doubt.CODE if is_input or not is_named or not script.name else None
        if doubt is None and not script.is_known:
            doubt = Doubt.LOOKUP
        own = (script.text,) if script.has_value else ()
        self._add(words, doubt=doubt, from_values=(*own, *from_values))

    def _eval(self, words: Sequence[_Piece]) -> None:
        self._code(words, words[1:])

    def _code(self, words: Sequence[_Piece], texts: Sequence[_Piece]) -> None:
        """Program text: it is taken apart in turn, where it is known."""
        if not all(text.is_known for text in texts):
            self._add(words, doubt=Doubt.CODE)
            return
        self._add(words, starts_another=self._is_standard(words[0]))
        from_value = self._from_value or any(text.has_value for text in texts)
        text = " ".join(text.text for text in texts)
        self._splitter.read(text, from_value=from_value, depth=self._depth + 1)

    def _source(self, words: Sequence[_Piece]) -> None:
        if len(words) < 2:
            self._add(words, doubt=Doubt.STRUCTURE)
        else:
            self._script(words, words[1])


def _leads_out(word: Word, filled: Sequence[str]) -> bool:
    """Whether values of items make a relative path absolute, or add `..` to one."""
    values = iter(word.values)
    plain = (
        "x" if part == VALUE and next(values).is_item else text
        for part, text in zip(word.parts, filled, strict=True)
    )
    written, named = "".join(filled), "".join(plain)
    is_moved = written.startswith("/") and not named.startswith("/")
    return is_moved or written.split("/").count("..") > named.split("/").count("..")


def _named_by_values(words: Sequence[_Piece]) -> tuple[str, ...]:
    """Words that are the program where all before them turn out to be empty."""
    behind = next((word for word in words if word.text != ANYTHING), None)
    return (behind.text,) if behind is not None and behind.has_value else ()


def _with_unknown_words(words: Sequence[_Piece], options: Sequence[_Piece]) -> list[_Piece]:
    """What xargs runs: the words of its input come last or, with -I, wherever its mark stands."""
    if any(option.text.startswith(("-I", "-i", "--replace")) for option in options):
        return [words[0], *(word if word.text.startswith("-") else _Piece(ANYTHING) for word in words[1:])]
    return [*words, _Piece(ANYTHING)]
