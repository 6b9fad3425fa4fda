"""The git hooks on a real repository, alone and beside those of others."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.eventually import wait_until
from watchbill.cli import run
from watchbill.errors import ConfigError
from watchbill.spool import Spool
from watchbill.spool.githook import HookState, hooks_folder, install, parse_commits, remove, status, warnings

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


def git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()


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
    found: dict[object, dict[str, object]] = {}
    with Spool(path) as spool:

        def all_came() -> bool:
            while (item := spool.lease()) is not None:
                found[item.event["id"]] = item.event
                spool.done(item)
            return len(found) >= count

        wait_until(all_came)
    return list(found.values())


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
    assert hook.parent == repository / ".git" / "hooks"
    wait_until(ran.exists)
    assert status(repository).waiting == 1
    began = time.perf_counter()
    install(repository, spool)
    git(repository, "commit", "-q", "--allow-empty", "-m", "next")
    assert time.perf_counter() - began < 5  # a loaded machine; the bench has the milliseconds
    assert {str(event["message"]) for event in events(spool, 2)} == {"lost", "next"}
    wait_until(lambda: status(repository).waiting == 0)


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
        parse_commits(b"fatal: bad object")


#: What `husky` 9.1.7 writes into `.husky/_` at every install of a project's packages.
HUSKY_DISPATCHER = """#!/usr/bin/env sh
[ "$HUSKY" = "2" ] && set -x
n=$(basename "$0")
s=$(dirname "$(dirname "$0")")/$n

[ ! -f "$s" ] && exit 0

i="${XDG_CONFIG_HOME:-$HOME/.config}/husky/init.sh"
[ -f "$i" ] && . "$i"

[ "${HUSKY-}" = "0" ] && exit 0

export PATH="node_modules/.bin:$PATH"
sh -e "$s" "$@"
c=$?

[ $c != 0 ] && echo "husky - $n script failed (code $c)"
[ $c = 127 ] && echo "husky - command not found in PATH=$PATH"
exit $c
"""
HUSKY_HOOKS = ("pre-commit", "commit-msg", "post-commit", "post-rewrite", "post-checkout", "post-merge")


def install_husky(repository: Path) -> None:
    """Do what `husky` does: name its folder in the config and write all its hooks."""
    folder = repository / ".husky" / "_"
    folder.mkdir(parents=True, exist_ok=True)
    git(repository, "config", "core.hooksPath", ".husky/_")
    (folder / ".gitignore").write_text("*")
    (folder / "h").write_text(HUSKY_DISPATCHER)
    for name in HUSKY_HOOKS:
        (folder / name).write_text('#!/usr/bin/env sh\n. "$(dirname "$0")/h"')
        (folder / name).chmod(0o755)


def test_husky_goes_on_beside_the_hook_and_its_next_install_is_noticed(
    repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SPOOL-11: a dispatcher that looks at `$0` runs its own script; when it writes its hooks anew, ours is said to be
    gone, by name and with the command that mends it; after that command both run again."""
    spool, log = tmp_path / "spool", tmp_path / "husky-ran"
    install_husky(repository)
    (repository / ".husky" / "post-commit").write_text(f'echo "$(basename "$0")" >> "{log}"\n')
    (repository / ".husky" / "post-merge").write_text(f'echo "merge $1" >> "{log}"\n')
    hook = install(repository, spool)
    assert hook == repository / ".husky" / "_" / "post-commit"
    commit(repository, "a.md", "one")
    assert len(events(spool, 1)) == 1
    assert log.read_text() == "post-commit\n"
    assert (status(repository).state, warnings(spool)) == (HookState.IN_PLACE, [])

    install_husky(repository)
    assert status(repository).state is HookState.REPLACED
    (warning,) = warnings(spool)
    assert "was replaced by another program" in warning
    assert f"watchbill spool hook install '{repository}' --spool {spool}" in warning
    assert run(["spool", "hook", "status", str(repository)]) == 1
    assert run(["spool", "stats", "--spool", str(spool)]) == 0
    assert capfd.readouterr().err.count("was replaced by another program") == 2
    commit(repository, "a.md", "unseen")

    install(repository, spool)
    commit(repository, "a.md", "two")
    assert [event["message"] for event in events(spool, 1)] == ["two"]
    assert log.read_text() == "post-commit\n" * 3
    assert run(["spool", "hook", "status", str(repository)]) == 0
    assert warnings(spool) == []
    assert remove(repository)
    assert (hook.read_text(), warnings(spool)) == ('#!/usr/bin/env sh\n. "$(dirname "$0")/h"', [])


