"""`batch`: hands a file of requests to the daemon, follows what becomes of it, and fetches the results.

Batches of OpenAI's clients and message batches of Anthropic's are shown alike.
"""

import json as json_format
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

from cyclopts import App, Parameter

from watchbill.batches.limits import BATCH_LINE_BYTES_MAX
from watchbill.cli.client import parse, quoted
from watchbill.cli.limits import CLI_BATCH_LOOK_S
from watchbill.cli.options import Common, Json, follow_option
from watchbill.cli.session import Session
from watchbill.cli.status import fields, figure, rows_of
from watchbill.cli.terminal import Column, plain
from watchbill.errors import ConfigError
from watchbill.files.given import open_given

__all__ = ["app"]

app = App(name="batch", help="Have a file of requests answered in idle time.")

_DEFAULTS = Common()
_Id = Annotated[str, Parameter(name="BATCH", help="The batch's id, as `batch list` shows it.")]
_Follow = Annotated[bool, follow_option("Stay until the batch has ended, and show its progress.")]
_MESSAGES = "msgbatch_"
_ENDS = frozenset({"completed", "failed", "expired", "cancelled", "ended"})
Fields = Mapping[str, object]


@app.command
def submit(
    file: Annotated[Path, Parameter(name="FILE", help="Requests, one JSON object on each line.")],
    /,
    *,
    endpoint: Annotated[
        str | None,
        Parameter(help="What the lines ask, such as /v1/embeddings. Default: the url of the first line."),
    ] = None,
    window: Annotated[str, Parameter(help="What is not answered after this time expires.")] = "24h",
    follow: _Follow = False,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> int:
    """Hand a file of requests to the daemon.

    Each line is {"custom_id", "method": "POST", "url", "body"}, as for OpenAI's Batch API. The lines are answered when
    no request waits for the models, also after a restart. With --follow the exit code is 1 unless every line is
    answered.
    """
    session = common.session()
    content = _upload(session, file, endpoint, window)
    if follow:
        return _follow(session, str(fields(parse(content)).get("id")), json=json)
    _show(session, content, lambda: _line_of(fields(parse(content))), json=json)
    return 0


@app.command
def status(batch: _Id, /, *, follow: _Follow = False, json: Json = False, common: Common = _DEFAULTS) -> int:
    """Show what has become of a batch.

    With --follow the exit code is 1 unless every line was answered.
    """
    session = common.session()
    if follow:
        return _follow(session, batch, json=json)
    content = session.client.get(_address(batch))
    _show(session, content, lambda: "\n".join(_details(fields(parse(content)))), json=json)
    return 0


@app.command(name="list")
def list_(*, json: Json = False, common: Common = _DEFAULTS) -> None:
    """List the batches of this key, the newest first."""
    session = common.session()
    content = session.client.get("/v1/batches?limit=100")
    if json:
        session.terminal.show_json(content)
        return
    rows = rows_of(fields(parse(content)).get("data"), "batches")
    rows += rows_of(fields(session.client.get_json("/v1/messages/batches?limit=100")).get("data"), "batches")
    if not rows:
        session.terminal.show(
            f"no batches; submit one with: {session.root.command('batch', 'submit', 'FILE')}"
        )
        return
    # An id is there to be pasted: with fewer columns it fits whole into a terminal of 80.
    columns = [Column("BATCH"), Column("STATE"), Column("LINES", right=True), Column("CREATED")]
    session.terminal.show(*session.terminal.table(columns, [_row(row) for row in rows]))


@app.command
def cancel(batch: _Id, /, *, json: Json = False, common: Common = _DEFAULTS) -> None:
    """End a batch; what was answered stays."""
    session = common.session()
    content = session.client.post(f"{_address(batch)}/cancel")
    _show(session, content, lambda: _line_of(fields(parse(content))), json=json)


@app.command
def results(
    batch: _Id,
    /,
    *,
    errors: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="The lines that failed, expired or were cancelled."),
    ] = False,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="Write to this file instead of the terminal.")
    ] = None,
    common: Common = _DEFAULTS,
) -> None:
    """Print the results of a batch that has ended, one JSON object on each line."""
    session = common.session()
    told = fields(session.client.get_json(_address(batch)))
    path = _results_of(batch, told, errors=errors)
    if path is None:
        session.terminal.note(f"{plain(batch)} has no {'errors' if errors else 'answers'}")
        return
    with session.client.download(path) as pieces:
        if output is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        try:
            with output.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
        except OSError as error:
            raise ConfigError(
                f"cannot write {output}: {error.strerror}; name another file with --output"
            ) from error
    session.terminal.note(f"wrote {output}")


# ------------------------------------------------------------------ submitting


