"""The git hooks: one event per commit and per merge, stored in the background while git returns.

`install` puts a small shell script into the hooks folder, as `post-commit`, `post-merge` and `post-applypatch`. It
notes the commit in `watchbill/notes` in the git folder, which takes milliseconds, and returns; a background shell asks
git about the noted commits, in the order of the notes, and pipes the answer into this module, which enqueues the
events. One job works at a time, so events arrive in the order of the commits. A note counts as done when its event is
durable, so a commit whose background job was killed is handled by the next job.

A hook that was there before is kept beside ours and run first, with its own name in `$0`, its arguments, its standard
input; its exit code is ours. Tools that own the hooks folder (husky) rewrite their hooks whenever they are
installed, which removes ours; `status` reports that. The spool lists its repositories, so `spool stats` and the drain
report it, too.

This module starts no process: the script calls git, and Python only reads what it says.
"""

import contextlib
import filecmp
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from watchbill.errors import ConfigError
from watchbill.files.atomic import make_folder, move_file, write_file_durable, writing
from watchbill.files.lock import lock_within, try_lock
from watchbill.spool.commits import FORMAT, Commit, commit_event, parse_commits
from watchbill.spool.limits import HOOK_BATCH, HOOK_NOTES_BYTES_MAX, HOOK_TURN_WAIT_S
from watchbill.spool.queue import Spool

__all__ = [
    "Commit", "HookState", "Status", "commit_event", "hooks_folder", "hooks_path_in", "install", "parse_commits",
    "remove", "status", "warnings",
]  # fmt: skip

#: The hooks that git runs after a commit, a merge, and a commit from a mailed patch.
_NAMES = ("post-commit", "post-merge", "post-applypatch")
_BEFORE = ".before-watchbill"
#: Holds links with the original names of hooks that are not shell scripts.
_BEFORE_FOLDER = "watchbill-before"
#: Where the `pre-commit` tool keeps the hook that it found; it runs it.
_LEGACY = ".legacy"
_MARKER = "# watchbill git hook, version 2"
#: The spool's own list of the repositories whose commits it gets.
_REPOSITORIES = "queue-hooks"
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)
_SHELL = re.compile(
    r"#!\s*((?:/\S*/env\s+(?:-S\s+)?)?(?:/\S*/)?(?:sh|bash|dash|ksh|zsh|ash))((?:\s+-\S+)*)\s*", re.ASCII
)

_SCRIPT = """#!/bin/sh
{marker}
# Commits become events in the spool named in watchbill/hook.json in the git folder.
# Put in place by `watchbill spool hook install`; `watchbill spool hook remove` restores what was here before.
status=0
{theirs}
{{ read -r common && read -r commit; }} <<END
$(git rev-parse --git-common-dir HEAD 2>/dev/null)
END
state=$common/watchbill
[ -f "$state/hook.json" ] || exit $status
{condition}
echo "$commit" >> "$state/notes" || exit $status
(
  exec 9>> "$state/turn.lock"
  while set -- $({python} -I -m watchbill.spool.githook next "$state" 9) && [ $# -gt 1 ]; do
    upto=$1
    shift
    printf '%s\\n' "$@" |
      git log --no-walk=unsorted --ignore-missing --stdin -z --root -m --first-parent --no-renames --name-status \\
        --format='{format}' > "$state/commits" &&
      {python} -I -m watchbill.spool.githook store "$state" "$upto" < "$state/commits" || break
  done
) </dev/null >/dev/null 2>&1 &
exit $status
"""
#: A merge that was only fast-forwarded or squashed made no commit here.
_IF_MERGED = """[ "$1" = 0 ] && [ "$(git rev-parse -q --verify HEAD^1)" = "$(git rev-parse -q --verify ORIG_HEAD)" ] &&
  git rev-parse -q --verify HEAD^2 >/dev/null || exit $status"""


class HookState(Enum):
    """Whether a repository's commits become events."""

    IN_PLACE = "in place"
    NOT_INSTALLED = "not installed"
    GONE = "gone"  # the file was removed
    REPLACED = "replaced"  # another program put its own hook there
    ELSEWHERE = "elsewhere"  # git now looks for hooks in another folder


