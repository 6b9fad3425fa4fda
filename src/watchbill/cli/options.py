"""Options that many commands share, declared once so that they are the same everywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from watchbill.cli.session import Session, open_session

__all__ = ["CONFIG_DEFAULT", "QUIET", "ROOT", "Common", "FleetRoot", "Json", "Where", "follow_option"]

_WHERE = Group("Which Watchbill", sort_key=90)

ROOT = Parameter(
    group=_WHERE,
    help="The state root. Default: $WATCHBILL_HOME, else ~/.local/share/watchbill.",
    show_default=False,
)
QUIET = Parameter(
    name=["--quiet", "-q"],
    negative="",
    group=_WHERE,
    help="Print only results and errors.",
    show_default=False,
)

#: `config/lookup.py` has the whole rule.
CONFIG_DEFAULT = "Default: $WATCHBILL_CONFIG, else that of the root's daemon, else as for `up`."

FleetRoot = Annotated[
    Path | None,
    Parameter(
        name="--root",
        show_default=False,
        help="The shared folder. Default: $WATCHBILL_FLEET, else [fleet] root of the config, else the daemon's "
        "ROOT/fleet.",
    ),
]
Json = Annotated[bool, Parameter(negative="", show_default=False, help="Print the API's JSON, unchanged.")]


def follow_option(text: str) -> Parameter:
    """`--follow`, with what it does in this command."""
    return Parameter(name=["--follow", "-f"], negative="", show_default=False, help=text)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Where:
    """Which root; for commands that need no daemon."""

    root: Annotated[Path | None, ROOT] = None
    quiet: Annotated[bool, QUIET] = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Common:
    """Which daemon; its key comes from $WATCHBILL_API_KEY, because options can be read by every user."""

    url: Annotated[
        str | None,
        Parameter(
            group=_WHERE,
            help="The daemon's address. Default: $WATCHBILL_URL, else the one that runs on this root. "
            "Its key comes from $WATCHBILL_API_KEY.",
            show_default=False,
        ),
    ] = None
    root: Annotated[Path | None, ROOT] = None
    quiet: Annotated[bool, QUIET] = False

    def session(self) -> Session:
        """The session that these options ask for."""
        return open_session(self.url, self.root, quiet=self.quiet)
