"""What was learned: kept under exact circumstances, bounded, and never the reason why a start fails."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from watchbill.catalog import Catalog, Device, EngineRules, Model
from watchbill.limits import SIZES_MODELS_MAX, SIZES_SAMPLES_MAX
from watchbill.metrics import Metrics
from watchbill.runtime.knowledge import LearnedSizes, read_files
from watchbill.runtime.ticket import TALLY_MAX, Tally
from watchbill.sizes import FILE_NAME, Facts, Sizes, facts_of
from watchbill.steps import Steps

FACTS = Facts("smollm2", "/m/smollm2.gguf", 98_362_432, 1, 2048, 1, "llamacpp 1", (), ("ram",))
GIB = 2**30


def sizes_in(folder: Path, warn: Callable[[str], None] = lambda _: None) -> Sizes:
    return Sizes(folder, warn=warn)


def test_nothing_is_known_of_a_model_that_was_never_loaded(tmp_path: Path) -> None:
    assert sizes_in(tmp_path).recall(FACTS) is None


def test_the_size_is_the_95th_percentile_of_the_measurements(tmp_path: Path) -> None:
    """RES-20: the quota is drawn from the measured p95, so one outlier of many must not set it."""
    sizes = sizes_in(tmp_path)
    for size in [100, 300, 200]:
        sizes.record_load(FACTS, 1000, {"ram": size * GIB}, cached=True)
    learned = sizes.recall(FACTS)
    assert learned is not None and learned.memory == {"ram": 300 * GIB} and learned.loads == 3
    for _ in range(SIZES_SAMPLES_MAX - 1):
        sizes.record_load(FACTS, 1000, {"ram": 200 * GIB}, cached=True)
    sizes.record_load(FACTS, 1000, {"ram": 900 * GIB}, cached=True)
    learned = sizes.recall(FACTS)
    assert learned is not None and learned.memory == {"ram": 200 * GIB}


def test_each_load_counts_with_its_largest_look_however_long_it_idles(tmp_path: Path) -> None:
    """P4: buffers fill with use; hours of idling must not make a model look smaller than it gets."""
    sizes = sizes_in(tmp_path)
    sizes.record_load(FACTS, 1000, {"ram": 100}, cached=True)
    sizes.record_memory(FACTS, {"ram": 130})
    sizes.record_load(FACTS, 1000, {"ram": 100}, cached=True)
    for _ in range(10 * SIZES_SAMPLES_MAX):
        sizes.record_memory(FACTS, {"ram": 101, "gpu:0": 7})
    learned = sizes.recall(FACTS)
    assert learned is not None and learned.memory == {"ram": 130, "gpu:0": 7}


def test_the_size_right_after_the_last_load_is_remembered_beside_the_growth(tmp_path: Path) -> None:
    """RES-02: a model that grew beyond its device can be loaded again after a restart."""
    catalog = Catalog({}, {"p": EngineRules("p", "process")}, {"a": Model("a", "p", devices=("ram",))})
    learned = LearnedSizes(catalog, sizes_in(tmp_path))
    learned.loaded("a", 900, {"ram": 3 * GIB})
    assert not learned.recall()["a"].footprint.fresh
    learned.measured("a", {"ram": 9 * GIB})
    sizes = learned.recall()["a"].footprint
    assert (sizes.expected, sizes.fresh) == ({"ram": 9 * GIB}, {"ram": 3 * GIB})


def test_cached_and_cold_loads_are_kept_apart_and_the_median_of_nine_counts(tmp_path: Path) -> None:
    """RES-11: load times are bimodal; a mean of both would be wrong for each."""
    sizes = sizes_in(tmp_path)
    for ms in [9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9]:
        sizes.record_load(FACTS, ms * 100, {}, cached=True)
    sizes.record_load(FACTS, 30_000, {}, cached=False)
    learned = sizes.recall(FACTS)
    assert learned is not None
    assert (learned.load_cached_ms, learned.load_cold_ms, learned.service_ms) == (500, 30_000, None)


def test_any_other_circumstance_is_measured_anew(tmp_path: Path) -> None:
    sizes = sizes_in(tmp_path)
    sizes.record_services(FACTS, [700])
    changes: list[dict[str, object]] = [
        {"file_bytes": 1}, {"file_mtime_ns": 2}, {"context": 4096}, {"slots": 2}, {"engine": "llamacpp 2"},
        {"command": ("--cache-type-k", "q8_0")}, {"devices": ("gpu:0",)}, {"model": "other"}, {"source": "/n"},
    ]  # fmt: skip
    for change in changes:
        assert sizes.recall(replace(FACTS, **change)) is None, change
    learned = sizes.recall(FACTS)
    assert learned is not None and learned.service_ms == 700 and learned.requests == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"arguments": ("--ctx-size", "65536")}, {"command": "serve --context 65536"}, {"env": {"LAYERS": "99"}},
        {"embedding": True}, {"context": 8192}, {"prompt_cache": GIB},
    ],
)  # fmt: skip
def test_a_model_that_is_started_otherwise_is_measured_anew(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    """P4: with the size that it had before, too little memory was reserved for it."""
    model, sizes = Model("a", "p", arguments=("--ctx-size", "512")), sizes_in(tmp_path)
    engines = {"p": EngineRules("p", "process")}
    LearnedSizes(Catalog({}, engines, {"a": model}), sizes).loaded("a", 900, {"ram": GIB})
    after = LearnedSizes(Catalog({}, engines, {"a": replace(model, **changed)}), sizes)
    assert after.recall()["a"].load_ms is None
    assert LearnedSizes(Catalog({}, engines, {"a": model}), sizes).recall()["a"].load_ms == 900


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    """RES-11: measured, learned and persisted."""
    sizes = sizes_in(tmp_path)
    sizes.record_load(FACTS, 800, {"ram": GIB}, cached=True)
    sizes.save()
    assert sizes_in(tmp_path).recall(FACTS) == sizes.recall(FACTS)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_how_a_model_sleeps_survives_a_restart(tmp_path: Path) -> None:
    """RES-11: a model that wakes in no time is not reckoned with a load's time after every restart."""
    sizes = sizes_in(tmp_path)
    for ms in (300, 100, 120):
        sizes.record_wake(FACTS, ms)
    sizes.record_asleep(FACTS, {"ram": 7_000})
    sizes.record_asleep(FACTS, {"ram": 6_000})
    sizes.save()
    learned = sizes_in(tmp_path).recall(FACTS)
    assert learned is not None
    assert (learned.wake_ms, learned.asleep) == (120, {"ram": 6_000})


