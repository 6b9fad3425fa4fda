"""What was kept of what was promised: from the calls, the journal and the recording of a run to its table."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Any

from playing import Reply, part
from upsets import Edits, Lane, Stop
from watchbill.runtime.recorder import RequestLine
from watchbill.simulate.trace import Trace

__all__ = ["Call", "Seen", "judged", "told"]

#: A client thread on a busy machine notices its answer so much later.
ALLOWANCE_S = 1.0
#: Two that began to wait within this time came together; a decision is taken for those who came before it.
TOGETHER_MS = 20
#: A call that waited less than this found its model warm.
WARM_S = 0.05
#: A forecast of less is not compared as a ratio.
RATIO_FROM_MS = 500
#: A model whose load failed is not tried again at once.
PAUSED_MS = 5_000
#: A daemon that was told to go has this long.
DOWN_S = 30.0

#: Sooner than this no patience ends.
AT_ONCE_S = 1.0

AT_ONCE = "refused at once"
ANSWERED, FALLBACK, UNANSWERED = "answered", "fallback", "unanswered"
CLASSES = ("interactive", "normal", "background")
#: Journal events after which a model is out of memory, and out of every plan.
AWAY = {"stopped", "unplan", "load_failed"}
FAILED = {"load_failed", "reset", "died"}
#: The journal's reason of an eviction by a reload.
REDEFINED = "its definition in the config changed"
#: Plans that displace others because somebody waits. `due` is patience, which goes before class.
CHOICES = {"turn", "turns", "rate"}


@dataclass(frozen=True)
class Call:
    """One request, as its caller saw it."""

    lane: str
    model: str
    priority: int
    streams: bool
    crowd: int | None  # those of one number came together
    bound_s: float
    began: float
    took_s: float
    reply: Reply | None  # None: there was no answer

    @cached_property
    def outcome(self) -> str:
        """ANSWERED, FALLBACK, UNANSWERED, or the code of the error."""
        if self.reply is None:
            return UNANSWERED
        if self.reply.error is not None:
            return self.reply.error
        if "x-watchbill-fallback" in self.reply.headers:
            return FALLBACK
        is_whole = not self.streams or self.reply.body.endswith(b"data: [DONE]\n\n")
        return ANSWERED if is_whole else UNANSWERED

    @property
    def is_answered(self) -> bool:
        return self.outcome in (ANSWERED, FALLBACK)

    @property
    def is_refused_at_once(self) -> bool:
        """Whether it was told when it came that its wait would be too long."""
        return self.outcome == "wait_exceeded" and self.took_s < AT_ONCE_S

    @property
    def is_late(self) -> bool:
        return self.took_s > self.bound_s + ALLOWANCE_S

    @property
    def ended(self) -> float:
        return self.began + self.took_s

    @property
    def wait_s(self) -> float | None:
        """From its arrival to its start, where its answer says so."""
        wait_ms = self._header("x-watchbill-wait-ms")
        return None if wait_ms is None else wait_ms / 1000

    @property
    def retry_after_s(self) -> float | None:
        return self._header("retry-after")

    def _header(self, name: str) -> float | None:
        found = None if self.reply is None else self.reply.headers.get(name)
        return None if found is None else float(found)


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that was seen of one run."""

    began_s: float  # on the bench's own clock
    wall_s: float  # to be added to it for the time of day
    calls: Sequence[Call]
    stops: Sequence[Stop]
    edits: Edits
    journal: Sequence[Mapping[str, Any]]
    trace: Trace
    peak: int
    budget: int
    left: Sequence[int]
    exit_code: int | None
    down_s: float


def judged(seen: Seen, lanes: Mapping[str, Lane]) -> dict[str, Any]:
    """The figures of a run, and whether all was kept."""
    late = [call for call in seen.calls if call.is_late]
    unanswered = [call for call in seen.calls if call.outcome == UNANSWERED]
    ended_well = not seen.left and seen.exit_code == 0 and seen.down_s <= DOWN_S
    in_budget = 0 < seen.peak <= seen.budget
    return {
        "requests": len(seen.calls), "recorded": len(seen.trace.requests),
        "late": len(late), "unanswered": len(unanswered),
        "lanes": {name: _lane(name, lane, seen) for name, lane in lanes.items()},
        "forecast": _forecasts(seen), "boundaries": _boundaries(seen), "priorities": _priorities(seen),
        "stops": [_stop(stop, seen) for stop in sorted(seen.stops, key=lambda stop: stop.at)],
        "loads": len(seen.trace.loads), "load_ms": median([line.ms for line in seen.trace.loads] or [0]),
        "service_ms": median([line.service_ms for line in seen.trace.requests if line.service_ms] or [0]),
        "edits": {
            "saved": seen.edits.saved, "reloads": sum(line["event"] == "reload" for line in seen.journal),
            "refused": seen.edits.refused, "taken_out": seen.edits.taken_out,
            "unloaded": sum(line["event"] == "evict" and line["reason"] == REDEFINED for line in seen.journal),
            "unexpected": seen.edits.unexpected,
        },
        "pss_peak": seen.peak, "budget": seen.budget, "left_behind": list(seen.left),
        "exit_code": seen.exit_code, "down_s": round(seen.down_s, 2),
        "worst": [_view(call, seen) for call in sorted([*late, *unanswered], key=lambda call: -call.took_s)[:20]],
        "kept": not late and not unanswered and ended_well and in_budget,
    }  # fmt: skip


