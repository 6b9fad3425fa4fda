"""The shared folder as an agent has it: mounted, or a mirror of it behind a door.

An agent's `BoardClient` does the same in both cases. What differs is here: how the board is reached, how news of it
arrive, and whether the files of a task have to be carried before it starts and after it has ended.
"""

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from watchbill.errors import OursError
from watchbill.files.atomic import make_folder, open_folder, put_file
from watchbill.files.watch import Watch
from watchbill.fleet import limits
from watchbill.fleet.agent.produced import Storing, Unstored
from watchbill.fleet.door.arrivals import Arrivals, Heard
from watchbill.fleet.door.caller import BrokerSession
from watchbill.fleet.door.disk import DoorDisk
from watchbill.fleet.door.mirror import Mirror
from watchbill.fleet.door.wire import Op
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk, FolderDisk
from watchbill.fleet.folder.slips import Slip

__all__ = ["MirroredFolder", "MountedFolder", "SharedFolder"]


class SharedFolder(Protocol):
    """What a `BoardClient` needs to know of where it is. All of it belongs to the file thread, and raises OSError."""

    @property
    def root(self) -> Path:
        """Where tasks find the shared folder."""
        ...

    @property
    def told_root(self) -> str:
        """The shared folder in commands for people; "" where they have to know it."""
        ...

    @property
    def disk(self) -> Disk:
        """The board."""
        ...

    @property
    def hides_ms(self) -> int:
        """How long a folder may show here what it was."""
        ...

    def identify(self) -> tuple[str, object]:
        """The fleet, and a mark that changes when record files have to be begun anew."""
        ...

    def watch(self) -> Arrivals:
        """Listen for new slips and signals."""
        ...

    def look_again(self) -> None:
        """Tasks were claimed: what was seen of their batches before does not count."""
        ...

    def bring(self, name: str, slip: Slip) -> bool:
        """Have the files of a task here. False: there is more to do, call again."""
        ...

    def left_out(self, name: str) -> str:
        """Which files a task did not get, in words."""
        ...

    def store(self, name: str, slip: Slip, produced: Sequence[str]) -> None:
        """Begin to put what a task produced on stable storage; `send` waits for the end of it."""
        ...

    def send(self, name: str, slip: Slip, *, durable: bool) -> list[Unstored] | None:
        """Have what a task left behind there, and return what could not be stored. None: call again.

        Raises OSError, with EACCES when the folder does not know that this agent has the task."""
        ...

    def show(self, name: str, path: Path) -> None:
        """Have one file of a running task there, now."""
        ...

    def forget(self, name: str) -> None:
        """A task was given back or revoked."""
        ...


class MountedFolder:
    """The shared folder, mounted here: nothing has to be carried, and what a task produces has to be synced."""

    def __init__(self, root: Path) -> None:
        """Raises OursError for a folder that is no fleet."""
        places.check_root(root)
        places.share_with_group(root)  # it may have been mounted since the start
        self.root, self.told_root = root, str(root)
        self.mount = places.probe(root)
        self.disk: Disk = FolderDisk(root, filled=not self.mount.is_network)
        self.hides_ms = self.mount.hides_ms
        self._storing: dict[str, Storing] = {}  # by the name of the slip

    def identify(self) -> tuple[str, object]:
        try:
            fleet = places.check_root(self.root)
        except OursError as error:
            raise OSError(errno.ENODEV, str(error), os.fspath(self.root)) from None
        status = os.stat(self.root)
        return fleet, (status.st_dev, status.st_ino)

    def watch(self) -> Arrivals:
        heard = Watch(self.root, inotify=not self.mount.is_network)
        heard.follow((places.QUEUE, places.SIGNALS))
        return heard

    def look_again(self) -> None:
        pass

    def bring(self, name: str, slip: Slip) -> bool:
        return True

    def left_out(self, name: str) -> str:
        return ""

    def store(self, name: str, slip: Slip, produced: Sequence[str]) -> None:
        if produced:
            self._storing[name] = Storing(produced, self.root / "plans" / slip.plan, self.root)

    def send(self, name: str, slip: Slip, *, durable: bool) -> list[Unstored] | None:
        storing = self._storing.get(name)
        if storing is None:
            return []
        failed = storing.wait(limits.MIRROR_TURN_MS / 1000)
        if failed is not None:
            self.forget(name)
        return failed

    def show(self, name: str, path: Path) -> None:
        pass

    def forget(self, name: str) -> None:
        self._storing.pop(name, None)


class MirroredFolder:
    """A mirror on this machine's own disk, and a door to the shared folder."""

    def __init__(self, session: BrokerSession, subject: str, agent: str, root: Path) -> None:
        self._session, self._subject, self._agent = session, subject, agent
        self.root, self.told_root = root, ""
        self._fleet = self._door = ""
        self.disk: Disk = DoorDisk(session)
        self.hides_ms = limits.PRODUCES_NETWORK_MS_MAX  # what kind of mount the door has is not known here
        self._mirror = Mirror(root, session)

    def identify(self) -> tuple[str, object]:
        # Every answer names its door, and a door that has lost its folder lists nothing: a recent answer is enough.
        is_recent = time.monotonic() - self._session.answered_at < limits.DOOR_HEARD_MS / 1000
        if not self._fleet or not is_recent or self._session.door_id != self._door:
            told = self._session.call(Op.HELLO).fields
            self._fleet, self._door = told.text("fleet"), told.text("door")
        return self._fleet, self._door

    def watch(self) -> Arrivals:
        return Heard(self._session.link, self._subject)

    def look_again(self) -> None:
        self._mirror.look_again()

    def bring(self, name: str, slip: Slip) -> bool:
        if not slip.batch:
            return True
        is_here = self._mirror.bring(name, slip, _turn_ends())
        if is_here:
            self._put_slip(name, slip)
        return is_here

    def left_out(self, name: str) -> str:
        return self._mirror.left_out(name)

    def store(self, name: str, slip: Slip, produced: Sequence[str]) -> None:
        """Nothing to do: all that the task left in its batch is carried, and synced there."""

    def send(self, name: str, slip: Slip, *, durable: bool) -> list[Unstored] | None:
        if not slip.batch:
            return []
        try:
            notes = self._mirror.send(name, slip, _turn_ends(), durable=durable)
        except PermissionError as error:
            if error.errno == errno.EACCES:
                self.forget(name)
            raise
        if notes is None:
            return None
        self.forget(name)
        return [Unstored(note) for note in notes]

    def show(self, name: str, path: Path) -> None:
        try:
            self._mirror.show(name, str(path.relative_to(self.root)))
        except PermissionError as error:
            if error.errno != errno.EACCES:  # else it was revoked, and the next look ends it
                raise

    def forget(self, name: str) -> None:
        self._mirror.forget(name)
        (self.root / places.processing_folder(self._agent) / name).unlink(missing_ok=True)

    def _put_slip(self, name: str, slip: Slip) -> None:
        """The slip where a task looks for it (`WATCHBILL_TASK`)."""
        folder = self.root / places.processing_folder(self._agent)
        make_folder(folder)
        with open_folder(folder) as opened:
            put_file(name, f".{name}.new", slip.encode(), dir_fd=opened, sync=False)


def _turn_ends() -> float:
    return time.monotonic() + limits.MIRROR_TURN_MS / 1000
