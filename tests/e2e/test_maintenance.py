"""A device is lent to the operator, and comes back whatever happens to its holder."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.place import Place, scripted
from support.eventually import wait_until

CONFIG = (
    "[lanes.default]\nmax_wait = '20s'\n[lanes.hasty]\nmax_wait = '1s'\n"
    + scripted("rock", 'load = "200ms"', "permanent = true")
    + scripted("other")
)


def holder(place: Place, *arguments: str) -> "subprocess.Popen[str]":
    """A `maintenance start` that goes on."""
    return subprocess.Popen(
        [sys.executable, "-m", "watchbill", "maintenance", "start", *arguments], cwd=place.folder,
        env=place.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.timeout(90)
def test_a_command_has_the_memory_and_permanent_models_return_after_it(place: Place) -> None:
    """RES-14, RES-02: everything drains and leaves, permanent models too; requests wait or get 503 maintenance; the
    command's exit code is passed on; afterwards the permanent model is back and who waited is served."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    assert daemon.chat("other")[0] == 200
    (place.folder / "go").write_text("")
    wait = "while [ -e go ]; do sleep 0.05; done; exit 7"
    forge = holder(place, "--for", "forge", "--", "sh", "-c", f"echo working; {wait}")
    assert forge.stdout is not None
    assert forge.stdout.readline() == "working\n"
    status = daemon.status()
    assert {model["state"] for model in status["models"].values()} == {"absent"}
    assert status["maintenance"]["ram"]["why"] == "forge"
    assert status["devices"]["ram"]["budget"] == 0
    second = place.run("maintenance", "start", "--for", "another")
    assert (second.returncode, "already in maintenance for 'forge'" in second.stderr) == (1, True)

    hasty = daemon.chat("other", lane="hasty")
    assert (hasty[0], hasty[2]["error"]["code"]) == (503, "maintenance")
    with ThreadPoolExecutor(1) as patient:
        waiting = patient.submit(daemon.chat, "other")
        wait_until(lambda: daemon.model("other")["queued"] == 1)
        [request] = json.loads(daemon.ask("/wb/v1/requests")[2])["requests"]
        assert "waits until ram is back from maintenance" in place.run("explain", request["id"]).stdout
        (place.folder / "go").unlink()
        assert forge.wait(20) == 7
        assert waiting.result(20)[0] == 200
    forge.communicate()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    assert daemon.status()["maintenance"] == {}
    ended = place.events("maintenance_end")
    assert [event["reason"] for event in ended] == ["given back"]


@pytest.mark.timeout(90)
def test_a_dead_holders_claim_expires(place: Place) -> None:
    """RES-14: kill -9 of the holder ends the claim, and the command with it; so does the end of a --pid."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    forge = holder(place, "--for", "forge", "--", "sh", "-c", "echo $$; exec sleep 60")
    assert forge.stdout is not None
    command = int(forge.stdout.readline())
    assert "ram" in daemon.status()["maintenance"]
    forge.send_signal(signal.SIGKILL)
    forge.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{command}"), 5)
    forge.communicate()
    wait_until(lambda: not daemon.status()["maintenance"])
    wait_until(lambda: daemon.is_in("rock", "ready"))

    with subprocess.Popen(["sleep", "60"]) as sleeper:
        assert place.run("maintenance", "start", "--pid", str(sleeper.pid)).returncode == 0
        assert daemon.is_in("rock", "absent")
        sleeper.kill()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    reasons = [event["reason"] for event in place.events("maintenance_end")]
    assert all("is gone" in reason for reason in reasons)
    assert len(reasons) == 2


@pytest.mark.timeout(90)
def test_a_claim_that_nobody_holds_ends_by_hand_or_by_its_time(place: Place) -> None:
    """RES-14: no claim lasts for ever, and a caller who does not wait for the device has claimed nothing."""
    place.config.write_text(CONFIG + scripted("slow", 'service = "30s"'))
    daemon = place.up()
    assert place.run("maintenance", "start", "--for", "disks").returncode == 0
    assert 0 < daemon.status()["maintenance"]["ram"]["ends_ms"] <= 8 * 3_600_000
    assert place.run("maintenance", "end").stdout == "ram is back in service\n"
    assert daemon.ask("/wb/v1/maintenance?device=ram", method="DELETE")[0] == 400
    assert daemon.ask("/wb/v1/maintenance", {"device": "ram", "hours": 0.0003})[0] == 200
    wait_until(lambda: not daemon.status()["maintenance"])

    stream = daemon.stream("slow", 40)
    stream.event()
    with daemon.connect() as impatient:
        impatient.request(
            "POST", "/wb/v1/maintenance", '{"device": "ram"}', {"Content-Type": "application/json"}
        )
        wait_until(lambda: daemon.status()["maintenance"])
    wait_until(lambda: not daemon.status()["maintenance"], 10)  # long before the stream ends
    stream.close()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    refused = daemon.ask("/wb/v1/maintenance", {"device": "gpu:7"})
    assert refused[0] == 400
    assert b"there is no device" in refused[2]


@pytest.mark.timeout(90)
def test_a_command_that_is_not_there_costs_nobody_his_memory(place: Place) -> None:
    """RES-14: it is said before a model leaves for it."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    for command in ("no-such-command", "./watchbill.toml", "/tmp"):
        failed = place.run("maintenance", "start", "--", command)
        assert (failed.returncode, failed.stdout) == (2, "")
        assert command in failed.stderr and failed.stderr.count("\n") == 1
    assert daemon.model("rock")["evictions"] == 0 and place.events("maintenance") == []


@pytest.mark.timeout(90)
def test_the_commands_exit_code_counts_even_when_the_claim_is_over_before(place: Place) -> None:
    """RES-14: whether the operator ended the claim or the daemon meanwhile."""
    place.config.write_text(CONFIG)
    place.up()
    watchbill = f"{sys.executable} -m watchbill"
    for ending in ("maintenance end", "down"):
        done = place.run("maintenance", "start", "--", "sh", "-c", f"{watchbill} {ending}; exit 7")
        assert done.returncode == 7, done
        assert "ram was not given back" in done.stderr
