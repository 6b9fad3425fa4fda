"""The commands: their modules, and the groups under which `watchbill --help` lists them.

A command's module is imported when the command runs, or when its help is asked for. Mistakes in the arguments
become one line and exit code 2; the framework itself prints nothing but help and the version.
"""

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import cast

from cyclopts import App, CycloptsError, Group, UnusedCliTokensError

from watchbill import __version__
from watchbill.errors import OursError
from watchbill.interrupts import raise_again
from watchbill.quoting import quoted
from watchbill.suggest import nearest

__all__ = ["COMMANDS", "WrongUse", "build_app", "run_app"]

#: Group -> command -> where it lives, and its first sentence. The order is the order of `watchbill --help`, which
#: is printed from this table alone: importing every command for it would take a second.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Daemon": {
        "up": ("watchbill.cli.up:up", "Start the daemon and stay until Ctrl-C."),
        "down": ("watchbill.cli.up:down", "Stop the daemon of this root."),
        "status": ("watchbill.cli.queries:status", "Show memory, models and lanes."),
        "watch": (
            "watchbill.cli.watch:watch",
            "Show models, memory, requests, alerts and the journal live, and act on them with single keys.",
        ),
        "events": ("watchbill.cli.queries:events", "Follow the journal as it is written."),
        "logs": ("watchbill.cli.logs:logs", "Show the log of the daemon, or of the engine behind a model."),
        "doctor": ("watchbill.cli.doctor:doctor", "Check everything Watchbill depends on."),
    },
    "Models": {
        "chat": ("watchbill.cli.chat:chat", "Ask a model; the answer is printed as it arrives."),
        "run": ("watchbill.cli.shelf:run", "Talk to a model, or ask it one question."),
        "list": (
            "watchbill.cli.shelf:list_models",
            "List every model that can be run, its size, and where it is from.",
        ),
        "ps": ("watchbill.cli.shelf:ps", "List the models in memory, where they are, and until when."),
        "show": (
            "watchbill.cli.shelf:show",
            "Show what a model is: its family, size, context, abilities and parameters.",
        ),
        "models": ("watchbill.cli.queries:models", "List the models that can be asked for."),
        "load": ("watchbill.cli.actions:load", "Load a model now and wait until it is warm."),
        "evict": ("watchbill.cli.actions:evict", "Take a model out of memory."),
        "pin": ("watchbill.cli.actions:pin", "Keep a model in memory until the daemon ends, or let it go."),
        "stop": ("watchbill.cli.shelf:stop", "Take a model out of memory; its file stays."),
        "pull": ("watchbill.cli.pull:pull", "Fetch a model into ROOT/models."),
        "cp": ("watchbill.cli.shelf:copy", "Give a model another name; its file is not copied."),
        "rm": (
            "watchbill.cli.shelf:remove",
            "Delete models: their names, and their files where no other name needs them.",
        ),
        "maintenance": (
            "watchbill.cli.maintenance:app",
            "Lend memory of a device, all or some, to a person or a command.",
        ),
    },
    "Requests": {
        "requests": ("watchbill.cli.queries:requests", "List the open requests."),
        "explain": ("watchbill.cli.queries:explain", "Say what a model or a request waits for, and why."),
        "cancel": ("watchbill.cli.actions:cancel", "Cancel a request, whether it waits or runs."),
        "batch": ("watchbill.cli.batch:app", "Have a file of requests answered in idle time."),
    },
    "Planning": {
        "plan": ("watchbill.cli.plan:app", "Check, draw, submit and follow plans."),
        "approve": (
            "watchbill.cli.approve:approve",
            "List the tasks of plans that wait for a person, or let some of them run.",
        ),
        "coordinator": ("watchbill.cli.coordinator:coordinator", "Run the batches of a shared folder."),
        "door": ("watchbill.cli.door:door", "Let agents without the shared folder reach it over NATS."),
        "agent": ("watchbill.cli.agent:agent", "Run an agent that works on the tasks of plans."),
        "gpus": ("watchbill.cli.gpus:gpus", "Show the agents of a shared folder and their cards."),
        "signal": ("watchbill.cli.agent:signal", "Tell an agent to stop, to pause, or to end a task."),
        "simulate": (
            "watchbill.cli.simulate:simulate",
            "Run traffic against the scheduler in virtual time, and check every step.",
        ),
    },
    "Spool": {
        "spool": (
            "watchbill.cli.spool:app",
            "Put events into a durable queue, look at it, drain it.",
        ),
        "corpus": (
            "watchbill.cli.corpus:app",
            "Read, check and repair the JSONL files that spools are drained into.",
        ),
    },
    "Set-up": {
        "config": ("watchbill.cli.config:app", "Write, check and show the config file."),
        "systemd": ("watchbill.cli.systemd:app", "Write unit files for models and for Watchbill itself."),
        "reactor": (
            "watchbill.cli.systemd:reactor",
            "Start and stop units of the host for the daemon of this root.",
        ),
        "completion": (
            "watchbill.cli.completion:completion",
            "Print the completion script of a shell, or install it.",
        ),
    },
}