@dataclass(frozen=True, slots=True)
class Status:
    """What is known about the hook of one repository."""

    state: HookState
    repository: Path
    hook: Path  # where git looks for it now
    spool: Path | None
    waiting: int  # commits that are noted and not enqueued yet
    strays: tuple[Path, ...] = ()  # worktrees of it that have a hooks folder of their own, without the hook

    @property
    def problem(self) -> str:
        """What is wrong and how to mend it; "" where nothing is."""
        what = {
            HookState.IN_PLACE: "",
            HookState.NOT_INSTALLED: "no hook of Watchbill is installed",
            HookState.GONE: f"{self.hook} is gone",
            HookState.REPLACED: f"{self.hook} was replaced by another program",
            HookState.ELSEWHERE: f"git looks for hooks in {self.hook.parent} now",
        }[self.state]
        if what:
            return self._told(self.repository, what)
        first, *others = self.strays or (None,)
        if first is None:
            return ""
        more = f", and so it is in {len(others)} more" if others else ""
        return self._told(first, f"this worktree has a hooks folder of its own{more}")

    def _told(self, repository: Path, what: str) -> str:
        again = shlex.join([*_program(), "spool", "hook", "install", str(repository)])
        spool = f" --spool {shlex.quote(str(self.spool))}" if self.spool else ""
        return f"commits in {repository} are no events: {what}; run: {again}{spool}"


def install(
    repository: Path,
    spool: Path,
    *,
    table: Sequence[tuple[str, str]] = (),
    hooks: Path | None = None,
    sign: Path | None = None,
    python: str = sys.executable,
) -> Path:
    """Put the hooks in place and return the path of `post-commit`. `table` maps path patterns to kinds, first match
    wins; `sign` is the private key that events are signed with.

    An existing hook is renamed and chained. A second install only renews ours. Raises ConfigError if there
    is no repository, and OSError.
    """
    state = _state_folder(repository)
    folder = (hooks or hooks_folder(repository)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    state.mkdir(exist_ok=True)
    settings: dict[str, object] = {
        "spool": os.fspath(spool.absolute()),
        "hooks": os.fspath(folder),
        "chosen": hooks is not None,
        "table": [list(row) for row in table],
    }
    if sign is not None:
        settings["sign"] = os.fspath(sign.absolute())
    write_file_durable(state / "hook.json", json.dumps(settings, indent=1).encode() + b"\n")
    for name in _NAMES:
        _install_one(folder, name, python)
    _register(repository, spool)
    return folder / _NAMES[0]


def _install_one(folder: Path, name: str, python: str) -> None:
    hook, before = folder / name, folder / (name + _BEFORE)
    if os.path.lexists(hook) and not _is_ours(hook):
        _keep(before)
        hook.rename(before)
    script = _SCRIPT.format(
        marker=_MARKER,
        theirs=_theirs(folder, name),
        condition=_IF_MERGED if name == "post-merge" else "",
        format=FORMAT,
        python=shlex.quote(python),
    )
    temporary = folder / f".{name}.watchbill"
    with writing(temporary) as file:
        file.write(script.encode())
    temporary.chmod(0o755)
    move_file(temporary, hook)


def _keep(before: Path) -> None:
    """Rename the hook that was kept earlier, which is not run any more: the present one takes its place."""
    number = 1
    while os.path.lexists(before):
        old = before.with_name(f"{before.name}.{number}")
        if not os.path.lexists(old):
            before.rename(old)
        number += 1


def _theirs(folder: Path, name: str) -> str:
    """Return the lines that run the hook that was there before.

    Dispatchers look at `$0`: at its name, and at what lies beside it. A shell script is read by its own shell with our
    `$0`, which is the one it always had. Other programs are started by a link that has their name.
    """
    before = folder / (name + _BEFORE)
    if not os.path.lexists(before):
        return ""
    path = f'"${{0%/*}}/{before.name}"'
    shell = _shell_of(before)
    if shell:
        run = f"""{shell} -c 'watchbill_theirs=$1; shift; . "$watchbill_theirs"' "$0" {path} "$@" """
    else:
        link = folder / _BEFORE_FOLDER / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / before.name)
        run = f'"${{0%/*}}/{_BEFORE_FOLDER}/{name}" "$@" '
    return f"if [ -x {path} ]; then {run.strip()}; status=$?; fi"


def _shell_of(hook: Path) -> str:
    """Return the command of the shell that a script names in its first line, "" for anything else."""
    try:
        with open(hook, "rb") as file:
            first = file.readline(256).decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return ""
    match = _SHELL.fullmatch(first)
    if match is None or hook.is_symlink():
        return ""
    return shlex.join([*match[1].replace("-S", "").split(), *match[2].split()])


