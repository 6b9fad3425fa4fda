"""`spool move`: all events of a spool, from files to NATS or back."""

import json as jsonlib
import signal
from contextlib import closing
from dataclasses import asdict
from types import FrameType
from typing import Annotated, Literal

from cyclopts import Parameter

from watchbill.cli import FAILED
from watchbill.cli.progress import count_bar
from watchbill.cli.spool_choice import AsJson, Chosen, Which
from watchbill.cli.spool_views import complain
from watchbill.errors import ConfigError
from watchbill.interrupts import STOPPED
from watchbill.runtime.spools import open_spool, other_side
from watchbill.spool.backend import AnySpool
from watchbill.spool.by_hand import by_hand
from watchbill.spool.limits import BROKER_REPLY_S, MOVE_TURN_S
from watchbill.spool.moving import Moved, move
from watchbill.spool.queue import Spool

__all__ = ["move_spool"]

_DEFAULTS = Which()
_OTHER: dict[str, Literal["files", "nats"]] = {"files": "nats", "nats": "files"}


def move_spool(
    *,
    to: Annotated[Literal["files", "nats"], Parameter(help="Where to: files, or nats.")],
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Move all events of a spool of the config from files to NATS, or back.

    Events that wait and poison are moved, under their names, with their attempts, reasons and signatures; finished
    events stay. Nothing is lost if it is killed: run it again. Set `backend` in the config first, so that producers use
    the new place. Events that workers hold on NATS are waited for, up to twice the spool's `lease`: those of a dead
    worker are free by then. Exit code 1 if events were left: some that are too large, or that workers hold; stop the
    workers or wait, and run it again.
    """
    chosen, terminal, stopped = which.choose(), which.terminal, list[int]()

    def hear(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    source, target = _sides(chosen, to)
    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with closing(source), closing(target):
            waiting = by_hand(source).stats() if terminal.is_live else None
            with count_bar(terminal, f"moving to {to}", waiting.queue if waiting else None) as bar:
                moved = move(
                    source, target, progress=lambda told: bar(told.waiting), stop=lambda: bool(stopped),
                    patience_s=_patience_s(source), turn_s=MOVE_TURN_S,
                )  # fmt: skip
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if json:
        terminal.show(jsonlib.dumps(asdict(moved)))
    else:
        terminal.show(f"moved {moved.waiting} that waited and {moved.poison} of poison to {to}")
    _advise(chosen, moved, to)
    if stopped:
        return STOPPED if stopped[0] == signal.SIGINT else 0
    return FAILED if moved.refused or moved.leased or moved.left else 0


def _patience_s(source: AnySpool) -> float:
    """How long it takes to see that a worker is dead. For files on this machine its kernel tells."""
    if isinstance(source, Spool):
        return 0.0
    # Only now: with its event loop it was a fifth of the start of every command of a spool.
    from watchbill.spool.jetstream import JetSpool

    assert isinstance(source, JetSpool)
    return 2 * source.lease_s + BROKER_REPLY_S


def _sides(chosen: Chosen, to: Literal["files", "nats"]) -> tuple[AnySpool, AnySpool]:
    here = other_side(chosen.rules, _OTHER[to])
    if here.backend == "files" and not (chosen.folder / "queue").is_dir():
        raise ConfigError(f"there is no spool in {chosen.folder}; nothing is there to be moved")
    return open_spool(here, chosen.root), open_spool(other_side(chosen.rules, to), chosen.root)


def _advise(chosen: Chosen, moved: Moved, to: str) -> None:
    if moved.leased:
        complain(
            f"{moved.leased} are leased by workers and stayed; stop them or wait, then run the same command again"
        )
    if moved.left:
        complain(f"{moved.left} still wait at the old place; run the same command again")
    if moved.refused:
        complain(
            f"{moved.refused} are too large and stayed; raise max_payload of the servers, then run it again"
        )
    if chosen.rules.backend != to:
        complain(
            f'set backend = "{to}" in [spool.{chosen.rules.name}]: new events still go to {chosen.rules.backend}'
        )
