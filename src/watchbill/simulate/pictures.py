"""The pictures of `simulate`: the timeline of a run, and the frontier of the weights, as SVG. Does no I/O.

One file that needs nothing else: no script, no font, no address. It follows the reader's light or dark setting, and a
bar says what it is when the pointer rests on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from watchbill.catalog import WorkClass
from watchbill.simulate.engine import Power
from watchbill.simulate.report import Report
from watchbill.simulate.timeline import Span, Timeline
from watchbill.units import format_bytes, format_millis

__all__ = ["frontier_svg", "timeline_svg"]

_WIDTH, _LEFT, _RIGHT = 1000, 170, 20
_ROW, _BAR, _CHART = 22, 16, 70
#: A bar that would be thinner than this is drawn as thick: a short load is a load.
_PIXEL = 0.75
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#222}.small{font-size:10px;fill:#666}.title{font-size:16px;font-weight:600}
.back{fill:#fff}.grid{stroke:#ddd}.line{fill:none;stroke:#2563eb;stroke-width:1.5}.area{fill:#2563eb33}
.limit{stroke:#dc2626;stroke-dasharray:4 3}.dot{fill:#2563eb}
.loading{fill:#f59e0b}.warm{fill:#16a34a}.stopping{fill:#a855f7}.asleep{fill:#06b6d4}.dead{fill:#dc2626}
@media(prefers-color-scheme:dark){.back{fill:#16181d}text{fill:#eee}.small{fill:#aaa}.grid{stroke:#333}}
"""
_WORDS = {
    Power.LOADING: "loading", Power.WARM: "in memory", Power.STOPPING: "stopping", Power.ASLEEP: "asleep",
    Power.DEAD: "crashed",
}  # fmt: skip


def timeline_svg(title: str, runs: Mapping[str, Timeline]) -> str:
    """The timelines of one run, or of several policies on the same traffic, one below the other."""
    end = max((run.end for run in runs.values()), default=0.0) or 1.0
    parts, top = [_text(_LEFT, 26, title, "title")], 40.0
    parts += _legend(top)
    top += 24
    for name, run in runs.items():
        drawn, top = _run(name if len(runs) > 1 else "", run, end, top)
        parts += drawn
    parts += _axis(end, top)
    return _document(title, parts, top + 30)


def frontier_svg(title: str, points: Mapping[float, Report]) -> str:
    """What a rising weight of interactive requests buys: their mean wait against the answers of all others."""
    waits = {weight: _people_wait(report) for weight, report in points.items()}
    others = {weight: _others(report) for weight, report in points.items()}
    height, top, bottom = 420, 60, 360
    x = _around(waits.values(), _LEFT, _WIDTH - 3 * _RIGHT)
    y = _around(others.values(), bottom, top)
    places = [(weight, x.at(waits[weight]), y.at(others[weight])) for weight in points]
    parts = [_text(_LEFT, 26, title, "title")]
    parts += [*_grid(x, y)]
    parts.append(_line([(each_x, each_y) for _, each_x, each_y in places]))
    for number, (weight, each_x, each_y) in enumerate(places):
        wait = format_millis(round(waits[weight]))
        told = f"weight {weight:g}: people wait {wait}, {others[weight]:,.0f} other answers"
        parts.append(
            f'<circle class="dot" cx="{each_x:.1f}" cy="{each_y:.1f}" r="5"><title>{_safe(told)}</title></circle>'
        )
        parts.append(_text(each_x + 8, each_y + (18 if number % 2 else -8), f"{weight:g}", ""))
    parts.append(
        _text(
            _LEFT,
            height - 24,
            "mean wait of interactive requests; the figure at a point is their weight",
            "small",
        )
    )
    parts.append(_text(8, top - 12, "answers of all others", "small"))
    return _document(title, parts, height)


# ------------------------------------------------------------------ one run


def _run(name: str, run: Timeline, end: float, top: float) -> tuple[list[str], float]:
    x, parts = _Scale(0, end, _LEFT, _WIDTH - _RIGHT), list[str]()
    if name:
        top += 16
        parts.append(_text(8, top, name, "title"))
        top += 8
    for model in sorted({span.model for span in run.spans}):
        parts.append(_text(8, top + 12, _shortened(model), ""))
        parts += [_bar(span, x, top) for span in _merged([s for s in run.spans if s.model == model], x)]
        top += _ROW
    for device, points in run.memory.items():
        whole = run.capacity.get(device, 0)
        parts += _chart(f"{device} {format_bytes(whole)}", points, whole, x, top)
        top += _CHART
    parts += _chart("waiting requests", run.waiting, 0, x, top)
    return parts, top + _CHART


