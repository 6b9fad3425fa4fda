"""Who comes, who stays, who leaves by itself, and what is written down about it."""

import time

from e2e.place import Place, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until

CONFIG = """
[devices.ram]
reserve = "200MB"

[models.fleeting]
engine = "llamacpp"
source = "{path}"
context = 512
threads = 1
idle = "2s"
"""


def test_an_idle_model_leaves_and_a_permanent_one_stays(place: Place, gguf_files: GgufFiles) -> None:
    """RES-07, RES-02, RES-26: idle models leave after their time, permanent ones do not, and not by hand either; every
    load and eviction is in both journals with its reason."""
    place.config.write_text(
        CONFIG.format(path=gguf_files.chat("5MB"))
        + scripted("rock", 'load = "200ms"', 'permanent = true\nidle = "1s"')
    )
    daemon = place.up()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    rock = daemon.model("rock")["pid"]
    assert daemon.model("fleeting")["state"] == "absent"

    assert daemon.chat("fleeting")[0] == 200
    answered = time.monotonic()
    # Looking is not using: none of these resets the idle time.
    wait_until(lambda: daemon.ask("/v1/models") and daemon.is_in("fleeting", "absent"))
    assert time.monotonic() - answered > 1.9
    left = daemon.model("fleeting")
    assert (left["loads"], left["evictions"], left["pid"]) == (1, 1, None)
    assert daemon.model("rock")["pid"] == rock

    refused = place.run("evict", "rock")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "permanent" in refused.stderr and "--force" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert daemon.model("rock")["pid"] == rock
    forced = place.run("evict", "rock", "--force")
    assert forced.returncode == 0, forced.stderr
    assert place.run("load", "rock").returncode == 0
    assert daemon.model("rock")["pid"] not in (rock, None)
    daemon.stop()

    for name, reason in (("fleeting", "idle for 2 s"), ("rock", "the operator asked for it")):
        mine = [event for event in place.events() if event["model"] == name]
        assert all(event["reason"] for event in mine)
        kinds = [event["event"] for event in mine]
        assert kinds[:3] == ["plan", "load", "loaded"], kinds
        (evicted,) = [event for event in mine if event["event"] == "evict" and reason in event["reason"]]
        assert evicted["device"] == "ram" and evicted["bytes"] > 0
        assert next(event for event in mine if event["event"] == "loaded")["ms"] > 0
    written = (place.root / "queue_log.md").read_text()
    for event in place.events("load", "loaded", "evict", "stopped"):
        assert any(event["model"] in line and event["reason"] in line for line in written.splitlines()), event
