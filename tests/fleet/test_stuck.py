"""Signs of progress: a task that is quiet and works is left alone, and one that does nothing is found (FLEET-07)."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from support.fleet_rig import FleetRig, marked_processes, quicken, running_agent
from watchbill import limits
from watchbill.fleet import limits as fleet_limits
from watchbill.fleet.agent.loop import AgentOptions
from watchbill.fleet.coordinator.watchers import Held, Ladder, Step
from watchbill.fleet.folder import places
from watchbill.fleet.folder.headway import Headway
from watchbill.fleet.folder.heartbeat import read_heartbeat
from watchbill.processes.crew import Crew, CrewEvent, Ended, Job, Measured

HOUR_MS = 3_600_000

# ------------------------------------------------------------------ what counts


@pytest.mark.parametrize(
    ("later", "counts"),
    [
        (Headway(10, 20, 5_000, 7), False),
        (Headway(11, 20, 5_000, 7), True),
        (Headway(10, 21, 5_000, 7), True),
        (Headway(10, 20, 5_000 + fleet_limits.HEADWAY_CPU_MS, 7), True),
        (Headway(10, 20, 5_000 + fleet_limits.HEADWAY_CPU_MS - 1, 7), False),  # a timer that ticks is no work
        (Headway(10, 20, 5_000, 8), True),
        (Headway(10, 20, 5_000, 6), True),  # another machine's clock, or a file that replaces another
        (Headway(0, 0, 0, 7), False),  # processes that ended take their figures along
    ],
)
def test_output_processor_time_and_files_are_signs_of_progress(later: Headway, counts: bool) -> None:
    """FLEET-07."""
    assert later.is_beyond(Headway(10, 20, 5_000, 7)) is counts
    assert Headway.of(later.fields()) == later


def test_an_agent_that_tells_nothing_about_a_task_shows_no_progress() -> None:
    """FLEET-07: a heartbeat of an earlier version, or what somebody else wrote into it."""
    for value in (None, 5, "x", [], {}, {"cpu_ms": "x"}, {"cpu_ms": True}):
        assert Headway.of(value) == Headway()


def climb(headways: list[Headway], timeout_ms: int = 0, step_ms: int = 60_000) -> list[Step]:
    ladder, steps = Ladder(), []
    for number, headway in enumerate(headways):
        held = Held("slip", "cpu-1", headway, timeout_ms)
        steps += [step for _, step in ladder.look([held], number * step_ms)]
    return steps


def test_a_task_with_progress_is_never_stuck_and_one_that_stops_is() -> None:
    """FLEET-07: the time counts from the last sign, and slow work adds up to one."""
    slowly = [Headway(cpu_ms=number * fleet_limits.HEADWAY_CPU_MS // 10) for number in range(300)]
    assert climb(slowly) == []
    assert climb([*slowly, *[slowly[-1]] * 10]) == []
    assert climb([*slowly, *[slowly[-1]] * 40])[0] is Step.ABORT


# ------------------------------------------------------------------ how it is measured


class Measuring:
    """A crew that is measured again and again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.ended: list[str] = []
        self.last: dict[str, Measured] = {}
        self.times = 0
        self.crew = Crew(folder, self.hear)
        self.crew.open()

    def hear(self, event: CrewEvent) -> None:
        if isinstance(event, Measured):
            self.last[event.id] = event
            self.times += 1
        elif isinstance(event, Ended):
            self.ended.append(event.id)

    def bash(self, job: str, script: str) -> None:
        env = {"CREW_TEST": str(self.crew.folder)}
        self.crew.start(Job(job, ("bash", "--noprofile", "--norc", "-c", script), env))

    async def measure(self, job: str) -> Measured:
        self.last.pop(job, None)
        self.crew.measure()
        return await eventually(lambda: self.last.get(job))

    async def grows(self, job: str, key: str) -> None:
        """Three rises, so that neither a start nor an end is taken for work."""
        for _ in range(3):
            before = getattr(await self.measure(job), key)

            async def has_grown(before: int = before) -> bool:
                return getattr(await self.measure(job), key) > before

            await eventually(has_grown)


