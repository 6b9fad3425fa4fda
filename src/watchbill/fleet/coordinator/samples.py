"""Training samples: questions of plan tasks and the answers that were accepted, one JSON object per line (FLEET-10).

    logs/training_samples.jsonl     written by the coordinator alone, through a log that is rotated

The agent leaves the question as it was asked beside its answer. This is the one place where prompts are kept by
default; the coordinator's `training_samples = false` turns it off. A sample that cannot be written is not missed: no
task waits for it.
"""

import json
import logging

from watchbill.files.atomic import NotAFile
from watchbill.fleet import limits
from watchbill.fleet.coordinator.publication import answer_path
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import Disk
from watchbill.fleet.folder.values import fields_of
from watchbill.fleet.state.ledger import Ledger

__all__ = ["LOGGER", "has_sample", "keep_sample"]

#: The log that samples are written to; without a handler they go nowhere.
LOGGER = "watchbill.training_samples"
_SAMPLES = logging.getLogger(LOGGER)


def has_sample(ledger: Ledger, task: str) -> bool:
    """Whether a task asked a model, and its samples are kept."""
    asked = ledger.spec(task).work.is_question
    return asked and _SAMPLES.isEnabledFor(logging.INFO)


def keep_sample(disk: Disk, ledger: Ledger, task: str, agent: str) -> None:
    """Add the question and the answer of the attempt that was accepted."""
    path = answer_path(ledger, task)
    folder = path.rpartition("/")[0]
    try:
        question = fields_of(disk.read(f"{folder}/{places.QUESTION}", limits.SAMPLE_BYTES_MAX))
        answer = disk.read(path, limits.SAMPLE_BYTES_MAX).decode("utf-8", "replace")
    except (FileNotFoundError, NotAFile, ValueError):
        return  # of an agent that leaves none, or too large for a sample
    state = ledger.state(task)
    about = {
        "at_ms": state.at_ms, "plan": ledger.plan, "batch": ledger.batch, "task": task, "attempt": state.attempt,
        "agent": agent,
    }  # fmt: skip
    _SAMPLES.info("%s", json.dumps({**about, **question.all(), "answer": answer}, ensure_ascii=False))
