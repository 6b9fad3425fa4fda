"""One root, one config, one daemon at a time: what the end-to-end tests hold in their hands.

Everything is seen from outside: HTTP, exit codes, files, and /proc. Processes are found by a word that the test puts
into the daemon's environment and that everything below it inherits, so that nothing depends on the marks and records
of the code under test.
"""

import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from support.eventually import wait_until
from support.forked_commands import ForkedProcess, run_watchbill, start_watchbill
from watchbill.processes.registry import ROOT_MARK, root_id

__all__ = ["Daemon", "Place", "is_listening", "scripted"]

TESTS_MARK = "E2E_PLACE_OF_WATCHBILL"
#: Loaded cores: a Python process with its imports may take seconds to say its first word.
READY_S = 40.0
UP = ("up", "--port", "0")
REAL_UP = (sys.executable, "-m", "watchbill", *UP)
DOWN_S = 30.0


def scripted(name: str, script: str = "", rules: str = "") -> str:
    """The table of a scripted model that answers at once and holds next to nothing."""
    return f'[models.{name}]\nengine = "scripted"\nmemory = "30MB"\n{rules}\nscript = {{{script}}}\n'


def is_listening(port: int) -> bool:
    """Whether somebody takes connections on this port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Daemon:
    """A running `watchbill up`."""

    def __init__(
        self, process: "subprocess.Popen[str] | ForkedProcess", said: IO[str], complained: IO[str]
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.url = ""
        self.port = 0
        self._said, self._complained = said, complained

    @classmethod
    def at(cls, url: str) -> "Daemon":
        """A daemon that somebody else started: only asking is possible."""
        found = cls.__new__(cls)
        found.url, found.port = url, int(url.rpartition(":")[2])
        return found

    def wait_ready(self) -> None:
        """Waits for the ready line, which is the last of the start."""
        wait_until(lambda: "ready " in self.stdout or self.process.poll() is not None, READY_S)
        lines = self.stdout.splitlines()
        assert lines and lines[-1].startswith("ready http://"), (lines, self.stderr, self.process.poll())
        self.url = lines[-1].removeprefix("ready ")
        self.port = int(self.url.rpartition(":")[2])

    @property
    def stdout(self) -> str:
        return _read(self._said)

    @property
    def stderr(self) -> str:
        return _read(self._complained)

    # ------------------------------------------------------------------ asking

    def ask(
        self, path: str, body: object = None, *, method: str = "", headers: dict[str, str] | None = None,
        seconds: float = 60,
    ) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        """One request on a connection of its own: status, headers in small letters, body."""
        with self.connect(seconds) as connection:
            reply = self.send(connection, path, body, method=method, headers=headers)
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()

    def connect(self, seconds: float = 60) -> "Connection":
        return Connection("127.0.0.1", self.port, timeout=seconds)

    @staticmethod
    def send(
        connection: http.client.HTTPConnection, path: str, body: object = None, *, method: str = "",
        headers: dict[str, str] | None = None,
    ) -> http.client.HTTPResponse:  # fmt: skip
        """Sends a request and gives the answer when its headers are there."""
        content = None if body is None else json.dumps(body)
        every = {"Content-Type": "application/json"} if content is not None else {}
        connection.request(
            method or ("GET" if body is None else "POST"), path, content, every | (headers or {})
        )
        return connection.getresponse()

    def chat(
        self, model: str, tokens: int = 4, *, lane: str = "", seconds: float = 60
    ) -> tuple[int, dict[str, str], dict[str, Any]]:
        """A whole answer."""
        headers = {"X-Watchbill-Lane": lane} if lane else {}
        status, said, text = self.ask("/v1/chat/completions", chat_body(model, tokens), headers=headers,
                                      seconds=seconds)  # fmt: skip
        return status, said, json.loads(text)

    def stream(self, model: str, tokens: int) -> "Stream":
        """An answer that comes piece by piece."""
        connection = self.connect()
        body = chat_body(model, tokens) | {"stream": True}
        reply = self.send(connection, "/v1/chat/completions", body)
        assert reply.status == 200, (reply.status, reply.read(), self.stderr)
        return Stream(connection, reply)

    def status(self) -> dict[str, Any]:
        return json.loads(self.ask("/wb/v1/status")[2])

    def model(self, name: str) -> dict[str, Any]:
        return self.status()["models"][name]

    def is_in(self, name: str, state: str) -> bool:
        return self.model(name)["state"] == state

    # ------------------------------------------------------------------ ending

    def forget(self) -> None:
        """Lets go of its output."""
        self._said.close()
        self._complained.close()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = DOWN_S) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        """The polite end. Whatever it wrote to its screen must not contain a traceback."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        code = self.wait()
        assert "Traceback" not in self.stderr, self.stderr
        return code


