"""Models on a real NVIDIA card that Watchbill finds by itself: real llama.cpp, files that no config places.

    PATH=/path/to/llama-server-with-cuda:$PATH python bench/card_models.py --cuda-python /opt/torch/bin/python3

Needs a card, its driver, `nvidia-ml-py` and `gguf` here, a `llama-server` built for CUDA on the PATH, and a Python with
PyTorch for the stranger. Prints what was seen, one line per promise, and exits with 1 when one was not kept.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from on_card import OnCard, Sampler
from playing import Reply, chat, journal

READY_S = 60.0
#: The models, in GB of weights. All are in the models folder, none is in a config.
SIZES = {"amber": "2GB", "birch": "2GB", "coral": "2GB", "delta": "3GB", "ember": "3GB"}
CAPACITY_MB, RESERVE_MB = 9 * 1024, 1024
#: What a stranger leaves of the card, and what CUDA takes beside a program's tensors.
LEFT_MB, CONTEXT_MB = 600, 620
#: A card that has room for those of 2 GB and none for those of 3 GB.
SMALL_MB = 4_700
MAX_WAIT_S = 20
CONFIG = """
[devices."gpu:0"]
capacity = "{capacity}MiB"
reserve = "{reserve}MiB"
[lanes.default]
max_wait = "{max_wait}s"
"""
MODEL = """
[models.{name}]
engine = "llamacpp"
source = "{name}.gguf"
context = 4096
concurrency = 2
"""
PLAY_S = 60.0
CALLERS = 6


class Trial(OnCard):
    """Daemons on one root, one after the other."""

    def __init__(self, folder: Path, python: str) -> None:
        from gguf_models import GgufFiles  # beside the tests, whose folder is on the path now

        super().__init__(folder, python)
        self.folder = folder
        models = folder / "root" / "models"
        models.mkdir(parents=True)
        files = GgufFiles(folder)
        for name, size in SIZES.items():
            os.link(files.chat(size), models / f"{name}.gguf")

    @contextmanager
    def daemon(self, capacity_mb: int | None = None) -> Generator["Daemon"]:
        words = ["-m", "watchbill", "up", "--port", "0", "--root", str(self.folder / "root")]
        if capacity_mb is not None:
            config = CONFIG.format(capacity=capacity_mb, reserve=RESERVE_MB, max_wait=MAX_WAIT_S)
            config += "".join(MODEL.format(name=name) for name in SIZES)
            (self.folder / "watchbill.toml").write_text(config)
            words += ["--config", "watchbill.toml"]
        said = self.folder / "said"
        with said.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            self.until(lambda: "ready http" in said.read_text() or process.poll() is not None)
            yield Daemon(process, said)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(READY_S)


class Daemon:
    """A running daemon, as its clients see it."""

    def __init__(self, process: "subprocess.Popen[bytes]", said: Path) -> None:
        self.process, self._said = process, said
        ready = [line for line in said.read_text().splitlines() if line.startswith("ready http")]
        if not ready:
            raise AssertionError(f"the daemon did not start:\n{said.read_text()}")
        self.port = int(ready[0].rpartition(":")[2])

    @property
    def said(self) -> str:
        return self._said.read_text()

    def status(self) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/wb/v1/status")
        content = json.loads(connection.getresponse().read())
        connection.close()
        return content

    def model(self, name: str) -> dict[str, Any]:
        return self.status()["models"][name]

    def ask(self, model: str, tokens: int = 32) -> Reply:
        return chat(self.port, model, "default", tokens=tokens)


def show_found(trial: Trial, sampler: Sampler) -> None:
    """No config at all: the card is found, and every file goes there."""
    sampler.again()
    with trial.daemon() as daemon:
        found = [line for line in daemon.said.splitlines() if "found gpu:0" in line]
        trial.say("up says what it found", " ".join(found) or daemon.said, bool(found))
        answers = {name: daemon.ask(name) for name in SIZES}
        trial.say(
            "every model answers",
            ", ".join(f"{name} {reply.took_s:.1f} s" for name, reply in answers.items()),
            all(reply.error is None for reply in answers.values()),
        )
        measured = sum(sampler.by_process().values())
        booked = sum(sum(daemon.model(name)["devices"].values()) for name in SIZES) >> 20
        trial.say(
            "the books are what the card says",
            f"{booked} MiB in the books, {measured} MiB on the card",
            abs(booked - measured) <= 0.05 * measured,
        )
        places = {name: sorted(daemon.model(name)["devices"]) for name in SIZES}
        trial.say(
            "all are on the card", json.dumps(places), all(each == ["gpu:0"] for each in places.values())
        )
    trial.say("down: the card is empty", f"{sampler.by_process()}", not sampler.by_process())


def show_too_many(trial: Trial, sampler: Sampler) -> None:
    """Five models and callers for all of them, on a card that holds three or two."""
    with trial.daemon(CAPACITY_MB) as daemon:
        sampler.again()
        replies = _played(daemon)
        failed = [reply.error for reply in replies if reply.error is not None]
        loads = sum(1 for line in journal(trial.folder) if line["event"] == "load")
        longest = max(reply.took_s for reply in replies)
        trial.say(
            "five models of 17 GiB on 8 GiB",
            f"{len(replies)} answers in {PLAY_S:.0f} s, {len(failed)} refused, "
            f"longest {longest:.1f} s, {loads} loads so far",
            bool(replies) and not failed,
        )
        trial.say(
            "the card never held more than its capacity",
            f"{sampler.most_mb} MiB at most",
            0 < sampler.most_mb <= CAPACITY_MB - RESERVE_MB,
        )
        show_killed_engine(trial, daemon)
        show_stranger(trial, sampler, daemon)
        show_killed_daemon(trial, sampler, daemon)
    with trial.daemon(CAPACITY_MB) as daemon:
        reply = daemon.ask("amber")
        trial.say("the next daemon serves", f"{reply.took_s:.1f} s, {reply.error}", reply.error is None)


def _played(daemon: Daemon) -> list[Reply]:
    replies: list[Reply] = []
    ends, draw = time.monotonic() + PLAY_S, random.Random(1)

    def call() -> None:
        while time.monotonic() < ends:
            replies.append(daemon.ask(draw.choice(list(SIZES)), tokens=64))

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def show_killed_engine(trial: Trial, daemon: Daemon) -> None:
    """kill -9 of an engine in the middle of an answer."""
    daemon.ask("delta")
    pid = daemon.model("delta")["pid"]
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(daemon.ask("delta", tokens=1_500)))
    asking.start()
    trial.until(lambda: daemon.model("delta")["in_flight"] > 0)
    os.kill(pid, signal.SIGKILL)
    asking.join()
    again = daemon.ask("delta")
    trial.say(
        "an engine is killed in the middle of an answer",
        f"that answer: {replies[0].error or 'whole'}; the next after {again.took_s:.1f} s: {again.error or 'whole'}",
        again.error is None,
    )


def show_stranger(trial: Trial, sampler: Sampler, daemon: Daemon) -> None:
    """Somebody fills the card while models are on it: what is left of the reserve is given back at once."""
    for name in ("amber", "birch"):
        daemon.ask(name)
    before = len(journal(trial.folder))

    def alerts() -> list[str]:
        return [line["reason"] for line in journal(trial.folder)[before:] if line["event"] == "alert"]

    with trial.stranger(sampler.free_mb() - LEFT_MB - CONTEXT_MB):
        seconds = trial.until(lambda: bool(alerts()))
        trial.say("a stranger takes the reserve: an alert", f"after {seconds:.1f} s: {alerts()[0]}", True)
        seconds = trial.until(lambda: sampler.free_mb() > RESERVE_MB)
        trial.say("a model leaves", f"{sampler.free_mb()} MiB free {seconds:.1f} s later", True)
        for name in ("ember", "birch"):
            reply = daemon.ask(name)
            card = daemon.status()["devices"]["gpu:0"]
            told = f"{reply.error or 'answered'} after {reply.took_s:.1f} s; {sampler.free_mb()} MiB free"
            trial.say(
                f"{name} is served in its own room, or refused in time with the reason",
                f"{told}; emergency {card['emergency']}, constrained: {card['constrained']}",
                reply.took_s < MAX_WAIT_S + 5,
            )
    seconds = trial.until(lambda: daemon.ask("ember").error is None)
    trial.say("they leave: it is served", f"after {seconds:.1f} s", True)


def show_killed_daemon(trial: Trial, sampler: Sampler, daemon: Daemon) -> None:
    daemon.process.kill()
    daemon.process.wait(READY_S)
    seconds = trial.until(lambda: not sampler.by_process())
    trial.say("kill -9 of the daemon: the card is empty", f"after {seconds:.2f} s", True)


def show_no_room(trial: Trial) -> None:
    """A card that is too small: the file is served from the machine's memory, and up says so."""
    with trial.daemon(SMALL_MB) as daemon:
        told = [
            line for line in daemon.said.splitlines() if "no card has room" in line or "found gpu:0" in line
        ]
        trial.say(
            "a card without room for two of them",
            " | ".join(told),
            any("delta" in line and "memory" in line for line in told),
        )
        reply = daemon.ask("delta", tokens=8)
        where = sorted(daemon.model("delta")["devices"])
        trial.say("it is served all the same", f"{reply.took_s:.1f} s from {where}", reply.error is None)


def main(words: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="Models on a real NVIDIA card.")
    options.add_argument("--cuda-python", default=sys.executable, help="a Python with PyTorch and CUDA")
    python = options.parse_args(words).cuda_python
    with tempfile.TemporaryDirectory(prefix="watchbill-card-") as folder:
        trial, sampler = Trial(Path(folder), python), Sampler()
        try:
            show_found(trial, sampler)
            show_too_many(trial, sampler)
            show_no_room(trial)
        except AssertionError as error:
            trial.say("in time", str(error), False)
        if trial.failed:
            print((trial.folder / "said").read_text()[-4_000:])
            print("\n".join(json.dumps(line) for line in journal(trial.folder)[-40:]))
    return 1 if trial.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
