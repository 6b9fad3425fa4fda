"""Processes: guard, ladder, logs, registry, reaping, ports and the root's lock, with real processes."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.eventually import eventually
from support.stopping import stop
from watchbill.errors import RootInUse
from watchbill.files.host import boot_id
from watchbill.processes import Ending, Keeper, OwnedProcess, RootLock, engine_log, is_taken, limits, reap
from watchbill.processes.logs import Log, open_log
from watchbill.processes.owned import Command
from watchbill.processes.ports import claim_port, release_port
from watchbill.processes.registry import (
    ROOT_MARK,
    TOKEN_MARK,
    Record,
    Registry,
    marked_pids,
    root_id,
    with_engine,
)
from wire.engine_contract import within

#: A tree of five below its guard, two of them grandchildren and three in a session of their own.
TREE = "sleep 61 & setsid sh -c 'sleep 62 & sleep 63' & exec sleep 64"


class Yard:
    """A keeper and what it started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keeper = Keeper(root)
        self.log = root / "logs" / "x.log"

    async def start(self, *argv: str, keeper: Keeper | None = None) -> OwnedProcess:
        return await within(10, (keeper or self.keeper).start("x", argv, log=self.log))

    def pids(self) -> list[int]:
        return marked_pids(ROOT_MARK, root_id(self.root))


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    yard = Yard(tmp_path / "root")
    yield yard
    left = yard.pids()
    reap(yard.root)
    assert left == []


# ---------------------------------------------------------------------- start and end


async def test_an_ending_is_told_at_once_with_its_code(yard: Yard) -> None:
    process = await yard.start("sh", "-c", "exit 7")
    assert await within(5, process.ended()) == Ending(7, was_asked=False)
    process = await yard.start("sh", "-c", "kill -SEGV $$")
    assert (await within(5, process.ended())).describe() == "was killed by SIGSEGV"
    assert Registry(yard.root).records() == []


async def test_a_command_that_is_not_there_raises_and_leaves_nothing(yard: Yard) -> None:
    for argv, error in ((("/nowhere/x",), FileNotFoundError), (("/etc/passwd",), PermissionError)):
        with pytest.raises(error):
            await yard.start(*argv)
    assert Registry(yard.root).records() == []


async def test_an_engine_begins_with_ordinary_signals_and_few_descriptors(yard: Yard) -> None:
    """What the guard ignores or holds must not leak into the engine: a leaked pipe would keep the tree alive."""
    show = "grep -E 'SigIgn|SigBlk' /proc/self/status; ls /proc/self/fd | wc -l; ls -l /proc/self/fd/0"
    finished = await within(10, yard.keeper.run("x", ("sh", "-c", show)))
    masks = [int(line.split()[1], 16) for line in finished.output.split("\n")[:2]]
    # 32 and 33 are the C library's own: under `make`, which uses posix_spawn, they arrive ignored. They are not ours.
    assert [mask & ~(0b11 << 31) for mask in masks] == [0, 0]
    assert int(finished.output.split("\n")[2]) <= 4  # 0, 1, 2 and the one that lists
    assert "/dev/null" in finished.output


async def test_a_tree_that_lost_its_first_process_by_a_crash_is_stopped(yard: Yard) -> None:
    """R35: helpers that a crashed engine left behind hold memory, too."""
    process = await yard.start("sh", "-c", "sleep 61 & sleep 62 & exit 3")
    ending = await within(5, process.ended())
    assert ending.code == 3
    assert yard.pids() == []


async def test_a_daemonised_tree_lives_until_its_last_process(yard: Yard) -> None:
    """Race 7: the engine forks and its parent exits."""
    process = await yard.start("sh", "-c", "setsid sleep 61 & exit 0")
    await eventually(lambda: not Path(f"/proc/{process.pid}").exists())
    assert not process.has_ended
    [sleeper] = [pid for pid in yard.pids() if pid != process.guard_pid]
    os.kill(sleeper, signal.SIGKILL)
    assert not (await within(5, process.ended())).was_asked


