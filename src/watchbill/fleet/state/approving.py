"""Approving: a person's answer about tasks that wait for one, and what it means for their batch. Pure.

A task waits for a person when a rule asks about its command, and when it seems to be stuck or to kill its agents. The
answer is a file in the inbox:

    brain/inbox/BATCH.ID.approve      let these tasks run, or fail them: who says so, and the digest of each question

The digest covers everything that decides what would run: batch, task, command, environment, inputs and items. So an
answer holds for the command that the person has read and for no other, also after its plan was corrected. It is
written into the journal, and the slip carries it to the agent, which compares it once more. A rule that denies, or
rules that cannot be read, are above a person's answer.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from watchbill.errors import OursError
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.results import End
from watchbill.fleet.folder.values import fields_of
from watchbill.fleet.folder.work import Work
from watchbill.fleet.state.entries import Approve, Cause, Deny, Entry, Reopen
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.names import check_folder_name, check_plain_name

__all__ = [
    "Answer",
    "Question",
    "Verdict",
    "answer",
    "digest_of",
    "entries_of",
    "question_of",
    "questions_of",
    "record_of",
]

_FORMAT = 1
#: Which keys of a task's work decide what runs.
_RUN_BY = ("type", "command", "env")
#: What to know about a task that is not held because of a rule.
_HELD = {
    Cause.STUCK: "it showed no sign of progress, and neither abort nor kill had an effect",
    Cause.LOSSES: "its agents died while it ran, again and again",
}


class Verdict(Enum):
    """What a person says."""

    APPROVE = "approve"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Question:
    """A task that waits for a person."""

    batch: str
    plan: str
    task: str
    cause: Cause
    text: str
    command: str
    items: tuple[str, ...]
    agent: str
    since_ms: int  # by the coordinator's clock
    digest: str

    def fields(self) -> dict[str, object]:
        """The JSON of `plan approve --json`."""
        return {
            "batch": self.batch, "plan": self.plan, "task": self.task, "why": self.cause.value, "question": self.text,
            "command": self.command, "items": list(self.items), "agent": self.agent or None,
            "since": self.since_ms or None, "digest": self.digest,
        }  # fmt: skip


def digest_of(batch: str, task: str, work: Work, inputs: Mapping[str, object], items: tuple[str, ...]) -> str:
    """What an answer is about: the same on every machine, and another one when anything of it changes."""
    told = work.fields()
    about = [batch, task, {key: told[key] for key in _RUN_BY if key in told}, dict(inputs), list(items)]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def question_of(ledger: Ledger, task: str) -> Question:
    """The question about a task of a batch, whether it waits or not."""
    state, work, items = ledger.state(task), ledger.spec(task).work, ledger.items(task)
    cause = state.held or Cause.APPROVAL
    return Question(
        ledger.batch, ledger.plan, task, cause, _HELD.get(cause, state.tail),
        work.command or work.prompt, items, state.agent, state.at_ms,
        digest_of(ledger.batch, task, work, ledger.inputs, items),
    )  # fmt: skip


def questions_of(ledger: Ledger) -> Iterator[Question]:
    """Every task of a batch that waits for a person."""
    for task in ledger.tasks():
        if ledger.phase(task) is Phase.MANUAL:
            yield question_of(ledger, task)


# ------------------------------------------------------------------ the request


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person says about tasks of a batch: each with the digest of its question."""

    id: str
    batch: str
    plan: str
    verdict: Verdict
    tasks: Mapping[str, str]
    who: str
    reason: str = ""

    def encode(self) -> bytes:
        """The content of the file."""
        fields = {
            "type": self.verdict.value, "format": _FORMAT, "id": self.id, "batch": self.batch, "plan": self.plan,
            "tasks": dict(self.tasks), "who": self.who, "reason": self.reason,
        }  # fmt: skip
        return json.dumps(fields, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> "Answer":
        """Read the file. Raises OursError: any program may have written it."""
        try:
            fields = fields_of(content)
            verdict = Verdict(fields.text("type"))
        except ValueError as error:
            raise OursError(f"the answer cannot be read: {error}") from None
        tasks = fields.mapping("tasks")
        is_right = bool(tasks) and all(isinstance(each, str) for each in tasks.values())
        if fields.whole("format") != _FORMAT or not is_right:
            raise OursError("the answer is not one of format 1", hint="send it with this version")
        return cls(
            check_plain_name(fields.text("id"), "a request"), check_plain_name(fields.text("batch"), "a batch"),
            check_folder_name(fields.text("plan"), "a plan"), verdict, cast("Mapping[str, str]", tasks),
            fields.text("who"), fields.text("reason"),
        )  # fmt: skip


def answer(disk: Disk, given: Answer) -> str:
    """Leave an answer for the coordinator, durably. Returns the file's name."""
    name = f"{given.batch}.{given.id}.approve"
    disk.put(f"{places.INBOX}/{name}", given.encode(), durable=True)
    return name


def record_of(question: Question, given: Answer, at_ms: int) -> bytes:
    """The answer to a question as people find it in brain/approvals/; the journal is what counts."""
    said = {"verdict": given.verdict.value, "who": given.who, "at_ms": at_ms, "reason": given.reason}
    return json.dumps({**question.fields(), **said}, indent=2).encode() + b"\n"


# ------------------------------------------------------------------ what it means


def entries_of(ledger: Ledger, given: Answer) -> Iterator[Entry]:
    """The entries that an answer leads to; each is to be applied before the next one is asked for.

    May be repeated: what was obeyed already gives none. Raises OursError, before the first entry, for an answer to
    another question than the one that is open.
    """
    for task, digest in given.tasks.items():
        if given.verdict is Verdict.APPROVE and ledger.is_to_come(task):
            continue
        if task not in ledger or ledger.tasks_of(task):
            raise OursError(f"{ledger.batch} has no task {task!a}")
        if digest != question_of(ledger, task).digest:
            hint = "look at it again: watchbill plan approve"
            raise OursError(f"{task} of {ledger.batch} is not what the answer is about", hint=hint)
        if not _can_be_answered(ledger, task, given) and not _is_answered(ledger, task, given):
            raise OursError(
                f"{task} of {ledger.batch} is {ledger.phase(task).value}, and waits for nobody any more"
            )
    waiting = [task for task in given.tasks if task in ledger and ledger.phase(task) is Phase.MANUAL]
    if ledger.outcome is not None and given.id not in ledger.requests and waiting:
        yield Reopen(given.id, tuple(waiting), ledger.inputs, ledger.priority, ledger.goal)
    for task, digest in given.tasks.items():
        if task not in ledger:  # the items of its fan-out are read anew
            if given.verdict is Verdict.APPROVE and ledger.is_to_come(task):
                # The agent compares the digest: it counts when the task is there again, and is what it was.
                yield Approve(task, given.who, digest)
            continue
        if _can_be_answered(ledger, task, given) and not (
            task not in waiting and _is_answered(ledger, task, given)
        ):
            if given.verdict is Verdict.APPROVE:
                yield Approve(task, given.who, digest)
            else:
                yield Deny(task, given.who, given.reason)


def _can_be_answered(ledger: Ledger, task: str, given: Answer) -> bool:
    """Whether an answer about a task has an effect: it waits for a person, or is to be tried again and would ask again.

    A task is ready, too, when its batch was reopened for this answer.
    """
    match ledger.phase(task):
        case Phase.MANUAL:
            return True
        case Phase.READY | Phase.WAITING:
            return given.verdict is Verdict.APPROVE or given.id in ledger.requests
        case _:
            return False


def _is_answered(ledger: Ledger, task: str, given: Answer) -> bool:
    """Whether the journal has this answer already: its file was not removed yet, or somebody else gave the same."""
    if given.verdict is Verdict.DENY:
        return ledger.state(task).end is End.DENIED
    return ledger.approved.get(task) == given.tasks[task]
