"""Commands that start and stop the daemon: `up` and `down`."""

import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from watchbill.cli.app import WrongUse
from watchbill.cli.client import Client
from watchbill.cli.limits import (
    CLI_DOWN_NOW_TIMEOUT_S,
    CLI_DOWN_TIMEOUT_S,
    CLI_LOG_TAIL_BYTES_MAX,
    CLI_POLL_INTERVAL_S,
    CLI_READY_TIMEOUT_S,
)
from watchbill.cli.options import Where
from watchbill.cli.progress import Report, byte_bar, waiting_bar
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import ConfigError, NotReachable, TheirsError, WatchbillError
from watchbill.quoting import quoted
from watchbill.root import DaemonRecord, Root, find_root

__all__ = ["UpOptions", "UpScreen", "down", "next_steps", "up"]

_DEFAULTS = Where()
_PORT = re.compile("[0-9]{1,5}")  # its range is checked where --port's is


_Listen = Annotated[
    str | None,
    Parameter(
        help="Both in one, as HOST:PORT; :8080 means every address of this machine.", show_default=False
    ),
]


_Record = Annotated[
    Path | None,
    Parameter(
        help="Append the times and models of requests to this file, for: watchbill simulate --trace. No prompts.",
        show_default=False,
    ),
]


_NoFleet = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        help="Do not run the coordinator and the agents of the config: units of their own do.",
    ),
]


_WithNats = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        help="Also run a NATS server of this root, for spools with backend nats; on this machine only.",
    ),
]


#: For the daemon that an agent starts for itself; not for people, so not in the help.
_Cards = Annotated[str | None, Parameter(show=False)]
_NoFetch = Annotated[bool, Parameter(negative="", show=False)]


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `up`. None means: as the config says."""

    config: Path | None
    root: Path
    host: str | None
    port: int | None
    ollama_port: int | None
    quiet: bool
    record: Path | None = None
    no_fleet: bool = False
    with_nats: bool = False
    cards: tuple[str, ...] | None = None
    no_fetch: bool = False


def up(
    *,
    config: Annotated[
        Path | None,
        Parameter(
            help="The config file. Default: $WATCHBILL_CONFIG, else ./watchbill.toml, else "
            "~/.config/watchbill/watchbill.toml, else one small embedded model.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        Parameter(
            help="Address to listen on. Any but loopback needs an API key in the config.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None,
        Parameter(
            help="Port to listen on; 0 picks a free one. Default: the config's, else 8470.",
            show_default=False,
        ),
    ] = None,
    listen: _Listen = None,
    ollama_port: Annotated[
        int | None,
        Parameter(
            help="Also listen on this port, for apps that look for Ollama on 11434.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Run in the background; return when the daemon is ready."
        ),
    ] = False,
    record: _Record = None,
    no_fleet: _NoFleet = False,
    with_nats: _WithNats = False,
    cards: _Cards = None,
    no_fetch: _NoFetch = False,
    where: Where = _DEFAULTS,
) -> int:
    """Start the daemon and stay until Ctrl-C.

    The last line it prints at start is `ready http://HOST:PORT`.
    """
    root = find_root(where.root)
    if listen is not None:
        host, port = _listen_at(listen, alone=host is None and port is None)
    options = UpOptions(
        config, root.path, host, port, ollama_port, where.quiet, _writable(record), no_fleet, with_nats,
        None if cards is None else tuple(cards.split(",")), no_fetch,
    )  # fmt: skip
    if detach:
        return _up_in_background(options, root)
    from watchbill import daemon

    return daemon.run(options, UpScreen(Terminal(quiet=where.quiet), root.command()))


def down(
    *,
    now: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Do not wait for running answers: cut them and stop at once.",
        ),
    ] = False,
    where: Where = _DEFAULTS,
) -> int:
    """Stop the daemon of this root.

    Running answers may finish first; waiting requests are refused and told to retry later.
    """
    root, terminal = find_root(where.root), Terminal(quiet=where.quiet)
    record = root.read_daemon()
    if record is None or not record.is_alive():
        raise NotReachable(f"no daemon runs on {root.path}; start one with: {root.command_to_start()}")
    whole_s = CLI_DOWN_NOW_TIMEOUT_S if now else CLI_DOWN_TIMEOUT_S
    _ask_to_leave(record)
    with waiting_bar(terminal, f"stopping the daemon (pid {record.pid})", whole_s) as show:
        started = time.monotonic()
        while record.is_alive() and (passed := time.monotonic() - started) < whole_s:
            show(passed)
            time.sleep(CLI_POLL_INTERVAL_S)
            # Equal signals that are still pending are merged, so the signal is sent again until it has been received.
            if now:
                _ask_to_leave(record)
    if record.is_alive():
        further = f"kill -9 {record.pid}" if now else root.command("down", "--now")
        raise TheirsError(f"the daemon (pid {record.pid}) still runs after {whole_s:.0f} s; try: {further}")
    terminal.note(f"stopped the daemon (pid {record.pid}) on {root.path}")
    return 0


def _ask_to_leave(record: DaemonRecord) -> None:
    """Sends SIGTERM to the process of the record and to no other.

    A pidfd is opened before the identity is checked: between a check and a plain kill the daemon could end and its pid
    be reused.
    """
    try:
        if not hasattr(os, "pidfd_open"):
            os.kill(record.pid, signal.SIGTERM)
            return
        held = os.pidfd_open(record.pid)
        try:
            if record.is_alive():
                signal.pidfd_send_signal(held, signal.SIGTERM)
        finally:
            os.close(held)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise TheirsError(f"the daemon (pid {record.pid}) belongs to another user") from error


def _up_in_background(options: UpOptions, root: Root) -> int:
    from watchbill.processes.detach import spawn_detached
    from watchbill.processes.root_lock import describe_holder, root_in_use

    terminal = Terminal(quiet=options.quiet)
    root.create()
    running = root.read_daemon()
    if running is not None and running.is_alive():  # a second one would say so in the log of the first
        raise root_in_use(root.path, describe_holder(running.pid, running.url))
    log = root.daemon_log
    before = log.stat().st_size if log.exists() else 0
    pid = spawn_detached([sys.executable, "-m", "watchbill", *_arguments(options)], log)
    try:
        with waiting_bar(terminal, f"starting the daemon (pid {pid})", None) as show:
            code = _wait_until_ready(pid, root, show)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        raise
    if code is not None:
        print(_said_since(log, before), file=sys.stderr)
        return code or 1
    record = root.read_daemon()
    terminal.show(f"ready {record.url if record else ''}".strip())
    terminal.note(f"pid {pid}, log in {plain(log)}; stop it with: {root.command('down')}")
    return 0


def _listen_at(text: str, *, alone: bool) -> tuple[str, int]:
    """The host and port of HOST:PORT, [HOST]:PORT or :PORT, which is every address, as Go's programs mean it."""
    if not alone:
        raise WrongUse("--listen says both --host and --port; leave those out. See: watchbill up --help")
    host, colon, port = text.rpartition(":")
    is_bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not colon or is_bare_ipv6 or not _PORT.fullmatch(port):
        raise WrongUse(
            f"{quoted(text)} is not an address to listen on; write HOST:PORT, for example 127.0.0.1:8080 or [::1]:8080"
        )
    return host.strip("[]") or "0.0.0.0", int(port)


