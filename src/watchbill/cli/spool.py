"""`spool`: puts events into a durable queue, and lists, shows and counts them.

Uses only the spool's folders or its broker: no daemon is needed, and workers may run meanwhile.
"""

import json as jsonlib
import shlex
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from watchbill.catalog import SpoolRules
from watchbill.cli import FAILED
from watchbill.cli.app import WrongUse
from watchbill.cli.limits import CLI_SPOOL_ROWS
from watchbill.cli.spool_carry import move_spool
from watchbill.cli.spool_choice import AsJson, Chosen, Which, configured
from watchbill.cli.spool_drain import drain, gc
from watchbill.cli.spool_hook import app as hook
from watchbill.cli.spool_hook import key
from watchbill.cli.spool_lease import dequeue, done, renew
from watchbill.cli.spool_moves import find_events, poison, release, requeue
from watchbill.cli.spool_views import (
    WORDS,
    as_fields,
    draw_entries,
    draw_event,
    draw_stats,
    events_of,
    listed_as_json,
)
from watchbill.cli.terminal import plain
from watchbill.errors import TheirsError
from watchbill.root import find_root
from watchbill.spool import SpoolBroken, SpoolFull, SpoolLayout, State
from watchbill.spool.by_hand import by_hand
from watchbill.spool.githook import warnings as hook_warnings

__all__ = ["app"]

_DEFAULTS = Which()
_STATES = {word: state for state, word in WORDS.items()}

app = App(name="spool", help="Put events into a durable queue, look at it, drain it.")
for _command in (dequeue, done, renew, release, poison, requeue, drain, gc, key):
    app.command(_command)
app.command(move_spool, name="move")
app.command(hook)


@app.command
def enqueue(
    file: Annotated[
        str,
        Parameter(
            name="FILE",
            help="Events, one JSON object a line; - is standard input.",
            allow_leading_hyphen=True,
        ),
    ] = "-",
    /,
    *,
    bundle: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Store them in one file that is leased and finished as a whole.",
        ),
    ] = False,
    sign: Annotated[
        Path | None, Parameter(help="A private key (PEM) to sign them with.", show_default=False)
    ] = None,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> None:
    """Store events; when it returns they survive a power cut.

    Prints the name of each event's file. Events are never altered. If a line of FILE is not a JSON object, nothing of
    FILE is stored; standard input is stored as it arrives.
    """
    from watchbill.cli.spool_feed import STANDARD_INPUT, feed

    if file.startswith("-") and file != STANDARD_INPUT:
        raise WrongUse(f"Unknown option: {file}. See: watchbill spool enqueue --help")
    chosen, terminal, names = which.choose(), which.terminal, list[str]()
    if sign is not None:
        chosen = chosen._replace(rules=replace(chosen.rules, sign=str(sign.expanduser().absolute())))
    if file == STANDARD_INPUT and sys.stdin.isatty():
        terminal.note("type events, one JSON object a line; Ctrl-D ends")

    def stored(new: list[str]) -> None:
        names.extend(new)
        if not json:
            terminal.show(*new)

    try:
        feed(lambda: chosen.make(signed=True), file, bundle=bundle, stored=stored)
    finally:
        if json:
            terminal.show(jsonlib.dumps({"enqueued": len(names), "names": names}))


