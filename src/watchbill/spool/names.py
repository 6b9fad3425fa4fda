"""The spool's file names: how they are made and read.

    <ns>-<writer>~<attempt>.jsonl                one event
    <ns>-<writer>.n<lines>~<attempt>.bundle.jsonl  many events in one file
    <ns>-<writer>                                a bucket: a folder of one writer's files
    <ns>-<writer>.n<files>                       a sealed bucket: complete when it appears, never written again

`ns` is the time in nanoseconds, 19 digits, so that names sort by arrival; `writer` is a random 64-bit
number in hex, drawn once per writer. Both together are unique without coordination. A foreign producer
may use any name that ends in `.jsonl` and does not begin with a dot.
"""

import hashlib
import os
import re
import threading
import time

from watchbill.spool.limits import FOREIGN_NAME_BYTES_MAX

__all__ = [
    "SUFFIX", "Stamps", "attempt_of", "bundle_name", "event_names", "is_bucket", "is_bundle", "is_event", "is_own",
    "is_sealed", "lines_of", "new_writer", "next_attempt", "ns_of", "safe_stem", "stem_of", "with_attempt",
    "writer_of",
]  # fmt: skip

SUFFIX = ".jsonl"
_BUNDLE_SUFFIX = ".bundle.jsonl"
_OWN = re.compile(r"(\d{19})-([0-9a-f]{16})(?:\.n(\d{1,9}))?(?:~(\d{1,9})((?:\.bundle)?\.jsonl))?", re.ASCII)
#: A bundle of a writer, or of a finished day, which may have been leased again since.
_LINES = re.compile(
    r"(?:\d{19}-[0-9a-f]{16}|(?:\d{19}-)?\d{4}-\d\d-\d\d[^~]*)\.n(\d{1,9})[^~]*(?:~\d{1,9})?\.bundle\.jsonl",
    re.ASCII,
)
_LEADING_TIME = re.compile(r"\d{10,19}(?!\d)", re.ASCII)
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*", re.ASCII)
_ATTEMPT = re.compile(r"~\d{1,9}$", re.ASCII)
#: A leading number of this many digits is read as seconds, milliseconds, microseconds, nanoseconds.
_SCALES = {10: 10**9, 13: 10**6, 16: 10**3, 19: 1}


class Stamps:
    """Nanosecond stamps of one writer: strictly rising, even when the clock steps back."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive stamps that this writer uses only once."""
        with self._lock:
            first = max(self._last + 1, time.time_ns())
            self._last = first + count - 1
            return first


def new_writer() -> str:
    return os.urandom(8).hex()


def event_names(ns: int, writer: str, count: int) -> list[str]:
    """Return the names of new events with consecutive stamps."""
    return [f"{stamp:019d}-{writer}~0.jsonl" for stamp in range(ns, ns + count)]


def bundle_name(ns: int, writer: str, lines: int) -> str:
    return f"{ns:019d}-{writer}.n{lines}~0.bundle.jsonl"


def is_event(name: str) -> bool:
    """Whether a file of this name is an event: hidden and temporary names are not."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def is_bundle(name: str) -> bool:
    return name.endswith(_BUNDLE_SUFFIX)


def is_own(name: str) -> bool:
    """Whether this file name was made by a Watchbill writer (and is therefore unique)."""
    match = _OWN.fullmatch(name)
    return match is not None and match[4] is not None


def is_bucket(name: str) -> bool:
    match = _OWN.fullmatch(name)
    return match is not None and match[4] is None


def is_sealed(name: str) -> bool:
    match = _OWN.fullmatch(name)
    return match is not None and match[4] is None and match[3] is not None


def writer_of(name: str) -> str:
    """Return the writer that made this name, or "" for a foreign one."""
    match = _OWN.fullmatch(name)
    return match[2] if match else ""


def lines_of(name: str) -> int:
    """Return how many events a file of this name holds according to its name; a name that others made says nothing."""
    match = _LINES.fullmatch(name)
    return int(match[1]) if match else 1


def ns_of(name: str) -> int | None:
    """Return the arrival time in a name, in nanoseconds, or None if it has none."""
    match = _LEADING_TIME.match(name)
    scale = _SCALES.get(len(match[0])) if match else None
    return int(match[0]) * scale if match and scale else None


def stem_of(name: str) -> str:
    """Return the part that is the same for all attempts: the name without suffix and attempt."""
    return _ATTEMPT.sub("", _split(name)[0])


def attempt_of(name: str) -> int:
    base = _split(name)[0]
    match = _ATTEMPT.search(base)
    return int(match[0][1:]) if match else 0


def with_attempt(name: str, attempt: int) -> str:
    """Return the same name with another attempt."""
    base, suffix = _split(name)
    return f"{_ATTEMPT.sub('', base)}~{attempt}{suffix}"


def next_attempt(name: str) -> tuple[str, int] | None:
    """Return the name of the next lease and its attempt, or None for a foreign name. The hot path of a claim."""
    match = _OWN.fullmatch(name)
    if match is None or match[4] is None:
        return None
    attempt = int(match[4]) + 1
    return f"{name[: match.start(4)]}{attempt}{match[5]}", attempt


def safe_stem(name: str, mtime_ns: int) -> str:
    """Return a name for a foreign file that is short and printable: its own, or a hash of it."""
    base, suffix = _split(name)
    if _SAFE.fullmatch(_ATTEMPT.sub("", base)) and len(name) <= FOREIGN_NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return f"{max(0, mtime_ns):019d}-foreign-{digest}{suffix}"


def _split(name: str) -> tuple[str, str]:
    for suffix in (_BUNDLE_SUFFIX, SUFFIX):
        if name.endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, ""
