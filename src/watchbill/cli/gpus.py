"""`gpus`: the agents of a shared folder and their cards."""

from typing import Annotated

from cyclopts import Parameter

from watchbill.cli.cards import show_cards
from watchbill.cli.options import QUIET, FleetRoot, Json

__all__ = ["gpus"]


def gpus(
    *,
    root: FleetRoot = None,
    follow: Annotated[
        bool, Parameter(negative="", show_default=False, help="Show it again every 2 s until Ctrl-C.")
    ] = False,
    json: Json = False,
    quiet: Annotated[bool, QUIET] = False,
) -> int:
    """Show the agents of a shared folder and their cards.

    Temperature, power, memory, utilisation, clock and throttling of each card, and what its agent does. Reads the
    shared folder alone: no daemon is needed.

    Example: watchbill gpus --root /mnt/shared --follow
    """
    return show_cards(root, follow=follow, json=json, quiet=quiet)
