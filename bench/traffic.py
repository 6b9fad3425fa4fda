"""The swap rule on real processes, beside exhaustive batching as llama-swap does it.

    python bench/traffic.py [--traffic burst|steady|one-loop|equals|flood|short-answers ...] [--json]

Three exclusive models of the shipped scripted engine (3 s to load, 0.5 s an answer, four slots) behind a real daemon,
real callers before it, the same scenario files as the simulator's. Each traffic is played under both policies, one
after the other, on this machine; what is printed are ratios and waits as the callers saw them. The goals are checked:
exit 1 if one is missed.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from playing import Asked, Callers, daemon, journal, part
from watchbill.simulate.scenario import Scenario

FOLDER = Path(__file__).parent / "scenarios"
#: Policy -> its name in the config.
POLICIES = {"exhaustive": "watchbill.simulate.exhaustive:Exhaustive", "rate": "rate"}
TRAFFIC = ("burst", "steady", "one-loop", "equals", "flood", "short-answers")
#: `short-answers` is longer than its question needs: the tenth person waits like the first.
SECONDS_MAX = 120


@dataclass(frozen=True, slots=True)
class Figures:
    """What callers saw of one traffic under one policy."""

    loads: int
    answers: int
    answers_per_s: float
    mean_s: float
    p95_s: float
    total_s: float  # until the last answer
    person_in_time: int  # answers for the person's model while the traffic lasted
    person_p95_s: float
    loop_answers: int  # answers of everybody else while the traffic lasted


@dataclass(frozen=True, slots=True)
class Goal:
    """What must hold of one traffic."""

    text: str
    holds: Callable[[Figures, Figures], bool]  # rate, exhaustive


GOALS: Mapping[str, Sequence[Goal]] = {
    "burst": (
        Goal("mean at most 1.02 x exhaustive", lambda r, e: r.mean_s <= 1.02 * e.mean_s),
        Goal("p95 at most 1.02 x exhaustive", lambda r, e: r.p95_s <= 1.02 * e.p95_s),
        Goal("at most 10 loads", lambda r, e: r.loads <= 10),
    ),
    "steady": (
        Goal("mean at most 1.02 x exhaustive", lambda r, e: r.mean_s <= 1.02 * e.mean_s),
        Goal("p95 at most 1.02 x exhaustive", lambda r, e: r.p95_s <= 1.02 * e.p95_s),
        Goal("at most 10 loads", lambda r, e: r.loads <= 10),
    ),
    "one-loop": (
        Goal("at least 2 x the answers of exhaustive", lambda r, e: r.answers_per_s >= 2 * e.answers_per_s),
        Goal("p95 at most 12 s", lambda r, e: r.p95_s <= 12),
    ),
    "equals": (
        Goal("24 of 30 people within the minute", lambda r, e: r.person_in_time >= 24),
        Goal("people's p95 at most 20 s", lambda r, e: r.person_p95_s <= 20),
        Goal("at least 180 answers of the loops", lambda r, e: r.loop_answers >= 180),
    ),
    "flood": (
        Goal("people's p95 at most 9 s", lambda r, e: r.person_p95_s <= 9),
        Goal("at least 110 answers of the loops", lambda r, e: r.loop_answers >= 110),
    ),
    "short-answers": (Goal("people's p95 at most 5 s", lambda r, e: r.person_p95_s <= 5),),
}


def main() -> int:
    """Plays the traffic and prints what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traffic", choices=TRAFFIC, nargs="+", default=TRAFFIC)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    kept = True
    for name in arguments.traffic:
        seen = {policy: play(name, policy) for policy in POLICIES}
        missed = [goal.text for goal in GOALS[name] if not goal.holds(seen["rate"], seen["exhaustive"])]
        kept = kept and not missed
        found[name] = {**{policy: asdict(figures) for policy, figures in seen.items()}, "missed": missed}
        if not arguments.json:
            print(_told(name, seen, missed), flush=True)
    if arguments.json:
        print(json.dumps(found))
    return 0 if kept else 1


def play(name: str, policy: str) -> Figures:
    """One traffic under one policy."""
    scenario = Scenario.read(FOLDER / f"{name}.toml")
    scenario = replace(scenario, duration_ms=min(scenario.duration_ms, 1000 * SECONDS_MAX))
    with tempfile.TemporaryDirectory(prefix="watchbill-traffic-") as folder:
        place = Path(folder)
        (place / "watchbill.toml").write_text(_config(scenario, POLICIES[policy]))
        with daemon(place) as up:
            asked = Callers(scenario, up.port).play()
        loads = sum(1 for line in journal(place) if line["event"] == "load")
    return _figures(scenario, asked, loads)


def _config(scenario: Scenario, policy: str) -> str:
    lines = [f'policy.name = "{policy}"', "[devices.ram]", 'capacity = "3GB"', 'reserve = "0B"']
    for name, model in scenario.catalog.models.items():
        load = f"{scenario.truth[name].load_ms:.0f}ms"
        service = f"{scenario.service_ms[name]:.0f}ms"
        lines += [
            f"[models.{name}]", 'engine = "scripted"', 'memory = "100MB"', 'group = "one"',
            f"concurrency = {model.concurrency}",
            f'script = {{ load = "{load}", service = "{service}", jitter = 0.5, memory = "1MB" }}',
        ]  # fmt: skip
    for name, lane in scenario.catalog.lanes.items():
        kind = lane.work_class.name.lower()
        lines += [f"[lanes.{name}]", f'class = "{kind}"', f'max_wait = "{lane.max_wait_ms}ms"']
    return "\n".join(lines) + "\n"


def _figures(scenario: Scenario, asked: Sequence[Asked], loads: int) -> Figures:
    until_s = scenario.duration_ms / 1000
    person = scenario.traffic[0].models[0] if len(scenario.traffic) > 1 else None
    answered = [a for a in asked if a.status == 200]
    people = [a for a in asked if a.model == person]
    others = [a for a in answered if a.model != person]
    took = sorted(a.took_ms / 1000 for a in asked)
    total_s = max(a.ended_s for a in asked)
    return Figures(
        loads=loads,
        answers=len(answered),
        answers_per_s=len(answered) / total_s,
        mean_s=statistics.mean(took),
        p95_s=part(took, 0.95),
        total_s=total_s,
        person_in_time=sum(1 for a in people if a.status == 200 and a.ended_s <= until_s),
        person_p95_s=part(sorted(a.took_ms / 1000 for a in people), 0.95),
        loop_answers=sum(1 for a in others if a.ended_s <= until_s),
    )


def _told(name: str, seen: Mapping[str, Figures], missed: Sequence[str]) -> str:
    read = Scenario.read(FOLDER / f"{name}.toml")
    lines = [f"\n{name}: {read.title}"]
    for policy, f in seen.items():
        people = f", people {f.person_in_time} in time, p95 {f.person_p95_s:.1f} s, loops {f.loop_answers}"
        lines.append(
            f"  {policy:10s} {f.loads:3d} loads, {f.answers:4d} answers, {f.answers_per_s:.2f}/s, "
            f"mean {f.mean_s:.2f} s, p95 {f.p95_s:.2f} s, {f.total_s:.1f} s in all"
            + (people if len(read.traffic) > 1 else "")
        )
    lines += [f"  {'MISSED' if goal.text in missed else 'pass'}: {goal.text}" for goal in GOALS[name]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
