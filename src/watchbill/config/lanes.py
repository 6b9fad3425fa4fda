"""`[lanes.NAME]`: queues with a policy, which callers choose by header, key or type of work.

The lane `default` always exists. How long a request may wait and run depends on the lane's class, and on whether the
lane has a text to answer with in place of a model.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from watchbill import catalog
from watchbill.catalog import DEFAULT_LANE, WorkClass
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong
from watchbill.config.values import Duration, PlainName, Priority, Table, TemplateText, refused
from watchbill.templates import Template
from watchbill.units import Millis

__all__ = ["LaneTable", "build_lane", "check_lanes", "settle_lanes"]

# ------------------------------------------------------------------ the table


def _check_lane_text(text: str) -> str:
    """A lane answers at every door, and only what was asked is known at each of them."""
    if strange := [place for place in Template(text).places if place != "summary"]:
        raise refused(
            f"there is no {{{strange[0]}}} in a lane's text", "use {summary}, or a fallback of [process.NAME]"
        )
    return text


LaneText = Annotated[TemplateText, AfterValidator(_check_lane_text)]


class LaneTable(Table):
    """A queue with a policy. The lane `default` always exists."""

    work_class: Literal["interactive", "normal", "background"] = Field(
        default="interactive",
        alias="class",
        description="How urgent its requests are; a higher class is served first.",
    )
    policy: Literal["fifo", "priority", "latest-wins"] = Field(
        default="fifo",
        description="Within the lane: in order of arrival; by the priority that a caller asks for, then arrival; "
        "or latest-wins: of the waiting requests only the newest runs, and the others are refused at once.",
    )
    priority: Priority | None = Field(default=None, description="Of its requests; the model's otherwise.")
    max_wait: Duration | None = Field(
        default=None,
        ge=1,
        description="From arrival to start: 2m in an interactive lane, 15m in another. After a reload a shorter one "
        "holds for waiting requests too, counted from their arrival; a longer one for new requests.",
    )
    timeout: Duration | None = Field(
        default=None,
        ge=1,
        description="From start to end: 10m, or 45s in a lane with a fallback. The pauses of a background answer that "
        "makes room for others do not count; max_wait and timeout together bound every request.",
    )
    queue_max: int = Field(
        default=256,
        ge=1,
        le=limits.QUEUE_LEN_MAX,
        description="Requests that may wait in it. Of several keys, each has at most half of it.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        description="How many of its requests may run at once, on all models together; "
        "the lane's order holds for all of them.",
    )
    fallback: LaneText | None = Field(
        default=None,
        description="The text to answer with when a model cannot; {summary} is what the caller asked, in one line.",
        examples=["I notice {summary}."],
    )
    capture: PlainName | None = Field(
        default=None, description="The spool that its finished requests go into.", examples=["corpus"]
    )
    private: bool = Field(
        default=False, description="Its requests are private: they are never sent to an external tier."
    )


# ------------------------------------------------------------------ defaults

#: RES-11 and LANE-04.
INTERACTIVE_MAX_WAIT = Millis(120_000)
OTHER_MAX_WAIT = Millis(900_000)
TIMEOUT = Millis(600_000)
FALLBACK_TIMEOUT = Millis(45_000)


def settle_lanes(given: Mapping[str, LaneTable]) -> dict[str, LaneTable]:
    """Every lane with its times, the default one first unless the file says otherwise."""
    lanes = {DEFAULT_LANE: LaneTable(), **given}
    return {name: _settle_lane(table) for name, table in lanes.items()}


def _settle_lane(table: LaneTable) -> LaneTable:
    max_wait = INTERACTIVE_MAX_WAIT if table.work_class == "interactive" else OTHER_MAX_WAIT
    timeout = TIMEOUT if table.fallback is None else FALLBACK_TIMEOUT
    return table.model_copy(
        update={
            "max_wait": max_wait if table.max_wait is None else table.max_wait,
            "timeout": timeout if table.timeout is None else table.timeout,
        }
    )


# ------------------------------------------------------------------ checks


def check_lanes(draft: Draft) -> Iterator[Wrong]:
    """Names that a header cannot tell apart."""
    folded: dict[str, str] = {}
    for name in draft.names("lanes"):
        first = folded.setdefault(name.lower(), name)
        if first != name:
            hint = "headers do not tell case: rename one"
            yield ("lanes", name), f"is named twice: also as {first}", hint


# ------------------------------------------------------------------ the catalog's record


def build_lane(name: str, table: LaneTable) -> catalog.Lane:
    """The record of a table that was settled and found right."""
    return catalog.Lane(
        name,
        work_class=WorkClass[table.work_class.upper()],
        policy=table.policy,
        priority=table.priority,
        max_wait_ms=table.max_wait or Millis(0),
        timeout_ms=table.timeout or Millis(0),
        queue_max=table.queue_max,
        concurrency=table.concurrency,
        fallback=table.fallback,
        capture=table.capture,
        private=table.private,
    )