def test_the_hint_of_a_replaced_hook_works_when_it_is_pasted(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-11: also where no `watchbill` is on the PATH."""
    install(repository, tmp_path / "spool")
    (repository / ".git" / "hooks" / "post-commit").unlink()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (warning,) = warnings(tmp_path / "spool")
    assert f"run: {shlex.quote(sys.executable)} -m watchbill spool hook install" in warning


def test_remove_after_another_program_wrote_its_hook_anew_leaves_no_copy_of_it(
    repository: Path, tmp_path: Path
) -> None:
    """SPOOL-11: husky's reinstall writes the same hook over ours; a hook that differs is somebody's and stays."""
    install_husky(repository)
    hook = install(repository, tmp_path / "spool")
    install_husky(repository)
    merged = hook.with_name("post-merge")
    merged.write_text("#!/bin/sh\n# mine\n")
    remove(repository)
    left = sorted(path.name for path in hook.parent.glob("*before-watchbill*"))
    assert left == ["post-merge.before-watchbill"]


@pytest.mark.parametrize("times", [1, 3])
def test_remove_leaves_the_hooks_as_the_last_other_program_wrote_them(
    repository: Path, tmp_path: Path, times: int
) -> None:
    """SPOOL-11: each hook that another program wrote over ours replaces the one before it, as it would have without
    ours; none is left behind under a name of ours."""
    folder = repository / ".git" / "hooks"
    folder.mkdir(exist_ok=True)
    beside = sorted(os.listdir(folder))
    for number in range(times + 1):
        (folder / "post-commit").unlink(missing_ok=True)
        (folder / "post-commit").write_text(f"#!/bin/sh\n: {number}\n")
        install(repository, tmp_path / "spool")
    assert remove(repository)
    assert (folder / "post-commit").read_text() == f"#!/bin/sh\n: {times}\n"
    assert sorted(os.listdir(folder)) == sorted([*beside, "post-commit"])


@pytest.mark.parametrize("language", ["#!/bin/sh", "#!/usr/bin/env bash", "#!/bin/sh -u", "python"])
def test_a_chained_hook_sees_its_own_name_its_arguments_and_its_input(
    repository: Path, tmp_path: Path, language: str
) -> None:
    """SPOOL-11: `$0`, what lies beside it, the arguments, standard input; its exit code is the hook's."""
    folder = repository / ".git" / "hooks"
    folder.mkdir(exist_ok=True)
    hook, log = folder / "post-merge", tmp_path / "log"
    if language == "python":
        python = tmp_path / "python"  # the first line of a script cannot name a path with spaces
        python.symlink_to(sys.executable)
        hook.write_text(
            f"#!{python}\nimport os, sys\nname = os.path.basename(sys.argv[0])\n"
            f"open({str(log)!r}, 'w').write(f'{{name}} {{sys.argv[1:]}} {{sys.stdin.read()}}')\n"
            "sys.exit(7)\n"
        )
        expected = "post-merge ['1', 'a b'] said\n"
    else:
        (folder / "beside").write_text("echo beside\n")
        hook.write_text(
            f'{language}\n{{ echo "$0|$#|$2"; . "$(dirname "$0")/beside"; cat; }} > "{log}"\nexit 7\n'
        )
        expected = f"{hook}|2|a b\nbeside\nsaid\n"
    hook.chmod(0o755)
    install(repository, tmp_path / "spool")
    done = subprocess.run([hook, "1", "a b"], cwd=repository, input="said\n", text=True, check=False)
    assert (done.returncode, log.read_text()) == (7, expected)


def test_rapid_commits_arrive_in_their_order(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: many commits within a second; their events are in the queue in the order of the commits."""
    spool = tmp_path / "spool"
    install(repository, spool)
    for number in range(25):
        git(repository, "commit", "-q", "--allow-empty", "-m", f"number {number}")
    assert [event["message"] for event in events(spool, 25)] == [f"number {number}" for number in range(25)]
    wait_until(lambda: status(repository).waiting == 0)


def test_a_merge_is_an_event_and_a_fast_forward_is_none(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: the merge commit with what it brought to its first parent; no commit was made by the rest."""
    spool = tmp_path / "spool"
    commit(repository, "a.md", "base")
    main = git(repository, "branch", "--show-current")
    git(repository, "checkout", "-q", "-b", "side")
    commit(repository, "b.md", "side")
    git(repository, "checkout", "-q", main)
    commit(repository, "c.md", "main")
    install(repository, spool, table=[("x/*", "never")])
    git(repository, "merge", "-q", "--no-edit", "side")
    (event,) = events(spool, 1)
    assert (event["kind"], event["files"]) == ("draft-refined", [{"status": "A", "path": "b.md"}])
    assert len(event["parents"]) == 2  # type: ignore[arg-type]
    git(repository, "checkout", "-q", "side")
    git(repository, "merge", "-q", main)  # fast-forward
    git(repository, "checkout", "-q", "-b", "third", "HEAD~1")
    git(repository, "merge", "-q", "--squash", "side")
    git(repository, "commit", "-q", "--allow-empty", "-m", "last")
    assert [event["message"] for event in events(spool, 1)] == ["last"]


def test_a_hook_that_git_no_longer_looks_for_is_said(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: removed by hand, or core.hooksPath set after the install; never silence."""
    spool = tmp_path / "spool"
    assert status(repository).state is HookState.NOT_INSTALLED
    hook = install(repository, spool)
    git(repository, "config", "core.hooksPath", "other")
    assert status(repository).state is HookState.ELSEWHERE
    assert "git looks for hooks in" in warnings(spool)[0]
    git(repository, "config", "--unset", "core.hooksPath")
    hook.unlink()
    assert status(repository).state is HookState.GONE
    (spool / "queue-hooks").joinpath("broken.json").write_text("{")
    assert len(warnings(spool)) == 1


def test_a_worktree_with_a_hooks_folder_of_its_own_is_said(repository: Path, tmp_path: Path) -> None:
    """SPOOL-11: a relative core.hooksPath, as husky sets it, is another folder in each worktree; its commits were no
    events, without a word. The command that is named mends it."""
    spool, tree = tmp_path / "spool", tmp_path / "a tree"
    install_husky(repository)
    install(repository, spool)
    commit(repository, "a.md", "one")
    assert status(repository).problem == ""
    git(repository, "worktree", "add", "-q", str(tree), "-b", "side")
    assert status(repository).strays == (tree,)
    (warning,) = warnings(spool)
    assert f"watchbill spool hook install '{tree}' --spool {spool}" in warning
    assert run(["spool", "hook", "status", str(repository)]) == 1
    assert run(["spool", "hook", "install", str(tree), "--spool", str(spool)]) == 0
    commit(tree, "b.md", "two")
    assert [event["message"] for event in events(spool, 2)] == ["one", "two"]
    assert (status(repository).problem, status(tree).problem, warnings(spool)) == ("", "", [])
    git(repository, "worktree", "remove", "--force", str(tree))
    assert (status(repository).problem, warnings(spool)) == ("", [])
