"""The broker of `watchbill up --with-nats`: a nats-server of this root, for a first try or for one machine.

It listens on loopback only and asks for a password. Its data, its config and the password are in ROOT/nats, readable by
their owner only; the port stays the same from start to start. It syncs every write before it acknowledges it
(`sync_interval: always`), because a server with the defaults of NATS may lose acknowledged events in a power cut. It
runs as a child of the daemon and ends after the drains. The daemon is also a user of its system account, the observer,
who is told whether it still stores what it is sent.
"""

import json
import secrets
import shutil
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from watchbill.errors import ConfigError
from watchbill.files.atomic import make_folder, replace_file
from watchbill.packages import how_to_install
from watchbill.root import command_for
from watchbill.runtime.limits import (
    NATS_FILE_BYTES_MAX,
    NATS_HEALTH_MS,
    NATS_MEMORY_BYTES_MAX,
    NATS_PAYLOAD_BYTES_MAX,
    NATS_START_MS,
)
from watchbill.spool.jetstream.reach import Reach

__all__ = ["observer_reach", "own_reach", "prepare", "wait_until_up"]

_LOOPBACK = "127.0.0.1"
_USER, _OBSERVER = "watchbill", "observer"


def own_reach(root: Path) -> Reach:
    """How the broker of this root is reached. Raises ConfigError if it never ran."""
    try:
        told = cast("dict[str, Any]", json.loads((root / "nats" / "reach.json").read_bytes()))
        return Reach((f"nats://{_LOOPBACK}:{int(told['port'])}",), user=_USER, password=str(told["token"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        start = command_for(root, "up", "--with-nats")
        raise ConfigError(
            f'no broker is named: add [nats] with servers = ["nats://HOST:4222"], or run one here: {start}'
        ) from error


def observer_reach(root: Path) -> Reach:
    """How its observer reaches it, who asks once and waits briefly."""
    return replace(own_reach(root), user=_OBSERVER, wait_s=NATS_HEALTH_MS / 1000)


def prepare(root: Path) -> tuple[str, ...]:
    """Write the server's config and return the command line that runs it. Raises ConfigError if there is no server."""
    program, folder = _find_program(), root / "nats"
    make_folder(folder)
    folder.chmod(0o700)
    port, password = _kept(root)
    replace_file(folder / "reach.json", json.dumps({"port": port, "token": password}).encode())
    config = folder / "server.conf"
    replace_file(config, _config(folder, port, password).encode())
    return (program, "-c", str(config))


def wait_until_up(root: Path) -> bool:
    """Wait until the server answers, for a bounded time. False if it does not."""
    port, deadline = (
        int(own_reach(root).servers[0].rpartition(":")[2]),
        time.monotonic() + NATS_START_MS / 1000,
    )
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((_LOOPBACK, port), 1) as connection:
                if connection.recv(5) == b"INFO ":
                    return True
        except OSError:  # not yet
            time.sleep(0.05)
    return False


def _find_program() -> str:
    """nats-server: of the package in this environment, else on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise ConfigError(
            f"--with-nats needs nats-server, which is neither beside this Python nor on the PATH: "
            f"{how_to_install('nats-server')}"
        )
    return found


def _kept(root: Path) -> tuple[int, str]:
    """Port and password of the last start, or new ones; a port that another program has is replaced."""
    try:
        reach = own_reach(root)
        port, password = int(reach.servers[0].rpartition(":")[2]), reach.password
    except ConfigError:
        port, password = 0, secrets.token_urlsafe(32)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:  # another program has it
            probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1]), password


def _config(folder: Path, port: int, password: str) -> str:
    store = json.dumps(str(folder / "data"))
    return f"""# Written by `watchbill up --with-nats` at every start.
server_name: watchbill
host: {_LOOPBACK}
port: {port}
max_payload: {NATS_PAYLOAD_BYTES_MAX}
authorization {{ users: [ {{ user: {_USER}, password: "{password}" }} ] }}
accounts {{ $SYS {{ users: [ {{ user: {_OBSERVER}, password: "{password}" }} ] }} }}
jetstream {{
  store_dir: {store}
  sync_interval: always  # the default may lose acknowledged events in a power cut
  max_memory_store: {NATS_MEMORY_BYTES_MAX}
  max_file_store: {NATS_FILE_BYTES_MAX}
}}
"""
