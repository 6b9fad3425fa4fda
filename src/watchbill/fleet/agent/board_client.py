"""An agent's side of the board in the shared folder. Everything here runs on the agent's file thread.

It joins the board, reports, claims, shows the heartbeat and reads signals. It raises OSError whenever the folder does
not take or give something, also when another folder is found at its place: an unmounted mount point is an empty folder,
and its emptiness must not be taken for revoked tasks. What was not reported stays here and is reported as soon as the
folder is back; until then nothing is claimed.
"""

import errno
import os
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from watchbill.errors import OursError
from watchbill.files.disk import DISK_FULL
from watchbill.fleet import limits
from watchbill.fleet.agent.concluding import conclude
from watchbill.fleet.agent.own_slips import OwnSlips
from watchbill.fleet.agent.preparing import CannotCage, NotForUs, NotNow, prepare
from watchbill.fleet.agent.produced import Unstored
from watchbill.fleet.agent.shared_folder import MountedFolder, SharedFolder
from watchbill.fleet.agent.work import (
    Finished,
    Prepared,
    Setting,
    hide_so_far,
    show_so_far,
    so_far_path,
    touched,
)
from watchbill.fleet.door.arrivals import Arrivals
from watchbill.fleet.door.mirror import CannotCarry
from watchbill.fleet.folder import places, signals
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.heartbeat import Heartbeat, read_heartbeat, write_heartbeat
from watchbill.fleet.folder.results import End, Result, ResultLog
from watchbill.fleet.folder.signals import Signal
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.logs import Part
from watchbill.fleet.matching.claiming import Standing, choose, claimed_ahead, needs_heat
from watchbill.fleet.permissions.rules import Action
from watchbill.fleet.permissions.ruling import told

__all__ = ["BoardClient", "Look", "Round"]

_LOG = Part.AGENT.logger
#: How long an agent leaves a slip alone that is to be kept from it, or that it gave back. After that it takes the slip
#: all the same: the other agent that could have may be dead.
_DECLINED_MS = 60_000
#: What says that the way to the shared folder is interrupted: nothing is wrong with the task.
_AWAY = frozenset({errno.ETIMEDOUT, errno.ESTALE, errno.EIO})
#: What becomes of a task whose command may not be run.
_ENDS = {Action.DENY: End.BLOCKED, Action.ASK: End.NEEDS_APPROVAL}


@dataclass(frozen=True, slots=True)
class Look:
    """What the shared folder says to an agent."""

    signals: list[Signal]
    held: frozenset[str]  # the slips in its hands


@dataclass(slots=True)
class Round:
    """What one round of reporting and claiming came to."""

    prepared: list[Prepared] = field(default_factory=list[Prepared])
    reported: list[Result] = field(default_factory=list[Result])
    is_empty: bool = True  # the queue had nothing that this agent may take now
    leaves_more: bool = False  # the queue had more than was taken
    was_cut: bool = False  # other slips may be taken at once: another agent was faster, or one was given back
    has_later: bool = False  # it has something that the agent leaves to others for a while
    fault: OSError | None = None  # of a claim that may or may not have been carried out


class _Unsent(NamedTuple):
    """A result whose files are not all in the shared folder yet."""

    result: Result
    prepared: Prepared


