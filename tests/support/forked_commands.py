"""`watchbill` without its imports: commands that are forked from a process which has imported it.

Most of what a command computes is the start of Python and its imports, half a second, and a whole run of the tests
starts many hundreds. `run_watchbill` gives what `subprocess.run` gives: a process of its own with its own arguments,
environment, folder, streams and exit code. What is not tried this way is the start itself; so the tests of end to end,
of terminals, of closed streams and of Ctrl-C start the real program.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from support import fork_server
from support.eventually import PATIENCE_S

__all__ = ["run_watchbill"]

#: Python reads them not at all, or for nothing that a command in UTF-8 mode does otherwise.
_WITHOUT_EFFECT = {"PYTHON", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE"}
#: A pipe takes so much before anybody reads.
_INPUT_MAX = 65_536
#: Room in the server's own environment, in which its children write theirs.
_ROOM = 32_768


def run_watchbill(
    *arguments: str,
    env: Mapping[str, str],
    cwd: Path,
    input: str | None = None,
    timeout: float = 4 * PATIENCE_S,
) -> "subprocess.CompletedProcess[str]":
    """Runs one command of the command line to its end; without an input its standard input is /dev/null."""
    message = json.dumps({"arguments": arguments, "env": dict(env), "cwd": str(cwd)}).encode()
    given = None if input is None else input.encode()
    if (
        _of_the_start(env) != _of_the_start(_environment())
        or len(message) > fork_server.MESSAGE_MAX
        or len(given or b"") > _INPUT_MAX
    ):
        return subprocess.run(
            [sys.executable, "-m", "watchbill", *arguments], env=env, cwd=cwd, input=input, text=True, check=False,
            stdin=subprocess.DEVNULL if input is None else None, capture_output=True, timeout=timeout,
        )  # fmt: skip
    with contextlib.ExitStack() as held:
        stdin = os.open(os.devnull, os.O_RDONLY) if given is None else _pipe_with(given)
        held.callback(os.close, stdin)
        stdout, stderr = (held.enter_context(open(os.memfd_create(name), "w+")) for name in ("out", "err"))
        answers, theirs = map(held.enter_context, socket.socketpair())
        files = [stdin, stdout.fileno(), stderr.fileno(), theirs.fileno()]
        socket.send_fds(_control(), [message], files)
        theirs.close()
        code = _wait(answers, timeout, arguments)
        for written in (stdout, stderr):
            written.seek(0)
        return subprocess.CompletedProcess([*arguments], code, stdout.read(), stderr.read())


def _pipe_with(content: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


def _wait(answers: socket.socket, timeout: float, arguments: tuple[str, ...]) -> int:
    """Reads the process's pid, and at its end its exit code."""
    deadline = time.monotonic() + timeout
    read = b""
    while read.count(b"\n") < 2:
        answers.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            part = answers.recv(64)
        except TimeoutError:
            if b"\n" in read:
                os.kill(int(read.split(b"\n")[0]), signal.SIGKILL)
            raise subprocess.TimeoutExpired([*arguments], timeout) from None
        assert part, "the fork server is gone"
        read += part
    return int(read.split(b"\n")[1])


def _of_the_start(env: Mapping[str, str]) -> dict[str, str]:
    """What Python reads before the first line of a program: only what starts with the same can be forked."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(("PYTHON", "LANG", "LC_")) and name not in _WITHOUT_EFFECT
    }


def _environment() -> dict[str, str]:
    """What the server is started with."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return kept | {"PYTHONUTF8": "1"}


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
