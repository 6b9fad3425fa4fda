"""Promised against kept: who waits how long on real llama.cpp while everything that can upset it does.

    python bench/promises.py [--seconds 600] [--seed 1] [--source FILE.gguf] [--keep FOLDER] [--json]

A real daemon holds three of seven models of the real engine, one of them permanent: the embedded small model under
seven names. People chat, streamed and whole, background loops never pause, and three single calls for cold models of
different priority wait together again and again. Meanwhile the config is edited every five seconds (a key that no
process sees, priorities, a lane's `max_wait`, a model that is taken out and put back, an editor that saves twice, half
a file), and every minute an engine is stopped (SIGSTOP): some go on by themselves, some are left to be found.

Every request has a bound: the `max_wait` and the `timeout` of its lane. Exit 1 if a request was answered later than
that and one second, the allowance for a client on a busy machine, if a request was not answered at all, if memory
exceeded its budget, or if the daemon left a process behind.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from kept import Call, Seen, judged, told
from playing import chat, daemon, journal
from upsets import EDIT_EVERY_S, MODEL_BYTES, Editor, Lane, Settings, Stopper
from watchbill.simulate.trace import Trace
from watching import left_behind, memory_below

#: Three models fit.
BUDGET = 3 * MODEL_BYTES + MODEL_BYTES // 10
#: Model -> its priority at first.
MODELS = {"talk": 2, "desk": 3, "index": 4, "digest": 5, "first": 1, "middle": 3, "last": 5}
#: It stays, so the watchdog alone can find that it stands still.
PERMANENT = "desk"
#: These are used all the time, so they are the ones that are taken out, and stopped like the permanent one.
BUSY = ("talk", "index", "digest")
#: These are asked for together.
CROWD = ("first", "middle", "last")
LANES = {
    "chat": Lane("interactive", 30, 20),
    "quick": Lane("interactive", 15, 8),
    "reflex": Lane("interactive", 12, 5, "I keep my eyes open."),
    "once": Lane("normal", 60, 30),
    "backlog": Lane("background", 90, 20),
}
#: A crowd comes with each third edit, when the edit is in force.
CROWD_EDITS, CROWD_AFTER_S = 3, 3.5
#: A caller who was refused comes back after this at the latest.
PAUSE_MAX_S = 2.0
#: A request without an answer this long after its bound has none.
UNANSWERED_S = 30.0
TOPICS = ("the sea", "a lamp", "an old map", "bread", "a night watch", "rain", "a bridge", "the harbour")


@dataclass(frozen=True, slots=True)
class Role:
    """Callers that ask again when they have their answer."""

    lane: str
    model: str
    clients: int
    think_s: tuple[float, float]
    tokens: tuple[int, int]
    streams: bool


CAST = (
    Role("chat", "talk", 2, (1.0, 4.0), (8, 20), streams=True),
    Role("chat", "desk", 1, (2.0, 6.0), (8, 20), streams=False),
    Role("quick", "desk", 1, (3.0, 8.0), (2, 6), streams=True),
    Role("reflex", "talk", 1, (3.0, 6.0), (2, 6), streams=False),
    Role("backlog", "index", 2, (0.0, 0.05), (4, 16), streams=False),
    Role("backlog", "digest", 1, (0.0, 0.05), (4, 16), streams=True),
)


def main() -> int:
    """Plays, and prints what was promised and what was kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--source", type=Path, help="a GGUF file; the embedded small model otherwise")
    parser.add_argument(
        "--keep", type=Path, help="a new folder for the config, the journal and the recording"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    source = (arguments.source or _embedded_model()).resolve()
    with tempfile.TemporaryDirectory(prefix="watchbill-promises-") as folder:
        place = arguments.keep or Path(folder)
        place.mkdir(exist_ok=True)
        result = play(place.resolve(), source, arguments.seconds, arguments.seed)
    print(json.dumps(result) if arguments.json else told(result))
    return 0 if result["kept"] else 1


def play(place: Path, source: Path, seconds: int, seed: int) -> dict[str, object]:
    """One run in this folder."""
    (place / "model.gguf").symlink_to(source)
    settings = Settings(place / "watchbill.toml", BUDGET, MODELS, PERMANENT, LANES)
    settings.save()
    with daemon(place) as up, memory_below(up.pid) as peak:
        began = time.monotonic()
        wall_s = time.time() - began
        draws = [random.Random(f"{seed} {name}") for name in ("callers", "edits", "stops")]
        callers = Callers(settings, up.port, draws[0])
        editor = Editor(settings, up.port, draws[1], BUSY)
        stopper = Stopper(up.port, draws[2], BUSY, PERMANENT)
        acts = (callers.run, editor.run, stopper.run)
        threads = [threading.Thread(target=act, args=(began + seconds,)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = Seen(
        began_s=began, wall_s=wall_s, calls=callers.calls, stops=stopper.stops, edits=editor.edits,
        journal=journal(place), trace=Trace.read(place / "trace.jsonl"), peak=peak.bytes, budget=BUDGET,
        left=left_behind(place), exit_code=up.exit_code, down_s=up.down_s,
    )  # fmt: skip
    return {"seconds": seconds, "seed": seed, "cores": os.cpu_count(), **judged(seen, LANES)}


def _embedded_model() -> Path:
    """The embedded small model, fetched once."""
    root = Path(tempfile.gettempdir()) / "watchbill-promises"
    command = [sys.executable, "-m", "watchbill", "pull", "smollm2", "--root", str(root), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Path(json.loads(done.stdout)["path"])


class Callers:
    """Everybody who asks for something."""

    def __init__(self, settings: Settings, port: int, draw: random.Random) -> None:
        self._settings, self._port, self._draw = settings, port, draw
        self.calls: list[Call] = []

    def run(self, ends: float) -> None:
        """Everybody asks until the time is over and has an answer."""
        asking = [
            threading.Thread(target=self._loop, args=(role, random.Random(self._draw.random()), ends))
            for role in CAST
            for _ in range(role.clients)
        ]
        asking.append(threading.Thread(target=self._crowds, args=(ends,)))
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    def _loop(self, role: Role, draw: random.Random, ends: float) -> None:
        while time.monotonic() < ends:
            time.sleep(draw.uniform(*role.think_s))
            tokens, topic = draw.randint(*role.tokens), draw.choice(TOPICS)
            call = self._ask(role.lane, role.model, tokens, topic, streams=role.streams)
            if not call.is_answered:
                time.sleep(min(PAUSE_MAX_S, call.retry_after_s or PAUSE_MAX_S))

    def _crowds(self, ends: float) -> None:
        """Calls for cold models that come at the same time. One crowd waits at a time."""
        due = time.monotonic() + EDIT_EVERY_S + CROWD_AFTER_S
        for number in itertools.count(1):
            if due >= ends:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            together = self._draw.sample(CROWD, len(CROWD))
            threads = [threading.Thread(target=self._join, args=(model, number)) for model in together]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            while due < time.monotonic():
                due += CROWD_EDITS * EDIT_EVERY_S

    def _join(self, model: str, crowd: int) -> None:
        self._ask("once", model, 8, "a lighthouse", streams=False, crowd=crowd)

    def _ask(
        self, lane: str, model: str, tokens: int, topic: str, *, streams: bool, crowd: int | None = None
    ) -> Call:
        began, priority = time.monotonic(), self._settings.priorities[model]
        bound_s = self._settings.bound_s(lane, began)
        text, reply = f"Tell me about {topic}.", None
        with contextlib.suppress(OSError, http.client.HTTPException):  # no answer, which is counted
            reply = chat(
                self._port,
                model,
                lane,
                tokens=tokens,
                text=text,
                stream=streams,
                answer_s=bound_s + UNANSWERED_S,
            )
        took_s = time.monotonic() - began
        call = Call(lane, model, priority, streams, crowd, bound_s, began, took_s, reply)
        self.calls.append(call)
        return call


if __name__ == "__main__":
    sys.exit(main())
