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
    started = place.run("maintenance", "start", "--for", "disks")
    assert started.stdout == "ram is empty and lent to you; give it back with: watchbill maintenance end\n"
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


# ------------------------------------------------------------------ loans: an amount, beside the models

LENT = (
    "[lanes.default]\nmax_wait = '20s'\n[lanes.hasty]\nmax_wait = '1s'\n"
    "[devices.ram]\ncapacity = '600MB'\nreserve = 0\n"
    + scripted("rock", 'load = "100ms"', "permanent = true")
    + scripted("idle", 'load = "100ms"', "memory = '400MB'").replace('memory = "30MB"\n', "")
    + scripted("busy", 'service = "30s"')
)


@pytest.mark.timeout(90)
def test_a_command_gets_an_amount_of_memory_and_no_model_in_use_leaves_for_it(place: Place) -> None:
    """RES-14: with --memory the models go on serving; status and explain say what is lent to whom, the journal has the
    loan and its end, and the exit code is the command's."""
    place.config.write_text(LENT)
    daemon = place.up()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    (place.folder / "go").write_text("")
    wait = "while [ -e go ]; do sleep 0.05; done; exit 7"
    forge = holder(place, "--memory", "300MB", "--for", "whisper", "--", "sh", "-c", f"echo working; {wait}")
    assert forge.stdout is not None
    assert forge.stdout.readline() == "working\n"
    status = daemon.status()
    [(id, loan)] = status["loans"].items()
    assert (loan["device"], loan["memory"], loan["why"], loan["pid"]) == (
        "ram",
        300_000_000,
        "whisper",
        forge.pid,
    )
    assert (status["devices"]["ram"]["lent"], status["devices"]["ram"]["budget"]) == (
        300_000_000,
        300_000_000,
    )
    assert daemon.is_in("rock", "ready")
    assert daemon.chat("rock")[0] == 200
    assert "300 MB lent" in (shown := place.run("status").stdout)
    assert "whisper" in shown and id in shown
    assert "that is lent is given back (300 MB for whisper)" in place.run("explain", "idle").stdout
    hasty = daemon.chat("idle", lane="hasty")
    assert (hasty[0], hasty[2]["error"]["code"]) == (503, "wait_exceeded")
    assert "300 MB of ram is lent" in hasty[2]["error"]["message"]
    (place.folder / "go").unlink()
    assert forge.wait(20) == 7
    forge.communicate()
    assert daemon.status()["loans"] == {}
    assert daemon.chat("idle")[0] == 200
    [lent], [ended] = place.events("loan"), place.events("loan_end")
    assert (lent["bytes"], lent["device"], lent["request"], lent["reason"]) == (
        300_000_000,
        "ram",
        id,
        "whisper",
    )
    assert ended["reason"] == "given back"


@pytest.mark.timeout(90)
def test_the_loan_of_a_dead_holder_comes_back_and_its_command_ends(place: Place) -> None:
    """RES-14: kill -9 of the holder ends the loan within seconds; so does the end of a --pid, and a missed renewal."""
    place.config.write_text(LENT)
    daemon = place.up()
    forge = holder(place, "--memory", "100MB", "--", "sh", "-c", "echo $$; exec sleep 60")
    assert forge.stdout is not None
    command = int(forge.stdout.readline())
    forge.send_signal(signal.SIGKILL)
    forge.wait()
    wait_until(lambda: not daemon.status()["loans"])
    wait_until(lambda: not os.path.exists(f"/proc/{command}"), 5)
    forge.communicate()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        lent = place.run("maintenance", "start", "--memory", "100MB", "--pid", str(sleeper.pid))
        assert lent.returncode == 0, lent.stderr
        assert len(daemon.status()["loans"]) == 1
        sleeper.kill()
    wait_until(lambda: not daemon.status()["loans"])
    assert all("is gone" in event["reason"] for event in place.events("loan_end"))


@pytest.mark.timeout(90)
def test_a_loan_is_refused_with_its_reason_and_given_back_by_its_id(place: Place) -> None:
    """RES-14: the hint that ends a loan works when it is pasted; a model that answers does not leave for one."""
    place.config.write_text(LENT)
    daemon = place.up()
    wait_until(lambda: daemon.is_in("rock", "ready"))
    lent = place.run("maintenance", "start", "--memory", "200MB")
    hint = lent.stdout.strip().partition("give it back with: ")[2]
    assert hint.startswith("watchbill maintenance end --loan loan-")
    never = place.run("maintenance", "start", "--memory", "590MB", "--", "true")
    assert (never.returncode, "can never be lent" in never.stderr) == (1, True)
    stream = daemon.stream("busy", 40)
    stream.event()
    full = daemon.ask("/wb/v1/loans", {"memory": "350MB", "device": "ram"})
    assert (full[0], json.loads(full[2])["error"]["code"]) == (503, "no_memory")
    assert "cannot be lent now" in json.loads(full[2])["error"]["message"]
    stream.close()
    assert place.run(*hint.split()[1:]).stdout == "200 MB of ram is back\n"
    assert daemon.status()["loans"] == {}
    again = place.run(*hint.split()[1:])
    assert (again.returncode, "there is no such loan" in again.stderr) == (1, True)
    for wrong in (
        {},
        {"memory": "much"},
        {"memory": -1},
        {"memory": "1GB", "evict_idle": 1},
        {"memory": True},
    ):
        assert daemon.ask("/wb/v1/loans", wrong)[0] == 400
    assert place.run("maintenance", "start", "--memory", "lots").returncode == 2


@pytest.mark.timeout(90)
def test_an_idle_model_leaves_for_a_loan_and_the_memory_is_seen_in_use(place: Place) -> None:
    """RES-14: the grant comes when the idle model's memory is back; what the holder really uses is measured."""
    place.config.write_text("[policy]\nlinger = 0\n" + LENT)
    daemon = place.up()
    assert daemon.chat("idle")[0] == 200
    assert daemon.is_in("idle", "ready")
    kept = daemon.ask("/wb/v1/loans", {"memory": "300MB", "evict_idle": False})
    assert kept[0] == 503
    code = "import time; held = bytearray(200_000_000); print('held', flush=True); time.sleep(60)"
    task = holder(place, "--memory", "300MB", "--", sys.executable, "-c", code)
    assert task.stdout is not None
    assert task.stdout.readline() == "held\n"
    assert daemon.is_in("idle", "absent")
    [evicted] = [event for event in place.events("evict") if event["model"] == "idle"]
    assert "is lent" in evicted["reason"]
    wait_until(lambda: next(iter(daemon.status()["loans"].values()))["used"] >= 200_000_000)
    task.terminate()
    task.communicate()