@pytest.fixture
async def measuring(tmp_path: Path) -> AsyncIterator[Measuring]:
    made = Measuring(tmp_path / "crew")
    yield made
    await made.crew.close()


BURN = "i=0; while :; do i=$((i+1)); done"


@pytest.mark.parametrize(
    ("script", "key"),
    [
        (BURN, "cpu_ms"),
        (f"( {BURN} ) & wait", "cpu_ms"),
        (
            "while :; do ( i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done ); done",
            "cpu_ms",
        ),  # children that end
        (f"( setsid bash -c '{BURN}' & ); sleep 1000", "cpu_ms"),  # a daemon of its own
        ("while :; do echo x; sleep 0.02; done", "output_bytes"),
        ("while :; do echo x >&2; sleep 0.02; done", "output_bytes"),
        ("while :; do echo x >> $CREW_TEST/log; sleep 0.02; done", "written_bytes"),
    ],
)
async def test_the_work_of_a_whole_tree_is_measured(measuring: Measuring, script: str, key: str) -> None:
    """FLEET-07: whoever of the tree does it, and also when it has ended."""
    measuring.bash("a", script)
    await measuring.grows("a", key)


async def test_a_task_that_sleeps_shows_nothing_beside_one_that_works(measuring: Measuring) -> None:
    measuring.bash("idle", "echo begun; exec sleep 1000")
    measuring.bash("busy", BURN)
    await measuring.grows("busy", "cpu_ms")
    first = await measuring.measure("idle")
    await measuring.grows("busy", "cpu_ms")
    assert await measuring.measure("idle") == first
    assert first.output_bytes == len("begun\n")


async def test_a_measurement_of_no_task_and_of_an_ended_one_says_nothing(measuring: Measuring) -> None:
    measuring.crew.measure()
    measuring.bash("a", "true")
    await eventually(lambda: measuring.ended == ["a"])
    measuring.crew.measure()
    measuring.bash("b", "sleep 1000")
    await measuring.measure("b")
    assert list(measuring.last) == ["b"]


async def test_figures_do_not_fall_when_processes_end(measuring: Measuring) -> None:
    """A child that is left to the guard takes its processor time along when it ends."""
    measuring.bash("a", f"( setsid bash -c '{BURN}' & echo $! > $CREW_TEST/pid ); sleep 1000")
    await measuring.grows("a", "cpu_ms")
    most = (await measuring.measure("a")).cpu_ms
    burners = [pid for pid in marked_processes(f"CREW_TEST={measuring.crew.folder}") if BURN in _command(pid)]
    for pid in burners:
        os.kill(pid, 9)
    await eventually(lambda: not any(_command(pid) for pid in burners))
    assert (await measuring.measure("a")).cpu_ms >= most


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


# ------------------------------------------------------------------ from the process to the decision


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetRig:
    quicken(monkeypatch, HEADWAY_CPU_MS=20)
    return FleetRig(tmp_path / "shared")


def options(rig: FleetRig) -> AgentOptions:
    return AgentOptions("cpu-1", rig.root, rig.root.parent / "private", cpu_slots=8)


def told(rig: FleetRig) -> dict[str, Headway]:
    """What the last heartbeat tells about the running tasks."""
    heartbeat = read_heartbeat(rig.disk, "cpu-1")
    return {} if heartbeat is None else {task: found for (_, task), found in heartbeat.headway.items()}


def task(name: str, command: str, *keys: str) -> str:
    lines = "".join(f"- **{key}\n" for key in ("retries**: 0", *keys))
    return f"### {name}\n- **command**:\n  ```bash\n  {command}\n  ```\n{lines}"


