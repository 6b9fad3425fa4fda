"""`maintenance`: lends the memory of a device, all or an amount, to a person or a command.

The whole device is a claim by its name; an amount (`--memory`) is a loan with an id. Both are held by our process while
a command runs, or renewed where the daemon is on another machine.
"""

import os
import shutil
import threading
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import App, Parameter

from watchbill.cli.client import parse, quoted
from watchbill.cli.limits import CLAIM_RENEW_EVERY_S, CLI_LOAD_TIMEOUT_S
from watchbill.cli.options import Common, Json
from watchbill.cli.progress import while_watching
from watchbill.cli.session import Session
from watchbill.cli.status import fields
from watchbill.cli.terminal import plain
from watchbill.config.devices import is_device_name
from watchbill.errors import ConfigError, WatchbillError
from watchbill.gateway.limits import CLAIM_HOURS, CLAIM_HOURS_MAX
from watchbill.processes.attached import run_attached
from watchbill.units import parse_bytes

__all__ = ["app"]

app = App(name="maintenance", help="Lend memory of a device, all or some, to a person or a command.")

_DEFAULTS = Common()
_PATH = "/wb/v1/maintenance"
_LOANS = "/wb/v1/loans"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_Device = Annotated[str, Parameter(help="The device: ram, gpu:0 and so on.")]


@app.command
def start(
    *command: Annotated[
        str,
        Parameter(name="COMMAND", help="Run with the memory; put -- before it."),
    ],
    device: _Device = "ram",
    memory: Annotated[
        str | None,
        Parameter(help="Lend only this much, for example 2GiB; the models stay and go on serving."),
    ] = None,
    evict_idle: Annotated[
        bool, Parameter(help="With --memory: models that have been idle for long may leave for it.")
    ] = True,
    why: Annotated[
        str, Parameter(name="--for", help="What it is for; shown by status and in the journal.")
    ] = "maintenance",
    pid: Annotated[
        int | None, Parameter(help="The claim lasts as long as this process, on the daemon's machine, lives.")
    ] = None,
    hours: Annotated[
        float | None,
        Parameter(help=f"Without COMMAND and --pid: the claim ends after this. Default: {CLAIM_HOURS}."),
    ] = None,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> int:
    """Empty a device and keep it, or lend an amount of its memory.

    All models on it finish their requests and are unloaded, permanent ones too; new requests for them wait. Returns
    when the device is empty.
    With --memory no model in use leaves: the amount is lent when that much is free, or refused.
    With COMMAND the command is run then, and the memory is given back when it ends, or when it is killed; the exit
    code is the command's.
    """
    if command and is_device_name(command[0]) and shutil.which(command[0]) is None:
        raise ConfigError(f"{command[0]} is a device, not a command; write: --device {command[0]}")
    if (bool(command), pid is not None, hours is not None).count(True) > 1:
        raise ConfigError("give only one of COMMAND, --pid and --hours: each says how long the claim lasts")
    if hours is not None and not 0 < hours <= CLAIM_HOURS_MAX:
        raise ConfigError(f"--hours must be more than 0 and at most {CLAIM_HOURS_MAX}")
    session = common.session()
    asked: dict[str, object] = {"device": device, "for": why}
    if memory is not None:
        asked |= {"memory": parse_bytes(memory), "evict_idle": evict_idle}
    if command:
        return _with_command(session, asked, command)
    content = _claim(session, asked | ({"hours": hours or CLAIM_HOURS} if pid is None else {"pid": pid}))
    if json:
        session.terminal.show_json(content)
    else:
        session.terminal.show(f"{_said(content)}; {_how_to_end(device, _loan(content))}")
    return 0


@app.command
def end(
    *,
    device: _Device = "ram",
    loan: Annotated[
        str | None, Parameter(help="Give back this loan instead; status lists them by their ids.")
    ] = None,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Give a device back, or a loan.

    Permanent models are loaded again, and waiting requests are served.
    """
    session = common.session()
    content = session.client.delete(_address(device, loan))
    if json:
        session.terminal.show_json(content)
    else:
        session.terminal.show(_said(content))


def _with_command(session: Session, asked: dict[str, object], command: tuple[str, ...]) -> int:
    if shutil.which(command[0]) is None:  # before any model is unloaded for it
        raise ConfigError(f"{command[0]} cannot be run: there is no such program")
    device, ended = str(asked["device"]), threading.Event()
    is_here = (urlsplit(session.client.url).hostname or "") in _LOOPBACK
    content = _claim(session, asked | ({"pid": os.getpid()} if is_here else {}))
    loan = _loan(content)
    session.terminal.note(_said(content))
    try:
        if is_here:
            return run_attached(command)
        # A daemon on another machine cannot see our process: we renew the claim instead, and it ends if we do not.
        return _renewing(session, device, loan, command, ended)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {(error.strerror or str(error)).lower()}") from error
    finally:
        ended.set()
        _give_back(session, device, loan)


def _give_back(session: Session, device: str, loan: str | None) -> None:
    """Gives the memory back after the command, whose exit code counts: an error here is only reported."""
    try:
        said = _said(session.client.delete(_address(device, loan)))
    except WatchbillError as error:
        said = f"{loan or device} was not given back: {plain(error)}"
    session.terminal.note(said)


def _renewing(
    session: Session, device: str, loan: str | None, command: tuple[str, ...], ended: threading.Event
) -> int:
    def renew() -> None:
        while not ended.wait(CLAIM_RENEW_EVERY_S):
            try:
                if loan is None:
                    session.client.post(f"{_PATH}/renew", {"device": device})
                else:
                    session.client.post(f"{_LOANS}/{quoted(loan)}/renew")
            except WatchbillError as error:
                session.terminal.note(f"the claim was not renewed: {plain(error)}")

    return run_attached(command, meanwhile=renew)


def _claim(session: Session, asked: dict[str, object]) -> bytes:
    is_loan = "memory" in asked
    text = f"waiting for memory of {asked['device']}" if is_loan else f"emptying {asked['device']}"
    path = _LOANS if is_loan else _PATH
    return while_watching(
        session, "", text, lambda: session.client.post(path, asked, timeout_s=CLI_LOAD_TIMEOUT_S)
    )


def _address(device: str, loan: str | None) -> str:
    return f"{_PATH}?device={quoted(device)}" if loan is None else f"{_LOANS}/{quoted(loan)}"


def _loan(content: bytes) -> str | None:
    """The id of what was lent; None where that is a whole device."""
    id = fields(parse(content)).get("id")
    return id if isinstance(id, str) else None


def _how_to_end(device: str, loan: str | None) -> str:
    which = f" --loan {loan}" if loan is not None else "" if device == "ram" else f" --device {device}"
    return f"give it back with: watchbill maintenance end{which}"


def _said(content: bytes) -> str:
    return plain(fields(parse(content)).get("message") or "done")
