"""Second readings: the arguments of a command that something reads as program text, not as a word.

A value of an item may hold anything. `bash -c "echo {ITEM.name}"` would run what the name says, however well the outer
shell quotes it. Each rule names such an argument, and the message says how to write it instead. Errs on the safe
side: a harmless word that looks like one of these is refused, too.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from watchbill.plans.limits import STARTED_WORDS_MAX
from watchbill.plans.placeholders import Placeholder
from watchbill.plans.programs import Kind, Program, code_in, program_named

__all__ = [
    "ASSIGNMENT",
    "EXPANSION",
    "VALUE",
    "Refused",
    "Use",
    "Word",
    "is_starter",
    "second_reading",
    "split_paths",
]

#: Stand in a word's text for what is not literal: a value, and anything else that bash expands.
VALUE, EXPANSION = "\0", "\1"

Use = tuple[int, Placeholder]


@dataclass(slots=True)
class Word:
    """One word of a command without its quotes, and the values in it."""

    parts: list[str] = field(default_factory=list[str])
    places: list[Use] = field(default_factory=list[Use])
    values: list[Placeholder] = field(default_factory=list[Placeholder])  # one for each VALUE of the text
    redirect: str = ""  # the operator that this word is the target of
    is_process: bool = False  # <( ... ): a file with what a process says
    feeds: str = ""  # >( ... ): the interpreter that reads what is written there

    @property
    def text(self) -> str:
        """The word as the program gets it, as far as it is literal."""
        return "".join(self.parts)

    @property
    def is_plain(self) -> bool:
        """Whether no part of it is quoted: only then a word may be a reserved one."""
        return "" not in self.parts

    @property
    def may_vanish(self) -> bool:
        """Whether it is nothing but expansions without quotes: an empty one leaves no word at all."""
        return all(part == EXPANSION for part in self.parts)

    @property
    def program(self) -> str:
        """The word as the name of a program: /bin/bash is bash, and so is $EMPTY"bash"."""
        return self.text.rpartition("/")[2].rpartition(EXPANSION)[2]


_RESERVED = frozenset({"{", "}", "!", "if", "then", "else", "elif", "do", "while", "until", "time", "coproc"})
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\+?=", re.DOTALL)
_INDEXED = re.compile(r"[A-Za-z_]\w*\[")
_DECLARES = frozenset({"declare", "typeset", "local", "readonly", "export"})
_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})

#: Built-ins that are paths of whoever has the shared folder.
_PATHS = frozenset({"BATCH_PATH", "PLAN_PATH", "TASK_PATH", "ROOT"})

Refused = tuple[int, Placeholder, str, str]


def second_reading(words: Sequence[Word], carried: Sequence[Use]) -> Iterator[Refused]:
    """Every value of an item that a command would read again: where it stands, why, and what to write instead.

    `carried` are values that the expansions in its words may hold.
    """
    if not carried and not any(place.is_item for word in words for _, place in word.places):
        return
    yield from _subscripts(words)
    targets = [word for word in words if word.redirect in (">&", "<&")]
    yield from _refuse(targets, "is the target of >&, which bash expands twice", "write > {PLACE} 2>&1")
    command = _without_prefix([word for word in words if not word.redirect])
    if not command:
        return
    starts_another = is_starter(command[0])
    if starts_another and len(command) > STARTED_WORDS_MAX:
        yield from _refuse(command, f"stands among more than {STARTED_WORDS_MAX:,} words behind {command[0].program}",
                           "put the command into a script and give it the value")  # fmt: skip
        return
    for at, word in enumerate(command):
        program = program_named(word.program)
        is_program = at == 0 or starts_another
        if is_program:
            yield from _argument_rules(command, at, carried)
        if is_program or program.is_interpreter or program.wraps is not None or program.input is not None:
            yield from _program_text(program, command[at:], carried)


def split_paths(words: Sequence[Word]) -> Iterator[Refused]:
    """Every path of a built-in that a shell reads again without quotes of its own: a blank in it makes it several
    words, and what is behind `>` is written elsewhere."""
    if not any(place.name in _PATHS for word in words for _, place in word.places):
        return
    command = _without_prefix([word for word in words if not word.redirect])
    for at, word in enumerate(command[:STARTED_WORDS_MAX]):
        program, rest = program_named(word.program), command[at + 1 :]
        if word.program in ("eval", "trap") and program.again is not None and at == 0:
            texts, hint = rest if word.program == "eval" else rest[:1], program.again.hint
        elif program.kind is Kind.SHELL and program.code is not None:
            texts = [rest[place] for place in code_in(program, [each.text for each in rest])]
            hint = program.code.hint.replace("{SHELL}", word.program)
        else:
            continue
        for text in texts:
            for (offset, place), is_bare in zip(text.places, _bare_values(text.text), strict=False):
                if is_bare and place.name in _PATHS:
                    why = f"is read again by {word.program}, where a path with blanks is several words"
                    yield offset, place, why, hint


def _bare_values(text: str) -> Iterator[bool]:
    """Of each value in program text of a shell, whether it stands outside quotes there."""
    quote, at = "", 0
    while at < len(text):
        if text[at] == "\\" and quote != "'":
            at += 1
        elif text[at] == quote:
            quote = ""
        elif not quote and text[at] in "'\"":
            quote = text[at]
        elif text[at] == VALUE:
            yield not quote
        at += 1


def is_starter(word: Word) -> bool:
    """Whether a program starts the one that its own words name. One that a variable names may: $SUDO, $RUNNER."""
    return program_named(word.program).wraps is not None or EXPANSION in word.text


def _argument_rules(command: Sequence[Word], at: int, carried: Sequence[Use]) -> Iterator[Refused]:
    """Rules about programs by name alone, which hold where the word is the program."""
    program, rest = command[at].program, command[at + 1 :]
    if (again := program_named(program).again) is not None:
        why = f"is read again by {program}"
        yield from _refuse(rest, why, again.hint)
        if again.reads_variables:
            texts = rest if program != "ssh" else [word for word in rest if " " in word.text]
            yield from _refuse_carried(texts, carried, why, again.hint)
    elif program == "[[" and any(word.text in _COMPARES for word in rest):
        yield from _refuse(rest, "is calculated by [[ ... ]], which would run commands that the value holds",
                           "write [ ... ] with single brackets")  # fmt: skip
    elif program in ("[", "test", "printf"):
        marked = [rest[place + 1] for place, word in enumerate(rest[:-1]) if word.text in ("-v", "-R")]
        yield from _refuse(
            marked, f"is taken as the name of a variable by {program} -v", "name the variable yourself"
        )
    elif program in _DECLARES and any(re.match(r"-[A-Za-z]*[aAin]", word.text) for word in rest):
        yield from _refuse(rest, f"is read again by {program} with -a, -A, -i or -n", "write name={PLACE}")


def _without_prefix(words: list[Word]) -> list[Word]:
    """The command without reserved words and assignments before it."""
    at = 0
    while at < len(words) and (words[at].text in _RESERVED or ASSIGNMENT.match(words[at].text)):
        at += 1
    return words[at:]


def _subscripts(words: Sequence[Word]) -> Iterator[Refused]:
    """`a[{ITEM.x}]=1` calculates the value. The brackets may hold blanks, and so reach over several words."""
    command = _without_prefix([word for word in words if not word.redirect])
    declares = bool(command) and command[0].program in _DECLARES
    names = len(words) if declares else len(words) - len(command) + 1
    for at, word in enumerate(words[:names]):
        match = _INDEXED.match(word.text)
        if match is None:
            continue
        end = at
        while end < len(words) - 1 and "]" not in words[end].text[match.end() if end == at else 0 :]:
            end += 1
        yield from _refuse(words[at : end + 1], "is the index of an array, which runs commands that the value holds",
                           "write n={PLACE}; [[ $n =~ ^[0-9]+$ ]] || exit 1; and use n")  # fmt: skip


def _program_text(program: Program, command: Sequence[Word], carried: Sequence[Use]) -> Iterator[Refused]:
    """The values in words that the program runs as text: `bash -c`, `tar --to-command`, the first operand of awk."""
    name, rest = command[0].program, command[1:]
    vanishing = {place for place, word in enumerate(rest) if word.may_vanish}
    words = [rest[place] for place in code_in(program, [word.text for word in rest], vanishing)]
    if not words:
        return
    spoken = program.text or program.code
    hint = "" if spoken is None else spoken.hint.replace("{SHELL}", name)
    why = "is program text of {SHELL}" if program.text is None else program.text.why
    yield from _refuse(words, why.replace("{SHELL}", name), hint)
    if program.text is None:
        yield from _refuse_carried(words, carried, why.replace("{SHELL}", name), hint)


def _refuse_carried(words: Sequence[Word], carried: Sequence[Use], why: str, hint: str) -> Iterator[Refused]:
    """Program text with an expansion in it, while variables may hold values."""
    if any(EXPANSION in word.text for word in words):
        yield from ((offset, place, why, hint) for offset, place in carried)


def _refuse(words: Sequence[Word], why: str, hint: str) -> Iterator[Refused]:
    return ((offset, place, why, hint) for word in words for offset, place in word.places if place.is_item)
