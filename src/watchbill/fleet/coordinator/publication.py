"""Publication: the answer of a model becomes the file that its plan names, when its attempt is accepted and only then.

    draft     before the attempt is accepted: the answer is copied beside its target, under a hidden name
    publish   after the entry is written: one rename, which a successor may repeat

So an attempt that is over never changes the file, and a target that cannot be written is a failure of the task and not
of the coordinator.
"""

from typing import NamedTuple

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk, is_of_the_path
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.shared_paths import output_path
from watchbill.names import file_stem

__all__ = ["Publication", "answer_path", "make_draft", "publication_of", "publish"]


class Publication(NamedTuple):
    """Where the answer of an attempt lies, is prepared, and belongs."""

    answer: str
    draft: str
    target: str


def publication_of(ledger: Ledger, task: str) -> Publication | None:
    """What becomes of the answer of a task's last attempt; None for a task without `output`.

    Raises OursError for an output outside of the shared folder.
    """
    output = ledger.spec(task).work.output
    if not output:
        return None
    target = output_path(ledger, task, output)
    folder, _, name = target.rpartition("/")
    attempt = ledger.state(task).attempt
    return Publication(answer_path(ledger, task), f"{folder}/.{name[:200]}.a{attempt}", target)


def answer_path(ledger: Ledger, task: str) -> str:
    """Where the agent put the answer of a task's last attempt."""
    folder = places.batch_folder(ledger.plan, ledger.batch)
    return f"{folder}/tasks/{file_stem(task)}/a{ledger.state(task).attempt}/stdout"


def make_draft(disk: Disk, publication: Publication) -> None:
    """Prepare the file. Raises OursError where it cannot be at its place, OSError when the disk fails."""
    try:
        content = disk.read(publication.answer, limits.ANSWER_CHARS_MAX * 4)
    except (FileNotFoundError, NotAFile) as error:
        raise OursError(f"the answer of the model cannot be read: {error}") from None
    try:
        disk.make_folder(publication.target.rpartition("/")[0])
        _refuse_another_kind(disk, publication.target)
        disk.put(publication.draft, content, durable=True)
    except (OSError, UnicodeEncodeError) as error:
        if isinstance(error, OSError) and not is_of_the_path(error):
            raise
        raise OursError(f"the answer cannot be written to {publication.target}: {error}") from None


def _refuse_another_kind(disk: Disk, target: str) -> None:
    try:
        disk.read(target, limits.OUTPUT_REPLACED_BYTES_MAX)
    except FileNotFoundError:
        return
    except NotAFile as error:
        raise OursError(f"the answer cannot be written to {target}: it is {error}") from None


def publish(disk: Disk, publication: Publication) -> None:
    """Put the file at its place. May be repeated, also by a successor."""
    try:
        disk.move(publication.draft, publication.target)
    except FileNotFoundError:
        return  # done before, or the reply was lost
