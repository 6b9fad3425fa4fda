"""The git post-commit hook: one event per commit, and git does not wait for it.

`install` puts a small shell script into the hooks folder. It notes the commit in `watchbill/pending/` beside
itself, which takes milliseconds, and returns; a background shell asks git about each noted commit and pipes
the answer into this module, which enqueues the event. A note goes away when its event is safe, so a commit
whose background job was killed is taken up by the next one. An existing hook is kept and run first.

This module starts no process: the script calls git, and Python only reads what it says.
"""

import contextlib
import fnmatch
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchbill.errors import ConfigError
from watchbill.spool.atomic import write_file_durable
from watchbill.spool.limits import HOOK_FILES_MAX
from watchbill.spool.queue import Spool

__all__ = ["Commit", "commit_event", "hooks_folder", "hooks_path_in", "install", "parse_commit", "remove"]

_NAME = "post-commit"
_BEFORE = "post-commit.before-watchbill"
_MARKER = "# watchbill post-commit hook, version 1"
_FORMAT = "%H%x00%P%x00%cI%x00%an%x00%ae%x00%(trailers:key=Event-Kind,valueonly,separator=%x2C)%x00%B%x00"
_KIND_CHARS_MAX = 64
#: A commit's own words, as long as they are bearable in one event.
_MESSAGE_CHARS_MAX = 64 * 1024

_SCRIPT = """#!/bin/sh
{marker}
# One event per commit goes into the spool named in watchbill/hook.json beside this file.
# Put in place by `watchbill spool hook install`; `watchbill spool hook remove` restores what was here before.
here=${{0%/*}}
state=$here/watchbill
before=$here/{before}
if [ -x "$before" ]; then "$before" "$@"; fi
commit=$(git rev-parse --verify HEAD) || exit 0
: > "$state/pending/$commit" || exit 0
(
  # Only one job takes a note; what a killed job took is given back after ten minutes.
  find "$state/taken" -type f -mmin +10 -exec mv {{}} "$state/pending/" ';'
  for note in "$state"/pending/*; do
    commit=${{note##*/}}
    mv "$note" "$state/taken/$commit" && touch "$state/taken/$commit" || continue
    if git log -1 -z --root --no-renames --name-status --format='{format}' "$commit" -- |
      {python} -I -m watchbill.spool.githook "$state"
    then rm -f "$state/taken/$commit"
    else mv "$state/taken/$commit" "$note"
    fi
  done
) </dev/null >/dev/null 2>&1 &
exit 0
"""


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
    files: tuple[tuple[str, str], ...]  # (status, path): A added, M modified, D deleted, ...


def install(
    repository: Path,
    spool: Path,
    *,
    table: Sequence[tuple[str, str]] = (),
    hooks: Path | None = None,
    sign: Path | None = None,
    python: str = sys.executable,
) -> Path:
    """Put the hook in place and return its path. `table` maps path patterns to kinds, first match wins; `sign`
    is the private key that events are signed with.

    An existing hook is renamed and chained. A second install only renews ours. Raises ConfigError if there
    is no repository or two hooks would have to be kept.
    """
    folder = hooks or hooks_folder(repository)
    folder.mkdir(parents=True, exist_ok=True)
    hook, before = folder / _NAME, folder / _BEFORE
    if os.path.lexists(hook) and not _is_ours(hook):
        if os.path.lexists(before):
            raise ConfigError(f"{hook} and {before} are both foreign hooks; remove one of them first")
        hook.rename(before)
    state = folder / "watchbill"
    for name in ("pending", "taken"):
        (state / name).mkdir(parents=True, exist_ok=True)
    settings: dict[str, object] = {
        "spool": os.fspath(spool.absolute()),
        "table": [list(row) for row in table],
    }
    if sign is not None:
        settings["sign"] = os.fspath(sign.absolute())
    write_file_durable(state / "hook.json", json.dumps(settings, indent=1).encode() + b"\n")
    script = _SCRIPT.format(marker=_MARKER, before=_BEFORE, format=_FORMAT, python=shlex.quote(python))
    temporary = folder / ".post-commit.watchbill"
    temporary.write_text(script, encoding="utf-8")
    temporary.chmod(0o755)
    temporary.rename(hook)
    return hook