@app.command(name="list")
def list_events(
    *,
    state: Annotated[
        list[str] | None,
        Parameter(
            name="--state",
            negative="",
            help="queue, in-flight, done or poison; may be given twice.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        Parameter(
            name=["--limit", "-n"],
            help=f"How many, oldest first; 0 is all. Default: {CLI_SPOOL_ROWS}, with --json all.",
            validator=Number(gte=0),
            show_default=False,
        ),
    ] = None,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> None:
    """List the events of a spool and where they are."""
    states, terminal = [_state(word) for word in state or ()], which.terminal
    kept = limit if limit is not None else 0 if json else CLI_SPOOL_ROWS
    with which.choose().look() as spool:
        hand = by_hand(spool)
        entries, total = hand.by_age(*states, limit=kept or None)
        hidden = hand.unreplayed()
        folder = spool.path.absolute() / State.QUEUE.value
        folded = hand.in_folders() if not states or State.QUEUE in states else 0
        if json:
            for piece in listed_as_json(entries, total=total, unreplayed=hidden, in_folders=folded):
                terminal.write(piece)
            return
        found = list(entries)
    terminal.show(*(draw_entries(found, terminal) if found else ["no events"]))
    if folded:
        where = f"find {shlex.quote(str(folder))} -name '*.jsonl' -not -path '*/.*'"
        terminal.note(
            f"{folded} of those that wait lie in sub-folders, because many do; all of them: {where}"
        )
    if total > len(found):
        terminal.note(f"and {total - len(found)} more; --limit 0 lists all")
    if hidden:
        terminal.note(f"{hidden} more are safe in a dead writer's log and wait for room to be shown")


@app.command
def show(
    name: Annotated[
        str,
        Parameter(name="NAME", help="The event's file, as `list` shows it; a unique beginning is enough."),
    ],
    /,
    *,
    raw: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print its bytes and nothing else.")
    ] = False,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> None:
    """Show one event: its state, its attempts, and its content."""
    terminal, chosen = which.terminal, which.choose()
    with chosen.look() as spool:
        entry = find_events(chosen, spool, [name])[0]
        content = _quietly(lambda: by_hand(spool).show(entry))
    if raw:
        terminal.show_json(content)
    elif json:
        told = as_fields(entry) | {"content": events_of(content), "reason": entry.reason}
        terminal.show(jsonlib.dumps(told))
    else:
        terminal.show(*draw_event(entry, content, terminal))


@app.command
def stats(*, json: AsJson = False, which: Which = _DEFAULTS) -> int:
    """Count the events of a spool by state.

    Without --spool every spool of the config is counted.
    """
    terminal, failed = which.terminal, list[str]()
    if which.spool is not None:
        chosen = which.choose()
        with chosen.look() as spool:
            counts = {chosen.rules.name: by_hand(spool).stats()}
            for warning in [] if json else spool.warnings():
                terminal.note(plain(warning))
        failing = hook_warnings(chosen.folder)
    else:
        counts, failing = {}, list[str]()
        for name, rules in _all(which).items():
            chosen = Chosen(rules, find_root(which.root).path)
            try:
                with closing(chosen.make()) as spool:
                    counts[name] = by_hand(spool).stats()
                    for warning in spool.warnings() if rules.backend == "nats" and not json else []:
                        terminal.note(f"{name}: {plain(warning)}")
                failing += hook_warnings(chosen.folder)
            except (SpoolLayout, SpoolFull, SpoolBroken) as error:  # the others are counted all the same
                failed.append(f"watchbill: {name}: {plain(str(error))}")
    if json and which.spool is not None:
        terminal.show(jsonlib.dumps(next(iter(counts.values())).as_dict()))
    elif json:
        terminal.show(jsonlib.dumps({"spools": {name: each.as_dict() for name, each in counts.items()}}))
    elif counts:
        terminal.show(*draw_stats(counts, terminal))
    for each in failed + [f"watchbill: {plain(warning)}" for warning in failing]:
        print(each, file=sys.stderr, flush=True)
    return FAILED if failed else 0


def _all(which: Which) -> dict[str, SpoolRules]:
    spools = configured(which.config, which.root)
    if not spools:
        raise WrongUse("no spool is named: say --spool DIR, or add [spool.NAME] to the config")
    return spools


def _state(word: str) -> State:
    state = _STATES.get(word.removeprefix("queue-").replace("_", "-"))
    if state is None:
        raise WrongUse(f"{word} is not a state; there are {', '.join(_STATES)}")
    return state


def _quietly(act: Callable[[], bytes]) -> bytes:
    """Turns a missing or unreadable event into a failure, not into wrong use of the command."""
    try:
        return act()
    except SpoolLayout as error:
        raise TheirsError(str(error)) from error
