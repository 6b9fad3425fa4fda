"""The scheduler's table: every scenario of bench/scenarios under every policy, averaged over seeds.

    python bench/scheduler.py [--seeds N] [--json] [SCENARIO ...]

All of it is virtual time; the figures do not depend on this machine. Only the last lines do: what one decision of the
core costs, in processor time of this thread.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path

from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.simulate.compare import CONTENDERS, run_seeds
from watchbill.simulate.report import Report
from watchbill.simulate.scenario import Scenario
from watchbill.units import Bytes, Millis

SCENARIOS = Path(__file__).parent / "scenarios"
#: Strict arrival order on long scenarios takes minutes to simulate: one seed shows it.
FIFO_SEEDS = 1
#: Requests in line while a decision is timed, and how many decisions are.
QUEUED = 10_000
DECISIONS = 500
GB = 10**9


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "scenarios", nargs="*", default=sorted(path.stem for path in SCENARIOS.glob("*.toml"))
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {name: _row(name, arguments.seeds, show=not arguments.json) for name in arguments.scenarios}
    costs = {title: _decision_us(*shape) for title, shape in SHAPES.items()}
    if arguments.json:
        told = {name: {p: _json(r) for p, r in row.items()} for name, row in found.items()}
        print(json.dumps({"scenarios": told, "decision_us": costs}))
        return
    print(f"\nOne decision with {QUEUED:,} requests in line, processor time, median and 99 %:")
    for title, (half, most) in costs.items():
        print(f"  {title:44s} {half:5.0f} us {most:6.0f} us")


def _row(name: str, seeds: int, *, show: bool) -> dict[str, Report]:
    scenario = Scenario.read(SCENARIOS / f"{name}.toml")
    if show:
        print(f"\n{name}: {scenario.title}", flush=True)
    row: dict[str, Report] = {}
    for policy, contender in CONTENDERS.items():
        row[policy] = run_seeds(scenario, contender, range(FIFO_SEEDS if policy == "fifo" else seeds))
        if show:
            print(_line(policy, row[policy]), flush=True)
    return row


def _line(policy: str, report: Report) -> str:
    parts = [
        f"{work_class.name.lower()} {k.in_time:.0f} of {k.callers:.0f} in time, "
        f"mean {k.wait_mean_ms / 1000:.1f} s, p95 {k.wait_p95_ms / 1000:.1f} s"
        for work_class, k in report.classes.items()
    ]
    broken = f"  BROKEN {report.broken}" if report.broken else ""
    head = (
        f"  {policy:10s} {report.loads:5.0f} loads {report.loading_share:4.0%} {report.answered:6.0f} answers"
    )
    return f"{head}  {'; '.join(parts)}{broken}"


def _json(report: Report) -> dict[str, object]:
    return {**asdict(report), "classes": {k.name.lower(): asdict(v) for k, v in report.classes.items()}}


# ------------------------------------------------------------------ what a decision costs

#: Title -> models, whether they fit beside each other.
SHAPES = {
    "one ready model": (1, True),
    "four ready models": (4, True),
    "four models of which one fits": (4, False),
    "twelve models of which one fits": (12, False),
}


class _InstantCore:
    """A core whose engines load and stop at once."""

    def __init__(self, models: int, *, fits: bool) -> None:
        names = [f"m{i}" for i in range(models)]
        capacity = Bytes((16 * models if fits else 24) * GB)
        self._lane = Lane("bg", WorkClass.BACKGROUND, max_wait_ms=Millis(10**8), queue_max=10**6)
        catalog = Catalog(
            {"gpu:0": Device("gpu:0", capacity=capacity)},
            {"scripted": EngineRules("scripted", "scripted")},
            {
                n: Model(n, "scripted", memory={"gpu:0": Bytes(16 * GB)}, devices=("gpu:0",), concurrency=4)
                for n in names
            },
            {"bg": self._lane},
        )
        size = {"gpu:0": 16 * GB}
        self._core = Machine(catalog, {n: m.Knowledge(m.Footprint(size, size), 3_000, 500) for n in names})
        self.now, self.running, self._count, self.names = 1, list[str](), 0, names
        self._do(m.Observed(0, {"gpu:0": m.DeviceReading(int(capacity), int(capacity))}, {}))

    def arrive(self, model: str) -> int:
        """One more request; the decision's cost in nanoseconds."""
        self._count += 1
        lane = self._lane
        request = m.Request(
            f"r{self._count:07d}", model, lane.name, lane.work_class, self.now, lane.max_wait_ms, 600_000
        )
        return self._do(m.Arrived(request))

    def end(self) -> int:
        """The oldest running answer ends."""
        return self._do(m.Ended(self.running.pop(0), True))

    def _do(self, event: m.Event) -> int:
        began = time.thread_time_ns()
        actions = self._core.step(event, self.now)
        took = time.thread_time_ns() - began
        for action in actions:
            if isinstance(action, m.Grant):
                self.running.append(action.id)
            elif isinstance(action, m.Load):
                self.now += 1
                self._do(m.Loaded(action.model, action.attempt, {"gpu:0": 16 * GB}))
            elif isinstance(action, m.Stop):
                self.now += 1
                self._do(m.Stopped(action.model, action.attempt))
        return took


def _decision_us(models: int, fits: bool) -> tuple[float, float]:
    core = _InstantCore(models, fits=fits)
    for i in range(QUEUED):
        core.arrive(core.names[i % models])
    taken: list[int] = []
    for i in range(DECISIONS):
        core.now += 7
        taken.append(core.arrive(core.names[i % models]))
        if core.running:
            taken.append(core.end())
    return statistics.median(taken) / 1000, sorted(taken)[int(0.99 * len(taken))] / 1000


if __name__ == "__main__":
    main()
