"""Commands that write, check and show the config: `config init|import|check|show|schema|reference`.

None of them needs a daemon; `config reload`, which does, is in `actions`. `check` examines what `up` would use: the
file itself, the model files it names, and the memory of this machine.
"""

import json as jsonlib
import os
import sys
import tomllib
from collections.abc import Sized
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from watchbill.cli.facts import look_at, with_named_variables
from watchbill.cli.options import CONFIG_DEFAULT, Where
from watchbill.cli.terminal import Terminal, plain
from watchbill.config import Finding, Loaded, examine, find_config, read
from watchbill.config.file import read_config
from watchbill.config.reference import reference, schema
from watchbill.config.show import entries, show
from watchbill.config.starter import SMOLLM2, starter
from watchbill.errors import ConfigError, Problem
from watchbill.files.atomic import create_file, replace_file
from watchbill.root import Root, find_root
from watchbill.toml import spell_key

__all__ = ["app", "write_config"]

WRONG = 2

app = App(name="config", help="Write, check and show the config file.")
app.command("watchbill.cli.actions:reload", name="reload", help="Let the daemon read its config again.")
app.command(
    "watchbill.cli.config_import:app",
    name="import",
    help="Rewrite the config of llama-swap or Ollama for Watchbill.",
)

_DEFAULTS = Where()
_Config = Annotated[
    Path | None,
    Parameter(
        name="--config",
        help=f"The config file. {CONFIG_DEFAULT}",
        show_default=False,
    ),
]
_Json = Annotated[bool, Parameter(negative="", show_default=False, help="Print JSON.")]


@app.command
def init(
    file: Annotated[Path, Parameter(name="--file", help="Where to write it.")] = Path("watchbill.toml"),
    *,
    force: Annotated[
        bool, Parameter(negative="", show_default=False, help="Overwrite the file if there is one.")
    ] = False,
    where: Where = _DEFAULTS,
) -> int:
    """Write a commented config to start from."""
    root, terminal = find_root(where.root), Terminal(quiet=where.quiet)
    write_config(file, starter(root.path), force=force)
    terminal.note(
        f"wrote {plain(file)}; edit it, then: {root.command('config', 'check', str(file.absolute()))}"
    )
    if not (root.path / SMOLLM2).exists():
        terminal.note("the model it names is not here yet; fetch it with: " + root.command("pull", "smollm2"))
    return 0


@app.command
def check(config: _Config = None, *, json: _Json = False, where: Where = _DEFAULTS) -> int:
    """Check the config, the model files it names and the memory they need.

    Exit code 2 when something cannot work: a wrong key, a missing file, a model that can never fit.
    """
    terminal = Terminal(quiet=where.quiet)
    try:
        root = find_root(where.root)
        file = find_config(config, root)
    except ConfigError as error:
        return _refuse(error, [], terminal, json=json)
    try:
        loaded = read(file, root=root.path)
    except ConfigError as error:
        return _refuse(error, _found_beside(file, root), terminal, json=json)
    findings = examine(loaded, look_at(loaded, root))
    is_right = not any(finding.is_grave for finding in findings)
    if json:
        terminal.show(
            jsonlib.dumps({"ok": is_right, "errors": [], "findings": [_as_fields(each) for each in findings]})
        )
    else:
        _tell(loaded, findings, terminal, is_right=is_right)
    return 0 if is_right else WRONG


@app.command(name="show")
def show_config(config: _Config = None, *, json: _Json = False, where: Where = _DEFAULTS) -> int:
    """Show every value in effect, and which ones are defaults."""
    terminal = Terminal(quiet=where.quiet)
    root = find_root(where.root)
    loaded = read(find_config(config, root), root=root.path)
    if json:
        values = [
            {"key": spell_key(entry.path), "value": _value(entry.value), "default": entry.is_default}
            for entry in entries(loaded)
        ]
        terminal.show(jsonlib.dumps({"file": loaded.origin, "base": str(loaded.base), "values": values}))
    else:
        terminal.show(*(terminal.mark(line, "dim") if _is_quiet(line) else line for line in show(loaded)))
    return 0


@app.command(name="schema")
def show_schema() -> int:
    """Print the JSON Schema of the config file, for editors that complete and check as you type."""
    Terminal().show(jsonlib.dumps(schema(), indent=2))
    return 0


@app.command(name="reference")
def show_reference() -> int:
    """Print every table and key with its default, as Markdown."""
    Terminal().show(reference().rstrip())
    return 0


def _found_beside(file: Path | None, root: Root) -> list[Finding]:
    """What this machine says against a config of which only variables are not set; nothing where more is wrong."""
    try:
        named = with_named_variables("" if file is None else read_config(file))
        loaded = read(file, root=root.path, environment=named)
    except ConfigError:
        return []
    return examine(loaded, look_at(loaded, root))


def _refuse(error: ConfigError, findings: list[Finding], terminal: Terminal, *, json: bool) -> int:
    if json:
        problems = error.problems or (Problem("", None, "", str(error)),)
        told = {
            "ok": False,
            "errors": [each._asdict() for each in problems],
            "findings": [_as_fields(each) for each in findings],
        }
        terminal.show(jsonlib.dumps(told))
    else:
        _complain(str(error))
        _tell_findings(findings, terminal)
    return WRONG


def _tell_findings(findings: list[Finding], terminal: Terminal) -> None:
    for finding in findings:
        if finding.is_grave:
            _complain(str(finding.problem))
        else:
            terminal.note(f"{plain(finding.problem)} (worth a look)")


def _tell(loaded: Loaded, findings: list[Finding], terminal: Terminal, *, is_right: bool) -> None:
    _tell_findings(findings, terminal)
    if is_right:
        catalog = loaded.catalog
        parts = {"model": catalog.models, "lane": catalog.lanes, "device": catalog.devices}
        counts = ", ".join(_count(things, word) for word, things in parts.items())
        terminal.show(f"{loaded.origin} is right: {counts}")


def _complain(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)


def _as_fields(finding: Finding) -> dict[str, object]:
    return {**finding.problem._asdict(), "grave": finding.is_grave}


def _count(things: Sized, word: str) -> str:
    return f"{len(things)} {word}" if len(things) == 1 else f"{len(things)} {word}s"


def _value(spelled: str | None) -> object:
    """A value as JSON, from its spelling in TOML."""
    return None if spelled is None else tomllib.loads(f"value = {spelled}")["value"]


def _is_quiet(line: str) -> bool:
    return line.startswith("#") or line.endswith("# default")


def write_config(file: Path, text: str, *, force: bool) -> None:
    """Writes a new file, for its owner only: keys may be written into it later.

    Whole or not at all: on a full disk the old config stays, and no partial file is left.
    """
    try:
        if force:
            replace_file(Path(os.path.realpath(file)), text.encode())
        else:
            create_file(file, text.encode())
    except FileExistsError as error:
        raise ConfigError(
            problems=[Problem(str(file), None, "", "exists", "--force overwrites it")]
        ) from error
    except OSError as error:  # whichever errno: the operator named this file and is told why
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(problems=[Problem(str(file), None, "", f"cannot be written: {reason}")]) from error