class BoardClient:
    """One agent's hands in the shared folder."""

    def __init__(self, root: Path, agent: str, shared: SharedFolder | None = None) -> None:
        """Without `shared`: the folder at the root. Raises OursError for a folder that is no fleet, and OSError."""
        self._shared = shared or MountedFolder(root)
        self.root, self.agent = self._shared.root, agent
        self.fleet, self._identity = self._shared.identify()
        self._disk = self._shared.disk
        self._board = Board(self._disk)
        self._log: ResultLog | None = None
        self._is_deaf = False  # its user may not read the signals
        self._coming: dict[str, Slip] = {}  # slips whose files are being brought
        self._unsent: list[_Unsent] = []  # results whose files are being sent
        self._unreported: list[Result] = []
        self._shown: set[str] = set()  # slips of running tasks whose output so far is shown
        self._declined: dict[str, int] = {}  # slip -> until when, on the monotonic clock
        self._cold: dict[
            str, int
        ] = {}  # slip whose model is not in memory here -> until when it is left to others
        self._own = OwnSlips(self._shared.hides_ms)

    # ------------------------------------------------------------ life

    def former(self) -> Heartbeat | None:
        """The last heartbeat under this name, by whomever."""
        return read_heartbeat(self._disk, self.agent)

    def others(self) -> dict[str, Heartbeat]:
        """The last heartbeat of every other agent, living or not."""
        named = (
            (name, read_heartbeat(self._disk, name)) for name in self._board.agents() if name != self.agent
        )
        return {name: heartbeat for name, heartbeat in named if heartbeat is not None}

    def join(self, cpu_slots: int) -> list[str]:
        """Begin a life: what the former one held is reported as lost at once. Returns the names of these slips."""
        self._board.join(self.agent)
        self._disk.make_folder(os.path.dirname(places.heartbeat_path(self.agent)))
        lost = self._board.held_by(self.agent)
        log = self._open_log()
        ahead = claimed_ahead(lost, cpu_slots)
        ends = ((name, End.UNSTARTED if name in ahead else End.LOST) for name in lost)
        log.commit(Result(name, self.agent, log.life, end) for name, end in ends)
        for name in lost:
            self._own.take(name)
            self._own.end(name)
        return lost

    def close(self, heartbeat: Heartbeat) -> None:
        """Report the rest and show that the agent has left."""
        while not self._send():
            pass
        self._commit()
        write_heartbeat(self._disk, self.agent, heartbeat)
        if self._log is not None:
            self._log.close()

    def watch(self) -> Arrivals:
        """Listen for new slips and signals, where the folder can be heard."""
        return self._shared.watch()

    @property
    def is_carrying(self) -> bool:
        """Whether files are on their way, or results wait to be reported. For any thread."""
        return bool(self._coming or self._unsent or self._unreported)

    def is_bringing(self, task: str) -> bool:
        """Whether the files of a task, by its name or BATCH.TASK, are on their way here. For any thread."""
        coming = list(self._coming.values())
        return any(task in (slip.task, f"{slip.batch}.{slip.task}") for slip in coming)

    # ------------------------------------------------------------ the two cycles

    def beat(self, heartbeat: Heartbeat) -> None:
        """Show that the agent lives."""
        self._check()
        write_heartbeat(self._disk, self.agent, heartbeat)

    def touched(self, running: list[Prepared]) -> dict[str, int]:
        """When the own files of running tasks were last changed, by job."""
        return {prepared.job.id: touched(prepared) for prepared in running}

    def look(self) -> Look:
        """Read the signals, and which slips are still in the agent's hands."""
        found, listed = self._signals(), frozenset(self._board.held_by(self.agent))
        self._check()  # afterwards: a folder that vanished in between has shown nothing
        held, gone = self._own.see(listed)
        self._forget(gone)
        for name in self._own.to_give_back_again(listed):
            self._board.give_back(self.agent, name)
        return Look(found, held)

    def _signals(self) -> list[Signal]:
        """The signals for this agent. A folder of them that its user may not read is said once, and ends no work."""
        try:
            found = signals.pending(self._disk, self.agent)
        except PermissionError as error:
            if not self._is_deaf:
                _LOG.error("%s cannot be read, so no signal is obeyed: %s; let the user of this agent read and write "
                           "there", places.SIGNALS, error.strerror)  # fmt: skip
            self._is_deaf = True
            return []
        self._is_deaf = False
        return found

    def show_so_far(self, running: list[tuple[Prepared, str]]) -> None:
        """Show the output of running tasks in the folders of their attempts."""
        for prepared, text in running:
            show_so_far(self.root, prepared, text)
            self._shown.add(prepared.name)
            if prepared.slip.batch:
                self._shared.show(prepared.name, so_far_path(self.root, prepared))

    def obeyed(self, signal: Signal) -> None:
        """Remove a signal that was obeyed."""
        signals.obeyed(self._disk, signal)

    def round(
        self, setting: Setting, finished: deque[Finished], standing: Standing | None, now_ms: int
    ) -> Round:
        """Report what has ended, with one sync, and claim what fits; without a standing nothing is claimed.

        What is taken out of `finished` is in safe hands, also when this raises OSError.
        """
        self._check()
        while finished:
            result, prepared = self._concluded(finished[0], setting), finished[0].prepared
            if result.end is End.DONE:  # of all of them at the same time: their syncs are cheaper together
                self._shared.store(prepared.name, prepared.slip, prepared.produces)
            self._own.end(prepared.name)
            self._unsent.append(_Unsent(result, prepared))
            finished.popleft()
        are_all_sent = self._send()
        done = Round(reported=self._commit())
        if self._coming and (standing is None or standing.is_held):
            self.give_back_unstarted(list(self._coming))
        if standing is not None:
            self._claim(done, setting, standing, now_ms)
        done.was_cut = done.was_cut or not are_all_sent
        return done

    def give_back(self, name: str, now_ms: int, left_ms: int = _DECLINED_MS) -> None:
        """Return a slip of which nothing was run, and leave it to others for so long."""
        self._declined[name] = now_ms + left_ms
        self._forget({name})
        self._return(name)

    def give_back_unstarted(self, names: list[str]) -> None:
        """Return slips that were claimed ahead: the first agent with a free slot may take them, this one too."""
        for name in names:
            self._own.drop(name)  # what a fault keeps here is found at the next look
        self._forget(set(names))
        for name in names:
            self._return(name)

    def _return(self, name: str) -> None:
        self._own.give_back(name)
        self._board.give_back(self.agent, name)

    def _forget(self, names: set[str]) -> None:
        """Forget slips that are not in our hands any more, and whose results do not wait."""
        for name in names.difference(each.prepared.name for each in self._unsent):
            self._coming.pop(name, None)
            self._shared.forget(name)

    # ------------------------------------------------------------ reports

    def _send(self) -> bool:
        """Have the files of ended tasks in the shared folder; only then are they reported. False: there is more."""
        while self._unsent:
            result, prepared = self._unsent[0]
            missing = self._shared.left_out(prepared.name)
            try:
                failed = self._shared.send(
                    prepared.name, prepared.slip, durable=prepared.question is not None
                )
            except PermissionError as error:
                if error.errno != errno.EACCES:
                    raise
                self._unsent.pop(0)
                self._unreported.append(_without_files(result, error))
                continue
            if failed is None:
                return False
            self._unsent.pop(0)
            self._unreported.append(_with_notes(result, failed, missing))
        return True

    def _concluded(self, finished: Finished, setting: Setting) -> Result:
        name = finished.prepared.name
        if name in self._shown:
            hide_so_far(self.root, finished.prepared)
            self._shown.discard(name)
        try:
            return conclude(setting, finished, self._life())
        except OSError as error:
            # The outputs could not be stored. The result matters more, and says so.
            note = f"its outputs could not be stored: {error}"
            result = conclude(setting, finished, self._life(), keeps_files=False, note=note)
            is_answer_gone = result.end is End.DONE and finished.prepared.question is not None
            return replace(result, end=_end_of(error)) if is_answer_gone else result

    def _commit(self) -> list[Result]:
        """Put results on stable storage. After a failure the log is given up: the next try begins another one."""
        if not self._unreported:
            return []
        log = self._log or self._open_log()
        try:
            log.commit(self._unreported)
        except OSError:
            log.close()
            self._log = None
            raise
        reported, self._unreported = self._unreported, []
        return reported

    def _open_log(self) -> ResultLog:
        self._log = ResultLog(self._disk, self.agent)
        return self._log

    def _life(self) -> int:
        return 0 if self._log is None else self._log.life

    # ------------------------------------------------------------ claims

    def _claim(self, done: Round, setting: Setting, standing: Standing, now_ms: int) -> None:
        self._take_found(done, standing, now_ms)
        self._bring(done, setting, now_ms)
        try:
            offered = self._board.offered()
        except OSError as error:
            done.fault = error  # what is prepared is not lost for it
            return
        # What is on its way has a slot already: others are claimed when it is here.
        chosen = (
            choose(offered, standing, self._left_to_others(offered, standing, now_ms))
            if not self._coming
            else []
        )
        done.is_empty = not chosen and not done.prepared and not self._coming
        done.leaves_more = len(offered) > len(chosen)
        done.has_later = bool(self._cold)
        before = len(done.prepared)
        for name in chosen:
            try:
                if not self._board.claim(self.agent, name, was_here=self._own.was_given_back(name)):
                    self._own.miss(name)
                elif self._own.claim(name):
                    self._take(name, standing, now_ms)
                else:
                    # A second slip under a token of ours, or an old listing of the queue: it is one with the first now.
                    self._declined[name] = now_ms + _DECLINED_MS
            except OSError as error:
                # Claimed or not: the next look tells. What was claimed before is not lost for it.
                self._own.miss(name)
                done.fault = error
                break
        self._bring(done, setting, now_ms)
        has_all = len(done.prepared) - before == len(chosen) and not self._coming
        done.was_cut = done.was_cut or (not has_all and done.fault is None)

    def _left_to_others(self, offered: list[str], standing: Standing, now_ms: int) -> set[str]:
        """The slips that this agent passes over for now: those it declined, and those that need a model which is not in
        its memory. The coordinator has a card heated for them; after a while this one will do."""
        self._declined = {name: until for name, until in self._declined.items() if name in offered}
        cold = [name for name in offered if needs_heat(name, standing)]
        self._cold = {name: self._cold.get(name, now_ms + limits.HEAT_GRACE_MS) for name in cold}
        return {
            name
            for passed in (self._declined, self._cold)
            for name, until in passed.items()
            if until > now_ms
        }

    def _take_found(self, done: Round, standing: Standing, now_ms: int) -> None:
        """Take up what a look has found in our hands."""
        try:
            while self._own.untaken:
                self._take(self._own.untaken[0], standing, now_ms)
                self._own.untaken.pop(0)
        except OSError as error:
            done.fault = error

    def _take(self, name: str, standing: Standing, now_ms: int) -> None:
        try:
            slip = self._board.read(self.agent, name)  # first: what cannot be read now is found again
        except FileNotFoundError:
            return  # taken back, or given back with a reply that was lost: another agent may run it by now
        self._own.take(name)
        if slip is None:
            self._refuse(name, End.UNREADABLE, "the slip could not be read")
        elif slip.work.needs_pair and not standing.is_pair and not standing.only_addressed:
            self.give_back(name, now_ms)  # however often it is claimed
        elif self.agent in slip.avoid and name not in self._declined:
            self.give_back(name, now_ms)
        else:
            self._coming[name] = slip

    def _bring(self, done: Round, setting: Setting, now_ms: int) -> None:
        """Prepare the claimed tasks whose files are here. Bringing them may take several rounds."""
        self._shared.look_again()
        for name, slip in list(self._coming.items()):
            try:
                if not self._shared.bring(name, slip):
                    return
            except (OSError, OursError) as error:
                if isinstance(error, OSError) and error.errno in _AWAY:
                    done.fault = done.fault or error
                    return
                self._refuse_uncarried(name, error)
                continue
            del self._coming[name]
            self._prepare(done, name, slip, setting, now_ms)

    def _refuse_uncarried(self, name: str, error: OSError | OursError) -> None:
        """A task whose files cannot come here."""
        del self._coming[name]
        self._shared.forget(name)
        if isinstance(error, OSError):
            is_revoked = error.errno == errno.EACCES
            # The result of a revoked task is not read any more.
            end = End.LOST if is_revoked else _end_of(error)
            self._refuse(name, end, f"its files could not be brought here: {error}")
        else:
            self._refuse(name, End.NOT_RUNNABLE if isinstance(error, CannotCarry) else End.WRONG, str(error))

    def _prepare(self, done: Round, name: str, slip: Slip, setting: Setting, now_ms: int) -> None:
        try:
            prepared = prepare(setting, name, slip)
            if isinstance(prepared, Prepared):
                done.prepared.append(prepared)
            else:
                command = slip.work.command
                why = told(prepared, command, slip.batch, slip.task, self._shared.told_root)
                self._refuse(name, _ENDS[prepared.action], why)
        except NotForUs:
            self.give_back(name, now_ms)
        except CannotCage as error:
            self._refuse(name, End.NOT_RUNNABLE, str(error))
        except NotNow as error:
            self._refuse(name, End.FAILED, str(error))
        except OursError as error:
            self._refuse(name, End.WRONG, str(error))
        except OSError as error:
            self._refuse(name, _end_of(error), f"it could not be prepared: {error}")

    def _refuse(self, name: str, end: End, why: str) -> None:
        self._own.end(name)
        self._unreported.append(Result(name, self.agent, self._life(), end, None, tail=why))

    # ------------------------------------------------------------ the folder

    def _check(self) -> None:
        """Raise OSError when the folder at the root is not the one that was joined."""
        fleet, identity = self._shared.identify()
        if fleet != self.fleet:
            raise OSError(errno.ENODEV, "another fleet is mounted here now", os.fspath(self.root))
        if identity != self._identity and self._log is not None:
            # Mounted anew: what is appended to the old file would not be seen.
            self._log.close()
            self._log = None
        self._identity = identity


def _end_of(error: OSError) -> End:
    """How a task ended that the machine has kept from its files."""
    return End.DISK_FULL if error.errno in DISK_FULL else End.FAILED


def _without_files(result: Result, error: OSError) -> Result:
    """The result of a task whose slip is gone. It was revoked, and the result is not read; or a power cut took the slip
    from the folder, and the task is not done without what it has made."""
    end = End.LOST if result.end is End.DONE else result.end
    return replace(result, end=end, tail=f"{result.tail}\nits files could not be sent: {error.strerror}")


def _with_notes(result: Result, failed: list[Unstored], left_out: str) -> Result:
    """A result, and what there is to say about files that were not carried."""
    is_done = result.end is End.DONE
    notes = [*(each.why for each in failed), *([left_out] if left_out and not is_done else [])]
    if not notes:
        return result
    end = result.end
    if failed and is_done:
        end = End.DISK_FULL if any(each.is_disk_full for each in failed) else End.MISSING_OUTPUT
    return replace(result, end=end, tail="\n".join((result.tail, *notes))[-limits.RESULT_TAIL_CHARS_MAX :])