def _view(call: Call, seen: Seen) -> dict[str, Any]:
    return {
        "at_s": round(call.began - seen.began_s, 2), "lane": call.lane, "model": call.model,
        "outcome": call.outcome, "took_s": round(call.took_s, 2), "bound_s": call.bound_s,
    }  # fmt: skip


# ------------------------------------------------------------------ bounds and forecasts


def _lane(name: str, lane: Lane, seen: Seen) -> dict[str, Any]:
    calls = [call for call in seen.calls if call.lane == name]
    lines = [line for line in seen.trace.requests if line.lane == name]
    waits = sorted(line.waited_ms / 1000 for line in lines if line.service_ms is not None)
    told_so = Counter(AT_ONCE if call.is_refused_at_once else call.outcome for call in calls)
    answered, fallback, unanswered = (told_so.pop(kind, 0) for kind in (ANSWERED, FALLBACK, UNANSWERED))
    return {
        "class": lane.work_class, "max_wait_s": lane.max_wait_s, "timeout_s": lane.timeout_s,
        "requests": len(calls), "answered": answered, "fallback": fallback, "told": dict(sorted(told_so.items())),
        "wait_p50_s": part(waits, 0.5), "wait_p95_s": part(waits, 0.95), "wait_max_s": part(waits, 1.0),
        "took_max_s": max((call.took_s for call in calls), default=0.0),
        "bound_s": max((call.bound_s for call in calls), default=0.0),
        "nearest": max((call.took_s / call.bound_s for call in calls), default=0.0),
        "late": sum(call.is_late for call in calls), "unanswered": unanswered,
        "forecast": _errors(lines),
    }  # fmt: skip


def _errors(lines: Iterable[RequestLine]) -> dict[str, float]:
    """Waited minus forecast, and over it, of those who started and had to wait or were told that they would."""
    promised = [
        (x.waited_ms, x.forecast_ms) for x in lines if x.service_ms is not None and x.forecast_ms is not None
    ]
    started = [(waited, forecast) for waited, forecast in promised if waited > 0 or forecast > 0]
    errors = sorted(float(waited - forecast) for waited, forecast in started)
    ratios = sorted(waited / forecast for waited, forecast in started if forecast >= RATIO_FROM_MS)
    return {
        "waited": len(started), "p05_ms": part(errors, 0.05), "p50_ms": part(errors, 0.5),
        "p95_ms": part(errors, 0.95), "ratio_p50": part(ratios, 0.5), "ratio_p95": part(ratios, 0.95),
    }  # fmt: skip


def _forecasts(seen: Seen) -> dict[str, Any]:
    """All forecasts, and those of requests whose model did not stand still while they waited."""
    still = [(stop.model, *_window(stop, seen)) for stop in seen.stops]

    def meets(line: RequestLine) -> bool:
        ends = line.at_ms + line.waited_ms
        return any(name == line.model and line.at_ms < to and ends > since for name, since, to in still)

    lines = seen.trace.requests
    return {"all": _errors(lines), "undisturbed": _errors([line for line in lines if not meets(line)])}


def _window(stop: Stop, seen: Seen) -> tuple[float, float]:
    """From the stop to the next answer, in the recording's time."""
    base_s = seen.wall_s - _recording_began_s(seen)
    served = _served_at(stop, seen.calls)
    return (stop.at + base_s) * 1000, float("inf") if served is None else (served + base_s) * 1000


def _recording_began_s(seen: Seen) -> float:
    """The time of day at which the recording began: its loads are in the journal, too."""
    loaded = [_wall_s(line) for line in seen.journal if line["event"] == "loaded"]
    return median(
        [wall_s - line.at_ms / 1000 for wall_s, line in zip(loaded, seen.trace.loads, strict=False)]
    )


