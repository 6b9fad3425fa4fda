"""Second readings: the arguments of a command that something reads as program text, not as a word.

A value of an item may hold anything. `bash -c "echo {ITEM.name}"` would run what the name says, however well the outer
shell quotes it. Each rule names such an argument, and the message says how to write it instead. Errs on the safe
side: a harmless word that looks like one of these is refused, too.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from watchbill.limits import STARTED_WORDS_MAX
from watchbill.plans.placeholders import Placeholder

__all__ = [
    "ASSIGNMENT", "EXPANSION", "INTERPRETERS", "SHELLS", "STARTED_WORDS_MAX", "STARTERS", "VALUE", "Refused", "Use",
    "Word", "is_python", "second_reading", "unversioned",
]  # fmt: skip

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


class _Code(NamedTuple):
    """Programs that take program text behind a flag."""

    letters: str  # short options that announce it, alone or in a cluster
    long: tuple[str, ...]
    hint: str
    is_script_first: bool = True  # the first word that is no option is a script file, and ends the options


_SHELL = _Code("c", ("--command",), "write {SHELL} -c '... \"$1\" ...' _ {PLACE}")
_PYTHON = _Code("c", (), "write {SHELL} -c 'import sys; ... sys.argv[1] ...' {PLACE}")
_EVALUATES = _Code(
    "eEpr", ("--eval", "--print", "--run"), "give the value as an argument behind the program text"
)
_SU = _Code(
    "c", ("--command", "--session-command"), 'export value={PLACE}; su -m ... and use "$value" there', False
)

_CODE_TAKERS: dict[str, _Code] = {
    **dict.fromkeys(
        ("bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "rbash", "fish", "csh", "tcsh"), _SHELL
    ),
    **dict.fromkeys(("python", "pypy"), _PYTHON),
    **dict.fromkeys(
        ("perl", "ruby", "node", "nodejs", "bun", "php", "lua", "luajit", "Rscript", "julia"), _EVALUATES
    ),
    **dict.fromkeys(
        ("R", "octave"), _EVALUATES._replace(letters="e")
    ),  # they read their input in ways of their own
    **dict.fromkeys(("su", "runuser"), _SU),
    **dict.fromkeys(
        ("script", "flock"),
        _SU._replace(letters="c", hint="put the command into a script and give it the value"),
    ),
}
SHELLS = frozenset(name for name, code in _CODE_TAKERS.items() if code is _SHELL)
INTERPRETERS = frozenset(name for name, code in _CODE_TAKERS.items() if code is _EVALUATES)
_VERSION = re.compile(r"-?\d[\d.]*$")  # php8.2, python3, perl5.36.0, bash-5.2
#: Short options of shells and interpreters that are followed by a value of their own.
_TAKES_VALUE = {
    "-o",
    "-O",
    "+o",
    "+O",
    "--rcfile",
    "--init-file",
    "-W",
    "-X",
    "-I",
    "-M",
    "-m",
    "-u",
    "--user",
    "-s",
}

#: Programs all of whose arguments are read again.
_READS_ALL = {
    "eval": "leave out eval: the value is one word already",
    "ssh": "send it as data: printf '%s' {PLACE} | ssh HOST 'value=$(cat); ...'",
    "xargs": "leave out xargs: {PLACE} is one word already",
    "parallel": "leave out parallel: each item is a task of its own",
    "watch": "put the command into a script and give it the value",
    "tmux": "put the command into a script and give it the value",
    "gdb": "put the commands into a file, and read the value there from the environment",
    "trap": 'write value={PLACE}; and use "$value" in single quotes behind trap',
    "let": "write n={PLACE}; [[ $n =~ ^[0-9]+$ ]] || exit 1; and then calculate with n",
    "unset": "name the variable yourself",
    "read": "name the variable yourself",
    "mapfile": "name the variable yourself",
    "readarray": "name the variable yourself",
}
#: Programs that start another one; what they start may stand anywhere behind them.
STARTERS = frozenset(
    [
        "sudo",
        "doas",
        "env",
        "nohup",
        "nice",
        "timeout",
        "time",
        "exec",
        "command",
        "builtin",
        "stdbuf",
        "setsid",
        "ionice",
        "taskset",
        "chrt",
        "flock",
        "strace",
        "find",
        "systemd-run",
        "docker",
        "podman",
        "kubectl",
        "srun",
        "mpirun",
        "apptainer",
        "singularity",
        "nsenter",
        "unshare",
        "chroot",
        "xvfb-run",
        "firejail",
        "bwrap",
        "xargs",
        "busybox",
    ]
)
_RESERVED = frozenset({"{", "}", "!", "if", "then", "else", "elif", "do", "while", "until", "time", "coproc"})
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\+?=", re.DOTALL)
_INDEXED = re.compile(r"[A-Za-z_]\w*\[")
_AWKS, _SEDS = frozenset({"awk", "gawk", "mawk", "nawk"}), frozenset({"sed", "gsed"})
_DECLARES = frozenset({"declare", "typeset", "local", "readonly", "export"})
_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})

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
    # A program that a variable names may start another one: $SUDO, $RUNNER.
    is_starter = command[0].program in STARTERS or EXPANSION in command[0].text
    if is_starter and len(command) > STARTED_WORDS_MAX:
        yield from _refuse(command, f"stands among more than {STARTED_WORDS_MAX:,} words behind {command[0].program}",
                           "put the command into a script and give it the value")  # fmt: skip
        return
    for at, word in enumerate(command):
        if at == 0 or is_starter:
            yield from _argument_rules(command, at, carried)
        if (code := _code_taker(word.program)) is not None:
            yield from _behind_flag(command, at, code, carried)


def _argument_rules(command: Sequence[Word], at: int, carried: Sequence[Use]) -> Iterator[Refused]:
    """Rules about programs by name alone, which hold where the word is the program."""
    program, rest = command[at].program, command[at + 1 :]
    if program in _READS_ALL:
        yield from _refuse(rest, f"is read again by {program}", _READS_ALL[program])
        if program in ("eval", "ssh", "watch"):
            texts = rest if program != "ssh" else [word for word in rest if " " in word.text]
            yield from _refuse_carried(texts, carried, f"is read again by {program}", _READS_ALL[program])
    elif program == "env":
        yield from _split_string(rest)
    elif program in _AWKS:
        yield from _refuse(_program_text(rest, "vF", "f", ""), f"is program text of {program}",
                           f"write {program} -v name={{PLACE}} and use name in the program")  # fmt: skip
    elif program in _SEDS:
        yield from _refuse(_program_text(rest, "", "f", "e"), "is program text of sed, which can run commands",
                           "do it in a script that gets {PLACE} as an argument")  # fmt: skip
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


def _code_taker(program: str) -> _Code | None:
    return _CODE_TAKERS.get(unversioned(program))


def unversioned(program: str) -> str:
    """The name of a shell or an interpreter without its version; any other name as it is."""
    name = _VERSION.sub("", program)
    return name if name in _CODE_TAKERS else program


def is_python(program: str) -> bool:
    """Whether a program is a Python, of whatever version."""
    return _code_taker(program) is _PYTHON


def _behind_flag(command: Sequence[Word], at: int, code: _Code, carried: Sequence[Use]) -> Iterator[Refused]:
    """The word that follows `-c` and the like: for shells the first that is no option, for others the next."""
    program = command[at].program
    hint = code.hint.replace("{SHELL}", program)
    why = f"is program text of {program}"
    announced = False
    place = at + 1
    while place < len(command):
        text = command[place].text
        is_option = text[:1] in ("-", "+") and text not in ("-", "--")
        if text == "--" or (code is _PYTHON and text == "-m"):
            # What follows is no option any more; behind `python -m` it is arguments of the module.
            place += 1
            if text == "-m" or not announced:
                return
            continue
        if not is_option and (announced or code.is_script_first):
            # Program text, else a script file. What follows are its arguments.
            yield from _refuse([command[place]] if announced else [], why, hint)
            yield from _refuse_carried([command[place]] if announced else [], carried, why, hint)
            if not command[place].may_vanish:
                return
        if any(text.startswith(flag + "=") for flag in code.long):
            yield from _refuse([command[place]], why, hint)
        elif is_option and (text in code.long or _in_cluster(text, code.letters)):
            announced = code is _SHELL
            if not announced:
                yield from _refuse(command[place : place + 2], why, hint)
                yield from _refuse_carried(command[place : place + 2], carried, why, hint)
                place += 1
        elif text in _TAKES_VALUE:
            place += 1
        place += 1


def _in_cluster(text: str, letters: str) -> bool:
    return text[0] == "-" and text[1:2] != "-" and any(letter in text[1:] for letter in letters)


def _split_string(rest: Sequence[Word]) -> Iterator[Refused]:
    for place, word in enumerate(rest):
        if re.match(r"-[A-Za-z0]*S|--split-string", word.text):
            yield from _refuse(
                rest[place : place + 2], "is split into words by env -S", "write the words without -S"
            )


def _program_text(rest: Sequence[Word], takes: str, file: str, script: str) -> list[Word]:
    """The words of awk or sed that are a program."""
    texts: list[Word] = []
    place, has_program = 0, False
    while place < len(rest):
        text = rest[place].text
        if text[:1] != "-" or text in ("-", "--"):
            if not has_program:
                texts.append(rest[place])
            if not rest[place].may_vanish:
                break
            place += 1
            continue
        letter = text[1:2]
        if letter == "-":
            has_program = has_program or text.startswith(("--file", "--expression"))
            texts += [rest[place]] if text.startswith("--expression") else []
        elif text[-1] in script or letter in (file, script):
            has_program = True
            texts += rest[place : place + 2] if text[-1] in script or letter == script else []
            place += len(text) == 2 or text[-1] in script
        elif letter in takes:
            place += len(text) == 2
        place += 1
    return texts


def _refuse_carried(words: Sequence[Word], carried: Sequence[Use], why: str, hint: str) -> Iterator[Refused]:
    """Program text with an expansion in it, while variables may hold values."""
    if any(EXPANSION in word.text for word in words):
        yield from ((offset, place, why, hint) for offset, place in carried)


def _refuse(words: Sequence[Word], why: str, hint: str) -> Iterator[Refused]:
    return ((offset, place, why, hint) for word in words for offset, place in word.places if place.is_item)
