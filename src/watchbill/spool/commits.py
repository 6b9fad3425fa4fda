"""Commits as events: how git is asked about them, what it answers, and the event of each. Does no I/O."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watchbill.spool.limits import HOOK_FILES_MAX

__all__ = ["FORMAT", "Commit", "commit_event", "parse_commits"]

#: The format in which `git log -z` writes a commit for `parse_commits`.
FORMAT = "%x01%H%x00%P%x00%cI%x00%an%x00%ae%x00%(trailers:key=Event-Kind,valueonly,separator=%x2C)%x00%B%x00"
_FIELDS = 7
_KIND_CHARS_MAX = 64
#: Characters of a commit message that its event holds.
_MESSAGE_CHARS_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Commit:
    """What git says about one commit."""

    id: str
    parents: tuple[str, ...]
    time: str
    author: str
    email: str
    kind: str  # of its Event-Kind trailer, "" without one
    message: str
    #: (status, path): A added, M modified, D deleted; of a merge: to its first parent
    files: tuple[tuple[str, str], ...]


def parse_commits(output: bytes) -> list[Commit]:
    """Read what `git log -z` wrote in the hook's format. Raises ValueError if it is something else."""
    fields = output.decode("utf-8", "replace").split("\0")
    commits: list[Commit] = []
    at = 0
    while at < len(fields):
        if not fields[at].strip("\n"):
            at += 1
            continue
        if not fields[at].startswith("\x01") or len(fields) < at + _FIELDS:
            raise ValueError("not the output of git log in the hook's format")
        head, at = fields[at : at + _FIELDS], at + _FIELDS
        files: list[tuple[str, str]] = []
        while at < len(fields) and not fields[at].startswith("\x01"):
            word = fields[at].strip("\n")
            if word and at + 1 < len(fields):
                files.append((word, fields[at + 1]))
                at += 1
            at += 1
        commits.append(_commit(head, files))
    return commits


def commit_event(commit: Commit, table: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the event of a commit. Its id is the commit's, so that enqueueing it twice is harmless."""
    return {
        "id": f"commit:{commit.id}",
        "kind": _kind(commit, table),
        "ts": commit.time,
        "source": "git",
        "commit": commit.id,
        "parents": list(commit.parents),
        "author": {"name": commit.author, "email": commit.email},
        "message": commit.message[:_MESSAGE_CHARS_MAX],
        "files": [{"status": status, "path": path} for status, path in commit.files[:HOOK_FILES_MAX]],
        "files_total": len(commit.files),
    }


def _commit(head: Sequence[str], files: Sequence[tuple[str, str]]) -> Commit:
    identifier, parents, at, author, email, kinds, message = head
    return Commit(
        identifier[1:], tuple(parents.split()), at, author, email, kinds.split(",")[0].strip(), message.strip(),
        tuple(files),
    )  # fmt: skip


def _kind(commit: Commit, table: Sequence[Sequence[str]]) -> str:
    """The kind: of the trailer, else of the path table, else whether a file is new. Files of a merge are not new."""
    if commit.kind:
        return commit.kind[:_KIND_CHARS_MAX]
    for pattern, kind in table:
        if any(fnmatch.fnmatchcase(path, pattern) for _, path in commit.files):
            return kind
    is_new = len(commit.parents) < 2 and any(status == "A" for status, _ in commit.files)
    return "draft-created" if is_new else "draft-refined"
