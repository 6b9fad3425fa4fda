"""Rivals: another living agent with the name of this one, or with one of its cards. Such an agent must not start.

An agent of this machine lives while its process does, which its kernel says. One of another machine lives if its
heartbeat moves while it is watched. A heartbeat that this agent left before its machine was started anew is no rival's:
a private file has the boot of its former life.
"""

import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from watchbill.errors import OursError
from watchbill.files.atomic import replace_file
from watchbill.files.host import boot_id
from watchbill.fleet import limits
from watchbill.fleet.agent.file_thread import FileThread
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import STOPPED
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, kernel_says
from watchbill.fleet.logs import Part

__all__ = ["Rivals"]

_LOG = Part.AGENT.logger


@dataclass(frozen=True, slots=True)
class Rivals:
    """The rivals of one agent."""

    name: str
    told_root: str  # the shared folder in commands for people
    folder: Path  # the agent's private one
    files: FileThread
    #: Reads the heartbeat of this name in the shared folder; blocks.
    read_former: Callable[[], Heartbeat | None]

    async def refuse_namesake(self, goes_on: Callable[[], Awaitable[bool]]) -> None:
        """Raise OursError when another agent of this name lives: its kernel says so, or its heartbeat moves.

        `goes_on` waits a moment between two looks, and is False when the agent is to leave."""
        former = await self.files.do(self.read_former)
        if former is None or former.report.state == STOPPED:
            return
        pulse = former.pulse
        if pulse.boot_id == boot_id():
            if pulse.pid != os.getpid() and kernel_says(pulse.pid, pulse.start_time):
                raise self._lives(former)
            return
        if pulse.boot_id == await self.files.do(self._former_boot):
            return  # our own, before this machine was started anew
        seconds = limits.AGENT_RIVAL_WATCH_MS // 1000
        host = former.report.host or "another machine"
        _LOG.info("an agent %s was seen on %s: watching for %s s", self.name, host, seconds)
        await self._watch(pulse, goes_on)

    def refuse_taken_card(self, devices: Collection[str], others: Mapping[str, Heartbeat]) -> None:
        """Raise OursError when a card of ours belongs to another agent that lives on this machine: both would count its
        whole budget. Agents of other machines have other cards by the same names."""
        own = {device for device in devices if device.startswith("gpu")}
        for name, heartbeat in others.items():
            pulse, taken = heartbeat.pulse, sorted(own.intersection(heartbeat.report.devices))
            is_here = pulse.boot_id == boot_id() and heartbeat.report.state != STOPPED
            if taken and is_here and kernel_says(pulse.pid, pulse.start_time):
                stop = places.fleet_command(self.told_root, "signal", name, "stop")
                raise OursError(
                    f"{taken[0]} belongs to the agent {name}, which runs with pid {pulse.pid}",
                    hint=f"stop that one with {stop}, or give this one another card",
                )

    def note_boot(self) -> None:
        """Note the boot of this life, for the next one. Blocks."""
        replace_file(self._boot_file, boot_id().encode())

    async def _watch(self, pulse: Pulse, goes_on: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + limits.AGENT_RIVAL_WATCH_MS / 1000
        while time.monotonic() < deadline:
            now = await self.files.do(self.read_former)
            if now is not None and now.pulse != pulse:
                raise self._lives(now)
            if not await goes_on():
                return

    def _lives(self, rival: Heartbeat) -> OursError:
        """That another agent of this name lives, and where."""
        where = f"on the host {rival.report.host} " if rival.report.host else ""
        stop = places.fleet_command(self.told_root, "signal", self.name, "stop")
        return OursError(
            f"an agent {self.name} runs already, {where}with pid {rival.pulse.pid}",
            hint=f"stop that one with {stop}, or give this one another name",
        )

    @property
    def _boot_file(self) -> Path:
        return self.folder / "boot"

    def _former_boot(self) -> str:
        try:
            return self._boot_file.read_text()
        except FileNotFoundError:
            return ""
