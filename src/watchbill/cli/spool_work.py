"""`spool drain` and `spool gc`: what a daemon does with a spool, in the foreground."""

import json as jsonlib
import sys
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from watchbill.cli import FAILED
from watchbill.cli.app import WrongUse
from watchbill.cli.bounds import CLI_BARRED_SHOWN
from watchbill.cli.spool_choice import AsJson, Chosen, Which
from watchbill.cli.spool_drain import Foreground
from watchbill.cli.terminal import Terminal, plain
from watchbill.limits import DRAIN_WORKERS_MAX
from watchbill.runtime.spools import corpora_of, make_drains
from watchbill.spool import State, stats
from watchbill.spool import gc as collect
from watchbill.spool.githook import warnings as hook_warnings
from watchbill.spool.inspect import counts
from watchbill.spool.replay import unreplayed
from watchbill.units import parse_millis

__all__ = ["drain", "gc"]

_DEFAULTS = Which()


def drain(
    *,
    corpus: Annotated[
        Path | None, Parameter(help="The JSONL file to append to. Default: the config's.", show_default=False)
    ] = None,
    schema: Annotated[
        str | None,
        Parameter(
            help="A JSON Schema file, builtin (id, kind and ts), or any. Default: the config's, else builtin.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, Parameter(negative="", show_default=False, help="End when nothing waits.")] = False,
    idle: Annotated[
        str | None, Parameter(help="End when nothing came for this long, as 10m.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        Parameter(
            help="Drain workers. Default: the config's, else 1.",
            show_default=False,
            validator=Number(gte=1, lte=DRAIN_WORKERS_MAX),
        ),
    ] = None,
    ordered: Annotated[
        bool, Parameter(negative="", show_default=False, help="Keep the order of arrival across all workers.")
    ] = False,
    id_key: Annotated[
        str | None, Parameter(help="The key of an event that holds its id.", show_default=False)
    ] = None,
    verify: Annotated[
        list[Path] | None,
        Parameter(
            negative="", help="A public key (PEM): poison what none of them signed.", show_default=False
        ),
    ] = None,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Move events into the corpus until Ctrl-C, or until nothing waits.

    Events that a crashed worker left are taken up first. What is no valid event goes to poison with its reason; a disk
    that is full is waited for. Exit code 0 also when some events were poisoned: the output counts them. Exit code 1
    when this user may not read or move something of the spool.
    """
    chosen = which.choose()
    rules = chosen.rules
    if corpus is not None:
        rules = replace(rules, corpora=MappingProxyType({"*": str(corpus.expanduser().absolute())}))
    if not rules.corpora:
        raise WrongUse("no corpus is named: say --corpus FILE, or drain a spool of the config")
    rules = replace(
        rules,
        schema=rules.schema if schema is None else _schema(schema),
        workers=workers or rules.workers,
        ordered=ordered or rules.ordered,
        id_key=id_key or rules.id_key,
        verify=tuple(str(key.expanduser().absolute()) for key in verify or ()) or rules.verify,
    )
    return _drain(chosen._replace(rules=rules), which.terminal, once=once, idle=idle, json=json)


def gc(
    *,
    keep: Annotated[
        str | None,
        Parameter(
            help="Keep finished events this long, as 7d. Default: the config's, else 7d.", show_default=False
        ),
    ] = None,
    archive: Annotated[
        Path | None, Parameter(help="Move them here instead of deleting them.", show_default=False)
    ] = None,
    compact: Annotated[
        bool,
        Parameter(negative="--no-compact", help="Make one file of each finished day.", show_default=False),
    ] = True,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> None:
    """Compact finished days and delete or archive old ones.

    Days are whole UTC days; today is not touched, and poison never.
    """
    chosen, terminal = which.choose(), which.terminal
    keep_ms = chosen.rules.keep_done_ms if keep is None else parse_millis(keep)
    where = archive or (chosen.root / chosen.rules.archive if chosen.rules.archive else None)
    with chosen.look() as spool:
        done = collect(spool, keep_done_s=keep_ms / 1000, compact=compact, archive=where)
    if json:
        terminal.show(jsonlib.dumps(asdict(done)))
    else:
        terminal.show(f"compacted {done.compacted}, removed {done.removed}, archived {done.archived}")


def _drain(chosen: Chosen, terminal: Terminal, *, once: bool, idle: str | None, json: bool) -> int:
    idle_s = None if idle is None else parse_millis(idle) / 1000
    drains = make_drains(chosen.rules, chosen.root)
    try:
        for corpus in corpora_of(chosen.rules, chosen.root).values():
            with corpus:
                corpus.append([])  # a corpus that can never be written is said now, not waited for
        for warning in hook_warnings(chosen.folder):
            terminal.note(plain(warning))
        files = ", ".join(sorted(set(chosen.rules.corpora.values())))
        waiting = stats(drains[0].spool) if once and terminal.is_live else None
        foreground = Foreground(drains, terminal)
        report = foreground.run(
            f"draining {chosen.folder} into {files}; Ctrl-C ends it",
            once=once,
            idle_s=idle_s,
            waiting=waiting.queue + waiting.in_flight if waiting else 0,
        )
        hidden = unreplayed(drains[0].spool.layout)
        leased = counts(chosen.folder, State.IN_FLIGHT)[State.IN_FLIGHT] if once else 0
        barred = {path: why for each in drains for path, why in each.spool.barred.items()}
    finally:
        for each in drains:
            each.spool.close()
    if json:
        terminal.show(jsonlib.dumps(asdict(report) | {"barred": len(barred)}))
    else:
        told = f"appended {report.appended}, already there {report.duplicates}, poisoned {report.poisoned}"
        terminal.show(told + (f", put back {report.released}" if report.released else ""))
    if hidden:
        terminal.note(f"{hidden} more are safe in a dead writer's log and wait for room to be shown")
    if leased:
        terminal.note(f"{leased} more are leased by other workers; they come back when their lease is over")
    if barred:
        print(f"watchbill: {plain(_told_of(barred))}", file=sys.stderr, flush=True)
    return foreground.exit_code or (FAILED if barred else 0)


def _told_of(barred: dict[str, str]) -> str:
    """What cannot be drained, the first of it by name, and what to do."""
    shown = "; ".join(f"{path}: {why}" for path, why in islice(barred.items(), CLI_BARRED_SHOWN))
    more = f"; and {len(barred) - CLI_BARRED_SHOWN} more" if len(barred) > CLI_BARRED_SHOWN else ""
    what = "1 file or folder" if len(barred) == 1 else f"{len(barred)} files and folders"
    advice = "give their group access (chmod g+rwX), or drain as their owner"
    return f"{what} of the spool cannot be drained by this user: {shown}{more}; {advice}"


def _schema(text: str) -> str:
    return text if text in ("builtin", "any") else str(Path(text).expanduser().absolute())
