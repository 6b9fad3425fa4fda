"""Places: where everything is in the shared folder, and how a path travels between machines that mount it elsewhere.

    fleet.json                                  the marker: {"format": 1, "id": random}
    plans/PLAN/plan.md scripts/ ...             the author's; never written by Watchbill
    plans/PLAN/history/BATCH/                   one run of a plan
        journal.EPOCH.jsonl                     the record, one file per coordinator epoch
        RUN_SUMMARY.md, RUN_SUMMARY.json        refreshed while it runs, final at the end
    brain/inbox/BATCH.json                      a submitted plan; BATCH.cancel, BATCH.ID.reopen: requests about one
    brain/active/BATCH.json                     a batch that has not ended; BATCH.EPOCH.json: one that was reopened
    brain/refused/BATCH.json                    a submitted plan that cannot be run, and why
    brain/private_tasks/BATCH.json              tasks that wait for others: for people
    brain/escalations/BATCH.md                  what a planner needs after a failure
    brain/approvals/DIGEST.json                 what a person said about a task that asked
    brain/epochs/EPOCH                          taken by exactly one coordinator each
    brain/coordinator.json                      who coordinates now: for people, and for a second coordinator
    tasks/queue/NAME  processing/AGENT/NAME  complete/DATE/NAME  failed/NAME  manual/NAME  expired/NAME
    tasks/results/AGENT.LIFE.jsonl              what an agent reports
    gpus/AGENT_WITH_UNDERSCORES/heartbeat.json
    signals/AGENT.stop|hold|resume|abort|kill[.TASK]

Everything that is stored is relative to the root: every machine may mount the folder elsewhere. A root without its
marker is refused, because an unmounted mount point is an empty folder.
"""

import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from watchbill.errors import OursError
from watchbill.files.atomic import make_folder, open_folder, rename_noreplace, write_file
from watchbill.files.disk import fault_of, mount_of
from watchbill.fleet import limits
from watchbill.fleet.folder.values import Fields, fields_of
from watchbill.limits import AGENT_NAME_CHARS_MAX
from watchbill.names import check_folder_name, check_plain_name
from watchbill.quoting import quoted

__all__ = [
    "ACTIVE", "BRAIN", "COMPLETE", "COORDINATOR", "DRAFTS", "EPOCHS", "EXPIRED", "FAILED", "GPUS", "INBOX", "LOGS",
    "MANUAL", "MARKER", "PROCESSING", "QUESTION", "QUEUE", "REFUSED", "RESULTS", "SIGNALS", "MountReport", "NoFleet",
    "active_path", "agents_in", "approval_path", "batch_folder", "batches_shown", "check_agent_name", "check_root",
    "complete_folder", "epoch_of_journal", "escalation_path", "fleet_command", "from_shared", "heartbeat_path",
    "journal_path", "make_fleet", "make_root", "probe", "processing_folder", "refuse_outside", "result_log",
    "share_with_group", "to_shared", "wait_for_root", "waiting_path", "whose_result_log",
]  # fmt: skip

MARKER = "fleet.json"
FORMAT = 1
BRAIN = "brain"
INBOX = "brain/inbox"
ACTIVE = "brain/active"
REFUSED = "brain/refused"
EPOCHS = "brain/epochs"
COORDINATOR = "brain/coordinator.json"
#: The end of the output of a task that runs, in the folder of its attempt.
SO_FAR = "so_far"
#: What a model was asked, in the same folder.
QUESTION = "question.json"
DRAFTS = "tasks/.tmp"
QUEUE = "tasks/queue"
PROCESSING = "tasks/processing"
FAILED = "tasks/failed"
MANUAL = "tasks/manual"
EXPIRED = "tasks/expired"
RESULTS = "tasks/results"
GPUS = "gpus"
SIGNALS = "signals"
COMPLETE = "tasks/complete"
LOGS = "logs"
_WAITING = "brain/private_tasks"
_ESCALATIONS = "brain/escalations"
_APPROVALS = "brain/approvals"
_FOLDERS = (
    "plans", INBOX, ACTIVE, REFUSED, EPOCHS, DRAFTS, QUEUE, PROCESSING, COMPLETE, FAILED, MANUAL, EXPIRED, RESULTS,
    GPUS, SIGNALS, LOGS, _WAITING, _ESCALATIONS, _APPROVALS,
)  # fmt: skip
_ACTIVE = re.compile(r"(.+?)(?:\.[1-9][0-9]{0,9})?\.json")
_JOURNAL = re.compile(r"journal\.([1-9][0-9]{0,9})\.jsonl")
_RESULT_LOG = re.compile(r"(.+)\.([1-9][0-9]{0,9})\.jsonl")
_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")


# ------------------------------------------------------------------ the root


class NoFleet(OursError):
    """There is no fleet in this folder: nothing is mounted there, or no coordinator has made one yet."""


