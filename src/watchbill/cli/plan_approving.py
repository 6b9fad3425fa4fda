"""`plan approve` and `plan deny`: what waits for a person, and the person's answer. From the shared folder alone."""

import json as jsonlib
import os
import pwd
from collections.abc import Iterator, Sequence
from pathlib import Path

from watchbill.cli.fleet_root import open_fleet
from watchbill.cli.plan_asking import asked, begin_unread_rounds
from watchbill.cli.plan_batches import batch_of_task, refuse_if_to_be_cancelled
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import OursError
from watchbill.files.host import host_name
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.requests import new_request_id
from watchbill.fleet.state.approving import Answer, Question, Verdict, answer, question_of, questions_of
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.state.reading import BatchPlace, Follower, batches_of, find_batch

__all__ = ["answer_questions", "show_questions"]


def show_questions(*, batch: str | None, json: bool, root: Path | None, quiet: bool) -> int:
    """`plan approve` without a task: everything that waits for a person."""
    _, disk = open_fleet(root)
    terminal = Terminal(quiet=quiet)
    places = batches_of(disk) if batch is None else [find_batch(disk, batch)]
    questions: list[Question] = []
    for place in places:
        try:
            questions += _questions(disk, place)
        except OursError as error:
            if batch is not None:
                raise
            terminal.note(plain(str(error)))
    if json:
        terminal.show(jsonlib.dumps({"waiting": [each.fields() for each in questions]}))
    elif questions:
        terminal.show("\n\n".join("\n".join(_told(each)) for each in questions))
    else:
        terminal.note("nothing waits for a person")
    return 0


def _questions(disk: FolderDisk, place: BatchPlace) -> Iterator[Question]:
    if place.has_journal:
        yield from questions_of(Follower(disk, place).read())


def _told(question: Question) -> Iterator[str]:
    yield f"{plain(question.task)} of {plain(question.batch)} ({plain(question.plan)})"
    yield from (f"    {plain(line)}" for line in question.command.splitlines())
    for item in question.items[:1]:
        more = len(question.items) - 1
        yield f"  with {plain(item)}" + (f" and {more:,} more items" if more else "")
    yield f"  {plain(question.text)}"


def answer_questions(
    tasks: Sequence[str],
    verdict: Verdict,
    *,
    reason: str = "",
    batch: str | None,
    json: bool,
    root: Path | None,
    quiet: bool,
) -> int:
    """`plan approve TASK` and `plan deny TASK`: leave the answer for the coordinator."""
    folder, disk = open_fleet(root)
    place, ledger = batch_of_task(disk, tasks[0], batch)
    refuse_if_to_be_cancelled(disk, ledger)
    meant = [each for task in tasks for each in _waiting(folder, ledger, task)]
    digests = {task: question_of(ledger, task).digest for task in meant}
    who = f"{_user()}@{host_name()}"
    if verdict is Verdict.DENY:
        begin_unread_rounds(disk, ledger)
        _refuse_if_to_run(ledger, meant)
    file = answer(disk, Answer(new_request_id(), place.batch, place.plan, verdict, digests, who, reason))
    terminal = Terminal(quiet=quiet)
    will = "will run" if verdict is Verdict.APPROVE else "will not run"
    asked(folder, disk, terminal, f"{', '.join(digests)} of {place.batch} {will}", request=file)
    if json:
        fields = {"batch": place.batch, "verdict": verdict.value, "tasks": list(digests), "who": who}
        terminal.show(jsonlib.dumps(fields))
    return 0


def _refuse_if_to_run(ledger: Ledger, tasks: Sequence[str]) -> None:
    """Refuse to deny tasks that wait for nobody any more when the requests before this one are obeyed."""
    for task in tasks:
        if task not in ledger or ledger.phase(task) is not Phase.MANUAL:
            raise OursError(
                f"{task} of {ledger.batch} is about to run again, as somebody asked before",
                hint="deny it when it waits for a person again",
            )


def _waiting(folder: Path, ledger: Ledger, task: str) -> list[str]:
    """The waiting tasks that a name means. Raises OursError where none waits."""
    if task not in ledger:
        raise OursError(f"{ledger.batch} has no task {task}")
    found = [each for each in ledger.tasks_of(task) or (task,) if ledger.phase(each) is Phase.MANUAL]
    if not found:
        state = "" if ledger.tasks_of(task) else f" is {ledger.phase(task).value}, and"
        hint = f"see: {places.fleet_command(folder, 'plan', 'approve')}"
        raise OursError(f"{task} of {ledger.batch}{state} does not wait for a person", hint=hint)
    return found


def _user() -> str:
    """The name of the user who runs this; the number where there is no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
