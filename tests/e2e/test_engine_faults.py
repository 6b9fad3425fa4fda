"""Engines that crash, hang, lie and refuse to go, behind the whole daemon: who is told what, who notices nothing."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from e2e.place import Daemon, Place, gone, scripted
from support.eventually import wait_until
from support.stopping import stop


def test_a_crash_before_the_first_byte_is_not_noticed(place: Place) -> None:
    """R30: one transparent retry on a fresh process, streamed or not; a second crash is told, and it ends there."""
    place.config.write_text(
        scripted("once", 'fail = "crash-before-first-byte", fail_times = 1')
        + scripted("streamed", 'fail = "crash-before-first-byte", fail_times = 1')
        + scripted("always", 'fail = "crash-before-first-byte"')
    )
    daemon = place.up()
    status, _, answer = daemon.chat("once", 3)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    assert daemon.model("once")["loads"] == 2
    assert daemon.stream("streamed", 3).rest()[-1] == "[DONE]"
    assert daemon.model("streamed")["loads"] == 2

    status, _, answer = daemon.chat("always", 3)
    assert (status, answer["error"]["code"], answer["error"]["source"]) == (502, "engine_failed", "engine")
    assert daemon.model("always")["loads"] == 2
    assert json.loads(daemon.ask("/wb/v1/requests")[2]) == {"requests": []}
    assert daemon.chat("once", 3)[0] == 200
    assert daemon.stop() == 0


def test_a_crash_after_the_first_byte_is_an_error_event(place: Place) -> None:
    """R30: never silent truncation: a stream that breaks off ends with an error, never with [DONE]; a whole answer, of
    which nothing was seen, is tried again."""
    place.config.write_text(
        scripted("breaks", 'service = "300ms", fail = "crash-after-first-byte", fail_times = 1')
        + scripted("whole", 'service = "300ms", fail = "crash-after-first-byte", fail_times = 1')
        + scripted("babble", 'fail = "bad-frames", fail_times = 1')
    )
    daemon = place.up()
    events = daemon.stream("breaks", 8).rest()
    assert len(events) >= 2 and "[DONE]" not in events
    assert json.loads(events[-1])["error"]["code"] == "engine_failed"
    assert daemon.stream("breaks", 8).rest()[-1] == "[DONE]"

    status, _, answer = daemon.chat("whole", 8)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)

    events = daemon.stream("babble", 8).rest()
    assert json.loads(events[-1])["error"]["code"] == "engine_failed" and "[DONE]" not in events
    assert daemon.stop() == 0


def test_an_engine_that_hangs_is_given_up_and_others_are_served(place: Place) -> None:
    """R31, R32: hangs before the first byte and in mid-stream end at the lane's time limit; an engine that only says
    that it is healthy never counts as warm; others are served."""
    place.config.write_text(
        '[lanes.default]\ntimeout = "2s"\n'
        + scripted("mute", 'fail = "hang-before-first-byte", fail_times = 1')
        + scripted("stutter", 'fail = "hang-mid-stream", fail_times = 1')
        + scripted("liar", 'fail = "healthy-but-silent"', 'load_timeout = "1s"')
        + scripted("well")
    )
    daemon = place.up()
    begun = time.monotonic()
    with ThreadPoolExecutor(3) as crowd:
        mute = crowd.submit(daemon.chat, "mute")
        stutter = crowd.submit(lambda: daemon.stream("stutter", 8).rest())
        liar = crowd.submit(daemon.chat, "liar")
        while not all(waiting.done() for waiting in (mute, stutter, liar)):
            assert daemon.chat("well")[0] == 200  # all the time
            assert time.monotonic() - begun < 60
        status, _, answer = mute.result()
        assert (status, answer["error"]["code"]) == (503, "run_timeout")
        events = stutter.result()
        assert json.loads(events[-1])["error"]["code"] == "run_timeout" and "[DONE]" not in events
        status, _, answer = liar.result()
        assert (status, answer["error"]["code"]) == (503, "model_failed")
        assert "probe" in answer["error"]["message"]
    assert daemon.model("liar")["loads"] == 0
    wait_until(lambda: not daemon.model("mute")["in_flight"] and not daemon.model("stutter")["in_flight"])
    assert daemon.chat("mute")[0] == 200 and daemon.chat("stutter")[0] == 200
    assert daemon.stop() == 0


@pytest.mark.timeout(400)  # the question to a model that hangs takes a minute by itself
def test_a_frozen_engine_is_found_reset_and_serves_again(place: Place) -> None:
    """R31, RES-20: a stopped process (SIGSTOP) in a lane whose time is short: runs that time out lead to the question
    and the reset, nobody evicts it by hand, and the next request is answered by a fresh process."""
    place.config.write_text(
        '[lanes.default]\ntimeout = "2s"\nmax_wait = "5m"\n' + scripted("frozen") + scripted("well")
    )
    daemon = place.up()
    assert daemon.chat("frozen")[0] == 200
    engine = daemon.model("frozen")["pid"]
    stop(engine)
    said = [daemon.chat("frozen", seconds=200) for _ in range(3)]
    late = [answer["error"]["code"] for status, _, answer in said if status != 200]
    assert set(late) == {"run_timeout"}
    wait_until(lambda: daemon.model("frozen")["pid"] != engine, 150)
    assert daemon.chat("frozen", seconds=200)[0] == 200 and daemon.chat("well")[0] == 200
    assert gone([engine])
    page = daemon.ask("/metrics")[2].decode()
    assert 'watchbill_requests_total{lane="default",outcome="run_timeout"} ' in page
    assert 'outcome="cancelled"' not in page
    assert daemon.stop() == 0
    assert any("frozen was reset" in event["reason"] for event in place.events("alert"))


def test_an_engine_that_ignores_term_goes_all_the_same(place: Place) -> None:
    """R35: an engine that ignores TERM and moved to another session is gone within 10 s, its port included."""
    place.config.write_text(scripted("deaf", 'fail = ["ignore-term", "fork-and-exit"]') + scripted("well"))
    daemon = place.up()
    assert daemon.chat("deaf")[0] == 200 and daemon.chat("well")[0] == 200
    (well,) = [port for port in place.listeners() if place.owner(port) == daemon.model("well")["pid"]]
    asked = time.monotonic()
    status, _, _ = daemon.ask("/wb/v1/models/deaf/evict", {})
    assert (status, daemon.model("deaf")["state"]) == (200, "absent")
    assert time.monotonic() - asked < 10
    assert place.listeners() == [well]
    assert daemon.chat("deaf")[0] == 200
    assert daemon.stop() == 0


def test_a_crash_loop_ends_in_quarantine(place: Place) -> None:
    """R37, RES-20: after repeated failure the model rests with its reason, requests for it are refused at once, it is
    not tried in a tight loop, and the others notice nothing."""
    place.config.write_text(scripted("looper", 'load = "50ms", fail = "crash-on-load"') + scripted("well"))
    daemon = place.up()
    assert daemon.chat("well")[0] == 200
    well = daemon.model("well")["pid"]
    status, headers, answer = daemon.chat("looper")
    assert (status, answer["error"]["code"]) == (503, "model_failed")
    assert answer["error"]["message"].startswith("looper: exited with status")  # its name once
    assert "crashes while it loads" in answer["error"]["message"]  # the engine's own last words
    assert 1 <= int(headers["retry-after"]) <= 60
    looper = daemon.model("looper")
    assert (looper["state"], looper["loads"]) == ("quarantined", 0)
    assert "crashes while it loads" in looper["reason"]
    assert looper["retry_ms"] > 1_000
    tried = len(place.events("load"))

    asked = time.monotonic()
    for _ in range(20):
        assert daemon.chat("looper")[2]["error"]["code"] == "model_failed"
    assert time.monotonic() - asked < 10
    assert daemon.model("well")["pid"] == well and daemon.chat("well")[0] == 200
    assert daemon.stop() == 0
    loads = [event for event in place.events("load") if event["model"] == "looper"]
    assert len(loads) <= 3 and len(place.events("load")) >= tried
    assert any("looper" in event["reason"] for event in place.events("alert"))
    assert place.events("quarantine")[0]["model"] == "looper"


def test_a_killed_engine_comes_back_for_the_next_request(place: Place) -> None:
    """R27, R30: the kernel's choice when memory runs out. The daemon survives, says why, and loads it again."""
    place.config.write_text(scripted("victim", 'service = "20s", tokens = 200') + scripted("well"))
    daemon = place.up()
    stream = daemon.stream("victim", 200)
    assert stream.event()
    psutil.Process(daemon.model("victim")["pid"]).kill()
    events = stream.rest()
    assert json.loads(events[-1])["error"]["code"] == "engine_failed"
    wait_until(lambda: daemon.is_in("victim", "absent"))
    assert daemon.chat("well")[0] == 200
    again = first_words(daemon)
    assert again and daemon.model("victim")["loads"] == 2
    assert daemon.stop() == 0
    assert any("SIGKILL" in event["reason"] for event in place.events("died"))
    assert not place.events("load_failed")


def first_words(daemon: Daemon) -> str:
    stream = daemon.stream("victim", 200)
    try:
        return stream.event()
    finally:
        stream.close()
