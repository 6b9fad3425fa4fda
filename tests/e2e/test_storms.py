"""A real daemon under storms of large requests: its memory afterwards is what it was before."""

import json
import platform
import socket

import psutil
import pytest

from e2e.place import Daemon, Place, scripted
from support.eventually import wait_until

MIB = 2**20
SIZE = 16 * MIB
STORM = 5
#: What a daemon may keep after a storm: caches, arenas of small objects. One body is as large.
KEPT = SIZE


def storm(daemon: Daemon, model: str, *, end: bytes = b'"}]}', sent: float = 1.0) -> None:
    """Sends large requests, whole or in part, and hears of no answer but the first bytes."""
    body = json.dumps({"model": model}).encode()[:-1] + b', "messages": [{"role": "user", "content": "'
    body += b"x" * SIZE + end
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(STORM):
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as client:
            client.sendall(head.encode() + body[: int(len(body) * sent)])
            if sent == 1.0:
                client.recv(1)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another allocator returns memory in its own time"
)
def test_memory_after_a_storm_is_what_it_was_before(place: Place) -> None:
    """LANE-08: refused, broken and abandoned requests leave nothing behind, over several storms."""
    place.config.write_text(scripted("a", "tokens = 2"))
    daemon = place.up()
    assert daemon.chat("a")[0] == 200
    process = psutil.Process(daemon.pid)

    def storms() -> None:
        storm(daemon, "nope")
        storm(daemon, "a", end=b'"')
        storm(daemon, "a", sent=0.6)
        storm(daemon, "a")

    storms()
    before = process.memory_info().rss
    for _ in range(2):
        storms()
    wait_until(lambda: process.memory_info().rss < before + KEPT)