def _wall_s(line: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(line["t"]).timestamp()


# ------------------------------------------------------------------ class and priority


def _boundaries(seen: Seen) -> dict[str, Any]:
    """Each choice of the next model: whether a better class waited for another one that could have come instead."""
    began_s, there, paused = _recording_began_s(seen), set[str](), dict[str, float]()
    plans = [
        (line["model"], (_wall_s(line) - began_s) * 1000) for line in seen.journal if line["event"] == "plan"
    ]
    counts: Counter[str] = Counter()
    inverted: list[dict[str, Any]] = []
    for line in seen.journal:
        model, event, at_ms = line["model"], line["event"], (_wall_s(line) - began_s) * 1000
        if event == "plan":
            kind = line["reason"].partition(":")[0]
            counts[kind] += 1
            away = {name for name, until in paused.items() if until > at_ms} | there
            away |= {name for name, planned in plans if 0 <= planned - at_ms <= TOGETHER_MS}
            found = _better(seen.trace.requests, model, at_ms, away) if kind in CHOICES else None
            inverted += (
                [{"at_s": round(at_ms / 1000, 2), "plan": kind, "model": model, **found}] if found else []
            )
            there.add(model)
        elif event in AWAY:
            there.discard(model)
        if event in FAILED:
            paused[model] = at_ms + PAUSED_MS
    return {"plans": dict(counts), "inverted": inverted}


def _better(lines: Iterable[RequestLine], chosen: str, at_ms: float, away: set[str]) -> dict[str, Any] | None:
    """A request of a better class than any for the chosen model, which waited for a model that was not coming."""
    mine: list[int] = []
    others: list[tuple[int, int, str]] = []
    for line in lines:
        if not line.at_ms - 1 <= at_ms <= line.at_ms + line.waited_ms + 1:
            continue
        rank = CLASSES.index(line.work_class)
        if line.model == chosen:
            mine.append(rank)
        elif line.model not in away and line.at_ms < at_ms - TOGETHER_MS:
            others.append((rank, line.at_ms, line.model))
    if not mine or not others or min(others)[0] >= min(mine):
        return None  # without anybody for it the turn was kept for those who gave up
    rank, since_ms, model = min(others)
    return {"class": CLASSES[min(mine)], "waiting": model, "its_class": CLASSES[rank],
            "waited_ms": round(at_ms - since_ms)}  # fmt: skip


def _priorities(seen: Seen) -> dict[str, int]:
    """Pairs that came together and found their models cold: whether the better priority started first.

    A pair counts where both waited when the first of them was chosen: one that is alone for a moment and finds a model
    idle does not wait for others to come.
    """
    plans = [(line["model"], _wall_s(line) - seen.wall_s) for line in seen.journal if line["event"] == "plan"]
    crowds: defaultdict[int, list[Call]] = defaultdict(list)
    for call in seen.calls:
        if call.crowd is not None and call.wait_s is not None and call.wait_s > WARM_S:
            crowds[call.crowd].append(call)
    pairs = [
        sorted(pair, key=_start)
        for crowd in crowds.values()
        for pair in combinations(crowd, 2)
        if pair[0].priority != pair[1].priority
    ]
    fair = [pair for pair in pairs if _chosen_at(pair[0], plans) > pair[1].began + TOGETHER_MS / 1000]
    kept = sum(first.priority < second.priority for first, second in fair)
    return {"crowds": len(crowds), "pairs": len(fair), "kept": kept}


def _chosen_at(call: Call, plans: Iterable[tuple[str, float]]) -> float:
    """When the model of a call was last planned before it started."""
    return max((at for model, at in plans if model == call.model and at <= _start(call)), default=0.0)


def _start(call: Call) -> float:
    return call.began + (call.wait_s or 0.0)


# ------------------------------------------------------------------ engines that stood still


def _stop(stop: Stop, seen: Seen) -> dict[str, Any]:
    served = _served_at(stop, seen.calls)
    return {
        "model": stop.model, "at_s": round(stop.at - seen.began_s, 1), "left": stop.is_left,
        "ended_by": _ended_by(stop, seen),
        "still_s": None if stop.over_at is None else round(stop.over_at - stop.at, 1),
        "served_again_s": None if served is None else round(served - stop.at, 1),
        "failed": sum(
            call.model == stop.model and not call.is_answered
            and stop.at < call.ended <= (served or float("inf"))
            for call in seen.calls
        ),
    }  # fmt: skip


def _ended_by(stop: Stop, seen: Seen) -> str:
    """What became of the process: it went on, or why the daemon took it down."""
    if stop.over_at is None:
        return "the end of the run"
    if stop.over_at == stop.continued_at:
        return "SIGCONT"
    between = (stop.at + seen.wall_s - 0.5, stop.over_at + seen.wall_s + 0.5)
    causes = [
        line["event"]
        for line in seen.journal
        if line["model"] == stop.model
        and line["event"] in {"reset", "evict", "died"}
        and between[0] <= _wall_s(line) <= between[1]
    ]
    names = {"reset": "the watchdog", "evict": "an eviction", "died": "its death"}
    return names[causes[-1]] if causes else "unknown"


def _served_at(stop: Stop, calls: Iterable[Call]) -> float | None:
    """The first answer of its model since."""
    if stop.over_at is None:
        return None
    ends = (c.ended for c in calls if c.model == stop.model and c.outcome == ANSWERED)
    return min((end for end in ends if end >= stop.over_at), default=None)


# ------------------------------------------------------------------ for people


def told(result: Mapping[str, Any]) -> str:
    """The table."""
    lines = [
        f"promises, {result['seconds']} s, seed {result['seed']}, {result['cores']} cores: "
        + ("kept" if result["kept"] else "NOT KEPT"),
        f"{result['requests']} requests, {result['late']} later than their bound, {result['unanswered']} without an "
        f"answer; {result['loads']} loads of {result['load_ms']:.0f} ms, answers of {result['service_ms']:.0f} ms",
        "",
        "| lane | class | requests | answered | told instead | wait p50, p95, max | bound | longest | late | forecast "
        "error p50, p95; ratio p50 |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_row(name, lane) for name, lane in result["lanes"].items()),
        "",
        _forecast_text("forecasts", result["forecast"]["all"]),
        _forecast_text("forecasts beside stopped engines left out", result["forecast"]["undisturbed"]),
        _boundary_text(result["boundaries"]),
        "priorities: {kept} of {pairs} pairs in {crowds} crowds started in their order".format(**result["priorities"]),
        "edits: {saved} saved, {reloads} reloads, {refused} half files refused; {taken_out} models taken out, "
        "{unloaded} unloaded by an edit".format(**result["edits"])
        + "".join(f"; unexpected {text}" for text in result["edits"]["unexpected"]),
        f"memory: {result['pss_peak'] / 1e6:.0f} MB PSS at the most, of {result['budget'] / 1e6:.0f} MB; left behind: "
        f"{len(result['left_behind'])} processes; down in {result['down_s']} s, exit code {result['exit_code']}",
        "",
        "| stopped | at | ended by | stood still | served again after | failed calls |",
        "|---|---|---|---|---|---|",
        *(_stop_row(stop) for stop in result["stops"]),
        *(f"LATE OR UNANSWERED: {call}" for call in result["worst"]),
    ]  # fmt: skip
    return "\n".join(lines)


def _row(name: str, lane: Mapping[str, Any]) -> str:
    instead = {"fallback": lane["fallback"]} if lane["fallback"] else {}
    told_so = ", ".join(f"{count} {code}" for code, count in {**instead, **lane["told"]}.items())
    forecast = lane["forecast"]
    return (
        f"| {name} | {lane['class']} | {lane['requests']} | {lane['answered']} | {told_so or '-'} | "
        f"{lane['wait_p50_s']:.2f}, {lane['wait_p95_s']:.1f}, {lane['wait_max_s']:.1f} s | "
        f"{lane['max_wait_s']} + {lane['timeout_s']} s | {lane['took_max_s']:.1f} s ({lane['nearest']:.0%}) | "
        f"{lane['late'] + lane['unanswered']} | "
        f"{forecast['p50_ms'] / 1000:+.2f}, {forecast['p95_ms'] / 1000:+.2f} s; {forecast['ratio_p50']:.2f} |"
    )


def _forecast_text(what: str, errors: Mapping[str, float]) -> str:
    return (
        f"{what}: {errors['waited']} requests, waited minus forecast p5 {errors['p05_ms'] / 1000:+.2f}, p50 "
        f"{errors['p50_ms'] / 1000:+.2f}, p95 {errors['p95_ms'] / 1000:+.2f} s; waited over forecast p50 "
        f"{errors['ratio_p50']:.2f}, p95 {errors['ratio_p95']:.2f}"
    )


def _boundary_text(boundaries: Mapping[str, Any]) -> str:
    plans = ", ".join(f"{count} {kind}" for kind, count in sorted(boundaries["plans"].items()))
    inverted = "".join(f"\n  inverted: {each}" for each in boundaries["inverted"][:20])
    return f"boundaries: {plans}; {len(boundaries['inverted'])} against the class of who waited{inverted}"


def _stop_row(stop: Mapping[str, Any]) -> str:
    still, served = stop["still_s"], stop["served_again_s"]
    return (
        f"| {stop['model']} | {stop['at_s']:.0f} s | {stop['ended_by']} | {'-' if still is None else f'{still} s'} | "
        f"{'not in the run' if served is None else f'{served} s'} | {stop['failed']} |"
    )
