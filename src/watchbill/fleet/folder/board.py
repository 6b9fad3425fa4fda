"""The board: the folders in which slips lie, and the verbs by which they move.

    queue/NAME --claim--> processing/AGENT/NAME --put_away--> complete/DATE/, failed/, manual/, expired/
        ^  `------give_back------'

The board is a picture for people and the place where agents claim. It is never synced and never believed: what is
true is in the records, and a coordinator mends the board from them when it starts. Every verb may be repeated, and
every rename may have been carried out although its reply was lost.
"""

from dataclasses import dataclass, field

from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk, move_surely
from watchbill.fleet.folder.slips import Slip, headline_of

__all__ = ["Board", "Holdings"]


@dataclass(slots=True)
class Holdings:
    """Where every slip lay at a look around. A slip that moved meanwhile is in at least one of the two."""

    queue: set[str] = field(default_factory=set[str])
    processing: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # agent -> names
    hidden: set[str] = field(
        default_factory=set[str]
    )  # agents whose folder only they may read: it may hold any slip

    def __contains__(self, name: str) -> bool:
        return bool(self.holders_of(name))

    def holders_of(self, name: str) -> list[str]:
        """The agents that hold a slip; "" stands for the queue."""
        found = [agent for agent, held in self.processing.items() if name in held]
        return [*found, ""] if name in self.queue else found


class Board:
    """The verbs on slips. Holds nothing but the disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    # ------------------------------------------------------------ the coordinator's

    def publish(self, name: str, slip: Slip) -> None:
        """Offer a slip. Only under a token that is not taken: a slip is never written a second time in place."""
        self._disk.put(f"{places.QUEUE}/{name}", slip.encode(), draft=f"{places.DRAFTS}/{name}")

    def put_away(self, name: str, folder: str, *, holder: str = "") -> bool:
        """Move a slip out of the holder's hands or, without a holder, out of the queue. False where it is not there."""
        source = places.processing_folder(holder) if holder else places.QUEUE
        return move_surely(self._disk, f"{source}/{name}", f"{folder}/{name}")

    def discard(self, name: str, *, holder: str = "") -> None:
        """Remove a slip that cannot be put away."""
        source = places.processing_folder(holder) if holder else places.QUEUE
        self._disk.remove(f"{source}/{name}")

    def look_around(self) -> Holdings:
        """Where the slips are. The queue is read before and after: a slip that is claimed or given back meanwhile is
        seen at least once."""
        found = Holdings(set(self.offered()))
        for agent in self.agents():
            try:
                found.processing[agent] = set(self.held_by(agent))
            except PermissionError:
                if self._has_joined(agent):
                    found.hidden.add(agent)
        found.queue |= set(self.offered())
        return found

    def _has_joined(self, agent: str) -> bool:
        """Whether there is an agent of this name; a folder that another user keeps private may have any name."""
        try:
            return self._disk.has(places.heartbeat_path(agent))
        except PermissionError:
            return False

    def agents(self) -> list[str]:
        """The agents that ever had a place on the board."""
        return places.agents_in(self._disk.names(places.PROCESSING))

    def sweep_drafts(self) -> None:
        """Remove what a coordinator left half-written. Only after its epoch is over."""
        for name in self._slips_in(places.DRAFTS):
            self._disk.remove(f"{places.DRAFTS}/{name}")

    def is_readable(self, name: str) -> bool:
        """Whether a slip in the queue can be read; True where it has left the queue meanwhile."""
        try:
            Slip.decode(self._disk.read(f"{places.QUEUE}/{name}", limits.SLIP_BYTES_MAX))
        except FileNotFoundError:
            return True
        except (ValueError, NotAFile):
            return False
        return True

    # ------------------------------------------------------------ an agent's

    def join(self, agent: str) -> None:
        """Make an agent's place on the board."""
        self._disk.make_folder(places.processing_folder(agent))

    def offered(self) -> list[str]:
        """The slips in the queue in their order."""
        return self._slips_in(places.QUEUE)

    def held_by(self, agent: str) -> list[str]:
        """What an agent holds. A slip of a running task that is gone from here was revoked."""
        return self._slips_in(places.processing_folder(agent))

    def claim(self, agent: str, name: str, *, was_here: bool = False) -> bool:
        """Take a slip out of the queue; False where another agent was faster.

        One that is gone may be in the agent's folder, when the reply was lost. Where it was there before (`was_here`)
        that says nothing: a mount may show it there still.
        """
        own = places.processing_folder(agent)
        if self._moved(f"{places.QUEUE}/{name}", f"{own}/{name}"):
            return True
        return not was_here and name in self._disk.names(own)

    def give_back(self, agent: str, name: str) -> None:
        """Return a slip of which nothing was run: the token stays the same."""
        self._moved(f"{places.processing_folder(agent)}/{name}", f"{places.QUEUE}/{name}")

    def read(self, agent: str, name: str) -> Slip | None:
        """Read a slip that the agent holds; None for one that cannot be read, which is then reported so.

        Raises FileNotFoundError for one that has left its hands: the listing of a network mount may be old.
        """
        try:
            return Slip.decode(
                self._disk.read(f"{places.processing_folder(agent)}/{name}", limits.SLIP_BYTES_MAX)
            )
        except (ValueError, NotAFile):
            return None

    def _slips_in(self, folder: str) -> list[str]:
        """The slips there; what else lies there is left alone."""
        return [name for name in self._disk.names(folder) if headline_of(name) is not None]

    def _moved(self, source: str, target: str) -> bool:
        try:
            self._disk.move(source, target)
        except FileNotFoundError:
            return False
        return True
