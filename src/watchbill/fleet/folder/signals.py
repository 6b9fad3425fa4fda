"""Signals: small files by which the coordinator, or a person with nothing but a shell, tells an agent to do something.

    signals/AGENT.stop            finish, report, exit
    signals/AGENT.hold            claim nothing more, also after a new start; with `for_ms` in the file for so long
    signals/AGENT.resume          claim again
    signals/AGENT.abort[.TASK]    terminate the worker of one task; its id is in the name, or in the file as JSON
    signals/AGENT.kill[.TASK]     the same, with SIGKILL

The agent removes the file once it has obeyed, so a file that is still there was not obeyed yet.
"""

from dataclasses import dataclass
from enum import Enum

from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import HeldWhy
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.values import Fields, encode, fields_of
from watchbill.names import check_plain_name

__all__ = ["Order", "Signal", "obeyed", "pending", "send"]


class Order(Enum):
    """What an agent is told."""

    STOP = "stop"
    HOLD = "hold"
    RESUME = "resume"
    ABORT = "abort"
    KILL = "kill"

    @property
    def is_about_a_task(self) -> bool:
        return self in (Order.ABORT, Order.KILL)


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal file."""

    order: Order
    task: str  # "" for those about the agent, and where an abort names none
    file: str
    why: HeldWhy = HeldWhy.PERSON  # of a hold, and which hold a resume lifts: a person's lifts every one
    for_ms: int = 0  # how long a hold lasts; 0: until a resume


def send(
    disk: Disk,
    agent: str,
    order: Order,
    task: str = "",
    *,
    why: HeldWhy = HeldWhy.PERSON,
    for_ms: int = 0,
) -> None:
    """Leave a signal. Sending it again changes nothing."""
    name = f"{places.check_agent_name(agent)}.{order.value}"
    if task:
        name += f".{check_plain_name(task, 'a task')}"
    about: dict[str, object] = (
        {"task_id": task} if why is HeldWhy.PERSON else {"why": why.value, "for_ms": for_ms}
    )
    disk.put(f"{places.SIGNALS}/{name}", encode(about) + b"\n")


def pending(disk: Disk, agent: str) -> list[Signal]:
    """The signals for an agent, in the order of their names. What is no signal is left where it is."""
    own = [name for name in disk.names(places.SIGNALS) if name.startswith(f"{agent}.")]
    found = (_signal(disk, agent, name) for name in own[: limits.SIGNALS_MAX])
    return [signal for signal in found if signal is not None]


def obeyed(disk: Disk, signal: Signal) -> None:
    """Remove a signal that was obeyed."""
    disk.remove(f"{places.SIGNALS}/{signal.file}")


def _signal(disk: Disk, agent: str, name: str) -> Signal | None:
    word, _, task = name.removeprefix(f"{agent}.").partition(".")
    try:
        order = Order(word)
    except ValueError:
        return None
    said = _said(disk, name)
    if order.is_about_a_task:
        return Signal(order, task or said.text("task_id") or said.text("task"), name)
    is_for_failures = said.text("why") == HeldWhy.FAILURES.value
    why = HeldWhy.FAILURES if is_for_failures else HeldWhy.PERSON
    return Signal(order, "", name, why, max(0, said.whole("for_ms")) if is_for_failures else 0)


def _said(disk: Disk, name: str) -> Fields:
    """What is in the file, as its sender or a person wrote it; mostly nothing."""
    try:
        return fields_of(disk.read(f"{places.SIGNALS}/{name}", limits.FLEET_FILE_BYTES_MAX))
    except (FileNotFoundError, ValueError, NotAFile):
        return Fields({})
