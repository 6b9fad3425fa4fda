"""Ports for engines: free when handed out, and never handed out twice at the same time.

The kernel picks a free port. A file per port in `ROOT/run/ports` keeps the other engines of this root from getting the
same one before the first has bound it. A program outside Watchbill may still take it in between: the engine then exits,
`is_taken` says so, and its load tries another port.
"""

import errno
import os
import socket
from pathlib import Path

from watchbill.errors import EngineFailed
from watchbill.processes.limits import PORT_DRAWS_MAX

__all__ = ["LOOPBACK", "claim_port", "is_taken", "release_port", "try_to_listen"]

LOOPBACK = "127.0.0.1"


def claim_port(folder: Path) -> int:
    """A free port that no other engine of this root has. Give it back with `release_port`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(PORT_DRAWS_MAX):
        with socket.socket() as draw:
            draw.bind((LOOPBACK, 0))
            port = int(draw.getsockname()[1])
            if _claim(folder / str(port)):
                return port
    raise EngineFailed(f"no free port on {LOOPBACK}: all {PORT_DRAWS_MAX} drawn are claimed in {folder}")


def release_port(folder: Path, port: int) -> None:
    """Gives a port back; does nothing when it is not claimed."""
    (folder / str(port)).unlink(missing_ok=True)


def is_taken(port: int) -> bool:
    """Whether a program listens on this port now."""
    try:
        try_to_listen(LOOPBACK, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return True
        raise
    return False


def try_to_listen(host: str, port: int) -> None:
    """Raises OSError when no program could listen on this address of IPv4 now."""
    with socket.socket() as draw:
        # As in servers: connections of the last owner that are still in TIME_WAIT do not count.
        draw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        draw.bind((host, port))


def _claim(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True
