"""Work: one task as an agent has it, from its claimed slip to its end, and where its files are.

`preparing` makes a command line or a question of the slip, `concluding` the result of its end. In between its files
show whether it makes progress, and the end of its output is shown to people.

Everything here reads and writes the shared folder, or other folders that a task names, and belongs on the agent's file
thread.
"""

import errno
import functools
import itertools
import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from watchbill.files.atomic import make_folder, open_folder, put_file
from watchbill.files.patterns import matches
from watchbill.fleet import limits
from watchbill.fleet.agent.questions import Question
from watchbill.fleet.folder import places
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.permissions.rules import RuleBook
from watchbill.names import file_stem
from watchbill.plans.task import MetaCommand, Sandbox, TaskClass
from watchbill.processes.crew import Ended, Job

__all__ = [
    "ON_GPU", "Fate", "Finished", "Prepared", "Setting", "attempt_folder", "hide_so_far", "is_there",
    "passing_folder", "paths_of", "result_path", "show_so_far", "so_far_path", "touched",
]  # fmt: skip

#: What says that there is no such file, and nothing about the folder as a whole.
_NO_SUCH_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG})
#: The classes that use the device.
ON_GPU = (TaskClass.SCRIPT, TaskClass.LLM)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where tasks run: this machine's path of the shared folder, and what the agent has."""

    root: Path
    agent: str
    outputs: Path  # private: long outputs and result files until they are reported
    cards: tuple[str, ...] = ()
    model: str = ""
    models: tuple[str, ...] = ()  # that its device can serve
    model_url: str = ""
    sandboxes: frozenset[Sandbox] = frozenset()  # that this machine can make
    #: The rules by plan, as they were when they were first needed: a setting is made for one round of claims.
    books: dict[str, RuleBook] = field(default_factory=dict[str, RuleBook], compare=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claimed slip, ready to be started."""

    name: str
    slip: Slip
    task_class: TaskClass
    job: Job  # without a command line for a question and for an order
    question: Question | None = None  # for a model
    order: MetaCommand | None = None  # for the agent itself
    produces: tuple[str, ...] = ()
    keeps_folder: bool = False  # the task knows its folder, so its outputs go there in any case
    own_files: tuple[str, ...] = ()  # what only this task is expected to touch while it runs
    own_folder: Path | None = None


class Fate(Enum):
    """What the agent did to a task."""

    NONE = "none"
    ABORTED = "aborted"  # told to by a signal file
    GIVEN_UP = "given_up"  # the agent leaves: again, without blame


@dataclass(frozen=True, slots=True)
class Finished:
    """A task of which no process is left, and that is not reported yet."""

    prepared: Prepared
    ended: Ended
    fate: Fate = Fate.NONE
    peak_vram_mb: int = 0


# ------------------------------------------------------------------ its files


@functools.lru_cache(maxsize=limits.BATCH_PATHS_KEPT)
def paths_of(root: Path, plan: str, batch: str) -> tuple[Path, Path]:
    """The folder of a plan and that of a batch on this machine. All tasks of a batch have the same ones."""
    return root / "plans" / plan, root / places.batch_folder(plan, batch)


def attempt_folder(root: Path, slip: Slip) -> Path:
    _, batch = paths_of(root, slip.plan, slip.batch)
    return batch / "tasks" / file_stem(slip.task) / f"a{slip.attempt}"


def result_path(setting: Setting, job: str) -> str:
    return f"{setting.outputs}/{job}.result.json"


def passing_folder(setting: Setting, job: str) -> str:
    """Where a task in a sandbox puts files that only it needs, while it runs."""
    return f"{setting.outputs}/{job}.tmp"


def is_there(pattern: str, folder: Path) -> bool:
    """Whether a path that may be a pattern names anything; one that is relative lies in the plan's folder."""
    return next(matches(pattern, folder), None) is not None


# ------------------------------------------------------------------ while it runs


def touched(prepared: Prepared) -> int:
    """When a task's own files were last changed, by the clock of the machine that changed them; 0 while there are none.

    Raises OSError when the shared folder fails.
    """
    folder = prepared.own_folder
    inside = () if folder is None else _some_files(folder)
    return max(map(_changed_at, (*prepared.own_files, *inside)), default=0)


def show_so_far(root: Path, prepared: Prepared, text: str) -> None:
    """Show the end of the output of a task that still runs. Raises OSError."""
    if not prepared.slip.batch:
        return
    folder = attempt_folder(root, prepared.slip)
    make_folder(folder)
    with open_folder(folder) as opened:
        put_file(
            places.SO_FAR, f".{places.SO_FAR}.new", text.encode("utf-8", "replace"), dir_fd=opened, sync=False
        )


def so_far_path(root: Path, prepared: Prepared) -> Path:
    """Where the end of the output of a running task is shown."""
    return attempt_folder(root, prepared.slip) / places.SO_FAR


def hide_so_far(root: Path, prepared: Prepared) -> None:
    """Remove what was shown of a task that has ended. Raises OSError."""
    so_far_path(root, prepared).unlink(missing_ok=True)


def _some_files(folder: Path) -> list[str]:
    """A folder and files in it, so many that a large folder on a network mount does not delay the heartbeat."""
    try:
        with os.scandir(folder) as entries:
            return [
                str(folder),
                *(entry.path for entry in itertools.islice(entries, limits.HEADWAY_FILES_MAX)),
            ]
    except OSError as error:
        if error.errno not in _NO_SUCH_FILE:
            raise
        return []


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except ValueError:  # no name of a file: a NUL character, half of a surrogate pair
        return 0
    except OSError as error:
        if error.errno not in _NO_SUCH_FILE:
            raise
        return 0
