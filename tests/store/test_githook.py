"""The post-commit hook on a real repository."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from watchbill.errors import ConfigError
from watchbill.spool import Spool
from watchbill.spool.githook import hooks_folder, install, parse_commit, remove

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ann Editor")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ann@example.org")
    path = tmp_path / "repo with space"
    git(path.parent, "init", "-q", path.name)
    return path


def git(where: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=where, check=True, capture_output=True)


def commit(repository: Path, file: str, message: str) -> float:
    """Commit a changed file and return how long git took, in seconds."""
    target = repository / file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{message}{time.time_ns()}")
    git(repository, "add", "-A")
    began = time.perf_counter()
    git(repository, "commit", "-q", "-m", message)
    return time.perf_counter() - began


def events(path: Path, count: int) -> list[dict[str, object]]:
    """Wait for that many events, in order."""
    deadline = time.monotonic() + 30
    found: dict[object, dict[str, object]] = {}
    with Spool(path) as spool:
        while len(found) < count:
            assert time.monotonic() < deadline, found
            spool.wait(0.1)
            while (item := spool.lease()) is not None:
                found[item.event["id"]] = item.event
                spool.done(item)
    return list(found.values())


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_commit_becomes_an_event_of_its_kind(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: trailer, else path table, else draft-created and draft-refined."""
    spool = tmp_path / "spool"
    install(repository, spool, table=[("creative/*", "creative-edited")])
    wanted = [
        ("draft.md", "first", "draft-created"),
        ("draft.md", "second", "draft-refined"),
        ("creative/ü x.md", "third", "creative-edited"),
        ("creative/b.md", "fourth\n\nEvent-Kind: headline-chosen", "headline-chosen"),
    ]
    for file, message, kind in wanted:
        commit(repository, file, message)
        (event,) = events(spool, 1)
        assert event["kind"] == kind
        assert event["files"] == [{"status": "M" if message == "second" else "A", "path": file}]
        assert event["id"] == f"commit:{event['commit']}"
        assert event["author"] == {"name": "Ann Editor", "email": "ann@example.org"}
        assert str(event["message"]).startswith(message.split("\n")[0])


def test_the_hook_returns_at_once_and_a_lost_job_is_made_up_for(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: git does not wait for Python; a commit whose background job failed comes with the next."""
    commit(repository, "a.md", "before the hook")
    spool = tmp_path / "spool"
    failing, ran = tmp_path / "failing", tmp_path / "ran"
    failing.write_text(f'#!/bin/sh\ntouch "{ran}"\nexit 1\n')
    failing.chmod(0o755)
    hook = install(repository, spool, python=str(failing))
    commit(repository, "a.md", "lost")
    state = hook.parent / "watchbill"
    # Pending alone would not do: the job may not have begun yet, and would then take it from the next one.
    wait_until(
        lambda: ran.exists() and len(list(state.glob("pending/*"))) == 1 and not list(state.glob("taken/*"))
    )
    began = time.perf_counter()
    install(repository, spool)
    git(repository, "commit", "-q", "--allow-empty", "-m", "next")
    assert time.perf_counter() - began < 5  # a loaded machine; the bench has the milliseconds
    assert {str(event["message"]) for event in events(spool, 2)} == {"lost", "next"}
    wait_until(lambda: not list(state.glob("*/*")))


def test_an_existing_hook_is_kept_chained_and_restored(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: install twice, remove once: what was there before is there again, byte for byte."""
    hook = repository / ".git" / "hooks" / "post-commit"
    hook.parent.mkdir(exist_ok=True)
    old = f'#!/bin/sh\necho ran >> "{tmp_path}/old-hook-ran"\n'
    hook.write_text(old)
    hook.chmod(0o755)
    for _ in range(2):
        assert install(repository, tmp_path / "spool") == hook
    commit(repository, "a.md", "one")
    assert len(events(tmp_path / "spool", 1)) == 1
    assert (tmp_path / "old-hook-ran").read_text() == "ran\n"
    assert remove(repository) is True
    assert hook.read_text() == old
    assert os.access(hook, os.X_OK)
    assert remove(repository) is False
    commit(repository, "a.md", "two")
    assert (tmp_path / "old-hook-ran").read_text() == "ran\nran\n"


def test_hooks_are_found_where_git_looks_for_them(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: core.hooksPath, worktrees, and a folder that is no repository."""
    assert hooks_folder(repository) == repository / ".git" / "hooks"
    commit(repository, "a.md", "one")
    git(repository, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert hooks_folder(tmp_path / "tree").resolve() == repository / ".git" / "hooks"
    git(repository, "config", "core.hooksPath", "my-hooks")
    assert hooks_folder(repository) == repository / "my-hooks"
    with pytest.raises(ConfigError, match="not a git repository"):
        hooks_folder(tmp_path)
    with pytest.raises(ValueError, match="format"):
        parse_commit(b"fatal: bad object")