def make_root(root: Path) -> None:
    """Make a fleet of a folder: its parts, then the marker. A folder that is one already stays as it is."""
    for folder in _FOLDERS:
        make_folder(root / folder)
    if not (root / MARKER).exists():
        _mark(root)


def _mark(root: Path) -> None:
    """Give a fleet its identity. Another machine may do so at the same time: the first one counts."""
    marker, draft = {"format": FORMAT, "id": os.urandom(8).hex()}, f".{MARKER}.{os.urandom(4).hex()}"
    with open_folder(root) as folder:
        write_file(draft, json.dumps(marker).encode() + b"\n", dir_fd=folder, sync=True)
        try:
            rename_noreplace(draft, MARKER, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            os.unlink(draft, dir_fd=folder)
        os.fsync(folder)


def share_with_group(root: Path) -> None:
    """In a folder that a group shares, its setgid bit says so, have what this process makes be the group's, whatever
    the umask: users whose files others cannot read would stop them."""
    try:
        mode = root.stat().st_mode
    except OSError:  # not mounted yet, or refused later with the reason
        return
    if mode & stat.S_ISGID:
        os.umask(os.umask(0o077) & ~(mode & 0o070))


def make_fleet(root: Path) -> None:
    """Make a fleet of a folder that has plans, and complete one that is a fleet. Raises OursError for any other.

    A folder with neither is refused: a mount point without its mount is an empty folder.
    """
    if not (root / MARKER).exists() and not (root / "plans").is_dir():
        raise OursError(
            f"{root} is no shared folder of a fleet: it has neither {MARKER} nor plans/",
            hint=f"mount it, or make one: mkdir -p {shlex.quote(str(root / 'plans'))}",
        )
    if not (root / MARKER).exists() and _has_epochs(root):
        # Under a new id every batch that is here would be one of another fleet.
        raise OursError(
            f"{root} has no {MARKER} any more, and coordinators have run there",
            hint=f"put {MARKER} back; if it is lost, write "
            f'{{"format": {FORMAT}, "id": "ID"}} into it, where ID is "fleet" in the first line of the newest journal '
            "(plans/PLAN/history/BATCH/journal.*.jsonl)",
        )
    make_root(root)
    check_root(root)


def _has_epochs(root: Path) -> bool:
    """Whether a coordinator has ever run here: none does before there is a marker."""
    try:
        return bool(os.listdir(root / EPOCHS))
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_root(root: Path) -> str:
    """Return the id of the fleet in this folder. Raises OursError for one that is none."""
    marker = _marker(root)
    if marker.whole("format") != FORMAT:
        raise OursError(
            f"{root} is a fleet of format {marker.whole('format')}, and this version reads {FORMAT}",
            hint="use the version of Watchbill that made it",
        )
    return marker.text("id")


def wait_for_root(root: Path, within_ms: int, on_wait: Callable[[str], None]) -> str:
    """Return the id of the fleet in this folder, once it is there. `on_wait` is told what is missing and what to do.

    An agent may start before the folder is mounted, and before its first coordinator. Raises OursError as `check_root`.
    """
    deadline, has_told = time.monotonic() + within_ms / 1000, False
    while True:
        try:
            return check_root(root)
        except NoFleet:
            start = fleet_command(root, "coordinator")
            what_to_do = f"mount the shared folder there, or start its coordinator: {start}"
            if time.monotonic() >= deadline:
                raise NoFleet(
                    f"{root} has had no {MARKER} for {within_ms // 1000} s", hint=what_to_do
                ) from None
        if not has_told:
            on_wait(f"{root} has no {MARKER}, waiting for {within_ms // 1000} s: {what_to_do}")
            has_told = True
        time.sleep(min(limits.FLEET_LOOK_MS, within_ms) / 1000)


def _marker(root: Path) -> Fields:
    try:
        content = _first_bytes(f"{root}/{MARKER}")
    except FileNotFoundError:
        raise NoFleet(
            f"{root} has no {MARKER}",
            hint="mount the shared folder there, or name another one with --root",
        ) from None
    try:
        return fields_of(content)
    except ValueError as error:
        raise OursError(f"{root / MARKER} cannot be read: {error}", hint="restore it from a backup") from None


def _first_bytes(path: str) -> bytes:
    """What a small file holds. An agent reads the marker before it does anything: a file object costs twice as much."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe in its place is an empty file
    try:
        return os.read(fd, min(os.fstat(fd).st_size, limits.FLEET_FILE_BYTES_MAX))
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class MountReport:
    """What the mount of the shared folder is like, as far as a look tells."""

    kind: str
    #: No inotify from other machines: the folder is polled, and record files are not filled ahead.
    is_network: bool
    fault: OSError | None  # what it answers to a small file

    @property
    def hides_ms(self) -> int:
        """How long it may hide here what another machine has done; 0 where all see the same."""
        return limits.PRODUCES_NETWORK_MS_MAX if self.is_network else 0

    @property
    def shows_within_ms(self) -> int:
        """How long a file may stay invisible here that another machine has made."""
        return self.hides_ms or limits.PRODUCES_MS_MAX


def probe(root: Path) -> MountReport:
    """Look at the mount of a root that `check_root` accepted: its kind, and whether it takes a small file."""
    mount = mount_of(root)
    return MountReport(mount.kind, mount.is_network, fault_of(root / DRAFTS))


def fleet_command(root: Path | str, *words: str) -> str:
    """A command about this folder that works when it is pasted; without a root, where the environment names it."""
    named = ["--root", str(root)] if str(root) else []
    return shlex.join(["watchbill", *words, *named])


# ------------------------------------------------------------------ paths


def check_agent_name(text: str) -> str:
    """Returns the text when it can name an agent: letters, digits and "-", so that "_" can stand for it in a path."""
    check_plain_name(text, "an agent")
    if not _AGENT.fullmatch(text) or len(text) > AGENT_NAME_CHARS_MAX:
        raise OursError(
            f"{quoted(text)} cannot be an agent", hint="use at most 40 letters, digits and -, as in gpu-1"
        )
    return text


def agents_in(names: Iterable[str]) -> list[str]:
    """Those of these names that agents can have: a NAS or a file manager puts files and folders of its own anywhere."""
    return [name for name in names if _AGENT.fullmatch(name) and len(name) <= AGENT_NAME_CHARS_MAX]


def batch_folder(plan: str, batch: str) -> str:
    """The folder of one run of a plan."""
    return f"plans/{check_folder_name(plan, 'a plan')}/history/{check_plain_name(batch, 'a batch')}"


def journal_path(plan: str, batch: str, epoch: int) -> str:
    """The record of a batch that the coordinator of this epoch writes."""
    return f"{batch_folder(plan, batch)}/journal.{epoch}.jsonl"


def active_path(batch: str, epoch: int = 0) -> str:
    """What says that a batch has not ended: since it was submitted, or since the coordinator of an epoch reopened it.

    A coordinator that was stopped when it was about to remove the file of an earlier round finds no later one.
    """
    reopened = f".{epoch}" if epoch else ""
    return f"{ACTIVE}/{check_plain_name(batch, 'a batch')}{reopened}.json"


def batches_shown(names: Iterable[str]) -> set[str]:
    """The batches that files in `brain/active` are about, by their names."""
    return {batch for name in names if (match := _ACTIVE.fullmatch(name)) for batch in (match[1], name[:-5])}


def waiting_path(batch: str) -> str:
    """The tasks of a batch that wait for others."""
    return f"{_WAITING}/{check_plain_name(batch, 'a batch')}.json"


def escalation_path(batch: str) -> str:
    """What a planner needs to correct the plan of a batch."""
    return f"{_ESCALATIONS}/{check_plain_name(batch, 'a batch')}.md"


def approval_path(digest: str) -> str:
    """A person's answer to the question with this digest."""
    return f"{_APPROVALS}/{check_plain_name(digest, 'a digest')}.json"


def epoch_of_journal(name: str) -> int | None:
    """The epoch of a journal's file name; None for another file."""
    match = _JOURNAL.fullmatch(name)
    return int(match[1]) if match else None


def result_log(agent: str, life: int) -> str:
    """What this life of an agent reports."""
    return f"{RESULTS}/{check_agent_name(agent)}.{life}.jsonl"


def whose_result_log(name: str) -> tuple[str, int] | None:
    """Agent and life of a result log's file name; None for another file."""
    match = _RESULT_LOG.fullmatch(name)
    return (match[1], int(match[2])) if match and _AGENT.fullmatch(match[1]) else None


def processing_folder(agent: str) -> str:
    """Where an agent holds what it has claimed."""
    return f"{PROCESSING}/{check_agent_name(agent)}"


def complete_folder(date: str) -> str:
    """Where the slips of a day's complete tasks go."""
    return f"{COMPLETE}/{check_plain_name(date, 'a date')}"


def heartbeat_path(agent: str) -> str:
    """The heartbeat file of an agent."""
    return f"{GPUS}/{check_agent_name(agent).replace('-', '_')}/heartbeat.json"


# ------------------------------------------------------------------ translation


def to_shared(root: PurePosixPath, path: PurePosixPath) -> str:
    """A path of this machine as it is stored: relative to the root. Raises OursError for one outside."""
    if not path.is_absolute() or ".." in path.parts or not path.is_relative_to(root):
        raise OursError(f"{path} is not in the shared folder {root}", hint="move it there")
    return str(path.relative_to(root))


def from_shared(root: PurePosixPath, stored: str) -> PurePosixPath:
    """A stored path as this machine has it. Raises OursError for one that leads out: others write there, too."""
    refuse_outside(stored)
    return root / stored


def refuse_outside(stored: str) -> None:
    """Raise OursError for a stored path that leads out of the shared folder."""
    path = PurePosixPath(stored)
    if path.is_absolute() or ".." in path.parts or "\0" in stored:
        raise OursError(
            f"{quoted(stored)} leads out of the shared folder", hint="write it relative, without .."
        )
