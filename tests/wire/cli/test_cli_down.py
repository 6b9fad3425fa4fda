"""`down`: the right process, gently or at once, or a clear word that there is none."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchbill.files.host import boot_id, start_time
from watchbill.root import Root

#: A process with a daemon's record that counts the SIGTERMs it needs.
DAEMON = """
import signal, sys, time
from pathlib import Path
from watchbill.root import Root
left = int(sys.argv[2])
def term(*_):
    global left
    left -= 1
    print("term", flush=True)
    if left <= 0:
        sys.exit(0)
signal.signal(signal.SIGTERM, term)
root = Root(Path(sys.argv[1]))
root.create()
root.write_daemon("http://127.0.0.1:1")
print("up", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def start(alone) -> Iterator:
    started: list[subprocess.Popen[str]] = []

    def start_one(terms_needed: int) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", DAEMON, str(alone.home / "root"), str(terms_needed)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def test_nothing_to_stop_is_said_clearly(alone):
    """pitfalls: exit code 3 means no daemon."""
    done = alone("down")
    assert (done.returncode, done.stdout) == (3, "")
    told = f"watchbill: no daemon runs on {alone.home / 'root'}; start one with: {alone.hint('up')}\n"
    assert done.stderr == told


def test_down_asks_once_and_waits_until_the_daemon_is_gone(alone, start):
    process = start(1)
    done = alone("down")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"stopped the daemon (pid {process.pid})" in done.stderr
    assert process.wait(5) == 0
    assert process.stdout.read() == "term\n"
    assert alone("down").returncode == 3


def test_down_now_asks_until_it_is_heard(alone, start):
    """pitfalls: SIGTERM drains, a second one exits now. Two at once would melt into one."""
    process = start(2)
    assert alone("down", "--now", "--quiet").returncode == 0
    assert process.wait(5) == 0


def test_down_shows_progress_to_a_person(alone, start):
    start(2)
    screen = alone.on_terminal("down")
    screen.see("stopping the daemon")
    assert alone("down", "--now").returncode == 0
    assert screen.end() == 0


def test_a_stranger_with_the_daemons_old_pid_is_left_alone(alone, tmp_path: Path):
    """Pids are used again: pid, start time and boot id must all agree."""
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        root = Root(tmp_path / "root")
        root.create()
        began = start_time(stranger.pid)
        assert began is not None
        for differs in ({"start_time": began - 1}, {"boot_id": "an earlier boot"}):
            record = {
                "pid": stranger.pid,
                "start_time": began,
                "boot_id": boot_id(),
                "url": "",
                "version": "",
            }
            root.daemon_file.write_text(json.dumps(record | differs))
            assert alone("down").returncode == 3
            assert alone("down", "--now").returncode == 3
            assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")
