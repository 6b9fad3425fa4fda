"""The path of a request through the code: `python tools/path.py [--list]`.

Traces one warm chat (whole and streamed), one load, and one spool event from enqueue to corpus, through a real gateway,
driver and engine process. Prints for each how many files and functions of Watchbill it passes, and how often a call
goes into another file than the call before it. Everything is traced several times and the shortest trace counts: a
timer of the daemon may fire in between. `--list` prints the calls in order.

Exits with 1 when the warm chat exceeds its goal.
"""

import argparse
import asyncio
import inspect
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import watchbill
from watchbill import config
from watchbill.gateway.server import Serving
from watchbill.probes.patient import PatientProbe
from watchbill.probes.ram import RamProbe
from watchbill.runtime.driver import Driver
from watchbill.spool import Corpus, Drain, Spool

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.running import running

PACKAGE = f"{Path(watchbill.__file__).parent}/"
CHAT_FILES_MAX = 20
CHAT_CHANGES_MAX = 50
#: How often each is traced. On a busy machine most answers come in more pieces.
CHATS = 100
LOADS = 3
EVENTS = 5
SOCKET_S = 30.0
MODEL = "traced"
CONFIG = f"""
[server]
port = 0
[devices.ram]
reserve = "64MiB"
[models.{MODEL}]
engine = "scripted"
memory = "16MiB"
script = {{ tokens = 4 }}
"""
_SUSPENDED = (
    inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)


@dataclass
class Trace:
    """The calls of Watchbill's functions, in order. A coroutine counts once, however often it goes on."""

    calls: list[CodeType] = field(default_factory=list)
    _suspended: dict[int, FrameType] = field(default_factory=dict)

    def note(self, frame: FrameType) -> None:
        """Counts a call, unless it is none of Watchbill's functions, or a part of one."""
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        if code.co_flags & _SUSPENDED:
            if id(frame) in self._suspended:
                return
            self._suspended[id(frame)] = frame  # held, so that no other frame gets its id
        self.calls.append(code)

    @property
    def files(self) -> int:
        """How many files were passed."""
        return len({code.co_filename for code in self.calls})

    @property
    def functions(self) -> int:
        """How many different functions were called."""
        return len(set(self.calls))

    @property
    def changes(self) -> int:
        """How many calls go into another file than the call before them."""
        files = [code.co_filename for code in self.calls]
        return sum(before != after for before, after in pairwise(files))


class Tracer:
    """Traces all threads of this process. Must be made before the threads are."""

    def __init__(self) -> None:
        self._trace: Trace | None = None
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._trace is not None:
            self._trace.note(frame)

    @contextmanager
    def tracing(self) -> Generator[Trace]:
        """Traces what happens within the block."""
        self._trace = trace = Trace()
        try:
            yield trace
        finally:
            self._trace = None


def shortest(traces: list[Trace]) -> Trace:
    """The trace that nothing else got into."""
    return min(traces, key=lambda trace: len(trace.calls))


# ------------------------------------------------------------------ chats and loads


@asynccontextmanager
async def gateway_on(root: Path) -> AsyncGenerator[tuple[Serving, Driver]]:
    """A gateway on a socket and a driver that watches the machine's memory."""
    file = root / "watchbill.toml"
    file.write_text(CONFIG)
    ram = RamProbe()
    catalog = config.read(file, root=root).catalog
    async with running(root, catalog, PatientProbe(ram), ram=ram) as (serving, driver):
        yield serving, driver


class Client:
    """Asks over one kept connection, with nothing of Watchbill's own code."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SOCKET_S)

    def chat(self, *, stream: bool) -> None:
        """One chat, to the end of its answer."""
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}], "stream": stream}
        body = json.dumps(asked).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        end = b"0\r\n\r\n" if stream else b"}"
        answer = b""
        while not answer.endswith(end):
            piece = self._socket.recv(2**16)
            assert piece, f"the answer broke off: {answer!r}"
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 "), answer

    def close(self) -> None:
        """Leaves."""
        self._socket.close()


async def trace_chats(tracer: Tracer, client: Client, *, stream: bool) -> list[Trace]:
    """Warm chats, each by itself."""
    traces: list[Trace] = []
    for _ in range(CHATS):
        with tracer.tracing() as trace:
            await asyncio.to_thread(client.chat, stream=stream)
            await asyncio.sleep(0)  # the end of the request, behind the last byte of its answer
        traces.append(trace)
    return traces


async def trace_loads(tracer: Tracer, driver: Driver) -> list[Trace]:
    """Loads of an absent model. It is in memory afterwards."""
    traces: list[Trace] = []
    for _ in range(LOADS):
        await driver.evict(MODEL)
        with tracer.tracing() as trace:
            await driver.load(MODEL)
        traces.append(trace)
    return traces


async def trace_gateway(tracer: Tracer, root: Path) -> dict[str, Trace]:
    """A load, and warm chats."""
    async with gateway_on(root) as (serving, driver):
        found = {"load": shortest(await trace_loads(tracer, driver))}
        client = Client(serving.port)
        try:
            for name, stream in (("warm chat", False), ("warm chat, streamed", True)):
                await trace_chats(tracer, client, stream=stream)  # connections and caches are made
                found[name] = shortest(await trace_chats(tracer, client, stream=stream))
        finally:
            client.close()
    return found


# ------------------------------------------------------------------ the spool


def trace_events(tracer: Tracer, root: Path) -> list[Trace]:
    """Events from enqueue to corpus."""
    traces: list[Trace] = []
    with Spool(root / "spool") as spool:
        drain = Drain(spool, Corpus(root / "corpus.jsonl"))
        for number in range(EVENTS):
            with tracer.tracing() as trace:
                spool.enqueue({"id": number, "kind": "note", "ts": 0})
                report = drain.run_once()
            assert report.appended == number + 1, report
            traces.append(trace)
    return traces


def measure() -> dict[str, Trace]:
    """Every path, by its name."""
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(trace_gateway(tracer, Path(folder)))
        found["spool event"] = shortest(trace_events(tracer, Path(folder)))
    return found


def show(found: dict[str, Trace], *, listed: bool) -> None:
    """The table, and what is behind it."""
    rows: list[tuple[str, Callable[[Trace], int]]] = [
        ("files", lambda trace: trace.files),
        ("functions", lambda trace: trace.functions),
        ("calls", lambda trace: len(trace.calls)),
        ("changes of file", lambda trace: trace.changes),
    ]
    print(f"{'':22}" + "".join(f"{name:>17}" for name, _ in rows))
    for name, trace in found.items():
        print(f"{name:22}" + "".join(f"{count(trace):17}" for _, count in rows))
    for name, trace in found.items() if listed else ():
        print(f"\n{name}")
        for code in trace.calls:
            print(f"  {code.co_filename.removeprefix(PACKAGE):32} {code.co_qualname}")


def main() -> int:
    """Measures, prints, and says whether the warm chat keeps its goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print every call, in order")
    options = parser.parse_args()
    # On one processor the engine writes its answer before the daemon reads it; on two it is read in pieces.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found = measure()
    show(found, listed=options.list)
    chat = found["warm chat"]
    met = chat.files <= CHAT_FILES_MAX and chat.changes <= CHAT_CHANGES_MAX
    print(
        f"{'pass' if met else 'FAIL'}  a warm chat passes {chat.files} files with {chat.changes} changes, "
        f"at most {CHAT_FILES_MAX} and {CHAT_CHANGES_MAX}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
