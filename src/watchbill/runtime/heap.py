"""The heap: freed memory goes back to the system.

glibc's allocator keeps freed memory for later use. Once a large block was freed, it also serves larger and larger
blocks from the part that it keeps: after a burst of large bodies a process stays at its largest size. A fixed threshold
gives every large block a mapping of its own, which ends with the block; `return_freed` gives back the rest. Other
allocators (musl's returns memory by itself) are left alone.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import cast

from watchbill.runtime.limits import HEAP_MAPPED_BYTES_MIN

__all__ = ["map_large_blocks", "return_freed"]

#: glibc's number for the size from which a block gets its own mapping; once set, it no longer grows.
_M_MMAP_THRESHOLD = -3


def map_large_blocks() -> None:
    """Makes every block of at least HEAP_MAPPED_BYTES_MIN go back to the system when it is freed."""
    if (mallopt := _function("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, HEAP_MAPPED_BYTES_MIN)


def return_freed() -> None:
    """Gives back freed memory. Takes milliseconds, without the interpreter's lock: call it in a thread."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@cache
def _function(name: str) -> Callable[..., object] | None:
    """A function of the C library; None where it does not exist."""
    try:
        return cast("Callable[..., object]", getattr(ctypes.CDLL(None), name))
    except (AttributeError, OSError):
        return None
