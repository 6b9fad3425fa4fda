"""Progress of long actions, for people who watch.

Bars are drawn with rich, on standard error, and only on a terminal; rich is imported only then. The action itself runs
in a thread, so that the bar moves and Ctrl-C works while the daemon does not answer.
"""

import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from watchbill.cli.limits import CLI_POLL_INTERVAL_S
from watchbill.cli.session import Session
from watchbill.cli.status import Fields, fields, figure
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import WatchbillError

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Report", "byte_bar", "count_bar", "waiting_bar", "while_watching"]

#: Called with (done, whole); `whole` is None while it is not known.
Report = Callable[[int, int | None], None]

#: The status is asked for this often while a bar is shown.
_LOOK_INTERVAL_S = 0.5


def while_watching(session: Session, model: str, text: str, act: Callable[[], bytes]) -> bytes:
    """Runs a call to the daemon and shows what the model does meanwhile. Returns the call's answer."""
    if not session.terminal.is_live:
        return act()
    outcomes: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()
    threading.Thread(target=_perform, args=(act, outcomes), daemon=True).start()
    with _bar(session.terminal) as bar:
        task = bar.add_task(plain(text), total=None)
        started, looked = time.monotonic(), 0.0
        while True:
            try:
                outcome = outcomes.get(timeout=CLI_POLL_INTERVAL_S)
                break
            except queue.Empty:
                now = time.monotonic()
            if now - looked >= _LOOK_INTERVAL_S:
                looked = now
                state = _look(session, model)
                expected_s = figure(state.get("load_ms")) / 1000
                said = plain(state.get("state") or "")
                bar.update(task, description=f"{plain(text)} {f'({said})' if said else ''}".strip())
                # The learned time is a median: the bar waits at 99 % if the load takes longer.
                bar.update(task, total=expected_s or None, completed=min(now - started, expected_s * 0.99))
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@contextmanager
def waiting_bar(terminal: Terminal, text: str, whole_s: float | None) -> Generator[Callable[[float], None]]:
    """A bar for a wait of at most `whole_s`; the caller says how much of it has passed."""
    if not terminal.is_live:
        yield lambda _: None
        return
    with _bar(terminal) as bar:
        task = bar.add_task(plain(text), total=whole_s)
        yield lambda passed_s: bar.update(task, completed=passed_s)


@contextmanager
def byte_bar(terminal: Terminal, text: str) -> Generator[Report]:
    """A bar for bytes that arrive."""
    if not terminal.is_live:
        yield lambda _done, _whole: None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _bar(terminal, *columns, TimeRemainingColumn()) as bar:
        task = bar.add_task(plain(text), total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


@contextmanager
def count_bar(terminal: Terminal, text: str, whole: int | None) -> Generator[Callable[[int], None]]:
    """A bar for things that are done one after the other; the caller says how many are."""
    if not terminal.is_live:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _bar(terminal, *columns) as bar:
        task = bar.add_task(plain(text), total=whole)
        yield lambda done: bar.update(task, completed=done)


def _perform(act: Callable[[], bytes], outcomes: "queue.SimpleQueue[bytes | BaseException]") -> None:
    try:
        outcomes.put(act())
    except BaseException as error:  # noqa: BLE001 - carried to the waiting thread, which raises it
        outcomes.put(error)


def _look(session: Session, model: str) -> Fields:
    """The daemon's present state of the model; empty if the daemon does not answer."""
    try:
        status = fields(session.client.get_json("/wb/v1/status"))
    except WatchbillError:
        return {}
    return fields(fields(status.get("models")).get(model))


@contextmanager
def _bar(terminal: Terminal, *columns: object) -> Generator["Progress"]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

    chosen = [column for column in columns if isinstance(column, ProgressColumn)]
    usual = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    console = Console(stderr=True, width=terminal.width)
    with Progress(*(chosen or usual), console=console, transient=True) as progress:
        yield progress