async def test_stop_takes_the_whole_tree(yard: Yard) -> None:
    """R35: children, grandchildren, other sessions."""
    process = await yard.start("sh", "-c", TREE)
    await eventually(lambda: len(yard.pids()) == 6)
    await within(5, process.stop())
    assert yard.pids() == []


async def test_a_frozen_process_hears_that_it_is_stopped(yard: Yard, tmp_path: Path) -> None:
    """R31: it is thawed, or it could only be killed."""
    program = f"trap 'echo told > {tmp_path}/note; exit 0' TERM; echo listening; while :; do sleep 0.05; done"
    process = await yard.start("sh", "-c", program)
    await eventually(lambda: process.log.read_tail(1) == ["listening"])
    stop(process.pid)
    await within(8, process.stop())
    assert (tmp_path / "note").read_text() == "told\n"


async def test_what_never_stops_forking_is_stopped(yard: Yard) -> None:
    """R35: what is forked while we kill is killed as well. Eight that are always somebody else a moment later: were
    they to double, a busy machine would be full of them before the killer had its turn."""
    chain = "f() { sleep 0.01; f & }; for n in 1 2 3 4 5 6 7 8; do f & done"
    process = await yard.start("sh", "-c", f"trap '' TERM; {chain}; while :; do sleep 1; done")
    await eventually(lambda: len(yard.pids()) > 8)
    await within(10, process.stop(hard=True))
    assert yard.pids() == []


async def test_a_cancelled_start_leaves_nothing(yard: Yard) -> None:
    for millis in (0, 1, 5, 10, 20, 30, 50):
        starting = asyncio.create_task(yard.start("sleep", "61"))
        await asyncio.wait([starting], timeout=millis / 1000)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await within(5, starting)).stop()
        assert yard.pids() == [] and Registry(yard.root).records() == []


async def test_a_start_whose_record_the_disk_refuses_fails_with_that_reason(yard: Yard) -> None:
    """R4, RES-20: the disk was full when the guard told the number of the engine. The start waited to its bound, and
    the model was blamed."""
    registry = Registry(yard.root)
    process = OwnedProcess(Record("token", "x", boot_id()), registry, Log(yard.log, 0))
    yard.log.parent.mkdir(parents=True, exist_ok=True)
    with yard.log.open("wb") as log:
        environment = dict(os.environ) | {ROOT_MARK: root_id(yard.root), TOKEN_MARK: "token"}
        command = Command(("sleep", "61"), environment, log.fileno(), 50_000)
        starting = asyncio.create_task(process.start(command))
        await asyncio.sleep(0)  # the guard is started, and has not been heard yet
        in_the_way = registry.folder / ".token.json.new"
        in_the_way.mkdir()
        with pytest.raises(IsADirectoryError):
            await within(10, starting)
        in_the_way.rmdir()
    assert yard.pids() == []


def test_the_ladder_ends_within_ten_seconds() -> None:
    """P6, R35."""
    steps = limits.STOP_ASK_MS + limits.STOP_TERM_MS + limits.STOP_KILL_MS + limits.GUARD_GRACE_MS
    assert steps <= 10_000
    assert limits.ORPHAN_TERM_MS + limits.STOP_KILL_MS <= 10_000


# ---------------------------------------------------------------------- the guard in danger


async def test_a_killed_guard_takes_the_tree_along(yard: Yard) -> None:
    """R36: the daemon kills what the guard can no longer kill, and says so."""
    process = await yard.start("sh", "-c", TREE)
    await eventually(lambda: len(yard.pids()) == 6)
    os.kill(process.guard_pid, signal.SIGKILL)
    ending = await within(5, process.ended())
    assert ending.guard_lost and not ending.was_asked
    assert yard.pids() == []


