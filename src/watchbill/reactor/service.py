"""The reactor: takes intents, checks each against the operator's own list, acts, and answers.

An intent is refused when it is not a small plain file, cannot be read, names a unit that the command line did not
allow, is expired, from the future or meant for longer than an intent may live, or comes a second time. A refusal is
written into the reactor's log and, where there is an id to answer to, into `done`. What is accepted is done in the
order in which it came, unit by unit; different units do not wait for each other.

An intent is removed before it is acted on. A reactor that dies in between has done nothing twice; the daemon's own
deadline tells it that nothing was done.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from watchbill.errors import NameRefused
from watchbill.files.atomic import NotAFile
from watchbill.files.disk import DISK_FAULTS
from watchbill.files.watch import Watch
from watchbill.names import check_request_id, check_unit_name, header_text
from watchbill.reactor import limits
from watchbill.reactor.folders import Folders
from watchbill.reactor.intents import INTENTS_FOLDER, Answer, Intent
from watchbill.reactor.systemctl import Systemctl

__all__ = ["OWN_UNITS", "Reactor", "Refused"]

#: The daemon and the reactor cannot be stopped through the reactor, even if the list names them.
OWN_UNITS = frozenset({"watchbill.service", "watchbill-reactor.service"})
_IS_DOWN = frozenset({"inactive", "failed"})
Outcome = TypeVar("Outcome")
_LOG = logging.getLogger("watchbill.reactor")


class Refused(Exception):
    """An intent that is not acted on; the text says why."""


class Reactor:
    """Serves one root."""

    def __init__(self, root: Path, allow: Sequence[str], systemctl: Systemctl) -> None:
        self._folders = Folders(root)
        self._watch = Watch(self._folders.path / INTENTS_FOLDER)
        self._allow = tuple(allow)
        self._systemctl = systemctl
        self._threads = ThreadPoolExecutor(limits.REACTOR_WORKERS_MAX, "systemctl")
        self._lines: dict[str, deque[Intent]] = {}  # unit -> what is still to be done with it
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._ignored: set[str] = set()  # entries that can be neither read nor removed, told of once
        self._is_stopping = False

    async def serve(self) -> None:
        """Works until `stop` is called, then ends what it has begun."""
        cleaned_at = float("-inf")
        clock = asyncio.get_running_loop().time
        while not self._is_stopping:
            if clock() - cleaned_at > limits.REACTOR_CLEAN_MS / 1000:
                self._folders.clean()
                cleaned_at = clock()
            self.take()
            await self._in_thread(partial(self._watch.wait, limits.REACTOR_LOOK_MS / 1000))
        await self.finish()

    async def finish(self) -> None:
        """Waits until everything that was taken is done."""
        while self._workers:
            await asyncio.wait(self._workers.values())

    def stop(self) -> None:
        """Takes nothing new from now on."""
        self._is_stopping = True
        self._watch.wake()

    def close(self) -> None:
        """Lets go of everything."""
        self._threads.shutdown()
        self._watch.close()
        self._folders.close()

    # ------------------------------------------------------------------ taking and refusing

    def take(self) -> None:
        """Takes every intent that is there."""
        names = self._folders.names()
        self._ignored.intersection_update(names)
        for name in names:
            if name in self._ignored:
                continue
            try:
                intent = self._accept(name)
            except FileNotFoundError:
                continue  # withdrawn
            except Refused as refusal:
                self._refuse(name, str(refusal))
                continue
            if self._folders.intents.remove(name):
                self._enqueue(intent)

    def _accept(self, name: str) -> Intent:
        """The intent in a file, if it is one that may be acted on. Raises Refused."""
        try:
            id_ = check_request_id(name.removesuffix(".json"))
            intent = msgspec.json.decode(self._folders.read(name), type=Intent)
            check_unit_name(intent.unit)
        except (NameRefused, NotAFile, msgspec.DecodeError) as error:
            raise Refused(str(error)) from error
        if name != f"{intent.id}.json" or id_ != intent.id:
            raise Refused("its name is not its id")
        if self._folders.done.holds(name):
            raise Refused("it was answered before")
        _check_times(intent, datetime.now(UTC))
        if intent.unit in OWN_UNITS or not any(fnmatchcase(intent.unit, each) for each in self._allow):
            raise Refused(f"{intent.unit} is not allowed; allowed are {', '.join(self._allow)}")
        if len(self._lines.get(intent.unit, ())) >= limits.REACTOR_UNIT_INTENTS_MAX:
            raise Refused(f"{limits.REACTOR_UNIT_INTENTS_MAX} intents wait for {intent.unit} already")
        return intent

    def _refuse(self, name: str, why: str) -> None:
        id_ = name.removesuffix(".json")
        self._note("refused", id_, why)
        is_ours = self._folders.intents.remove(name)
        if not is_ours:
            self._ignored.add(name)
        elif _is_id(id_) and not self._folders.done.holds(name):
            self._answer(Answer(id_, ok=False, refused=True, text=why))

    # ------------------------------------------------------------------ acting

    def _enqueue(self, intent: Intent) -> None:
        unit = intent.unit
        self._lines.setdefault(unit, deque()).append(intent)
        if unit not in self._workers:
            self._workers[unit] = asyncio.create_task(self._work(unit), name=unit)

    async def _work(self, unit: str) -> None:
        """Does what is to be done with one unit, one after the other."""
        line = self._lines[unit]
        try:
            while line:
                intent = line.popleft()
                answer = await self._act(intent)
                self._note(intent.verb, intent.id, answer.text or answer.state, intent, answer.ok)
                self._answer(answer)
        finally:
            del self._lines[unit], self._workers[unit]

    async def _act(self, intent: Intent) -> Answer:
        if datetime.now(UTC) > intent.expires_at:
            return Answer(intent.id, ok=False, refused=True, text="it expired while it waited")
        if intent.verb == "stop":
            return await self._stop_unit(intent)
        return await self._start_unit(intent)

    async def _stop_unit(self, intent: Intent) -> Answer:
        done, said = await self._in_thread(partial(self._systemctl.act, "stop", intent.unit))
        state = await self._in_thread(partial(self._systemctl.state, intent.unit))
        ok = state.active in _IS_DOWN or (done and not state.active)
        return Answer(intent.id, ok, state=state.active, text=said)

    async def _start_unit(self, intent: Intent) -> Answer:
        """Starts without waiting: a unit may need minutes, and a stop must not have to wait for it."""
        act = partial(self._systemctl.act, intent.verb, intent.unit, wait=False)
        done, said = await self._in_thread(act)
        if not done:
            return Answer(intent.id, ok=False, text=said)
        clock = asyncio.get_running_loop().time
        deadline = clock() + limits.REACTOR_START_LOOK_MS / 1000
        while True:
            state = await self._in_thread(partial(self._systemctl.state, intent.unit))
            is_settled = not state.has_job and state.active in _IS_DOWN | {"active"}
            if is_settled or clock() >= deadline or self._lines[intent.unit]:
                break
            await asyncio.sleep(limits.REACTOR_STATE_POLL_MS / 1000)
        ok = state.active in ("active", "activating", "reloading") or state.has_job
        why = f"{state.active or 'unknown'} ({state.result}); see: journalctl -u {intent.unit}"
        return Answer(intent.id, ok, state=state.active, text=said if ok else f"{said} {why}")

    async def _in_thread(self, act: Callable[[], Outcome]) -> Outcome:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    # ------------------------------------------------------------------ words

    def _answer(self, answer: Answer) -> None:
        finished = msgspec.structs.replace(answer, finished_at=datetime.now(UTC), text=_one_line(answer.text))
        with _disk_may_be_full(f"the answer to {answer.id}"):
            self._folders.answer(f"{answer.id}.json", msgspec.json.encode(finished) + b"\n")

    def _note(self, event: str, id_: str, text: str, intent: Intent | None = None, ok: bool = False) -> None:
        """Write one line to the reactor's log file, and one to the process's own log."""
        line: dict[str, object] = {"t": datetime.now(UTC), "event": event, "id": header_text(id_), "ok": ok}
        if intent is not None:
            line |= {
                "unit": intent.unit,
                "model": header_text(intent.model),
                "reason": _one_line(intent.reason),
            }
        line["text"] = _one_line(text)
        with _disk_may_be_full("the log"):
            self._folders.log(msgspec.json.encode(line))
        level = logging.INFO if ok else logging.WARNING
        _LOG.log(level, "%s %s: %s", event, line.get("unit", line["id"]), line["text"])


@contextlib.contextmanager
def _disk_may_be_full(what: str) -> Generator[None]:
    """A full disk does not prevent stopping a unit; the daemon's own deadline covers a lost answer."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        _LOG.error("%s could not be written: %s", what, error.strerror)


def _one_line(text: str) -> str:
    return header_text(" ".join(text.split()), limits.REACTOR_TEXT_CHARS_MAX)


def _is_id(text: str) -> bool:
    try:
        check_request_id(text)
    except NameRefused:
        return False
    return True


def _check_times(intent: Intent, now: datetime) -> None:
    """Raises Refused for an intent that is not meant for now."""
    if intent.issued_at.tzinfo is None or intent.expires_at.tzinfo is None:
        raise Refused("its times have no zone")
    if intent.expires_at < now:
        raise Refused(f"it expired at {intent.expires_at.isoformat()}")
    if intent.issued_at > now + timedelta(milliseconds=limits.INTENT_SKEW_MS_MAX):
        raise Refused("it was issued in the future; are the clocks right?")
    life = timedelta(milliseconds=limits.INTENT_LIFE_MS_MAX)
    if intent.issued_at < now - life or intent.expires_at - intent.issued_at > life:
        raise Refused(f"it is stale, or meant for longer than {limits.INTENT_LIFE_MS_MAX // 1000} s")
