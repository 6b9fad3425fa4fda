"""Real disks that can lose their power: loop mounts of ext4 and xfs.

A power cut is real as far as the file system can tell: the ioctl drops everything that was never flushed,
the mount goes away, and what is mounted again is what a disk would hold.
"""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.eventually import wait_until

__all__ = ["Disk", "loop_disk", "need_root_and", "run_tool"]

#: XFS_IOC_GOINGDOWN, which ext4 answers, too; flag 2 is "do not flush the journal".
GOING_DOWN = 0x8004587D
NO_FLUSH = struct.pack("I", 2)
#: How long a sandbox of another test may hold a copy of a mount.
COPIES_S = 120.0
SIZE_MIB = {"ext4": 96, "xfs": 320}


class Disk:
    """A small disk of its own in a file, mounted at `path`."""

    def __init__(self, kind: str, home: Path) -> None:
        self.kind = kind
        self.path = home / "mnt"
        self._image = home / "disk.img"
        self.path.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(SIZE_MIB[kind] * 1024 * 1024)
        run_tool(f"mkfs.{kind}", "-q", os.fspath(self._image))
        # One device for the whole life of the disk: `mount -o loop` makes one for each mount.
        self._device = run_tool("losetup", "--find", "--show", os.fspath(self._image))
        self.mount()

    def mount(self) -> None:
        run_tool("mount", self._device, os.fspath(self.path))

    def shut_down(self) -> None:
        """Drop all that was never flushed, now, under whoever is writing."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, NO_FLUSH)
        finally:
            os.close(fd)

    def mount_again(self) -> None:
        """Mount what the cut has left.

        A sandbox that another test runs meanwhile has a copy of all mounts. Until it ends, the kernel mounts the same
        file system again, and that one is shut down: every access answers EIO.
        """
        wait_until(self._is_mounted_anew, COPIES_S)

    def _is_mounted_anew(self) -> bool:
        run_tool("umount", os.fspath(self.path))
        self.mount()
        trial = self.path / ".trial"
        try:
            trial.touch()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        trial.unlink()
        return True

    def cut(self) -> None:
        self.shut_down()
        self.mount_again()

    def remove(self) -> None:
        subprocess.run(["umount", "-l", os.fspath(self.path)], check=False, capture_output=True)
        subprocess.run(["losetup", "--detach", self._device], check=False, capture_output=True)
        self._image.unlink()


def run_tool(*command: str) -> str:
    """Run a program of the system and return what it prints. Raises OSError with what it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def need_root_and(*programs: str) -> None:
    """Skip the test where it cannot mount."""
    if os.geteuid() != 0:
        pytest.skip("needs root: loop mounts, tmpfs and remounts")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


@contextmanager
def loop_disk(kind: str, home: Path) -> Iterator[Disk]:
    """A loop-mounted disk; skips the test where there can be none."""
    need_root_and(f"mkfs.{kind}", "losetup", "mount")
    try:
        made = Disk(kind, home)
    except OSError as error:
        pytest.skip(f"no loop device here: {error}")
    try:
        yield made
    finally:
        made.remove()
