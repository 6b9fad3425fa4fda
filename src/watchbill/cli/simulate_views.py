"""How `simulate` shows its results: one run, policies side by side, and the frontier of the weights."""

from collections.abc import Mapping, Sequence

from watchbill.catalog import WorkClass
from watchbill.cli.terminal import Column, Terminal
from watchbill.simulate.report import LAWS, ClassFigures, Report
from watchbill.simulate.scenario import Scenario
from watchbill.units import format_bytes, format_millis

__all__ = ["draw_comparison", "draw_frontier", "draw_laws", "draw_run"]


def draw_run(report: Report, scenario: Scenario, terminal: Terminal) -> list[str]:
    """Classes as rows, then loads, memory and time."""
    columns = [
        Column("class"), Column("asked", True), Column("answered", True), Column("in time", True),
        Column("refused", True), Column("expired", True), Column("wait p50", True), Column("p95", True),
        Column("max", True),
    ]  # fmt: skip
    rows = [_class_row(work_class, figures) for work_class, figures in report.classes.items()]
    return [
        *terminal.table(columns, rows),
        "",
        f"{_count(report.loads)} loads, {report.loading_share:.0%} of the time; last answer after "
        f"{_span(report.span_ms)}",
        *(f"memory peak {_peak(device, size, scenario)}" for device, size in report.peak.items()),
    ]


def draw_comparison(reports: Mapping[str, Report], terminal: Terminal) -> list[str]:
    """Policies as rows; per class how many started in time, and the 95th percentile of the wait."""
    classes = sorted({work_class for report in reports.values() for work_class in report.classes})
    columns = [Column("policy"), Column("loads", True), Column("loading", True), Column("answers", True)]
    for work_class in classes:
        columns += [Column(work_class.word, True), Column("p95", True)]
    rows: list[list[str]] = []
    for name, report in reports.items():
        row = [name, _count(report.loads), f"{report.loading_share:.0%}", _count(report.answered)]
        for work_class in classes:
            figures = report.classes[work_class]
            in_time = f"{_count(figures.in_time)} of {_count(figures.callers)}"
            row += [in_time, _span(figures.wait_p95_ms)]
        rows.append(row)
    return [
        *terminal.table(columns, rows),
        "",
        "per class: how many started within their bound, of all that asked",
    ]


def draw_frontier(points: Mapping[float, Report], terminal: Terminal) -> list[str]:
    """The effect of a rising weight of interactive requests on their waits and on background work."""
    columns = [
        Column("weight", True), Column("interactive mean", True), Column("p95", True), Column("in time", True),
        Column("other answers", True), Column("loads", True), Column("loading", True),
    ]  # fmt: skip
    rows: list[list[str]] = []
    for weight, report in points.items():
        people = report.classes.get(WorkClass.INTERACTIVE)
        others = report.answered - (people.answered if people else 0)
        rows.append([
            f"{weight:g}", *_person(people), _count(others), _count(report.loads), f"{report.loading_share:.0%}",
        ])  # fmt: skip
    return terminal.table(columns, rows)


def draw_laws(reports: Sequence[Report]) -> list[str]:
    """What was checked, and what was broken."""
    steps = sum(report.steps for report in reports)
    broken: dict[str, int] = {}
    for report in reports:
        for law, times in report.broken.items():
            broken[law] = broken.get(law, 0) + times
    if broken:
        return [f"BROKEN {law}: {times} times" for law, times in broken.items()]
    return [f"invariants: {len(LAWS)} laws checked after each of {steps:,} steps, none broken"]


def _person(figures: ClassFigures | None) -> list[str]:
    if figures is None:
        return ["-", "-", "-"]
    return [_span(figures.wait_mean_ms), _span(figures.wait_p95_ms), _share(figures)]


def _class_row(work_class: WorkClass, figures: ClassFigures) -> list[str]:
    return [
        work_class.word, _count(figures.callers), _count(figures.answered), _share(figures),
        _count(figures.refused), _count(figures.expired), _span(figures.wait_p50_ms),
        _span(figures.wait_p95_ms), _span(figures.wait_max_ms),
    ]  # fmt: skip


def _peak(device: str, size: int, scenario: Scenario) -> str:
    capacity = scenario.catalog.devices[device].capacity
    return f"{device} {format_bytes(size)}" + (f" of {format_bytes(capacity)}" if capacity else "")


def _share(figures: ClassFigures) -> str:
    return f"{_count(figures.in_time)} ({figures.in_time / max(figures.callers, 1):.0%})"


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _span(ms: float) -> str:
    return format_millis(round(ms))
