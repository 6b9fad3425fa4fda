"""The real command against a small real server that speaks the documented API."""

import fcntl
import json
import os
import pty
import select
import shlex
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.forked_commands import run_watchbill

GB = 10**9
STATUS: dict[str, object] = {
    "devices": {
        "ram": {
            "capacity": 24 * GB, "reserve": 2 * GB, "budget": 22 * GB, "available": 15 * GB,
            "used": 5 * GB, "loading": 2 * GB, "stopping": GB // 10,
        },
    },
    "models": {
        "smollm2": {
            "state": "ready", "memory": 200_000_000, "measured": 210_000_000, "in_flight": 1, "queued": 3,
            "loads": 12, "evictions": 11, "pid": 4711, "reason": None,
        },
        "lab/Qwen2.5-14B-Instruct-GGUF:Q4_K_M": {
            "state": "loading", "memory": 9 * GB, "measured": None, "in_flight": 0, "queued": 3, "loads": 1,
            "evictions": 0, "pid": 4712, "reason": "3 requests wait for it, the oldest for 4.2 s; "
            "room was made by evicting two models that nobody had asked for in the last minute",
        },
        "broken": {
            "state": "failed", "memory": 9 * GB, "measured": None, "in_flight": 0, "queued": 0, "loads": 0,
            "evictions": 0, "pid": None, "reason": "/models/broken.gguf: no such file",
        },
    },
    "lanes": {
        "default": {"queued": 6, "running": 1, "oldest_wait_ms": 4200},
        "night": {"queued": 0, "running": 0, "oldest_wait_ms": None},
    },
}  # fmt: skip

MODELS = {
    "object": "list",
    "data": [
        {"id": "broken", "object": "model", "status": {"value": "failed"}, "meta": {"n_ctx": 8192}},
        {
            "id": "smollm2", "object": "model", "status": {"value": "loaded"}, "meta": {"n_ctx": 2048},
            "aliases": ["tiny", "small"],
        },
    ],
}  # fmt: skip


@dataclass
class Heard:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> object:
        return json.loads(self.body)


class Line:
    """The server's end of one open answer, for tests that write it piece by piece."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._handler = handler

    def open(self, content_type: str = "text/event-stream") -> None:
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", content_type)
        self._handler.send_header("Connection", "close")
        self._handler.end_headers()

    def say(self, text: str) -> None:
        self._handler.wfile.write(text.encode())
        self._handler.wfile.flush()

    def is_left(self, within_s: float = 10.0) -> bool:
        """Whether the client hangs up."""
        self._handler.connection.settimeout(within_s)
        try:
            return self._handler.connection.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


Answer = tuple[int, object] | Callable[[Line], None]


@dataclass
class StandIn:
    """A server that answers what it is told to, and remembers what it heard."""

    url: str
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)


def serve(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stand_in.heard.append(Heard(self.command, self.path, dict(self.headers.items()), body))
            missing = (404, {"error": {"message": f"nothing at {self.path}", "code": "not_found"}})
            answer = stand_in.answers.get((self.command, self.path), missing)
            if callable(answer):
                answer(Line(self))
                self.close_connection = True
                return
            status, value = answer
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    return Handler


@pytest.fixture
def daemon() -> Iterator[StandIn]:
    stand_in = StandIn("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), serve(stand_in))
    server.daemon_threads = True
    server.handle_error = lambda request, client_address: None  # clients of these tests hang up on purpose
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    stand_in.answers = {
        ("GET", "/wb/v1/status"): (200, STATUS),
        ("GET", "/v1/models"): (200, MODELS),
        ("GET", "/ready"): (200, {}),
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stand_in
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Command:
    """How tests run `watchbill`, in a surrounding of its own."""

    home: Path
    url: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    screens: list["OnTerminal"] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "LC_ALL"}}
        # Beside this Python lies the command itself: hints then call it by its name.
        inherited["PATH"] = f"{Path(sys.executable).parent}:{inherited.get('PATH', os.defpath)}"
        given = {
            "HOME": str(self.home),
            "WATCHBILL_HOME": str(self.home / "root"),
            "PYTHONUTF8": "1",
            "TERM": "xterm",
        }
        if self.url:
            given["WATCHBILL_URL"] = self.url
        return inherited | given | self.settings

    def hint(self, *words: str) -> str:
        """How a hint names a command that is to work in another terminal, too."""
        return shlex.join(["watchbill", "--root", self.environment["WATCHBILL_HOME"], *words])

    def __call__(self, *arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        return run_watchbill(*arguments, env=self.environment, cwd=self.home, input=stdin, timeout=30)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Starts the command with pipes, to be read while it runs."""
        return subprocess.Popen(
            [sys.executable, "-m", "watchbill", *arguments],
            env=self.environment, cwd=self.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def start_with(self, stdin: int, *arguments: str) -> "subprocess.Popen[bytes]":
        """Starts the command with this descriptor as its standard input."""
        return subprocess.Popen(
            [sys.executable, "-m", "watchbill", *arguments],
            env=self.environment, cwd=self.home, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def start_python(self, program: str) -> "subprocess.Popen[bytes]":
        """Starts a Python program in the same surrounding."""
        return subprocess.Popen(
            [sys.executable, "-c", program],
            env=self.environment, cwd=self.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def on_terminal(self, *arguments: str) -> "OnTerminal":
        """Starts the command on a terminal of 80 columns."""
        screen = OnTerminal([sys.executable, "-m", "watchbill", *arguments], self.environment, self.home)
        self.screens.append(screen)
        return screen

    def close(self) -> None:
        for screen in self.screens:
            screen.close()


class OnTerminal:
    """A command that believes a person sits in front of it."""

    def __init__(self, argv: list[str], environment: dict[str, str], cwd: Path) -> None:
        self.seen = ""
        self._hand, theirs = pty.openpty()
        self.process = subprocess.Popen(
            argv, env=environment | {"COLUMNS": "80"}, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=_take_terminal,  # noqa: PLW1509 - one system call, no locks
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._hand, text.encode())

    def see(self, text: str, within_s: float = 20.0) -> str:
        """Waits until the text was shown since the last call of `forget`; gives all that was."""
        deadline = time.monotonic() + within_s
        while text not in self.seen:
            assert self._read(deadline), f"ended without {text!r}: {self.seen!r}"
        return self.seen

    def forget(self) -> None:
        self.seen = ""

    def end(self, within_s: float = 20.0) -> int:
        """Waits for the end; gives the exit code."""
        deadline = time.monotonic() + within_s
        while self._read(deadline):
            pass
        return self.process.wait(within_s)

    def leave(self, within_s: float = 20.0) -> int:
        """Presses Ctrl-C at the prompt until the program ends; gives the exit code.

        Python's readline misses a signal that comes between showing the prompt and waiting for a key; people are
        not that fast, and press again."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.type("\x03")
            select.select([self._hand], [], [], 0.2)
        return self.end(within_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._hand)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._hand], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more came after {self.seen!r}"
        try:
            piece = os.read(self._hand, 65536)
        except OSError:  # EIO: the last one at the other end has left
            return False
        self.seen += piece.decode("utf-8", "replace")
        return bool(piece)


def _take_terminal() -> None:
    """Makes the pty the terminal of the new session, so that ^C typed into it becomes SIGINT."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def watchbill(tmp_path: Path, daemon: StandIn) -> Iterator[Command]:
    """The command, pointed at the stand-in daemon."""
    command = Command(tmp_path, daemon.url)
    yield command
    command.close()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Command]:
    """The command where no daemon runs."""
    command = Command(tmp_path)
    yield command
    command.close()
