"""The crew: many process trees behind one guard, with programs that try to get away (R55)."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.eventually import eventually
from support.fleet_rig import marked_processes
from support.stopping import stop
from watchbill.processes import limits, reap
from watchbill.processes.crew import Cause, Crew, CrewEvent, Ended, Job, LeaseHeard, Started

BASH = ("bash", "--noprofile", "--norc", "-c")


class Watched:
    """A crew and everything it has said."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.mark = f"CREW_TEST={folder}"
        self.events: list[CrewEvent] = []
        self.crew = Crew(folder, self.events.append)
        self.crew.open()

    def bash(
        self, job: str, script: str, *values: str, timeout_ms: int | None = None, grace_ms: int = 500
    ) -> None:
        env = {"CREW_TEST": str(self.crew.folder)}
        self.crew.start(Job(job, (*BASH, script, "test", *values), env, timeout_ms, grace_ms))

    def ended(self, job: str) -> list[Ended]:
        return [event for event in self.events if isinstance(event, Ended) and event.id == job]

    def pid_of(self, job: str) -> int:
        return next((event.pid for event in self.events if isinstance(event, Started) and event.id == job), 0)

    async def end_of(self, job: str) -> Ended:
        [ended] = await eventually(lambda: self.ended(job))
        return ended


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    made = Watched(tmp_path / "crew")
    yield made
    await made.crew.close()


def file_with(path: Path) -> int:
    """The number in a file, once it is there."""
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_job_reports_its_exit_code_and_both_outputs(watched: Watched) -> None:
    watched.bash("a", "echo out; echo err >&2; exit 3")
    ended = await watched.end_of("a")
    assert (ended.cause, ended.code) == (Cause.EXIT, 3)
    assert (ended.out.tail, ended.err.tail) == (b"out\n", b"err\n")


async def test_values_arrive_byte_for_byte(watched: Watched) -> None:
    """R51: also bytes that are no UTF-8, which the file system may hold."""
    value = os.fsdecode(b"a\xff b\n$(id)'\"")
    watched.bash("a", 'printf %s "$1"', value)
    assert (await watched.end_of("a")).out.tail == b"a\xff b\n$(id)'\""


async def test_many_jobs_run_at_once_and_each_ends_once(watched: Watched) -> None:
    for number in range(100):
        watched.bash(f"j{number}", f"exit {number}")
    await eventually(lambda: len([each for each in watched.events if isinstance(each, Ended)]) == 100)
    codes = [watched.ended(f"j{number}")[0].code for number in range(100)]
    assert codes == list(range(100))


async def test_a_command_that_cannot_be_started_says_why(watched: Watched) -> None:
    watched.crew.start(Job("a", ("no-such-program-here",), {}))
    ended = await watched.end_of("a")
    assert ended.cause is Cause.NOT_STARTED and isinstance(ended.error, FileNotFoundError)


async def test_a_start_costs_little_more_than_a_spawn(watched: Watched) -> None:
    """A guard of its own for each would cost 70 ms and more; the bound is generous for a busy machine."""
    watched.bash("warm", "true")
    await watched.end_of("warm")
    began = time.monotonic()
    for number in range(50):
        watched.crew.start(Job(f"j{number}", ("true",), {}))
        await watched.end_of(f"j{number}")
    assert (time.monotonic() - began) / 50 < 0.05


