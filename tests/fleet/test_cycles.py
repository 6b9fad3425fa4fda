"""The two cycles of an agent, and that it does not wait for them where it can hear the folder."""

import asyncio
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from support.eventually import eventually
from support.fleet_rig import FleetRig, quicken, running_agent
from watchbill.fleet import limits
from watchbill.fleet.agent.board_client import BoardClient, Round
from watchbill.fleet.agent.loop import AgentOptions
from watchbill.fleet.agent.memory import DeviceState, NoDevice
from watchbill.fleet.agent.work import Finished, Setting
from watchbill.fleet.folder import places
from watchbill.fleet.folder.heartbeat import read_heartbeat
from watchbill.fleet.folder.signals import Order, pending, send
from watchbill.fleet.matching.claiming import Health, Standing

HOUR_MS = 3_600_000
NEVER = ("AGENT_INTERNAL_MS", "AGENT_EXTERNAL_MS", "AGENT_POLL_BUSY_MS", "AGENT_POLL_IDLE_MS")


@pytest.fixture
def rig(tmp_path: Path) -> FleetRig:
    return FleetRig(tmp_path / "shared")


def options(rig: FleetRig) -> AgentOptions:
    return AgentOptions("cpu-1", rig.root, rig.root.parent / "private", cpu_slots=2)


def beats(rig: FleetRig) -> int:
    """How often the agent has shown that it lives."""
    heartbeat = read_heartbeat(rig.disk, "cpu-1")
    return 0 if heartbeat is None else heartbeat.pulse.seq


def test_the_cycles_take_5_and_30_seconds() -> None:
    """FLEET-03: the internal one for signals and finished workers, the external one for the heartbeat."""
    assert (limits.AGENT_INTERNAL_MS, limits.AGENT_EXTERNAL_MS) == (5_000, 30_000)


async def test_work_and_signals_are_heard_at_once_between_two_cycles(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-03: with cycles of an hour a task is claimed, run and reported, its successor follows as soon as the worker
    is done, and a signal is obeyed."""
    for name in NEVER:
        monkeypatch.setattr(limits, name, HOUR_MS)
    async with running_agent(options(rig)):
        await eventually(lambda: beats(rig) > 0)
        rig.submit("b1", "### a\n- **command**: `true`\n### b\n- **command**: `true`\n- **depends_on**: a\n")
        await eventually(rig.turn)
        assert [result["why"] for result in rig.results("cpu-1")] == ["done", "done"]
        send(rig.disk, "cpu-1", Order.HOLD)
        await eventually(lambda: not pending(rig.disk, "cpu-1"))


async def test_the_coordinators_agent_is_woken_by_its_own_slips_alone(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-03: it looked at the queue for each task of the others, in the moment in which these wanted to start."""
    for name in NEVER:
        monkeypatch.setattr(limits, name, HOUR_MS)
    rounds: list[Standing | None] = []
    real = BoardClient.round

    def counted(
        board: BoardClient, setting: Setting, finished: deque[Finished], standing: Standing | None, now: int
    ) -> Round:
        rounds.append(standing)
        return real(board, setting, finished, standing, now)

    monkeypatch.setattr(BoardClient, "round", counted)
    async with running_agent(replace(options(rig), name=places.BRAIN)):
        await eventually(lambda: len(rounds) == 1)
        for number in range(10):
            rig.submit(f"b{number}", "### t\n- **command**: `true`\n", plan=f"p{number}")
            rig.turn()
            await asyncio.sleep(0.01)
        rig.submit("own", "### t\n- **command**: `true`\n- **executor**: brain\n")
        rig.turn()
        await eventually(lambda: len(rig.results(places.BRAIN)) == 1)
    assert len(rig.disk.names(places.QUEUE)) == 10
    assert len(rounds) <= 4  # the first, a claim, a report, and perhaps one at the end


async def test_an_idle_agent_beats_with_its_external_cycle_only(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-03: three heartbeats without any change take at least two external cycles, not internal ones."""
    quicken(monkeypatch, AGENT_INTERNAL_MS=10, AGENT_EXTERNAL_MS=300)
    async with running_agent(options(rig)):
        await eventually(lambda: beats(rig) > 0)
        first, began = beats(rig), time.monotonic()
        await eventually(lambda: beats(rig) >= first + 3)
        assert time.monotonic() - began >= 2 * 0.3


async def test_a_card_that_becomes_constrained_is_shown_with_the_next_internal_cycle(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-03, FLEET-04: `gpus` showed it with the next heartbeat, half a minute later."""
    quicken(monkeypatch, AGENT_INTERNAL_MS=10, AGENT_EXTERNAL_MS=HOUR_MS)
    memory = NoDevice()
    async with running_agent(options(rig), memory):
        await eventually(lambda: beats(rig) > 0)
        memory.state = DeviceState(health=Health.CONSTRAINED, constraints=("86 C",))
        await eventually(lambda: "86 C" in str((rig.root / places.heartbeat_path("cpu-1")).read_text()))


class FullAtFirst(NoDevice):
    """A card whose memory a model still has when a task asks for it first."""

    state = DeviceState(("gpu:1",), ("GPU-1",), 4_000, is_open=True)
    has_refused = False

    async def borrow(self, loan: str, vram_mb: int) -> bool:
        was_refused, self.has_refused = self.has_refused, True
        return was_refused


async def test_a_task_whose_memory_was_not_there_is_tried_again_soon(
    rig: FleetRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEET-05: the only agent that was left passed it over for a minute, while its card was empty."""
    quicken(monkeypatch, LOAN_AGAIN_MS=10)
    memory = FullAtFirst()
    async with running_agent(options(rig), memory):
        rig.submit("b1", "### t\n- **task_class**: script\n- **command**: `true`\n")
        await eventually(rig.turn)
    assert memory.has_refused and [result["why"] for result in rig.results("cpu-1")] == ["done"]
