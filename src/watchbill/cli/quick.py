"""A fast path for the commands that are used most.

`status`, `models` and `requests` answer in under 150 ms, and importing the command-line framework takes twice
that. So these three are recognised here when they come with nothing but the options below; anything else, `--help`
and every mistake included, goes through the framework. Never reports an error: what it does not recognise, it
leaves to the framework.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from watchbill.errors import NotReachable

__all__ = ["Asked", "lead_with_command", "run_quickly", "understand"]

#: Options that may stand before the command, and whether a value follows.
LEADING = {"--root": True, "--url": True, "--config": True, "--quiet": False, "-q": False, "--json": False}


class Asked(NamedTuple):
    """A listing and the options it came with."""

    command: str
    url: str | None = None
    root: Path | None = None
    json: bool = False
    quiet: bool = False


def lead_with_command(arguments: Sequence[str]) -> list[str]:
    """Moves options that stand before the command behind it: `watchbill --root DIR status` is common.

    To the end, where every command takes them, but before a `--`: what follows that belongs to another command.
    """
    place = 0
    while place < len(arguments) and (name := arguments[place].partition("=")[0]) in LEADING:
        place += 2 if LEADING[name] and "=" not in arguments[place] else 1
    if not 0 < place < len(arguments) or arguments[place].startswith("-"):
        return list(arguments)
    options, rest = list(arguments[:place]), list(arguments[place:])
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *options, *rest[end:]]


def understand(arguments: Sequence[str]) -> Asked | None:
    """The listing that is asked for, or None if the framework has to read the arguments."""
    if not arguments or arguments[0] not in {"status", "models", "requests"}:
        return None
    asked, rest = Asked(arguments[0]), list(arguments[1:])
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        if name in {"--url", "--root"}:
            if not has_value and (not rest or rest[0].startswith("-")):
                return None
            value = value if has_value else rest.pop(0)
            if not value:
                return None
            asked = asked._replace(url=value) if name == "--url" else asked._replace(root=Path(value))
        elif has_value or name not in {"--json", "--quiet", "-q"}:
            return None
        else:
            asked = asked._replace(json=True) if name == "--json" else asked._replace(quiet=True)
    return asked


def run_quickly(asked: Asked) -> int:
    """Shows the listing, and returns the exit code. Without a daemon `status` tells the state of the fleet, if there
    is one."""
    if asked.command == "status" and asked.url is None and asked.root is not None and _is_fleet(asked.root):
        return _show_fleet(asked, asked.root)
    try:
        _show(asked)
    except NotReachable:
        fleet = os.environ.get("WATCHBILL_FLEET", "")
        if asked.command != "status" or asked.url or asked.root or not fleet or not _is_fleet(Path(fleet)):
            raise
        return _show_fleet(asked, Path(fleet))
    return 0


def _is_fleet(folder: Path) -> bool:
    """Whether a folder is the shared one of a fleet, and not the root of a daemon."""
    return (folder / "fleet.json").is_file()


def _show_fleet(asked: Asked, folder: Path) -> int:
    from watchbill.cli.plan_batches import show_status

    return show_status(None, follows=False, json=asked.json, root=folder, quiet=asked.quiet)


def _show(asked: Asked) -> None:
    from watchbill.cli.session import Session, open_session
    from watchbill.cli.status import show_models, show_requests, show_status

    shown: dict[str, Callable[[Session, bool], None]] = {
        "status": lambda session, json: show_status(session, json=json),
        "models": lambda session, json: show_models(session, json=json),
        "requests": lambda session, json: show_requests(session, json=json),
    }
    shown[asked.command](open_session(asked.url, asked.root, quiet=asked.quiet), asked.json)
