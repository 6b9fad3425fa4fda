"""The drains of a daemon: every spool in threads of its own, and no spool's trouble is anybody else's."""

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from support.eventually import wait_until
from support.nats_server import TOKEN, broker
from watchbill.catalog import NatsRules, SpoolRules
from watchbill.core.messages import Alert
from watchbill.runtime import drains as drains_module
from watchbill.runtime.drains import Drains
from watchbill.spool import Spool, stats
from watchbill.spool.jetstream import JetSpool
from watchbill.units import Millis


def rules(name: str, **changes: object) -> SpoolRules:
    made = SpoolRules(
        name, f"spool/{name}", MappingProxyType({"*": f"corpus/{name}.jsonl"}), poll_ms=Millis(50)
    )
    return replace(made, **changes)


def event(number: int) -> dict[str, object]:
    return {"id": str(number), "kind": "note", "ts": 0}


def ids(file: Path) -> list[str]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def alerts() -> list[Alert]:
    return []


@pytest.fixture
def drains(tmp_path: Path, alerts: list[Alert], monkeypatch: pytest.MonkeyPatch) -> Iterator[Drains]:
    for name in ("DRAIN_LOOK_MS", "DRAIN_AGAIN_MS"):
        monkeypatch.setattr(drains_module, name, 20)
    made = Drains(tmp_path, alerts.append)
    yield made
    made.close()
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("spool-", "drain-"))
    ]


def test_every_spool_of_the_config_is_drained(drains: Drains, tmp_path: Path) -> None:
    """SPOOL-04: several spools, several workers, events that came before and events that come later."""
    with Spool(tmp_path / "spool/a") as spool:
        spool.enqueue(event(1))
    assert drains.reconfigure({"a": rules("a"), "b": rules("b", workers=3)}) == [
        "spool a is new",
        "spool b is new",
    ]
    with Spool(tmp_path / "spool/b") as spool:
        spool.enqueue_many([event(number) for number in range(50)])
        wait_until(lambda: len(ids(tmp_path / "corpus/b.jsonl")) == 50)
        wait_until(lambda: stats(spool).done == 50)
    wait_until(lambda: ids(tmp_path / "corpus/a.jsonl") == ["1"])
    wait_until(lambda: drains.view()["b"]["appended"] == 50)


def test_a_spool_that_cannot_be_drained_stops_no_other(
    drains: Drains, tmp_path: Path, alerts: list[Alert]
) -> None:
    """SPOOL-06, R3: told once, tried again, and drained when it is mended."""
    (tmp_path / "blocked").write_text("a file where a folder should be")
    bad = rules("bad", path="blocked/spool")
    drains.reconfigure(
        {"bad": bad, "odd": rules("odd", schema=str(tmp_path / "nix.json")), "good": rules("good")}
    )
    with Spool(tmp_path / "spool/good") as spool:
        spool.enqueue(event(1))
    wait_until(lambda: ids(tmp_path / "corpus/good.jsonl") == ["1"])
    wait_until(lambda: len(alerts) == 2)
    assert {alert.text.split(":")[0] for alert in alerts} == {"spool bad", "spool odd"}
    (tmp_path / "blocked").unlink()
    with Spool(tmp_path / "blocked/spool") as spool:
        spool.enqueue(event(2))
    wait_until(lambda: ids(tmp_path / "corpus/bad.jsonl") == ["2"])
    wait_until(lambda: drains.view()["bad"]["complaint"] == "")
    assert len(alerts) == 2


def test_a_corpus_that_cannot_be_written_is_told_once_and_waited_for(
    drains: Drains, tmp_path: Path, alerts: list[Alert]
) -> None:
    """R4: nothing is lost, no attempt is used up; it goes on by itself."""
    (tmp_path / "corpus").write_text("a file where a folder should be")
    drains.reconfigure({"a": rules("a")})
    with Spool(tmp_path / "spool/a") as spool:
        spool.enqueue(event(1))
        wait_until(lambda: len(alerts) == 1)
        assert "corpus" in alerts[0].text
        (tmp_path / "corpus").unlink()
        wait_until(lambda: stats(spool).done == 1)
    assert ids(tmp_path / "corpus/a.jsonl") == ["1"]
    wait_until(lambda: drains.view()["a"]["complaint"] == "")
    assert len(alerts) == 1


def test_poisoned_events_are_told(drains: Drains, tmp_path: Path, alerts: list[Alert]) -> None:
    """SPOOL-06: a person should know, once for many."""
    with Spool(tmp_path / "spool/a") as spool:
        spool.enqueue_many([{"id": "x"}, {"id": "y"}, event(1)])
    drains.reconfigure({"a": rules("a")})
    wait_until(lambda: len(alerts) == 1)
    assert alerts[0].kind == "spool-poison"
    assert "2 events were poisoned" in alerts[0].text
    command = alerts[0].text.rpartition("; see: ")[2]
    listed = subprocess.run(
        command, shell=True, cwd="/", capture_output=True, text=True, timeout=30, check=True
    )
    assert listed.stdout.count("poison") >= 2, listed.stdout
    assert ids(tmp_path / "corpus/a.jsonl") == ["1"]


