"""`spool dequeue|done|renew`: events leased and settled by workers that are shell scripts."""

import json as jsonlib
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from watchbill.cli import FAILED
from watchbill.cli.app import WrongUse
from watchbill.cli.spool_choice import AsJson, Which
from watchbill.cli.spool_views import complain, told_of_barred
from watchbill.cli.terminal import plain
from watchbill.spool.backend import AnySpool
from watchbill.spool.by_hand import by_hand
from watchbill.spool.item import Item
from watchbill.spool.limits import SHELL_LEASE_S
from watchbill.spool.term import Term, term_for, term_of
from watchbill.units import format_millis, parse_millis

__all__ = ["dequeue", "done", "renew"]

_DEFAULTS = Which()
_For = Annotated[
    str | None,
    Parameter(
        name="--for",
        help=f"How long the lease holds, as 1h. Default: {format_millis(int(SHELL_LEASE_S * 1000))}.",
        show_default=False,
    ),
]
_Pid = Annotated[
    int | None,
    Parameter(help="The lease holds as long as this process lives; $$ is your shell.", show_default=False),
]
_Path = Annotated[Path, Parameter(name="PATH", help="The leased file, as `dequeue` printed it.")]


def dequeue(
    *,
    for_: _For = None,
    pid: _Pid = None,
    wait: Annotated[
        str | None, Parameter(help="Wait this long for an event, as 30s.", show_default=False)
    ] = None,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Lease the oldest event and print the path of its file.

    The lease outlives this command: it lasts for --for, or as long as the process --pid lives. Settle it with `done`,
    `release` or `poison` and that path; `renew` extends it. An event whose lease has ended goes back to the queue, or
    after its last attempt to poison. Exit code 1 if no event waits, or none that this user may lease.
    """
    term, wait_s = _term(for_, pid), parse_millis(wait) / 1000 if wait is not None else 0.0
    terminal, chosen = which.terminal, which.choose()
    with chosen.look() as spool:
        leased = _lease(spool, term, wait_s)
        given_up, barred = spool.given_up, spool.barred
    if given_up:
        complain(
            f"gave up {given_up} that cannot be read; see: {chosen.command('list', '--state', 'poison')}"
        )
    if leased is None:
        if barred:
            complain(told_of_barred(barred, "leased"))
        elif not json:
            terminal.note("nothing waits")
        if json:
            terminal.show(jsonlib.dumps({"path": None} | ({"barred": len(barred)} if barred else {})))
        return FAILED
    path, item = leased
    if json:
        told = {"path": str(path), "name": item.name, "attempt": item.attempt, "events": len(item.events)}
        terminal.show(jsonlib.dumps(told))
    else:
        terminal.show(str(path))
    return 0


def done(
    paths: Annotated[list[Path], Parameter(name="PATH", help="A leased file, as `dequeue` printed it.")],
    /,
    *,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Finish leased events, durably.

    Exit code 1 for an event that is not leased any more: its lease has ended, and another worker may have it.
    """
    with which.choose().look() as spool:
        names = [by_hand(spool).finish(path) for path in paths]
    which.terminal.show(jsonlib.dumps({"moved": names}) if json else "\n".join(map(plain, names)))
    return 0


def renew(path: _Path, /, *, for_: _For = None, pid: _Pid = None, which: Which = _DEFAULTS) -> int:
    """Extend the lease of an event, counted from now."""
    term = _term(for_, pid)
    with which.choose().look() as spool:
        which.terminal.show(str(by_hand(spool).renew(path, term)))
    return 0


def _term(for_: str | None, pid: int | None) -> Term:
    if for_ is not None and pid is not None:
        raise WrongUse("say --for or --pid, not both")
    if pid is None:
        return term_for(SHELL_LEASE_S if for_ is None else parse_millis(for_) / 1000)
    term = term_of(pid)
    if term is None:
        raise WrongUse(
            f"--pid {pid}: there is no such process here; use --for where nothing tells about processes"
        )
    return term


def _lease(spool: AnySpool, term: Term, wait_s: float) -> tuple[Path, Item] | None:
    deadline = time.monotonic() + wait_s
    while (leased := by_hand(spool).lease_out(term)) is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return None
        spool.wait(min(left_s, 1.0))
    return leased
