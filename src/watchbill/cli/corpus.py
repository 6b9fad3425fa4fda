"""`corpus`: reads, checks and repairs the JSONL files that spools are drained into.

Reads while drains append. Only `repair` writes, under the appender's lock, and keeps every byte that it removes.
"""

import json as jsonlib
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import App, Parameter
from cyclopts.validators import Number

from watchbill.cli import FAILED
from watchbill.cli.options import QUIET, ROOT, follow_option
from watchbill.cli.spool_choice import AsJson, Config, in_config
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.errors import TheirsError
from watchbill.files.given import OddFile
from watchbill.root import find_root
from watchbill.spool import reader
from watchbill.spool.events import Event

__all__ = ["app"]

#: Bad lines that are named one by one to a person; --json names more.
_NAMED = 20

app = App(name="corpus", help="Read, check and repair the JSONL files that spools are drained into.")

_File = Annotated[str, Parameter(name="FILE", help="The corpus, or the name of a spool of the config.")]
_All = Annotated[
    bool,
    Parameter(
        name="--all", negative="", show_default=False, help="Include repeated ids. Default: each id once."
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class How:
    """How a corpus is found and read."""

    id_key: Annotated[
        str | None,
        Parameter(
            help="The key of an event that holds its id. Default: the config's, else id.", show_default=False
        ),
    ] = None
    config: Config = None
    root: Annotated[Path | None, ROOT] = None
    quiet: Annotated[bool, QUIET] = False

    @property
    def terminal(self) -> Terminal:
        return Terminal(quiet=self.quiet)

    def command_to_repair(self, path: Path) -> str:
        """The command that repairs this corpus, for a person to paste."""
        key = [] if self.id_key is None else ["--id-key", self.id_key]
        return find_root(self.root).command("corpus", "repair", str(path.absolute()), *key)

    def find(self, text: str) -> "_Found":
        """The file that is meant. Raises TheirsError when there is none."""
        path = Path(text).expanduser()
        if "/" not in text and not path.exists():
            rules = in_config(text, self.config, self.root)
            if rules is not None:
                root = find_root(self.root).path
                files = sorted({str(root / file) for file in rules.corpora.values()})
                if len(files) > 1:
                    raise TheirsError(f"the spool {text} has several corpora; name one of {', '.join(files)}")
                return _Found(Path(files[0]), self.id_key or rules.id_key)
        return _Found(path, self.id_key or "id")


class _Found(NamedTuple):
    path: Path
    id_key: str


_DEFAULTS = How()


@app.command
def read(
    file: _File,
    /,
    *,
    all_: _All = False,
    kind: Annotated[str | None, Parameter(help="Only events of this kind.", show_default=False)] = None,
    how: How = _DEFAULTS,
) -> None:
    """Print the events, byte for byte, each id once.

    Lines that are not events are left out; `corpus check` names them.
    """
    path, id_key = how.find(file)
    with _readable(path):
        for found in reader.read(path, id_key=id_key, unique=not all_):
            if kind is None or found.event.get("kind") == kind:
                sys.stdout.buffer.write(found.line + b"\n")
        sys.stdout.buffer.flush()


@app.command
def check(file: _File, /, *, json: AsJson = False, how: How = _DEFAULTS) -> int:
    """Read everything and name lines that are not events. Exit code 1 if there are any."""
    path, id_key = how.find(file)
    with _readable(path):
        report = reader.check(path, id_key=id_key)
    if json:
        told = {
            "ok": report.is_clean,
            **_counts(report),
            "records": [_record(each) for each in report.records],
        }
        how.terminal.show(jsonlib.dumps(told))
    else:
        for each in report.records[:_NAMED]:
            how.terminal.show(f"{path}: byte {each.offset}: {plain(each.reason)}")
        if report.bad > _NAMED:
            how.terminal.show(f"and {report.bad - _NAMED} more")
        how.terminal.show(
            _told(report) + ("" if report.is_clean else f"; {how.command_to_repair(path)} takes them out")
        )
    return 0 if report.is_clean else FAILED


@app.command
def repair(
    file: _File,
    /,
    *,
    unique: Annotated[
        bool, Parameter(negative="", show_default=False, help="Remove repeated ids, too.")
    ] = False,
    json: AsJson = False,
    how: How = _DEFAULTS,
) -> None:
    """Remove lines that are not events; they are kept in FILE.torn.

    Drains may run meanwhile: they wait until it is finished.
    """
    path, id_key = how.find(file)
    with _readable(path):
        report = reader.repair(path, id_key=id_key, unique=unique)
    removed = report.bad + (report.duplicates if unique else 0)
    if json:
        how.terminal.show(jsonlib.dumps({"removed": removed, **_counts(report)}))
    elif removed:
        how.terminal.show(f"took out {removed} of {report.lines} lines; they are kept in {path}.torn")
    else:
        how.terminal.show(f"nothing to mend: {_told(report)}")


@app.command
def count(file: _File, /, *, all_: _All = False, json: AsJson = False, how: How = _DEFAULTS) -> None:
    """Count the events, each id once, by kind."""
    path, id_key = how.find(file)
    with _readable(path):
        kinds = Counter(_kind(found.event) for found in reader.read(path, id_key=id_key, unique=not all_))
    if json:
        how.terminal.show(jsonlib.dumps({"events": kinds.total(), "kinds": dict(kinds.most_common())}))
        return
    rows = [(plain(kind), str(number)) for kind, number in kinds.most_common()]
    table = how.terminal.table(
        (Column("KIND"), Column("EVENTS", right=True)), [*rows, ("all", str(kinds.total()))]
    )
    how.terminal.show(*table)


@app.command
def tail(
    file: _File,
    /,
    *,
    lines: Annotated[
        int, Parameter(name=["--lines", "-n"], help="How many of the last lines.", validator=Number(gte=0))
    ] = 10,
    follow: Annotated[bool, follow_option("Print new events as they are appended; Ctrl-C ends it.")] = False,
    how: How = _DEFAULTS,
) -> None:
    """Print the last events, and with --follow the new ones."""
    path, _ = how.find(file)
    with _readable(path):
        # Following begins where the tail ends, at the end of a whole line: nothing is lost in between.
        end = reader.whole_lines_end(path) if follow else path.stat().st_size
        for line in reader.tail(path, lines, end=end):
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        for line in reader.follow(path, start=end) if follow else ():
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except (
        FileNotFoundError,
        PermissionError,
        IsADirectoryError,
        NotADirectoryError,
        OddFile,
        ValueError,
    ) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TheirsError(f"cannot read the corpus {path}: {(reason or str(error)).lower()}") from error


def _kind(event: Event) -> str:
    kind = event.get("kind")
    return kind if isinstance(kind, str) else "(none)"


def _counts(report: reader.Report) -> dict[str, object]:
    return {
        "lines": report.lines,
        "events": report.events,
        "duplicates": report.duplicates,
        "bad": report.bad,
        "torn_tail": report.torn_tail,
    }


def _record(record: reader.BadRecord) -> dict[str, object]:
    return {"offset": record.offset, "bytes": record.size, "reason": record.reason}


def _told(report: reader.Report) -> str:
    return f"events: {report.events}, repeated: {report.duplicates}, lines that are no event: {report.bad}"
