"""Mounts of one folder that behave as network mounts do: each is a host of its own. `fuse_server` has the faults."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.stopping import stop

__all__ = ["FuseMount", "fuse_mounts"]

SERVER = Path(__file__).with_name("fuse_server.py")


class FuseMount:
    """One mount of a folder and the process that serves it. Several mounts of one folder are several hosts."""

    def __init__(
        self,
        source: Path,
        point: Path,
        *,
        hides_s: float = 0.0,
        loses_first: int = 0,
        loses_replies: float = 0.0,
        seed: int = 0,
        no_flags: bool = False,
    ) -> None:
        self.path = point
        self._log = point.with_name(f"{point.name}.lost")
        self._orders = point.with_name(f"{point.name}.orders")
        self._errors = point.with_name(f"{point.name}.errors")
        self._words = [
            sys.executable, "-B", str(SERVER), str(source), str(point), "--hides", str(hides_s),
            "--loses-first", str(loses_first), "--loses-replies", str(loses_replies), "--seed", str(seed),
            "--log", str(self._log), "--orders", str(self._orders), *(["--no-flags"] if no_flags else []),
        ]  # fmt: skip
        self._former: list[subprocess.Popen[bytes]] = []
        point.mkdir(parents=True)
        self._server = self._start()

    @property
    def lost_replies(self) -> int:
        """How many renames were carried out and answered with an error."""
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0

    def order(self, word: str, *, after: int = 0, times: int = 1) -> None:
        """A word of `fuse_server`, for the requests after the next ones of their kind."""
        self._orders.write_text(f"{after} {word} {times}")

    def kill(self) -> None:
        """The server is gone: everything on the mount answers ENOTCONN."""
        self._server.kill()
        self._server.wait(PATIENCE_S)

    def stop(self) -> None:
        """The server hangs, and so does everybody who touches the mount."""
        stop(self._server.pid)

    def go_on(self) -> None:
        self._server.send_signal(signal.SIGCONT)

    def mount_again(self) -> None:
        """A new mount at the same place, with empty caches."""
        self.unmount()
        self._server = self._start()

    def mount_over(self) -> None:
        """A new mount at the same place. The old one has no path any more, and serves what is open."""
        subprocess.run(["umount", "-l", os.fspath(self.path)], check=True, capture_output=True)
        self._former.append(self._server)
        self._server = self._start()

    def unmount(self) -> None:
        """What is left is an empty folder."""
        self.go_on()
        subprocess.run(["umount", "-l", os.fspath(self.path)], check=False, capture_output=True)
        self.kill()
        while self._former:
            former = self._former.pop()
            former.kill()
            former.wait(PATIENCE_S)

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._errors.open("ab") as errors:
            server = subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        try:
            wait_until(lambda: os.path.ismount(self.path) or server.poll() is not None)
        except BaseException:
            server.kill()
            raise
        if server.poll() is not None:
            raise OSError(f"no FUSE mount: {self._errors.read_text().strip().splitlines()[-1]}")
        return server


@contextmanager
def fuse_mounts() -> Iterator[list[FuseMount]]:
    """A list to put mounts in; they are gone when the block ends. Skips the test where nobody may mount."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a FUSE mount")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse")
    mounts: list[FuseMount] = []
    try:
        yield mounts
    finally:
        for mount in mounts:
            mount.unmount()