def _merged(spans: Sequence[Span], x: "_Scale") -> Iterator[Span]:
    """Spans of one state that would touch each other, as one: a day of swaps has thousands."""
    last: Span | None = None
    for span in sorted(spans, key=lambda each: each.start):
        if last is not None and last.power is span.power and x.at(span.start) - x.at(last.end) < _PIXEL:
            last = Span(last.model, last.power, last.start, span.end)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _bar(span: Span, x: "_Scale", top: float) -> str:
    left, right = x.at(span.start), x.at(span.end)
    start, end = (format_millis(round(at)) for at in (span.start, span.end))
    told = f"{span.model}: {_WORDS[span.power]} from {start} to {end}"
    return (
        f'<rect class="{span.power.value}" x="{left:.2f}" y="{top:.1f}" width="{max(right - left, _PIXEL):.2f}" '
        f'height="{_BAR}"><title>{_safe(told)}</title></rect>'
    )


def _thinned(points: Sequence[tuple[float, int]], x: "_Scale") -> Iterator[tuple[float, int]]:
    """The highest and the last figure of each pixel: more cannot be seen, and a day has tens of thousands."""
    for _, column in groupby(points, key=lambda point: int(x.at(point[0]))):
        (at, first), *rest = column
        highest = max((value for _, value in rest), default=first)
        yield at, max(first, highest)
        if rest and rest[-1][1] != max(first, highest):
            yield rest[-1]


def _chart(name: str, points: Sequence[tuple[float, int]], limit: int, x: "_Scale", top: float) -> list[str]:
    """A figure over time, as steps; with a line at its limit."""
    most = max([limit, *(value for _, value in points)], default=0) or 1
    y = _Scale(0, most * 1.1, top + _CHART - 12, top + 8)
    steps: list[tuple[float, float]] = [(x.at(0), y.at(0))]
    for at, value in _thinned(points, x):
        steps += [(x.at(at), steps[-1][1]), (x.at(at), y.at(value))]
    steps.append((x.last, steps[-1][1]))
    parts = [_text(8, top + _CHART / 2, name, ""), _line(steps)]
    area = " ".join(f"{each_x:.1f},{each_y:.1f}" for each_x, each_y in [*steps, (x.last, y.at(0))])
    parts.append(f'<polygon class="area" points="{area}"/>')
    if limit:
        parts.append(
            f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y.at(limit):.1f}" y2="{y.at(limit):.1f}"/>'
        )
    return parts


def _legend(top: float) -> list[str]:
    parts, left = list[str](), float(_LEFT)
    for power, word in _WORDS.items():
        parts.append(f'<rect class="{power.value}" x="{left:.0f}" y="{top:.0f}" width="12" height="12"/>')
        parts.append(_text(left + 16, top + 10, word, "small"))
        left += 90
    return parts


def _axis(end: float, top: float) -> list[str]:
    x = _Scale(0, end, _LEFT, _WIDTH - _RIGHT)
    return [
        _text(x.at(end * tenth / 10), top + 14, format_millis(round(end * tenth / 10)), "small")
        for tenth in range(0, 10, 2)
    ]


def _grid(x: "_Scale", y: "_Scale") -> Iterator[str]:
    for part in range(6):
        at, level = x.part(part / 5), y.part(part / 5)
        yield f'<line class="grid" x1="{x.at(at):.1f}" x2="{x.at(at):.1f}" y1="{y.first:.1f}" y2="{y.last:.1f}"/>'
        yield f'<line class="grid" x1="{x.first:.1f}" x2="{x.last:.1f}" y1="{y.at(level):.1f}" y2="{y.at(level):.1f}"/>'
        yield _text(x.at(at), y.first + 14, format_millis(round(at)), "small")
        yield _text(_LEFT - 60, y.at(level) + 4, f"{level:,.0f}", "small")


# ------------------------------------------------------------------ figures and shapes


def _people_wait(report: Report) -> float:
    people = report.classes.get(WorkClass.INTERACTIVE)
    return people.wait_mean_ms if people else 0.0


def _others(report: Report) -> float:
    people = report.classes.get(WorkClass.INTERACTIVE)
    return report.answered - (people.answered if people else 0)


class _Scale:
    """From figures to places."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high, self.first, self.last = low, high, first, last

    def at(self, value: float) -> float:
        """Where a figure is."""
        return self.first + (value - self.low) / (self.high - self.low) * (self.last - self.first)

    def part(self, share: float) -> float:
        """The figure at this share of the way."""
        return self.low + (self.high - self.low) * share


def _around(figures: Iterable[float], first: float, last: float) -> _Scale:
    """A scale for these figures with some room around them."""
    known = [*figures] or [0.0]
    low, high = min(known), max(known)
    margin = (high - low) * 0.15 or abs(high) * 0.1 or 1.0
    return _Scale(max(0.0, low - margin), high + margin, first, last)


def _line(points: Iterable[tuple[float, float]]) -> str:
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="line" points="{told}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}">{_safe(text)}</text>'


def _shortened(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def _safe(text: str) -> str:
    """A text as XML may hold it: no control characters, no halves of a character."""
    told = text.encode("utf-8", "replace").decode()
    return escape("".join(letter if letter.isprintable() else " " for letter in told))


def _document(title: str, parts: Iterable[str], height: float) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">\n'
        f"<title>{_safe(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="back" width="{_WIDTH}" height="{height:.0f}"/>\n{body}\n</svg>\n'
    )