async def test_the_environment_of_tasks_holds_no_traps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bash would run a file that BASH_ENV names, and take functions from the environment."""
    trap = tmp_path / "trap"
    trap.write_text("echo trapped\n")
    monkeypatch.setenv("BASH_ENV", str(trap))
    monkeypatch.setenv("BASH_FUNC_true%%", "() { echo trapped; }")
    monkeypatch.setenv("SHELLOPTS", "xtrace")
    monkeypatch.setenv("WATCHBILL_API_KEY", "secret")
    made = Watched(tmp_path / "crew")
    made.bash("a", 'true; echo "key=$WATCHBILL_API_KEY"')
    ended = await made.end_of("a")
    await made.crew.close()
    assert (ended.out.tail, ended.err.tail) == (b"key=\n", b"")


# ------------------------------------------------------------------ programs that do not want to end

ESCAPES = {
    "background child": "sleep 1000 & echo $! > {PID}",
    "double fork": "( ( sleep 1000 & echo $! > {PID} ) & ) ; sleep 0.2",
    "own session": "setsid sleep 1000 & echo $! > {PID}; sleep 0.2",
    "daemon": "setsid bash -c 'trap \"\" HUP; (sleep 1000 & echo $! > {PID}) &' ; sleep 0.2",
    "without our mark": "setsid env -i sleep 1000 & echo $! > {PID}; sleep 0.2",
    "ignores TERM": "bash -c 'trap \"\" TERM; echo $$ > {PID}; while :; do sleep 0.1; done' & sleep 0.2",
}


@pytest.mark.parametrize("escape", ESCAPES)
async def test_nothing_of_a_task_outlives_it(watched: Watched, tmp_path: Path, escape: str) -> None:
    """R55: the end is reported when no process is left, whatever the task did to keep one."""
    note = tmp_path / "pid"
    watched.bash(
        "a", ESCAPES[escape].replace("{PID}", str(note)) + f"; while [ ! -s {note} ]; do sleep 0.01; done"
    )
    ended = await watched.end_of("a")
    assert ended.code == 0 and file_with(note) and not lives(file_with(note))


async def test_a_process_that_escaped_ends_with_its_task_and_not_before(
    watched: Watched, tmp_path: Path
) -> None:
    """Two tasks run, and one has a helper without any mark: the other task's end leaves it alone."""
    note = tmp_path / "pid"
    watched.bash("keeper", f"(setsid env -i bash -c 'echo $$ > {note}; exec sleep 1000' &) ; sleep 1000")
    await eventually(lambda: file_with(note))
    watched.bash("other", "true")
    await watched.end_of("other")
    assert lives(file_with(note))
    watched.crew.stop("keeper")
    await watched.end_of("keeper")
    await eventually(lambda: not lives(file_with(note)))


async def test_a_task_that_forks_without_end_is_killed(watched: Watched) -> None:
    """R55. The bomb is bounded to 200 processes at a time, and starts new ones as fast as it can."""
    bomb = (
        "n() { while :; do (sleep 0.05 & sleep 0.05) & [ $(jobs -rp | wc -l) -lt 200 ] || wait -n; done; }; n"
    )
    watched.bash("a", bomb)
    await eventually(lambda: watched.pid_of("a"))
    watched.bash("b", "true")
    await watched.end_of("b")
    watched.crew.kill("a")
    ended = await watched.end_of("a")
    assert ended.cause is Cause.KILLED
    await eventually(lambda: not marked_processes(watched.mark))


async def test_output_without_end_is_cut_and_disturbs_nobody(watched: Watched) -> None:
    """R55: a task that writes without pause costs a bounded file, and other tasks go on."""
    watched.bash("a", "yes 0123456789 & yes error >&2")
    out, err = (watched.crew.outputs / f"a.{name}" for name in ("out", "err"))
    await eventually(lambda: out.exists() and out.stat().st_size >= limits.TASK_OUTPUT_FILE_BYTES, seconds=60)
    for number in range(5):
        watched.bash(f"b{number}", "true")
        await watched.end_of(f"b{number}")
    watched.crew.stop("a")
    ended = await watched.end_of("a")
    assert out.stat().st_size == limits.TASK_OUTPUT_FILE_BYTES
    assert err.stat().st_size <= limits.TASK_OUTPUT_FILE_BYTES
    assert ended.out.total > limits.TASK_OUTPUT_FILE_BYTES
    assert len(ended.out.tail) <= limits.TASK_OUTPUT_MEMORY_BYTES and ended.out.tail.endswith(
        b"\n0123456789\n"[-3:]
    )


@pytest.mark.torture
async def test_ten_gigabytes_of_output_run_through(watched: Watched) -> None:
    """R55."""
    watched.bash("a", "head -c 10G /dev/zero; echo done")
    [ended] = await eventually(lambda: watched.ended("a"), seconds=600)
    assert ended.out.total == 10 * 2**30 + 5 and ended.out.tail.endswith(b"done\n")
    assert (watched.crew.outputs / "a.out").stat().st_size == limits.TASK_OUTPUT_FILE_BYTES


