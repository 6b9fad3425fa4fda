"""Real NATS brokers for tests: one, or a cluster of three, on free loopback ports, with data below a folder."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.stopping import stop
from watchbill.spool.jetstream import Reach

__all__ = ["TOKEN", "Broker", "broker", "cluster", "free_port", "nats_program"]

TOKEN = "a-token-of-tests"


def nats_program() -> str:
    """The server of the package, else one on the PATH; skips the test where there is none."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        pytest.skip("needs nats-server")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """One server process that can be killed and started again on the same port and data."""

    def __init__(
        self,
        home: Path,
        *,
        sync: str = "always",
        data: Path | None = None,
        routes: tuple[int, ...] = (),
        place: int = 0,
    ) -> None:
        self.home, self.port = home, free_port()
        self.data = data or home / "jetstream"
        home.mkdir(parents=True, exist_ok=True)
        lines = [
            f'server_name: "b{place}"', "host: 127.0.0.1", f"port: {self.port}", "max_payload: 8MB",
            f'authorization {{ token: "{TOKEN}" }}',
            f'jetstream {{ store_dir: {json.dumps(str(self.data))}, sync_interval: {sync} }}',
        ]  # fmt: skip
        if routes:
            others = ", ".join(f"nats-route://127.0.0.1:{port}" for port in routes)
            lines.append(
                f"cluster {{ name: tests, host: 127.0.0.1, port: {routes[place]}, routes: [{others}] }}"
            )
        self.config = home / "server.conf"
        self.config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def reach(self) -> Reach:
        return Reach((self.url,), token=TOKEN)

    def start(self) -> "Broker":
        with open(self.home / "log", "ab") as log:
            self._process = subprocess.Popen(
                [nats_program(), "-c", os.fspath(self.config)], stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self.answers)
        return self

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    @contextmanager
    def slow_disk(self, sync_ms: int) -> Iterator[None]:
        """Each sync takes this long, as on a hard disk, a memory card, or a disk that others use."""
        assert self._process is not None
        if shutil.which("strace") is None:
            pytest.skip("needs strace")
        options = [
            "-f",
            "-e",
            "trace=fsync,fdatasync",
            "-e",
            f"inject=fsync,fdatasync:delay_exit={sync_ms * 1000}",
        ]
        tracing = subprocess.Popen(
            ["strace", *options, "-o", "/dev/null", "-p", str(self._process.pid)], stderr=subprocess.PIPE
        )
        try:
            assert tracing.stderr is not None
            if b"attached" not in tracing.stderr.readline():
                pytest.skip("strace may not trace here")
            yield
        finally:
            tracing.terminate()
            tracing.communicate()

    def stop(self) -> None:
        """Stops the process."""
        assert self._process is not None
        stop(self._process.pid)

    def go_on(self) -> None:
        """Has a stopped process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def broker(home: Path, *, sync: str = "always") -> Iterator[Broker]:
    """One running server."""
    made = Broker(home, sync=sync)
    try:
        yield made.start()
    finally:
        made.kill()


@contextmanager
def cluster(home: Path) -> Iterator[list[Broker]]:
    """Three running servers that know each other."""
    routes = tuple(free_port() for _ in range(3))
    made = [Broker(home / f"b{place}", routes=routes, place=place) for place in range(3)]
    try:
        yield [each.start() for each in made]
    finally:
        for each in made:
            each.kill()
