"""`coordinator`: runs the batches of a shared folder until it is told to stop."""

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
from watchbill.cli.options import QUIET
from watchbill.cli.terminal import Terminal, plain
from watchbill.fleet import places
from watchbill.fleet.service import Leaving, Service

__all__ = ["coordinator"]

LEVEL_VARIABLE = "BRAIN_LOG_LEVEL"
DECISIONS = "brain_decisions.log"
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def coordinator(
    *,
    root: Annotated[
        Path | None,
        Parameter(
            show_default=False,
            help="The shared folder. Default: $WATCHBILL_FLEET, else [fleet] root of the config, else the daemon's "
            "ROOT/fleet.",
        ),
    ] = None,
    quiet: Annotated[bool, QUIET] = False,
) -> int:
    """Run the batches of a shared folder.

    Opens submitted plans, offers their tasks to agents and judges what they report. There is one at a time: a second
    one on this machine is refused, one on another machine waits until the first has been silent for 90 s. Decisions
    are written to logs/brain_decisions.log; BRAIN_LOG_LEVEL=DEBUG tells each of them.

    Example: watchbill coordinator --root /mnt/shared
    """
    folder = find_fleet(root)
    service = Service(folder)
    _set_up_log(folder)

    def stop(_number: int, _frame: object) -> None:
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    watched = "polled" if service.mount.is_network else "watched"
    Terminal(quiet=quiet).note(f"coordinating {plain(folder)} ({plain(service.mount.kind)}, {watched})")
    return 0 if service.run() is Leaving.STOPPED else 1


def _set_up_log(folder: Path) -> None:
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    known = level if level in logging.getLevelNamesMapping() else "INFO"
    logging.basicConfig(
        level=known, format=_FORMAT, handlers=[logging.StreamHandler(sys.stderr), _decisions(folder)]
    )


def _decisions(folder: Path) -> logging.Handler:
    return _Decisions(
        folder / places.LOGS / DECISIONS, maxBytes=limits.LOG_FILE_BYTES_MAX, backupCount=limits.LOG_FILES_MAX - 1,
        encoding="utf-8", errors="replace", delay=True,
    )  # fmt: skip


class _Decisions(logging.handlers.RotatingFileHandler):
    """The log on the shared folder. When the folder fails, standard error is told already, and the work counts."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)
