"""Tables of the docs that tell what happens with each field, and what a client's own types allow."""

import re
import typing
from pathlib import Path
from typing import Any

__all__ = ["assert_documented", "holds", "literals", "rows_of", "working"]

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows_of(page: str, title: str) -> dict[str, tuple[str, str]]:
    """Name -> what happens, and why, as a table of a page of the docs says."""
    section = (DOCS / page).read_text().split(f"### {title}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| (.*) \|$", section, re.MULTILINE)
    return {name: (what, why) for name, what, why in rows}


def assert_documented(page: str, title: str, treatment: typing.Mapping[str, str]) -> None:
    """Assert that a table of a page says what the code does with each name, and why where that does not work."""
    rows = rows_of(page, title)
    assert {name: what for name, (what, _) in rows.items()} == {
        name: str(what) for name, what in treatment.items()
    }
    assert all(why.strip() for what, why in rows.values() if what != "works")


def working(page: str, title: str) -> set[str]:
    """The names of a table that the page says work."""
    return {name for name, (what, _) in rows_of(page, title).items() if what == "works"}


def holds(part: object, whole: object) -> bool:
    """Whether all of `part` is in `whole`: fields of objects, and lists item by item."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            name in whole and holds(value, whole[name]) for name, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(holds, part, whole))
    return part == whole


def literals(shape: Any) -> set[str]:
    """The texts that a type of a client allows."""
    if typing.get_origin(shape) is typing.Literal:
        return set(typing.get_args(shape))
    return {text for inner in typing.get_args(shape) for text in literals(inner)}
