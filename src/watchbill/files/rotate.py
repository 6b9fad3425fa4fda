"""Rotation: NAME becomes NAME.1, NAME.1 becomes NAME.2, and so on; the oldest file is overwritten.

Standard library only, and nothing else of Watchbill: the guards load this file as programs of their own.
"""

import contextlib
import os

__all__ = ["rotate"]


def rotate(path: str, files_max: int, *, dir_fd: int | None = None) -> None:
    """Free the name `path`. At most `files_max` files are left, counting the new one that the caller begins.

    Files that are missing are passed over. With `dir_fd` the path is relative to that folder.
    """
    for number in range(files_max - 2, -1, -1):
        younger = f"{path}.{number}" if number else path
        with contextlib.suppress(FileNotFoundError):
            os.replace(younger, f"{path}.{number + 1}", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
