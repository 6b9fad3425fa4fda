"""What upsets a daemon while it keeps its promises: edits of its config, and engines that stand still."""

import http.client
import json
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Editor", "Lane", "Settings", "Stop", "Stopper"]

#: What one model may hold: the weights of the small model, two contexts, and the program.
MODEL_BYTES = 200_000_000
#: A saved file is in force after this: the daemon looks every 2 s.
ADOPTED_S = 3.0
EDIT_EVERY_S = 5.0
#: A model that is taken out comes back after this, when the daemon looks: before the next edit.
OUT_S = 1.0
#: The pause of an editor that saves twice.
TWICE_S = (0.02, 0.4)
STOP_EVERY_S = 60.0
#: The first engine stops after this part of the interval.
FIRST_STOP = 1 / 3
#: An engine that is continued stands still for so long.
STILL_S = (2.0, 6.0)
#: An engine is left to be found only where the run lasts this much longer.
FOUND_S = 150.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of the config."""

    work_class: str
    max_wait_s: int
    timeout_s: int
    fallback: str = ""


class Settings:
    """The config in its file, and since when each lane has the bounds that it has."""

    def __init__(
        self, file: Path, capacity: int, models: Mapping[str, int], permanent: str, lanes: Mapping[str, Lane]
    ) -> None:
        self._file, self._capacity, self._permanent = file, capacity, permanent
        self.priorities = dict(models)
        self.lanes = dict(lanes)
        self.idle_s = dict.fromkeys(models, 300)
        self.missing: set[str] = set()
        self._bounds: list[tuple[float, dict[str, float]]] = []
        self._lock = threading.Lock()

    def save(self) -> None:
        """Writes the file as an editor does: a new one takes the place of the old one."""
        bounds = {name: float(lane.max_wait_s + lane.timeout_s) for name, lane in self.lanes.items()}
        with self._lock:
            self._bounds.append((time.monotonic(), bounds))
        draft = self._file.with_suffix(".draft")
        draft.write_text(self.text())
        draft.replace(self._file)

    def save_half(self) -> None:
        """Writes a file that breaks off."""
        text = self.text()
        self._file.write_text(text[: len(text) // 2] + "\n[lanes")

    def text(self) -> str:
        """The config."""
        lines = ["[devices.ram]", f'capacity = "{self._capacity}B"', 'reserve = "0B"']
        for name, priority in self.priorities.items():
            if name not in self.missing:
                lines += [f"[models.{name}]", 'engine = "llamacpp"', *self._model(name, priority)]
        for name, lane in self.lanes.items():
            lines += [f"[lanes.{name}]", f'class = "{lane.work_class}"', f'max_wait = "{lane.max_wait_s}s"']
            lines += [f'timeout = "{lane.timeout_s}s"']
            lines += [f'fallback = "{lane.fallback}"'] if lane.fallback else []
        return "\n".join(lines) + "\n"

    def _model(self, name: str, priority: int) -> list[str]:
        return [
            'source = "model.gguf"', f'memory = "{MODEL_BYTES}B"', "context = 512", "threads = 1", "concurrency = 2",
            f"priority = {priority}", f'idle = "{self.idle_s[name]}s"',
            f"permanent = {str(name == self._permanent).lower()}",
        ]  # fmt: skip

    def bound_s(self, lane: str, at: float) -> float:
        """The longest time a request of this moment may take. A file that was just saved may be in force or not."""
        with self._lock:
            saved = list(self._bounds)
        old = [bounds for since, bounds in saved if since <= at - ADOPTED_S][-1:] or [saved[0][1]]
        new = [bounds for since, bounds in saved if at - ADOPTED_S < since <= at]
        return max(bounds[lane] for bounds in (*old, *new))


@dataclass(slots=True)
class Edits:
    """What came of the edits."""

    saved: int = 0
    taken_out: int = 0  # models, for a while
    refused: int = 0  # asked for by hand while the file was broken
    unexpected: list[str] = field(default_factory=list)


class Editor:
    """Edits the config every five seconds."""

    def __init__(self, settings: Settings, port: int, draw: random.Random, busy: Sequence[str]) -> None:
        self._settings, self._port, self._draw, self._busy = settings, port, draw, busy
        self._usual = dict(settings.lanes)
        self.edits = Edits()

    def run(self, ends: float) -> None:
        """Edits until the time is over."""
        kinds = [
            self._harmless, self._reprioritize, self._repatience, self._take_out, self._save_twice, self._break,
        ]  # fmt: skip
        due, number = time.monotonic() + EDIT_EVERY_S, 0
        while due < ends:
            time.sleep(max(0.0, due - time.monotonic()))
            kinds[number % len(kinds)]()
            number, due = number + 1, due + EDIT_EVERY_S

    def _harmless(self) -> None:
        """A key that no process sees. The daemon finds it by itself."""
        name = self._draw.choice(list(self._settings.idle_s))
        self._settings.idle_s[name] = self._draw.randint(200, 400)
        self._save()

    def _reprioritize(self) -> None:
        """The priorities go round."""
        old = self._settings.priorities
        names = list(old)
        self._settings.priorities = dict(
            zip(names, [*(old[n] for n in names[1:]), old[names[0]]], strict=True)
        )
        self._save()
        self._reload()

    def _repatience(self) -> None:
        """A lane's max_wait: a third less, or what it was."""
        name = self._draw.choice(list(self._settings.lanes))
        now, usual = self._settings.lanes[name], self._usual[name]
        shorter = replace(usual, max_wait_s=usual.max_wait_s * 2 // 3)
        self._settings.lanes[name] = shorter if now == usual else usual
        self._save()

    def _take_out(self) -> None:
        """A model that is used goes, and comes back later."""
        self._without(OUT_S)
        self._save()

    def _save_twice(self) -> None:
        """An editor that saves twice: the first time a model is missing."""
        self._without(self._draw.uniform(*TWICE_S))
        self._save()
        self._reload()

    def _without(self, seconds: float) -> None:
        self._settings.missing = {self._draw.choice(self._busy)}
        self.edits.taken_out += 1
        self._save()
        self._reload()
        time.sleep(seconds)
        self._settings.missing = set()

    def _break(self) -> None:
        """Half a file, then the whole one."""
        self._settings.save_half()
        self._reload(broken=True)
        self._save()
        self._reload()

    def _save(self) -> None:
        self._settings.save()
        self.edits.saved += 1

    def _reload(self, *, broken: bool = False) -> None:
        status, body = _ask(self._port, "POST", "/wb/v1/config/reload")
        if broken and status != http.client.OK:
            self.edits.refused += 1
        elif broken or status != http.client.OK:
            self.edits.unexpected.append(f"{status}: {json.dumps(body)[:300]}")


@dataclass(slots=True)
class Stop:
    """An engine that stands still."""

    model: str
    at: float
    is_left: bool  # to be found by the daemon
    continued_at: float | None = None
    gone_at: float | None = None  # its process is no more

    @property
    def over_at(self) -> float | None:
        """From when on its model may answer again."""
        ends = [at for at in (self.continued_at, self.gone_at) if at is not None]
        return min(ends, default=None)


class Stopper:
    """Stops an engine every minute: one that goes on by itself, then one that does not.

    A swap takes most of those that stand still. The permanent model is never swapped, so every second one that is left
    is that one: nothing but the watchdog finds it.
    """

    def __init__(self, port: int, draw: random.Random, busy: Sequence[str], permanent: str) -> None:
        self._port, self._draw, self._busy, self._permanent = port, draw, busy, permanent
        self.stops: list[Stop] = []

    def run(self, ends: float) -> None:
        """Stops engines until the time is over, and watches what becomes of them."""
        watching: list[threading.Thread] = []
        due = time.monotonic() + FIRST_STOP * STOP_EVERY_S
        while due < ends:
            time.sleep(max(0.0, due - time.monotonic()))
            is_left = len(watching) % 2 == 1 and time.monotonic() + FOUND_S < ends
            found = self._one(is_permanent=is_left and len(watching) % 4 == 1)
            if found is None:
                due += LOOK_S
                continue
            watching.append(threading.Thread(target=self._stop, args=(*found, is_left, ends)))
            watching[-1].start()
            due += STOP_EVERY_S
        for thread in watching:
            thread.join()

    def _one(self, *, is_permanent: bool) -> tuple[str, psutil.Process] | None:
        """A warm model of those that are used all the time, which does not stand still already."""
        _, status = _ask(self._port, "GET", "/wb/v1/status")
        still = {stop.model for stop in self.stops if stop.over_at is None}
        wanted = {self._permanent} if is_permanent else {self._permanent, *self._busy}
        warm = [
            (name, model["pid"])
            for name, model in status["models"].items()
            if name in wanted - still and model["state"] == "ready"
        ]
        if not warm:
            return None
        name, pid = self._draw.choice(sorted(warm))
        try:
            return name, psutil.Process(pid)
        except psutil.NoSuchProcess:  # it was just unloaded
            return None

    def _stop(self, model: str, process: psutil.Process, is_left: bool, ends: float) -> None:
        stop = Stop(model, time.monotonic(), is_left)
        self.stops.append(stop)
        try:
            process.send_signal(signal.SIGSTOP)
            if not is_left:
                time.sleep(self._draw.uniform(*STILL_S))
                process.send_signal(signal.SIGCONT)
                stop.continued_at = time.monotonic()
        except psutil.NoSuchProcess:
            pass
        while stop.over_at is None and time.monotonic() < ends:
            if not _lives(process):
                stop.gone_at = time.monotonic()
            time.sleep(LOOK_S)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ask(port: int, method: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            method, path, "{}" if method == "POST" else None, {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()
