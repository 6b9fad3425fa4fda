"""The program behind `forked_commands`: imports Watchbill once, and forks for each command that it is sent.

A child leaves the server's loop, runs the command and ends as every Python program does: exceptions are shown, threads
waited for, `atexit` is run, streams are flushed.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["MESSAGE_MAX"]

#: A message is one packet: arguments and environment.
MESSAGE_MAX = 100_000


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Forks for each message until nobody can send one any more; in a child, returns what it is to do."""
    polling = select.poll()
    polling.register(control, select.POLLIN)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready, _ in polling.poll():
            if ready != control.fileno():
                polling.unregister(ready)
                pid, answers = children.pop(ready)
                os.close(ready)
                _, status = os.waitpid(pid, 0)
                with answers, contextlib.suppress(OSError):  # whoever asked waits no more
                    answers.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                continue
            message, files, _, _ = socket.recv_fds(control, MESSAGE_MAX, 4)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                for other, (_, theirs) in children.items():
                    os.close(other)
                    theirs.close()
                control.close()
                return {**json.loads(message), "files": files}
            answers = socket.socket(fileno=files.pop())
            for file in files:
                os.close(file)
            answers.sendall(b"%d\n" % pid)
            watched = os.pidfd_open(pid)
            children[watched] = (pid, answers)
            polling.register(watched, select.POLLIN)


def _become(asked: dict[str, Any], program: str) -> None:
    """Takes over what a new process has of its own: streams, folder, environment, arguments."""
    *streams, answers = asked["files"]
    os.close(answers)
    if asked["in_new_session"]:
        os.setsid()
    for wanted, file in enumerate(streams):
        os.dup2(file, wanted)
        os.close(file)
    # Open to the end, as Python's own.
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    if asked["env"].get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    _show_environment(asked["env"])
    time.tzset()
    sys.path[0] = os.getcwd()  # as `python -m` has it
    sys.argv[:] = [program, *asked["arguments"]]
    sys.orig_argv[:] = [sys.executable, "-m", "watchbill", *asked["arguments"]]


def _show_environment(env: Mapping[str, str]) -> None:
    """Writes the environment to where /proc/PID/environ reads it: processes are found by it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    text = b"\0".join(os.fsencode(f"{name}={value}") for name, value in env.items())
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def _import_commands() -> str:
    """Imports what the commands do, and the libraries that they import late; returns the path of the way in."""
    import rich.markdown  # noqa: F401
    import yaml  # noqa: F401

    import watchbill.__main__
    import watchbill.cli
    import watchbill.daemon.main

    for module in pkgutil.iter_modules(watchbill.cli.__path__, "watchbill.cli."):
        importlib.import_module(module.name)
    return str(watchbill.__main__.__file__)


def _end(leaving: BaseException | None) -> None:
    """Ends the process as Python does, but for the modules: to take apart what the server imported takes long."""
    code = getattr(leaving, "code", 1) if leaving else 0
    if leaving and not isinstance(leaving, SystemExit):
        sys.excepthook(type(leaving), leaving, leaving.__traceback__)
    elif code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120  # Python's own
    os._exit(code or 0)


if __name__ == "__main__":
    program = _import_commands()
    gc.freeze()  # a collection would copy every page that the children share
    if asked := _serve(socket.socket(fileno=int(sys.argv[1]))):
        _become(asked, program)
        from watchbill.__main__ import main

        ended: BaseException | None = None
        try:
            main()
        except BaseException as error:  # noqa: BLE001  Python itself tells of it
            ended = error
        _end(ended)
