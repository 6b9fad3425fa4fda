"""Requests about a batch that was submitted: files in the inbox, beside those that submit one.

    brain/inbox/BATCH.cancel          nothing more of it is wanted
    brain/inbox/BATCH.ID.reopen       go on with it: the tasks that are named, or everything that did not complete
    brain/inbox/BATCH.ID.approve      the answer to a question about tasks of it (`approving`)

Each is written whole and durably, by any program that may write there; the coordinator obeys and removes it. A request
has an id, because a coordinator may die between obeying and removing; that to cancel may also be an empty file.
Requests to go on are obeyed in the order of their ids: those of one machine in the order in which they were made, also
when no coordinator ran at that time. A request to cancel comes behind them.
"""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.values import Fields, fields_of
from watchbill.names import check_folder_name, check_plain_name
from watchbill.plans.batch import BelowRoot, decoded_inputs, encoded_inputs

__all__ = [
    "Reopening",
    "ask_to_cancel",
    "ask_to_reopen",
    "cancel_request",
    "has_request",
    "new_request_id",
    "take_back",
    "unread_requests",
]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Reopening:
    """A request to go on with a batch."""

    id: str
    batch: str
    plan: str
    tasks: tuple[str, ...] = ()  # none: everything that did not complete
    reads_plan: bool = False  # the plan may have been corrected since
    #: Inputs of the plan that have changed.
    inputs: Mapping[str, "str | BelowRoot"] = field(default_factory=dict[str, "str | BelowRoot"])

    def encode(self) -> bytes:
        """The content of the file."""
        fields = {
            "type": "reopen", "format": _FORMAT, "id": self.id, "batch": self.batch, "plan": self.plan,
            "tasks": self.tasks, "reads_plan": self.reads_plan, "inputs": encoded_inputs(self.inputs),
        }  # fmt: skip
        return json.dumps(fields, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> "Reopening":
        """Read the file. Raises OursError: any program may have written it."""
        try:
            fields = fields_of(content)
        except ValueError as error:
            raise OursError(f"the request cannot be read: {error}") from None
        if fields.text("type") != "reopen" or fields.whole("format") != _FORMAT:
            raise OursError("the request is not one of format 1", hint="send it with this version")
        named = (
            check_plain_name(fields.text("batch"), "a batch"),
            check_folder_name(fields.text("plan"), "a plan"),
        )
        return cls(
            check_plain_name(fields.text("id"), "a request"), *named, fields.texts("tasks"),
            fields.flag("reads_plan"), decoded_inputs(_inputs(fields)),
        )  # fmt: skip


def _inputs(fields: Fields) -> Mapping[str, object]:
    return fields.mapping("inputs")


def new_request_id() -> str:
    """An id of its own for a request. By it a later request of this machine stands behind an earlier one."""
    return f"{time.time_ns():016x}-{secrets.token_hex(3)}"


def ask_to_cancel(disk: Disk, batch: str, request: str = "") -> str:
    """Ask the coordinator to cancel a batch; without the id of a request under a new one. Returns the file's name."""
    content = json.dumps({"id": request or new_request_id()}).encode() + b"\n"
    name = f"{check_plain_name(batch, 'a batch')}.cancel"
    disk.remove(f"{places.REFUSED}/{name}")  # an earlier one's
    disk.put(f"{places.INBOX}/{name}", content, durable=True)
    return name


def cancel_request(disk: Disk, batch: str) -> str | None:
    """The id of the request to cancel a batch that lies in the inbox: "" for one without, None for no file."""
    try:
        return fields_of(disk.read(f"{places.INBOX}/{batch}.cancel", limits.FLEET_FILE_BYTES_MAX)).text("id")
    except (FileNotFoundError, NotAFile):
        return None
    except (PermissionError, ValueError):
        return ""


def ask_to_reopen(disk: Disk, request: Reopening) -> str:
    """Ask the coordinator to go on with a batch. Returns the file's name."""
    name = f"{request.batch}.{request.id}.reopen"
    disk.put(f"{places.INBOX}/{name}", request.encode(), durable=True)
    return name


def take_back(disk: Disk, name: str) -> None:
    """Remove a request that no coordinator has read."""
    disk.remove(f"{places.INBOX}/{name}")


def unread_requests(disk: Disk, batch: str) -> list[str]:
    """The requests and answers about a batch that lie in the inbox, in the order in which they will be obeyed."""
    found = (name for name in disk.names(places.INBOX) if name.startswith(f"{batch}."))
    return sorted(name for name in found if name.endswith((".reopen", ".approve")))


def has_request(disk: Disk, batch: str) -> bool:
    """Whether the coordinator was asked to go on with a batch, and has not done so yet."""
    return bool(unread_requests(disk, batch))
