"""Policies side by side on the same traffic.

Watchbill's own policies run with the scenario's bounds. `exhaustive` runs without any, because the servers it stands
for let every request wait, and so does `fifo` here. Whether a request started in time is judged by the scenario's bound
for all of them. Every run goes on after the traffic ends until every request has an answer, so that no wait is cut off.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from statistics import mean

from watchbill.catalog import PolicyRules
from watchbill.core.guarded import make_policy
from watchbill.core.policy import POLICIES, Policy
from watchbill.simulate.exhaustive import Exhaustive
from watchbill.simulate.report import ClassFigures, Report
from watchbill.simulate.scenario import Scenario
from watchbill.simulate.timeline import Timeline

__all__ = ["CONTENDERS", "Contender", "average", "contender_of", "run", "run_seeds"]

#: How often a run is checked for its end once its traffic has stopped.
TAIL_STEP_MS = 1_000
#: A run that is not over after this many times its own length, plus an hour, is reported as it is.
TAIL_RUNS_MAX = 20
TAIL_MS_MIN = 3_600_000


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy that takes part in a comparison."""

    name: str
    make: Callable[[], Policy]
    endless: bool = False  # it lets every request wait


#: The order of the columns in a comparison.
CONTENDERS: Mapping[str, Contender] = {
    "fifo": Contender("fifo", POLICIES["fifo"], endless=True),
    "exhaustive": Contender("exhaustive", Exhaustive, endless=True),
    "turns": Contender("turns", POLICIES["turns"]),
    "rate": Contender("rate", POLICIES["rate"]),
}


def contender_of(name: str, rules: PolicyRules) -> Contender:
    """The policy of this name: one of the table, or the one that the config names."""
    return CONTENDERS.get(name) or Contender(name, partial(make_policy, rules))


def run(
    scenario: Scenario,
    contender: Contender,
    seed: int,
    rules: PolicyRules | None = None,
    timeline: Timeline | None = None,
) -> Report:
    """One run of one policy, until every request has an answer. A timeline notes what happens."""
    world = scenario.world(seed, policy=contender.make(), endless=contender.endless, rules=rules)
    world.observer = None if timeline is None else timeline.see
    world.run(scenario.duration_ms)
    ends = max(TAIL_RUNS_MAX * scenario.duration_ms, TAIL_MS_MIN)
    while world.open and world.now < ends:
        world.run(world.now + TAIL_STEP_MS)
    if timeline is not None:
        timeline.close()
    return Report.of(world, scenario.bound_ms)


def run_seeds(
    scenario: Scenario, contender: Contender, seeds: Iterable[int], rules: PolicyRules | None = None
) -> Report:
    """The average of one policy over several seeds."""
    return average([run(scenario, contender, seed, rules) for seed in seeds])


def average(reports: Sequence[Report]) -> Report:
    """The mean of every figure; breaches and steps are summed, and the peak is the highest."""
    classes = sorted({work_class for report in reports for work_class in report.classes})
    laws = sorted({law for report in reports for law in report.broken})
    devices = sorted({device for report in reports for device in report.peak})
    return Report(
        loads=mean(r.loads for r in reports),
        loading_share=mean(r.loading_share for r in reports),
        answered=mean(r.answered for r in reports),
        span_ms=mean(r.span_ms for r in reports),
        steps=sum(r.steps for r in reports),
        peak={d: max(r.peak.get(d, 0) for r in reports) for d in devices},
        classes={k: _average_class([r.classes[k] for r in reports if k in r.classes]) for k in classes},
        broken={law: sum(r.broken.get(law, 0) for r in reports) for law in laws},
    )


def _average_class(figures: Sequence[ClassFigures]) -> ClassFigures:
    names = [field.name for field in fields(ClassFigures)]
    return ClassFigures(**{name: mean(getattr(f, name) for f in figures) for name in names})