#: Words of other programs that mean a command here.
SPOKEN = {"ls": "list", "serve": "up", "help": "--help", "version": "--version"}
#: Options of `run` that mean this where they stand alone.
OPEN_OPTIONS = {"--think": "--think=true"}
#: Words of other programs, and what to do instead.
ELSEWHERE = {
    "create": "write [models.NAME] into watchbill.toml, or let a client of Ollama call POST /api/create",
    "push": "Watchbill uploads no models",
    "signin": "Watchbill has no accounts; keys of callers are in [server] keys",
    "signout": "Watchbill has no accounts; keys of callers are in [server] keys",
    "import": "write: watchbill config import llama-swap FILE, or watchbill config import ollama",
    "init": "write: watchbill config init",
    "check": "write: watchbill config check",
    "start": "write: watchbill up, or watchbill load MODEL",
    "unload": "write: watchbill stop MODEL",
    "top": "write: watchbill watch",
    "restart": "write: watchbill down, then watchbill up",
    "reload": "write: watchbill config reload",
}

_HELP = """Runs more local language models than fit into memory. Start with: watchbill up

Exit codes: 0 done, 1 failed, 2 wrong use or config, 3 no daemon, 130 stopped with Ctrl-C. NO_COLOR turns colours off.
"""


def build_app(asked: str = "") -> App:
    """The whole command line, without importing any command. `asked` is the command that will be run."""
    app = App(
        name="watchbill",
        help=_HELP,
        help_format="markdown",
        version=f"watchbill {__version__}",
        version_flags=["--version", "-v", "-V"],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for place, (title, commands) in enumerate(COMMANDS.items()):
        group = Group(title, sort_key=place)
        for order, (name, (path, summary)) in enumerate(commands.items()):
            # A summary given here would hide the command's own docstring from `watchbill COMMAND --help`.
            told = None if name == asked else summary
            app.command(path, name=name, help=told, group=group, sort_key=order)
    options = Group("Options", sort_key=len(COMMANDS))
    for flag in ("--help", "--version"):
        app[flag].group = (options,)
    return app


def run_app(arguments: Sequence[str]) -> int:
    """Runs the command that the arguments name, and returns its exit code."""
    _refuse_empty(arguments)
    if arguments and arguments[0] in SPOKEN:
        arguments = [SPOKEN[arguments[0]], *arguments[1:]]
    if arguments and arguments[0] == "run":
        arguments = _with_values(arguments)
    _refuse_unknown(arguments)
    app = build_app(arguments[0] if arguments else "")
    try:
        command, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise WrongUse(_one_line(error)) from error
    raise_again()  # until here nothing had to be cleaned up
    outcome = cast("object", command(*bound.args, **bound.kwargs))
    return outcome if isinstance(outcome, int) else 0


def _with_values(arguments: Sequence[str]) -> list[str]:
    """The arguments with the value of options that have one behind `=` only: the word behind them is the question."""
    before = len(list(takewhile(lambda word: word != "--", arguments)))
    return [OPEN_OPTIONS.get(word, word) if place < before else word for place, word in enumerate(arguments)]


class WrongUse(OursError):
    """The command was used in a way it does not understand."""


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuses an empty root or address: it is a variable that a script did not set, and never means the present folder
    or whichever daemon is found."""
    for before, word in pairwise(["", *takewhile(lambda word: word != "--", arguments)]):
        if word in {"--root=", "--url="} or (before in {"--root", "--url"} and not word):
            name = word.rstrip("=") or before
            raise WrongUse(f"{name} is empty; name one, or leave the option out")


def _refuse_unknown(arguments: Sequence[str]) -> None:
    """Refuses a word that is no command, and says which one was meant."""
    known = [name for commands in COMMANDS.values() for name in commands]
    word = arguments[0] if arguments else ""
    if not word or word in known or word.startswith("-"):
        return
    meant = ELSEWHERE.get(word) or (f"did you mean {near}?" if (near := nearest(word, known)) else "")
    raise WrongUse(
        f"there is no command {quoted(word)}{f'; {meant}' if meant else ''}; see: watchbill --help"
    )


def _one_line(error: CycloptsError) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, UnusedCliTokensError):
        said = f"unexpected: {' '.join(error.unused_tokens or ())}."
    return f"{said} See: watchbill {' '.join([*(error.command_chain or ()), '--help'])}"
