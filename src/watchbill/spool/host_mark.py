"""What one host at a time may do on a mount that several share: the first one writes its name beside it, for good.

Two appenders whose locks do not reach each other would overwrite each other's lines. A mark is simple and cannot fail
over by itself: when the host is gone for good, a person removes the mark.
"""

import os
from pathlib import Path

from watchbill.files.atomic import FILE_MODE, create_file
from watchbill.files.host import host_name
from watchbill.spool.faults import SpoolBroken

__all__ = ["refuse_other_host"]

_NAME_BYTES_MAX = 256


def refuse_other_host(mark: Path, what: str) -> None:
    """Raises SpoolBroken if the mark names another host; without a mark it is made. Raises OSError."""
    try:
        create_file(mark, host_name().encode(), mode=FILE_MODE)
    except FileExistsError:
        fd = os.open(mark, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            holder = os.read(fd, _NAME_BYTES_MAX).decode("utf-8", "replace").strip()
        finally:
            os.close(fd)
        if holder != host_name():
            raise SpoolBroken(
                f"{what} is kept by the host {holder or '(being named)'}, and locks do not reach other hosts here; "
                f"use another path on this host, or remove {mark} if that host is gone for good"
            ) from None
