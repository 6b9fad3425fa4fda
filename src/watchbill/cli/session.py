"""What every command that talks to the daemon needs: the root, the client, the terminal."""

import os
from pathlib import Path
from typing import NamedTuple

from watchbill.cli.client import Client, find_address
from watchbill.cli.terminal import Terminal
from watchbill.errors import NotReachable
from watchbill.root import Root, find_root

__all__ = ["Session", "open_for_doctor", "open_session"]


class Session(NamedTuple):
    """The context of one command."""

    root: Root
    client: Client
    terminal: Terminal


def open_session(url: str | None = None, root: Path | None = None, *, quiet: bool = False) -> Session:
    """Finds root and daemon; sends nothing yet."""
    found = find_root(root)
    key = os.environ.get("WATCHBILL_API_KEY")
    address = find_address(url, found, is_named=root is not None)
    client = Client(address.url, key, found, is_trusted=address.is_trusted)
    return Session(found, client, Terminal(quiet=quiet))


def open_for_doctor(
    url: str | None, root: Path | None, *, quiet: bool
) -> tuple[Root, Client | None, Terminal]:
    """As `open_session`; without a client where no daemon runs on the root that was named."""
    try:
        return open_session(url, root, quiet=quiet)
    except NotReachable:
        return find_root(root), None, Terminal(quiet=quiet)