def _writable(record: Path | None) -> Path | None:
    """The file of a recording, created now: a daemon that cannot write it should not start."""
    if record is None:
        return None
    try:
        record.open("ab").close()
    except OSError as error:  # whichever errno: the operator named this file and is told why
        raise ConfigError(f"--record {record}: {error.strerror}") from error
    return record.absolute()


def _arguments(options: UpOptions) -> list[str]:
    named = {
        "--config": options.config,
        "--root": options.root,
        "--host": options.host,
        "--port": options.port,
        "--ollama-port": options.ollama_port,
        "--record": options.record,
    }
    return [
        "up",
        *(word for name, value in named.items() if value is not None for word in (name, str(value))),
        *(["--no-fleet"] if options.no_fleet else []),
        *(["--with-nats"] if options.with_nats else []),
    ]


def _wait_until_ready(pid: int, root: Root, show: Callable[[float], None]) -> int | None:
    """Returns None once the daemon is ready, or its exit code if it ended."""
    from watchbill.processes.detach import exit_code_of

    started = time.monotonic()
    while (passed := time.monotonic() - started) < CLI_READY_TIMEOUT_S:
        if (code := exit_code_of(pid)) is not None:
            return code
        record = root.read_daemon()
        if record is not None and record.pid == pid and _is_ready(record.url):
            return None
        show(passed)
        time.sleep(CLI_POLL_INTERVAL_S)
    raise TheirsError(
        f"the daemon (pid {pid}) is not ready after {CLI_READY_TIMEOUT_S:.0f} s; see: {root.command('logs')}"
    )


def _is_ready(url: str) -> bool:
    try:
        Client(url).get("/ready")
    except WatchbillError:  # not up yet, or up and not ready yet
        return False
    return True


def _said_since(log: Path, offset: int) -> str:
    """The last lines of a daemon that ended: they hold the reason."""
    with log.open("rb") as file:
        file.seek(offset)
        said = plain(file.read(CLI_LOG_TAIL_BYTES_MAX).decode("utf-8", "replace").strip())
    return said or f"watchbill: the daemon gave up without a word in {log}; is the disk full?"


# ------------------------------------------------------------------ what a person sees of the start

LOG_LEVEL_VARIABLE = "WATCHBILL_LOG_LEVEL"


class UpScreen:
    """The output of `up`: a bar for the download, warnings, and the next steps after the start.

    `ready http://HOST:PORT` is the last line on standard output, for scripts; what to try next goes before it.
    """

    def __init__(self, terminal: Terminal, command: str) -> None:
        self._terminal = terminal
        self._command = command  # by which the daemon is found from another terminal
        _set_up_log()

    def pulling(self, text: str) -> AbstractContextManager[Report]:
        """A bar for a download; one line without a terminal."""
        if not self._terminal.is_live:
            self._terminal.note(text)
        return byte_bar(self._terminal, text)

    def warn(self, text: str) -> None:
        """Prints a warning, and goes on if the output is closed."""
        with contextlib.suppress(OSError):  # the terminal was closed, or the reader of the pipe has left
            print(f"warning: {plain(text)}", file=sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """Prints something good to know; nothing with --quiet."""
        with contextlib.suppress(OSError):  # as above
            self._terminal.note(plain(text))

    def ready(self, url: str, model: str, *, newcomer: bool) -> None:
        """Prints the next steps, then that the daemon is ready."""
        if newcomer or self._terminal.is_live:
            self._terminal.note("try next:")
            for step in next_steps(url, model, self._command):
                self._terminal.note(f"  {step}")
        print(f"ready {url}", flush=True)


def _set_up_log() -> None:
    """Sets up the log on standard error: warnings only, unless more is asked for."""
    level = os.environ.get(LOG_LEVEL_VARIABLE, "WARNING").upper()
    known = level if level in logging.getLevelNamesMapping() else "WARNING"
    logging.basicConfig(
        level=known, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )


def next_steps(url: str, model: str, command: str) -> tuple[str, str, str]:
    """Three commands that work when pasted."""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f'{command} chat "Why is the sky blue?"',
        f"{command} status",
    )
