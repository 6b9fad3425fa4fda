"""Rows: the items of a foreach from a file that is a table or a list of lines, by the end of its name. Pure.

    .jsonl .ndjson    one JSON value on each line
    .csv .tsv         a line of names, then one item per line with these fields, all of them texts
    .txt .list        one text per line, without the blanks around it

Empty lines are left out. Values are texts like those of a JSON array, and reach commands in the same way.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from watchbill.errors import OursError
from watchbill.plans.findings import shown

__all__ = ["Reader", "reader_for", "spelled_as"]

#: Reads a text; `parse` reads one JSON value and raises ValueError.
Parse = Callable[[str], object]
Reader = Callable[[str, str, Parse], list[object]]


def reader_for(file: str) -> Reader | None:
    """How the rows of a file with this name are read; None for a file that is one JSON value."""
    end = file.rpartition(".")[2].lower()
    return _READERS.get(end)


def spelled_as(file: str, value: object) -> str:
    """The content of a file with this name whose items are read as those of `value`."""
    reader = reader_for(file)
    if reader is _json_lines and isinstance(value, list):
        return "\n".join(json.dumps(item) for item in cast("list[object]", value))
    if reader in (_comma_separated, _tab_separated) and isinstance(value, list):
        return _spelled_table(cast("list[object]", value), "," if reader is _comma_separated else "\t")
    return json.dumps(value)


def _spelled_table(items: Sequence[object], delimiter: str) -> str:
    rows = [cast("Mapping[str, object]", item) for item in items if isinstance(item, dict)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(
        text, list(rows[0]) if rows else ["id"], delimiter=delimiter, extrasaction="ignore"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _json_lines(text: str, file: str, parse: Parse) -> list[object]:
    items: list[object] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                items.append(parse(line))
            except ValueError as error:
                why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise OursError(
                    f"{file}:{number}: this line is no JSON value: {why}",
                    hint="write one value on each line, or call an array .json",
                ) from None
    return items


def _lines(text: str, file: str, parse: Parse) -> list[object]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _comma_separated(text: str, file: str, parse: Parse) -> list[object]:
    return _table(text, file, ",")


def _tab_separated(text: str, file: str, parse: Parse) -> list[object]:
    return _table(text, file, "\t")


def _table(text: str, file: str, delimiter: str) -> list[object]:
    rows = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    items: list[object] = []
    names: list[str] = []
    try:
        for row in rows:
            if not any(row):
                continue
            if not names:
                names = _names(row, file, rows.line_num)
            elif len(row) != len(names):
                raise OursError(
                    f"{file}:{rows.line_num}: this row has {len(row)} values, and the first line names {len(names)}",
                    hint='put values with commas into double quotes, as in "a, b"',
                )
            else:
                items.append(dict(zip(names, row, strict=True)))
    except csv.Error as error:
        raise OursError(f"{file}:{rows.line_num}: {error}", hint="correct the quotes of this row") from None
    return items


def _names(row: Sequence[str], file: str, line: int) -> list[str]:
    """The names in the first line. Raises OursError for one that is empty or there twice."""
    names = [name.strip() for name in row]
    wrong = next((name for at, name in enumerate(names) if not name or name in names[:at]), None)
    if wrong is not None:
        says = f"names {shown(wrong)} twice" if wrong else "has a column without a name"
        raise OursError(f"{file}:{line}: the first line {says}", hint="give each column a name of its own")
    return names


_READERS: dict[str, Reader] = {
    "jsonl": _json_lines, "ndjson": _json_lines, "csv": _comma_separated, "tsv": _tab_separated, "txt": _lines,
    "list": _lines,
}  # fmt: skip