def test_saving_without_news_touches_no_disk(tmp_path: Path) -> None:
    sizes = sizes_in(tmp_path)
    sizes.save()
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 99, "entries": {}}', b'{"version": 1, "entries": {"k": 3}}', b"\xff"],
)
def test_a_broken_file_is_kept_aside_and_learning_starts_anew(tmp_path: Path, content: bytes) -> None:
    warnings: list[str] = []
    (tmp_path / FILE_NAME).write_bytes(content)
    sizes = sizes_in(tmp_path, warnings.append)
    assert len(warnings) == 1 and (tmp_path / f"{FILE_NAME}.broken").read_bytes() == content
    sizes.record_services(FACTS, [5])
    sizes.save()
    assert sizes_in(tmp_path).recall(FACTS) is not None


def test_a_disk_that_refuses_costs_one_warning_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: a full disk does not stop the service; it is tried again."""

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    warnings: list[str] = []
    sizes = sizes_in(tmp_path, warnings.append)
    sizes.record_services(FACTS, [5])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        sizes.save()
        sizes.save()
    assert len(warnings) == 1 and not (tmp_path / FILE_NAME).exists()
    sizes.save()
    assert sizes_in(tmp_path).recall(FACTS) is not None


def test_memory_of_models_is_bounded_and_the_longest_unused_leave(tmp_path: Path) -> None:
    now = iter(range(10**6))
    sizes = Sizes(tmp_path, clock=lambda: float(next(now)))
    for number in range(SIZES_MODELS_MAX + 1):
        sizes.record_services(replace(FACTS, context=number), [5])
    assert sizes.recall(replace(FACTS, context=0)) is None
    assert sizes.recall(replace(FACTS, context=1)) is not None


def test_the_facts_of_a_file_change_with_it(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(b"one")

    def now() -> Facts:
        return facts_of("m", str(source), context=512, slots=1, engine="e", devices=["ram"])

    first = now()
    source.write_bytes(b"other")
    assert (first.file_bytes, now().file_bytes) == (3, 5) and first.key != now().key
    source.unlink()
    assert now().file_bytes == 0


def nothing() -> Steps[dict[str, object]]:
    """The status of a driver that is not there."""
    yield
    return {}


async def test_every_answer_counts_however_many_are_recorded_together(tmp_path: Path) -> None:
    """RES-11: answers are gathered before they are recorded; neither a save nor a new config loses one."""
    catalog = Catalog(
        {"ram": Device("ram")}, {"own": EngineRules("own", "process")}, {"a": Model("a", "own")}
    )
    learned = LearnedSizes(catalog, sizes_in(tmp_path))
    tally = Tally(Metrics(nothing), learned)
    tally.ended("chat", "ok", "not in the config", 5)
    for ms in range(TALLY_MAX + 3):
        tally.ended("chat", "ok", "a", ms)
    tally.hand_on()
    await learned.save()
    [entry] = json.loads((tmp_path / FILE_NAME).read_bytes())["entries"].values()
    assert entry["requests"] == TALLY_MAX + 3
    assert entry["service"] == [*range(TALLY_MAX + 3)][-SIZES_SAMPLES_MAX:]
    tally.ended("chat", "ok", "a", 1_000)
    tally.hand_on()
    learned.reconfigure(read_files(catalog))
    await learned.save()
    [entry] = json.loads((tmp_path / FILE_NAME).read_bytes())["entries"].values()
    assert entry["requests"] == TALLY_MAX + 4
    assert entry["service"][-1] == 1_000
