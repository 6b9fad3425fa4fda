"""The traffic of the last day: it survives restarts, is bounded, and never costs a request anything."""

from pathlib import Path

import pytest
from msgspec import Raw

from support.eventually import wait_until
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model
from watchbill.errors import ConfigError
from watchbill.runtime.limits import TRAFFIC_FILES_KEPT, TRAFFIC_WAITING_MAX
from watchbill.runtime.recorder import LoadLine, Recorder
from watchbill.runtime.traffic import Traffic, traffic_files
from watchbill.simulate.recent import HOUR_MS, read_recent

GB = 10**9
REQUEST = (
    '{"kind":"request","at_ms":%d,"model":"%s","lane":"chat","work_class":"interactive","waited_ms":5,'
    '"forecast_ms":0,"service_ms":9,"outcome":"ok"}'
)
CATALOG = Catalog(
    {"ram": Device("ram")},
    {"scripted": EngineRules("scripted", "scripted")},
    {"one": Model("one", "scripted"), "two": Model("two", "scripted")},
    {"chat": Lane("chat")},
)


def head(wall_ms: int) -> Raw:
    return Raw(
        b'{"kind":"machine","at_ms":0,"devices":{"ram":{"capacity":9,"free":8}},"wall_ms":%d}' % wall_ms
    )


def asked(at_ms: int, model: str = "one") -> Raw:
    return Raw((REQUEST % (at_ms, model)).encode())


def test_requests_of_an_earlier_daemon_are_found_at_their_time(tmp_path: Path) -> None:
    """History survives a restart: each daemon counts from its own start, and the trace from the first request."""
    for wall_ms in (1_000_000, 1_500_000):
        traffic = Traffic(tmp_path)
        traffic.begin(head(wall_ms))
        traffic.take(asked(100))
        traffic.close()
    recent = read_recent(tmp_path, now_ms=1_600_000)
    assert [line.at_ms for line in recent.trace.requests] == [0, 500_000]
    assert (recent.since_ms, recent.until_ms) == (1_000_100, 1_500_100)
    # A restart begins no new file: many restarts would drive out the day.
    assert len(traffic_files(tmp_path)) == 1


def test_what_is_older_than_asked_for_is_left_out(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.begin(head(HOUR_MS))
    for hour in (0, 9, 29):
        traffic.take(asked(hour * HOUR_MS))
    traffic.close()
    assert len(read_recent(tmp_path, now_ms=31 * HOUR_MS).trace.requests) == 2
    newest = read_recent(tmp_path, now_ms=31 * HOUR_MS, most=1)
    assert newest.since_ms == 30 * HOUR_MS and newest.left_out == 1
    with pytest.raises(ConfigError, match="no request was recorded in the last 24 h"):
        read_recent(tmp_path, now_ms=99 * HOUR_MS)


def test_files_are_bounded_and_each_says_when_it_began(tmp_path: Path) -> None:
    for number in range(TRAFFIC_FILES_KEPT + 3):
        traffic = Traffic(tmp_path, file_bytes_max=1)
        traffic.begin(head(number))
        traffic.take(asked(number))
        traffic.close()
    files = traffic_files(tmp_path)
    assert len(files) == TRAFFIC_FILES_KEPT
    assert all(file.read_bytes().startswith(b'{"kind":"machine"') for file in files)
    assert files[0].stat().st_mode & 0o777 == 0o600


def test_a_cut_line_and_a_foreign_file_harm_nothing(tmp_path: Path) -> None:
    (tmp_path / "000007.jsonl").write_bytes(bytes(head(1)) + b"\n" + bytes(asked(5))[:40])
    (tmp_path / "notes.txt").write_text("not ours")
    traffic = Traffic(tmp_path)
    traffic.begin(head(1))
    traffic.take(asked(6))
    traffic.close()
    assert [line.at_ms for line in read_recent(tmp_path, now_ms=10).trace.requests] == [0]


def test_a_disk_that_refuses_costs_nothing_but_the_lines(tmp_path: Path) -> None:
    """A bound and no wait: a folder that cannot be written is told of once, and lines are counted as dropped."""
    (tmp_path / "traffic").write_text("a file where the folder should be")
    said: list[str] = []
    traffic = Traffic(tmp_path / "traffic", warn=said.append)
    for number in range(4 * TRAFFIC_WAITING_MAX):
        traffic.take(asked(number))
    assert traffic.lines_dropped >= TRAFFIC_WAITING_MAX  # the thread may have taken some meanwhile
    wait_until(lambda: traffic.lines_dropped == 4 * TRAFFIC_WAITING_MAX)
    traffic.take(asked(1))
    traffic.close()
    assert len(said) == 1 and "traffic" in said[0]


def test_a_recorder_writes_both_and_a_config_that_changed_is_no_obstacle(tmp_path: Path) -> None:
    """Requests for a model that is gone, or whose size is unknown, are left out and counted."""
    traffic = Traffic(tmp_path / "traffic")
    recorder = Recorder(tmp_path / "trace", 0, traffic)
    recorder.machine({"ram": (9 * GB, 8 * GB)}, 3)
    recorder.loaded("one", 1_500, {"ram": GB}, 4)
    for model in ("one", "two", "gone"):
        traffic.take(asked(50, model))
    recorder.close()
    assert (tmp_path / "trace").read_text().count("\n") == 2
    recent = read_recent(tmp_path / "traffic")
    kept, catalog = recent.on(CATALOG)
    assert [line.model for line in kept.trace.requests] == ["one"] and kept.left_out == 2
    kept, catalog = recent.on(CATALOG, [LoadLine(0, "two", 900, {"ram": 2 * GB})])
    assert kept.left_out == 1
    scenario = kept.trace.scenario(catalog)
    assert (
        scenario.truth["two"].memory == {"ram": 2 * GB} and scenario.catalog.devices["ram"].capacity == 8 * GB
    )
    with pytest.raises(ConfigError, match="not in the config any more"):
        recent.on(Catalog(CATALOG.devices, CATALOG.engines, {}, CATALOG.lanes))
