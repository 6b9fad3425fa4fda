"""What the daemon tells an init system, over a real socket, and what it does not tell while its loop stands still."""

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.place import Place, scripted
from support.eventually import wait_until
from support.stopping import stop
from watchbill.notify import Notifier

MODEL = scripted("first", 'text = "one"')


class Init:
    """The other end of $NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.variable = f"@{address[1:]}" if address.startswith("\0") else address
        self.said: list[str] = []

    def take(self) -> list[str]:
        """Everything that was said so far."""
        self.socket.setblocking(False)
        while True:
            try:
                self.said.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return self.said

    def heard(self, words: str, times: int = 1) -> bool:
        return sum(words in message.split("\n") for message in self.take()) >= times


@pytest.fixture(params=["path", "abstract"])
def init(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Init]:
    abstract = f"\0watchbill-test-{secrets.token_hex(8)}"
    opened = Init(abstract if request.param == "abstract" else str(tmp_path / "notify"))
    yield opened
    opened.socket.close()


def test_an_init_system_hears_of_every_stage(place: Place, init: Init) -> None:
    """R57: ready when requests are answered, reloading and ready again, stopping; engines get no word in."""
    place.environment["NOTIFY_SOCKET"] = init.variable
    place.config.write_text(MODEL)
    daemon = place.up()
    wait_until(lambda: init.heard("READY=1"))
    assert any(f"STATUS=serving 1 models at {daemon.url}" in message for message in init.said)
    assert daemon.chat("first")[0] == 200
    engine = daemon.model("first")["pid"]
    assert b"NOTIFY_SOCKET" not in Path(f"/proc/{engine}/environ").read_bytes()
    for text in (MODEL + scripted("second"), "nonsense ="):
        before = len([message for message in init.take() if "RELOADING=1" in message])
        place.config.write_text(text)
        daemon.signal(signal.SIGHUP)
        wait_until(lambda seen=before: init.heard("RELOADING=1", seen + 1))
        wait_until(lambda: "READY=1" in init.take()[-1])
    assert not init.heard("WATCHDOG=1")  # nobody asked for it
    assert daemon.stop() == 0
    assert init.heard("STOPPING=1")


def test_a_loop_that_stands_still_withholds_the_ping_and_is_not_ready(place: Place, init: Init) -> None:
    """R58: systemd then restarts the unit. A loop that goes on pings again."""
    place.environment |= {"NOTIFY_SOCKET": init.variable, "WATCHDOG_USEC": "200000"}
    place.config.write_text(MODEL)
    daemon = place.up()
    wait_until(lambda: init.heard("WATCHDOG=1", 3))
    stop(daemon.pid)
    try:
        init.take()
        before = len(init.said)
        with pytest.raises(TimeoutError):
            daemon.ask("/ready", seconds=1)
        assert len(init.take()) == before
    finally:
        daemon.signal(signal.SIGCONT)
    wait_until(lambda: len(init.take()) > before)
    wait_until(lambda: daemon.ask("/ready")[0] == 200)
    assert daemon.stop() == 0


async def test_a_scheduler_that_does_not_turn_withholds_the_ping(init: Init) -> None:
    """R58: the loop may turn while the scheduler does not."""
    notifier = Notifier({"NOTIFY_SOCKET": init.variable, "WATCHDOG_USEC": "2000"})
    asked, enough = 0, asyncio.Event()

    def is_alive() -> bool:
        nonlocal asked
        asked += 1
        if asked == 5:
            enough.set()
        return asked == 1

    pings = asyncio.create_task(notifier.keep_watchdog_calm(is_alive))
    async with asyncio.timeout(30):
        await enough.wait()
    pings.cancel()
    notifier.close()
    assert init.take() == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "environment",
    [
        {}, {"WATCHDOG_USEC": "1000"}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/socket"},
        {"NOTIFY_SOCKET": "/nowhere/socket", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "/nowhere/socket", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)  # fmt: skip
async def test_without_an_init_system_nothing_is_said_and_nothing_waits(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    notifier.ready("x")
    notifier.stopping()
    assert notifier.ping_s is None
    await notifier.keep_watchdog_calm(lambda: True)
    notifier.close()


def test_a_full_socket_does_not_hold_up_the_daemon(init: Init) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": init.variable})
    began = time.monotonic()
    for _ in range(10_000):
        notifier.tell("a line\nwith a break" + "x" * 1_000)
    assert time.monotonic() - began < 30
    notifier.close()
    assert all(len(message) < 300 and "\n" not in message for message in init.take())
