"""The RAM probe: recorded machines of both cgroup versions, and this machine's own processes and limits."""

import asyncio
import mmap
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.eventually import eventually, wait_until
from watchbill.catalog import RAM
from watchbill.probes import ProbeError
from watchbill.probes.cgroups import MemoryGroups
from watchbill.probes.kernel_files import read_small
from watchbill.probes.pagecache import cached_share, is_cached
from watchbill.probes.pressure import PressureWatcher
from watchbill.probes.ram import RamProbe, find_processes, major_faults_of_tree, next_look_ms, pss_of_tree

MIB, GIB = 2**20, 2**30
WAIT_S = 20
UNLIMITED_V1 = "9223372036854771712"
MEMINFO = (
    "MemTotal:       24682740 kB\nMemFree:        20000000 kB\nMemAvailable:   20971520 kB\nSwapTotal: 0 kB\n"
)
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n"


class Machine:
    """A recorded /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put("proc/meminfo", MEMINFO)

    def put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def v1(self, path: str, *, mount_root: str = "/") -> None:
        self.put("proc/self/mountinfo", V1_MOUNTS.format(root=mount_root))
        self.put("proc/self/cgroup", f"9:name=systemd:/\n4:memory:{path}\n0::/\n")

    def v2(self, path: str, *, mount_root: str = "/") -> None:
        self.put("proc/self/mountinfo", V2_MOUNTS.format(root=mount_root))
        self.put("proc/self/cgroup", f"0::{path}\n")

    def group_v1(self, path: str, limit: str, usage: int = 0, inactive: int = 0, active: int = 0) -> None:
        folder = f"sys/fs/cgroup/memory{path}"
        self.put(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.put(f"{folder}/memory.usage_in_bytes", f"{usage}\n")
        figures = (
            f"inactive_file 1\nactive_file 1\ntotal_inactive_file {inactive}\ntotal_active_file {active}\n"
        )
        self.put(f"{folder}/memory.stat", figures)

    def group_v2(self, path: str, most: str, high: str = "max", current: int = 0, inactive: int = 0) -> None:
        folder = f"sys/fs/cgroup{path}"
        self.put(f"{folder}/memory.max", f"{most}\n")
        self.put(f"{folder}/memory.high", f"{high}\n")
        self.put(f"{folder}/memory.current", f"{current}\n")
        self.put(
            f"{folder}/memory.stat", f"anon 5\nfile 7\ninactive_file {inactive}\nactive_file 0\nshmem 99\n"
        )

    def read(self) -> tuple[int, int]:
        reading = RamProbe(self.root).read()[RAM]
        return reading.capacity, reading.available


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ------------------------------------------------------------------ recorded machines


def test_without_limits_the_machine_itself_counts(machine: Machine) -> None:
    """RES-04: available memory is what the machine reports now."""
    machine.v1("/a/b")
    machine.group_v1("/a/b", UNLIMITED_V1)
    assert machine.read() == (24682740 * 1024, 20 * GIB)


def test_a_machine_without_cgroups_is_read(machine: Machine) -> None:
    assert machine.read() == (24682740 * 1024, 20 * GIB)


def test_the_tightest_ancestor_counts_in_version_1(machine: Machine) -> None:
    """RES-04: the limit two levels above the process is the one that kills it."""
    machine.v1("/pod/app/task")
    machine.group_v1("/pod/app/task", UNLIMITED_V1)
    machine.group_v1("/pod/app", str(8 * GIB), usage=1 * GIB)
    machine.group_v1("/pod", str(4 * GIB), usage=3 * GIB, inactive=512 * MIB, active=256 * MIB)
    assert machine.read() == (4 * GIB, 1 * GIB + 512 * MIB + 128 * MIB)


def test_the_tightest_ancestor_counts_in_version_2(machine: Machine) -> None:
    machine.v2("/user.slice/app.service")
    machine.group_v2("/user.slice/app.service", "max", high=str(6 * GIB), current=2 * GIB, inactive=1 * GIB)
    machine.group_v2("/user.slice", str(5 * GIB), high="max", current=4 * GIB)
    assert machine.read() == (5 * GIB, 1 * GIB)


def test_high_binds_as_max_does(machine: Machine) -> None:
    machine.v2("/s")
    machine.group_v2("/s", str(6 * GIB), high=str(3 * GIB), current=1 * GIB)
    assert machine.read() == (3 * GIB, 2 * GIB)


def test_a_container_sees_its_limit_at_its_mount(machine: Machine) -> None:
    """The mount shows only our part of the tree, while the path still names all of it."""
    machine.v1("/docker/abc/inner", mount_root="/docker/abc")
    machine.group_v1("", str(2 * GIB), usage=1 * GIB)
    machine.group_v1("/inner", UNLIMITED_V1)
    assert machine.read() == (2 * GIB, 1 * GIB)


@pytest.mark.parametrize("path", ["/../../other", "/elsewhere"])
def test_a_process_moved_out_of_its_namespace_keeps_the_visible_limit(machine: Machine, path: str) -> None:
    machine.v2(path, mount_root="/docker/abc")
    machine.group_v2("", str(2 * GIB), current=1 * GIB)
    assert machine.read() == (2 * GIB, 1 * GIB)


def test_being_moved_to_another_group_is_noticed(machine: Machine) -> None:
    machine.v2("/a")
    machine.group_v2("/a", str(4 * GIB))
    machine.group_v2("/b", str(2 * GIB))
    probe = RamProbe(machine.root)
    assert probe.read()[RAM].capacity == 4 * GIB
    machine.v2("/b")
    assert probe.read()[RAM].capacity == 2 * GIB


def test_more_used_than_allowed_leaves_nothing_not_less(machine: Machine) -> None:
    machine.v2("/a")
    machine.group_v2("/a", str(1 * GIB), current=2 * GIB)
    assert machine.read() == (1 * GIB, 0)


def test_stalls_are_the_worst_of_machine_and_groups(machine: Machine) -> None:
    """RES-06: PSI above its bound counts as an emergency, wherever it is seen."""
    line = "some avg10={} avg60=0.00 avg300=0.00 total=0\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"
    probe = RamProbe(machine.root)
    assert probe.stall_percent() == 0.0
    machine.put("proc/pressure/memory", line.format("1.50"))
    assert probe.stall_percent() == 1.5
    machine.v2("/a")
    machine.put("sys/fs/cgroup/a/memory.pressure", line.format("23.40"))
    assert probe.stall_percent() == 23.4


def test_a_machine_that_does_not_tell_fails_the_probe(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="meminfo"):
        RamProbe(tmp_path).read()


def test_the_next_look_comes_sooner_the_less_room_there_is() -> None:
    looks = [
        next_look_ms(reserve + room, reserve) for reserve in [2 * GIB] for room in (-GIB, 0, GIB, 64 * GIB)
    ]
    assert looks == sorted(looks) and looks[0] == 50 and looks[-1] == 1000


# ------------------------------------------------------------------ this machine


def test_this_machine_can_be_read() -> None:
    """RES-04."""
    reading = RamProbe().read()[RAM]
    assert 0 < reading.available <= reading.capacity
    assert reading.for_core(reading.taken_at + 70).age_ms == 70


@pytest.fixture
def python() -> Iterator[Callable[[str], "subprocess.Popen[bytes]"]]:
    """Runs a program that says a line when it is ready and ends when its input is closed."""
    running: list[subprocess.Popen[bytes]] = []

    def run(program: str) -> "subprocess.Popen[bytes]":
        text = f"import sys, subprocess, mmap\n{program}\nprint('ready', flush=True)\nsys.stdin.read()\n"
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        running.append(process)
        assert process.stdout is not None and process.stdout.readline()
        return process

    yield run
    for process in running:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(WAIT_S)
        process.stdout.close()


Run = Callable[[str], "subprocess.Popen[bytes]"]
CHILD = (
    "child = subprocess.Popen([sys.executable, '-c', {!r}], stdout=subprocess.PIPE); child.stdout.readline()"
)


def test_a_tree_counts_with_all_its_children(python: Run) -> None:
    """The memory of an engine is the PSS of its whole process tree."""
    held = "import sys; kept = b'x' * (64 * 2**20); print('up', flush=True); sys.stdin.read()"
    memory = pss_of_tree(python(CHILD.format(held)).pid)
    assert len(memory.pids) == 2
    assert memory.anon >= 64 * MIB and memory.pss >= memory.anon and memory.rss >= memory.pss


def test_a_file_that_two_engines_map_counts_once(python: Run, tmp_path: Path) -> None:
    """Mapped weights are counted once per file: PSS, not RSS."""
    weights = tmp_path / "weights"
    weights.write_bytes(b"w" * (32 * MIB))
    touch = (
        f"file = open({str(weights)!r}, 'rb'); view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        f"sum(view[at] for at in range(0, len(view), {mmap.PAGESIZE}))"
    )
    idle, one = pss_of_tree(python("pass").pid), python(touch)
    alone = pss_of_tree(one.pid)
    two = python(touch)
    both = [pss_of_tree(pid) for pid in (one.pid, two.pid)]
    assert alone.file - idle.file > 30 * MIB
    assert sum(memory.file for memory in both) - 2 * idle.file < 40 * MIB
    assert sum(memory.rss for memory in both) - 2 * idle.rss > 60 * MIB


def test_a_tree_that_is_gone_has_no_memory(python: Run) -> None:
    process = python("pass")
    process.kill()
    wait_until(lambda: not pss_of_tree(process.pid).pids)  # a zombie holds no memory, either
    process.wait()
    memory = pss_of_tree(process.pid)
    assert (memory.pss, memory.rss, memory.pids) == (0, 0, ())
    assert major_faults_of_tree(process.pid) == 0


def test_processes_that_vanish_while_we_look_are_left_out(tmp_path: Path) -> None:
    """A child that ended between the listing and the look has no files any more."""
    here = tmp_path / "proc/10"
    (here / "task/10").mkdir(parents=True)
    (here / "task/10/children").write_text("11 12 ")
    (here / "stat").write_text("10 (a) b) S 1 10 10 0 -1 0 0 0 7 0 0 0\n")
    (here / "smaps_rollup").write_text("0-1 ---p 0 00:00 0 [rollup]\nRss: 8 kB\nPss: 4 kB\nAnonymous: 4 kB\n")
    memory = pss_of_tree(10, tmp_path)
    assert (memory.pss, memory.rss, memory.anon, memory.pids) == (4096, 8192, 4096, (10,))
    assert major_faults_of_tree(10, tmp_path) == 7


def test_children_are_found_on_kernels_that_do_not_list_them(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        (tmp_path / f"proc/{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} (x) S {parent} 0 0 0 -1 0 0 0 0 0\n")
        (tmp_path / f"proc/{pid}/status").write_text("Name: x\nVmRSS: 4 kB\nRssAnon: 4 kB\n")
    memory = pss_of_tree(10, tmp_path)
    assert memory.pids == (10, 11, 12) and memory.pss == 3 * 4096  # RSS where smaps may not be read


def test_a_protected_process_is_found_by_its_name(python: Run, tmp_path: Path) -> None:
    """RES-05: alive while it runs, missing when it is gone."""
    name = f"routx-{os.getpid()}"
    script = tmp_path / name
    script.write_text("import sys\nprint('up', flush=True)\nsys.stdin.read()\n")
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert find_processes(name) == [process.pid]
        process.kill()
        wait_until(lambda: not find_processes(name))
    assert find_processes(name) == []


def test_the_page_cache_tells_whether_a_load_will_be_quick(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(bytes(8 * MIB))
    assert cached_share(file) in {1.0, None} and cached_share(tmp_path / "none") is None

    def has_left() -> bool:
        """The kernel may keep pages that another processor has just touched: it is advised again."""
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return not is_cached(file) or cached_share(file) is None

    wait_until(has_left)


def test_lists_longer_than_a_page_are_read_to_their_end() -> None:
    """The kernel hands out lists of records page by page: half of the mounts is no answer."""
    mapped = read_small("/proc/self/smaps")
    assert (
        mapped is not None
        and len(mapped) > 2 * mmap.PAGESIZE
        and mapped.splitlines()[-1].startswith(b"VmFlags")
    )
    assert read_small("/proc/self/no-such-file") is None and read_small("/proc/1/task/0/children") is None


# ------------------------------------------------------------------ pressure

GROUPS_V1 = Path("/sys/fs/cgroup/memory")
GROUPS_V2 = Path("/sys/fs/cgroup/unified")


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory group of version 1 with a limit of 256 MiB."""
    folder = GROUPS_V1 / f"watchbill-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as refusal:
        pytest.skip(f"no memory group of version 1 can be made here: {refusal}")
    (folder / "memory.limit_in_bytes").write_text(str(256 * MIB))
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text().split())
    folder.rmdir()


