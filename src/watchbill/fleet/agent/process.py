"""An agent as a process: its private folder, its lock, what an earlier one left behind, and signals.

    STATE/agents/NAME.FLEET/      private to this agent on this machine, never in the shared folder
        lock                      one process per agent and machine
        run/engines/              the record of its guard
        outputs/                  long outputs of tasks until they are reported
        held                      there while the agent claims nothing
        mirror/                   the files of its tasks, where the shared folder is behind a door

The folder's mark is in the environment of every task, so that the next start finds what a killed one left.
"""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from watchbill.errors import OursError
from watchbill.files.disk import DISK_FULL, fault_of
from watchbill.fleet import limits
from watchbill.fleet.agent.host import HostMemory, PrivateDaemon, find_host
from watchbill.fleet.agent.loop import Agent, AgentOptions
from watchbill.fleet.agent.shared_folder import MirroredFolder
from watchbill.fleet.door.caller import BrokerSession, refuse_small_messages
from watchbill.fleet.door.wire import Op
from watchbill.fleet.folder import places
from watchbill.fleet.logs import Part
from watchbill.processes import reap
from watchbill.processes.device_lock import HostLock, LockHeld
from watchbill.root import Root
from watchbill.spool.jetstream.reach import Reach

__all__ = ["DeviceOptions", "private_folder", "run_agent", "run_agent_behind_door"]

_HOW_TO_OPEN = "look at [nats] here, and at `watchbill door` on the machine with the shared folder"
_LOG = Part.AGENT.logger


def private_folder(state: Path, name: str, fleet_id: str) -> Path:
    """Where an agent of this fleet keeps what is its own."""
    return state / "agents" / f"{places.check_agent_name(name)}.{fleet_id}"


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The card of an agent, and what it does with it."""

    devices: tuple[str, ...]
    model: str = ""
    port: int = 0
    llm_slots: int = 1


def run_agent(
    name: str,
    root: Path,
    state: Path,
    *,
    cpu_slots: int,
    once: bool = False,
    device: DeviceOptions | None = None,
) -> int:
    """Runs an agent until it is told to leave. Raises OursError when it must not start."""
    fleet_id = places.wait_for_root(root, limits.FLEET_WAIT_MS, _LOG.warning)
    return _run_one(
        lambda folder: AgentOptions(name, root, folder, cpu_slots, once=once, key=_key()),
        name,
        fleet_id,
        state,
        device,
    )


def run_agent_behind_door(
    name: str,
    reach: Reach,
    subject: str,
    state: Path,
    *,
    cpu_slots: int,
    once: bool = False,
    device: DeviceOptions | None = None,
) -> int:
    """The same for an agent that reaches the shared folder over a broker."""
    fleet_id = _wait_for_door(reach, subject, name)
    session = BrokerSession(reach, subject, name)

    def options(folder: Path) -> AgentOptions:
        shared = MirroredFolder(session, subject, name, folder / "mirror")
        return AgentOptions(
            name,
            shared.root,
            folder,
            cpu_slots,
            once=once,
            key=_key(),
            shared=shared,
            secrets=reach.variables,
        )

    try:
        return _run_one(options, name, fleet_id, state, device)
    finally:
        session.close()


def _wait_for_door(reach: Reach, subject: str, name: str) -> str:
    """The id of the fleet behind a door, once it answers. Raises OursError where it does not, or refuses this agent."""
    session = BrokerSession(
        replace(reach, wait_s=min(reach.wait_s, limits.DOOR_LOOK_MS / 1000)), subject, name
    )
    deadline, has_told = time.monotonic() + limits.FLEET_WAIT_MS / 1000, False
    try:
        while True:
            try:
                told = session.call(Op.HELLO).fields
                refuse_small_messages(session.link)
                return told.text("fleet")
            except OSError as error:
                if error.errno != errno.ETIMEDOUT or session.link.is_refused or time.monotonic() >= deadline:
                    raise OursError(str(error.strerror), hint=_HOW_TO_OPEN) from None
                if not has_told:
                    _LOG.warning("%s; waiting for %d s", error.strerror, limits.FLEET_WAIT_MS // 1000)
                    has_told = True
    finally:
        session.close()


def _key() -> str:
    return os.environ.get("WATCHBILL_API_KEY", "")


def _run_one(
    options: Callable[[Path], AgentOptions],
    name: str,
    fleet_id: str,
    state: Path,
    device: DeviceOptions | None,
) -> int:
    """Run an agent whose fleet is there. A disk that is full at its start is waited for, as a running agent does."""
    has_told = False
    while True:
        try:
            _run_life(options, name, fleet_id, state, device)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            if not has_told:
                _LOG.error("%s: %s; it starts when there is room", error.filename or state, error.strerror)
            has_told = True
        else:
            return 0
        time.sleep(limits.ROOM_LOOK_MS / 1000)


def _run_life(
    options: Callable[[Path], AgentOptions],
    name: str,
    fleet_id: str,
    state: Path,
    device: DeviceOptions | None,
) -> None:
    """One try; the options are made when the private folder is this agent's own. Raises OSError if it cannot start."""
    folder = private_folder(state, name, fleet_id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = HostLock(folder / "lock")
    try:
        lock.take(f"the agent {name}")
    except LockHeld as held:
        raise OursError(
            f"{held.holder} of this fleet runs already", hint="stop that one, or give this one another name"
        ) from None
    try:
        for left in reap(folder):
            _LOG.warning("ended a process of the life before: %s %s", left.pid, left.command)
        asyncio.run(_run(options(folder), state, device))
    finally:
        lock.release()


async def _run(options: AgentOptions, state: Path, device: DeviceOptions | None) -> None:
    if device is None:
        await _serve(Agent(options))
        return
    private: PrivateDaemon | None = None
    try:
        if (url := os.environ.get("WATCHBILL_URL") or find_host(Root(state))) is None:
            if (fault := fault_of(options.folder)) is not None:
                raise fault  # a daemon would not start there, and could not say why
            _LOG.info("no daemon runs on %s: starting one for this agent", state)
            private = PrivateDaemon(
                Root(options.folder / "daemon", is_named=True),
                _config(),
                device.devices,
                has_model=bool(device.model),
            )
            url = await private.start()
        await _serve_with(url, options, device)
    finally:
        if private is not None:
            await private.stop()


async def _serve_with(url: str, options: AgentOptions, device: DeviceOptions) -> None:
    memory = HostMemory(
        url, device.devices, options.name, model=device.model, port=device.port, llm_slots=device.llm_slots,
        key=options.key,
    )  # fmt: skip
    try:
        await memory.open()
        await _serve(Agent(options, memory))
    finally:
        await memory.close()


async def _serve(agent: Agent) -> None:
    loop = asyncio.get_running_loop()
    times = 0

    def on_signal() -> None:
        nonlocal times
        times += 1
        agent.leave(limits.AGENT_DRAIN_MS if times == 1 else 0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await agent.run()


def _config() -> Path | None:
    """The config that the environment names; else the private daemon finds the usual one."""
    named = os.environ.get("WATCHBILL_CONFIG")
    return Path(named) if named else None
