"""Answers of background tasks: kept for people, one file per model, the newest last.

A file that has grown past its bound becomes `NAME.1` and a new one begins; nothing is ever kept beyond the two.
"""

import errno
import logging
import os
import time
from pathlib import Path

from watchbill import names
from watchbill.limits import TASK_ANSWERS_BYTES_MAX

__all__ = ["AnswerBook"]

_LOG = logging.getLogger("watchbill.rotation")


class AnswerBook:
    """The folder of answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, model: str, answer: str) -> None:
        """Adds an answer. A disk without room loses it, and the log says so."""
        path = self._folder / f"{names.file_stem(model)}.md"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > TASK_ANSWERS_BYTES_MAX:
                os.replace(path, path.with_suffix(".md.1"))
            with path.open("a", encoding="utf-8") as file:
                file.write(f"## {time.strftime('%Y-%m-%d %H:%M:%S')}\n\n{answer.strip()}\n\n")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise
            _LOG.warning("the answer of %s is lost: %s", model, error)
