"""`approve`: the same as `plan approve`, for people who only answer questions."""

from typing import Annotated

from cyclopts import Parameter

from watchbill.cli import plan
from watchbill.cli.options import FleetRoot

__all__ = ["approve"]


def approve(
    tasks: Annotated[
        list[str] | None,
        Parameter(help="Names of tasks that wait. Without any, or with the word list: list them."),
    ] = None,
    /,
    *,
    batch: Annotated[
        str | None,
        Parameter(
            name="--batch", show_default=False, help="The batch. Default: the newest that has this task."
        ),
    ] = None,
    json: Annotated[bool, Parameter(negative="", show_default=False, help="Print JSON.")] = False,
    root: FleetRoot = None,
    quiet: Annotated[bool, plan.QUIET] = False,
) -> int:
    """List the tasks of plans that wait for a person, or let some of them run.

    The same as: watchbill plan approve. To fail a task instead: watchbill plan deny TASK

    Example: watchbill approve install
    """
    return plan.approve(None if tasks == ["list"] else tasks, batch=batch, json=json, root=root, quiet=quiet)
