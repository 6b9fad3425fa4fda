"""`signal`: leave a signal for an agent in the shared folder. Standard library only."""

import contextlib
from pathlib import Path

from watchbill.cli.fleet_root import find_fleet
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import ConfigError
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.signals import Order, send
from watchbill.suggest import did_you_mean

__all__ = ["ORDERS", "send_signal"]

ORDERS = tuple(order.value for order in Order)


def send_signal(agent: str, order: str, task: str, *, root: Path | None, quiet: bool) -> int:
    """`signal`. Raises ConfigError for a signal that no agent could obey."""
    if order not in ORDERS:
        raise ConfigError(f"{order} is not a signal; {did_you_mean(order, list(ORDERS))}")
    fleet, wanted = find_fleet(root), Order(order)
    if wanted.is_about_a_task != bool(task):
        what = (
            "needs the name of a task" if wanted.is_about_a_task else "is about the agent and takes no task"
        )
        example = f"{agent} {order} TASK" if wanted.is_about_a_task else f"{agent} {order}"
        raise ConfigError(f"{order} {what}; write: watchbill signal {example}")
    places.check_root(fleet)
    known = places.agents_in(FolderDisk(fleet).names(places.PROCESSING))
    if agent not in known:
        hint = did_you_mean(agent, known) or "none has joined it yet"
        raise ConfigError(f"{agent} is not an agent of {fleet}; {hint}")
    send(FolderDisk(fleet), agent, wanted, task)
    about, terminal = f" {task}" if task else "", Terminal(quiet=quiet)
    terminal.note(f"told {agent} to {order}{about}; it removes the signal once it has obeyed")
    if task and task not in (held := _tasks_of(fleet, agent)):
        terminal.note(plain(f"{agent} has no task {task} now; it has {', '.join(held) or 'none'}"))
    return 0


def _tasks_of(fleet: Path, agent: str) -> list[str]:
    """The tasks that an agent holds."""
    board = Board(FolderDisk(fleet))
    found: list[str] = []
    for name in board.held_by(agent):
        with contextlib.suppress(FileNotFoundError):  # it has ended since
            slip = board.read(agent, name)
            found += [] if slip is None else [slip.task]
    return found
