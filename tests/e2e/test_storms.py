"""A real daemon under storms of large requests: its memory afterwards is what it was before."""

import http.client
import json
import platform
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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


VECTOR = b"[" + b"0.012345678," * 1_000 + b"1]"
ROW = b'{"object":"embedding","index":0,"embedding":%b},' % VECTOR
LARGE = (
    b'{"object":"list","data":[' + ROW * (32 * 2**20 // len(ROW)) + ROW[:-1] + b'],"choices":[],"usage":{}}'
)


class LargeAnswers(BaseHTTPRequestHandler):
    """An engine whose every answer is large."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(LARGE)))
        self.end_headers()
        with suppress(OSError):  # the daemon's caller may have left
            self.wfile.write(LARGE)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="another allocator returns memory in its own time"
)
def test_memory_after_large_answers_is_what_it_was_before(place: Place) -> None:
    """LANE-08: read to their end, or left in the middle; they came in thousands of small pieces."""
    asked: dict[str, dict[str, object]] = {
        "/v1/embeddings": {"model": "far", "input": "x"},
        "/api/embed": {"model": "far", "input": "x"},
        "/v1/chat/completions": {"model": "far", "messages": [{"role": "user", "content": "x"}]},
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), LargeAnswers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        far = f'[engines.far]\ndriver = "remote"\nurl = "http://127.0.0.1:{server.server_port}"\n'
        place.config.write_text(scripted("a", "tokens = 2") + f'{far}[models.far]\nengine = "far"\n')
        daemon = place.up()
        assert daemon.chat("a")[0] == 200
        process = psutil.Process(daemon.pid)
        before = process.memory_info().rss
        for path, body in asked.items():
            for bytes_read in (len(LARGE) * 2, 10_000):
                client = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
                client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = client.getresponse()
                assert answer.status == 200 and len(answer.read(bytes_read)) >= 10_000
                client.close()
        wait_until(lambda: process.memory_info().rss < before + KEPT)
        server.shutdown()
