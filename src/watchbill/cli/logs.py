"""`logs`: the end of the daemon's log or of an engine's, and new lines as they are written.

Reads files under the root, so it works without a daemon.
"""

import codecs
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from watchbill.cli.limits import (
    CLI_LINE_BYTES_MAX,
    CLI_LOG_TAIL_BYTES_MAX,
    CLI_LOG_TAIL_LINES,
    CLI_POLL_INTERVAL_S,
)
from watchbill.cli.options import Where, follow_option
from watchbill.cli.terminal import Terminal
from watchbill.errors import TheirsError
from watchbill.names import check_model_name
from watchbill.root import find_root

if TYPE_CHECKING:
    from watchbill.processes.logs import Seen

__all__ = ["logs"]

_DEFAULTS = Where()


def logs(
    model: Annotated[
        str | None,
        Parameter(
            name="MODEL",
            help="Show the log of this model's engine. Default: the daemon's.",
            show_default=False,
        ),
    ] = None,
    /,
    *,
    follow: Annotated[bool, follow_option("Print new lines as they are written; Ctrl-C ends it.")] = False,
    lines: Annotated[
        int, Parameter(name=["--lines", "-n"], help="How many of the last lines.", validator=Number(gte=0))
    ] = CLI_LOG_TAIL_LINES,
    where: Where = _DEFAULTS,
) -> None:
    """Show the log of the daemon, or of the engine behind a model."""
    from watchbill.processes.logs import engine_log

    root, terminal = find_root(where.root), Terminal(quiet=where.quiet)
    path = root.daemon_log if model is None else engine_log(root.path, check_model_name(model))
    if not path.exists():
        raise TheirsError(_absence(model, path.parent))
    tail, seen = _tail(path, lines)
    terminal.write(tail)
    if follow:
        for text in _growth(path, seen):
            terminal.write(text)


def _absence(model: str | None, folder: Path) -> str:
    """Why there is nothing to show, and what there is instead."""
    if model is None:
        return f"no log of the daemon in {folder} yet; a daemon in the foreground writes to its terminal"
    found = sorted(file.stem for file in folder.glob("*.log") if file.stem != "daemon")
    there = f"there are logs of: {', '.join(found)}" if found else "no engine was started on this root yet"
    return f"no log of model {model} in {folder}; {there}"


def _tail(path: Path, lines: int) -> tuple[str, "Seen"]:
    """The last lines, and the position at which following begins."""
    from watchbill.processes.logs import Seen

    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - CLI_LOG_TAIL_BYTES_MAX))
        content = file.read(CLI_LOG_TAIL_BYTES_MAX)
        seen = Seen(os.fstat(file.fileno()).st_ino, file.tell())
    found = content.decode("utf-8", "replace").splitlines(keepends=True)
    return "".join(found[-lines:]) if lines else "", seen


def _growth(path: Path, seen: "Seen") -> Iterator[str]:
    """What is added to the file, without end. A log that was cut or replaced is read from its beginning."""
    from watchbill.processes.logs import read_growth

    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end inside a character
    while True:
        content, seen = read_growth(path, seen, CLI_LINE_BYTES_MAX)
        if content:
            yield decoder.decode(content)
        else:
            time.sleep(CLI_POLL_INTERVAL_S)
