"""A scenario played on a real daemon: real engines behind it, real callers before it. Shared by the benchmarks."""

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from watchbill.simulate.scenario import Scenario, Traffic

__all__ = ["Asked", "Callers", "daemon"]

#: The length of an answer.
TOKENS = 64
READY_S = 60.0


@contextmanager
def daemon(place: Path) -> Iterator[tuple[int, int]]:
    """A daemon on the config in this folder: its process id and its port. It records what it did in trace.jsonl."""
    command = [sys.executable, "-m", "watchbill", "up", "--port", "0", "--config", "watchbill.toml"]
    said = (place / "said").open("w+")
    process = subprocess.Popen(
        [*command, "--root", str(place / "root"), "--record", "trace.jsonl"],
        cwd=place, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process.pid, _port(place / "said", process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.close()


def _port(said: Path, process: "subprocess.Popen[str]") -> int:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in said.read_text().splitlines():
            if line.startswith("ready http"):
                return int(line.rpartition(":")[2])
        time.sleep(0.05)
    raise SystemExit(f"the daemon did not start:\n{said.read_text()}")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as its caller saw it."""

    model: str
    lane: str
    status: int
    took_ms: float
    ended_s: float  # after the first request of all


class Callers:
    """Plays a scenario's traffic against a real daemon."""

    def __init__(self, scenario: Scenario, port: int) -> None:
        self._scenario, self._port = scenario, port
        self._began = time.monotonic()
        self._ends = self._began + scenario.duration_ms / 1000
        self._asked: list[Asked] = []
        self._draw = random.Random(1)

    def play(self) -> list[Asked]:
        """Everybody asks until the time is over and has an answer."""
        threads: list[threading.Thread] = []
        for source in self._scenario.traffic:
            assert isinstance(source, Traffic)
            threads += [self._thread(self._each(source), source) for _ in range(source.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._asked

    def _each(self, source: Traffic) -> Callable[[Traffic], None]:
        return self._loop if source.kind == "loop" else self._stream

    @staticmethod
    def _thread(act: Callable[[Traffic], None], source: Traffic) -> threading.Thread:
        return threading.Thread(target=act, args=(source,))

    def _loop(self, source: Traffic) -> None:
        while time.monotonic() < self._ends:
            time.sleep(self._draw.uniform(*source.think_ms) / 1000)
            if self._ask(self._draw.choices(source.models, source.weights)[0], source.lane) != http.client.OK:
                time.sleep(1)

    def _stream(self, source: Traffic) -> None:
        time.sleep(source.start_ms / 1000)
        asking: list[threading.Thread] = []
        number, due = 0, time.monotonic()
        while due < self._ends and (source.count is None or number < source.count):
            time.sleep(max(0.0, due - time.monotonic()))
            steady = source.kind == "times"
            model = (
                source.models[number % len(source.models)]
                if steady
                else self._draw.choices(source.models, source.weights)[0]
            )
            asking.append(threading.Thread(target=self._ask, args=(model, source.lane)))
            asking[-1].start()
            number += 1
            every = source.every_ms / 1000
            due += every if steady else self._draw.expovariate(1 / every)
        for thread in asking:
            thread.join()

    def _ask(self, model: str, lane: str) -> int:
        messages = [{"role": "user", "content": "Tell me."}]
        body = {"model": model, "max_tokens": TOKENS, "messages": messages, "stream": True}
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        try:
            headers = {"Content-Type": "application/json", "X-Watchbill-Lane": lane}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            reply = connection.getresponse()
            # After ten seconds of waiting a stream has its 200, and a refusal comes as an event in it.
            failed = b'data: {"error"' in reply.read()
        finally:
            connection.close()
        status = http.client.SERVICE_UNAVAILABLE if failed else reply.status
        now = time.monotonic()
        self._asked.append(Asked(model, lane, status, (now - began) * 1000, now - self._began))
        return status