async def test_a_frozen_guard_does_not_stop_the_ladder(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_TERM_MS", 100)
    monkeypatch.setattr(limits, "STOP_KILL_MS", 500)
    process = await yard.start("sh", "-c", TREE)
    stop(process.guard_pid)
    await within(8, process.stop())
    assert yard.pids() == []


async def test_an_abandoned_tree_is_killed_by_its_guard(yard: Yard) -> None:
    """P6: the end of the pipe is enough."""
    process = await yard.start("sh", "-c", TREE)
    process.abandon()
    await within(5, process.ended())
    assert yard.pids() == []


async def test_a_guard_that_is_asked_to_go_takes_its_tree_along(yard: Yard) -> None:
    process = await yard.start("sh", "-c", TREE)
    os.kill(process.guard_pid, signal.SIGTERM)
    assert (await within(5, process.ended())).code == -signal.SIGTERM


async def test_an_engine_is_taken_before_the_daemon_when_memory_runs_out(yard: Yard) -> None:
    """R27: the kernel's choice."""
    process = await yard.start("sleep", "61")
    score = int(Path(f"/proc/{process.pid}/oom_score_adj").read_text())
    assert score > int(Path("/proc/self/oom_score_adj").read_text())
    assert int(Path(f"/proc/{process.guard_pid}/oom_score_adj").read_text()) < score
    await within(5, process.stop())


# ---------------------------------------------------------------------- logs


def sizes_of_logs(yard: Yard) -> dict[str, int]:
    sizes: dict[str, int] = {"": 0}
    for path in yard.log.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # moved on meanwhile
            sizes[path.name] = path.stat().st_size
    return sizes


async def test_an_engine_that_writes_without_pause_never_exceeds_its_log(yard: Yard) -> None:
    """An engine that fills its log does not fill the disk: no file is ever larger than its bound."""
    keeper = Keeper(yard.root, log_bytes_max=50_000)
    process = await yard.start("yes", "a line of log", keeper=keeper)
    largest = 0
    try:
        deadline = time.monotonic() + 20
        while not Path(f"{yard.log}.4").exists() and time.monotonic() < deadline:
            largest = max(largest, *sizes_of_logs(yard).values())
            await asyncio.sleep(0.001)
        for _ in range(200):
            largest = max(largest, *sizes_of_logs(yard).values())
            await asyncio.sleep(0.001)
    finally:
        await within(10, process.stop())
    assert largest <= 50_000
    assert sorted(sizes_of_logs(yard))[1:] == ["x.log", "x.log.1", "x.log.2", "x.log.3", "x.log.4"]


async def test_an_engine_that_writes_without_pause_is_slowed_down(yard: Yard) -> None:
    """Neither the disk nor a core is spent on a log: what an engine writes per second is bounded, nothing is lost."""
    process = await yard.start(
        "sh", "-c", f"head -c {limits.LOG_BYTES_PER_S_MAX * 3} /dev/zero; echo; echo the end"
    )
    began = time.monotonic()
    assert (await within(60, process.ended())).code == 0
    assert time.monotonic() - began > 1
    assert process.log.read_tail(1) == ["the end"]


async def test_logs_and_their_older_copies_are_private(yard: Yard) -> None:
    """Engines log prompts: nobody else reads them, whatever the umask, the older copies and earlier versions' files."""
    yard.log.parent.mkdir(parents=True, exist_ok=True)
    for name in ("x.log", "x.log.1"):
        (yard.log.parent / name).write_text("from an earlier version\n")
        (yard.log.parent / name).chmod(0o644)
    keeper = Keeper(yard.root, log_bytes_max=10_000)
    before = os.umask(0)
    try:
        process = await yard.start("sh", "-c", "head -c 35000 /dev/zero", keeper=keeper)
        assert (await within(20, process.ended())).code == 0
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in yard.log.parent.iterdir()}
    assert set(modes) == {"x.log", "x.log.1", "x.log.2", "x.log.3", "x.log.4"}
    assert set(modes.values()) == {0o600}


async def test_an_engine_does_not_notice_that_its_log_cannot_be_written(yard: Yard) -> None:
    """R4: a log on a full disk loses lines; the engine goes on and ends as it wants to."""
    yard.log.parent.mkdir(parents=True, exist_ok=True)
    full = os.open("/dev/full", os.O_RDWR)
    process = OwnedProcess(Record("token", "x", boot_id()), Registry(yard.root), Log(yard.log, 0))
    command = Command(("sh", "-c", "head -c 300000 /dev/zero; exit 7"), dict(os.environ), full, 50_000)
    try:
        await process.start(command)
    finally:
        os.close(full)
    assert (await within(20, process.ended())).code == 7


