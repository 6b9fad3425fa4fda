"""Commands for engines that the host runs: `reactor` and `systemd units`.

`reactor` is the only part of Watchbill that needs privileges on the host, and runs apart from the daemon. `systemd
units` needs none: it writes text for an operator to review and install.
"""

import asyncio
import getpass
import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from watchbill.catalog import FleetRules
from watchbill.cli.options import CONFIG_DEFAULT, Where
from watchbill.cli.terminal import Terminal, plain
from watchbill.config import find_config, read
from watchbill.errors import ConfigError
from watchbill.files.atomic import replace_file
from watchbill.fleet.command_lines import fleet_folder, programs_of
from watchbill.reactor.service import Reactor
from watchbill.reactor.systemctl import Systemctl
from watchbill.reactor.units import (
    MARK,
    Programs,
    daemon_unit,
    fleet_units,
    model_units,
    reactor_unit,
    unit_models,
)
from watchbill.root import find_root

__all__ = ["app", "reactor"]

app = App(name="systemd", help="Write unit files for models and for Watchbill itself.")

_DEFAULTS = Where()
_User = Annotated[
    bool, Parameter(negative="", show_default=False, help="For a user's own systemd (`systemctl --user`).")
]


def reactor(
    *,
    allow: Annotated[
        list[str],
        Parameter(
            negative="",
            help="A unit that may be started and stopped, by name or as a pattern such as 'watchbill-*.service'; "
            "may be given more than once.",
        ),
    ],
    systemctl: Annotated[str, Parameter(help="The systemctl to run.")] = "systemctl",
    user: _User = False,
    once: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Handle the requests that are there, then exit."),
    ] = False,
    where: Where = _DEFAULTS,
) -> int:
    """Start and stop units of the host for the daemon of this root.

    Reads the daemon's requests from ROOT/reactor/intents, refuses units that are not allowed, and logs every decision
    to ROOT/reactor/reactor.jsonl.
    """
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=_level(where))
    program = shutil.which(systemctl)
    if program is None:
        raise ConfigError(f"there is no program {systemctl}; name it with --systemctl")
    root = find_root(where.root).path
    working = Reactor(root, allow, Systemctl(os.path.abspath(program), user=user))
    try:
        Terminal(quiet=where.quiet).note(f"serving {plain(root)}; allowed: {plain(', '.join(allow))}")
        asyncio.run(_work(working, once=once))
    finally:
        working.close()
    return 0


def _level(where: Where) -> int:
    return logging.WARNING if where.quiet else logging.INFO


async def _work(working: Reactor, *, once: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, working.stop)
    if once:
        working.take()
        await working.finish()
    else:
        await working.serve()


@app.command
def units(
    *,
    config: Annotated[
        Path | None,
        Parameter(help=f"The config file. {CONFIG_DEFAULT}", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None,
        Parameter(name="--dir", help="Where to write them. Default: print them.", show_default=False),
    ] = None,
    itself: Annotated[
        bool,
        Parameter(
            name="--self",
            negative="",
            show_default=False,
            help="Also a unit for the daemon and, where models have units, one for the reactor.",
        ),
    ] = False,
    fleet: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Also a unit for the coordinator and for each agent of the config; the daemon's unit then runs `up "
            "--no-fleet`.",
        ),
    ] = False,
    user: _User = False,
    where: Where = _DEFAULTS,
) -> int:
    """Write a systemd unit, or a Podman quadlet, for every model of the driver systemd.

    A model with a command becomes a service, one with an image a container; members of a group conflict with each
    other. Nothing is installed, enabled or started.
    """
    found = find_root(where.root)
    root, loaded = found.path, read(find_config(config, found), root=found.path)
    account = None if user else getpass.getuser()
    files = model_units(loaded.catalog, account)
    programs = Programs(_watchbill(), root.absolute(), _absolute(loaded.file), account, fleet)
    if fleet:
        files |= fleet_units(programs, _fleet_programs(loaded.catalog.fleet, root.absolute(), loaded.origin))
    if itself:
        files["watchbill.service"] = daemon_unit(programs)
        if unit_models(loaded.catalog):
            files["watchbill-reactor.service"] = reactor_unit(programs, loaded.catalog)
    terminal = Terminal(quiet=where.quiet)
    if not files:
        text = f"{loaded.origin} has no model of the driver systemd with a command or an image"
        raise ConfigError(f"{text}; --self writes a unit for the daemon")
    if folder is None:
        terminal.show(*(f"# --- {name}\n{text}" for name, text in files.items()))
    else:
        _write(folder, files)
        terminal.note(f"wrote {', '.join(files)} to {plain(folder)}")
    return 0


def _fleet_programs(rules: FleetRules, root: Path, origin: str) -> dict[str, tuple[str, ...]]:
    found = programs_of(rules, fleet_folder(root, rules))
    if not found:
        raise ConfigError(f"{origin} names no coordinator and no agent; add [coordinator] or [agents.NAME]")
    return found


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes all files or, if one of the names belongs to another program, none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            path = folder / name
            if path.exists() and not path.read_text(errors="replace").startswith(MARK):
                raise ConfigError(
                    f"{path} was not written by Watchbill; move it away or choose another --dir"
                )
        for name, text in files.items():
            replace_file(folder / name, text.encode(), mode=0o644)
    except OSError as error:  # whichever errno: the operator named this folder and is told why
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error


def _watchbill() -> str:
    """The program that a unit can call: the one beside this Python, else the one on the PATH."""
    beside = Path(sys.executable).with_name("watchbill")
    found = str(beside) if beside.exists() else shutil.which("watchbill")
    if found is None:
        raise ConfigError("there is no program watchbill that a unit could call; install Watchbill first")
    return found


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
