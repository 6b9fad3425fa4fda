"""The process engine: any command that opens a port and has a health address.

The command line is split into words once, the way a shell would, and placeholders are then filled in word
by word: no shell ever sees it, and what a placeholder holds stays one word whatever is in it.

    ${PORT}     where it shall listen, also in its environment      ${MODEL}    the model's name
    ${SOURCE}   the model's source                                  ${PID}      its process, in `stop` only
    ${KEY}      a new random key, in `env` only: what Watchbill then sends with every request

Lines as llama-swap's `cmd` has them, over several lines and with a backslash at their end, are understood.
"""

import re
import secrets
import shlex
import shutil
import signal
from collections.abc import Mapping

from watchbill.catalog import Model
from watchbill.engines.base import Capabilities
from watchbill.engines.owned import Diagnosis, Launch
from watchbill.engines.sleep import TOLD
from watchbill.errors import ConfigError
from watchbill.processes import Keeper
from watchbill.quoting import quoted

__all__ = ["ProcessRecipe", "check_command", "missing_program", "split_command"]

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
KNOWN = ("PORT", "SOURCE", "MODEL", "MODEL_ID")
KEY_BYTES = 16


class ProcessRecipe:
    """How a command of the config becomes a process."""

    # It is not known what a foreign program does when a client leaves.
    capabilities = Capabilities(owned=True, measures_memory=True, stops_generation=False, sleeps="told")
    sleep = TOLD

    def probe_for(self, model: Model) -> str:
        """Health is all that every program has."""
        return "http"

    async def launch(self, model: Model, port: int, keeper: Keeper) -> Launch:
        """The command with everything filled in. Raises ConfigError when it cannot be."""
        check_command(model)
        values = _values(model, port)
        argv = tuple(fill(word, values) for word in split_command(model.command or ""))
        number = signal_number(model.stop)
        stop_argv = () if number else tuple(fill(word, values, "PID") for word in split_command(model.stop))
        key = secrets.token_hex(KEY_BYTES) if any("${KEY}" in text for text in model.env.values()) else ""
        keyed = values | {"KEY": key}
        env = {"PORT": str(port)} | {name: fill(text, keyed) for name, text in model.env.items()}
        number = number or signal.SIGTERM
        return Launch(
            argv, env=env, stop_signal=number, stop_argv=stop_argv, key=key, if_silent=_to_look_at(model)
        )

    def diagnose(self, lines: list[str]) -> Diagnosis | None:
        """Nothing is known about a foreign program's log."""
        return None


def check_command(model: Model) -> None:
    """Raises ConfigError when the model's command, environment or stop command cannot be used."""
    values = _values(model, 1)
    words = split_command(model.command or "")
    if not words:
        raise ConfigError("an engine of the driver `process` needs a `command`, with ${PORT} in it")
    for word in words:
        fill(word, values)
    for text in model.env.values():
        fill(text, values | {"KEY": ""})
    if signal_number(model.stop) is None:
        for word in split_command(model.stop):
            fill(word, values, "PID")


def missing_program(model: Model) -> tuple[str, str] | None:
    """Why the model's command can never start on this machine and what to do, or None. Looks at the PATH."""
    try:
        check_command(model)
        program = split_command(model.command or "")[0]
    except ConfigError as error:
        return error.what, error.hint
    if "$" not in program and shutil.which(program) is None:
        return f"there is no program {program}", "install it or correct the command"
    return None


def split_command(text: str) -> list[str]:
    """The words of a command line. Raises ConfigError for a quote that is not closed."""
    try:
        return shlex.split(re.sub(r"\\\r?\n", " ", text), comments=False)
    except ValueError as error:
        raise ConfigError(f"command {quoted(text)}: {error}") from error


def fill(word: str, values: Mapping[str, str], *later: str) -> str:
    """The word with its placeholders filled in; those in `later` are left for later. What is filled in is not
    looked at again. Raises ConfigError for an unknown placeholder."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1]
        if name in later:
            return found[0]
        if name not in values:
            known = ", ".join(f"${{{known}}}" for known in (*KNOWN, *later))
            raise ConfigError(f"unknown placeholder ${{{name}}} in {quoted(word)}", hint=f"known are {known}")
        return values[name]

    return _PLACEHOLDER.sub(value_of, word)


def signal_number(text: str) -> int | None:
    """The signal that `stop` names, as SIGTERM or TERM; None when it is a command."""
    name = text.strip().upper()
    names = signal.Signals.__members__
    found = names.get(name) or names.get(f"SIG{name}")
    return None if found is None else int(found)


def _to_look_at(model: Model) -> str:
    """What to look at when the program runs and nothing answers on its port."""
    if any("${PORT}" in text for text in (model.command or "", *model.env.values())):
        return "it was started: does it listen on 127.0.0.1, or does it take longer than load_timeout?"
    return "it was started, but its command has no ${PORT}: write it where the program takes its port"


def _values(model: Model, port: int) -> dict[str, str]:
    values = {"PORT": str(port), "MODEL": model.name, "MODEL_ID": model.name}
    return values if model.source is None else values | {"SOURCE": model.source}
