"""One daemon per root: a lock that the kernel drops with the process that holds it.

The file stays behind on purpose: only the flock shows whether a daemon runs. The file holds pid and address of the
holder, for the error message of a second daemon.
"""

import json
import os
from pathlib import Path
from typing import Self, cast

from watchbill.errors import RootInUse
from watchbill.files.lock import try_lock
from watchbill.limits import DAEMON_RECORD_BYTES_MAX
from watchbill.root import command_for

__all__ = ["RootLock", "describe_holder", "root_in_use"]


class RootLock:
    """The lock of one root. Take it before anything in the root is read or reaped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self, address: str = "") -> None:
        """Takes the lock. Raises RootInUse with pid and address of the daemon that has it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not try_lock(descriptor):
                holder = _holder_in(os.pread(descriptor, DAEMON_RECORD_BYTES_MAX, 0))
                raise root_in_use(self.path.parent.parent, holder)
        except (OSError, RootInUse):
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.publish(address)

    def publish(self, address: str) -> None:
        """Records the address of this daemon, once it is known."""
        if self._descriptor is None:
            raise ValueError("publish needs a lock that is held")
        text = json.dumps({"pid": os.getpid(), "address": address}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text + b"\n", 0)

    def release(self) -> None:
        """Releases the lock; does nothing when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def root_in_use(root: Path, holder: str) -> RootInUse:
    """The error of a second daemon on a root."""
    return RootInUse(
        f"{root} belongs to {holder}; "
        f"stop that one with: {command_for(root, 'down')}; or name another root with --root"
    )


def describe_holder(pid: object, address: object) -> str:
    """A daemon in words; without its address where that is not known yet."""
    return f"the daemon with pid {pid}" + (f" at {address}" if address else "")


def _holder_in(text: bytes) -> str:
    try:
        found = cast("object", json.loads(text))
    except ValueError:  # its holder has the lock but has not written yet
        return "a daemon that is just starting"
    fields = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    return describe_holder(fields.get("pid"), fields.get("address"))
