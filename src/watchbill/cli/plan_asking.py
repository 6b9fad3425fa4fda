"""What becomes of a request that a command leaves in the shared folder: obeyed, refused, or not read yet.

Several people may ask at the same time, and each command has judged by what it saw. The coordinator alone decides, in
the order of the requests; a command that is refused says so, with the reason.
"""

import errno
import time
from pathlib import Path

from watchbill.cli import limits
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet.coordinator.opening import reopening
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.requests import Reopening, take_back, unread_requests
from watchbill.fleet.state.ledger import Effect, Ledger
from watchbill.fleet.state.reading import refusal_of
from watchbill.fleet.state.resuming import carry_over
from watchbill.fleet.views.overview import coordinator_of

__all__ = ["asked", "begin_round", "begin_unread_rounds", "refuse_behind_another"]


def asked(folder: Path, disk: FolderDisk, terminal: Terminal, text: str, *, request: str) -> None:
    """Say what a request will lead to, and whether a coordinator has read it.

    Raises OursError for one that the coordinator has refused: another person's came first.
    """
    is_dead = coordinator_of(disk).is_dead
    is_read = not is_dead and _is_read_soon(disk, request)
    refused = refusal_of(disk, request) if is_read else ""
    if refused:
        raise OursError(f"the coordinator has refused this: {refused}")
    terminal.note(plain(text))
    if is_dead:
        terminal.note(f"no coordinator runs; start one: {places.fleet_command(folder, 'coordinator')}")
    elif not is_read:
        see = places.fleet_command(folder, "plan", "status", request.partition(".")[0], "--follow")
        terminal.note(f"nothing shows yet that the coordinator has read this; follow it: {see}")


def _is_read_soon(disk: FolderDisk, request: str) -> bool:
    """Wait until the coordinator has taken a request; False where it takes long."""
    until = time.monotonic() + limits.CLI_ANSWER_S
    while request in disk.names(places.INBOX) and _opens(disk, request):
        if time.monotonic() > until:
            return False
        time.sleep(limits.CLI_ANSWER_LOOK_S)
    return True


def _opens(disk: FolderDisk, request: str) -> bool:
    """Whether a request can be opened: a network mount asks its server then, but may believe its listing for long."""
    try:
        disk.read(f"{places.INBOX}/{request}", limits.CLI_REQUEST_BYTES_MAX)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        return False
    return True


def refuse_behind_another(folder: Path, disk: FolderDisk, batch: str, request: str) -> None:
    """Take a request back that another one came before in the same moment, while no coordinator runs to say so."""
    if coordinator_of(disk).is_dead and any(each < request for each in unread_requests(disk, batch)):
        take_back(disk, request)
        hint = f"cancel that first: {places.fleet_command(folder, 'plan', 'cancel', batch)}"
        raise OursError(f"{batch} is about to go on, as somebody asked before", hint=hint)


def begin_unread_rounds(disk: FolderDisk, ledger: Ledger) -> None:
    """Apply the requests to go on that lie in the inbox, as the coordinator will: they come before a new one."""
    for request in unread_requests(disk, ledger.batch):
        if not request.endswith(".reopen"):
            continue
        try:
            order = Reopening.decode(disk.read(f"{places.INBOX}/{request}", limits.CLI_REQUEST_BYTES_MAX))
            if order.id not in ledger.requests and not (order.reads_plan and ledger.outcome is None):
                begin_round(disk, ledger, order)
        except (FileNotFoundError, NotAFile, OursError):
            continue  # it was read since, or will be refused


def begin_round(disk: FolderDisk, ledger: Ledger, request: Reopening) -> list[Effect]:
    """Begin the round that a request asks for, on a ledger that is only looked at."""
    reopened: list[Effect] = [ledger.apply(entry) for entry in reopening(disk, ledger, request)]
    return [each for effect in reopened for each in carry_over(ledger, effect, ledger.apply)]