async def test_the_last_words_of_an_engine_are_in_its_log(yard: Yard) -> None:
    """What a process wrote before it was killed is kept: it is the reason that a failed load gives."""
    process = await yard.start("sh", "-c", "echo out of memory >&2; kill -9 $$")
    await within(10, process.ended())
    assert process.log.read_tail(1) == ["out of memory"]


def test_a_daemon_in_the_background_rotates_its_own_log(tmp_path: Path) -> None:
    """Its words go on in the new file, and no older one exceeds the bound."""
    path = tmp_path / "daemon.log"
    program = (
        "import os, sys; from pathlib import Path; from watchbill.processes.logs import cut_own_log\n"
        f"path = Path({str(path)!r})\n"
        "for number in range(300): print(number, flush=True); cut_own_log(path, 100)\n"
        "print('also here', file=sys.stderr, flush=True)"
    )
    with path.open("ab") as log:
        subprocess.run([sys.executable, "-c", program], stdout=log, stderr=log, check=True)
    found = sorted(tmp_path.iterdir(), key=lambda file: file.name)
    assert [file.name for file in found] == [
        "daemon.log",
        *(f"daemon.log.{number}" for number in range(1, 5)),
    ]
    newest = found[0].read_text().splitlines()
    assert newest[-1] == "also here"
    assert [int(line) for line in newest[:-1]] == list(range(300 - len(newest) + 1, 300))
    assert all(file.stat().st_size <= 110 for file in found)
    assert {file.stat().st_mode & 0o777 for file in found} == {0o600}


