"""Ten thousand requests in the queue, and a thousand machines: what a decision costs, what each request occupies, and
what stays behind.

    .venv/bin/python bench/scale.py [--queued N] [--models N] [--machines N] [--tasks N]

The real driver and journal, and an engine that answers nothing. Each round queues N requests, each with a
task that waits for its turn, then cancels them all in random order. `busy`: every model is in memory and all slots are
taken, so that a request only joins its line. `loading`: the models wait for a load that does not end, so that every
arrival looks for a plan. Times are CPU time of the thread: of the core for one event (the decision, which has a goal),
and of the driver for an arrival and a leaving with all that belongs to it.
Memory of the core is what Python allocates for N arrivals in a core of its own. At the end N clients wait over HTTP,
each on a connection of its own, before a daemon whose model is long in loading: what they occupy there is RSS, the
kernel's buffers aside. `fleet`: the real coordinator of plans in virtual time, with simulated agents, one per machine;
CPU time per line of its journal with ten times the machines, and with ten times the tasks. Exits 1 when a goal is
missed.
"""

import argparse
import asyncio
import gc
import json
import random
import resource
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from gateway import first_match, process
from load_generator import request
from plans import FLAT_MAX, decision_us
from support.eventually import eventually
from support.open_gateway import CATALOG, MIB, OpenGateway, open_gateway
from watchbill.catalog import Catalog, Lane, Model, WorkClass
from watchbill.core.machine import Machine
from watchbill.core.messages import (
    Action,
    Arrived,
    DeviceReading,
    Event,
    Footprint,
    Knowledge,
    Observed,
    Request,
)
from watchbill.runtime.ticket import Submission, Ticket
from watchbill.units import Millis

#: The goals: CPU time of one decision, memory of one waiting request, and the core's part of it.
DECISION_US_MAX = 50.0
REQUEST_BYTES_MAX = 16 * 1024
CORE_BYTES_MAX = 1024
#: Memory blocks that two more rounds may add, per request of a round: one object kept for each would be 2. Not RSS,
#: which grows a little by fragmentation.
GROWTH_MAX = 0.1
PATIENCE_MS = Millis(10**9)


@dataclass(frozen=True)
class Figures:
    """One round."""

    arrive_us: list[float]
    leave_us: list[float]
    request_bytes: float
    left_over: int


def catalog_of(models: int, queued: int) -> Catalog:
    """Models side by side, and a lane that takes everybody."""
    named = {f"m{n}": Model(f"m{n}", "peer", concurrency=4, memory=MIB) for n in range(models)}
    lane = Lane("default", queue_max=queued, max_wait_ms=PATIENCE_MS)
    return replace(CATALOG, models=named, lanes={"default": lane})


def rss() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def cpu_us() -> float:
    return time.thread_time_ns() / 1_000


async def one_round(opened: OpenGateway, models: int, queued: int) -> Figures:
    """Queues everybody, and sends everybody away."""
    before, arrive, leave = rss(), list[float](), list[float]()
    tickets: list[Ticket] = []
    for number in range(queued):
        submission = Submission(f"m{number % models}")
        began = cpu_us()
        tickets.append(opened.driver.submit(submission))
        arrive.append(cpu_us() - began)
    waits = [asyncio.ensure_future(ticket.granted()) for ticket in tickets]
    await asyncio.sleep(0)
    taken = (rss() - before) / queued
    order = list(tickets)
    random.Random(7).shuffle(order)
    for ticket in order:
        began = cpu_us()
        ticket.close()
        leave.append(cpu_us() - began)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    del tickets, waits, order, ticket, wait
    await asyncio.sleep(0.01)
    gc.collect()
    left = sum(type(each) in (Ticket, Request) for each in gc.get_objects()) + len(opened.driver.requests())
    return Figures(arrive, leave, taken, left)


def time_decisions(opened: OpenGateway) -> list[float]:
    """Times the core alone from now on, inside the driver."""
    core, spent = opened.driver._core, list[float]()
    step = core.step

    def timed(event: Event, now: int) -> list[Action]:
        began = cpu_us()
        actions = step(event, now)
        spent.append(cpu_us() - began)
        return actions

    core.step = timed
    return spent


