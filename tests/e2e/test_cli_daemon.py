"""The command line and the daemon together: started, asked, stopped, as a person would."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CONFIG = """
[devices.ram]
capacity = "8GB"
reserve = "100MB"

[models.alpha]
engine = "scripted"
memory = "40MB"
script = {load = "300ms", service = "50ms", memory = "20MB"}

[models.beta]
engine = "scripted"
memory = "40MB"
script = {load = "300ms", service = "50ms", memory = "20MB"}
"""


class House:
    """One root with a config, and commands that are run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        (folder / "watchbill.toml").write_text(CONFIG)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environment = kept | {"HOME": str(folder), "WATCHBILL_HOME": str(self.root), "PYTHONUTF8": "1"}
        self.started: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "watchbill.cli", *arguments], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def up(self, *arguments: str) -> "subprocess.Popen[str]":
        """Starts the daemon in the foreground of its own and waits for its ready line."""
        daemon = subprocess.Popen(
            [sys.executable, "-m", "watchbill.cli", "up", "--port", "0", *arguments], cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self.started.append(daemon)
        assert daemon.stdout is not None
        line = daemon.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:"), (line, daemon.stderr and daemon.stderr.read())
        return daemon

    def close(self) -> None:
        self.run("down", "--now")
        for daemon in self.started:
            if daemon.poll() is None:
                daemon.kill()
            daemon.communicate()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def test_a_daemon_is_started_asked_and_stopped(house):
    """design 9: up, status, models, chat, load, evict, explain, requests, logs, down."""
    daemon = house.up()
    status = json.loads(house.run("status", "--json").stdout)
    assert set(status) >= {"devices", "models", "lanes"}
    assert set(status["models"]) == {"alpha", "beta"}
    assert status["models"]["alpha"]["state"] == "absent"

    loaded = house.run("load", "alpha")
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(house.run("status", "--json").stdout)["models"]["alpha"]["state"] == "ready"
    assert "● ready" in house.run("status").stdout

    answer = house.run("chat", "Why is the sky blue?")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()

    assert "alpha" in house.run("models").stdout
    assert house.run("explain", "beta").returncode == 0
    assert house.run("requests").stdout == "no open requests\n"
    assert house.run("doctor").returncode == 0, house.run("doctor").stdout

    evicted = house.run("evict", "alpha")
    assert evicted.returncode == 0, evicted.stderr
    assert json.loads(house.run("status", "--json").stdout)["models"]["alpha"]["state"] == "absent"

    assert house.run("down").returncode == 0
    assert daemon.wait(30) == 0
    gone = house.run("status")
    assert gone.returncode == 3
    assert "watchbill up" in gone.stderr


@pytest.mark.parametrize(
    "command", [("load", "nix"), ("evict", "nix"), ("explain", "nix"), ("chat", "x", "-m", "nix")]
)
def test_an_unknown_model_is_one_clear_line(house, command):
    house.up()
    done = house.run(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("watchbill: ")
    assert done.stderr.count("\n") == 1


def test_a_detached_daemon_is_ready_when_the_command_returns(house):
    """pitfalls: up --detach and down; a second daemon prints pid and address of the first and exits 2."""
    up = house.run("up", "--detach", "--port", "0")
    assert up.returncode == 0, up.stderr
    url = up.stdout.removeprefix("ready ").strip()
    assert up.stdout == f"ready {url}\n"
    record = json.loads((house.root / "run" / "daemon.json").read_text())
    assert record["url"] == url
    assert house.run("status").returncode == 0
    assert "ready" in house.run("logs").stdout

    second = house.run("up", "--port", "0")
    assert second.returncode == 2
    assert str(record["pid"]) in second.stderr
    assert url in second.stderr
    detached = house.run("up", "--detach", "--port", "0")
    assert detached.returncode == 2
    assert url in detached.stderr

    assert house.run("down").returncode == 0
    assert not (house.root / "run" / "daemon.json").exists()
    assert house.run("down").returncode == 3


def test_a_detached_daemon_that_cannot_start_says_why(house):
    (house.folder / "watchbill.toml").write_text("[modles.a]\n")
    failed = house.run("up", "--detach", "--port", "0")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "modles" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_ctrl_c_ends_the_daemon_and_its_engines(house):
    """Ctrl-C stops everything, cleanly, children included."""
    daemon = house.up()
    house.run("load", "alpha")
    pid = json.loads(house.run("status", "--json").stdout)["models"]["alpha"]["pid"]
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(30) in {0, 130}
    assert "Traceback" not in daemon.stderr.read()
    if pid:
        assert not Path(f"/proc/{pid}").exists()


def test_a_changed_config_is_taken_over_or_refused_whole(house):
    """pitfalls: `config reload`; validated whole, then applied or refused with the errors."""
    house.up()
    config = house.folder / "watchbill.toml"
    config.write_text(CONFIG.replace("models.beta", "models.gamma"))
    assert house.run("config", "reload").returncode == 0
    assert set(json.loads(house.run("status", "--json").stdout)["models"]) == {"alpha", "gamma"}
    config.write_text(CONFIG + "[modles.x]\n")
    refused = house.run("config", "reload")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "modles" in refused.stderr
    assert set(json.loads(house.run("status", "--json").stdout)["models"]) == {"alpha", "gamma"}


def test_events_follow_a_load(house):
    """RES-26: every load and eviction with its reason."""
    house.up()
    following = subprocess.Popen(
        [sys.executable, "-m", "watchbill.cli", "events", "--json"], cwd=house.folder, env=house.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    house.started.append(following)
    assert "following" in following.stderr.readline()
    house.run("load", "alpha")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        event = json.loads(following.stdout.readline())
        assert event["reason"]
        if event["model"] == "alpha":
            return
    pytest.fail("no event about alpha")