UNTIL_GO = "while [ ! -e {BATCH_PATH}/go ]; do %s; done"
WAIT = "mkfifo {BATCH_PATH}/%s; read -r _ < {BATCH_PATH}/%s"
#: Tasks that get on without a word, each in its own way.
QUIET = {
    "counts": task("counts", UNTIL_GO % ":"),
    "prints": task("prints", UNTIL_GO % "echo x; sleep 0.02"),
    "writes": task("writes", UNTIL_GO % "echo x >> {BATCH_PATH}/elsewhere; sleep 0.02"),
    "makes": task(
        "makes", "touch {BATCH_PATH}/made; " + WAIT % ("makes", "makes"), "produces**: {BATCH_PATH}/made"
    ),
    "tells": task("tells", "touch {TASK_PATH}/alive; " + WAIT % ("tells", "tells")),
}
#: Tasks that only wait for a program on another machine, and the file that it touches.
ELSEWHERE = {"makes": "made", "tells": "tasks/tells/a1/alive"}


async def test_quiet_tasks_that_work_are_left_alone_and_an_idle_one_is_aborted(rig: FleetRig) -> None:
    """FLEET-07: real tasks, their agent's heartbeats, and three hours by the coordinator's clock."""
    rig.submit("b1", "".join(QUIET.values()) + task("sleeps", "sleep 1000"))
    async with running_agent(options(rig)):
        await eventually(lambda: not rig.turn() and len(told(rig)) == 6)
        clock_ms = int(time.monotonic() * 1000)
        for _ in range(36):
            before = told(rig)
            for file in ELSEWHERE.values():
                (rig.batch_folder("b1") / file).touch()

            def all_got_on(before: dict[str, Headway] = before) -> bool:
                now = told(rig)
                return all(now[name].is_beyond(before[name]) for name in QUIET)

            await eventually(all_got_on)
            clock_ms += limits.STUCK_AFTER_MS // 4
            rig.brain.turn(clock_ms)
        await eventually(lambda: [each["task"] for each in outcomes(rig, clock_ms, "fail")] == ["sleeps"])
        assert sorted(told(rig)) == sorted(QUIET)
        (rig.batch_folder("b1") / "go").touch()
        for name in ELSEWHERE:
            (rig.batch_folder("b1") / name).write_text("go\n")
        await eventually(lambda: len(outcomes(rig, clock_ms, "accept")) == 5)
    assert [result["why"] for result in rig.results("cpu-1")].count("aborted") == 1
    assert os.listdir(rig.root / places.SIGNALS) == []


def outcomes(rig: FleetRig, clock_ms: int, kind: str) -> list[dict[str, Any]]:
    rig.brain.turn(clock_ms)
    return rig.entries("b1", kind)


async def test_files_that_other_tasks_write_are_no_progress_of_this_one(rig: FleetRig) -> None:
    """FLEET-07: a pattern that others fill, too, says nothing about this task."""
    keys = ("produces**: {BATCH_PATH}/results/*.json",)
    rig.submit("b1", task("sleeps", "sleep 1000", *keys))
    results = rig.batch_folder("b1") / "results"
    async with running_agent(options(rig)):
        await eventually(lambda: not rig.turn() and "sleeps" in told(rig))
        results.mkdir(exist_ok=True)
        clock_ms = int(time.monotonic() * 1000)
        for number in range(8):
            (results / f"{number}.json").touch()
            before = read_heartbeat(rig.disk, "cpu-1")
            assert before is not None
            await eventually(lambda before=before: _seq(rig) > before.pulse.seq + 2)
            clock_ms += limits.STUCK_AFTER_MS // 4
            rig.brain.turn(clock_ms)
        await eventually(lambda: [each["task"] for each in outcomes(rig, clock_ms, "fail")] == ["sleeps"])


def _seq(rig: FleetRig) -> int:
    heartbeat = read_heartbeat(rig.disk, "cpu-1")
    return 0 if heartbeat is None else heartbeat.pulse.seq
