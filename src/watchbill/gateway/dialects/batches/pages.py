"""Pages of lists: what a query asks for, and the page that answers it. Does no I/O."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from watchbill.errors import NotFound, RequestError
from watchbill.quoting import quoted

__all__ = ["page_between", "page_of", "read_limit"]

T = TypeVar("T")


def read_limit(query: Mapping[str, str], default: int, most: int) -> int:
    """How many entries a caller wants. Raises RequestError."""
    asked = query.get("limit") or str(default)
    if not (asked.isascii() and asked.isdecimal()) or not 1 <= int(asked[:9]) <= most:
        raise RequestError(f"limit must be a whole number from 1 to {most}")
    return int(asked)


def page_of(
    entries: Sequence[T], id_of: Callable[[T], str], after: str | None, limit: int
) -> tuple[list[T], bool]:
    """The entries behind the one that a caller saw last, and whether more follow. Raises NotFound."""
    begin = 0
    if after:
        begin = next((at + 1 for at, entry in enumerate(entries) if id_of(entry) == after), -1)
        if begin < 0:
            raise NotFound(f"the list has no {quoted(after)}; begin it anew without that")
    page = list(entries[begin : begin + limit])
    return page, begin + len(page) < len(entries)


def page_between(
    entries: Sequence[T], id_of: Callable[[T], str], query: Mapping[str, str], limit: int
) -> tuple[list[T], dict[str, object]]:
    """A page as Anthropic has them, behind `after_id` or before `before_id`, and what is told of its ends."""
    if before := query.get("before_id"):
        rest, has_more = page_of(entries[::-1], id_of, before, limit)
        page = rest[::-1]
    else:
        page, has_more = page_of(entries, id_of, query.get("after_id"), limit)
    ends = {"first_id": id_of(page[0]) if page else None, "last_id": id_of(page[-1]) if page else None}
    return page, {**ends, "has_more": has_more}
