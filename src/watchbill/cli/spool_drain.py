"""`spool drain` and `spool gc`: what a daemon does with a spool, in the foreground."""

import contextlib
import json as jsonlib
import signal
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from watchbill.cli import FAILED
from watchbill.cli.app import WrongUse
from watchbill.cli.limits import CLI_DRAIN_LOOK_S
from watchbill.cli.progress import count_bar
from watchbill.cli.spool_choice import AsJson, Chosen, Which
from watchbill.cli.spool_views import complain, told_of_barred
from watchbill.cli.terminal import Terminal, plain
from watchbill.interrupts import STOPPED
from watchbill.limits import DRAIN_WORKERS_MAX
from watchbill.runtime.spools import corpora_of, make_drains
from watchbill.spool import Drain, DrainReport, State
from watchbill.spool.by_hand import by_hand
from watchbill.spool.githook import warnings as hook_warnings
from watchbill.units import parse_millis

__all__ = ["Foreground", "drain", "gc"]

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
        str | None, Parameter(help="End when nothing has arrived for this long, as 10m.", show_default=False)
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
        Parameter(negative="", help="Poison events that no such key (PEM) has signed.", show_default=False),
    ] = None,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> int:
    """Move events into the corpus until Ctrl-C, or until nothing waits.

    Events of crashed workers come first. Invalid events go to poison with the reason. On a full disk it waits. Exit
    code 0 also if events were poisoned: the output counts them. Exit code 1 if this user may not read or move some
    files of the spool.
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

    Days are UTC days. Today's events and poison are not touched.
    """
    chosen, terminal = which.choose(), which.terminal
    keep_ms = chosen.rules.keep_done_ms if keep is None else parse_millis(keep)
    where = archive or (chosen.root / chosen.rules.archive if chosen.rules.archive else None)
    with chosen.look() as spool:
        done = by_hand(spool).collect(keep_done_s=keep_ms / 1000, compact=compact, archive=where)
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
                corpus.append([])  # report a corpus that can never be written now, instead of waiting for it
        for warning in hook_warnings(chosen.folder):
            terminal.note(plain(warning))
        files = ", ".join(sorted(set(chosen.rules.corpora.values())))
        waiting = by_hand(drains[0].spool).stats() if once and terminal.is_live else None
        foreground = Foreground(drains, terminal)
        report = foreground.run(
            f"draining {drains[0].spool.named} into {files}; Ctrl-C ends it",
            once=once,
            idle_s=idle_s,
            waiting=waiting.queue + waiting.in_flight if waiting else 0,
        )
        hand = by_hand(drains[0].spool)
        hidden = hand.unreplayed()
        leased = hand.counts(State.IN_FLIGHT)[State.IN_FLIGHT] if once else 0
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
        complain(told_of_barred(barred, "drained"))
    return foreground.exit_code or (FAILED if barred else 0)


def _schema(text: str) -> str:
    return text if text in ("builtin", "any") else str(Path(text).expanduser().absolute())


class Foreground:
    """Drain workers in the foreground: threads that drain, one that watches.

    Ctrl-C and SIGTERM let each worker finish its batch. Errors of the disk are shown when they change, because a drain
    waits for a full disk.
    """

    def __init__(self, drains: list[Drain], terminal: Terminal) -> None:
        self._drains, self._terminal = drains, terminal
        self._said = ""
        self.exit_code = 0

    def run(self, greeting: str, *, once: bool, idle_s: float | None, waiting: int) -> DrainReport:
        """Drains until nothing waits (`once`), nothing came for `idle_s`, or a signal. Raises a worker's error."""
        with (
            self._hearing_signals(),
            ThreadPoolExecutor(len(self._drains), thread_name_prefix="watchbill-drain") as threads,
            count_bar(self._terminal, "draining", waiting if once else None) as bar,
        ):
            if not once:
                self._terminal.note(greeting)
            running = [threads.submit(drain.run_once if once else drain.run) for drain in self._drains]
            try:
                self._watch(running, idle_s, bar)
            finally:
                self.stop()
        for each in running:
            each.result()
        return self.total()

    def stop(self) -> None:
        """Lets every worker finish its batch."""
        for drain in self._drains:
            drain.stop()

    def total(self) -> DrainReport:
        """The sum of the workers' reports so far."""
        report = DrainReport()
        for name in (field.name for field in fields(DrainReport)):
            setattr(report, name, sum(getattr(drain.report, name) for drain in self._drains))
        return report

    def _watch(
        self, running: "list[Future[DrainReport]]", idle_s: float | None, bar: Callable[[int], None]
    ) -> None:
        pending = set(running)
        while pending:
            done, pending = wait(pending, timeout=CLI_DRAIN_LOOK_S, return_when=FIRST_EXCEPTION)
            if any(each.exception() for each in done):
                return
            bar(self.total().settled)
            self._say_faults()
            if idle_s is not None and self._idle_s() >= idle_s:
                self._terminal.note(f"nothing arrived for {idle_s:g} s: the drain ends")
                return

    def _idle_s(self) -> float:
        return min(drain.idle_s for drain in self._drains)

    def _say_faults(self) -> None:
        said = next((drain.last_error for drain in self._drains if drain.last_error), "")
        if said and said != self._said:
            self._terminal.note(f"{plain(said)}; trying again")
        self._said = said

    @contextlib.contextmanager
    def _hearing_signals(self) -> Generator[None]:
        def hear(number: int, _: FrameType | None) -> None:
            self.exit_code = STOPPED if number == signal.SIGINT else 0
            self.stop()

        before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