def _upload(session: Session, path: Path, endpoint: str | None, window: str) -> bytes:
    try:
        with open(open_given(path), "rb") as file:
            url = endpoint or _url_of(file.readline(BATCH_LINE_BYTES_MAX), path)
            size = os.fstat(file.fileno()).st_size
            file.seek(0)
            asked = {"purpose": "batch", "filename": path.name}
            made = fields(parse(session.client.upload("/v1/files", file, size, asked)))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; name another file") from error
    id = str(made.get("id"))
    return session.client.post(
        "/v1/batches", {"input_file_id": id, "endpoint": url, "completion_window": window}
    )


def _url_of(line: bytes, path: Path) -> str:
    """What the first line asks."""
    try:
        found = cast("object", json_format.loads(line.removeprefix(b"\xef\xbb\xbf")))
    except (ValueError, RecursionError):
        found = None
    url = fields(found).get("url")
    if not isinstance(url, str):
        raise ConfigError(f"the first line of {path} names no url; name one with --endpoint")
    return url


# ------------------------------------------------------------------ following


def _follow(session: Session, batch: str, *, json: bool) -> int:
    """Shows a batch until it has ended."""
    shown = ""
    while True:
        content = session.client.get(_address(batch))
        told = fields(parse(content))
        line = _line_of(told)
        if line != shown and not json:
            session.terminal.show(line)
            shown = line
        if _state(told) in _ENDS:
            if json:
                session.terminal.show_json(content)
            return _code_of(session, told, json=json)
        time.sleep(CLI_BATCH_LOOK_S)


def _code_of(session: Session, told: Fields, *, json: bool) -> int:
    """0 where every line was answered."""
    good, _, total = _counts(told)
    if _state(told) in {"completed", "ended"} and good == total:
        return 0
    if not json and good < total and not str(told.get("id")).startswith(_MESSAGES):
        command = session.root.command("batch", "results", "--errors", plain(told.get("id")))
        session.terminal.note(f"{total - good} of {total} lines were not answered; see: {command}")
    for fault in () if json else _faults(told):
        session.terminal.note(fault)
    return 1


def _show(session: Session, content: bytes, told: Callable[[], str], *, json: bool) -> None:
    if json:
        session.terminal.show_json(content)
    else:
        session.terminal.show(told())


# ------------------------------------------------------------------ both dialects


def _address(batch: str) -> str:
    folder = "/v1/messages/batches" if batch.startswith(_MESSAGES) else "/v1/batches"
    return f"{folder}/{quoted(batch)}"


def _results_of(batch: str, told: Fields, *, errors: bool) -> str | None:
    """Where the results are; None where there are none."""
    if _state(told) not in _ENDS:
        raise ConfigError(
            f"{plain(batch)} has not ended; follow it with: watchbill batch status --follow {plain(batch)}"
        )
    if batch.startswith(_MESSAGES):
        return None if errors else f"{_address(batch)}/results"
    file = told.get("error_file_id" if errors else "output_file_id")
    return f"/v1/files/{quoted(file)}/content" if isinstance(file, str) else None


def _state(told: Fields) -> str:
    return plain(told.get("status") or told.get("processing_status") or "?")


def _counts(told: Fields) -> tuple[int, int, int]:
    """Answered, failed and all lines."""
    counts = fields(told.get("request_counts"))
    if "total" in counts:
        return figure(counts.get("completed")), figure(counts.get("failed")), figure(counts.get("total"))
    good, bad = figure(counts.get("succeeded")), figure(counts.get("errored"))
    return good, bad, sum(figure(value) for value in counts.values())


def _line_of(told: Fields) -> str:
    good, bad, total = _counts(told)
    failed = f", {bad} failed" if bad else ""
    return f"{plain(told.get('id'))}: {_state(told)}, {good + bad} of {total} lines{failed}"


def _row(told: Fields) -> list[str]:
    good, bad, total = _counts(told)
    created = told.get("created_at")
    when = datetime.fromtimestamp(created, UTC).isoformat() if isinstance(created, int) else plain(created)
    return [plain(told.get("id")), _state(told), f"{good + bad}/{total}", when[5:16].replace("T", " ")]


def _details(told: Fields) -> list[str]:
    lines = [_line_of(told)]
    for name in ("endpoint", "input_file_id", "output_file_id", "error_file_id", "expires_at", "results_url"):
        if (value := told.get(name)) is not None:
            shown = datetime.fromtimestamp(value, UTC).isoformat() if isinstance(value, int) else plain(value)
            lines.append(f"  {name.replace('_id', '').replace('_', ' ')}: {shown}")
    return lines + [f"  {fault}" for fault in _faults(told)]


def _faults(told: Fields) -> list[str]:
    """Why the input cannot be used."""
    faults = list[str]()
    for fault in rows_of(fields(told.get("errors")).get("data"), "errors"):
        place = f"line {figure(fault.get('line'))}: " if fault.get("line") is not None else ""
        faults.append(f"{place}{plain(fault.get('message'))}")
    return faults
