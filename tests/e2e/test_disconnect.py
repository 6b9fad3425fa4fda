"""Clients who leave, at every stage of a request: the engine stops working for them, and nothing is left behind."""

import json
import time
import urllib.request
from pathlib import Path

from e2e.place import Daemon, Place, chat_body, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until

CONFIG = """
[devices.ram]
reserve = "200MB"

[models.writer]
engine = "llamacpp"
source = "{path}"
context = 4096
threads = 1
"""
#: Ten seconds of work and more: an engine that is idle after two was stopped.
TOKENS = 2_000
IDLE_S = 2.0


def test_the_engine_stops_when_its_client_leaves(place: Place, gguf_files: GgufFiles) -> None:
    """LANE-07, races 4 and 5: llama.cpp's own slot is idle within 2 s of a client leaving, streamed or not; its
    in-flight count is 0 and the next request is served."""
    place.config.write_text(CONFIG.format(path=gguf_files.chat("60MB")))
    daemon = place.up()
    assert daemon.chat("writer", 1)[0] == 200
    (engine,) = place.listeners()

    streamed = daemon.stream("writer", TOKENS)
    assert all(streamed.event() for _ in range(10))
    assert daemon.model("writer")["in_flight"] == 1
    streamed.close()
    assert_idle_soon(daemon, engine)

    connection = daemon.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("writer", TOKENS)))
    wait_until(lambda: daemon.model("writer")["in_flight"] == 1)
    connection.close()
    assert_idle_soon(daemon, engine)
    assert daemon.model("writer")["loads"] == 1


def assert_idle_soon(daemon: Daemon, engine: int) -> None:
    left = time.monotonic()
    wait_until(lambda: daemon.model("writer")["in_flight"] == 0, IDLE_S)
    # Read once, at the end of the time: asking llama.cpp again and again would change what it notices.
    time.sleep(max(0.0, left + IDLE_S - 0.2 - time.monotonic()))
    key = key_of_engine(daemon.model("writer")["pid"])
    asked = urllib.request.Request(
        f"http://127.0.0.1:{engine}/slots", headers={"Authorization": f"Bearer {key}"}
    )
    (slot,) = json.loads(urllib.request.urlopen(asked, timeout=5).read())
    assert slot["is_processing"] is False, slot
    status, _, answer = daemon.chat("writer", 2)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
    assert json.loads(daemon.ask("/wb/v1/requests")[2]) == {"requests": []}


def key_of_engine(pid: int) -> str:
    """The key between the daemon and its engine: only this user can read it."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(word for word in words if word.startswith(b"LLAMA_API_KEY=")).partition(b"=")[2].decode()


def test_who_leaves_before_the_first_byte_leaves_nothing_behind(place: Place) -> None:
    """LANE-07, races 4, 5 and 11: while the model loads, while queued, before the first byte. One follower who
    leaves does not cancel the load that the others wait for."""
    place.config.write_text(scripted("slow", 'load = "2s", service = "60s", tokens = 5'))
    daemon = place.up()
    waiting = [daemon.connect() for _ in range(3)]
    for number, connection in enumerate(waiting, 1):
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("slow", 5)))
        wait_until(lambda count=number: daemon.model("slow")["queued"] == count)
    assert daemon.is_in("slow", "loading")
    waiting[0].close()  # while loading: it would have been the first
    wait_until(lambda: daemon.model("slow")["queued"] == 2)
    wait_until(lambda: daemon.is_in("slow", "ready"))
    wait_until(lambda: daemon.model("slow")["in_flight"] == 1)
    waiting[2].close()  # while queued
    wait_until(lambda: daemon.model("slow")["queued"] == 0)
    assert daemon.model("slow")["in_flight"] == 1
    waiting[1].close()  # in its turn, before the first byte
    wait_until(lambda: daemon.model("slow")["in_flight"] == 0)
    (engine,) = place.listeners()

    def counts() -> dict[str, int]:
        return json.loads(
            urllib.request.urlopen(f"http://127.0.0.1:{engine}/wb-scripted/state", timeout=5).read()
        )

    wait_until(lambda: counts()["active"] == 0, 2)
    assert counts()["queued"] == 0
    slow = daemon.model("slow")
    assert (slow["loads"], slow["evictions"], slow["state"]) == (1, 0, "ready")
    assert json.loads(daemon.ask("/wb/v1/requests")[2]) == {"requests": []}
