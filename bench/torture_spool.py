"""The long forms of the spool's trials: power cuts, kills, eight claimers, a million waiting.

    python bench/torture_spool.py [--cuts N] [--claims N] [--waiting N] [--mutations N] [--only NAME]

Runs the tests of tests/store with large numbers where CI uses small ones, and what is too large for a test
here. Prints counts and `pass` or `FAIL` per trial; exit 1 on any failure. Power cuts and full disks need
root, loop devices and strace; without them those trials are reported as skipped, never as passed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from watchbill.spool import Corpus, Drain, Spool, reader
from watchbill.spool.inspect import stats

ROOT = Path(__file__).resolve().parent.parent


class Torture:
    """Runs trials and remembers how they went."""

    def __init__(self) -> None:
        self.failed = 0

    def trial(self, name: str, act: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            said, word = act(), "pass"
        except AssertionError as error:
            said, word = f"{error}", "FAIL"
            self.failed += 1
        print(f"{word}  {name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)


def tests(pattern: str, **settings: int) -> str:
    """Run store tests with these settings in their environment and return pytest's last line."""
    environment = os.environ | {f"WATCHBILL_{name.upper()}": str(value) for name, value in settings.items()}
    files = sorted(str(path) for path in (ROOT / "tests" / "store").glob("test_*.py"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-s",
        "-p",
        "no:cacheprovider",
        "--timeout=36000",
        "-k",
        pattern,
    ]
    run = subprocess.run(
        [*command, *files], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    said = run.stdout.splitlines()
    last = next((line for line in reversed(said) if re.search(r"\d+ (passed|failed|skipped)", line)), "")
    assert run.returncode == 0, f"{last}\n{run.stdout[-4000:]}"
    totals = Counter[str]()
    for name, count in re.findall(r"(\w+)=(\d+)", " ".join(line for line in said if "counts: " in line)):
        totals[name] += int(count)
    counts = "".join(f", {count:,} {name}" for name, count in totals.items())
    return f"{last}; {settings}{counts}"


def million(home: Path, waiting: int) -> str:
    """R11: that many files wait; claims stay fast, memory stays bounded, nothing is skipped."""
    child = os.fork()
    if child == 0:
        with Spool(home / "spool", durability="none") as producer:
            for first in range(0, waiting, 2000):
                producer.enqueue_many([event(n) for n in range(first, min(first + 2000, waiting))])
        os._exit(0)
    os.waitpid(child, 0)
    with Spool(home / "spool") as spool:
        spool.recover()
        began = time.perf_counter()
        item = spool.lease()
        first_ms = (time.perf_counter() - began) * 1000
        assert item is not None
        assert item.event["id"] == "0", item.event
        spool.release(item)
        before = resident_mib()
        began = time.perf_counter()
        report = Drain(spool, Corpus(home / "corpus.jsonl")).run_once()
        rate = waiting / (time.perf_counter() - began)
        grown = resident_mib() - before
        assert report.appended == waiting, report
        assert stats(spool).done == waiting
    ids = [int(line.id) for line in reader.read(home / "corpus.jsonl", unique=False)]
    assert sorted(ids) == list(range(waiting))
    assert grown < 400, f"memory grew by {grown} MiB"
    return (
        f"{waiting:,} waiting, first claim {first_ms:.1f} ms, drained at {rate:,.0f}/s, memory +{grown} MiB"
    )


def event(number: int) -> dict[str, object]:
    return {"id": str(number), "kind": "note", "ts": 1, "body": "x" * 100}


def resident_mib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--cuts", type=int, default=2000, help="power cuts per file system, about")
    parser.add_argument("--claims", type=int, default=100_000, help="events for the eight claimers")
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--only", choices=["cuts", "kills", "claims", "waiting", "mutations"])
    options = parser.parse_args()
    torture = Torture()
    home = Path(tempfile.mkdtemp(prefix="spool-torture-", dir=options.dir))
    # Ten scenes share the cuts of a file system; the tests divide by four.
    cuts = max(4, options.cuts * 4 // 10)
    trials: dict[str, tuple[str, Callable[[], str]]] = {
        "cuts": ("R1 power cuts, ext4 and xfs", lambda: tests("power_cut", power_cuts=cuts)),
        "kills": ("R2 kills at every syscall", lambda: tests("kill_at_any or killed", kill_every=1)),
        "claims": ("R10 eight claimers", lambda: tests("eight_claimers", claims=options.claims)),
        "mutations": (
            "R8 damaged logs and corpora",
            lambda: tests("damage or logged", mutations=options.mutations),
        ),
        "waiting": ("R11 a million waiting", lambda: million(home, options.waiting)),
    }
    for key, (name, act) in trials.items():
        if options.only in (None, key):
            torture.trial(name, act)
    shutil.rmtree(home)
    print(f"{torture.failed} trial(s) failed" if torture.failed else "all trials passed")
    return 1 if torture.failed else 0


if __name__ == "__main__":
    sys.exit(main())