async def test_term_comes_before_kill(watched: Watched, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    watched.bash(
        "a", f"trap 'echo bye; exit 75' TERM; echo ready; echo $$ > {note}; while :; do sleep 0.05; done"
    )
    await eventually(lambda: file_with(note))
    watched.crew.stop("a", 10_000)
    ended = await watched.end_of("a")
    assert (ended.cause, ended.code) == (Cause.STOPPED, 75)
    assert ended.out.tail == b"ready\nbye\n"


async def test_a_task_that_ignores_term_is_killed_after_its_grace(watched: Watched, tmp_path: Path) -> None:
    """R55."""
    note = tmp_path / "pid"
    watched.bash("a", f"trap '' TERM; echo $$ > {note}; while :; do sleep 0.05; done")
    await eventually(lambda: file_with(note))
    watched.crew.stop("a", 200)
    ended = await watched.end_of("a")
    assert (ended.cause, ended.code) == (Cause.STOPPED, -signal.SIGKILL)


async def test_the_guard_ends_a_task_whose_time_is_over(watched: Watched) -> None:
    watched.bash("a", "sleep 1000", timeout_ms=200)
    ended = await watched.end_of("a")
    assert ended.cause is Cause.TIMEOUT and ended.ms >= 200


async def test_a_stopped_task_is_ended_too(watched: Watched) -> None:
    watched.bash("a", "kill -STOP $$; sleep 1000", timeout_ms=200)
    assert (await watched.end_of("a")).cause is Cause.TIMEOUT


# ------------------------------------------------------------------ who dies


async def test_without_a_lease_in_time_every_task_is_ended(watched: Watched) -> None:
    """FLEET-08: the guard needs neither the agent nor the shared folder for it."""
    watched.crew.lease(1, 300)
    watched.bash("a", "sleep 1000")
    assert (await watched.end_of("a")).cause is Cause.LEASE
    assert watched.events[0] == LeaseHeard(1)
    watched.crew.lease(2, 60_000)
    watched.bash("b", "true")
    assert (await watched.end_of("b")).cause is Cause.EXIT


async def test_a_crew_that_is_closed_leaves_nothing(tmp_path: Path) -> None:
    made = Watched(tmp_path / "crew")
    made.bash("a", "setsid sleep 1000 & trap '' TERM; while :; do sleep 0.05; done")
    await eventually(lambda: made.pid_of("a"))
    await made.crew.close()
    assert made.ended("a")[0].cause is Cause.STOPPED
    assert not marked_processes(made.mark)


@pytest.mark.parametrize("script", ["sleep 1000", "setsid sleep 1000 & sleep 1000", "exec env -i sleep 1000"])
async def test_tasks_of_a_killed_guard_are_killed_by_the_agent(watched: Watched, script: str) -> None:
    watched.bash("a", script)
    pid = await eventually(lambda: watched.pid_of("a"))
    os.kill(watched.crew.guard_pid, signal.SIGKILL)
    assert (await watched.end_of("a")).cause is Cause.GUARD_LOST
    assert not lives(pid) and not marked_processes(watched.mark)
    await eventually(lambda: not watched.crew.is_open)
    watched.crew.open()
    watched.bash("b", "true")
    assert (await watched.end_of("b")).cause is Cause.EXIT


async def test_a_job_that_is_given_to_a_dead_guard_ends_once(watched: Watched) -> None:
    os.kill(watched.crew.guard_pid, signal.SIGKILL)
    watched.bash("a", "sleep 1000")
    assert (await watched.end_of("a")).cause is Cause.GUARD_LOST
    await eventually(lambda: not watched.crew.is_open)
    watched.bash("b", "sleep 1000")
    assert len(watched.ended("a")) == 1 and watched.ended("b")[0].cause is Cause.GUARD_LOST


async def test_a_guard_that_is_stopped_can_be_replaced(watched: Watched) -> None:
    watched.bash("a", "sleep 1000")
    pid = await eventually(lambda: watched.pid_of("a"))
    stop(watched.crew.guard_pid)
    watched.crew.give_up_guard()
    assert (await watched.end_of("a")).cause is Cause.GUARD_LOST
    assert not lives(pid)


PROGRAM = """
import asyncio, sys
from pathlib import Path
from watchbill.processes.crew import Crew, Job, Started
async def main():
    crew = Crew(Path(sys.argv[1]), lambda event: print(event.pid, flush=True) if isinstance(event, Started) else None)
    crew.open()
    crew.start(Job("orphan", ("bash", "-c", "setsid sleep 1000 & trap '' TERM; while :; do sleep 0.1; done"),
                   {"CREW_TEST": sys.argv[1]}))
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("victims", ["agent", "agent of a stopped guard", "both"])
async def test_nothing_outlives_a_killed_agent(tmp_path: Path, victims: str) -> None:
    """P6: the guard ends everything when the agent is dead, also one that was stopped; when both are dead, the next
    start reaps."""
    folder = tmp_path / "crew"
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    await eventually(lambda: len(marked_processes(f"CREW_TEST={folder}")) >= 2)
    if victims == "both":
        stop(process.pid)  # so that it does not bury what the guard leaves
        os.kill(guard, signal.SIGKILL)
    if victims == "agent of a stopped guard":
        stop(guard)
    process.kill()
    await process.wait()
    if victims == "both":
        assert marked_processes(f"CREW_TEST={folder}")
        assert all(left.is_gone for left in reap(folder))
    await eventually(lambda: not lives(pid) and not marked_processes(f"CREW_TEST={folder}"))
