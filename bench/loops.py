"""The three loops on real llama.cpp through the real daemon, and the simulator beside them.

    python bench/loops.py [--seconds 600] [--loop agents|flood|six] [--mmap yes|no] [--json]

Models are small files of noise that the real engine loads and answers from. Every loop is played by real callers over
HTTP; who waited how long is taken from the daemon's own recording (`up --record`), memory from another process that
adds up the PSS of all engines. Then the same traffic is simulated with the load and service times that were measured:
the simulator is quoted only where its waits are within 20 % of the measured ones.
"""

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playing import Asked, Callers, daemon, journal, part
from watchbill.simulate.report import Report
from watchbill.simulate.scenario import Scenario
from watchbill.simulate.trace import Trace
from watching import memory_below

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

#: The models' files.
FILE_SIZE = "24MB"
#: An answer of a caller that was refused comes at once; a late one is late when it is later than this.
LATE_MS = 1_000
#: The simulator is believed within this part of the measured mean wait.
TOLERANCE = 0.2
SIMULATED_SEEDS = 10

FOLDER = Path(__file__).parent / "real"
LOOPS = sorted(path.stem for path in FOLDER.glob("*.toml"))


def main() -> int:
    """Plays the loops and prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--loop", choices=LOOPS, action="append")
    parser.add_argument("--mmap", choices=("yes", "no"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    for name in arguments.loop or LOOPS:
        for mmap in (False, True) if arguments.mmap is None else (arguments.mmap == "yes",):
            found.append(play(name, arguments.seconds, mmap=mmap))
            if not arguments.json:
                print(_told(found[-1]), flush=True)
    if arguments.json:
        print(json.dumps(found))
    return 0 if all(result["kept"] for result in found) else 1


def play(name: str, seconds: int, *, mmap: bool) -> dict[str, Any]:
    """One loop, measured and simulated."""
    scenario = replace(Scenario.read(FOLDER / f"{name}.toml"), duration_ms=1000 * seconds)
    with tempfile.TemporaryDirectory(prefix="watchbill-loops-") as folder:
        place = Path(folder)
        _write_config(place, scenario, mmap=mmap)
        with daemon(place) as up, memory_below(up.pid) as peak:
            asked = Callers(scenario, up.port).play()
        seen = _Seen(Trace.read(place / "trace.jsonl"), _stops(place), asked, peak.bytes)
    return {"loop": name, "mmap": mmap, **_judged(scenario, seen)}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was measured of one loop."""

    trace: Trace
    stops_ms: Sequence[float]
    asked: "Sequence[Asked]"
    peak: int


def _stops(place: Path) -> list[float]:
    """How long engines took to go, from the daemon's journal."""
    return sorted(float(line["ms"]) for line in journal(place) if line["event"] == "stopped")


# ------------------------------------------------------------------ the real core


def _write_config(place: Path, scenario: Scenario, *, mmap: bool) -> None:
    from gguf_models import GgufFiles

    files = GgufFiles(Path(tempfile.gettempdir()) / "watchbill-loops-models")
    files.folder.mkdir(exist_ok=True)
    lines = ["[devices.ram]", f'capacity = "{scenario.catalog.devices["ram"].capacity}B"', 'reserve = "0B"']
    for number, (model, rules) in enumerate(scenario.catalog.models.items(), 1):
        lines += [
            f"[models.{model}]", 'engine = "llamacpp"', f'source = "{files.chat(FILE_SIZE, number)}"',
            f'memory = "{rules.memory["ram"]}B"', "context = 512", "threads = 1",
            f"concurrency = {rules.concurrency}", f"mmap = {str(mmap).lower()}",
        ]  # fmt: skip
    for name, lane in scenario.catalog.lanes.items():
        kind = lane.work_class.name.lower()
        lines += [f"[lanes.{name}]", f'class = "{kind}"', f'max_wait = "{lane.max_wait_ms}ms"']
    (place / "watchbill.toml").write_text("\n".join(lines) + "\n")


# ------------------------------------------------------------------ what came of it