def remove(repository: Path, *, hooks: Path | None = None) -> bool:
    """Take our hook away and put back what was there before. Return False if ours was not there."""
    folder = hooks or hooks_folder(repository)
    hook, before = folder / _NAME, folder / _BEFORE
    if not _is_ours(hook):
        return False
    if os.path.lexists(before):
        before.rename(hook)
    else:
        hook.unlink()
    state = folder / "watchbill"
    (state / "hook.json").unlink(missing_ok=True)
    for leftover in (state / "pending", state / "taken", state):
        with contextlib.suppress(OSError):  # commits still noted stay for a later install
            leftover.rmdir()
    return True


def hooks_folder(repository: Path) -> Path:
    """Return where git looks for this repository's hooks. Raises ConfigError if it is none.

    Reads the repository's own `core.hooksPath`; one that is set elsewhere has to be given by the caller.
    """
    git = repository / ".git"
    if git.is_file():  # a worktree or a submodule
        git = repository / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
    elif not git.exists() and (repository / "HEAD").is_file() and (repository / "objects").is_dir():
        git = repository  # a bare repository
    if not (git / "HEAD").is_file():
        raise ConfigError(f"{repository.absolute()} is not a git repository; name its top folder")
    common = git / "commondir"
    if common.is_file():
        git = git / common.read_text(encoding="utf-8").strip()
    configured = hooks_path_in(git / "config")
    return (repository / configured if configured else git / "hooks").absolute()


def parse_commit(output: bytes) -> Commit:
    """Read what `git log -z` wrote in the hook's format. Raises ValueError if it is something else."""
    fields = output.decode("utf-8", "replace").split("\0")
    if len(fields) < 8 or len(fields[0]) not in (40, 64):
        raise ValueError("not the output of git log in the hook's format")
    rest = [field.lstrip("\n") for field in fields[7:]]
    words = [word for word in rest if word]
    files = tuple(zip(words[0::2], words[1::2], strict=False))
    return Commit(
        fields[0], tuple(fields[1].split()), fields[2], fields[3], fields[4],
        fields[5].split(",")[0].strip(), fields[6].strip(), files,
    )  # fmt: skip


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


def _kind(commit: Commit, table: Sequence[Sequence[str]]) -> str:
    """Trailer, else path table, else whether a file is new."""
    if commit.kind:
        return commit.kind[:_KIND_CHARS_MAX]
    for pattern, kind in table:
        if any(fnmatch.fnmatchcase(path, pattern) for _, path in commit.files):
            return kind
    return "draft-created" if any(status == "A" for status, _ in commit.files) else "draft-refined"


def _is_ours(hook: Path) -> bool:
    try:
        return _MARKER in hook.read_text(encoding="utf-8", errors="replace")[:500]
    except OSError:
        return False


def hooks_path_in(config: Path) -> str:
    """Return core.hooksPath of one git config file, or ""."""
    section = ""
    found = ""
    for line in config.read_text(encoding="utf-8", errors="replace").splitlines() if config.is_file() else ():
        text = line.strip()
        if text.startswith("["):
            section = text.strip("[]").strip().lower()
        key, equals, value = text.partition("=")
        if section == "core" and equals and key.strip().lower() == "hookspath":
            found = os.path.expanduser(value.strip().strip('"'))
    return found


def main(arguments: Sequence[str]) -> int:
    """Enqueue the commit on stdin, with the settings of this state folder. For the hook's script."""
    settings = json.loads((Path(arguments[0]) / "hook.json").read_bytes())
    commit = parse_commit(sys.stdin.buffer.read())
    signer = None
    if "sign" in settings:
        from watchbill.spool.signing import KeySigner

        signer = KeySigner(Path(settings["sign"]))
    # `event`: two syncs and no log, the cheapest way for a process that lives for one event.
    with Spool(settings["spool"], durability="event", signer=signer) as spool:
        spool.enqueue(commit_event(commit, settings["table"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