class Connection(http.client.HTTPConnection):
    """An HTTP connection that `with` closes."""

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream:
    """A streamed answer that is being read."""

    def __init__(self, connection: Connection, reply: http.client.HTTPResponse) -> None:
        self.connection, self.reply = connection, reply
        self.status = reply.status

    def event(self) -> str:
        """The next event's data; empty at the end."""
        while line := self.reply.readline():
            if line.startswith(b"data: "):
                return line.removeprefix(b"data: ").decode().strip()
        return ""

    def rest(self) -> list[str]:
        """Everything that is still to come."""
        events: list[str] = []
        while event := self.event():
            events.append(event)
        self.close()
        return events

    def close(self) -> None:
        """Leaves at once."""
        self.reply.close()
        self.connection.close()


class Place:
    """A folder with a root and a config, and everything that was started in it."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.folder = folder
        self.root = folder / "root"
        self.config = folder / "watchbill.toml"
        if config:
            self.config.write_text(config)
        self.mark = secrets.token_hex(8)
        kept = {
            name: os.environ[name]
            for name in os.environ
            if name in {"PATH", "LANG", "PYTHONPATH"} or name.startswith("PIP_")
        }
        self.environment = kept | {
            "HOME": str(folder), "WATCHBILL_HOME": str(self.root), "PYTHONUTF8": "1", TESTS_MARK: self.mark,
        }  # fmt: skip
        self.daemons: list[Daemon] = []

    def move_root(self, root: Path) -> None:
        """The root is elsewhere, on a disk of its own; before the first daemon."""
        self.root = root
        self.environment["WATCHBILL_HOME"] = str(root)

    def run(self, *arguments: str, seconds: float = 90) -> "subprocess.CompletedProcess[str]":
        """Runs one command of the command line, without its imports, to its end."""
        return run_watchbill(*arguments, cwd=self.folder, env=self.environment, timeout=seconds)

    def begin(self, *arguments: str, command: Sequence[str] = REAL_UP) -> Daemon:
        """Starts the real program and does not wait for it. Its output goes to files: a full pipe would stop it."""
        said, complained = self._files()
        process = subprocess.Popen(
            [*command, *arguments], cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=complained, text=True,
        )  # fmt: skip
        return self._keep(Daemon(process, said, complained))

    def up(self, *arguments: str, port: int = 0) -> Daemon:
        """Starts the daemon, without its imports, and waits until it is ready."""
        said, complained = self._files()
        process = start_watchbill(
            "up",
            "--port",
            str(port),
            *arguments,
            cwd=self.folder,
            env=self.environment,
            stdout=said,
            stderr=complained,
        )
        daemon = self._keep(Daemon(process, said, complained))
        daemon.wait_ready()
        return daemon

    def _files(self) -> tuple[IO[str], IO[str]]:
        said, complained = (open(self.folder / f".{secrets.token_hex(4)}", "w+") for _ in range(2))  # noqa: SIM115
        return said, complained

    def _keep(self, daemon: Daemon) -> Daemon:
        self.daemons.append(daemon)
        return daemon

    # ------------------------------------------------------------------ what is there

    def pids(self) -> list[int]:
        """Every living process that was started in this place: daemon, guards, engines, commands."""
        return marked(f"{TESTS_MARK}={self.mark}")

    def leftovers(self) -> list[str]:
        """The processes that must not be there when no daemon runs: by the tests' mark, and by Watchbill's own."""
        ours = marked(f"{ROOT_MARK}={root_id(self.root)}") if self.root.exists() else []
        return [f"{pid}: {_command(pid)}" for pid in {*self.pids(), *ours}]

    def listeners(self) -> list[int]:
        """The ports on which the processes of this place, the daemon apart, take connections."""
        daemons = {daemon.pid for daemon in self.daemons}
        return [port for pid in self.pids() if pid not in daemons for port in _ports_of(pid)]

    def owner(self, port: int) -> int | None:
        """Whose port it is."""
        return next((pid for pid in self.pids() if port in _ports_of(pid)), None)

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The lines of the machine's journal, those of these events if any are named."""
        path = self.root / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [event for event in found if not names or event["event"] in names]

    def close(self) -> None:
        """Ends everything, hard where it must be, and shows that nothing is left."""
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                daemon.signal(signal.SIGTERM)
                daemon.signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.process.kill()
                daemon.wait(5)
        try:
            wait_until(lambda: not self.leftovers())
        finally:
            for pid in self.pids():
                os.kill(pid, signal.SIGKILL)
            for daemon in self.daemons:
                daemon.forget()


def chat_body(model: str, tokens: int) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Tell me."}], "max_tokens": tokens}


def marked(word: str) -> list[int]:
    """Living processes with this word in their environment."""
    wanted = word.encode()
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                words = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            except OSError:  # gone, or another user's
                continue
            if wanted in words:
                found.append(int(entry))
    return found


def gone(pids: Iterable[int]) -> bool:
    """Whether none of these processes lives any more."""
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def _ports_of(pid: int) -> Sequence[int]:
    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []
    return [s.laddr.port for s in sockets if s.status == psutil.CONN_LISTEN]


def _command(pid: int) -> str:
    try:
        return re.sub(r"\s+", " ", Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))[:200]
    except OSError:
        return "gone"


def _read(file: IO[str]) -> str:
    return os.pread(file.fileno(), 2**20, 0).decode("utf-8", "replace")
