"""A full disk under the root: it is not the models' fault, and it ends by itself."""

import contextlib
import json
import resource
from functools import partial
from pathlib import Path

from e2e.place import Place, scripted
from e2e.test_batches import answered, batch_of, question, submit
from e2e.test_stasis import ended, response
from support.eventually import wait_until
from support.small_disk import free_up, leave_blocks, small_disks


def test_a_full_disk_is_told_as_one_and_it_goes_on_when_there_is_room(place: Place) -> None:
    """RES-20: callers get 507 with the reason, nothing is quarantined however often they come, and the first one after
    there is room again is served. A file size of 0 is what a full disk is to whoever writes."""
    place.config.write_text(scripted("a") + scripted("b"))
    daemon = place.up()
    assert daemon.chat("b")[0] == 200
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, hard))
    for _ in range(5):
        status, headers, answer = daemon.chat("a")
        assert (status, answer["error"]["code"]) == (507, "disk_failed")
        assert "make room" in answer["error"]["message"] and int(headers["retry-after"]) >= 1
    model = daemon.model("a")
    assert (model["state"], model["trouble"], model["loads"]) == ("absent", "disk_failed", 0)
    assert daemon.chat("b")[0] == 200  # what is warm is served
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert daemon.chat("a")[0] == 200
    assert daemon.model("a")["trouble"] is None
    assert wait_until(lambda: place.events("disk_failed"))
    assert not place.events("quarantine") and daemon.stop() == 0


def test_a_full_disk_takes_no_working_model_down(place: Place) -> None:
    """RES-20: a model that would have to leave for a load stays while the load cannot succeed."""
    place.config.write_text(scripted("a", rules='group = "one"') + scripted("b", rules='group = "one"'))
    daemon = place.up()
    assert daemon.chat("b")[0] == 200
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, hard))
    assert wait_until(lambda: "disk" in [alert["kind"] for alert in daemon.status()["alerts"]])
    for _ in range(3):
        status, _, answer = daemon.chat("a")
        assert (status, answer["error"]["code"]) == (507, "disk_failed")
        assert daemon.chat("b")[0] == 200 and daemon.model("b")["loads"] == 1
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert wait_until(lambda: daemon.chat("a")[0] == 200)
    assert daemon.model("b")["state"] == "absent" and daemon.stop() == 0


def test_a_disk_that_keeps_a_model_from_loading_fails_no_line_of_a_batch(
    place: Place, tmp_path: Path
) -> None:
    """RES-20, P1: the lines wait until there is room. The scheduler's refusal was taken for another error of the same
    code, and each line had 507 as its answer at once."""
    alone = 'group = "one"'
    place.config.write_text(scripted("a", rules=alone) + scripted("b", 'service = "3s"', rules=alone))
    with small_disks(tmp_path) as mount, contextlib.ExitStack() as closing:
        disk = mount("size=80M")
        place.move_root(disk / "root")
        closing.callback(place.close)  # the disk is in use until then
        daemon = place.up()
        stream = daemon.stream("b", 8)
        stream.event()
        batch = submit(daemon, [question(number, "a") for number in range(5)])
        leave_blocks(disk, 0)
        stream.rest()
        wait_until(lambda: daemon.model("a")["trouble"] == "disk_failed")
        assert answered(daemon, batch) == 0
        free_up(disk)
        wait_until(lambda: batch_of(daemon, batch)["status"] == "completed")
        assert batch_of(daemon, batch)["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
        assert daemon.stop() == 0


def test_a_disk_that_keeps_a_model_from_loading_fails_no_response_in_the_background(
    place: Place, tmp_path: Path
) -> None:
    """RES-12, RES-20: what was accepted waits until there is room. It failed at once, and after a kill it was made."""
    alone = 'group = "one"'
    place.config.write_text(scripted("a", rules=alone) + scripted("b", 'service = "3s"', rules=alone))
    with small_disks(tmp_path) as mount, contextlib.ExitStack() as closing:
        disk = mount("size=80M")
        place.move_root(disk / "root")
        closing.callback(place.close)  # the disk is in use until then
        daemon = place.up()
        stream = daemon.stream("b", 8)
        stream.event()
        body = {"model": "a", "input": "count", "background": True}
        ids = [json.loads(daemon.ask("/v1/responses", body)[2])["id"] for _ in range(2)]
        leave_blocks(disk, 0)
        stream.rest()
        wait_until(lambda: daemon.model("a")["trouble"] == "disk_failed")
        assert [response(daemon, id)["status"] for id in ids] == ["queued", "queued"]
        free_up(disk)
        for id in ids:
            assert wait_until(partial(ended, daemon, id))["status"] == "completed"
        assert daemon.stop() == 0
