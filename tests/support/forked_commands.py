"""`watchbill` without its imports: commands that are forked from a process which has imported it.

Most of what a command computes is the start of Python and its imports, half a second, and a whole run of the tests
starts many hundreds. `run_watchbill` and `start_watchbill` give what `subprocess` gives: a process with its own
arguments, environment, folder, streams and exit code. What is not tried this way is the start itself; so the tests of
terminals, of closed streams, of Ctrl-C and a part of those from end to end start the real program.
"""

import atexit
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from support import fork_server
from support.eventually import PATIENCE_S

__all__ = ["ForkedProcess", "run_watchbill", "start_watchbill"]

#: Python reads them not at all, or not for what a command does; the server itself sees to unbuffered streams.
_WITHOUT_EFFECT = {"PYTHON", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
#: A pipe takes so much before anybody reads.
_INPUT_MAX = 65_536
#: Room in the server's own environment, in which its children write theirs.
_ROOM = 32_768


class ForkedProcess:
    """A running command: what tests use of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], answers: socket.socket) -> None:
        self.args = [*arguments]
        self.returncode: int | None = None
        self._answers, self._read = answers, b""
        self.pid = 0
        self.pid = int(self._line(PATIENCE_S))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        self._answers.close()

    def _line(self, timeout: float | None) -> bytes:
        """What the server says next: first the process's pid, and at its end its exit code."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._read:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            part = self._answers.recv(64)
            assert part, "the fork server is gone"
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        return line


def start_watchbill(
    *arguments: str, env: Mapping[str, str], cwd: Path, stdin: int | None = None, stdout: IO[Any], stderr: IO[Any],
    in_new_session: bool = False,
) -> "ForkedProcess | subprocess.Popen[bytes]":  # fmt: skip
    """Starts a command and does not wait for it; without a descriptor for it, its standard input is /dev/null."""
    asked = {"arguments": arguments, "env": dict(env), "cwd": str(cwd), "in_new_session": in_new_session}
    message = json.dumps(asked).encode()
    with contextlib.ExitStack() as held:
        if stdin is None:
            stdin = os.open(os.devnull, os.O_RDONLY)
            held.callback(os.close, stdin)
        if not _can_fork(env) or len(message) > fork_server.MESSAGE_MAX:
            return subprocess.Popen(
                [sys.executable, "-m", "watchbill", *arguments], env=env, cwd=cwd, stdin=stdin, stdout=stdout,
                stderr=stderr, start_new_session=in_new_session,
            )  # fmt: skip
        answers, theirs = socket.socketpair()
        held.enter_context(theirs)
        files = [stdin, stdout.fileno(), stderr.fileno(), theirs.fileno()]
        socket.send_fds(_control(), [message], files)
        theirs.close()
        return ForkedProcess(arguments, answers)


def run_watchbill(
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path,
    input: str | None = None,
    timeout: float = 4 * PATIENCE_S,
) -> "subprocess.CompletedProcess[str]":
    """Runs one command of the command line to its end; without an input its standard input is /dev/null."""
    given = None if input is None else input.encode()
    if not _can_fork(env) or len(given or b"") > _INPUT_MAX:
        return subprocess.run(
            [sys.executable, "-m", "watchbill", *arguments], env=env, cwd=cwd, input=input, text=True, check=False,
            stdin=subprocess.DEVNULL if input is None else None, capture_output=True, timeout=timeout,
        )  # fmt: skip
    with contextlib.ExitStack() as held:
        stdin = None if given is None else _pipe_with(given)
        if stdin is not None:
            held.callback(os.close, stdin)
        stdout, stderr = (held.enter_context(open(os.memfd_create(name), "w+")) for name in ("out", "err"))
        process = start_watchbill(*arguments, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        for written in (stdout, stderr):
            written.seek(0)
        return subprocess.CompletedProcess([*arguments], code, stdout.read(), stderr.read())


def _pipe_with(content: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


def _can_fork(env: Mapping[str, str]) -> bool:
    """Whether a child of the server is what a child of this process would be."""
    return _of_the_start(env) == _of_the_start(_environment()) and _inherited() == _AT_FIRST


def _inherited() -> tuple[object, ...]:
    """What every child has from its parent: its limits, its user, its mask for new files."""
    mask = re.search(r"^Umask:.*", Path("/proc/self/status").read_text(), re.MULTILINE)
    return Path("/proc/self/limits").read_text(), os.geteuid(), os.getegid(), mask and mask[0]


_AT_FIRST = _inherited()


def _of_the_start(env: Mapping[str, str]) -> dict[str, str]:
    """What Python reads before the first line of a program: only what starts with the same can be forked.

    The locale is not part of it: in UTF-8 mode Python does not ask for it.
    """
    return {
        name: value
        for name, value in env.items()
        if name.startswith("PYTHON") and name not in _WITHOUT_EFFECT
    }


def _environment() -> dict[str, str]:
    """What the server is started with."""
    return {"PATH": os.environ.get("PATH", os.defpath), "PYTHONUTF8": "1"}


_servers: dict[int, socket.socket] = {}


def _control() -> socket.socket:
    """The connection to the server of this process, which starts with the first command."""
    ours = os.getpid()
    if ours not in _servers:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            server = subprocess.Popen(
                [sys.executable, fork_server.__file__, str(far.fileno())], pass_fds=[far.fileno()],
                stdin=subprocess.DEVNULL, env=_environment() | {"ROOM": "-" * _ROOM},
                start_new_session=True,  # a Ctrl-C at the tests' terminal is for the tests, and they end the server
            )  # fmt: skip
        atexit.register(_end, server, near)
        _servers[ours] = near
    return _servers[ours]


def _end(server: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    control.close()
    server.wait(PATIENCE_S)
