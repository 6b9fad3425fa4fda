"""`watchbill watch` on a real terminal, before a real daemon: what people see, and what their keys do."""

import re
import select
import sys
import termios
import threading
import time

import pytest

from e2e.place import Place, scripted
from support.eventually import wait_until
from wire.cli.conftest import OnTerminal

_STYLE = re.compile(r"\x1b\[[0-9;]*[mK]")


class Watching(OnTerminal):
    """`watch` and its screen."""

    def __init__(self, place: Place, columns: int = 100, lines: int = 30) -> None:
        argv = [sys.executable, "-m", "watchbill", "watch"]
        self.size = (lines, columns)
        super().__init__(argv, place.environment | {"TERM": "xterm"}, place.folder)
        self.resize(*self.size)

    def resize(self, lines: int, columns: int) -> None:
        termios.tcsetwinsize(self._hand, (lines, columns))

    @property
    def screen(self) -> list[str]:
        """The lines of the last whole frame."""
        frames = self.seen.split("\x1b[H")
        whole = [frame for frame in frames[1:] if "\x1b[J" in frame]
        return _STYLE.sub("", whole[-1].partition("\x1b[J")[0]).split("\r\n") if whole else []

    def until(self, text: str, within_s: float = 20.0) -> list[str]:
        """Waits until the screen shows it."""

        def shows() -> bool:
            self.seen = self.seen[-200_000:]
            self._read_once()
            return any(text in line for line in self.screen)

        wait_until(shows, within_s)
        return self.screen

    def _read_once(self) -> None:
        while select.select([self._hand], [], [], 0.05)[0] and self._read(time.monotonic() + 5):
            pass


def watching(place: Place, **size: int) -> Watching:
    found = Watching(place, **size)
    found.until("models ready")
    return found


@pytest.mark.timeout(120)
def test_models_are_loaded_pinned_explained_and_evicted_with_single_keys(place: Place) -> None:
    """The cockpit in a terminal: every key does what it says, and the screen follows within a second."""
    place.config.write_text(scripted("alpha", 'text = "x"') + scripted("beta"))
    daemon = place.up()
    screen = watching(place)
    try:
        assert any("alpha" in line and "absent" in line for line in screen.screen)
        assert any(line.startswith("ram") for line in screen.screen), "memory bars"
        screen.type("l")
        screen.until("● ready")
        assert daemon.is_in("alpha", "ready")
        screen.type("p")
        screen.until("pinned")
        wait_until(lambda: daemon.model("alpha")["pinned"])
        screen.type("p")
        wait_until(lambda: not daemon.model("alpha")["pinned"])
        screen.type("x")
        screen.until("Esc back")
        screen.type("\x1b")
        screen.until("l load")
        screen.type("en")
        assert daemon.is_in("alpha", "ready"), "asked first, and n is no"
        screen.type("ey")
        wait_until(lambda: not daemon.is_in("alpha", "ready"))
        screen.type("5")
        screen.until("evict")
        screen.type("?")
        screen.until("cancel the request")
        screen.type("\x1bq")
        assert screen.end() == 0
        assert screen.seen.endswith("\x1b[?25h\x1b[?1049l"), "the terminal is as it was"
    finally:
        screen.close()
    assert daemon.stop() == 0


@pytest.mark.timeout(120)
def test_a_waiting_request_is_seen_explained_and_cancelled(place: Place) -> None:
    """Requests with lane and state; cancelling asks first. A narrow window and an absent daemon are no trouble."""
    place.config.write_text(scripted("slow", 'tokens = 600, service = "60s"'))
    daemon = place.up()
    screen = watching(place, columns=100, lines=26)
    answered: list[int] = []
    caller = threading.Thread(target=lambda: answered.append(daemon.chat("slow", 600)[0]))
    caller.start()
    try:
        screen.type("2")
        screen.until("running")
        screen.type("x")
        screen.until("Esc back")
        screen.type("\x1bc")
        screen.until("y yes")
        screen.type("y")
        caller.join(30)
        assert not caller.is_alive(), "the request was cancelled"
        screen.resize(18, 50)
        screen.until("no open requests")
        wait_until(lambda: len(screen.until("waiting")) == 18)
        assert max(map(len, screen.screen)) <= 50
        assert daemon.stop() == 0
        screen.until("no daemon answers", 30)
        screen.type("\x03")
        assert screen.end() == 130
        assert screen.seen.endswith("\x1b[?25h\x1b[?1049l"), "also after Ctrl-C"
    finally:
        screen.close()


def test_watch_needs_a_terminal_and_a_daemon(place: Place) -> None:
    refused = place.run("watch")
    assert refused.returncode == 3 and "start one with" in refused.stderr
    place.config.write_text(scripted("alpha", 'text = "x"'))
    daemon = place.up()
    refused = place.run("watch")
    assert refused.returncode == 1 and "watch needs a terminal; for scripts: " in refused.stderr
    assert daemon.stop() == 0
