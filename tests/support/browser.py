"""A real Chromium, driven over a pipe by its own protocol (CDP). Needs nothing but the program.

One browser for a module, a page of its own for each test: its storage is empty, and everything that it asks the network
for, complains about or shows as an error is noted.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

from support.eventually import PATIENCE_S

__all__ = ["CHROMIUM", "Browser", "Page", "browser"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--mute-audio",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
_KEYS = {
    "Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip


class Browser:
    """The process, and the messages to and from it."""

    def __init__(self, process: "subprocess.Popen[bytes]", write_fd: int, read_fd: int) -> None:
        self.pid = process.pid
        self._write_fd, self._read_fd = write_fd, read_fd
        self._numbers, self._rest = 0, b""
        self._answers: dict[int, dict[str, Any]] = {}
        self.pages: dict[str, Page] = {}

    def ask(self, method: str, session: str | None = None, /, **values: object) -> dict[str, Any]:
        """Sends a command and waits for its answer; events that come meanwhile go to their pages."""
        self._numbers += 1
        number = self._numbers
        message: dict[str, object] = {"id": number, "method": method, "params": values}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while number not in self._answers:
            self.listen(until)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def listen(self, until: float) -> None:
        """Reads what has come."""
        left = until - time.monotonic()
        assert left > 0, "Chromium does not answer"
        if not select([self._read_fd], [], [], left)[0]:
            return
        *messages, self._rest = (self._rest + os.read(self._read_fd, 2**20)).split(b"\0")
        for raw in messages:
            message = json.loads(raw)
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self.pages.get(message.get("sessionId", "")):
                page.hear(message["method"], message["params"])

    def open(self, url: str, *, width: int = 1440, height: int = 1000, dark: bool = True) -> "Page":
        """A page with storage of its own."""
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session, target, context)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.ask(f"{domain}.enable")
        page.resize(width, height)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.ask("Emulation.setEmulatedMedia", features=[theme])
        page.go(url)
        return page


class Page:
    """One page."""

    def __init__(self, owner: Browser, session: str, target: str, context: str) -> None:
        self._owner, self._session, self._target, self._context = owner, session, target, context
        self.requests: list[str] = []  # every address that was asked for
        self.complaints: list[str] = []  # errors, refusals of the policy, failed scripts

    def ask(self, method: str, /, **values: object) -> dict[str, Any]:
        return self._owner.ask(method, self._session, **values)

    def hear(self, method: str, told: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([each.get("value") for each in told["args"]]))

    def go(self, url: str) -> None:
        told = self.ask("Page.navigate", url=url)
        assert "errorText" not in told, told["errorText"]
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives, promises awaited."""
        told = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, (script, told["exceptionDetails"])
        return told["result"].get("value")

    def until(self, script: str, seconds: float = PATIENCE_S) -> Any:
        """Waits until an expression is true, and gives its value."""
        deadline = time.monotonic() + seconds
        while not (found := self.value(script)):
            assert time.monotonic() < deadline, f"not within {seconds} s: {script}; {self.text()[:600]}"
            self._owner.listen(time.monotonic() + 0.05)
        return found

    def text(self, selector: str = "body") -> str:
        return self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def until_text(self, text: str, selector: str = "body", seconds: float = PATIENCE_S) -> None:
        """Waits until a text can be read."""
        found = (
            f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})"
        )
        self.until(found, seconds)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of the first such element, which must be there to be seen."""
        deadline = time.monotonic() + PATIENCE_S
        self.value("window.hits = 0")
        while not self._hit(json.dumps(selector)):
            assert time.monotonic() < deadline, f"{selector} cannot be clicked; {self.text()[:600]}"

    def _hit(self, place: str) -> bool:
        """Tries once. Rows move and are made anew while the daemon works, so the page says whether one was hit."""
        found = self.value(
            f"(async () => {{ window.aim = {place}; const find = () => document.querySelector(window.aim);"
            " if (!window.isCounting) { window.isCounting = true; document.addEventListener('click',"
            "   (click) => { window.hits += click.target.closest(window.aim) ? 1 : 0 }, true) }"
            " find()?.scrollIntoView({block: 'center', behavior: 'instant'});"
            " for (let n = 0; n < 2; n++) await new Promise(requestAnimationFrame);"
            " const e = find(); if (!e || e.disabled || !e.checkVisibility()) return null;"
            " const b = e.getBoundingClientRect(), at = [b.left + b.width / 2, b.top + b.height / 2];"
            " return e.contains(document.elementFromPoint(...at)) ? at : null })()"
        )
        if found is None:
            self._owner.listen(time.monotonic() + 0.05)
            return False
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent", type=kind, x=found[0], y=found[1], button="left", clickCount=1
            )
        return self.value("window.hits") > 0

    def hover(self, element: str) -> None:
        """Puts the mouse on an element, which a JavaScript expression names."""
        x, y = self.until(
            f"(() => {{ const e = {element}; e?.scrollIntoView({{ block: 'nearest' }});"
            " const b = e?.getBoundingClientRect(); return b && [b.left + b.width / 2, b.top + b.height / 2] })()"
        )
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, *keys: str, shift: bool = False) -> None:
        """Keys of the keyboard, one after the other."""
        for key in keys:
            code = _KEYS.get(key, ord(key.upper()[0]))
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            base = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
            self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **base)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **base)

    def write(self, text: str) -> None:
        """Types into what has the focus."""
        self.ask("Input.insertText", text=text)

    def picture(self, file: Path) -> None:
        """What can be seen, as PNG or WebP."""
        told = self.ask("Page.captureScreenshot", format=file.suffix[1:], quality=82)
        file.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        self._owner.pages.pop(self._session, None)
        self._owner.ask("Target.closeTarget", targetId=self._target)
        self._owner.ask("Target.disposeBrowserContext", browserContextId=self._context)


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium, with a profile that is gone afterwards."""
    assert CHROMIUM is not None
    to_it, we_write = os.pipe()
    we_read, from_it = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            start_new_session=True,
            preexec_fn=lambda: _at_three_and_four(to_it, from_it),  # noqa: PLW1509  no thread of ours holds a lock
        )
        os.close(to_it)
        os.close(from_it)
        try:
            yield Browser(process, we_write, we_read)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(we_write)
            os.close(we_read)


def _at_three_and_four(to_it: int, from_it: int) -> None:
    """The pipe's ends are where the protocol wants them; duplicates first, one of them may be 3 or 4 itself."""
    to_it, from_it = os.dup(to_it), os.dup(from_it)
    high = [os.dup(fd) for fd in (to_it, from_it)]
    os.dup2(high[0], 3)
    os.dup2(high[1], 4)
