"""Real disks for the store tests: loop mounts that can lose their power, full disks, children that die."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.forked import Child
from support.power_cut import Disk, loop_disk
from support.small_disk import small_disks
from watchbill.spool.names import stem_of

STATES = ("queue", "queue-in-flight", "queue-done", "queue-poison")
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return tmp_path / "corpus.jsonl"


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A loop-mounted disk, once as ext4 and once as xfs."""
    with loop_disk(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a tmpfs with these options; more than one at a time is fine."""
    with small_disks(tmp_path) as mount:
        yield mount


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
