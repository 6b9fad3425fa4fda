"""Concluding: the result of a task that has ended: how it ended, what it said, and where its files are kept.

Reads and writes the shared folder, and belongs on the agent's file thread. `conclude` may be repeated.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from watchbill.files.atomic import NotAFile, make_folder, open_folder, put_file, read_regular
from watchbill.files.disk import DISK_FULL
from watchbill.fleet import limits
from watchbill.fleet.agent.preparing import PREFIX, parsed_command
from watchbill.fleet.agent.questions import Question
from watchbill.fleet.agent.work import (
    ON_GPU,
    Fate,
    Finished,
    Prepared,
    Setting,
    attempt_folder,
    is_there,
    passing_folder,
    paths_of,
    result_path,
)
from watchbill.fleet.folder import places
from watchbill.fleet.folder.results import End, Result, end_of
from watchbill.fleet.logs import Part
from watchbill.fleet.permissions.rules import FILE
from watchbill.plans import limits as plans_limits
from watchbill.plans.bash_parse import parse_only
from watchbill.plans.syntax import BashSyntax, Mistake
from watchbill.processes.crew import Cause, Ended, Output
from watchbill.units import format_bytes

__all__ = ["conclude"]

#: With these bash ends when it cannot parse its script, and many programs when something is wrong.
_SYNTAX_CODES = (1, 2)
_OUT_OF_MEMORY = re.compile(
    rb"CUDA[^\n]{0,80}out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    rb"|CUBLAS_STATUS_ALLOC_FAILED|hipErrorOutOfMemory|failed to allocate CUDA",
    re.IGNORECASE,
)
#: What programs say of ENOSPC and EDQUOT, in the words of libc and of the languages that have their own.
_DISK_FULL = re.compile(
    rb"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|\(os error (?:28|122)\)|\bENOSPC\b|\bEDQUOT\b"
    rb"|database or disk is full"
)
#: A machine that cannot start one more process now: neither task nor agent is to blame.
_EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_WORKER = Part.WORKER.logger


def conclude(
    setting: Setting, finished: Finished, life: int, *, keeps_files: bool = True, note: str = ""
) -> Result:
    """The result of a task, with its files where they are needed. Raises OSError: then it may be repeated."""
    prepared, ended = finished.prepared, finished.ended
    end, own_note = _end(finished, setting)
    if end is End.UNPARSABLE:
        ended = _without_our_line(ended)
    tail = _tail(ended, own_note, note)
    rc = ended.code if ended.cause is not Cause.NOT_STARTED else None
    whole = _answer(setting, prepared, ended)
    answer = json.dumps(whole, separators=(",", ":")) if whole is not None else ""
    is_long = ended.out.total + ended.err.total > limits.RESULT_TAIL_CHARS_MAX
    is_answer_long = len(answer) > limits.TASK_ANSWER_BYTES_MAX
    has_said = ended.out.total + ended.err.total > 0
    # A result is what the task was run for: it is kept with the batch, however short it is (FLEET-10).
    is_of_interest = is_long or bool(answer) or (end is not End.DONE and has_said)
    # An order of the coordinator belongs to no batch, and has no folder.
    if keeps_files and prepared.slip.batch and (prepared.keeps_folder or is_of_interest):
        _keep_files(setting, prepared, ended, answer)
    _clear(setting, prepared, ended)
    return Result(
        prepared.name, setting.agent, life, end, rc, ended.ms, finished.peak_vram_mb, tail, ended.cpu_ms,
        "" if is_answer_long else answer, -(-ended.rss_bytes // 2**20), ended.is_private,
    )  # fmt: skip


def _end(finished: Finished, setting: Setting) -> tuple[End, str]:
    """How an attempt ended, and what there is to say about it beside its output."""
    ended, fate = finished.ended, finished.fate
    match ended.cause:
        case Cause.GUARD_LOST:
            return End.LOST, "the process that guards the tasks was killed"
        case Cause.DAEMON_GONE:
            return End.LOST, "the daemon that serves the model ended"
        case Cause.LEASE:
            return End.LOST, "the agent could not reach the shared folder"
        case Cause.NOT_STARTED:
            return _not_started(ended.error)
        case Cause.TIMEOUT:
            return End.TIMEOUT, f"it took longer than {finished.prepared.job.timeout_ms} ms"
        case Cause.MEMORY:
            most = format_bytes(finished.prepared.job.memory_bytes_max)
            return End.FAILED, f"it was killed: [sandbox] memory of {FILE} lets a task have {most}"
        case Cause.PROCESSES:
            most = finished.prepared.job.processes_max
            return End.FAILED, f"it was killed: [sandbox] processes of {FILE} lets a task have {most}"
        case Cause.STOPPED | Cause.KILLED:
            if fate is Fate.ABORTED:
                return End.ABORTED, "it was aborted by a signal"
            return End.SOFT_STOP, "the agent was stopped"
        case Cause.EXIT:
            return _exited(finished, setting)


def _not_started(error: OSError | None) -> tuple[End, str]:
    number = None if error is None else error.errno
    why = "it could not be started" + (f": {os.strerror(number)}" if number else "")
    if number in _EXHAUSTED:
        return End.LOST, why
    if number in DISK_FULL:
        return End.DISK_FULL, why
    return (End.NOT_RUNNABLE if number in (errno.ENOENT, errno.EACCES) else End.FAILED), why


def _exited(finished: Finished, setting: Setting) -> tuple[End, str]:
    code, prepared = finished.ended.code, finished.prepared
    if code is None or code < 0:
        end, note = End.FAILED, f"it was killed by signal {-(code or 0)}"
    else:
        end, note = end_of(code), ""
    if end is End.DONE and prepared.produces:
        folder, _ = paths_of(setting.root, prepared.slip.plan, prepared.slip.batch)
        missing = next((each for each in prepared.produces if not is_there(each, folder)), None)
        if missing is not None:
            end, note = End.MISSING_OUTPUT, f"it did not produce {missing}"
    if end in (End.FAILED, End.MISSING_OUTPUT) and _DISK_FULL.search(finished.ended.err.tail):
        return End.DISK_FULL, note
    if end is End.FAILED and code in _SYNTAX_CODES and (mistake := _mistake_in(prepared)) is not None:
        return End.UNPARSABLE, f"bash cannot parse the command: line {mistake.line}: {mistake.text}"
    if end is End.FAILED and _is_out_of_memory(finished):
        return End.OUT_OF_MEMORY, note
    return end, note


def _mistake_in(prepared: Prepared) -> Mistake | None:
    """What bash cannot parse in the command of a task; None where it can, or where that is not known."""
    text = prepared.slip.work.command
    found = (
        BashSyntax(parse_only, plans_limits.TASK_SYNTAX_MS_MAX).look_at(parsed_command(text))
        if prepared.job.argv
        else None
    )
    return found if isinstance(found, Mistake) else None


def _without_our_line(ended: Ended) -> Ended:
    """What a task said without the line in which bash repeats the first line of the script: it begins with ours."""
    own = PREFIX.rstrip().encode()
    lines = [line for line in ended.err.tail.splitlines(keepends=True) if own not in line]
    tail = b"".join(lines)
    left_out = len(ended.err.tail) - len(tail)
    return replace(ended, err=replace(ended.err, tail=tail, total=ended.err.total - left_out))


def _is_out_of_memory(finished: Finished) -> bool:
    if finished.prepared.task_class not in ON_GPU:
        return False
    estimate_mb = finished.prepared.slip.vram_mb
    return bool(_OUT_OF_MEMORY.search(finished.ended.err.tail)) or 0 < estimate_mb <= finished.peak_vram_mb


def _tail(ended: Ended, *notes: str) -> str:
    """The end of what a task said, errors last, and the agent's own words behind them."""
    texts = [ended.out.tail.decode("utf-8", "replace"), ended.err.tail.decode("utf-8", "replace"), *notes]
    return "\n".join(text.rstrip("\n") for text in texts if text)[-limits.RESULT_TAIL_CHARS_MAX :]


