"""The four streams of one spool, their subjects, and the messages in them.

    NAME         NAME.queue.STEM     events that wait or are leased; an acknowledged message is deleted (work queue)
    NAME_poison  NAME.poison.STEM    events that were given up, each with its reason in a header
    NAME_done    NAME.done.STEM      finished events, deleted after `keep_done`
    NAME_state   NAME.state.>        notes: which worker has leased what, and how often an event has failed
                 NAME.wake.STEM      not stored: says that something has arrived

A stem is that of the file names of a spool, so an event keeps its name when it is moved between the two. Every event
has a subject of its own: it is found by its name, and a second copy of an event that still waits is refused.
"""

import base64
import datetime
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchbill.spool.faults import SpoolLayout
from watchbill.spool.jetstream.link import BrokerSays, Link, Received
from watchbill.spool.limits import BROKER_PENDING_MAX, BROKER_TWICE_S
from watchbill.spool.names import SUFFIX, is_event, safe_stem, stem_of, with_attempt

__all__ = [
    "ATTEMPTS", "CONSUMER", "NAME", "REASON", "SIGNATURE", "Stored", "Streams", "from_api", "ns_of_time",
    "stored_of",
]  # fmt: skip

#: Headers of a message. The event itself is the payload, unaltered.
NAME, ATTEMPTS, SIGNATURE, REASON = (
    "Watchbill-Name", "Watchbill-Attempts", "Watchbill-Signature", "Watchbill-Reason",
)  # fmt: skip
CONSUMER = "workers"
#: Answers of JetStream, by their number.
_NOT_FOUND, _STREAM_IN_USE = frozenset({10059, 10014}), 10058
_PLAIN = re.compile(r"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*", re.ASCII)
_SECOND = 1_000_000_000
_ALONE: dict[str, Any] = {}  # what the only server says of its cluster


@dataclass(frozen=True, slots=True)
class Streams:
    """The names of one spool's streams and subjects."""

    name: str

    @property
    def poison(self) -> str:
        return f"{self.name}_poison"

    @property
    def done(self) -> str:
        return f"{self.name}_done"

    @property
    def state(self) -> str:
        return f"{self.name}_state"

    def subject(self, kind: str, stem: str) -> str:
        """The subject of an event; a stem that is no subject is replaced by a hash of itself."""
        is_plain = len(stem) <= 160 and _PLAIN.fullmatch(stem) is not None
        token = (
            stem
            if is_plain
            else f"x{hashlib.sha256(stem.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
        )
        return f"{self.name}.{kind}.{token}"

    async def ensure(self, link: Link, *, replicas: int, lease_s: float, keep_done_s: float) -> None:
        """Make what is missing, and take over changed settings. Raises SpoolLayout for a stream of another kind."""
        once = {"max_msgs_per_subject": 1, "allow_direct": True, "storage": "file", "num_replicas": replicas}
        queue = once | {
            "retention": "workqueue", "discard": "new", "discard_new_per_subject": True,
            "duplicate_window": int(BROKER_TWICE_S * _SECOND),
            "republish": {"src": f"{self.name}.queue.>", "dest": f"{self.name}.wake.>", "headers_only": True},
        }  # fmt: skip
        await self._ensure_stream(link, self.name, "queue", queue)
        await self._ensure_stream(link, self.poison, "poison", once)
        await self._ensure_stream(link, self.state, "state", once | {"allow_msg_ttl": True})
        if keep_done_s > 0:
            # A window for duplicates must not be longer than the age.
            window = int(min(BROKER_TWICE_S, keep_done_s) * _SECOND)
            kept = {"max_age": int(keep_done_s * _SECOND), "duplicate_window": window}
            await self._ensure_stream(link, self.done, "done", once | kept)
        consumer = {
            "durable_name": CONSUMER, "name": CONSUMER, "ack_policy": "explicit", "deliver_policy": "all",
            "ack_wait": int(lease_s * _SECOND), "max_deliver": -1, "max_ack_pending": BROKER_PENDING_MAX,
        }  # fmt: skip
        await link.api(
            f"CONSUMER.CREATE.{self.name}.{CONSUMER}",
            {"stream_name": self.name, "config": consumer, "action": ""},
        )

    async def servers_behind(self, link: Link) -> list[str]:
        """The servers of a cluster that keep no copy of new events now."""
        info = await link.api(f"STREAM.INFO.{self.name}")
        copies: list[dict[str, Any]] = (info.get("cluster") or _ALONE).get("replicas") or []
        return sorted(str(each["name"]) for each in copies if each.get("offline") or not each.get("current"))

    async def _ensure_stream(self, link: Link, stream: str, kind: str, config: Mapping[str, Any]) -> None:
        wanted = {"name": stream, "subjects": [f"{self.name}.{kind}.>"], **config}
        try:
            known = (await link.api(f"STREAM.INFO.{stream}"))["config"]
        except BrokerSays as error:
            if error.number not in _NOT_FOUND:
                raise
            await self._create(link, stream, wanted)
            return
        fixed = {"retention": "limits", "storage": "file"} | dict(config)
        if any(known.get(key) != fixed[key] for key in ("retention", "storage")):
            raise SpoolLayout(
                f"the stream {stream} is none of Watchbill's; name another with stream = ..., or remove it"
            )
        if any(known.get(key) != value for key, value in wanted.items()):
            await link.api(f"STREAM.UPDATE.{stream}", {**known, **wanted})

    @staticmethod
    async def _create(link: Link, stream: str, wanted: Mapping[str, Any]) -> None:
        try:
            await link.api(f"STREAM.CREATE.{stream}", wanted)
        except BrokerSays as error:
            if error.number != _STREAM_IN_USE:  # else another process was faster
                raise


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of a stream."""

    stream: str
    seq: int
    name: str  # with attempt 0
    data: bytes
    headers: Mapping[str, str]
    at_ns: int  # when the broker stored it

    @property
    def stem(self) -> str:
        return stem_of(self.name)

    @property
    def attempts(self) -> int:
        """Attempts that it had used up when it was stored."""
        text = self.headers.get(ATTEMPTS, "")
        return int(text) if text.isdecimal() and len(text) < 6 else 0


def stored_of(streams: Streams, message: Received, *, stream: str, seq: int, at_ns: int) -> Stored:
    """A message as an event. One that another program sent is named after its subject and number."""
    subject = message.headers.get("Nats-Subject") or message.subject
    name = message.headers.get(NAME, "")
    if not name:
        token = subject.removeprefix(f"{streams.name}.").partition(".")[2]
        name = f"{token}-{seq}{SUFFIX}"
    # Any program may send a name; it becomes that of a file.
    safe = safe_stem(name if is_event(name) else name + SUFFIX, at_ns)
    return Stored(stream, seq, with_attempt(safe, 0), message.data, message.headers, at_ns)


def from_api(reply: Mapping[str, Any]) -> Received:
    """The message in an answer of STREAM.MSG.GET."""
    message = reply["message"]
    head = base64.b64decode(message.get("hdrs", "")).decode("utf-8", "replace").split("\r\n")[1:]
    headers = {key: value.strip() for key, _, value in (line.partition(":") for line in head) if key}
    return Received(message["subject"], "", base64.b64decode(message.get("data", "")), headers)


def ns_of_time(text: str) -> int:
    """Nanoseconds of a time as the broker writes it."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = datetime.datetime.fromisoformat(whole + "+00:00").timestamp()
    return int(seconds) * _SECOND + int((fraction + "000000000")[:9])
