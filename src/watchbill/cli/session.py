"""What every command that talks to the daemon holds: the root, the way to the daemon, the terminal.

Also the listings that must answer in a blink. They live here, without an import of the command-line framework, so that
`quick` and the full command line share one implementation.
"""

import os
from pathlib import Path
from typing import NamedTuple

from watchbill.cli.client import Client, find_address, parse
from watchbill.cli.status import draw_catalog, draw_requests, draw_status, fields, rows_of
from watchbill.cli.terminal import Terminal
from watchbill.errors import NotReachable
from watchbill.root import Root, find_root

__all__ = ["Session", "open_for_doctor", "open_session", "show_models", "show_requests", "show_status"]


class Session(NamedTuple):
    """One command's surroundings."""

    root: Root
    client: Client
    terminal: Terminal


def open_session(url: str | None = None, root: Path | None = None, *, quiet: bool = False) -> Session:
    """Finds root and daemon; talks to nobody yet."""
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


def show_status(session: Session, *, json: bool) -> None:
    """Devices, models and lanes at one glance."""
    content = session.client.get("/wb/v1/status")
    if json:
        session.terminal.show_json(content)
        return
    lines = draw_status(fields(parse(content)), session.client.url, session.root, session.terminal)
    session.terminal.show(*lines)


def show_models(session: Session, *, json: bool) -> None:
    """The models that can be asked for."""
    content = session.client.get("/v1/models")
    if json:
        session.terminal.show_json(content)
        return
    models = fields(fields(session.client.get_json("/wb/v1/status")).get("models"))
    listed = rows_of(parse(content), "data")
    session.terminal.show(*draw_catalog(listed, models, session.root, session.terminal))


def show_requests(session: Session, *, json: bool) -> None:
    """Every open request."""
    content = session.client.get("/wb/v1/requests")
    if json:
        session.terminal.show_json(content)
        return
    session.terminal.show(*draw_requests(rows_of(parse(content), "requests"), session.terminal))
