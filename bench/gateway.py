"""What the gateway adds to a request: latency, requests a second, time to the first token, memory.

    make bench BENCH=gateway           or: python bench/gateway.py [--seconds 6] [--json]

The fake engine, the load generator and the daemon are processes of their own. The bare engine and the daemon are
asked the same in turns, one right after the other, and ratios are medians over the turns: machines differ, are shared,
and change their speed within seconds.
Engine and generator run on Python's own event loop, as those with which the peers' figures in the README were
measured: a share of a faster engine says less about a gateway than about the engine.
Below 20,000 requests/s of the bare engine at 64 connections the machine was busy with something else: the run is
void and ends with 1. Through Watchbill a whole answer is put together from a stream, as with a real engine.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
TOKENS = 16
#: How often the bare engine and the daemon are measured, one after the other.
TURNS = 9
WARM_UP_S = 1.0
#: Targets; the first three decide the exit code.
DIRECT_PER_S_MIN = 20_000
ADDED_P50_MS_MAX = 0.25
SHARE_AT_64_MIN = 0.27
RSS_MB_MAX = 80
START_S_MAX = 60

CONFIG = """
[server]
port = 0
[devices.ram]
reserve = "64MiB"
[models.bench]
engine = "process"
command = "{python} {engine} ${{PORT}}"
health = "/health"
probe = "http"
memory = "64MiB"
concurrency = 256
"""

Figures = dict[str, float]


@contextmanager
def process(*words: str) -> "Iterator[subprocess.Popen[str]]":
    """A process that ends with the block."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(START_S_MAX)


def first_match(started: "subprocess.Popen[str]", pattern: str) -> str:
    """What the first line that matches says."""
    assert started.stdout is not None
    for line in started.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise SystemExit(f"{started.args!r} ended before it was ready")


