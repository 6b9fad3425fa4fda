"""What we hold in another program, written down in `ROOT/run`.

Models that another program hosts outlive a daemon that is killed. The record names them from before they are asked for
until they are given back, so that the next start can give back what its predecessor could not.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from watchbill import limits
from watchbill.files.atomic import replace_file

__all__ = ["HeldRecord"]


class HeldRecord:
    """One small file with the names that the other program knows our models by."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[str]:
        """The names; none where nothing is held."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        with os.fdopen(descriptor, "rb") as file:
            try:
                return msgspec.json.decode(file.read(limits.HELD_RECORD_BYTES_MAX), type=list[str])
            except msgspec.DecodeError:
                return []  # torn by a power cut, which ended the other program as well

    def write(self, names: Iterable[str]) -> None:
        """Puts these names in the place of the old ones; there is no file where there are none."""
        held = sorted(set(names))
        if not held:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(
            self._path, msgspec.json.encode(held), sync=False
        )  # a power cut ends the other program, too
