"""The command line and the daemon together: started, asked, stopped, as a person would."""

import json
import subprocess
import sys
import time

import pytest

from e2e.place import Place, scripted

CONFIG = scripted("alpha", 'load = "300ms", service = "50ms", memory = "20MB"') + scripted("beta")


def test_a_daemon_is_started_asked_and_stopped(place: Place) -> None:
    """design 9: up, status, models, chat, load, evict, explain, requests, doctor, down."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    status = json.loads(place.run("status", "--json").stdout)
    assert set(status) >= {"devices", "models", "lanes"}
    assert status["models"]["alpha"]["state"] == "absent"

    loaded = place.run("load", "alpha")
    assert loaded.returncode == 0, loaded.stderr
    assert daemon.is_in("alpha", "ready")
    assert "● ready" in place.run("status").stdout
    answer = place.run("chat", "Why is the sky blue?")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()
    assert "alpha" in place.run("models").stdout
    assert place.run("explain", "beta").returncode == 0
    assert place.run("requests").stdout == "no open requests\n"
    doctor = place.run("doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert place.run("evict", "alpha").returncode == 0
    assert daemon.is_in("alpha", "absent")

    assert place.run("down").returncode == 0
    assert daemon.wait() == 0
    gone = place.run("status")
    assert gone.returncode == 3
    assert f"watchbill --root {place.root} up" in gone.stderr


def test_an_unknown_model_is_one_clear_line(place: Place) -> None:
    """design 9: wrong input is one line on standard error and exit 1."""
    place.config.write_text(CONFIG)
    place.up()
    for command in (("load", "nix"), ("evict", "nix"), ("explain", "nix"), ("chat", "x", "-m", "nix")):
        done = place.run(*command)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert done.stderr.startswith("watchbill: ")
        assert "nix" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_detached_daemon_is_ready_when_the_command_returns(place: Place) -> None:
    """pitfalls: up --detach and down; a second one is sent away; what cannot start says why."""
    place.config.write_text("[modles.a]\n")
    failed = place.run("up", "--detach", "--port", "0")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "modles" in failed.stderr
    assert "Traceback" not in failed.stderr

    place.config.write_text(CONFIG)
    up = place.run("up", "--detach", "--port", "0")
    assert up.returncode == 0, up.stderr
    url = up.stdout.removeprefix("ready ").strip()
    assert up.stdout == f"ready {url}\n"
    record = json.loads((place.root / "run" / "daemon.json").read_text())
    assert record["url"] == url
    assert place.run("status").returncode == 0
    assert "ready" in place.run("logs").stdout
    second = place.run("up", "--detach", "--port", "0")
    assert second.returncode == 2
    assert url in second.stderr and str(record["pid"]) in second.stderr
    assert "belongs to" not in place.run("logs").stdout, "the log is that of the first"

    assert place.run("down").returncode == 0
    assert not (place.root / "run" / "daemon.json").exists()
    assert place.leftovers() == []
    assert place.run("down").returncode == 3


def test_events_follow_a_load(place: Place) -> None:
    """RES-26: every load and eviction with its reason."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    with subprocess.Popen(
        [sys.executable, "-m", "watchbill", "events", "--json"], cwd=place.folder, env=place.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as following:  # fmt: skip
        try:
            assert "following" in following.stderr.readline()
            assert daemon.chat("alpha")[0] == 200
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                event = json.loads(following.stdout.readline())
                assert event["reason"]
                if (event["event"], event["model"]) == ("loaded", "alpha"):
                    return
            pytest.fail("no event about alpha")
        finally:
            following.kill()
