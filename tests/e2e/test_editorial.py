"""The editorial desk of `examples/editorial.toml`: commits become a corpus, whatever sleeps meanwhile."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.eventually import wait_until
from watchbill.spool import reader

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class Driver:
    """A root with the example's config, a repository, and people who commit."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        self.repository = folder / "texts"
        shutil.copy(EXAMPLES / "editorial.toml", folder / "watchbill.toml")
        kept = {name: os.environ[name] for name in ("LANG",) if name in os.environ}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        people = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.org"))
        }
        self.environment = kept | people | {
            "PATH": path, "HOME": str(folder), "WATCHBILL_HOME": str(self.root), "PYTHONUTF8": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }  # fmt: skip
        self.daemon: subprocess.Popen[str] | None = None

    def run(self, *command: str, cwd: Path | None = None, stdin: str = "") -> str:
        done = subprocess.run(
            command, cwd=cwd or self.folder, env=self.environment, input=stdin, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commit(self, file: str, message: str) -> None:
        target = self.repository / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{message} {time.time_ns()}")
        self.run("git", "add", "-A", cwd=self.repository)
        self.run("git", "commit", "-q", "-m", message, cwd=self.repository)

    def up(self) -> None:
        self.daemon = subprocess.Popen(
            ["watchbill", "up", "--port", "0"], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.daemon.stdout is not None
        assert self.daemon.stdout.readline().startswith("ready http://")

    def down(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(how)
        _, error = self.daemon.communicate(timeout=40)
        assert "Traceback" not in error
        code, self.daemon = self.daemon.returncode, None
        return code

    def corpus(self) -> list[dict[str, object]]:
        file = self.root / "corpus/corpus.jsonl"
        return [found.event for found in reader.read(file)] if file.exists() else []

    def waiting(self) -> int:
        """Events in the queue."""
        # Not `rglob`: folders of writers come and go while it walks.
        found = (names for _, _, names in os.walk(self.root / "spool/corpus/queue"))
        return sum(name.endswith(".jsonl") for names in found for name in names)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    if driver.daemon is not None:
        driver.daemon.kill()
        driver.daemon.communicate()


def test_commits_reach_the_corpus_whatever_sleeps_meanwhile(driver: Driver) -> None:
    """SPOOL-04, SPOOL-05, SPOOL-09, SPOOL-11: nothing is missing, each event once, in order, of its kind."""
    driver.run("git", "init", "-q", "texts")
    driver.run("watchbill", "spool", "hook", "install", "texts", "--spool", "corpus")
    driver.commit("piece.md", "first")  # nobody drains yet
    wait_until(lambda: driver.waiting() == 1)
    driver.up()
    wait_until(lambda: len(driver.corpus()) == 1)
    driver.commit("piece.md", "second")
    wait_until(lambda: len(driver.corpus()) == 2)
    told = json.loads(driver.run("watchbill", "status", "--json"))["spools"]["corpus"]
    assert (told["appended"], told["poisoned"], told["capture_stored"], told["complaint"]) == (2, 0, 0, "")
    assert "SPOOL" in driver.run("watchbill", "status")
    assert driver.down() == 0
    stats = json.loads(driver.run("watchbill", "spool", "stats", "--spool", "corpus", "--json"))
    assert (stats["queue"], stats["in_flight"], stats["done"]) == (0, 0, 2)
    driver.commit("creative/poem.md", "third")  # the machine sleeps
    wait_until(lambda: driver.waiting() == 1)
    driver.commit("piece.md", "fourth\n\nEvent-Kind: headline-chosen")
    wait_until(lambda: driver.waiting() == 2)
    driver.up()
    wait_until(lambda: len(driver.corpus()) == 4)
    assert [event["kind"] for event in driver.corpus()] == [
        "draft-created", "draft-refined", "creative-edited", "headline-chosen",
    ]  # fmt: skip
    driver.down(signal.SIGKILL)
    driver.commit("piece.md", "fifth")
    driver.up()
    wait_until(lambda: len(driver.corpus()) == 5)
    assert driver.down() == 0
    assert driver.run("watchbill", "corpus", "read", "corpus").count("\n") == 5
    driver.run("watchbill", "spool", "hook", "remove", "texts")


def test_any_program_enqueues_with_write_and_rename(driver: Driver) -> None:
    """SPOOL-02: the producers of examples/spool, one in shell without Watchbill, one in Python."""
    spool = str(driver.root / "spool/corpus")
    event = '{"id":"brief-0","kind":"draft-created","ts":0}'
    assert driver.run("sh", str(EXAMPLES / "spool/enqueue.sh"), spool, stdin=event + "\n").endswith(
        ".jsonl\n"
    )
    said = driver.run(sys.executable, str(EXAMPLES / "spool/enqueue.py"), spool)
    assert "attempt 1 of brief-0" in said
    assert driver.waiting() == 1
    driver.run("watchbill", "spool", "drain", "--spool", "corpus", "--once")
    assert [each["id"] for each in driver.corpus()] == ["brief-1"]


def test_a_changed_config_changes_what_is_drained(driver: Driver) -> None:
    """pitfalls: a reload takes new spools over while the daemon runs; chat is not asked."""
    driver.up()
    config = driver.folder / "watchbill.toml"
    config.write_text(config.read_text() + '\n[spool.notes]\nschema = "any"\n')
    driver.run("watchbill", "config", "reload")
    driver.run("watchbill", "spool", "enqueue", "--spool", "notes", stdin='{"a":1}\n')
    notes = driver.root / "corpus/notes.jsonl"
    wait_until(lambda: notes.exists() and notes.read_text() == '{"a":1}\n')
    assert driver.down() == 0


def test_a_spool_that_cannot_be_drained_does_not_keep_models_from_answering(driver: Driver) -> None:
    """A failing spool never stops chat: it is told, and goes on when it is mended."""
    driver.root.mkdir(mode=0o700)
    (driver.root / "spool").write_text("a file where a folder should be")
    driver.up()
    assert driver.run("watchbill", "chat", "hello").strip()
    journal = driver.root / "events.jsonl"
    wait_until(lambda: journal.exists() and "spool corpus:" in journal.read_text())
    (driver.root / "spool").unlink()
    driver.run(
        "watchbill", "spool", "enqueue", "--spool", "corpus", stdin='{"id":"1","kind":"note","ts":0}\n'
    )
    wait_until(lambda: len(driver.corpus()) == 1)
    assert driver.down() == 0
