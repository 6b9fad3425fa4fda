"""Intents and answers: how the daemon asks the host for a unit, and how the host replies.

    ROOT/reactor/intents/ID.json    written by the daemon: a verb, a unit, why, and until when it is meant
    ROOT/reactor/done/ID.json       written by the reactor: what became of it

Both appear whole or not at all (a draft, then a rename). The process that removes an intent acts on it: the reactor
before it acts, or the daemon when it changes its mind, so it never happens that both believe the other one has it.
"""

import itertools
import secrets
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from watchbill.catalog import Model
from watchbill.files.atomic import NotAFile
from watchbill.files.mailbox import Box
from watchbill.names import file_stem
from watchbill.reactor import limits

__all__ = [
    "DONE_FOLDER", "INTENTS_FOLDER", "REACTOR_FOLDER", "Answer", "Intent", "Mailbox", "Verb", "unit_of",
]  # fmt: skip

REACTOR_FOLDER, INTENTS_FOLDER, DONE_FOLDER = "reactor", "intents", "done"

Verb = Literal["start", "stop", "restart"]


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the daemon asks for. The reactor's own list decides whether the unit may be touched."""

    id: str
    verb: Verb
    unit: str
    model: str
    reason: str
    issued_at: datetime
    expires_at: datetime


class Answer(msgspec.Struct, frozen=True):
    """What became of an intent."""

    id: str
    ok: bool
    refused: bool = False  # it was not even tried
    state: str = ""  # of the unit: active, activating, inactive, failed
    text: str = ""
    finished_at: datetime | None = None


def unit_of(model: Model) -> str:
    """The unit that hosts a model."""
    return model.unit or f"watchbill-{file_stem(model.name)}.service"


class Mailbox:
    """The daemon's side of the folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._intents = root / REACTOR_FOLDER / INTENTS_FOLDER
        self._done = root / REACTOR_FOLDER / DONE_FOLDER
        self._numbers = itertools.count()

    def post(self, verb: Verb, model: Model, reason: str) -> Intent:
        """Writes an intent down. Ids sort by time, so that the reactor takes them in order."""
        now = datetime.now(UTC)
        number = f"{time.time_ns() // 1_000_000:015d}-{next(self._numbers):06d}-{secrets.token_hex(4)}"
        life = timedelta(milliseconds=limits.REACTOR_ANSWER_MS)
        intent = Intent(number, verb, unit_of(model), model.name, reason, now, now + life)
        for folder in (self._intents, self._done):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Box(self._intents) as box:
            box.put(f"{intent.id}.json", msgspec.json.encode(intent) + b"\n")
        return intent

    def withdraw(self, intent: Intent) -> bool:
        """Takes an intent back. False when the reactor has it already, and will act or has acted on it."""
        try:
            with Box(self._intents) as box:
                return box.remove(f"{intent.id}.json")
        except FileNotFoundError:  # the folder itself is gone
            return False

    def is_waiting(self, intent: Intent) -> bool:
        """Whether no reactor has taken it yet."""
        return (self._intents / f"{intent.id}.json").exists()

    def answer(self, intent: Intent) -> Answer | None:
        """The reactor's answer, once it is there. One that cannot be read is an answer, too: a bad one."""
        try:
            with Box(self._done) as box:
                text = box.read(f"{intent.id}.json", limits.INTENT_BYTES_MAX)
            return msgspec.json.decode(text, type=Answer)
        except FileNotFoundError:
            return None
        except (NotAFile, msgspec.DecodeError) as error:
            return Answer(intent.id, ok=False, text=f"the reactor's answer cannot be read: {error}")
