"""The door of a shared folder: answers the requests of agents that have no mount, over any transport.

It stands beside the folder, on any machine that has it, and holds nothing that is true: a door that is killed and
started anew costs agents one new result log each. Each agent is a visitor that may do what an agent does and no more.
"""

import errno
import os
from pathlib import Path

from watchbill.errors import OursError
from watchbill.fleet import limits
from watchbill.fleet.door.files import DRAFT
from watchbill.fleet.door.visitor import Greeting, Visitor
from watchbill.fleet.door.wire import answer_error, pack, unpack
from watchbill.fleet.folder import places

__all__ = ["Door"]


class Door:
    """Answers requests. One agent's are answered one after the other, those of different ones by any threads."""

    def __init__(self, root: Path, *, filled: bool = True) -> None:
        """Raises OursError for a folder that is no fleet."""
        self._root, self._filled = root, filled
        self._greeting = Greeting(places.check_root(root), os.urandom(8).hex())
        self._visitors: dict[str, Visitor] = {}
        self._sweep()

    def answer(self, agent: str, data: bytes) -> bytes | None:
        """The answer to a message; None for one that gets none."""
        try:
            return self._visitor(agent).answer(unpack(data))
        except (OursError, ValueError) as error:
            refused = answer_error(PermissionError(errno.EACCES, f"the door refused: {error}"))
            return pack({"size": len(refused)}, refused)

    def close(self) -> None:
        """Close all record files and keep them."""
        for visitor in self._visitors.values():
            visitor.close()

    def _sweep(self) -> None:
        """Remove what a door that was killed left half-written."""
        for draft in (self._root / places.DRAFTS).glob(f"{DRAFT}*"):
            draft.unlink(missing_ok=True)

    def _visitor(self, agent: str) -> Visitor:
        found = self._visitors.get(agent)
        if found is None:
            if agent == places.BRAIN:
                raise OursError("brain is the coordinator's own agent", hint="give this one another name")
            if len(self._visitors) >= limits.DOOR_AGENTS_MAX:
                raise OursError(f"this door serves {limits.DOOR_AGENTS_MAX} agents already")
            made = Visitor(self._root, agent, self._greeting.door, self._greet, filled=self._filled)
            found = self._visitors.setdefault(agent, made)
        return found

    def _greet(self) -> Greeting:
        """Look whether the folder is still the one that the door was opened on. Raises OSError."""
        try:
            fleet = places.check_root(self._root)
        except OursError as error:
            raise OSError(errno.ENODEV, f"the folder behind the door has gone: {error}") from None
        return self._greeting._replace(fleet=fleet)
