"""Sandboxes: the command line in front of another one that keeps it from writing elsewhere, with what Linux has.

    strict    bubblewrap: namespaces of its own. All is read-only but what the cage names; /tmp is empty and its own;
              other processes are not seen; no capabilities; without network, where the cage has none
    light     landlock (`landlock`): writes only to what the cage names, devices excepted; no TCP without network

Neither hides files that may be read, nor bounds memory or processes: the crew's guard does that. Which of them this
machine can do is tried once, with a real program, when an agent starts.
"""

import glob
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from watchbill.processes import landlock, limits

__all__ = ["Cage", "can_bubblewrap", "can_landlock", "in_bubblewrap", "in_landlock"]

#: The devices of graphics cards, which a task on one needs.
_CARDS = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class Cage:
    """What a command may do."""

    write: tuple[Path, ...]  # folders and files, which exist
    read: tuple[Path, ...] = ()  # what it needs of /tmp, which is its own otherwise
    keep: tuple[Path, ...] = ()  # files below `write` that stay read-only, where the sandbox can do that
    has_network: bool = True
    has_cards: bool = False


def in_bubblewrap(cage: Cage, argv: list[str]) -> list[str]:
    """The command line of a command in the strict sandbox."""
    words = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    words += ["--tmpfs", "/var/tmp", "--tmpfs", "/dev/shm"]
    for kind, paths in (("--ro-bind", cage.read), ("--bind", cage.write), ("--ro-bind", cage.keep)):
        words += [word for path in paths for word in (kind, str(path), str(path))]
    for pattern in _CARDS if cage.has_cards else ():
        words += [word for path in glob.glob(pattern) for word in ("--dev-bind", path, path)]
    words += ["--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL", "--die-with-parent"]
    words += [] if cage.has_network else ["--unshare-net"]
    return [*words, "--", *argv]


def in_landlock(cage: Cage, argv: list[str]) -> list[str]:
    """The command line of a command in the light sandbox."""
    network = "all" if cage.has_network else "none"
    write = [str(path) for path in cage.write]
    return [sys.executable, "-I", "-S", landlock.__file__, network, str(len(write)), *write, *argv]


def can_bubblewrap() -> bool:
    """Whether bubblewrap is installed and allowed to work here."""
    return shutil.which("bwrap") is not None and _works(in_bubblewrap(Cage((), has_network=False), ["true"]))


def can_landlock() -> bool:
    """Whether the kernel has landlock, and lets this user use it."""
    return landlock.version() > 0 and _works(in_landlock(Cage(()), ["true"]))


def _works(argv: list[str]) -> bool:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limits.SANDBOX_TRY_S, check=False,
            cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)},
        )  # fmt: skip
    except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
