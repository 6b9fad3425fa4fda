"""`simulate`: the real scheduler in a simulated world. Needs no daemon, no model and no GPU."""

import json as jsonlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from watchbill.cli.options import CONFIG_DEFAULT, QUIET, ROOT
from watchbill.cli.progress import count_bar
from watchbill.cli.simulate_views import draw_comparison, draw_frontier, draw_laws, draw_run
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import OursError
from watchbill.files.atomic import replace_file
from watchbill.root import find_root
from watchbill.simulate.adjust import FRONTIER_WEIGHTS, adjust, with_interactive_weight
from watchbill.simulate.compare import CONTENDERS, average, contender_of, run
from watchbill.simulate.day import day
from watchbill.simulate.limits import SIMULATE_SEEDS_MAX
from watchbill.simulate.pictures import frontier_svg, timeline_svg
from watchbill.simulate.recent import read_recent
from watchbill.simulate.report import LAWS, Report
from watchbill.simulate.scenario import Scenario
from watchbill.simulate.timeline import Timeline
from watchbill.simulate.trace import Trace

__all__ = ["simulate"]

_FRONTIER = Parameter(
    negative="",
    show_default=False,
    help="Raise the weight of interactive requests from 2 to 20: their waits against the throughput of the rest.",
)
_SVG = Parameter(
    show_default=False,
    help="Also draw it: the timeline of the first seed, of each policy with --compare, or the frontier.",
)
_JSON = Parameter(negative="", show_default=False, help="Print the figures as JSON.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class What:
    """The traffic to run, and how often."""

    trace: Annotated[
        Path | None,
        Parameter(
            help="Replay what `watchbill up --record FILE` wrote, or the last day of a root: its folder traffic.",
            show_default=False,
        ),
    ] = None
    config: Annotated[
        Path | None,
        Parameter(
            help=f"With --trace: the config to replay it against. {CONFIG_DEFAULT}",
            show_default=False,
        ),
    ] = None
    root: Annotated[Path | None, ROOT] = None
    policy: Annotated[
        Literal["rate", "turns", "fifo", "exhaustive"] | None,
        Parameter(help="The policy. Default: rate, or the one of --config.", show_default=False),
    ] = None
    seed: Annotated[int, Parameter(help="The first seed. The same seed gives the same run.")] = 0
    seeds: Annotated[int, Parameter(help="How many seeds to average over.")] = 1
    change: Annotated[
        tuple[str, ...],
        Parameter(
            name="--set",
            negative="",
            show_default=False,
            help="Change a figure: policy.alpha=1.5, policy.weights.interactive=5, devices.ram.capacity=32GB or +8GB, "
            "lanes.chat.max_wait=30s. May be repeated.",
        ),
    ] = ()


_DEFAULTS = What()


def simulate(
    scenario: Annotated[
        Path | None,
        Parameter(
            name="SCENARIO",
            help="A scenario file (TOML): devices, models, lanes, traffic. Default: a built-in day of traffic.",
            show_default=False,
        ),
    ] = None,
    /,
    *,
    what: What = _DEFAULTS,
    compare: Annotated[
        bool, Parameter(negative="", show_default=False, help="Run every policy on the same traffic.")
    ] = False,
    frontier: Annotated[bool, _FRONTIER] = False,
    svg: Annotated[Path | None, _SVG] = None,
    json: Annotated[bool, _JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> int:
    """Run traffic against the scheduler in virtual time, and check every step.

    Prints loads, waits per class, memory and the invariants that were checked; exit code 1 if one was broken.

    Example: watchbill simulate bench/scenarios/flood.toml --compare --seeds 5
    """
    played = adjust(_scenario(scenario, what), what.change)
    chosen = what.policy or played.catalog.policy.name
    task = _Task(played, range(what.seed, what.seed + what.seeds), Terminal(quiet=quiet), json=json, svg=svg)
    if frontier:
        return task.frontier(chosen)
    return task.comparison() if compare else task.single(chosen)


def _scenario(file: Path | None, what: What) -> Scenario:
    if not 1 <= what.seeds <= SIMULATE_SEEDS_MAX:
        raise OursError(f"--seeds is from 1 to {SIMULATE_SEEDS_MAX}")
    if file is not None and what.trace is not None:
        raise OursError("give a scenario or --trace, not both")
    if what.trace is not None:
        from watchbill.config import find_config, read  # importing pydantic is slow, and only replays need it

        root = find_root(what.root)
        loaded = read(find_config(what.config, root), root=root.path)
        if what.trace.is_dir():
            recent, catalog = read_recent(what.trace).on(loaded.catalog)
            return recent.trace.scenario(catalog)
        return Trace.read(what.trace).scenario(loaded.catalog)
    if what.config is not None:
        raise OursError("--config goes with --trace; a scenario file names its own models")
    return day() if file is None else Scenario.read(file)


@dataclass(frozen=True, slots=True)
class _Task:
    """One run: the traffic, and where its results are shown."""

    scenario: Scenario
    seeds: range
    terminal: Terminal
    json: bool
    svg: Path | None = None
    timelines: dict[str, Timeline] = field(default_factory=dict[str, Timeline])

    def single(self, policy: str) -> int:
        """One policy."""
        report = self._average({policy: (policy, self.scenario)})[policy]
        self._head(policy)
        return self._end({policy: report}, draw_run(report, self.scenario, self.terminal))

    def comparison(self) -> int:
        """Every policy."""
        reports = self._average({name: (name, self.scenario) for name in CONTENDERS})
        self._head("fifo and exhaustive without bounds, the others with them")
        return self._end(reports, draw_comparison(reports, self.terminal))

    def frontier(self, policy: str) -> int:
        """One policy with several weights."""
        runs = {f"{w:g}": (policy, with_interactive_weight(self.scenario, w)) for w in FRONTIER_WEIGHTS}
        reports = self._average(runs)
        self._head(f"{policy}, weight of a person's request against 1 of background work")
        points = dict(zip(FRONTIER_WEIGHTS, reports.values(), strict=True))
        if self.svg is not None:
            self._draw(frontier_svg(f"{self.scenario.title}: {policy}", points))
            self.timelines.clear()
        return self._end(reports, draw_frontier(points, self.terminal))

    def _average(self, runs: dict[str, tuple[str, Scenario]]) -> dict[str, Report]:
        reports: dict[str, Report] = {}
        with count_bar(self.terminal, "simulating", len(runs) * len(self.seeds)) as show:
            for done, (name, (policy, scenario)) in enumerate(runs.items()):
                first = done * len(self.seeds)
                if self.svg is not None:
                    self.timelines[name] = Timeline()
                reports[name] = average(
                    self._each(policy, scenario, name, lambda n, first=first: show(first + n))
                )
        return reports

    def _each(self, policy: str, scenario: Scenario, name: str, show: Callable[[int], None]) -> list[Report]:
        reports: list[Report] = []
        for seed in self.seeds:
            timeline = self.timelines.get(name) if seed == self.seeds[0] else None
            contender = contender_of(policy, scenario.catalog.policy)
            reports.append(run(scenario, contender, seed, timeline=timeline))
            show(len(reports))
        return reports

    def _head(self, what: str) -> None:
        if not self.json:
            first, last = self.seeds[0], self.seeds[-1]
            seeds = f"seed {first}" if first == last else f"average of seeds {first} to {last}"
            self.terminal.show(plain(self.scenario.title), f"{what}; {seeds}", "")

    def _draw(self, picture: str) -> None:
        """Writes the picture, whole or not at all."""
        if self.svg is None:
            return
        try:
            replace_file(Path(os.path.realpath(self.svg)), picture.encode(), mode=0o644)
        except OSError as error:  # whichever errno: the person named this file and is told why
            raise OursError(f"--svg {self.svg}: {(error.strerror or str(error)).lower()}") from error
        self.terminal.note(f"drew {plain(self.svg)}")

    def _end(self, reports: dict[str, Report], lines: list[str]) -> int:
        if self.timelines:
            self._draw(timeline_svg(self.scenario.title, self.timelines))
        if self.json:
            told = {name: _json(report) for name, report in reports.items()}
            self.terminal.show(jsonlib.dumps({"scenario": self.scenario.name, "runs": told, "laws": LAWS}))
        else:
            self.terminal.show(*lines, "", *draw_laws(list(reports.values())))
        return 1 if any(report.broken for report in reports.values()) else 0


def _json(report: Report) -> dict[str, object]:
    classes = {work_class.word: asdict(figures) for work_class, figures in report.classes.items()}
    return {**asdict(report), "classes": classes}
