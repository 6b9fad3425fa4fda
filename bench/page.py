"""What the page costs a browser without a graphics card, while much happens: a share of one core, by process.

    make bench BENCH=page [ARGS="--seconds 30 --profile"]

100 models, 1,000 waiting requests of which 20 a second are served, and 1,000 lines of the journal a second, two of them
about models that come and go. Each view that moves is measured in a page of its own. Needs Chromium.
"""

import argparse
import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import CHROMIUM, Browser, Page, browser  # noqa: E402  the tests are no package
from support.open_gateway import CATALOG, MIB, open_gateway  # noqa: E402
from watchbill.catalog import Lane, Model  # noqa: E402
from watchbill.core.messages import JournalEvent, Note  # noqa: E402
from watchbill.runtime.ticket import Submission, Ticket  # noqa: E402
from watchbill.units import Millis  # noqa: E402

#: A share of one core, all processes of the browser together (issue 19).
GOAL = 0.05
VIEWS = ("now", "journal")
MODELS, WAITING, READY = 100, 1_000, 6
STEP_S, LINES_A_STEP, SERVED_A_STEP, STEPS_A_MOVE = 0.05, 50, 1, 10
SETTLE_S = 6.0
WINDOWS = 4
METRICS = (
    "ScriptDuration",
    "LayoutDuration",
    "RecalcStyleDuration",
    "TaskDuration",
    "LayoutCount",
    "RecalcStyleCount",
)


def main() -> None:
    """Measures every view and prints pass or fail."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=24)
    parser.add_argument("--profile", action="store_true", help="which functions of the page take its time")
    parser.add_argument("--views", default=",".join(VIEWS))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve())
        return
    if CHROMIUM is None:
        print("page: no chromium: apt install chromium")
        return
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        url = server.stdout.readline().strip()
        found = []
        for view in options.views.split(","):
            with browser() as chromium:
                found.append(_measured(chromium, server.pid, f"{url}/#{view}", view, options))
        server.stdin.close()
    sys.exit(0 if all(found) else 1)


# ------------------------------------------------------------------ the daemon


async def _serve() -> None:
    """A real gateway and a real core, in front of an engine that never answers, until standard input ends."""
    names = [f"model-{number:03d}" for number in range(MODELS)]
    models = {name: Model(name, "peer", concurrency=4, memory=MIB) for name in names}
    lanes = {
        name: Lane(name, queue_max=5_000, max_wait_ms=Millis(10**9)) for name in ("default", "batch", "night")
    }
    async with open_gateway(catalog=replace(CATALOG, models=models, lanes=lanes)) as opened:
        print(opened.url, flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        turn = itertools.cycle(itertools.product(names[:READY], lanes))
        tickets: list[Ticket] = []

        def ask() -> None:
            model, lane = next(turn)
            tickets.append(opened.driver.submit(Submission(model, lane=lane)))

        for _ in range(WAITING):
            ask()
        moves = itertools.cycle(
            (event, name)
            for name in names[READY : READY + 12]
            for event in (JournalEvent.LOAD, JournalEvent.LOADED, JournalEvent.EVICT, JournalEvent.STOPPED)
        )
        for step in itertools.count():
            if ended.done():
                break
            for number in range(LINES_A_STEP):
                reason = f"line {step * LINES_A_STEP + number} of a busy journal"
                opened.driver.actions[Note](Note(JournalEvent.REFUSE, reason, names[number]))
            if step % STEPS_A_MOVE == 0:
                event, name = next(moves)
                opened.driver.actions[Note](Note(event, "a caller asked for it", name))
            for ticket in [each for each in tickets if each.start is not None][:SERVED_A_STEP]:
                tickets.remove(ticket)
                ticket.close()
                ask()
            await asyncio.sleep(STEP_S)
        for ticket in tickets:
            ticket.close()


# ------------------------------------------------------------------ the browser


def _measured(chromium: Browser, server: int, url: str, view: str, options: argparse.Namespace) -> bool:
    page = chromium.open(url)
    page.until("document.querySelector('#pulse')?.dataset.state === 'live'")
    page.ask("Performance.enable")
    time.sleep(SETTLE_S)
    if options.profile:
        page.ask("Profiler.enable")
        page.ask("Profiler.start")
    found = [_window(page, chromium, server, options.seconds / WINDOWS) for _ in range(WINDOWS)]
    share, told = min(found)
    print(f"{'pass' if share < GOAL else 'FAIL'}  {view}: {share:.1%} of a core (goal {GOAL:.0%}): {told}")
    print("      all windows: " + ", ".join(f"{each:.1%}" for each, _ in found))
    if options.profile:
        _show(page.ask("Profiler.stop")["profile"], options.seconds)
    return share < GOAL


def _window(page: Page, chromium: Browser, server: int, seconds: float) -> tuple[float, str]:
    """What one stretch of time cost, and by what. Other work on this machine makes it dearer, never cheaper."""
    before, began, cpu = _metrics(page), time.monotonic(), _cpu(chromium)
    daemon = _own(psutil.Process(server))
    time.sleep(seconds)
    after, lasted, used = _metrics(page), time.monotonic() - began, _cpu(chromium)
    parts = {name: (used[name] - cpu[name]) / lasted for name in used}
    told = [
        f"{name} {part:.1%}"
        for name, part in sorted(parts.items(), key=lambda each: -each[1])
        if part > 0.0005
    ]
    told += [f"{name} {(after[name] - before[name]) / lasted:.3f}/s" for name in METRICS]
    told.append(f"the daemon with its traffic {(_own(psutil.Process(server)) - daemon) / lasted:.1%}")
    return sum(parts.values()), ", ".join(told)


def _metrics(page: Page) -> dict[str, float]:
    return {each["name"]: each["value"] for each in page.ask("Performance.getMetrics")["metrics"]}


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _cpu(chromium: Browser) -> dict[str, float]:
    """Seconds of processor time, by the kind of process."""
    found: Counter[str] = Counter()
    first = psutil.Process(chromium.pid)
    for process in (first, *first.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            kinds = [word.removeprefix("--type=") for word in process.cmdline() if word.startswith("--type=")]
            found[kinds[0] if kinds else "browser"] += _own(process)
    return dict(found)


def _show(profile: dict[str, Any], lasted: float) -> None:
    nodes = {node["id"]: node["callFrame"] for node in profile["nodes"]}
    spent: Counter[str] = Counter()
    for number, delta in zip(profile["samples"], profile["timeDeltas"], strict=True):
        frame = nodes[number]
        spent[
            f"{frame['functionName'] or '-'} {frame['url'].rpartition('/')[2]}:{frame['lineNumber'] + 1}"
        ] += delta
    for name, us in spent.most_common(25):
        print(f"      {us / 1e6 / lasted:7.2%}  {name}")


if __name__ == "__main__":
    main()
