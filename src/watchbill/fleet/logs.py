"""Logs of a fleet: which part says what, and the variables that set how much each part says (FLEET-11).

    part          variable             INFO                               WARNING                 DEBUG
    agent         GPU_LOG_LEVEL        starts and ends, claims, reports   a constrained device    memory and slots free
    executor      EXECUTOR_LOG_LEVEL   blocked, needs approval            unreadable rules        allowed commands
    worker        WORKER_LOG_LEVEL     a task starts, a task completes    a task fails            its class and limits
    coordinator   BRAIN_LOG_LEVEL      decisions about batches            stuck tasks, refusals   decisions about tasks
    the rest      WATCHBILL_LOG_LEVEL

Every level is INFO unless its variable names another one.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from enum import Enum

__all__ = ["FORMAT", "Part", "set_levels", "set_up_logs"]

FORMAT = "%(asctime)s %(levelname)s %(message)s"
#: The level of everything that is no part of its own.
_REST = "WATCHBILL_LOG_LEVEL"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Part(Enum):
    """A part of a fleet with a level of its own: the value is the name of its logger."""

    AGENT = "watchbill.agent"
    EXECUTOR = "watchbill.executor"
    WORKER = "watchbill.worker"
    COORDINATOR = "watchbill.coordinator"

    @property
    def logger(self) -> logging.Logger:
        return logging.getLogger(self.value)


_VARIABLES = {
    Part.AGENT: "GPU_LOG_LEVEL",
    Part.EXECUTOR: "EXECUTOR_LOG_LEVEL",
    Part.WORKER: "WORKER_LOG_LEVEL",
    Part.COORDINATOR: "BRAIN_LOG_LEVEL",
}


def set_up_logs(
    environment: Mapping[str, str], handlers: Sequence[logging.Handler], least: int = logging.NOTSET
) -> None:
    """Send what is logged to the handlers, at the levels of the environment and never below `least`."""
    for handler in handlers:
        handler.setFormatter(_Formatter(FORMAT))
    logging.basicConfig(handlers=handlers)
    # Four lines of each task at INFO were a third of an agent's own work. No line names its caller, thread or process.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # pyright: ignore[reportPrivateUsage]  see "Optimization" in Python's logging HOWTO
    set_levels(environment, least)


class _Formatter(logging.Formatter):
    """Writes the seconds of a time once: the lines of a second share them."""

    def __init__(self, template: str) -> None:
        super().__init__(template)
        self._second, self._text = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._text = time.strftime(datefmt or self.default_time_format, time.localtime(second))
            self._second = second
        return f"{self._text},{int(record.msecs):03d}"


def set_levels(environment: Mapping[str, str], least: int = logging.NOTSET) -> None:
    """Set the level of every part. A word that is no level counts as INFO, with a warning."""
    logging.getLogger().setLevel(max(least, _level(environment, _REST)))
    for part, variable in _VARIABLES.items():
        part.logger.setLevel(max(least, _level(environment, variable)))


def _level(environment: Mapping[str, str], variable: str) -> int:
    word = environment.get(variable, "").strip().upper()
    if word and word not in _LEVELS:
        logging.getLogger("watchbill").warning(
            "%s=%s is no level and counts as INFO; use one of %s", variable, ascii(word), ", ".join(_LEVELS)
        )
    return logging.getLevelNamesMapping()[word] if word in _LEVELS else logging.INFO
