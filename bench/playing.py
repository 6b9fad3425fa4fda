"""A scenario played on a real daemon: real engines behind it, real callers before it. Shared by the benchmarks."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchbill.simulate.scenario import Scenario, Traffic

__all__ = ["MARK", "Asked", "Callers", "Daemon", "Reply", "chat", "daemon", "journal", "part"]

#: The length of an answer.
TOKENS = 64
READY_S = 60.0
DOWN_S = 60.0
ANSWER_S = 300.0
#: A variable in the environment of the daemon and of everything below it; its value is the folder.
MARK = "BENCH_OF_WATCHBILL"


@dataclass(slots=True)
class Daemon:
    """A daemon that was started here."""

    pid: int
    port: int
    exit_code: int | None = None  # once it has ended; None when it had to be killed
    down_s: float = 0.0  # how long it took to end


@contextmanager
def daemon(place: Path) -> Iterator[Daemon]:
    """A daemon on the config in this folder. It records what it did in trace.jsonl."""
    command = [sys.executable, "-m", "watchbill", "up", "--port", "0", "--config", "watchbill.toml"]
    said = (place / "said").open("w+")
    process = subprocess.Popen(
        [*command, "--root", str(place / "root"), "--record", "trace.jsonl"],
        cwd=place, env=os.environ | {MARK: str(place)}, stdin=subprocess.DEVNULL, stdout=said,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    up: Daemon | None = None
    try:
        up = Daemon(process.pid, _port(place / "said", process))
        yield up
    finally:
        _end(process, up)
        said.close()


def _end(process: "subprocess.Popen[str]", up: Daemon | None) -> None:
    told = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(DOWN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return
    if up is not None:
        up.exit_code, up.down_s = code, time.monotonic() - told


def _port(said: Path, process: "subprocess.Popen[str]") -> int:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in said.read_text().splitlines():
            if line.startswith("ready http"):
                return int(line.rpartition(":")[2])
        time.sleep(0.05)
    raise SystemExit(f"the daemon did not start:\n{said.read_text()}")


def journal(place: Path) -> list[dict[str, Any]]:
    """The lines of the journal of the daemon in this folder."""
    return [json.loads(line) for line in (place / "root" / "events.jsonl").read_text().splitlines()]


def part(ordered: Sequence[float], share: float) -> float:
    """A quantile of figures that are in their order; 0 where there are none."""
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request."""

    status: int
    headers: Mapping[str, str]  # names in small letters
    body: bytes
    took_s: float

    @property
    def error(self) -> str | None:
        """The code of the error in it, whichever way it came: after ten seconds of waiting a stream has its 200, and a
        refusal is an event in it."""
        if self.status != http.client.OK:
            return str(json.loads(self.body)["error"]["code"])
        if (at := self.body.find(b'data: {"error"')) >= 0:
            event, _, _ = self.body[at + len(b"data: ") :].partition(b"\n")
            return str(json.loads(event)["error"]["code"])
        return None


def chat(
    port: int,
    model: str,
    lane: str,
    *,
    tokens: int = TOKENS,
    text: str = "Tell me.",
    stream: bool = True,
    answer_s: float = ANSWER_S,
) -> Reply:
    """Asks for a chat on a connection of its own. Raises OSError or HTTPException when no answer comes."""
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "max_tokens": tokens, "messages": messages, "stream": stream}
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=answer_s)
    try:
        headers = {"Content-Type": "application/json", "X-Watchbill-Lane": lane}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        content = reply.read()
    finally:
        connection.close()
    named = {name.lower(): value for name, value in reply.getheaders()}
    return Reply(reply.status, named, content, time.monotonic() - began)


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
        reply = chat(self._port, model, lane)
        failed = reply.status == http.client.OK and reply.error is not None
        status = http.client.SERVICE_UNAVAILABLE if failed else reply.status
        ended_s = time.monotonic() - self._began
        self._asked.append(Asked(model, lane, status, reply.took_s * 1000, ended_s))
        return status
