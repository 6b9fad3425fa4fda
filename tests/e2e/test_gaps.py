"""A real daemon whose engine answers without pause: how long others wait meanwhile, seen by another process.

`pytest -s` prints the longest wait of each storm. On a machine with nothing else to do it is below 50 ms. A busy one
lets the daemon itself wait for a core, so the bound here is wide, is for nine waits of ten, and counts only the part
of a wait in which the daemon had a core. Without shares of the event loop nearly every wait is a second or more.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.place import Daemon, Place

PROGRAMS = Path(__file__).parent / "programs"
STORMS = ["words", "tools", "comments", "blanks", "line", "bytes", "headers", "extension", "brackets"]
DOORS = ["/v1/chat/completions", "/api/chat", "/v1/messages"]
STORM_S = 0.4
WAIT_MS_MAX = 500.0


@contextlib.contextmanager
def program(name: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A program that ends with its standard input."""
    command = [sys.executable, str(PROGRAMS / name), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def stormy(shared_place: Place) -> Iterator[Daemon]:
    """A daemon in front of the hostile engine."""
    with program("hostile_engine.py") as engine:
        assert engine.stdout is not None
        port = engine.stdout.readline().strip()
        shared_place.config.write_text(
            f'[engines.hostile]\ndriver = "remote"\nurl = "http://127.0.0.1:{port}"\n'
            '[models.storm]\nengine = "hostile"\nconcurrency = 8\n'
        )
        yield shared_place.up()


def ask(daemon: Daemon, path: str, storm: str, *, stream: bool) -> None:
    """Asks for a storm, takes what comes of it for a while, and leaves."""
    said = [{"role": "user", "content": f"storm {storm}"}]
    body = json.dumps({"model": "storm", "messages": said, "max_tokens": 9, "stream": stream}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    end = time.monotonic() + STORM_S
    with socket.create_connection(("127.0.0.1", daemon.port)) as client, contextlib.suppress(TimeoutError):
        client.sendall(head + body)
        while (left := end - time.monotonic()) > 0:
            client.settimeout(left)
            if not client.recv(2**18):
                return


class Core:
    """How much of the time in which a process wanted a core it had one, since this was made."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/schedstat")
        self._before = self._read()

    def share(self) -> float:
        """1 on a machine with nothing else to do."""
        ran, waited = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return ran / (ran + waited) if ran + waited else 1.0

    def _read(self) -> tuple[int, int]:
        ran, waited, _ = self._path.read_text().split()
        return int(ran), int(waited)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize("storm", STORMS)
def test_others_are_answered_while_an_engine_storms(
    stormy: Daemon, storm: str, path: str, stream: bool
) -> None:
    """R34: whatever it sends, and whatever is made of it."""
    with program("probe_health.py", str(stormy.port)) as probing:
        assert probing.stdout is not None and probing.stdout.readline() == "begun\n"
        core = Core(stormy.pid)
        ask(stormy, path, storm, stream=stream)
        told, _ = probing.communicate("", timeout=60)
    waited = json.loads(told)
    share = core.share()
    print(f"{storm} {path} stream={stream}: {waited}, {share:.0%} of a core")
    assert waited["p90_ms"] * share < WAIT_MS_MAX