async def measure(how: str, models: int, queued: int) -> bool:
    async with open_gateway(catalog=catalog_of(models, queued)) as opened:
        if how == "loading":
            opened.engine.gate.clear()
        else:
            for name in opened.driver.catalog.models:
                await opened.driver.load(name)
        decisions = time_decisions(opened)
        first = await one_round(opened, models, queued)
        full = sorted(decisions[queued * 4 // 5 : queued * 6 // 5])  # around the moment when all are there
        del opened.driver._core.step  # the timed one
        decisions.clear()
        settled = blocks()
        left = [(await one_round(opened, models, queued)).left_over for _ in range(2)]
        growth = blocks() - settled
    arrive, leave = first.arrive_us, first.leave_us
    mean, tail = _mean(full), full[int(len(full) * 0.99)]
    print(
        f"{how}: arrive {_mean(arrive):.1f} us, leave {_mean(leave):.1f} us in the driver; decision p99 {tail:.0f} us"
    )
    fine = [
        _say(f"{how}: decision with {queued} queued", mean, DECISION_US_MAX, "us"),
        _say(f"{how}: RSS per queued request", first.request_bytes, REQUEST_BYTES_MAX, "bytes"),
        _say(f"{how}: objects left behind", first.left_over + sum(left), 0, ""),
        _say(f"{how}: growth by two more rounds", growth, GROWTH_MAX * queued, "blocks"),
    ]
    return all(fine)


def core_alone(models: int, queued: int) -> bool:
    """What the core keeps for each of N waiting requests, the request itself included."""
    catalog = catalog_of(models, queued)
    core = Machine(catalog, {name: Knowledge(Footprint(dict(MIB))) for name in catalog.models})
    room = DeviceReading(2**30, 2**30)
    core.step(Observed(0, {"ram": room}, {}), 0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(queued):
        name = f"m{number % models}"
        request = Request(f"r-{number}", name, "default", WorkClass.INTERACTIVE, number, PATIENCE_MS, 600_000)
        core.step(Arrived(request), number)
    gc.collect()
    taken = (tracemalloc.get_traced_memory()[0] - before) / queued
    tracemalloc.stop()
    assert core.state.waiting == queued
    return _say("core: memory per queued request", taken, CORE_BYTES_MAX, "bytes")


SLOW = """
[server]
port = 0
[devices.ram]
reserve = "64MiB"
[lanes.default]
queue_max = {queued}
max_wait = "10m"
[models.bench]
engine = "scripted"
memory = "64MiB"
script = {{load = "9m"}}
"""


async def wait_over_http(port: int, pid: int, queued: int) -> float:
    """Bytes of the daemon's RSS for each of N waiting clients."""
    before = psutil.Process(pid).memory_info().rss
    writers: list[asyncio.StreamWriter] = []
    for number in range(queued):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(port, number % 2 * 16))  # every other one wants a stream
        writers.append(writer)

    async def all_wait() -> bool:
        return await asyncio.to_thread(queue_length, port) >= queued

    await eventually(all_wait, 60)
    after = psutil.Process(pid).memory_info().rss
    for writer in writers:
        writer.transport.abort()
    return (after - before) / queued


def queue_length(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/wb/v1/status", timeout=30) as answer:
        return json.load(answer)["lanes"]["default"]["queued"]


def over_http(queued: int) -> bool:
    """The same with clients."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "watchbill.toml"
        config.write_text(SLOW.format(queued=queued))
        words = ("up", "--config", str(config), "--root", folder, "--port", "0")
        with process(str(Path(sys.executable).with_name("watchbill")), *words) as daemon:
            port = int(first_match(daemon, r"ready http://[^:]+:(\d+)"))
            taken = asyncio.run(wait_over_http(port, daemon.pid, queued))
    return _say("HTTP: RSS per waiting client", taken, REQUEST_BYTES_MAX, "bytes")


def fleet(machines: int, tasks: int) -> list[bool]:
    """Whether a decision costs the same whatever the number of machines and tasks."""
    small = decision_us(machines // 10, tasks // 10)
    wide, long = decision_us(machines, tasks // 10), decision_us(machines, tasks)
    print(f"fleet: {small:.0f} us a decision with {machines // 10:,} machines and {tasks // 10:,} tasks")
    return [
        _say(f"fleet: {machines:,} machines, {tasks // 10:,} tasks", wide / small, FLAT_MAX, "x"),
        _say(f"fleet: {machines:,} machines, {tasks:,} tasks", long / small, FLAT_MAX, "x"),
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _say(what: str, value: float, goal: float, unit: str) -> bool:
    fine = value <= goal
    print(f"{'pass' if fine else 'FAIL'}  {what}: {value:,.2f} {unit} (at most {goal:,.6g})")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=8)
    parser.add_argument("--machines", type=int, default=1_000)
    parser.add_argument("--tasks", type=int, default=40_000)
    asked = parser.parse_args()
    fine = [core_alone(asked.models, asked.queued)]
    fine += [asyncio.run(measure(how, asked.models, asked.queued)) for how in ("busy", "loading")]
    # Both ends of each connection count for the limit of files.
    fine.append(over_http(min(asked.queued, 8_000)))
    fine += fleet(asked.machines, asked.tasks)
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
