"""Acts: what a coordinator does in the shared folder once the entries of its turn are written.

Acts are collected while it decides and carried out together at the end of the turn, in their order (`epochs`: write,
look, act). Every act may be repeated, by a successor too, and may have been carried out although its reply was lost.
"""

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from watchbill.fleet.coordinator.active import ActiveBatches
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import Disk, is_of_the_path, move_surely
from watchbill.fleet.logs import Part
from watchbill.fleet.state.approving import Answer, Question, record_of
from watchbill.fleet.state.ledger import Phase

__all__ = ["Acts"]

_LOG = Part.COORDINATOR.logger
_Act = Callable[[], object]
_FOLDERS = {Phase.FAILED: places.FAILED, Phase.MANUAL: places.MANUAL}


class Acts:
    """The acts of one turn."""

    def __init__(self, disk: Disk, board: Board, active: ActiveBatches, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` names the folder of today's complete tasks, and is in the answers of people."""
        self._disk = disk
        self._board = board
        self._active = active
        self._wall_ms = wall_ms
        self._planned: list[tuple[str, _Act]] = []  # each with the batch that it is for
        self._folders: set[str] = set()
        self._told: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._planned)

    def later(self, act: _Act) -> None:
        """Plan an act."""
        self._planned.append((self._active.at, act))

    def carry_out(self) -> None:
        """Do what was planned."""
        acts, self._planned = self._planned, []
        for batch, act in acts:
            self._active.at = batch
            act()

    # ------------------------------------------------------------ acts that many decisions lead to

    def put_away(self, name: str, folder: str, holder: str = "") -> None:
        """Plan to move a slip out of the holder's hands or, without a holder, out of the queue."""
        self.later(lambda: self._put_away(name, folder, holder))

    def recall(self, names: Iterable[str]) -> None:
        """Plan to take slips off the board, wherever they are. An agent whose slip is gone ends its worker."""
        wanted = list(names)
        self.later(lambda: self._recall(wanted))

    def move(self, source: str, target: str) -> None:
        """Plan to move a file that may have been moved before."""
        self.later(lambda: move_surely(self._disk, source, target))

    def shelve(self, source: str, target: str) -> None:
        """Plan to move a slip that rests from one folder for people to another."""
        self.later(lambda: self._shelve(source, target))

    def _shelve(self, source: str, target: str) -> None:
        try:
            move_surely(self._disk, source, target)
        except OSError as error:
            if not is_of_the_path(error):
                raise
            self._tell(target.rpartition("/")[0], error)

    def remove(self, path: str) -> None:
        """Plan to remove a file."""
        self.later(lambda: self._disk.remove(path))

    def keep_answer(self, question: Question, given: Answer) -> None:
        """Plan to keep what a person said about a task, beside the journal, for people."""
        content = record_of(question, given, self._wall_ms())
        self.later(lambda: self._disk.put(places.approval_path(question.digest), content, durable=True))

    def folder_of(self, phase: Phase) -> str:
        """Where the last slip of a task lies that has got to this phase."""
        return self.complete_folder() if phase is Phase.COMPLETE else _FOLDERS.get(phase, places.EXPIRED)

    def complete_folder(self) -> str:
        """The folder of today's complete tasks, which is made when it is first needed."""
        today = datetime.fromtimestamp(self._wall_ms() / 1000, UTC).date().isoformat()
        folder = places.complete_folder(today)
        if folder not in self._folders:
            try:
                self._disk.make_folder(folder)
            except OSError as error:
                if not is_of_the_path(error):
                    raise
                self._tell(folder, error)
            self._folders.add(folder)
        return folder

    def _recall(self, names: list[str]) -> None:
        holdings = self._board.look_around()
        for name in names:
            for agent in holdings.holders_of(name):
                self._put_away(name, places.EXPIRED, agent)

    def _put_away(self, name: str, folder: str, holder: str) -> None:
        """One that cannot be moved, because of what lies there or who may write there, is removed. Where an agent's
        folder does not allow that it stays: its token is over all the same."""
        try:
            self._board.put_away(name, folder, holder=holder)
        except OSError as error:
            if not is_of_the_path(error):
                raise
            self._tell(f"{holder or places.QUEUE} {folder}", error)
            try:
                self._board.discard(name, holder=holder)
            except OSError as again:
                if not holder or not is_of_the_path(again):
                    raise

    def _tell(self, about: str, error: OSError) -> None:
        """Say once that slips of an agent, or those for a folder, cannot be put away."""
        if about not in self._told:
            self._told.add(about)
            paths = " -> ".join(str(path) for path in (error.filename, error.filename2) if path)
            _LOG.error("action=keep why=%s: %s; let the user of the coordinator, %d, write there, and move away what "
                       "does not belong there", paths, error.strerror, os.geteuid())  # fmt: skip