def remove(repository: Path, *, hooks: Path | None = None) -> bool:
    """Remove our hooks and put back the ones that were there before. Return False if none of ours was there."""
    state = _state_folder(repository)
    settings = _settings(state)
    folders = {
        hooks or hooks_folder(repository),
        *([Path(str(settings["hooks"]))] if "hooks" in settings else []),
    }
    removed = [_remove_one(folder, name) for folder in folders for name in _NAMES]
    if "spool" in settings:
        _registration(repository, Path(str(settings["spool"]))).unlink(missing_ok=True)
    for name in ("hook.json", "commits", "turn.lock", "waiting.lock"):
        (state / name).unlink(missing_ok=True)
    if not _waiting(state):  # commits still noted stay for a later install
        for name in ("notes", "notes.old", "progress.json"):
            (state / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        state.rmdir()
    return any(removed)


def _remove_one(folder: Path, name: str) -> bool:
    hook, before, link = folder / name, folder / (name + _BEFORE), folder / _BEFORE_FOLDER / name
    if not _is_ours(hook):
        return _leave_to_others(hook, before)
    if os.path.lexists(before):
        before.rename(hook)
    else:
        hook.unlink()
    for superseded in _superseded(before):
        superseded.unlink()
    link.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        link.parent.rmdir()
    return True


def _leave_to_others(hook: Path, before: Path) -> bool:
    """Take away what we kept of a hook that its program has written anew over ours, or put it back where ours is gone.
    Another hook, which may be a person's, stays. Returns False: none of ours was there."""
    if before.is_file() and not os.path.lexists(hook):
        before.rename(hook)
    elif before.is_file() and hook.is_file() and filecmp.cmp(before, hook, shallow=False):
        before.unlink()
    return False


def _program() -> list[str]:
    """The words that start Watchbill in the terminal of their reader: `make up` puts no program on the PATH."""
    found = shutil.which("watchbill") is not None
    return ["watchbill"] if found else [sys.executable, "-m", "watchbill"]


def _superseded(before: Path) -> list[Path]:
    """Return the kept hooks that other tools have replaced since by writing over ours."""
    numbered = re.compile(re.escape(before.name) + r"\.\d+", re.ASCII)
    return [before.with_name(name) for name in os.listdir(before.parent) if numbered.fullmatch(name)]


def status(repository: Path, *, hooks: Path | None = None) -> Status:
    """Return whether commits of this repository become events. Raises ConfigError if there is none, and OSError."""
    state = _state_folder(repository)
    settings = _settings(state)
    chosen = Path(str(settings["hooks"])) if settings.get("chosen") else None
    folder = hooks or chosen or hooks_folder(repository)
    spool = Path(str(settings["spool"])) if "spool" in settings else None
    judged = _judge(folder, settings)
    strays = _strays(repository) if judged is HookState.IN_PLACE and not chosen and not hooks else ()
    return Status(judged, repository.absolute(), folder / _NAMES[0], spool, len(_waiting(state)), strays)


def _strays(repository: Path) -> tuple[Path, ...]:
    """Return the worktrees in which git runs no hook of ours: a relative `core.hooksPath`, as husky sets it, means
    another folder in each of them."""
    found: list[Path] = []
    for pointer in sorted((_git_folder(repository) / "worktrees").glob("*/gitdir")):
        with contextlib.suppress(OSError, ConfigError):  # a worktree that was removed, or is on another disk
            worktree = (pointer.parent / pointer.read_text().strip()).parent
            folder = hooks_folder(worktree)
            if not _has_ours(folder):
                found.append(worktree)
    return tuple(found)


def _has_ours(folder: Path) -> bool:
    return all(_is_ours(folder / name) or _is_ours(folder / (name + _LEGACY)) for name in _NAMES)


def _judge(folder: Path, settings: dict[str, Any]) -> HookState:
    if not settings:
        return HookState.NOT_INSTALLED
    if _has_ours(folder):
        return HookState.IN_PLACE
    if folder.resolve() != Path(str(settings.get("hooks"))).resolve():
        return HookState.ELSEWHERE
    return HookState.REPLACED if os.path.lexists(folder / _NAMES[0]) else HookState.GONE


def warnings(spool: Path) -> list[str]:
    """Say which repositories have lost the hook that feeds this spool. Missing and unreadable ones are left out."""
    found: list[str] = []
    for record in sorted((spool / _REPOSITORIES).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, ConfigError):
            problem = status(Path(json.loads(record.read_bytes())["repository"])).problem
            if problem:
                found.append(problem)
    return found


def _register(repository: Path, spool: Path) -> None:
    record = _registration(repository, spool)
    make_folder(record.parent)
    write_file_durable(record, json.dumps({"repository": os.fspath(repository.absolute())}).encode() + b"\n")


def _registration(repository: Path, spool: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(repository.absolute())).hexdigest()[:16]
    return spool.absolute() / _REPOSITORIES / f"{digest}.json"


def hooks_folder(repository: Path) -> Path:
    """Return where git looks for this repository's hooks. Raises ConfigError if it is none.

    Reads the repository's own `core.hooksPath`; the caller has to pass one that is set elsewhere.
    """
    git = _git_folder(repository)
    configured = hooks_path_in(git / "config")
    return (repository / configured if configured else git / "hooks").absolute()


def _git_folder(repository: Path) -> Path:
    """Return the folder that all worktrees of a repository share."""
    git = repository / ".git"
    if git.is_file():  # a worktree or a submodule
        git = repository / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
    elif not git.exists() and (repository / "HEAD").is_file() and (repository / "objects").is_dir():
        git = repository  # a bare repository
    if not (git / "HEAD").is_file():
        raise ConfigError(f"{repository.absolute()} is not a git repository; name its top folder")
    common = git / "commondir"
    return git / common.read_text(encoding="utf-8").strip() if common.is_file() else git


def _state_folder(repository: Path) -> Path:
    return _git_folder(repository) / "watchbill"


def _settings(state: Path) -> dict[str, Any]:
    try:
        settings: object = json.loads((state / "hook.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return cast(dict[str, Any], settings) if isinstance(settings, dict) else {}


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


# The background job: `next` says which commits are due, `store` enqueues what git says about them.


@dataclass(frozen=True, slots=True)
class _Progress:
    """How many bytes of the notes are done, and of the notes before those."""

    notes: int = 0
    old: int = 0


def _progress(state: Path) -> _Progress:
    try:
        read = json.loads((state / "progress.json").read_bytes())
        return _Progress(int(read["notes"]), int(read["old"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return _Progress()  # read all notes again: the corpus takes each id once


def _write_progress(state: Path, progress: _Progress) -> None:
    text = json.dumps({"notes": progress.notes, "old": progress.old})
    write_file_durable(state / "progress.json", text.encode() + b"\n")


def _lines(path: Path, start: int) -> Iterator[tuple[str, int]]:
    """Yield the whole lines of a file from an offset on, each with the offset of its end."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    end = start if start <= len(data) else 0
    for line in data[end:].splitlines(keepends=True):
        if line.endswith(b"\n"):
            end += len(line)
            yield line.decode("ascii", "replace").strip(), end


def _waiting(state: Path) -> list[tuple[str, _Progress]]:
    """Return the noted commits that are not enqueued, in the order of the notes, with the progress each one makes."""
    done = _progress(state)
    late = [(line, _Progress(done.notes, end)) for line, end in _lines(state / "notes.old", done.old)]
    old = late[-1][1].old if late else done.old
    return late + [(line, _Progress(end, old)) for line, end in _lines(state / "notes", done.notes)]


def _next(state: Path, turn: int) -> str:
    """Wait for our turn and return how far the notes are read, and the commits; "" when there is nothing to do."""
    if not _take_turn(state, turn):
        return ""
    due = _waiting(state)[:HOOK_BATCH]
    if not due:
        _turn_over(state)
        return ""
    commits = [line for line, _ in due if _COMMIT.fullmatch(line)]
    upto = due[-1][1]
    if not commits:
        _write_progress(state, upto)
        return ""
    return " ".join([f"{upto.notes}:{upto.old}", *commits])


def _take_turn(state: Path, turn: int) -> bool:
    """Lock the descriptor that our shell holds. One job may wait for another; a third need not, because the waiting
    one will read its note, too."""
    if try_lock(turn):
        return True
    waiting = os.open(state / "waiting.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    try:
        return try_lock(waiting) and lock_within(turn, HOOK_TURN_WAIT_S)
    finally:
        os.close(waiting)


def _turn_over(state: Path) -> None:
    """Begin new notes when the old ones are long and done.

    A hook that opened them before the rename may still write to them, so they are read once more each time, and
    removed only when the next ones take their place.
    """
    done = _progress(state)
    if done.notes > HOOK_NOTES_BYTES_MAX:
        _write_progress(state, _Progress(0, done.notes))
        (state / "notes").rename(state / "notes.old")


def _store(state: Path, upto: str) -> None:
    settings = json.loads((state / "hook.json").read_bytes())
    commits = parse_commits(sys.stdin.buffer.read())
    signer = None
    if "sign" in settings:
        from watchbill.spool.signing import KeySigner

        signer = KeySigner(Path(settings["sign"]))
    # `event`: two syncs and no log, the cheapest way for a process that lives for few events.
    with Spool(settings["spool"], durability="event", signer=signer) as spool:
        spool.enqueue_many([commit_event(commit, settings["table"]) for commit in commits])
    notes, _, old = upto.partition(":")
    _write_progress(state, _Progress(int(notes), int(old)))


def main(arguments: Sequence[str]) -> int:
    """`next STATE DESCRIPTOR` or `store STATE PROGRESS`. For the hook's script."""
    state = Path(arguments[1])
    if arguments[0] == "next":
        print(_next(state, int(arguments[2])))
    else:
        _store(state, arguments[2])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
