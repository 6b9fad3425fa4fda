"""The command: a bash script with parameters, and the arguments that run it with their values.

A value is never text of the script. Values are given to bash as arguments; the script's first words put them into
variables, and each placeholder becomes such a variable, written for the quotes around it. So the program gets exactly
the value as one word, whatever it holds:

    unquoted            {ITEM.x}      ->  "${watchbill_1}"
    in double quotes    "a {ITEM.x}"  ->  "a ${watchbill_1}"
    in single quotes    'a {ITEM.x}'  ->  'a '"${watchbill_1}"''

Why not "$1" itself: inside a function it is the function's, `shift` and `set --` change it, and a file that is
sourced would take the values for its own arguments. `bash_reader` makes a command of an author's text.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchbill.errors import OursError
from watchbill.plans import limits
from watchbill.plans.findings import shown
from watchbill.plans.placeholders import Placeholder

__all__ = ["Command", "Refusal", "argv_of", "argv_of_batch", "binding", "shown_command"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A place that cannot take a placeholder: where in the text, why, and how to write it instead."""

    offset: int
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class Command:
    """A script, and the placeholders whose values are its parameters, in order."""

    script: str
    parameters: tuple[Placeholder, ...] = ()
    offsets: tuple[int, ...] = ()  # where each parameter is first used in the author's text
    refusals: tuple[Refusal, ...] = ()
    #: Places that take one, where a path with blanks is several words.
    doubts: tuple[Refusal, ...] = ()
    #: What looks like a placeholder where bash fills in nothing: text, unless an input has that name; with offsets.
    left_alone: tuple[tuple[int, Placeholder], ...] = ()


#: bash reads neither the user's profile nor its aliases: a command does the same on every machine.
_BASH = ("bash", "--noprofile", "--norc", "-c")

#: A script ends at its first command that fails, also in the middle of a pipe, as Make, Snakemake and CI do it: with
#: bash's own rule a task would be complete whose last line succeeds on the ruins of the first. `|| true` goes on.
_STOPS = "set -eo pipefail; "

#: Runs the script once per item. Each item has a subshell of its own, so that `exit`, `cd` and `set` end with it.
#: Not `( ... ) || exit`: there bash would ignore `set -e`.
#: The script begins on the first line, so that bash counts its lines right.
_ONCE_PER_ITEM = """watchbill_done=$1 watchbill_count=$2 watchbill_width=$3; shift 3; \
while [ "$watchbill_count" -gt 0 ]; do ( set -- "${@:1:$watchbill_width}"; {SCRIPT}
)
watchbill_status=$?
[ "$watchbill_status" -eq 0 ] || exit "$watchbill_status"
echo >> "$watchbill_done" || exit
shift "$watchbill_width"
watchbill_count=$((watchbill_count - 1))
done
"""


def argv_of(command: Command, value_of: Callable[[Placeholder], str]) -> list[str]:
    """The program and its arguments that run a command with these values. Raises OursError for a value that cannot be
    an argument."""
    values = [_argument(place, value_of(place)) for place in command.parameters]
    return _bounded([*_BASH, _STOPS + command.script, "watchbill", *values])


def shown_command(command: Command, value_of: Callable[[Placeholder], str]) -> str:
    """The author's command with its values, each quoted for its place: for people. What is run is `argv_of`."""
    values = [value_of(place) for place in command.parameters]
    body = command.script.removeprefix(binding(len(values)))

    def put(match: re.Match[str]) -> str:
        value = values[int(match[1] or match[2]) - 1]
        return shlex.quote(value) if match[1] else re.sub(r'([\\"$`])', r"\\\1", value)

    return _FILLED.sub(put, body)


#: A parameter by itself, and one inside double quotes.
_FILLED = re.compile(r'"\$\{watchbill_(\d+)\}"|\$\{watchbill_(\d+)\}')


def argv_of_batch(
    command: Command, rows: Sequence[Callable[[Placeholder], str]], done_path: str
) -> list[str]:
    """The same for several items in one process: the script runs once per item, until one fails.

    A line is added to the file `done_path` after each item, so that a retry can go on behind them.
    """
    values = [_argument(place, value_of(place)) for value_of in rows for place in command.parameters]
    script = _ONCE_PER_ITEM.replace("{SCRIPT}", _STOPS + command.script)
    figures = (done_path, str(len(rows)), str(len(command.parameters)))
    return _bounded([*_BASH, script, "watchbill", *figures, *values])


def binding(count: int) -> str:
    """The start of a script: its arguments become variables. On the first line, so that bash counts lines right."""
    assignments = "".join(f"watchbill_{number}=${{{number}}} " for number in range(1, count + 1))
    return f"{assignments}; set --; " if count else ""


def _argument(place: Placeholder, value: str) -> str:
    if "\0" in value:
        raise OursError(
            f"the value of {place} holds a NUL character, which no program can be given; remove it"
        )
    try:
        # File names that are not UTF-8 come as lone surrogates and go back to their bytes.
        size = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise OursError(f"the value of {place} is not valid Unicode: {shown(ascii(value))}") from None
    if size > limits.PLAN_VALUE_BYTES_MAX:
        raise OursError(
            f"the value of {place} has {size:,} bytes, and Linux takes {limits.PLAN_VALUE_BYTES_MAX:,} as an argument; "
            "put it into a file and give its path"
        )
    return value


def _bounded(argv: list[str]) -> list[str]:
    size = sum(len(each.encode("utf-8", "surrogateescape")) + 1 for each in argv)
    if size > limits.PLAN_ARGUMENTS_BYTES_MAX:
        raise OursError(
            f"the command with its values has {size:,} bytes, and {limits.PLAN_ARGUMENTS_BYTES_MAX:,} is the limit; "
            "use a smaller batch_size, or put values into files"
        )
    return argv
