"""Words to systemd: that the daemon is ready, reloads, stops, and that its event loop still turns.

The protocol is a datagram of `NAME=value` lines to the socket in $NOTIFY_SOCKET; a name that begins with @ is an
abstract one. Without that variable everything here does nothing. Nothing waits: a word that cannot be delivered at once
is dropped. The ping of the watchdog is sent from the event loop itself, and only while the scheduler turns: a loop that
is blocked sends none, and systemd restarts the unit (R58).
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping

from watchbill.limits import NOTIFY_TEXT_CHARS_MAX
from watchbill.quoting import on_one_line

__all__ = ["Notifier"]


class Notifier:
    """The way to the init system that started us, if one did."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        #: How often the watchdog wants to hear of us; None when it does not.
        self.ping_s = _ping_s(environment) if self._address else None

    def ready(self, status: str) -> None:
        """Requests are answered from now on, also after a reload."""
        self._say("READY=1", _status(status))

    def reloading(self) -> None:
        """The config is read again; `ready` ends it."""
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", _status("reloading"))

    def stopping(self) -> None:
        """The end has begun."""
        self._say("STOPPING=1", _status("stopping"))

    def tell(self, status: str) -> None:
        """What `systemctl status` shows."""
        self._say(_status(status))

    async def keep_watchdog_calm(self, is_alive: Callable[[], bool]) -> None:
        """Pings for as long as it runs on a loop that turns; returns at once without a service manager."""
        while self.ping_s is not None:
            if is_alive():
                self._say("WATCHDOG=1")
            await asyncio.sleep(self.ping_s)

    def close(self) -> None:
        """Says no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, *lines: str) -> None:
        if self._socket is None:
            return
        # Any errno: the init system's socket is full or gone, and no word to it is worth a daemon.
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={on_one_line(text, NOTIFY_TEXT_CHARS_MAX)}"


def _ping_s(environment: Mapping[str, str]) -> float | None:
    """Half of the time after which systemd would act; None when it watches another process, or none."""
    micros, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(os.getpid()))
    if not (micros.isdecimal() and int(micros[:18]) > 0) or pid != str(os.getpid()):
        return None
    return int(micros[:18]) / 2_000_000