def test_a_full_log_is_rotated_before_a_start(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("old line\n" * 10)
    Path(f"{path}.1").write_text("older")
    descriptor, log = open_log(path, "a start", bytes_max=10)
    os.write(descriptor, b"new line\n")
    os.close(descriptor)
    assert log.read_tail(5) == ["new line"]
    assert Path(f"{path}.1").read_text().startswith("old line")
    assert Path(f"{path}.2").read_text() == "older"


def test_the_tail_of_a_log_is_bounded_and_of_this_start_only(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("an earlier start\n")
    descriptor, log = open_log(path, "heading")
    os.write(descriptor, b"".join(b"%d %b\n\n" % (number, b"y" * 5000) for number in range(30)) + b"\xff\n")
    os.close(descriptor)
    tail = log.read_tail(20)
    assert len(tail) <= 20 and all(len(line) <= limits.LOG_LINE_CHARS_MAX for line in tail)
    assert tail[-1] == "\N{REPLACEMENT CHARACTER}"
    path.unlink()
    assert log.read_tail(20) == []


def test_a_model_called_daemon_does_not_write_into_the_daemons_log(tmp_path: Path) -> None:
    assert engine_log(tmp_path, "daemon").name != "daemon.log"
    assert engine_log(tmp_path, "../../etc/passwd").parent == tmp_path / "logs"


# ---------------------------------------------------------------------- short commands


async def test_a_short_command_gives_its_output_and_code(yard: Yard) -> None:
    finished = await yard.keeper.run("x", ("sh", "-c", "echo out; echo err >&2; exit 5"))
    assert (finished.code, finished.output) == (5, "out\nerr\n")
    assert list((yard.root / "run").glob("output-*")) == []


async def test_a_short_command_that_is_not_short_is_killed(yard: Yard) -> None:
    began = time.monotonic()
    finished = await yard.keeper.run("x", ("sh", "-c", "echo begun; sleep 61"), timeout_ms=300)
    assert finished.code == -signal.SIGKILL and finished.output == "begun\n"
    assert time.monotonic() - began < 5


# ---------------------------------------------------------------------- reaping


async def test_reap_kills_what_carries_the_roots_mark_and_nothing_else(yard: Yard, tmp_path: Path) -> None:
    """R36: survivors without any record are found by their mark; another root's are not ours."""
    other = tmp_path / "other"
    other.mkdir()
    yard.root.mkdir(exist_ok=True)
    ours, theirs = sleeper({ROOT_MARK: root_id(yard.root)}), sleeper({ROOT_MARK: root_id(other)})
    try:
        await eventually(lambda: yard.pids() == [ours.pid])
        [reaped] = reap(yard.root)
        assert (reaped.pid, reaped.command, reaped.is_gone) == (ours.pid, "sleep 61", True)
        assert theirs.poll() is None
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()


async def test_reap_does_not_kill_a_process_that_only_has_the_same_pid(yard: Yard) -> None:
    """R15: identity is pid, start time and boot."""
    with sleeper({}) as stranger:
        try:
            registry = Registry(yard.root)
            true = with_engine(Record("0", "m", boot_id()), stranger.pid)
            registry.write(Record("1", "m", true.boot_id, pid=true.pid, start_time=true.start_time - 1))
            registry.write(Record("2", "m", "another boot", pid=true.pid, start_time=true.start_time))
            (registry.folder / "3.json").write_text("{ not a record")
            assert reap(yard.root) == []
            assert stranger.poll() is None
            assert list(registry.folder.iterdir()) == []
            registry.write(true)
            assert [(one.pid, one.label) for one in reap(yard.root)] == [(stranger.pid, "m")]
        finally:
            stranger.kill()


async def test_every_process_is_written_down_before_it_runs(yard: Yard) -> None:
    process = await yard.start("sh", "-c", f"echo ${TOKEN_MARK}; ls {yard.root}/run/engines; exec sleep 61")
    await eventually(lambda: len(process.log.read_tail(9)) == 2)
    token, name = process.log.read_tail(9)
    assert name == f"{token}.json"
    [record] = Registry(yard.root).records()
    assert record.living_pids() == [process.guard_pid, process.pid]
    await within(5, process.stop())


def sleeper(marks: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "61"], env={**os.environ, **marks})


# ---------------------------------------------------------------------- ports and the lock


def test_a_port_is_never_handed_out_twice_at_the_same_time(tmp_path: Path) -> None:
    ports = [claim_port(tmp_path) for _ in range(200)]
    assert len(set(ports)) == 200
    release_port(tmp_path, ports[0])
    release_port(tmp_path, ports[0])
    assert len(list(tmp_path.iterdir())) == 199


def test_a_port_with_a_listener_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert is_taken(port)
    assert not is_taken(port)


def test_the_second_daemon_of_a_root_learns_who_the_first_is(tmp_path: Path) -> None:
    """R14's like for daemons: pid and address, and what to do."""
    path = tmp_path / "run" / "daemon.lock"
    with RootLock(path) as first:
        with pytest.raises(RootInUse, match=f"pid {os.getpid()};.*watchbill .*down"):
            RootLock(path).take()
        first.publish("http://127.0.0.1:8470")
        with pytest.raises(RootInUse, match=r"at http://127\.0\.0\.1:8470"):
            RootLock(path).take()
    with RootLock(path):
        pass


def test_the_lock_goes_with_its_holder_even_by_kill_9(tmp_path: Path) -> None:
    """P7: a restart needs no manual repair. A guard or engine that lives on does not hold it."""
    path = tmp_path / "run" / "daemon.lock"
    program = (
        "import asyncio, pathlib, sys\n"
        "from watchbill.processes import Keeper, RootLock\n"
        "async def main():\n"
        "    RootLock(pathlib.Path(sys.argv[1])).take()\n"
        "    await Keeper(pathlib.Path(sys.argv[2])).start('x', ('sleep', '61'), log=pathlib.Path(sys.argv[2], 'l'))\n"
        "    print('taken', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    words = [sys.executable, "-c", program, str(path), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"taken\n"
        with pytest.raises(RootInUse, match=f"pid {holder.pid}"):
            RootLock(path).take()
        holder.kill()
        holder.wait()
    with RootLock(path):
        reap(tmp_path)
    assert marked_pids(ROOT_MARK, root_id(tmp_path)) == []
