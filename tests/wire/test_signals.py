"""Signals: a daemon that is told to leave leaves, whatever its event loop hangs in."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

LOOPS = {"asyncio": "asyncio.new_event_loop", "uvloop": "uvloop.new_event_loop"}


class Program:
    """A process with Signals in its event loop, and what it prints."""

    def __init__(self, loop: str, body: str, *, before: str = "") -> None:
        text = f"""
import asyncio, sys, threading, time
from watchbill.processes import Signals
{"import uvloop" if loop == "uvloop" else ""}

def say(*words):
    print(*words, flush=True)

{before}

async def main():
    stopped = asyncio.Event()
    signals = Signals(lambda code: (say("stop", code), stopped.set()), lambda: say("reload"), now_ms=500)
    say("ready")
{textwrap.indent(textwrap.dedent(body), "    ")}

with asyncio.Runner(loop_factory={LOOPS[loop]}) as runner:
    runner.run(main())
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        _, complaints = self.process.communicate(timeout=40)
        return self.process.returncode, complaints


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop", reason="needs the extra watchbill[fast]")
    return request.param


def test_a_loop_that_is_free_hears_every_signal(loop: str) -> None:
    program = Program(loop, "await stopped.wait(); await asyncio.sleep(0.1); signals.leaving(0)")
    program.process.send_signal(signal.SIGHUP)
    assert program.line() == "reload"
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "stop 130"
    assert program.end() == (0, "")


#: Each handler that is set is followed by its own signal, before anything else can be done.
AT_ONCE = """
import os, signal
install = signal.signal
def signal_at_once(number, handler):
    install(number, handler)
    if number == signal.SIGTERM:
        os.kill(os.getpid(), number)
signal.signal = signal_at_once
"""


@pytest.mark.timeout(60)
def test_a_signal_while_the_handlers_are_set_is_heard(loop: str) -> None:
    """P6: it was lost between the handler and the pipe, and the daemon went on after a Ctrl-C during its start."""
    body = "await asyncio.wait_for(stopped.wait(), 20); signals.leaving(0)"
    program = Program(loop, body, before=AT_ONCE)
    assert program.line() == "stop 0"
    assert program.end() == (0, "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_second_signal_ends_a_daemon_whose_loop_hangs(loop: str, number: int, code: int) -> None:
    """R58: nothing but kill -9 used to help. It says where it hangs."""
    program = Program(loop, "time.sleep(600)")
    deadline = time.monotonic() + 30
    while program.process.poll() is None and time.monotonic() < deadline:
        program.process.send_signal(number)  # equal signals that are still pending melt into one
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(0.05)
    ended, complaints = program.end()
    assert ended == code
    assert "exiting although something still hangs" in complaints and "main" in complaints


def test_a_thread_that_hangs_does_not_hold_up_the_end(loop: str) -> None:
    """asyncio waits for the threads of its executor for as long as they take."""
    program = Program(
        loop,
        """
        hanging = asyncio.ensure_future(asyncio.to_thread(time.sleep, 600))
        await stopped.wait()
        signals.leaving(7)
        """,
    )
    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] == 7
