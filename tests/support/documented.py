"""Tables of the docs that tell what happens with each field, and what a client's own types allow."""

import re
import typing
from pathlib import Path
from typing import Any

__all__ = ["literals", "rows_of"]

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows_of(page: str, title: str) -> dict[str, tuple[str, str]]:
    """Name -> what happens, and why, as a table of a page of the docs says."""
    section = (DOCS / page).read_text().split(f"### {title}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| (.*) \|$", section, re.MULTILINE)
    return {name: (what, why) for name, what, why in rows}


def literals(shape: Any) -> set[str]:
    """The texts that a type of a client allows."""
    if typing.get_origin(shape) is typing.Literal:
        return set(typing.get_args(shape))
    return {text for inner in typing.get_args(shape) for text in literals(inner)}