def _judged(scenario: Scenario, seen: _Seen) -> dict[str, Any]:
    trace, asked, peak = seen.trace, seen.asked, seen.peak
    lanes = scenario.catalog.lanes
    late = [r for r in trace.requests if r.waited_ms > lanes[r.lane].max_wait_ms + LATE_MS]
    started = [r for r in trace.requests if r.service_ms is not None]
    promised = [(r.waited_ms, r.forecast_ms) for r in started if r.forecast_ms is not None]
    errors = sorted(waited - forecast for waited, forecast in promised if waited > 0 or forecast > 0)
    budget = int(scenario.catalog.devices["ram"].capacity or 0)
    calibrated = _calibrated(scenario, seen)
    runs = [_simulated(calibrated, seed) for seed in range(SIMULATED_SEEDS)]
    classes = {lane: _compare(lane, scenario, trace, runs) for lane in lanes}
    kept = not late and len(trace.requests) == len(asked) and peak <= budget
    return {
        "seconds": scenario.duration_ms / 1000, "asked": len(asked),
        "answered": sum(1 for a in asked if a.status == http.client.OK), "late": len(late),
        "loads": len(trace.loads), "load_ms": _middle([x.ms for x in trace.loads]),
        "service_ms": _middle([x.service_ms for x in started if x.service_ms is not None]),
        "forecast_error_ms": {"p05": part(errors, 0.05), "p50": part(errors, 0.5), "p95": part(errors, 0.95)},
        "pss_peak": peak, "budget": budget, "lanes": classes, "kept": kept, "cores": os.cpu_count(),
    }  # fmt: skip


def _compare(lane: str, scenario: Scenario, trace: Trace, runs: Sequence[Report]) -> dict[str, float]:
    waits = sorted(r.waited_ms for r in trace.requests if r.lane == lane and r.service_ms is not None)
    work_class = scenario.catalog.lanes[lane].work_class
    simulated = [r.classes[work_class] for r in runs if work_class in r.classes]
    mean_ms = statistics.mean(waits) if waits else 0.0
    simulated_ms = statistics.mean(k.wait_mean_ms for k in simulated) if simulated else 0.0
    return {
        "started": len(waits), "wait_mean_ms": mean_ms, "wait_p95_ms": part(waits, 0.95),
        "wait_max_ms": part(waits, 1.0), "simulated_mean_ms": simulated_ms,
        "simulated_p95_ms": statistics.mean(k.wait_p95_ms for k in simulated) if simulated else 0.0,
        "simulated_over_measured": simulated_ms / mean_ms if mean_ms else 0.0,
    }  # fmt: skip


def _calibrated(scenario: Scenario, seen: _Seen) -> Scenario:
    """The scenario with the load, service and stop times that were measured: means, since mean waits are compared and
    one slow load in ten would be lost in a median."""
    trace, stops = seen.trace, seen.stops_ms
    gone = (part(stops, 0.1), part(stops, 0.9)) if stops else (100.0, 400.0)
    loads = {name: _mean([x.ms for x in trace.loads if x.model == name]) for name in scenario.truth}
    usual = _mean([x.ms for x in trace.loads])
    truth = {n: replace(t, load_ms=loads[n] or usual, stop_ms=gone) for n, t in scenario.truth.items()}
    return replace(scenario, truth=truth, traffic=[_with_service(t, trace) for t in scenario.traffic])


def _simulated(scenario: Scenario, seed: int) -> Report:
    """One run that begins as the daemon did: without knowing anything about the models."""
    world = scenario.world(seed, guesses=None).run(scenario.duration_ms)
    while world.open:
        world.run(world.now + 1_000)
    return Report.of(world, scenario.bound_ms)


def _with_service(source: Any, trace: Trace) -> Any:
    taken = [
        r.service_ms
        for r in trace.requests
        if r.model in source.models and r.outcome == "ok" and r.service_ms
    ]
    return replace(source, service=lambda draw: float(draw.choice(taken))) if taken else source


def _middle(values: Sequence[float]) -> float:
    return float(statistics.median(values)) if values else 0.0


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _told(result: dict[str, Any]) -> str:
    error = result["forecast_error_ms"]
    lines = [
        f"\n{result['loop']}, mmap {'on' if result['mmap'] else 'off'}, {result['seconds']:.0f} s, "
        f"{result['cores']} cores: {'kept' if result['kept'] else 'NOT KEPT'}",
        f"  {result['answered']} of {result['asked']} answered, {result['late']} past their max_wait, "
        f"{result['loads']} loads of {result['load_ms']:.0f} ms, answers of {result['service_ms']:.0f} ms",
        f"  forecast error (waited minus forecast) p5 {error['p05']:.0f}, p50 {error['p50']:.0f}, "
        f"p95 {error['p95']:.0f} ms",
        f"  memory {result['pss_peak'] / 1e6:.0f} MB PSS at the most, of {result['budget'] / 1e6:.0f} MB",
    ]
    for lane, k in result["lanes"].items():
        ratio = k["simulated_over_measured"]
        word = (
            "within 20 %" if abs(ratio - 1) <= TOLERANCE else "not within 20 %: the simulator is not quoted"
        )
        lines.append(
            f"  {lane}: mean wait {k['wait_mean_ms']:.0f} ms, p95 {k['wait_p95_ms']:.0f} ms; simulated "
            f"{k['simulated_mean_ms']:.0f} and {k['simulated_p95_ms']:.0f} ms ({ratio:.2f}, {word})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