def _answer(setting: Setting, prepared: Prepared, ended: Ended) -> dict[str, object] | None:
    """What a task gives as its result: its result.json, else the last line of its output if that is a JSON object."""
    path = result_path(setting, prepared.job.id)
    try:
        said = read_regular(path, bytes_max=limits.TASK_RESULT_BYTES_MAX)
    except (FileNotFoundError, NotAFile, PermissionError):  # whatever the task has put there
        said = b""
    if not said.strip():  # a task in a sandbox finds the file there, and empty
        said = ended.out.tail.rstrip(b"\n").rpartition(b"\n")[2]
    if not said.lstrip().startswith(b"{"):
        return None
    try:
        found = cast("object", json.loads(said))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", found) if isinstance(found, dict) else None


def _keep_files(setting: Setting, prepared: Prepared, ended: Ended, answer: str) -> None:
    """Put what a task said where people look for it: tasks/TASK/aN of the batch."""
    folder = attempt_folder(setting.root, prepared.slip)
    make_folder(folder)
    contents: Mapping[str, bytes] = {
        "stdout": _whole(ended.out), "stderr": _whole(ended.err), "result.json": answer.encode(),
        places.QUESTION: _asked(prepared.question, setting),
    }  # fmt: skip
    with open_folder(folder) as opened:
        for name, content in contents.items():
            # The coordinator looks for an answer, also for one without a character. It publishes what it finds, so the
            # answer is on stable storage before its report is: a power cut left an empty file under this name.
            is_answer = prepared.question is not None and name == "stdout"
            if content or is_answer:
                put_file(name, f".{name}.new", content, dir_fd=opened, sync=is_answer)


def _asked(question: Question | None, setting: Setting) -> bytes:
    """What a model was asked, as the coordinator's training samples have it."""
    if question is None:
        return b""
    asked = {
        "type": question.type.value, "model": question.model or setting.model, "system": question.system,
        "prompt": question.prompt, "schema": question.schema,
    }  # fmt: skip
    return json.dumps(asked).encode()


def _whole(output: Output) -> bytes:
    """All of an output that was kept: its beginning, and its end where the middle is left out."""
    if output.file is None:
        return output.tail
    try:
        begin = output.file.read_bytes()
    except FileNotFoundError:  # the private disk took none of it
        begin = b""
    left_out = output.total - len(begin) - len(output.tail)
    if left_out <= 0:
        return begin + output.tail[len(output.tail) - (output.total - len(begin)) :]
    return begin + f"\n[{left_out:,} bytes left out]\n".encode() + output.tail


def _clear(setting: Setting, prepared: Prepared, ended: Ended) -> None:
    """Remove the private files of a task that is concluded."""
    own = (result_path(setting, prepared.job.id), passing_folder(setting, prepared.job.id))
    for path in (ended.out.file, ended.err.file, *own):
        if path is not None:
            _remove(path)


def _remove(path: str | Path) -> None:
    """Remove whatever a task has put there. What cannot be removed must not keep its result back, and goes when the
    next guard starts: a folder in place of a result once stopped an agent for good."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        _WORKER.warning("a file of a task that has ended cannot be removed: %s", error)
