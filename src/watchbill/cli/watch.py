"""`watch`: the daemon in a terminal, live and with the keyboard.

One thread asks the daemon once a second, one more per action: a load may take minutes, and the screen goes on
meanwhile. Only the main thread writes to the terminal. What is shown is in `watch_screen`.
"""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable

from watchbill.cli.client import DaemonRefused, parse, quoted
from watchbill.cli.explain import draw_explanation
from watchbill.cli.keyboard import Keyboard, whole_screen
from watchbill.cli.limits import CLI_LOAD_TIMEOUT_S, WATCH_ACTIONS_MAX, WATCH_JOURNAL_LINES, WATCH_LOOK_S
from watchbill.cli.options import Common
from watchbill.cli.session import Session
from watchbill.cli.status import fields, rows_of
from watchbill.cli.terminal import plain
from watchbill.cli.watch_screen import HELP, Pane, Picture, View, draw_screen
from watchbill.errors import RequestError, WatchbillError

__all__ = ["watch"]

_DEFAULTS = Common()
_STEPS = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -10,
    "page down": 10,
    "home": -(10**6),
    "end": 10**6,
}


def watch(*, common: Common = _DEFAULTS) -> int:
    """Show models, memory, requests, alerts and the journal live, and act on them with single keys.

    ? lists the keys, q leaves. For scripts there are `status --json` and `events --json`.
    """
    session = common.session()
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise RequestError(f"watch needs a terminal; for scripts: {session.root.command('status', '--json')}")
    cockpit = _Cockpit(session)
    cockpit.look()  # a daemon that is not there is an error, not an empty screen
    keyboard = Keyboard(sys.stdin.fileno())
    before = signal.set_wakeup_fd(keyboard.waker)  # a change of the window's size redraws at once
    signal.signal(signal.SIGWINCH, _ignore)
    try:
        with whole_screen(sys.stdin.fileno(), sys.stdout):
            cockpit.run(keyboard)
    except EOFError:
        return 0
    finally:
        signal.set_wakeup_fd(before)
    return 0


def _ignore(number: int, frame: object) -> None:
    """The byte that the signal writes is all that is needed."""


