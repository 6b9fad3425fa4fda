"""`gpus`: the agents of a shared folder and their cards."""

from typing import Annotated

from cyclopts import Parameter

from watchbill.cli.bench import bench_cards
from watchbill.cli.cards import show_cards
from watchbill.cli.options import QUIET, FleetRoot, Json

__all__ = ["gpus"]


def gpus(
    *,
    root: FleetRoot = None,
    follow: Annotated[
        bool, Parameter(negative="", show_default=False, help="Show it again every 2 s until Ctrl-C.")
    ] = False,
    bench: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Measure the cards of this machine: load time, tokens per second, memory bandwidth.",
        ),
    ] = False,
    model: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="With --bench: the model to measure with. Default: the one of the card's agent, else one that is in "
            "memory, else the smallest.",
        ),
    ] = None,
    json: Json = False,
    quiet: Annotated[bool, QUIET] = False,
) -> int:
    """Show the agents of a shared folder and their cards.

    Temperature, power, memory, utilisation, clock and throttling of each card, what its agent does, and the last
    benchmark. Reads the shared folder alone: no daemon is needed.

    With --bench the daemon of this machine loads a model on each card and answers with it, behind all chat. What had
    to leave memory for that is loaded again. The figures are kept in the shared folder.

    Example: watchbill gpus --root /mnt/shared --follow
    """
    if bench:
        return bench_cards(root, model=model, json=json, quiet=quiet)
    return show_cards(root, follow=follow, json=json, quiet=quiet)
