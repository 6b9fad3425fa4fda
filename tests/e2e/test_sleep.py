"""Asleep, with real processes: less memory, the same process, and back sooner than a load."""

from e2e.place import Place, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until

LLAMA = """
[devices.ram]
reserve = "200MB"

[models.dozer]
engine = "llamacpp"
source = "{path}"
context = 512
threads = 1
sleep = "1s"
idle = "1h"
"""


def test_llama_cpp_sleeps_by_itself_and_is_woken_for_the_next_request(
    place: Place, gguf_files: GgufFiles
) -> None:
    """scheduler.md, asleep: a state with its own size and time; the request that wakes it is answered."""
    place.config.write_text(LLAMA.format(path=gguf_files.chat("60MB")))
    daemon = place.up()
    assert daemon.chat("dozer")[0] == 200
    pid, warm = daemon.model("dozer")["pid"], daemon.model("dozer")["memory"]
    wait_until(lambda: daemon.is_in("dozer", "asleep"))
    asleep = daemon.model("dozer")
    assert asleep["pid"] == pid
    assert asleep["asleep"] < warm - 40 * 10**6
    explained = place.run("explain", "dozer")
    assert "is asleep, wakes in about" in " ".join(explained.stdout.split())
    assert daemon.chat("dozer")[0] == 200
    awake = daemon.model("dozer")
    assert (awake["pid"], awake["loads"]) == (pid, 1)
    assert awake["wake_ms"] is not None
    kinds = [event["event"] for event in place.events() if event["model"] == "dozer"]
    assert kinds[:7] == ["plan", "load", "loaded", "asleep", "plan", "wake", "awake"], kinds
    daemon.stop()
    again = place.up()
    known = again.model("dozer")
    assert (known["wake_ms"], known["asleep"] < warm - 40 * 10**6) == (awake["wake_ms"], True)
    again.stop()


def test_a_model_that_can_be_told_sleeps_in_place_of_leaving(place: Place) -> None:
    """scheduler.md: a transition asks for the cheapest state that frees enough; here the room is for one at a time."""
    place.config.write_text(
        '[devices.ram]\ncapacity = "500MB"\nreserve = "0B"\n'
        + scripted(
            "one", 'memory = "200MB", load = "1s", wake = "100ms"', 'sleep = "1h"\nidle = "2h"'
        ).replace('memory = "30MB"', 'memory = "300MB"\nasleep = "60MB"')
        + scripted("two", 'memory = "200MB"').replace('memory = "30MB"', 'memory = "300MB"')
    )
    daemon = place.up()
    assert daemon.chat("one")[0] == 200
    pid = daemon.model("one")["pid"]
    assert daemon.chat("two")[0] == 200
    assert daemon.model("one")["state"] == "asleep"
    assert daemon.chat("one")[0] == 200
    back = daemon.model("one")
    assert (back["pid"], back["loads"], daemon.model("two")["state"]) == (pid, 1, "absent")
    daemon.stop()
