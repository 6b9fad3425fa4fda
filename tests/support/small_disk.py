"""Small disks for tests of full ones: a tmpfs with a size or a number of files, which goes with the test."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.power_cut import need_root_and, run_tool

__all__ = ["free_up", "leave_blocks", "leave_files", "small_disks"]

_FILLER, _BALLAST = "filler", "ballast"


@contextmanager
def small_disks(home: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a tmpfs with these options; more than one at a time is fine. Skips the test where none can be mounted."""
    need_root_and("mount")
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = home / f"small{len(mounted)}"
        path.mkdir()
        try:
            run_tool("mount", "-t", "tmpfs", "-o", options, "tmpfs", os.fspath(path))
        except OSError as error:
            pytest.skip(f"no tmpfs here: {error}")
        mounted.append(path)
        return path

    try:
        yield mount
    finally:
        for path in mounted:
            subprocess.run(["umount", "-l", os.fspath(path)], check=False)


def leave_files(disk: Path, count: int) -> None:
    """Use the disk up until it takes this many more files and folders."""
    filler = disk / _FILLER
    filler.mkdir(exist_ok=True)
    while (free := os.statvfs(disk).f_ffree) > count:
        (filler / f"{free}").touch()
    for path in list(filler.iterdir())[: count - free]:
        path.unlink()


def leave_blocks(disk: Path, count: int) -> None:
    """Use the disk up until it takes this many more blocks of content; others may write to it meanwhile."""
    with (disk / _BALLAST).open("ab", buffering=0) as ballast:
        state = os.statvfs(disk)
        size, grown = ballast.tell(), (state.f_bfree - count) * state.f_frsize
        if grown <= 0:
            ballast.truncate(max(0, size + grown))
        for _ in range(state.f_bfree - count):
            try:
                ballast.write(b"x" * state.f_frsize)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return  # somebody else took what was left


def free_up(disk: Path) -> None:
    """Give all of the disk back."""
    shutil.rmtree(disk / _FILLER, ignore_errors=True)
    (disk / _BALLAST).unlink(missing_ok=True)
