"""The tests' own fork server: what is forked is a process of its own, and what cannot be is the real program."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.forked_commands import ForkedProcess, run_watchbill, start_watchbill
from watchbill.fleet.folder import places


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONUTF8": "1"}
    return kept | {"WATCHBILL_HOME": str(tmp_path / "root")}


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--version"], None),
        (["no-such-command"], None),
        (["status"], None),
        (["config", "check", "-c", "missing.toml"], None),
        (["spool", "enqueue", "--spool", "s", "--json"], '{"text": "\u00fc"}'),
        (["spool", "list", "--spool", "./none"], ""),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, list) else "",
)
def test_a_forked_command_says_and_returns_what_the_real_one_does(
    env: dict[str, str], tmp_path: Path, words: list[str], given: str | None
) -> None:
    """The folder is the same as well, so that every path in a message is."""
    forked = run_watchbill(*words, env=env, cwd=tmp_path, input=given)
    real = subprocess.run(
        [sys.executable, "-m", "watchbill", *words], env=env, cwd=tmp_path, input=given, text=True,
        stdin=subprocess.DEVNULL if given is None else None, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (forked.returncode, forked.stderr) == (real.returncode, real.stderr)
    # An event has an id of its own each time.
    assert bool(forked.stdout) == bool(real.stdout)
    assert forked.stdout == real.stdout or "enqueue" in words


def test_a_forked_process_is_found_by_its_environment_and_ends_by_signals(
    env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "shared" / "plans").mkdir(parents=True)
    with (tmp_path / "said").open("w") as said:
        process = start_watchbill(
            "coordinator", "--root", "shared", stdout=said, stderr=said, cwd=tmp_path, in_new_session=True,
            env={**env, "MARKED_BY_A_TEST": str(tmp_path)},
        )  # fmt: skip
    assert isinstance(process, ForkedProcess)
    try:
        mark, words = f"MARKED_BY_A_TEST={tmp_path}".encode(), Path(f"/proc/{process.pid}/environ")
        wait_until(lambda: mark in words.read_bytes().split(b"\0"))
        wait_until((tmp_path / "shared" / places.RESULTS).is_dir)
        assert os.getsid(process.pid) == process.pid
        assert process.poll() is None
    finally:
        process.kill()
    assert process.wait(30) == -signal.SIGKILL


def test_what_a_child_would_inherit_makes_it_the_real_program(env: dict[str, str], tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with (tmp_path / "said").open("w") as said:
            process = start_watchbill("--version", env=env, cwd=tmp_path, stdout=said, stderr=said)
        assert isinstance(process, subprocess.Popen)
        assert process.wait(60) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
