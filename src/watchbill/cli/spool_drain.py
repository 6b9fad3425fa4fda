"""Runs drain workers in the foreground: threads that drain, one that watches.

Ctrl-C and SIGTERM let each worker end the batch in its hands. What the disk says is shown when it changes, because a
drain does not give up on a full disk: it waits.
"""

import contextlib
import signal
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import fields
from types import FrameType

from watchbill.cli.bounds import CLI_DRAIN_LOOK_S
from watchbill.cli.progress import count_bar
from watchbill.cli.terminal import Terminal, plain
from watchbill.spool import Drain, DrainReport

__all__ = ["Foreground"]

STOPPED = 130


class Foreground:
    """Some drains and the person who watches them."""

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
        """Lets every worker end its batch."""
        for drain in self._drains:
            drain.stop()

    def total(self) -> DrainReport:
        """What all of them have done so far."""
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
                self._terminal.note(f"nothing came for {idle_s:g} s: the drain ends")
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