def hog_in(group: Path, size: int) -> "subprocess.Popen[bytes]":
    """A program that joins the group and then takes memory step by step until told to end."""
    text = (
        f"import os, sys\nopen({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        f"kept = []\nfor _ in range({size // MIB}): kept.append(b'x' * 2**20)\n"
        "print('full', flush=True)\nsys.stdin.read()\n"
    )
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_hog_in_our_group_wakes_the_event_loop(group: Path, machine: Machine) -> None:
    """RES-06: the threshold event comes before the kernel kills anything, without polling."""
    machine.v1("/")
    (machine.root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    (machine.root / "sys/fs/cgroup/memory").symlink_to(group)
    groups = MemoryGroups(machine.root)
    watcher = PressureWatcher(groups, reserve=64 * MIB)
    assert watcher.sources.count("threshold") == 3 and watcher.drain() == []
    woken: asyncio.Queue[list[str]] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_reader(watcher.fileno(), lambda: woken.put_nowait(watcher.drain()))
    hog = await asyncio.to_thread(hog_in, group, 210 * MIB)
    try:
        assert hog.stdout is not None and hog.stdin is not None
        fired = await asyncio.wait_for(woken.get(), WAIT_S)
        assert "threshold" in fired
        assert await asyncio.to_thread(hog.stdout.readline) == b"full\n"  # alive: nobody was killed
        watcher.drain()
        assert watcher.drain() == []  # quiet again until the next crossing
        room = groups.headroom()
        assert room is not None and room.limit == 256 * MIB and room.available < 64 * MIB
    finally:
        loop.remove_reader(watcher.fileno())
        hog.communicate()
        watcher.close()
    watcher.close()


@pytest.mark.torture
async def test_work_that_stands_still_for_memory_wakes_the_event_loop(group: Path, tmp_path: Path) -> None:
    """RES-06: a program that reads 200 MiB again and again in a group of 64 stalls, and we are told."""
    (group / "memory.limit_in_bytes").write_text(str(64 * MIB))
    data = tmp_path / "data"
    with data.open("wb") as file:
        file.write(os.urandom(200 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    watcher = PressureWatcher(MemoryGroups(tmp_path), reserve=0)
    if watcher.sources != ["psi"]:
        watcher.close()
        pytest.skip("this kernel has no PSI triggers")
    text = (
        f"import os\nopen({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        f"while True:\n    with open({str(data)!r}, 'rb') as file:\n        while file.read(65536): pass\n"
    )
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(watcher.fileno(), woken.set)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", text)
    try:
        await eventually(woken.is_set, 2 * WAIT_S)
    finally:
        process.kill()
        await process.wait()
        loop.remove_reader(watcher.fileno())
        watcher.close()


def test_version_2_files_signal_through_the_same_descriptor(machine: Machine) -> None:
    """The kernel signals memory.events as it signals cgroup.events; a frozen group raises the latter for real."""
    folder = GROUPS_V2 / f"watchbill-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as refusal:
        pytest.skip(f"no group of version 2 can be made here: {refusal}")
    try:
        machine.v2("/a")
        machine.group_v2("/a", str(GIB))
        (machine.root / "sys/fs/cgroup/a/memory.events").symlink_to(folder / "cgroup.events")
        watcher = PressureWatcher(MemoryGroups(machine.root), reserve=0, root=machine.root)
        assert watcher.sources == ["events"] and watcher.drain() == []
        (folder / "cgroup.freeze").write_text("1")
        assert select.select([watcher], [], [], WAIT_S)[0]
        assert watcher.drain() == ["events"] and watcher.drain() == []
        watcher.close()
    finally:
        folder.rmdir()


def test_where_the_kernel_offers_nothing_the_watcher_is_silent(machine: Machine) -> None:
    machine.v2("/a")
    machine.group_v2("/a", str(GIB))
    watcher = PressureWatcher(MemoryGroups(machine.root), reserve=MIB, root=machine.root)
    assert watcher.sources == [] and watcher.drain() == []
    watcher.close()
