"""Durable stasis: what was asked for in the background is made although the daemon was killed meanwhile (RES-12)."""

import json
import signal
from functools import partial
from typing import Any

from e2e.place import Daemon, Place, scripted
from support.eventually import wait_until

#: Loads for a second and talks for three: the daemon is killed in both.
MODELS = scripted("slow", 'load = "1s", service = "3s", tokens = 12, text = "one two three"')


def test_a_response_in_the_background_outlives_two_killed_daemons(place: Place) -> None:
    """RES-12, R36: killed while its model loads, and again while its answer is made. The third daemon has it, whole and
    under the same id; nothing is left to be made."""
    place.config.write_text(MODELS)
    daemon = place.up()
    body = {"model": "slow", "input": "count", "background": True}
    status, _, told = daemon.ask("/v1/responses", body)
    made = json.loads(told)
    assert (status, made["status"]) == (200, "queued")
    for wanted in ("queued", "in_progress"):
        wait_until(partial(is_at, daemon, made["id"], wanted))
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(30)
        daemon = place.up()
    done = wait_until(partial(ended, daemon, made["id"]))
    assert done is not None and done["status"] == "completed", done
    text: str = done["output"][0]["content"][0]["text"]
    assert text.split() == ["one", "two", "three"] * 4
    stats = place.run("spool", "stats", "--spool", str(place.root / "stasis"), "--json")
    assert json.loads(stats.stdout)["queue"] == 0, stats.stdout


def response(daemon: Daemon, id: str) -> dict[str, Any]:
    return json.loads(daemon.ask(f"/v1/responses/{id}")[2])


def is_at(daemon: Daemon, id: str, status: str) -> bool:
    return response(daemon, id)["status"] == status


def ended(daemon: Daemon, id: str) -> dict[str, Any] | None:
    found = response(daemon, id)
    return None if found["status"] in ("queued", "in_progress") else found
