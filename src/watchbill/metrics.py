"""Metrics: the page that a Prometheus server reads at /metrics.

There are two kinds. The *state* (queues, memory, stages) is read from the driver's status at the moment of the scrape,
so it can never disagree with `watchbill status`. *Events* (waits, loads, evictions) are counted by the driver through
the small methods here. There are no globals: each daemon has its own recorders, so two in one process do not interfere.

Names follow OpenTelemetry where it has one (`gen_ai.server.*`, dots become underscores), else `watchbill_*`. Labels
come from the catalog or from closed lists, never from a client: a client cannot grow the number of series.

Everything here runs on the event loop. The recorders are our own for that reason: the library's look their labels up
and take locks for every value, and every request leaves seven of them. Requests are many and much alike, so their
starts and ends are only tallied, and sorted into counters and histograms at a scrape. With a thousand models a scrape
takes a tenth of a second, so it is made in steps.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Protocol, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from watchbill.catalog import Tier
from watchbill.core.messages import Cause
from watchbill.steps import Steps, at_once

__all__ = ["CONTENT_TYPE", "Metrics", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Table = Mapping[str, object]

#: The states of a model in `status`; each model has exactly one of them at 1.
STATES = ("absent", "planned", "loading", "ready", "draining", "stopping", "asleep", "failed", "quarantined")
DEVICE_GAUGES = {
    "capacity": "Memory of the device, after the configured cap.",
    "reserve": "Memory kept free for other services.",
    "budget": "Memory that models may occupy together.",
    "used": "Memory of warm models.",
    "planned": "Memory promised to models that load next.",
    "loading": "Memory that loading models will occupy.",
    "stopping": "Memory that stopping models still occupy.",
    "available": "Memory that the machine reports as available now.",
}
SPOOL_GAUGES = {
    "waiting": "Events that wait.",
    "leased": "Events leased by a worker.",
    "poison": "Events in poison now.",
    "capture_waiting": "Captured requests that wait for the disk.",
}
SPOOL_COUNTERS = {
    "appended": ("drained", "Events that went into a corpus."),
    "duplicates": ("duplicates", "Events whose id the corpus had already."),
    "poisoned": ("poisoned", "Events that the drain moved to poison."),
    "released": ("released", "Events that were put back for another try."),
    "capture_stored": ("captured", "Finished requests that became events."),
    "capture_dropped": ("capture_dropped", "Finished requests that were dropped instead."),
}
BATCH_GAUGES = {
    "open": ("batches_open", "Batches that have not ended."),
    "waiting": ("batch_lines_waiting", "Lines of batches that wait."),
    "running": ("batch_lines_running", "Lines of batches that are asked."),
    "bytes": ("batch_bytes", "Bytes of files and of answers that are not results yet."),
}
BATCH_COUNTERS = {
    "answered": ("batch_lines_answered", "Lines of batches that were answered, or refused for good."),
    "failed": ("batch_lines_failed", "Those among them that were refused."),
    "repeated": ("batch_lines_repeated", "Times that a line had to be asked again."),
}
WAIT_S = (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 900)
LOAD_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
#: Actual minus forecast: negative means earlier than promised.
FORECAST_S = (-120, -60, -30, -10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10, 30, 60, 120)
SERVICE_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
LAG_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class Metrics:
    """The recorders of one daemon. `status`, `late_answers` (the core's own count) and `alerts` (by kind) are read
    at each scrape."""

    def __init__(
        self,
        status: Callable[[], Steps[Mapping[str, object]]],
        late_answers: Callable[[], int] = int,
        alerts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        #: Called before a page is made: has what was not counted yet counted.
        self.gather: Callable[[], None] | None = None
        self._status = status
        self._recorders: list[_Recorder] = [_Late(late_answers), _Alerts(alerts)]
        self._wait = self._histogram("watchbill_wait_seconds", "From arrival to start.", ["lane"], WAIT_S)
        self._first = self._histogram(
            "gen_ai_server_time_to_first_token_seconds", "From arrival to the first token.", ["model"], WAIT_S
        )
        self._service = self._histogram(
            "gen_ai_server_request_duration_seconds", "From start to end.", ["model"], SERVICE_S
        )
        self._load = self._histogram(
            "watchbill_load_seconds", "From the decision to warm.", ["model", "cached"], LOAD_S
        )
        self._forecast = self._histogram(
            "watchbill_forecast_error_seconds", "Actual start minus forecast start.", ["lane"], FORECAST_S
        )
        self._lag = self._histogram(
            "watchbill_event_loop_lag_seconds", "How late the event loop's timer fired.", [], LAG_S
        )
        self._loads = self._counter("watchbill_loads", "Loads that ended.", ["model", "outcome"])
        self._evictions = self._counter("watchbill_evictions", "Models that left.", ["model", "reason"])
        self._mishaps = self._counter("watchbill_model_failures", "Failures of models.", ["model", "kind"])
        self._requests = self._counter("watchbill_requests", "Requests that ended.", ["lane", "outcome"])
        self._tiers = self._counter("watchbill_tier_requests", "Requests that started.", ["tier"])
        self._cost = self._counter("watchbill_tier_cost", "Estimated cost of a tier.", ["tier", "site"])
        self._loading_s = self._counter("watchbill_loading_seconds", "Time that models spent loading.", [])
        self._serving_s = self._counter("watchbill_serving_seconds", "Time that models spent answering.", [])
        self._loading_ms = self._serving_ms = 0
        self._recorders.append(_Thrash(self.thrash_ratio))

    def started(
        self,
        lane: str,
        waited_ms: int,
        error_ms: int | None,
        tier: str | None = Tier.LOCAL,
        *,
        times: int = 1,
    ) -> None:
        """Counts requests that started after `waited_ms`, `error_ms` after their forecast; negative: before it. Those
        that go to another machine are counted for its tier when they are `sent`."""
        if tier is not None:
            self._tiers.add(times, tier)
        self._wait.observe(waited_ms / 1000, lane, times=times)
        if error_ms is not None:
            self._forecast.observe(error_ms / 1000, lane, times=times)

    def sent(self, tier: str) -> None:
        """Counts a request that was sent to another machine."""
        self._tiers.add(1, tier)

    def ended(
        self,
        lane: str,
        outcome: str,
        model: str = "",
        ms: int | None = None,
        first_ms: int | None = None,
        *,
        times: int = 1,
    ) -> None:
        """Counts requests that ended: `ok`, `cancelled`, or one of the error codes; `ms` after their start if answered.

        Their first token came `first_ms` after their arrival, if one came.
        """
        self._requests.add(times, lane, outcome)
        if first_ms is not None:
            self._first.observe(first_ms / 1000, model, times=times)
        if ms is not None:
            self._service.observe(ms / 1000, model, times=times)
            self._serving_s.add(times * ms / 1000)
            self._serving_ms += times * ms

    def observe_load(self, model: str, ms: float, *, cached: bool, ok: bool = True) -> None:
        """Counts a load that ended after `ms`."""
        self._loads.add(1, model, "ok" if ok else "failed")
        self._loading_s.add(ms / 1000)
        self._loading_ms += ms
        if ok:
            self._load.observe(ms / 1000, model, "true" if cached else "false")

    def count_mishap(self, model: str, kind: str) -> None:
        """Counts a failure of a model: `load_failed`, `died`, `reset`, `stuck` or `disk_failed`."""
        self._mishaps.add(1, model, kind)

    def count_eviction(self, model: str, reason: Cause) -> None:
        """Counts a model that left."""
        self._evictions.add(1, model, reason)

    def count_cost(self, tier: str, site: str, amount: float) -> None:
        """Counts an estimate of what an answer, or a time, of a tier cost."""
        self._cost.add(amount, tier, site)

    def observe_lag(self, ms: float) -> None:
        """Counts a timer of the event loop that fired `ms` late."""
        self._lag.observe(ms / 1000)

    def answered(self) -> dict[str, int]:
        """How many requests of each lane were answered since the start."""
        if self.gather is not None:
            self.gather()
        return {lane: round(count) for (lane, outcome), count in self._requests.items() if outcome == "ok"}

    def thrash_ratio(self) -> float:
        """The share of the busy time that went into loading instead of answering."""
        busy = self._loading_ms + self._serving_ms
        return self._loading_ms / busy if busy else 0.0

    def render(self) -> bytes:
        """The page, in the text format of CONTENT_TYPE, at once."""
        return render(at_once(self.families()))

    def families(self) -> Steps[list[Metric]]:
        """Everything on the page, in steps: `render` makes the text of it."""
        if self.gather is not None:
            self.gather()
        found = yield from _families_of((yield from self._status()))
        for recorder in self._recorders:
            found.append((yield from recorder.family()))
        return found

    def _histogram(self, name: str, text: str, labels: list[str], bounds: tuple[float, ...]) -> "_Histogram":
        histogram = _Histogram(name, text, labels, bounds)
        self._recorders.append(histogram)
        return histogram

    def _counter(self, name: str, text: str, labels: list[str]) -> "_Counter":
        counter = _Counter(name, text, labels)
        self._recorders.append(counter)
        return counter


def render(families: Iterable[Metric]) -> bytes:
    """The page of these, in the text format of CONTENT_TYPE."""
    return generate_latest(_Page(families))


class _Page(CollectorRegistry):
    """What the library makes a page of."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class _Recorder(Protocol):
    """A family of the page."""

    def family(self) -> Steps[Metric]: ...


class _Counter:
    """Sums that only grow, one per set of label values."""

    def __init__(self, name: str, text: str, labels: list[str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._sums: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        self._sums[labels] = self._sums.get(labels, 0.0) + amount

    def items(self) -> list[tuple[tuple[str, ...], float]]:
        return list(self._sums.items())

    def family(self) -> Steps[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, total in list(self._sums.items()):
            family.add_metric(labels, total)
            yield
        return family


class _Histogram:
    """How many values were at most each bound, per set of label values."""

    def __init__(self, name: str, text: str, labels: list[str], bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._counts: dict[tuple[str, ...], list[int]] = {}  # one for each bound and one for larger values
        self._sums: dict[tuple[str, ...], float] = {}
        if not labels:
            self._begin(())

    def observe(self, value: float, *labels: str, times: int = 1) -> None:
        counts = self._counts.get(labels) or self._begin(labels)
        counts[bisect_left(self._bounds, value)] += times
        self._sums[labels] += value * times

    def _begin(self, labels: tuple[str, ...]) -> list[int]:
        self._sums[labels] = 0.0
        self._counts[labels] = [0] * (len(self._bounds) + 1)
        return self._counts[labels]

    def family(self) -> Steps[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, counts in list(self._counts.items()):
            summed = zip(names, accumulate(counts), strict=True)
            family.add_metric(labels, list(summed), self._sums[labels])
            yield
        return family


class _Thrash:
    def __init__(self, ratio: Callable[[], float]) -> None:
        self._ratio = ratio

    def family(self) -> Steps[Metric]:
        yield
        text = "Share of the busy time that went into loading instead of answering."
        return GaugeMetricFamily("watchbill_thrash_ratio", text, value=self._ratio())


class _Late:
    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def family(self) -> Steps[Metric]:
        yield
        text = "Answers of engines to an attempt that was over."
        return CounterMetricFamily("watchbill_late_answers_dropped", text, value=self._count())


class _Alerts:
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def family(self) -> Steps[Metric]:
        yield
        family = CounterMetricFamily("watchbill_alerts", "Alerts that were raised.", labels=["kind"])
        for kind, count in self._counts().items():
            family.add_metric([kind], count)
        return family


# ------------------------------------------------------------------ the driver's status as gauges


def _families_of(status: Table) -> Steps[list[Metric]]:
    """Every figure of a status. A key that it lacks leaves a gap, not an error."""
    lanes, devices = _tables(status, "lanes"), _tables(status, "devices")
    oldest = "How long the oldest waiting request has waited."
    found = [
        _gauge("watchbill_queue_requests", "Requests that wait.", "lane", lanes, "queued"),
        _gauge("watchbill_running_requests", "Requests that run.", "lane", lanes, "running"),
        _gauge("watchbill_oldest_wait_seconds", oldest, "lane", lanes, "oldest_wait_ms", factor=0.001),
    ]
    for key, text in DEVICE_GAUGES.items():
        found.append(_gauge(f"watchbill_device_{key}_bytes", text, "device", devices, key))
    found += yield from _of_models(_tables(status, "models"))
    found += _of_spools(_tables(status, "spools"))
    found += _of_batches(cast("Table | None", status.get("batches")))
    return found


def _of_models(models: Mapping[str, Table]) -> Steps[list[Metric]]:
    state = GaugeMetricFamily("watchbill_model_state", "1 for the state it is in.", labels=["model", "state"])
    memory = GaugeMetricFamily("watchbill_model_memory_bytes", "Its memory.", labels=["model", "device"])
    for name, model in models.items():
        for known in STATES:
            state.add_metric([name, known], 1.0 if model.get("state") == known else 0.0)
        for device, size in _sizes_of(model.get("memory")):
            memory.add_metric([name, device], size)
        yield
    in_flight = _gauge("watchbill_model_in_flight", "Requests it answers.", "model", models, "in_flight")
    yield
    queued = _gauge("watchbill_model_queued", "Requests that wait for it.", "model", models, "queued")
    return [state, in_flight, queued, memory]


def _of_spools(spools: Mapping[str, Table]) -> list[Metric]:
    found = [
        _gauge(f"watchbill_spool_{key}", text, "spool", spools, key) for key, text in SPOOL_GAUGES.items()
    ]
    for key, (name, text) in SPOOL_COUNTERS.items():
        family = CounterMetricFamily(f"watchbill_spool_{name}", text, labels=["spool"])
        for spool, told in spools.items():
            value = told.get(key)
            if isinstance(value, int | float):
                family.add_metric([spool], value)
        found.append(family)
    return found


def _of_batches(told: Table | None) -> list[Metric]:
    """Nothing where there is no place for batches."""
    if not told:
        return []
    found: list[Metric] = []
    for key, (name, text) in BATCH_GAUGES.items():
        found.append(GaugeMetricFamily(f"watchbill_{name}", text, value=cast("float", told[key])))
    for key, (name, text) in BATCH_COUNTERS.items():
        found.append(CounterMetricFamily(f"watchbill_{name}", text, value=cast("float", told[key])))
    text = "1 while batches are paused, by the reason."
    paused = GaugeMetricFamily("watchbill_batches_paused", text, labels=["reason"])
    for reason in ("disk_full", "disk_failed", "disk_max"):
        paused.add_metric([reason], 1.0 if told.get("paused") == reason else 0.0)
    return [*found, paused]


def _sizes_of(memory: object) -> list[tuple[str, float]]:
    """A model's memory is one figure, or one per device."""
    if isinstance(memory, Mapping):
        sizes = cast("Mapping[str, object]", memory)
        return [(device, float(size)) for device, size in sizes.items() if isinstance(size, int | float)]
    return [("", float(memory))] if isinstance(memory, int | float) else []


def _gauge(
    name: str, text: str, label: str, rows: Mapping[str, Table], key: str, *, factor: float = 1
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for row, table in rows.items():
        value = table.get(key)
        if isinstance(value, int | float):
            family.add_metric([row], value * factor)
    return family


def _tables(status: Table, key: str) -> Mapping[str, Table]:
    return cast("Mapping[str, Table]", status.get(key) or {})
