"""Which ids a corpus already holds, as far as it can be known cheaply.

Remembers a 16-byte digest per id, the last million of them. Day files beside the corpus
(`corpus.jsonl.ids/2026-11-15.txt`, one `offset digest` a line) carry the memory over a restart. They are
written after the corpus was synced, never before, so they never claim an id that a power cut took away.
A corpus that became shorter than they say is a different corpus: then they are dropped, because a duplicate is
allowed and a loss is not, and that corpus may grow beyond what they say.
"""

import datetime
import os
from collections.abc import Iterable
from pathlib import Path

from watchbill.spool.limits import IDS_DAYS, IDS_MAX

__all__ = ["Ids"]


class Ids:
    """The known ids of one corpus. The caller holds the corpus's lock."""

    def __init__(self, corpus: Path) -> None:
        self._folder = corpus.with_name(corpus.name + ".ids")
        self._known: dict[bytes, None] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def __len__(self) -> int:
        return len(self._known)

    def load(self, corpus_bytes: int) -> int:
        """Read the day files and return up to which offset of the corpus they know it; 0 for not at all."""
        self._known.clear()
        known_to = 0
        for path in self._files()[-IDS_DAYS:]:
            known_to = max(known_to, self._load_file(path))
        if known_to > corpus_bytes:
            self.forget()
            return 0
        return known_to

    def add(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._known[digest] = None
        while len(self._known) > IDS_MAX:
            del self._known[next(iter(self._known))]

    def write(self, digests: Iterable[bytes], end: int) -> None:
        """Note ids that the corpus holds durably up to offset `end`. Raises OSError."""
        text = "".join(f"{end} {digest.hex()}\n" for digest in digests)
        self._folder.mkdir(exist_ok=True)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        with open(self._folder / f"{today}.txt", "ab", buffering=0) as file:
            file.write(text.encode())
        for old in self._files()[: -(IDS_DAYS + 1)]:
            old.unlink(missing_ok=True)

    def forget(self) -> None:
        """Drop the day files: the corpus was changed by hand. Raises OSError."""
        self._known.clear()
        for path in self._files():
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(self._folder / name for name in os.listdir(self._folder) if name.endswith(".txt"))

    def _load_file(self, path: Path) -> int:
        end = 0
        for line in path.read_bytes().split(b"\n"):
            offset, _, digest = line.partition(b" ")
            if len(digest) != 32 or not offset.isdigit():
                continue  # cut short by a crash
            try:
                self._known[bytes.fromhex(digest.decode("ascii"))] = None
            except ValueError:
                continue
            end = max(end, int(offset))
        return end
