"""The help texts are part of the public surface: stored, and compared.

After a change on purpose: WATCHBILL_STORE_HELP=1 pytest tests/unit/test_cli_help.py, and look at the diff.
"""

import os
from pathlib import Path

import pytest
from cyclopts import App

from support.forked_commands import run_watchbill
from watchbill.cli.app import COMMANDS, build_app

STORED = Path(__file__).parent / "help"
SUB_COMMANDS = {
    "maintenance": ("end", "start"),
    "config": ("check", "import", "init", "reference", "reload", "schema", "show"),
    "config import": ("llama-swap", "ollama"),
    "systemd": ("units",),
    "spool": (
        "dequeue", "done", "drain", "enqueue", "gc", "hook", "key", "list", "move", "poison", "release", "renew",
        "requeue", "show", "stats",
    ),
    "spool hook": ("install", "remove", "status"),
    "plan": (
        "approve", "cancel", "check", "deny", "graph", "list", "logs", "resume", "retry", "simulate", "status",
        "submit", "wait",
    ),
    "batch": ("cancel", "list", "results", "status", "submit"),
    "corpus": ("check", "count", "read", "repair", "tail"),
}  # fmt: skip
PAGES = [
    (),
    *((name,) for commands in COMMANDS.values() for name in commands),
    *((*name.split(), sub) for name, subs in SUB_COMMANDS.items() for sub in subs),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "-".join(page) or "watchbill")
def test_the_help_is_what_it_was(page):
    env = {"COLUMNS": "80", "PYTHONUTF8": "1", "PATH": os.environ["PATH"], "HOME": "/"}
    shown = run_watchbill(*page, "--help", env=env, cwd=Path.cwd(), timeout=30)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    text = "".join(line.rstrip() + "\n" for line in shown.stdout.splitlines())
    stored = STORED / f"{'-'.join(page) or 'watchbill'}.txt"
    if os.environ.get("WATCHBILL_STORE_HELP"):
        stored.write_text(text)
    assert stored.read_text() == text


def test_no_help_is_stored_for_a_command_that_is_gone():
    assert {path.stem for path in STORED.glob("*.txt")} == {"-".join(page) or "watchbill" for page in PAGES}


@pytest.mark.parametrize("name", [name for commands in COMMANDS.values() for name in commands])
def test_a_command_says_the_same_about_itself_in_both_places(name):
    """The table of contents repeats each command's first sentence, so that it can be printed without imports."""
    told = next(commands[name][1] for commands in COMMANDS.values() if name in commands)
    command = build_app(name)[name]
    assert isinstance(command, App)
    assert command.help.strip().splitlines()[0] == told
