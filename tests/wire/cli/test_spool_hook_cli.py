"""`watchbill spool hook` on a real repository: every commit an event, and git does not wait."""

import json
import os
import shutil
import subprocess
import time

import pytest

from support.eventually import wait_until

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def repository(alone, tmp_path):
    alone.settings |= {"GIT_CONFIG_GLOBAL": os.devnull} | {
        f"GIT_{role}_{what}": "ann@example.org"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    git(alone, "init", "-q", "repo", cwd=tmp_path)
    return tmp_path / "repo"


def git(alone, *arguments, cwd):
    subprocess.run(["git", *arguments], cwd=cwd, env=alone.environment, check=True, capture_output=True)


def commit(alone, repository, file, message="text"):
    (repository / file).parent.mkdir(exist_ok=True)
    (repository / file).write_text(f"{time.time_ns()}")
    git(alone, "add", "-A", cwd=repository)
    git(alone, "commit", "-q", "-m", message, cwd=repository)


def queued(tmp_path):
    return sorted((tmp_path / "s/queue").glob("*.jsonl"))


def test_a_commit_becomes_an_event_of_its_kind(alone, repository, tmp_path):
    """SPOOL-11: --kind before the defaults; `remove` puts back what was there."""
    hook = repository / ".git/hooks/post-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    put = alone(
        "spool", "hook", "install", "repo", "--spool", "./s", "--kind", "creative/*=creative-edited", "--json"
    )
    assert json.loads(put.stdout) == {"hook": str(hook), "spool": str(tmp_path / "s")}
    commit(alone, repository, "creative/poem.md")
    (event,) = wait_until(lambda: queued(tmp_path))
    assert json.loads(event.read_text())["kind"] == "creative-edited"
    assert (repository / "ran").exists()
    assert alone("spool", "hook", "remove", "repo").returncode == 0
    assert hook.read_text() == "#!/bin/sh\ntouch ran\n"
    again = alone("spool", "hook", "remove", "repo")
    assert (again.returncode, "no hook of Watchbill" in again.stderr) == (1, True)


def test_events_of_commits_are_signed_where_a_key_is_named(alone, repository, tmp_path):
    """SPOOL-11: events can be signed and verified."""
    pytest.importorskip("cryptography", reason="needs the extra watchbill[sign]")
    assert alone("spool", "key", "me.pem").returncode == 0
    bad = alone("spool", "hook", "install", "repo", "--spool", "./s", "--sign", "nix.pem")
    assert (bad.returncode, "no usable private key" in bad.stderr) == (2, True)
    assert not (repository / ".git/hooks/post-commit").exists()
    assert alone("spool", "hook", "install", "repo", "--spool", "./s", "--sign", "me.pem").returncode == 0
    commit(alone, repository, "a.md")
    wait_until(lambda: queued(tmp_path))
    drained = alone(
        "spool", "drain", "--spool", "s", "--corpus", "c.jsonl", "--once", "--verify", "me.pem.pub"
    )
    assert drained.stdout == "appended 1, already there 0, poisoned 0\n"


def test_a_hook_that_git_would_not_run_is_refused(alone, repository, tmp_path):
    """A user-wide core.hooksPath: said at once, with what to do, instead of a hook that never runs."""
    (tmp_path / "gitconfig").write_text(f"[core]\n\thooksPath = {tmp_path}/mine\n")
    alone.settings["GIT_CONFIG_GLOBAL"] = str(tmp_path / "gitconfig")
    refused = alone("spool", "hook", "install", "repo", "--spool", "./s")
    assert refused.returncode == 2
    assert "core.hooksPath" in refused.stderr
    assert alone("spool", "hook", "install", "repo", "--spool", "./s", "--hooks", "mine").returncode == 0
    commit(alone, repository, "a.md")
    wait_until(lambda: queued(tmp_path))
    git(alone, "config", "core.hooksPath", ".git/hooks", cwd=repository)
    assert alone("spool", "hook", "install", "repo", "--spool", "./s").returncode == 0


@pytest.mark.parametrize("text", ["odd", "=kind", "a="])
def test_a_kind_without_its_pattern_is_one_clear_line(alone, repository, text):
    refused = alone("spool", "hook", "install", "repo", "--spool", "./s", "--kind", text)
    assert refused.returncode == 2
    assert "PATTERN=KIND" in refused.stderr
