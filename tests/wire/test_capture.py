"""Capture: finished requests become events, and no answer waits for a disk."""

import json
import threading
from pathlib import Path
from types import MappingProxyType

import pytest

from support.eventually import wait_until
from watchbill.catalog import SpoolRules
from watchbill.core.messages import Alert
from watchbill.runtime import capture as capture_module
from watchbill.runtime.capture import Capture, Captured, SpoolCapture
from watchbill.spool import Drain, Spool, entries, stats
from watchbill.spool.corpus import Corpus


def rules(name: str = "chats", path: str = "spool") -> SpoolRules:
    return SpoolRules(name, path, MappingProxyType({"*": "corpus.jsonl"}))


def request(number: int, answer: object = "because") -> Captured:
    return Captured(
        f"wb-{number}", 1.5, "chat", "small", "local", [{"role": "user", "content": "why"}], answer, "ok"
    )


class Told:
    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.came = threading.Event()

    def __call__(self, alert: Alert) -> None:
        self.alerts.append(alert)
        self.came.set()


def test_a_finished_request_becomes_an_event_that_the_drain_accepts(tmp_path: Path) -> None:
    """SPOOL-13: id, kind, time, lane, model, tier, prompt, answer and outcome; valid by the built-in schema."""
    told = Told()
    capture: Capture = SpoolCapture(tmp_path, {"chats": rules()}, told)
    assert capture.capture("chats", request(1))
    assert isinstance(capture, SpoolCapture)
    capture.close()
    with Spool(tmp_path / "spool") as spool:
        report = Drain(spool, Corpus(tmp_path / "corpus.jsonl")).run_once()
    assert (report.appended, report.poisoned) == (1, 0)
    assert json.loads((tmp_path / "corpus.jsonl").read_text()) == {
        "id": "wb-1", "kind": "request", "ts": 1.5, "lane": "chat", "model": "small", "tier": "local",
        "prompt": [{"role": "user", "content": "why"}], "answer": "because", "outcome": "ok",
    }  # fmt: skip
    assert told.alerts == []


def test_a_spool_that_nobody_configured_takes_nothing(tmp_path: Path) -> None:
    capture = SpoolCapture(tmp_path, {"chats": rules()}, Told())
    assert capture.capture("other", request(1)) is False
    capture.close()
    assert capture.capture("chats", request(1)) is False
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_does_not_answer_delays_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-13: `capture` returns while the disk hangs; what is too much is dropped, counted, alerted once."""
    monkeypatch.setattr(capture_module, "CAPTURE_EVENTS_MAX", 5)
    hanging, going_on = threading.Event(), threading.Event()

    def open_slowly(*args: object, **options: object) -> Spool:
        hanging.set()
        assert going_on.wait(20)
        return Spool(tmp_path / "spool")

    monkeypatch.setattr(capture_module, "open_spool", open_slowly)
    told = Told()
    capture = SpoolCapture(tmp_path, {"chats": rules()}, told)
    taken = [capture.capture("chats", request(0))]
    assert hanging.wait(20)
    taken += [capture.capture("chats", request(number)) for number in range(1, 8)]
    assert taken == [True] * 5 + [False] * 3
    assert capture.view() == {"chats": {"stored": 0, "waiting": 5, "dropped": 3}}
    assert [alert.kind for alert in told.alerts] == ["capture"]
    assert "dropped" in told.alerts[0].text
    going_on.set()
    wait_until(lambda: capture.view()["chats"]["stored"] == 5)
    assert capture.capture("chats", request(9))
    capture.close()
    with Spool(tmp_path / "spool") as spool:
        assert stats(spool).queue == 6


def test_large_texts_count_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-13: the buffer is bounded in text, not only in events."""
    monkeypatch.setattr(capture_module, "CAPTURE_CHARS_MAX", 10_000)
    told = Told()
    capture = SpoolCapture(tmp_path, {"chats": rules()}, told)
    assert capture.capture("chats", request(1, {"choices": [{"text": "x" * 20_000}]})) is False
    assert capture.capture("chats", request(2, "short"))
    capture.close()
    assert len(told.alerts) == 1


def test_what_can_never_be_stored_takes_nothing_with_it(tmp_path: Path) -> None:
    told = Told()
    capture = SpoolCapture(tmp_path, {"chats": rules()}, told)
    for number, answer in enumerate(["good", "\ud800", object(), "good"]):
        assert capture.capture("chats", request(number, answer))
    wait_until(lambda: capture.view()["chats"] == {"stored": 2, "waiting": 0, "dropped": 2})
    capture.close()
    with Spool(tmp_path / "spool") as spool:
        assert len(list(entries(spool))) == 2
    assert "wb-1" in told.alerts[0].text


def test_a_disk_that_comes_back_gets_what_waited(tmp_path: Path) -> None:
    """SPOOL-13: a failing spool keeps its events in the buffer and tries again."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    capture = SpoolCapture(tmp_path, {"chats": rules(path="blocked/spool")}, Told())
    assert capture.capture("chats", request(1))
    wait_until(lambda: capture.view()["chats"]["waiting"] == 1)
    blocked.unlink()
    wait_until(lambda: capture.view()["chats"]["stored"] == 1)
    capture.close()


def test_waiting_is_alerted_once_and_what_the_end_cannot_store_is_counted(tmp_path: Path) -> None:
    """SPOOL-13, R4: captured requests on a broken disk are never dropped without a word."""
    (tmp_path / "blocked").write_text("")
    told = Told()
    capture = SpoolCapture(tmp_path, {"chats": rules(path="blocked/spool")}, told)
    for number in range(3):
        assert capture.capture("chats", request(number))
    assert told.came.wait(20)
    assert "wait in memory" in told.alerts[0].text
    (said,) = capture.close()
    assert "spool chats: 3 captured requests were lost at the end: " in said
    assert [alert.text for alert in told.alerts[1:]] == [said]
    assert capture.view() == {"chats": {"stored": 0, "waiting": 0, "dropped": 3}}
    assert capture.close() == []
    assert not [
        thread for thread in threading.enumerate() if thread.name == "capture-chats" and thread.is_alive()
    ]


def test_the_end_tries_once_more_and_counts_outlive_a_reload(tmp_path: Path) -> None:
    """SPOOL-13: a disk that has room again at the last moment gets everything, in its order."""
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    told = Told()
    capture = SpoolCapture(tmp_path, {"chats": rules(path="blocked/spool")}, told)
    for number in range(40):
        assert capture.capture("chats", request(number))
    assert told.came.wait(20)
    blocked.unlink()
    capture.reconfigure({"chats": rules(path="elsewhere")})
    assert capture.view()["chats"] == {"stored": 40, "waiting": 0, "dropped": 0}
    assert capture.close() == []
    with Spool(tmp_path / "blocked" / "spool") as spool:
        assert [item.event["id"] for item in iter(spool.lease, None)] == [f"wb-{n}" for n in range(40)]


def test_a_spool_that_moved_gets_its_events_at_the_new_place(tmp_path: Path) -> None:
    capture = SpoolCapture(tmp_path, {"chats": rules()}, Told())
    assert capture.capture("chats", request(1))
    capture.reconfigure({"chats": rules(path="elsewhere")})
    assert capture.capture("chats", request(2))
    capture.close()
    for folder, id in (("spool", "wb-1"), ("elsewhere", "wb-2")):
        with Spool(tmp_path / folder) as spool, spool.dequeue() as item:
            assert item is not None and item.event["id"] == id
