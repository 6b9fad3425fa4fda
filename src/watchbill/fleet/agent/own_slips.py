"""Own slips: which slips are in an agent's hands, where a mount may show the agent's own folder as it was.

The listing of its folder tells an agent what it holds: a slip that is gone from there was revoked, and one that is
there and was not claimed is of a claim whose reply was lost. A network mount that has lost the reply to a rename does
not know that anything has changed, and shows for a while what was there before. So the agent also remembers, for as
long as a mount hides anything (`hides_ms`, 0 on a local disk):

    given back   not taken up again from a listing: another agent may run it by now
    over         a slip that it has reported is never run again, wherever it shows up
    unseen       a slip that was claimed after a try whose reply may be lost is in its hands until a listing has shown
                 it: one that does not have it is old

Does no I/O.
"""

import time

__all__ = ["OwnSlips"]


class OwnSlips:
    """The slips of one life of an agent."""

    def __init__(self, hides_ms: int) -> None:
        self._hides_s = hides_ms / 1000
        self.untaken: list[str] = []  # in our hands, and not taken up: the reply to a claim was lost
        self._taken: set[str] = set()  # in our hands, and taken up or reported
        # Each until when it counts, by the monotonic clock:
        self._given_back: dict[str, float] = {}
        self._over: dict[str, float] = {}
        self._missed: dict[str, float] = {}  # the claim failed, or seemed to
        self._unseen: dict[str, float] = {}

    # ------------------------------------------------------------ what the agent does

    def miss(self, name: str) -> None:
        """A claim was answered with an error, or the slip was gone."""
        self._missed[name] = self._later()

    def claim(self, name: str) -> bool:
        """A claim succeeded. False where the slip is one with another that was taken up or reported before."""
        self._given_back.pop(name, None)
        if self._missed.pop(name, None) is not None:
            self._unseen[name] = self._later()
        return name not in self._taken and name not in self._over

    def take(self, name: str) -> None:
        """A slip is taken up, or reported as it is."""
        self._taken.add(name)

    def give_back(self, name: str) -> None:
        """A slip is about to be returned to the queue."""
        self._taken.discard(name)
        self._unseen.pop(name, None)
        self._given_back[name] = self._later()

    def drop(self, name: str) -> None:
        """A slip will be returned, or found again at the next look."""
        self._taken.discard(name)
        self._unseen.pop(name, None)

    def end(self, name: str) -> None:
        """What became of a slip is reported: its token is over for us."""
        self._over[name] = self._later()

    # ------------------------------------------------------------ what the folder shows

    def was_given_back(self, name: str) -> bool:
        """Whether a slip that is to be seen in our folder may be one that was given back."""
        return name in self._given_back

    def see(self, listed: frozenset[str]) -> tuple[frozenset[str], set[str]]:
        """Take a listing of our folder in: what we hold, and which slips have left our hands since the last one."""
        self._forget()
        for name in listed & self._unseen.keys():
            del self._unseen[name]
        held = listed | self._unseen.keys()
        gone = self._taken - held
        self._taken &= held
        self.untaken = sorted(listed - self._taken - self._given_back.keys() - self._over.keys())
        return held, gone

    def to_give_back_again(self, listed: frozenset[str]) -> set[str]:
        """Slips that were given back and are to be seen here all the same: perhaps the folder did not carry it out."""
        return set(listed & self._given_back.keys()) - self._taken

    def _later(self) -> float:
        return time.monotonic() + self._hides_s

    def _forget(self) -> None:
        now = time.monotonic()
        for known in (self._given_back, self._over, self._missed, self._unseen):
            for name in [name for name, until in known.items() if until <= now]:
                del known[name]
