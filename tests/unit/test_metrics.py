"""Metrics: what a scrape shows is what the driver says at that moment."""

from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from watchbill.catalog import Catalog
from watchbill.core.messages import Cause
from watchbill.metrics import STATES, Metrics
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.runtime.limits import TALLY_MAX
from watchbill.runtime.ticket import Tally
from watchbill.sizes import Sizes
from watchbill.steps import Steps

STATUS: dict[str, object] = {
    "devices": {
        "ram": {
            "capacity": 100, "reserve": 10, "budget": 90, "used": 50, "loading": 5, "stopping": 3, "available": 40,
        }
    },
    "models": {
        "a": {"state": "ready", "memory": 50, "in_flight": 2, "queued": 1},
        "b": {"state": "absent", "memory": {"gpu:0": 7}, "in_flight": 0, "queued": 0, "reason": "x"},
    },
    "lanes": {"chat": {"queued": 3, "running": 2, "oldest_wait_ms": 1500}},
    "spools": {
        "notes": {
            "waiting": 7, "leased": 2, "poison": 1, "appended": 40, "duplicates": 3, "poisoned": 4, "released": 5,
            "complaint": "", "capture_stored": 6, "capture_waiting": 8, "capture_dropped": 9,
        }
    },
}  # fmt: skip


def telling(status: Mapping[str, object]) -> Callable[[], Steps[Mapping[str, object]]]:
    """A driver's status, in steps."""

    def steps() -> Steps[Mapping[str, object]]:
        yield
        return status

    return steps


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values by label name) -> value, as a Prometheus server reads it."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (each.name, *(value for _, value in sorted(each.labels.items()))): each.value
        for family in families
        for each in family.samples
    }


def test_a_scrape_tells_of_every_spool() -> None:
    """SPOOL-04, SPOOL-06, SPOOL-13: what waits, what is in hand, what was given up, what went through."""
    found = samples(Metrics(telling(STATUS)))
    told = {
        name.removeprefix("watchbill_spool_"): value
        for (name, *_), value in found.items()
        if "_spool_" in name
    }
    assert told == {
        "waiting": 7, "leased": 2, "poison": 1, "drained_total": 40, "duplicates_total": 3, "poisoned_total": 4,
        "released_total": 5, "captured_total": 6, "capture_waiting": 8, "capture_dropped_total": 9,
    }  # fmt: skip


def test_a_scrape_reads_the_status_of_that_moment() -> None:
    status = dict(STATUS)
    metrics = Metrics(telling(status))
    found = samples(metrics)
    assert found["watchbill_queue_requests", "chat"] == 3
    assert found["watchbill_running_requests", "chat"] == 2
    assert found["watchbill_oldest_wait_seconds", "chat"] == 1.5
    for key, value in {"capacity": 100, "reserve": 10, "budget": 90, "used": 50, "loading": 5}.items():
        assert found[f"watchbill_device_{key}_bytes", "ram"] == value
    assert found["watchbill_model_memory_bytes", "gpu:0", "b"] == 7
    status["lanes"] = {"chat": {"queued": 4}}
    assert samples(metrics)["watchbill_queue_requests", "chat"] == 4


def test_each_model_has_exactly_one_state() -> None:
    found = samples(Metrics(telling(STATUS)))
    for model, state in (("a", "ready"), ("b", "absent")):
        ones = [known for known in STATES if found["watchbill_model_state", model, known] == 1]
        assert ones == [state]


def test_what_happened_is_counted() -> None:
    metrics = Metrics(telling({}), lambda: 1)
    metrics.started("chat", 1500, -3000)
    metrics.observe_load("a", 900, cached=True)
    metrics.observe_load("a", 100, cached=False, ok=False)
    metrics.observe_lag(2)
    metrics.count_eviction("a", Cause.IDLE)
    metrics.ended("chat", "ok", "a", 1000, 2000)
    metrics.ended("chat", "lane_full")
    found = samples(metrics)
    assert found["watchbill_wait_seconds_sum", "chat"] == 1.5
    assert found["watchbill_forecast_error_seconds_bucket", "chat", "-2.0"] == 1
    assert found["gen_ai_server_time_to_first_token_seconds_count", "a"] == 1
    assert found["watchbill_loads_total", "a", "ok"] == found["watchbill_loads_total", "a", "failed"] == 1
    assert found["watchbill_load_seconds_count", "true", "a"] == 1
    assert found["watchbill_evictions_total", "a", "idle"] == 1
    assert found["watchbill_requests_total", "chat", "lane_full"] == 1
    assert found["watchbill_late_answers_dropped_total",] == 1
    assert found["watchbill_event_loop_lag_seconds_count",] == 1
    assert found["watchbill_thrash_ratio",] == 0.5


def test_a_tally_that_is_full_loses_nothing(tmp_path: Path) -> None:
    metrics = Metrics(telling({}))
    tally = Tally(metrics, LearnedSizes(Catalog({}, {}, {}), Sizes(tmp_path)))
    for ms in range(2 * TALLY_MAX + 1):
        tally.started("chat", ms, 0)
        tally.ended("chat", "ok", "a", ms)
        tally.ended("chat", "ok", "a", 7)
    found = samples(metrics)
    assert found["watchbill_wait_seconds_count", "chat"] == 2 * TALLY_MAX + 1
    assert found["watchbill_wait_seconds_bucket", "chat", "0.01"] == 11
    assert found["watchbill_requests_total", "chat", "ok"] == 2 * (2 * TALLY_MAX + 1)
    assert found["gen_ai_server_request_duration_seconds_count", "a"] == 2 * (2 * TALLY_MAX + 1)
    assert samples(metrics) == found, "a look changes nothing"


def test_a_status_without_parts_leaves_gaps_not_errors() -> None:
    assert b"watchbill_thrash_ratio 0.0" in Metrics(telling({"models": {"a": {}}, "lanes": None})).render()


def test_two_daemons_in_one_process_do_not_meet() -> None:
    first, second = Metrics(telling({})), Metrics(telling({}))
    first.observe_lag(2)
    assert samples(second)["watchbill_event_loop_lag_seconds_count",] == 0


def test_the_status_is_not_asked_before_the_first_scrape() -> None:
    """The driver is built after its metrics."""
    asked: list[str] = []

    def status() -> Steps[dict[str, object]]:
        asked.append("status")
        yield
        return {}

    metrics = Metrics(status)
    assert asked == []
    metrics.render()
    assert asked == ["status"]
