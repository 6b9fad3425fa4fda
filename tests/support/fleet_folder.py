"""A shared folder with real processes around it: the coordinator and agents as programs, and the command line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.eventually import PATIENCE_S, wait_until
from support.forked_commands import ForkedProcess, run_watchbill, start_watchbill
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.state.entries import encode_entry
from watchbill.fleet.state.journal import read_past

__all__ = ["FleetFolder", "shared_folder"]


class FleetFolder:
    """One shared folder; ends every process that it started."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.root = root or folder / "shared"
        (self.root / "plans").mkdir(parents=True)
        self.home = folder
        self.started: list[ForkedProcess | subprocess.Popen[bytes]] = []
        self.log = folder / "processes.log"
        self.may_fault = False  # a coordinator is broken on purpose

    # ------------------------------------------------------------ processes

    def start(self, *words: str, **environment: str) -> "ForkedProcess | subprocess.Popen[bytes]":
        """Starts a Python with these words; `-m watchbill` without its imports."""
        env = {**self.environment(), **environment}
        with self.log.open("ab") as log:
            if words[:2] == ("-m", "watchbill"):
                process = start_watchbill(*words[2:], env=env, cwd=self.home, stdout=log, stderr=log)
            else:
                process = subprocess.Popen(
                    [sys.executable, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    cwd=self.home,
                )
        self.started.append(process)
        return process

    def environment(self) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("WATCHBILL_", "BRAIN_"))
        }
        return {
            **kept, "WATCHBILL_HOME": str(self.home / "home"), "XDG_CONFIG_HOME": str(self.home / "config"),
            "NO_COLOR": "1", "PYTHONUTF8": "1",
        }  # fmt: skip

    def start_coordinator(self, **environment: str) -> "ForkedProcess | subprocess.Popen[bytes]":
        return self.start("-m", "watchbill", "coordinator", "--root", str(self.root), **environment)

    def start_agent(self, name: str, **environment: str) -> "ForkedProcess | subprocess.Popen[bytes]":
        wait_until((self.root / places.RESULTS).is_dir)
        return self.start(
            "-m", "watchbill", "agent", name, "--root", str(self.root), "--cpu-slots", "2", **environment
        )

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(PATIENCE_S)

    # ------------------------------------------------------------ the command line

    def run(
        self, *words: str, timeout_s: float = 4 * PATIENCE_S, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**self.environment(), **environment}
        return run_watchbill(*words, env=env, cwd=self.home, timeout=timeout_s)

    def plan(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`watchbill plan ... --root ROOT`."""
        return self.run("plan", *words, "--root", str(self.root))

    def submit(self, plan: str, *options: str) -> str:
        done = self.plan("submit", plan, *options, "--quiet")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def status(self, batch: str) -> dict[str, Any]:
        done = self.plan("status", batch, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def status_of_all(self) -> dict[str, Any]:
        return json.loads(self.plan("status", "--json").stdout)

    def wait(self, batch: str, seconds: float = 4 * PATIENCE_S) -> int:
        return self.plan("wait", batch, "--timeout", str(seconds), "--quiet").returncode

    # ------------------------------------------------------------ files

    def write_plan(self, name: str, tasks: str, *, inputs: str = "", **scripts: str) -> Path:
        folder = self.root / "plans" / name
        (folder / "scripts").mkdir(parents=True, exist_ok=True)
        (folder / "plan.md").write_text(
            f"# {name}\n\n## Goal\n\nShow it.\n\n## Inputs\n\n{inputs}\n\n## Tasks\n\n{tasks}"
        )
        for script, text in scripts.items():
            (folder / "scripts" / script).write_text(text)
        return folder

    def batch(self, plan: str, batch: str) -> Path:
        return self.root / places.batch_folder(plan, batch)

    def entries(self, plan: str, batch: str, kind: str) -> list[dict[str, Any]]:
        """What counts of the journal."""
        past = read_past(FolderDisk(self.root), plan, batch, 10**9)
        return [entry for entry in map(encode_entry, past.entries) if entry["e"] == kind]

    def summary(self, plan: str, batch: str) -> dict[str, Any]:
        return json.loads((self.batch(plan, batch) / "RUN_SUMMARY.json").read_text())


@contextmanager
def shared_folder(folder: Path, root: Path | None = None) -> Iterator[FleetFolder]:
    """A shared folder whose processes end with the test; `root` where it lies on a disk of its own."""
    found = FleetFolder(folder, root)
    try:
        yield found
    finally:
        found.close()
    if not found.may_fault and found.log.exists():
        assert "action=fault" not in found.log.read_text(errors="replace"), (
            "a coordinator failed by a fault of its own"
        )
