"""Signals: small files by which the coordinator, or a person with nothing but a shell, tells an agent to do something.

    signals/AGENT.stop            finish, report, exit
    signals/AGENT.hold            claim nothing more, also after a new start; with `for_ms` in the file for so long
    signals/AGENT.resume          claim again
    signals/AGENT.abort[.TASK]    terminate the worker of one task; its id is in the name, or in the file as JSON
    signals/AGENT.kill[.TASK]     the same, with SIGKILL

The agent removes the file once it has obeyed, so a file that is still there was not obeyed yet. A file that names no
task may be half written: it is obeyed at a later look, and one that makes no sense is left and told of. What is no file
is no signal, whatever its name: a folder could not be removed.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import HeldWhy
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.values import Fields, encode, fields_of
from watchbill.names import check_plain_name

__all__ = ["Order", "Signal", "Stray", "obeyed", "pending", "send", "strays"]

#: TASK or BATCH.TASK.
_TASK = re.compile(r"[A-Za-z0-9._-]{1,255}")


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


class Stray(Enum):
    """Why no agent obeys a file among the signals."""

    NO_SIGNAL = "no signal is called so"
    NO_AGENT = "no agent of this name lives"
    NO_FILE = "a signal is a small file, and this is none; remove it"


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal file."""

    order: Order
    task: str  # "" for those about the agent, and where an abort names none
    file: str
    why: HeldWhy = HeldWhy.PERSON  # of a hold, and which hold a resume lifts: a person's lifts every one
    for_ms: int = 0  # how long a hold lasts; 0: until a resume
    is_garbled: bool = False  # what is in the file of an abort names no task


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


def strays(disk: Disk, living: Collection[str]) -> Iterator[tuple[str, Stray]]:
    """The files that no agent obeys."""
    for name in disk.names(places.SIGNALS)[: limits.SIGNALS_MAX]:
        words = name.split(".")[1:]
        if not any(word in _WORDS for word in words):
            yield name, Stray.NO_SIGNAL
        elif not any(name.startswith(f"{agent}.") for agent in living):
            yield name, Stray.NO_AGENT
        elif not any(_order_of(agent, name) for agent in living):
            yield name, Stray.NO_SIGNAL
        elif _is_no_file(disk, name):
            yield name, Stray.NO_FILE


def obeyed(disk: Disk, signal: Signal) -> None:
    """Remove a signal that was obeyed."""
    disk.remove(f"{places.SIGNALS}/{signal.file}")


def _signal(disk: Disk, agent: str, name: str) -> Signal | None:
    order = _order_of(agent, name)
    if order is None:
        return None
    try:
        content = _content(disk, name)
    except NotAFile:
        return None
    if order.is_about_a_task:
        task = name.removeprefix(f"{agent}.{order.value}").removeprefix(".")
        return Signal(order, task, name) if task else _about_a_task(order, name, content)
    said = _fields(content or b"")  # mostly nothing; where its sender keeps it private its name says enough
    is_for_failures = said.text("why") == HeldWhy.FAILURES.value
    why = HeldWhy.FAILURES if is_for_failures else HeldWhy.PERSON
    return Signal(order, "", name, why, max(0, said.whole("for_ms")) if is_for_failures else 0)


def _order_of(agent: str, name: str) -> Order | None:
    return _WORDS.get(name.removeprefix(f"{agent}.").partition(".")[0])


def _about_a_task(order: Order, name: str, content: bytes | None) -> Signal:
    """An abort or a kill whose task is in the file: as JSON, or by its name alone."""
    if content is None:  # it may be about one task, and is not taken for all of them
        return Signal(order, "", name, is_garbled=True)
    said = _fields(content)
    task = said.text("task_id") or said.text("task")
    if not task and not said.all():
        task = content.decode("utf-8", "replace").strip()
    is_garbled = bool(task) and not _TASK.fullmatch(task)
    return Signal(order, "" if is_garbled else task, name, is_garbled=is_garbled)


def _content(disk: Disk, name: str) -> bytes | None:
    """What is in the file, as its sender or a person wrote it; None where only they may read it. Raises NotAFile."""
    try:
        return disk.read(f"{places.SIGNALS}/{name}", limits.FLEET_FILE_BYTES_MAX)
    except FileNotFoundError:
        return b""
    except PermissionError:
        return None


def _is_no_file(disk: Disk, name: str) -> bool:
    try:
        _content(disk, name)
    except NotAFile:
        return True
    return False


def _fields(content: bytes) -> Fields:
    try:
        return fields_of(content)
    except ValueError:
        return Fields({})


_WORDS = {order.value: order for order in Order}