def test_what_a_spool_holds_is_known(drains: Drains, tmp_path: Path) -> None:
    """SPOOL-04, SPOOL-06: waiting, leased and poisoned events are counted, also those of other processes."""
    with Spool(tmp_path / "spool/a", durability="none") as spool:
        spool.enqueue_many([event(number) for number in range(30)])
        spool.enqueue_many([event(number) for number in range(5)], bundle=True)
        item = spool.lease()
        assert item is not None
        spool.poison(item, "on purpose")
        assert spool.lease() is not None
        drains.reconfigure({"a": rules("a", drain=False), "none": rules("none", drain=False)})
        held = {"waiting": 33, "leased": 1, "poison": 1}
        wait_until(lambda: {key: drains.view()["a"][key] for key in held} == held)
    assert drains.view()["none"]["waiting"] == 0


def test_a_count_that_waited_for_the_broker_is_soon_followed_by_the_next(
    drains: Drains, tmp_path: Path
) -> None:
    """SPOOL-06, SPOOL-08: after a broker stood still for seconds, `status` is not stale for minutes."""
    with broker(tmp_path / "broker") as server:
        nats = NatsRules((server.url,), token=TOKEN)
        with JetSpool("watchbill_a", server.reach) as spool:
            spool.enqueue(event(1))
            server.stop()
            going_on = threading.Timer(2.0, server.go_on)  # how long it stands still is the experiment
            going_on.start()
            drains.reconfigure({"a": rules("a", drain=False, backend="nats", nats=nats)})
            wait_until(lambda: drains.view()["a"]["waiting"] == 1)
            going_on.join()
            spool.enqueue(event(2))
            wait_until(lambda: drains.view()["a"]["waiting"] == 2, 30.0)


def test_a_count_that_the_broker_did_not_answer_is_said_once_and_until_it_is_made(
    drains: Drains, tmp_path: Path, alerts: list[Alert]
) -> None:
    """SPOOL-06, SPOOL-08: one alert, a complaint in `status` while its counts are stale, and new counts soon."""
    with broker(tmp_path / "broker") as server:
        nats = NatsRules((server.url,), token=TOKEN, timeout_ms=Millis(500))
        with JetSpool("watchbill_a", server.reach) as spool:
            spool.enqueue(event(1))
            server.stop()
            drains.reconfigure({"a": rules("a", drain=False, backend="nats", nats=nats)})
            wait_until(lambda: "cannot count the events" in str(drains.view()["a"]["complaint"]))
            server.go_on()
            held = {"waiting": 1, "complaint": ""}
            wait_until(lambda: {key: drains.view()["a"][key] for key in held} == held, 30.0)
    assert len(alerts) == 1


def test_a_changed_config_changes_the_drains_and_leaves_the_rest(drains: Drains, tmp_path: Path) -> None:
    drains.reconfigure({"a": rules("a"), "b": rules("b"), "c": rules("c")})
    changed = rules("b", corpora=MappingProxyType({"*": "corpus/other.jsonl"}))
    assert drains.reconfigure({"a": rules("a"), "b": changed, "d": rules("d")}) == [
        "spool b changed",
        "spool c was removed",
        "spool d is new",
    ]
    assert drains.reconfigure({"a": rules("a"), "b": changed, "d": rules("d")}) == []
    for name in ("b", "c"):
        with Spool(tmp_path / "spool" / name) as spool:
            spool.enqueue(event(1))
    wait_until(lambda: ids(tmp_path / "corpus/other.jsonl") == ["1"])
    with Spool(tmp_path / "spool/c") as spool:
        assert stats(spool).queue == 1


def finish_long_ago(spool: Spool) -> None:
    """Finish one event, years ago."""
    spool.enqueue(event(1))
    with spool.dequeue():
        pass
    day = next((spool.path / "queue-done").iterdir())
    day.rename(day.with_name("2020-01-01"))


def test_a_spool_may_be_left_to_other_processes(drains: Drains, tmp_path: Path) -> None:
    """SPOOL-09: `drain = false`: the daemon keeps its hands off, finished events are collected all the same."""
    with Spool(tmp_path / "spool/a") as spool:
        finish_long_ago(spool)
        spool.checkpoint()  # what a log still holds is not collected
        spool.enqueue(event(2))
        drains.reconfigure({"a": rules("a", drain=False)})
        wait_until(lambda: stats(spool).done == 0)
        assert stats(spool).queue == 1


def test_finished_events_are_archived_on_schedule(drains: Drains, tmp_path: Path) -> None:
    """SPOOL-12: at the start and each hour; what is older than `keep_done` moves to the archive."""
    with Spool(tmp_path / "spool/a") as spool:
        finish_long_ago(spool)
    drains.reconfigure({"a": rules("a", archive="archive")})
    wait_until(lambda: (tmp_path / "archive").is_dir() and any((tmp_path / "archive").glob("2020-01-01*")))
