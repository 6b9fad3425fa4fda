"""A host for tests: a fake systemctl, units that are real processes, and a real reactor."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from watchbill.reactor.service import Reactor
from watchbill.reactor.systemctl import Systemctl

FAKE = Path(__file__).parent / "programs" / "fake_systemctl.py"


class Host:
    """What systemd would be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.systemctl = folder / "systemctl"
        self.systemctl.write_text(f"#!{sys.executable} -IS\n{FAKE.read_text()}")
        self.systemctl.chmod(self.systemctl.stat().st_mode | stat.S_IXUSR)

    def define(self, unit: str, **facts: Any) -> None:
        (self.folder / f"{unit}.json").write_text(json.dumps(facts))

    def calls(self) -> list[list[str]]:
        """Every call so far, without the looks."""
        try:
            lines = (self.folder / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [words for words in map(json.loads, lines) if "show" not in words]

    def pid(self, unit: str) -> int | None:
        """The unit's living process."""
        try:
            found = int((self.folder / f"{unit}.pid").read_text())
            state = Path(f"/proc/{found}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return None if state == "Z" else found

    def kill(self, unit: str) -> None:
        if found := self.pid(unit):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, signal.SIGKILL)

    def end(self) -> None:
        for file in self.folder.glob("*.pid"):
            self.kill(file.stem)


@contextlib.contextmanager
def host_in(folder: Path) -> Iterator[Host]:
    host = Host(folder)
    try:
        yield host
    finally:
        host.end()


@contextlib.asynccontextmanager
async def reacting(root: Path, host: Host, *allow: str) -> AsyncIterator[Reactor]:
    """A reactor that serves until the end."""
    reactor = Reactor(root, allow, Systemctl(str(host.systemctl)))
    serving = asyncio.create_task(reactor.serve())
    try:
        yield reactor
    finally:
        reactor.stop()
        await serving
        reactor.close()