class _Cockpit:
    """One person in front of one daemon."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._picture = Picture()
        self._view = View()
        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._sure: Callable[[], None] | None = None
        self._acting = threading.BoundedSemaphore(WATCH_ACTIONS_MAX)
        self._wake: Callable[[], None] = lambda: None

    def run(self, keyboard: Keyboard) -> None:
        """Shows and acts until the person leaves. Raises EOFError when the terminal is gone."""
        self._wake = keyboard.wake
        threading.Thread(target=self._go_on_looking, name="watch-look", daemon=True).start()
        while True:
            self._draw()
            for key in keyboard.keys(WATCH_LOOK_S):
                if key == "q":
                    return
                self._press(key)
            while not self._told.empty():
                self._told.get()()

    # ------------------------------------------------------------------ looking

    def look(self) -> None:
        """Asks the daemon once. Raises WatchbillError."""
        client = self._session.client
        status = fields(client.get_json("/wb/v1/status"))
        requests = tuple(rows_of(client.get_json("/wb/v1/requests"), "requests"))
        try:
            found = rows_of(client.get_json(f"/wb/v1/journal?lines={WATCH_JOURNAL_LINES}"), "lines")
        except DaemonRefused:  # of an older daemon, or for a key that may not read it
            found = []
        self._picture = Picture(status, requests, tuple(found), time.monotonic())

    def _go_on_looking(self) -> None:
        while True:
            time.sleep(WATCH_LOOK_S)
            try:
                self.look()
            except WatchbillError as error:
                old = self._picture
                self._picture = Picture(old.status, old.requests, old.journal, old.at, str(error))
            self._wake()

    def _draw(self) -> None:
        terminal = self._session.terminal
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:  # ENOTTY: a terminal that does not know its size
            size = os.terminal_size((80, 24))
        terminal.width = max(20, size.columns or 80)
        height = max(4, size.lines or 24)
        terminal.frame(draw_screen(self._picture, self._view, self._session.client.url, terminal, height))

    # ------------------------------------------------------------------ keys

    def _press(self, key: str) -> None:
        view = self._view
        if self._sure is not None:
            act, self._sure, view.question = self._sure, None, ""
            if key == "y":
                act()
            return
        if view.page:
            self._scroll_page(key)
        elif key in _STEPS:
            self._move(_STEPS[key])
        elif key in {"tab", "right", "back tab", "left"}:
            every = list(Pane)
            step = -1 if key in {"back tab", "left"} else 1
            self._open(every[(every.index(view.pane) + step) % len(every)])
        elif key in {"1", "2", "3", "4", "5"}:
            self._open(list(Pane)[int(key) - 1])
        elif key == "?":
            view.page, view.top = HELP, 0
        else:
            self._act(key)

    def _scroll_page(self, key: str) -> None:
        view = self._view
        if key in _STEPS:
            view.top = max(0, min(len(view.page) - 1, view.top + _STEPS[key]))
        else:
            view.page, view.top = (), 0

    def _open(self, pane: Pane) -> None:
        self._view.pane, self._view.top, self._view.message = pane, 0, ""

    def _move(self, step: int) -> None:
        view, picture = self._view, self._picture
        rows = picture.rows(view.pane)
        if rows:
            view.chosen[view.pane] = rows[max(0, min(len(rows) - 1, view.place(picture) + step))]
        elif view.pane in {Pane.ALERTS, Pane.JOURNAL}:
            view.top = max(0, min(len(picture.journal), view.top + step))

    def _act(self, key: str) -> None:
        name, view = self._view.name(self._picture), self._view
        if name is None:
            return
        if key in {"x", "enter"}:
            self._begin(f"explaining {name}", lambda: self._explain(name))
        elif view.pane is Pane.REQUESTS and key == "c":
            self._ask(f"cancel {name}?", lambda: self._cancel(name))
        elif view.pane is Pane.MODELS and key == "l":
            self._begin(f"loading {name} ...", lambda: self._post(name, "load", f"{name} is loaded"))
        elif view.pane is Pane.MODELS and key == "e":
            self._ask(f"evict {name}?", lambda: self._evict(name))
        elif view.pane is Pane.MODELS and key == "p":
            self._pin(name)

    # ------------------------------------------------------------------ actions

    def _ask(self, question: str, act: Callable[[], None]) -> None:
        self._view.question, self._sure = question, act

    def _cancel(self, id: str) -> None:
        path = f"/wb/v1/requests/{quoted(id)}"
        self._begin(
            f"cancelling {id} ...", lambda: self._say(self._session.client.delete(path), f"{id} is cancelled")
        )

    def _evict(self, name: str) -> None:
        self._begin(f"evicting {name} ...", lambda: self._post(name, "evict", f"{name} is evicted"))

    def _pin(self, name: str) -> None:
        model = fields(fields(self._picture.status.get("models")).get(name))
        pinned = not model.get("pinned")
        done = f"{name} is {'pinned' if pinned else 'no longer pinned'}"
        self._begin(f"{done} ...", lambda: self._post(name, "pin", done, {"pinned": pinned}))

    def _post(self, name: str, act: str, otherwise: str, body: object = None) -> None:
        path = f"/wb/v1/models/{quoted(name)}/{act}"
        self._say(self._session.client.post(path, body, timeout_s=CLI_LOAD_TIMEOUT_S), otherwise)

    def _say(self, content: bytes, otherwise: str) -> None:
        said = fields(parse(content or b"{}"))
        self._tell(str(said.get("message") or said.get("detail") or otherwise))

    def _explain(self, name: str) -> None:
        client, pane = self._session.client, self._view.pane
        path = f"explain?model={quoted(name)}" if pane is Pane.MODELS else f"requests/{quoted(name)}"
        lines = draw_explanation(name, fields(parse(client.get(f"/wb/v1/{path}"))), self._session.terminal)

        def show() -> None:
            self._view.page, self._view.top, self._view.message = lines, 0, ""

        self._told.put(show)

    def _tell(self, text: str) -> None:
        """From any thread."""
        self._told.put(lambda: setattr(self._view, "message", plain(text)))

    def _begin(self, text: str, act: Callable[[], None]) -> None:
        """Runs an action beside the screen; its end, or its refusal, is the next message."""
        if not self._acting.acquire(blocking=False):
            self._view.message = f"{WATCH_ACTIONS_MAX} actions are under way; wait for one"
            return
        self._view.message = text

        def run() -> None:
            try:
                act()
                self.look()
            except WatchbillError as error:
                self._tell(str(error))
            finally:
                self._acting.release()
                self._wake()

        threading.Thread(target=run, name="watch-act", daemon=True).start()
