"""The heap: memory that was freed goes back to the system.

glibc's allocator keeps what is freed for later use, and takes ever larger blocks from the part that it keeps once one
such block was freed: after a burst of large bodies a process stays as large as it ever was. A fixed threshold gives
every large block a mapping of its own, which ends with the block; `return_freed` gives back the rest. Another
allocator (musl's returns memory by itself) is left alone.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import cast

from watchbill.limits import HEAP_MAPPED_BYTES_MIN

__all__ = ["map_large_blocks", "return_freed"]

#: glibc's number for the size from which a block gets a mapping of its own; once set, it no longer grows.
_M_MMAP_THRESHOLD = -3


def map_large_blocks() -> None:
    """Every block from HEAP_MAPPED_BYTES_MIN on goes back to the system when it is freed."""
    if (mallopt := _function("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, HEAP_MAPPED_BYTES_MIN)


def return_freed() -> None:
    """Gives back what was freed and kept. Takes milliseconds, and not the interpreter's lock: call it in a thread."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@cache
def _function(name: str) -> Callable[..., object] | None:
    """A function of the C library; None where it has none of that name."""
    try:
        return cast("Callable[..., object]", getattr(ctypes.CDLL(None), name))
    except (AttributeError, OSError):
        return None
