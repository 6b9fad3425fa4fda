"""Durable stasis: what was asked for in the background is made although the daemon was killed meanwhile (RES-12)."""

import contextlib
import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

from e2e.place import Daemon, Place, scripted
from support.eventually import wait_until
from support.small_disk import free_up, leave_blocks, small_disks

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


def test_a_daemon_that_dies_often_fails_only_what_it_was_answering(place: Place) -> None:
    """RES-12, P1, R57: three daemons are killed while they answer one response. It may be the reason, and is given up;
    those that waited behind it are made."""
    place.config.write_text(MODELS + "concurrency = 1\n")
    daemon = place.up()
    body = {"model": "slow", "input": "count", "background": True}
    suspect, *waiting = (json.loads(daemon.ask("/v1/responses", body)[2])["id"] for _ in range(4))
    for death in range(1, 4):
        wait_until(partial(is_charged, place, death))
        wait_until(partial(is_at, daemon, suspect, "in_progress"))
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(30)
        daemon = place.up()
    failed = wait_until(partial(ended, daemon, suspect))
    assert failed is not None and failed["status"] == "failed", failed
    for id in waiting:
        done = wait_until(partial(ended, daemon, id))
        assert done is not None and done["status"] == "completed", done
    assert daemon.stop() == 0


def test_a_response_whose_end_only_memory_has_is_made_again_after_a_kill(
    place: Place, tmp_path: Path
) -> None:
    """RES-12, P1: the disk was full when it was done, and the daemon was killed before there was room. The next one
    makes it again, under the same id, and does not say that it failed."""
    place.config.write_text(scripted("slow", 'service = "1s"'))
    with small_disks(tmp_path) as mount, contextlib.ExitStack() as closing:
        disk = mount("size=80M")
        place.move_root(disk / "root")
        closing.callback(place.close)  # the disk is in use until then
        daemon = place.up()
        body = {"model": "slow", "input": "count", "background": True}
        ids = [json.loads(daemon.ask("/v1/responses", body)[2])["id"] for _ in range(2)]
        wait_until(partial(is_at, daemon, ids[0], "in_progress"))
        for id in ids:
            leave_blocks(disk, 0)
            assert wait_until(partial(ended, daemon, id))["status"] == "completed"
            leave_blocks(disk, 0)
        # Waits until it is kept, as far as it can be.
        daemon.ask(f"/v1/responses/{ids[1]}/cancel", method="POST")
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(30)
        free_up(disk)
        daemon = place.up()
        for id in ids:
            done = wait_until(partial(ended, daemon, id))
            assert done["status"] == "completed", done
        assert daemon.stop() == 0


def response(daemon: Daemon, id: str) -> dict[str, Any]:
    return json.loads(daemon.ask(f"/v1/responses/{id}")[2])


def is_at(daemon: Daemon, id: str, status: str) -> bool:
    return response(daemon, id)["status"] == status


def ended(daemon: Daemon, id: str) -> dict[str, Any] | None:
    found = response(daemon, id)
    return None if found["status"] in ("queued", "in_progress") else found


def is_charged(place: Place, attempt: int) -> bool:
    """Whether the death of the daemon would be this attempt of a response."""
    return any(place.root.glob(f"stasis/queue-in-flight/*/*~{attempt}.jsonl"))
