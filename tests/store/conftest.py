"""Real disks for the store tests: loop mounts that can lose their power, full disks, children that die.

A power cut is real as far as the file system can tell: the ioctl drops everything that was never flushed,
the mount goes away, and what is mounted again is what a disk would hold.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchbill.spool.names import stem_of

#: XFS_IOC_GOINGDOWN, which ext4 answers, too; flag 2 is "do not flush the journal".
GOING_DOWN = 0x8004587D
NO_FLUSH = struct.pack("I", 2)
SIZE_MIB = {"ext4": 96, "xfs": 320}
STATES = ("queue", "queue-in-flight", "queue-done", "queue-poison")
PROGRAMS = Path(__file__).parent / "programs"


class Disk:
    """A small disk of its own in a file, mounted at `path`."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind = kind
        self.path = home / "mnt"
        self._image = home / "disk.img"
        self.path.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(SIZE_MIB[kind] * 1024 * 1024)
        _run(f"mkfs.{kind}", "-q", os.fspath(self._image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", os.fspath(self._image), os.fspath(self.path))

    def shut_down(self) -> None:
        """Drop all that was never flushed, now, under whoever is writing."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, NO_FLUSH)
        finally:
            os.close(fd)

    def mount_again(self) -> None:
        _run("umount", os.fspath(self.path))
        self.mount()

    def cut(self) -> None:
        self.shut_down()
        self.mount_again()

    def remove(self) -> None:
        subprocess.run(["umount", "-l", os.fspath(self.path)], check=False, capture_output=True)
        self._image.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _need_root_and(*programs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: loop mounts, tmpfs and remounts")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A loop-mounted disk, once as ext4 and once as xfs."""
    _need_root_and(f"mkfs.{request.param}", "losetup", "mount")
    try:
        made = Disk(request.param, tmp_path)
    except OSError as error:
        pytest.skip(f"no loop device here: {error}")
    yield made
    made.remove()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a tmpfs with these options; more than one at a time is fine."""
    _need_root_and("mount")
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"small{len(mounted)}"
        path.mkdir()
        try:
            _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", os.fspath(path))
        except OSError as error:
            pytest.skip(f"no tmpfs here: {error}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", os.fspath(path)], check=False)


class Child:
    """A forked child that does `work(say)`; what it said before it died can be read."""

    def __init__(self, work: Callable[[Callable[[object], None]], None]) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(read)
                with contextlib.suppress(BrokenPipeError):
                    work(lambda said: _say(write, said))
                status = 0
            except BaseException as error:  # noqa: BLE001  the child's last word
                _say(write, {"error": f"{type(error).__name__}: {error}"})
            finally:
                os._exit(status)
        os.close(write)
        self._read = read
        self._text = b""
        self._over = False

    def first(self) -> object:
        """Wait for the child's first word."""
        while b"\n" not in self._text:
            part = os.read(self._read, 65536)
            if not part:
                raise AssertionError("the child died without a word")
            self._text += part
        return json.loads(self._text.split(b"\n", 1)[0])

    def said(self) -> list[object]:
        """Return what it has said until now, without waiting.

        What a power cut may not take away is what was acknowledged before it: once the file system is going
        down, xfs lets an fsync return without error although its log was dropped. A machine without power
        could not say anything either.
        """
        os.set_blocking(self._read, False)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._read, 1 << 20):
                self._text += part
        os.set_blocking(self._read, True)
        return self._words()

    def _words(self) -> list[object]:
        whole, _, _ = self._text.rpartition(b"\n")
        return [json.loads(line) for line in whole.split(b"\n") if line]

    def kill(self, number: int = signal.SIGKILL) -> list[object]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return self.join()

    def join(self) -> list[object]:
        """Wait for its end and return all it said."""
        if not self._over:
            while part := os.read(self._read, 1 << 20):
                self._text += part
            os.close(self._read)
            os.waitpid(self.pid, 0)
            self._over = True
        return self._words()


def _say(fd: int, said: object) -> None:
    os.write(fd, json.dumps(said).encode() + b"\n")


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[Callable[[object], None]], None]], Child]]:
    """Fork children that are surely gone when the test ends."""
    born: list[Child] = []

    def make(work: Callable[[Callable[[object], None]], None]) -> Child:
        born.append(Child(work))
        return born[-1]

    yield make
    for each in born:
        each.kill()


class Inventory:
    """Every event of a spool, read with nothing but the standard library."""

    def __init__(self, spool: Path) -> None:
        self.where: dict[str, list[str]] = {}
        self.lines: dict[str, bytes] = {}
        for state in STATES:
            for folder, _, names in os.walk(spool / state):
                if "/." in folder[len(os.fspath(spool)) :]:
                    continue
                for name in names:
                    if name.endswith(".jsonl") and not name.startswith("."):
                        stem = stem_of(name)
                        self.where.setdefault(stem, []).append(state)
                        self.lines[stem] = Path(folder, name).read_bytes()

    def twice(self) -> list[str]:
        return [stem for stem, states in self.where.items() if len(states) > 1]

    def torn(self) -> list[str]:
        return [stem for stem, line in self.lines.items() if not _is_whole(line)]

    def missing(self, names: list[str]) -> list[str]:
        return [name for name in names if stem_of(name) not in self.where]

    def counts(self) -> Counter[str]:
        return Counter(state for states in self.where.values() for state in states)


def _is_whole(data: bytes) -> bool:
    try:
        return data.endswith(b"\n") and all(isinstance(json.loads(line), dict) for line in data.splitlines())
    except ValueError:
        return False


@pytest.fixture
def inventory() -> Callable[[Path], Inventory]:
    return Inventory


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program of tests/store/programs under strace with these options."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("strace may not trace here")

    def run(program: str, *arguments: str, options: list[str]) -> subprocess.CompletedProcess[str]:
        python = [sys.executable, "-B", os.fspath(PROGRAMS / program), *arguments]
        return subprocess.run(
            ["strace", "-f", *options, "--", *python], capture_output=True, text=True, check=False, timeout=60
        )

    return run
