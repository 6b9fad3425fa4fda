"""Takes the pictures of docs/page.md: a real daemon with models that only pretend, real requests, a real Chromium.

    make pictures

Takes five minutes. Nothing of it touches the root or the models of this machine.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from urllib.error import URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import Browser, browser  # noqa: E402  the tests are no package

CARDS = {
    "cards": [
        {"name": name, "capacity": size, "timeline": [{"at": 0, "used": used, "temperature_c": heat,
         "power_w": power, "clock_mhz": 1905, "utilisation_percent": busy}]}
        for name, size, used, heat, power, busy in (
            ("gpu:0", "24GB", "1.3GB", 67, 212, 83), ("gpu:1", "12GB", "0.4GB", 54, 96, 31),
        )
    ]
}  # fmt: skip
#: Name, device, memory, load, answer, tokens, the words of an answer.
MODELS = (
    ("assistant", "gpu:0", "8.4GB", "2s", "6s", 120, "The crew sleeps in turns, and no watch is forgotten."),
    ("coder", "gpu:0", "9.6GB", "4s", "8s", 200, "def watch(bill): return sorted(bill)"),
    ("judge", "ram", "2.4GB", "1s", "3s", 30, "Four of five."),
    ("speech", "gpu:1", "4.4GB", "1s", "2s", 20, "Ahoy."),
    ("vision", "gpu:1", "6.2GB", "3s", "5s", 60, "A harbour at dusk, two boats, one lamp."),
    ("writer", "gpu:0", "11.1GB", "5s", "7s", 150, "Once upon a tide there was a small lamp."),
)
CALLERS = (
    ("assistant", "default", 3), ("coder", "default", 3), ("writer", "default", 4), ("vision", "default", 2),
    ("speech", "night", 2), ("judge", "night", 2), ("writer", "night", 3),
)  # fmt: skip
#: Until the pictures of the page, and from there until those of the simulation, which needs more to go by.
RUN_S, LONGER_S = 60, 180
#: From an answer to the next question of the same caller.
THOUGHT_S = (1, 9)


def config() -> str:
    """The config of the run."""
    parts = ['[devices.ram]\ncapacity = "8GB"\nreserve = "1GiB"', '[devices."gpu:0"]\nreserve = "1GB"']
    parts += ['[devices."gpu:1"]\nreserve = "500MB"', '[lanes.default]\n[lanes.night]\nclass = "background"']
    for name, device, memory, load, service, tokens, text in MODELS:
        script = f'load = "{load}", service = "{service}", tokens = {tokens}, text = "{text}", touch = false'
        rules = f'engine = "scripted"\nmemory = "{memory}"\ndevices = ["{device}"]\nidle = "45s"'
        rules += "\npermanent = true\nconcurrency = 2" if name == "assistant" else ""
        parts.append(f"[models.{name}]\n{rules}\nscript = {{ {script} }}")
    return "\n\n".join(parts)


def call_again_and_again(url: str, model: str, lane: str, over: Event) -> None:
    """A caller that thinks for a while and asks again."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    headers = {"Content-Type": "application/json", "X-Watchbill-Lane": lane}
    while not over.is_set():
        try:
            with urlopen(
                Request(f"{url}/v1/chat/completions", body.encode(), headers), timeout=120
            ) as answer:
                answer.read()
        except (URLError, OSError):
            over.wait(1)
        over.wait(random.uniform(*THOUGHT_S))


def take_page(url: str, chromium: Browser) -> None:
    """The page, once there is something to see."""
    for name, width, height, dark in (
        ("page-dark", 1440, 1180, True),
        ("page-light", 1440, 1180, False),
        ("page-phone", 390, 844, True),
    ):
        page = chromium.open(f"{url}/", width=width, height=height, dark=dark)
        page.until("document.querySelectorAll('.stay').length > 8")
        page.until("document.querySelectorAll('.request').length > 3")
        page.picture(ROOT / "docs" / f"{name}.webp")
        page.close()


def take_what_if(url: str, chromium: Browser) -> None:
    """What more memory would have bought in this run."""
    for name, dark in (("what-if-dark", True), ("what-if-light", False)):
        page = chromium.open(f"{url}/#whatif", width=1440, height=1250, dark=dark)
        page.until("document.querySelectorAll('#whatif option').length > 5")
        page.value("document.querySelector('#whatif select').value = 'gpu:0'")
        page.click("#whatif button.main")
        page.until("document.querySelector('#whatif .hand .quiet').hidden", 60)
        page.until("document.querySelector('.whatif-picture img')?.naturalWidth > 0")
        page.value("document.activeElement.blur(); scrollTo(0, 0)")
        page.picture(ROOT / "docs" / f"{name}.webp")
        page.close()


def main() -> None:
    """Runs a daemon, lets people ask, and takes the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "watchbill.toml").write_text(config())
        (place / "cards.json").write_text(json.dumps(CARDS))
        words = [sys.executable, "-m", "watchbill", "up", "--port", "0", "--config", "watchbill.toml"]
        daemon = subprocess.Popen(
            [*words, "--root", str(place / "root")],
            cwd=place,
            env={**os.environ, "WATCHBILL_FAKE_GPUS": str(place / "cards.json")},
            stdout=subprocess.PIPE,
            text=True,
        )
        over = Event()
        try:
            assert daemon.stdout is not None
            url = next(line for line in daemon.stdout if line.startswith("ready ")).split()[1]
            for model, lane, count in CALLERS:
                for _ in range(count):
                    Thread(target=call_again_and_again, args=(url, model, lane, over), daemon=True).start()
            with browser() as chromium:
                time.sleep(RUN_S)
                take_page(url, chromium)
                time.sleep(LONGER_S)
                take_what_if(url, chromium)
        finally:
            over.set()
            daemon.send_signal(signal.SIGTERM)
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


if __name__ == "__main__":
    main()
