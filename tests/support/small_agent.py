"""A small agent for tests of the coordinator: a program that claims, runs one shell task at a time, and reports.

    python -m support.small_agent ROOT NAME

It uses the real board, slips and result log; it has no guard, no health and no signals.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from watchbill.files.host import boot_id, start_time
from watchbill.fleet import places
from watchbill.fleet.board import Board
from watchbill.fleet.disk import FolderDisk
from watchbill.fleet.heartbeat import Heartbeat, Pulse, write_heartbeat
from watchbill.fleet.results import End, Result, ResultLog, end_of
from watchbill.fleet.slips import Slip, headline_of
from watchbill.fleet.values import Fields
from watchbill.plans.command import argv_of, parse_command
from watchbill.plans.expand import item_of, values_of
from watchbill.plans.placeholders import Placeholder

BEAT_S = 1.0


class SmallAgent:
    """One life of the agent."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.disk = FolderDisk(root)
        self.board = Board(self.disk)
        self.board.join(name)
        self.disk.make_folder(os.path.dirname(places.heartbeat_path(name)))
        self.log = ResultLog(self.disk, name)
        self.seq = 0
        self.beat_at = 0.0
        self.log.commit(Result(held, name, self.log.life, End.LOST) for held in self.board.held_by(name))

    def serve(self) -> None:
        while True:
            self._beat()
            worked = [self._work(name) for name in self.board.offered()]
            if not any(worked):
                time.sleep(0.02)

    def _beat(self) -> None:
        if time.monotonic() >= self.beat_at:
            self.beat_at = time.monotonic() + BEAT_S
            self.seq += 1
            pulse = Pulse(boot_id(), os.getpid(), start_time(os.getpid()) or 0, self.seq)
            write_heartbeat(
                self.disk, self.name, Heartbeat(pulse, {"state": "cold", "budget_available_mb": 4096})
            )

    def _work(self, name: str) -> bool:
        headline = headline_of(name)
        if (
            headline is None
            or headline.addressee not in ("", self.name)
            or not self.board.claim(self.name, name)
        ):
            return False
        slip = self.board.read(self.name, name)
        if slip is None:
            self.log.commit([Result(name, self.name, self.log.life, End.UNREADABLE)])
            return True
        began = time.monotonic()
        done = subprocess.run(self._argv(slip), capture_output=True, check=False, cwd=self._plan(slip))
        ms = round((time.monotonic() - began) * 1000)
        tail = (done.stdout + done.stderr).decode("utf-8", "replace")
        self.log.commit(
            [Result(name, self.name, self.log.life, end_of(done.returncode), done.returncode, ms, tail=tail)]
        )
        return True

    def _plan(self, slip: Slip) -> Path:
        return self.root / "plans" / slip.plan

    def _argv(self, slip: Slip) -> list[str]:
        own = {
            "BATCH_ID": slip.batch, "BATCH_PATH": str(self.root / places.batch_folder(slip.plan, slip.batch)),
            "PLAN_PATH": str(self._plan(slip)), "ROOT": str(self.root),
        }  # fmt: skip

        def value_of(place: Placeholder) -> str:
            given = slip.inputs.get(place.name)
            below = Fields(slip.inputs).fields(place.name).text("below_root")
            return own.get(place.name) or (str(self.root / below) if below else str(given))

        items = [item_of(text) for text in slip.items]
        return argv_of(
            parse_command(Fields(slip.work).text("command")),
            values_of(items[0], value_of) if items else value_of,
        )


if __name__ == "__main__":
    SmallAgent(Path(sys.argv[1]), sys.argv[2]).serve()