def load(port: int, connections: int, seconds: float, tokens: int = 0) -> Figures:
    """One run of the load generator."""
    words = [
        sys.executable,
        str(HERE / "load_generator.py"),
        str(port),
        str(connections),
        str(seconds),
        str(tokens),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load generator failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


#: What is asked, by how many at once: whole answers, then streams of so many tokens.
LOADS = {"one": (1, 0), "sixteen": (16, 0), "many": (64, 0), "single": (1, TOKENS), "streams": (64, TOKENS)}


def figures(loads: dict[str, Figures]) -> Figures:
    """What is shown of one side's loads."""
    one, sixteen, many, single, streams = (loads[name] for name in LOADS)
    return {
        "p50_ms": one["p50_ms"],
        "p99_ms": one["p99_ms"],
        "per_s_16": sixteen["requests"] / sixteen["seconds"],
        "per_s_64": many["requests"] / many["seconds"],
        "ttft_p50_ms": single["ttft_p50_ms"],
        "ttft_p99_ms": single["ttft_p99_ms"],
        "ttft_64_p50_ms": streams["ttft_p50_ms"],
        "chunks_per_s_64": streams["events"] / streams["seconds"],
        "streams_per_s_64": streams["requests"] / streams["seconds"],
    }


def memory_mb(pid: int) -> float:
    """Resident memory of one process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1000 if found else 0.0


@contextmanager
def bare_engine() -> "Iterator[int]":
    """The engine alone; its port."""
    with process(sys.executable, str(HERE / "fake_upstream.py"), "0") as engine:
        yield int(first_match(engine, r"(\d+)"))


@contextmanager
def watchbill() -> "Iterator[tuple[int, int]]":
    """The real daemon, which starts an engine of its own; its port and process."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "watchbill.toml"
        config.write_text(CONFIG.format(python=sys.executable, engine=HERE / "fake_upstream.py"))
        command = str(Path(sys.executable).with_name("watchbill"))
        words = (command, "up", "--config", str(config), "--root", folder, "--port", "0")
        with process(*words) as daemon:
            yield int(first_match(daemon, r"ready http://[^:]+:(\d+)")), daemon.pid


def measure_in_turns(seconds: float) -> tuple[Figures, Figures]:
    """The medians of the bare engine and of the daemon, and of their ratios."""
    turns: list[tuple[Figures, Figures]] = []
    with bare_engine() as engine, watchbill() as (daemon, pid):
        for port in (engine, daemon):
            load(port, 64, WARM_UP_S)
        for turn in range(TURNS):
            loads: dict[int, dict[str, Figures]] = {engine: {}, daemon: {}}
            for name, (connections, tokens) in LOADS.items():
                for port in (engine, daemon) if turn % 2 else (daemon, engine):
                    loads[port][name] = load(port, connections, seconds / TURNS, tokens)
            turns.append((figures(loads[engine]), figures(loads[daemon])))
        memory = memory_mb(pid)
    direct, through = (
        {name: median(each[name] for each in side) for name in side[0]} for side in zip(*turns, strict=True)
    )
    through["rss_mb"] = memory
    through["share_64"] = median(ours["per_s_64"] / bare["per_s_64"] for bare, ours in turns)
    through["added_p50_ms"] = median(ours["p50_ms"] - bare["p50_ms"] for bare, ours in turns)
    return direct, through


ROWS = [
    ("whole answer, 1 connection: p50 ms", "p50_ms"),
    ("whole answer, 1 connection: p99 ms", "p99_ms"),
    ("requests/s at 16 connections", "per_s_16"),
    ("requests/s at 64 connections", "per_s_64"),
    ("first token, 1 stream: p50 ms", "ttft_p50_ms"),
    ("first token, 1 stream: p99 ms", "ttft_p99_ms"),
    ("first token, 64 streams: p50 ms", "ttft_64_p50_ms"),
    ("chunks/s at 64 streams", "chunks_per_s_64"),
    (f"streams of {TOKENS} chunks/s at 64 streams", "streams_per_s_64"),
]


def show(direct: Figures, through: Figures) -> None:
    """The table."""
    print(f"{'':42}{'direct':>12}{'watchbill':>12}{'added':>10}{'share':>8}")
    for text, name in ROWS:
        bare, ours = direct[name], through[name]
        difference = f"{ours - bare:10.3f}{'':8}" if name.endswith("ms") else f"{'':10}{ours / bare:8.2f}"
        digits = 3 if name.endswith("ms") else 0
        print(f"{text:42}{bare:12.{digits}f}{ours:12.{digits}f}{difference}")
    print(f"{'resident memory of the daemon, MB':42}{'':12}{through['rss_mb']:12.1f}")


def judge(through: Figures) -> list[tuple[str, bool]]:
    """Each target, and whether it was met."""
    added, share = through["added_p50_ms"], through["share_64"]
    return [
        (f"added p50 {added:.3f} ms, at most {ADDED_P50_MS_MAX}", added <= ADDED_P50_MS_MAX),
        (f"share of requests/s at 64 {share:.2f}, at least {SHARE_AT_64_MIN}", share >= SHARE_AT_64_MIN),
        (f"memory {through['rss_mb']:.1f} MB, below {RSS_MB_MAX}", through["rss_mb"] < RSS_MB_MAX),
    ]


def main() -> int:
    """Measures, prints, and says whether the targets were met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement, all turns together")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, too")
    options = parser.parse_args()
    direct, through = measure_in_turns(options.seconds)
    is_void = direct["per_s_64"] < DIRECT_PER_S_MIN
    show(direct, through)
    if options.json:
        print(json.dumps({"direct": direct, "watchbill": through}))
    if is_void:
        print(f"VOID  the bare engine made fewer than {DIRECT_PER_S_MIN} requests/s: the machine is busy")
    verdicts = judge(through)
    for text, met in verdicts:
        print(f"{'pass' if met else 'FAIL'}  {text}")
    return 0 if not is_void and all(met for _, met in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
