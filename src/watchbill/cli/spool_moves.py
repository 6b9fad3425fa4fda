"""`spool release|poison|requeue`: single events moved by hand, while workers run."""

import json as jsonlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from watchbill.cli import FAILED
from watchbill.cli.app import WrongUse
from watchbill.cli.spool_choice import AsJson, Chosen, Which
from watchbill.cli.spool_views import WORDS
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import TheirsError
from watchbill.files.given import read_given
from watchbill.spool import Entry, LeaseLost, SpoolBroken, SpoolFull, SpoolLayout, State
from watchbill.spool.backend import AnySpool
from watchbill.spool.by_hand import by_hand
from watchbill.spool.events import encode
from watchbill.spool.limits import EVENT_BYTES_MAX
from watchbill.spool.names import stem_of

__all__ = ["find_events", "poison", "release", "requeue"]

_DEFAULTS = Which()

_Names = Annotated[
    list[str],
    Parameter(name="NAME", help="An event's file, as `list` shows it; a unique beginning is enough."),
]
_Force = Annotated[
    bool, Parameter(negative="", show_default=False, help="Even if the worker that leased it is alive.")
]


def release(
    names: _Names,
    /,
    *,
    failed: Annotated[
        str | None,
        Parameter(
            help="Why the work failed. After the last attempt the event goes to poison with this reason.",
            show_default=False,
        ),
    ] = None,
    force: _Force = False,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Put events in flight back into the queue.

    A shell worker gives the PATH that `dequeue` printed. Otherwise only needed for a worker that hangs: the events of
    a dead one come back by themselves.
    """
    chosen = which.choose()
    with chosen.look() as spool:
        found, held = find_events(chosen, spool, names, State.IN_FLIGHT), _held(names)

        def move(entry: Entry) -> str:
            if failed is None:
                return by_hand(spool).release(entry, force=force, holder=entry.path in held)
            by_hand(spool).fail(entry.path, failed)
            return entry.name

        return _move(found, move, which.terminal, json=json)


def poison(
    names: _Names,
    /,
    *,
    reason: Annotated[
        str, Parameter(help="The reason, which is stored beside the event.")
    ] = "given up by hand",
    force: _Force = False,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Give up events that wait or are in flight."""
    chosen = which.choose()
    with chosen.look() as spool:
        found, held = find_events(chosen, spool, names, State.QUEUE, State.IN_FLIGHT), _held(names)
        return _move(
            found,
            lambda entry: by_hand(spool).poison(entry, reason, force=force, holder=entry.path in held),
            which.terminal,
            json=json,
        )


def requeue(
    names: Annotated[
        list[str] | None,
        Parameter(name="NAME", help="A poisoned or finished event's file.", show_default=False),
    ] = None,
    /,
    *,
    all_: Annotated[
        bool, Parameter(name="--all", negative="", show_default=False, help="Everything in poison.")
    ] = False,
    content: Annotated[
        Path | None,
        Parameter(help="A file with the corrected event, in place of what it holds now.", show_default=False),
    ] = None,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Give poisoned or finished events all their attempts again.

    A poisoned event may be corrected: `show --raw NAME` prints it, --content puts the corrected one in its place.
    """
    if bool(names) == all_:
        raise WrongUse("name the events to requeue, or say --all. See: watchbill spool requeue --help")
    if content is not None and len(names or ()) != 1:
        raise WrongUse("--content is for one event; name it")
    corrected = None if content is None else _corrected(content)
    chosen = which.choose()
    with chosen.look() as spool:
        found = (
            list(by_hand(spool).entries(State.POISON))
            if all_
            else find_events(chosen, spool, names or [], State.POISON, State.DONE)
        )
        return _move(found, lambda entry: by_hand(spool).requeue(entry, corrected), which.terminal, json=json)


def _corrected(file: Path) -> bytes:
    """The event in a file. Raises TheirsError if it cannot be read or is none."""
    try:
        return encode(read_given(file.expanduser(), EVENT_BYTES_MAX + 1))
    except OSError as error:  # whichever errno: the operator named this file and is told why
        raise TheirsError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from error


def find_events(chosen: Chosen, spool: AnySpool, names: list[str], *states: State) -> list[Entry]:
    """The files of these names, each given in full, as a path, or by a beginning that only one has.

    A path of a leased file must match exactly: the same event may be leased by another worker by now.
    """
    hand, found = by_hand(spool), list[Entry]()
    for name in names:
        if hand.is_leased_path(name):
            found.append(hand.find_leased(Path(name)))
            continue
        stem = stem_of(Path(name).name)
        found.append(_single(chosen, name, hand.beginning(stem, *states) if stem else [], states))
    return found


def _held(names: list[str]) -> set[Path]:
    """The paths among these names: a caller that knows the path holds the lease."""
    return {Path(name).absolute() for name in names if "/" in name}


def _single(chosen: Chosen, name: str, found: list[Entry], states: tuple[State, ...]) -> Entry:
    if len(found) == 1:
        return found[0]
    if found:
        raise TheirsError(f"{len(found)} events begin with {name}; name one in full")
    where = " or ".join(WORDS[state] for state in states) or "this spool"
    raise TheirsError(f"no event {name} in {where}; {chosen.command('list')} shows what there is")


def _move(found: list[Entry], act: Callable[[Entry], str], terminal: Terminal, *, json: bool) -> int:
    """Moves the events one by one; one that cannot be moved does not stop the others."""
    moved: list[str] = []
    failed: list[str] = []
    for entry in found:
        try:
            moved.append(act(entry))
        except (LeaseLost, SpoolLayout, SpoolFull, SpoolBroken) as error:
            failed.append(str(error))
    if json:
        terminal.show(jsonlib.dumps({"moved": moved, "failed": failed}))
    else:
        terminal.show(*moved)
    for each in failed:
        print(f"watchbill: {plain(each)}", file=sys.stderr, flush=True)
    return FAILED if failed else 0
