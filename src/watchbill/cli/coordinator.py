"""`coordinator`: runs the batches of a shared folder until it is told to stop."""

import asyncio
import io
import logging
import logging.handlers
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from watchbill import limits
from watchbill.cli.fleet_root import find_fleet
from watchbill.cli.options import QUIET, FleetRoot
from watchbill.cli.terminal import Terminal, plain
from watchbill.files.atomic import open_shared
from watchbill.fleet.coordinator import samples
from watchbill.fleet.coordinator.retention import Keeping
from watchbill.fleet.coordinator.service import Leaving, Service, Settings
from watchbill.fleet.folder import places
from watchbill.fleet.logs import Part, set_up_logs
from watchbill.processes import Keeper, reap
from watchbill.processes.limits import LOG_FILE_BYTES_MAX, LOG_FILES_MAX
from watchbill.root import find_root
from watchbill.runtime.children import Children
from watchbill.units import parse_millis

__all__ = ["coordinator"]

_DECISIONS = "brain_decisions.log"
_SAMPLES = "training_samples.jsonl"


def coordinator(
    *,
    root: FleetRoot = None,
    slots: Annotated[
        int, Parameter(help="Tasks with `executor: brain` that run at the same time.")
    ] = limits.BRAIN_SLOTS,
    model: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="The model that decides and evaluates. Needs a daemon: the one of this root, or one of its own.",
        ),
    ] = None,
    stuck_after: Annotated[
        str, Parameter(help="A task without a sign of progress for this long is aborted.")
    ] = "20m",
    keep_complete: Annotated[
        str, Parameter(help="How long slips of tasks that ended are kept; or off.")
    ] = "7d",
    keep_history: Annotated[
        str, Parameter(help="How long journals and logs of batches that ended are kept; or off: for good.")
    ] = "off",
    no_training_samples: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Do not keep questions and accepted answers in logs/training_samples.jsonl.",
        ),
    ] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> int:
    """Run the batches of a shared folder.

    Opens submitted plans, offers their tasks to agents and judges what they report. There is one at a time: a second
    one on this machine is refused, one on another machine waits until the first has been silent for 90 s. Decisions
    are written to logs/brain_decisions.log; BRAIN_LOG_LEVEL=DEBUG tells each of them. Tasks with `executor: brain` run
    here, in an agent of its own.

    Example: watchbill coordinator --root /mnt/shared
    """
    folder = find_fleet(root)
    keeping = Keeping(_span(keep_complete), _span(keep_history))
    settings = Settings(keeping, _span(stuck_after) or limits.STUCK_AFTER_MS)
    brain = _Brain(folder, find_root(None).path, slots, model)
    if not no_training_samples:
        _keep_samples(folder)
    return asyncio.run(_coordinate(folder, settings, brain, Terminal(quiet=quiet)))


def _span(text: str) -> int | None:
    """A duration; None for "off"."""
    return None if text == "off" else parse_millis(text)


async def _coordinate(folder: Path, settings: Settings, brain: "_Brain", terminal: Terminal) -> int:
    """Coordinate in a thread of its own; beside it an agent that runs the tasks for the coordinator itself."""
    loop = asyncio.get_running_loop()
    service = Service(folder, settings, on_start=lambda: brain.prepare(loop))
    set_up_logs(os.environ, [logging.StreamHandler(sys.stderr), _shared_log(folder, _DECISIONS)])
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    watched = "polled" if service.mount.is_network else "watched"
    terminal.note(f"coordinating {plain(folder)} ({plain(service.mount.kind)}, {watched})")
    try:
        leaving = await asyncio.to_thread(service.run)
    finally:
        await brain.close()
    return 0 if leaving is Leaving.STOPPED else 1


class _Brain:
    """The agent for `executor: brain`: a child of the coordinator, from the moment it coordinates."""

    def __init__(self, folder: Path, state: Path, slots: int, model: str | None) -> None:
        self._folder, self._state, self._slots, self._model = folder, state, slots, model
        self._children: Children | None = None

    def prepare(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what a killed coordinator of this machine left behind, then start. Called with the folder's lock held."""
        private = self._state / "coordinators" / places.check_root(self._folder)
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in reap(private):
            Part.COORDINATOR.logger.warning("ended what was left behind: pid %d", left.pid)
        loop.call_soon_threadsafe(self._start, private)

    def _start(self, private: Path) -> None:
        self._children = Children(Keeper(private), private, {"WATCHBILL_HOME": str(self._state)})
        words = ("agent", places.BRAIN, "--root", str(self._folder), "--cpu-slots", str(self._slots))
        if self._model is not None:
            words += ("--model", self._model, "--llm-slots", str(self._slots))
        self._children.start(places.BRAIN, (sys.executable, "-m", "watchbill", *words))

    async def close(self) -> None:
        if self._children is not None:
            await self._children.close()


def _keep_samples(folder: Path) -> None:
    """Have training samples written: a line each, and nowhere else."""
    log, handler = logging.getLogger(samples.LOGGER), _shared_log(folder, _SAMPLES)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)


def _shared_log(folder: Path, name: str) -> logging.Handler:
    return _SharedLog(
        folder / places.LOGS / name, maxBytes=LOG_FILE_BYTES_MAX, backupCount=LOG_FILES_MAX - 1,
        encoding="utf-8", errors="replace", delay=True,
    )  # fmt: skip


class _SharedLog(logging.handlers.RotatingFileHandler):
    """A log on the shared folder. When the folder fails, standard error is told already, and the work counts.

    Others write to that folder, too: a link in its place would lead to any file of this user, and a pipe would stop us.
    """

    def _open(self) -> io.TextIOWrapper:
        fd = open_shared(self.baseFilename, os.O_WRONLY | os.O_APPEND)
        return io.TextIOWrapper(open(fd, "ab"), encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)
