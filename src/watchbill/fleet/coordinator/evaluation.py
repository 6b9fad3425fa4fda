"""Evaluation: the coordinator's model judges an answer before it is accepted (FLEET-08).

A task with `evaluate` says what a good answer is. Its answer is scored from 1 to 5 by the agent `brain`, as a `parse`
task on a slip of its own. Below 3 the attempt has failed, and the next one is told why. The score stands in no journal:
until the attempt is accepted or has failed its token stays out, and a successor asks again.

A question that was lost with its agent is asked again, and so is one that failed, a few times.

An answer that cannot be judged is accepted: at once where the coordinator has no model, after a while where its agent
does not answer. Its entry, `plan status` and the summary say that it has no score.
"""

import json
from dataclasses import dataclass, replace
from typing import NamedTuple

from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.folder.slips import Headline, Slip, slip_name
from watchbill.fleet.folder.values import Fields, fields_of
from watchbill.fleet.folder.work import Work
from watchbill.fleet.logs import Part
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.shared_paths import text_of
from watchbill.names import file_stem
from watchbill.plans.task import TaskClass, TaskType

__all__ = ["Evaluations", "Examination", "Judged", "Scored", "is_evaluated"]

_LOG = Part.COORDINATOR.logger
_LEAST_SCORE = 3
#: The model has said nothing: its agent died, was stopped, or could not work.
_LOST = frozenset({End.LOST, End.UNSTARTED, End.UNREADABLE, End.SOFT_STOP, End.DISK_FULL})
_SCHEMA = {
    "type": "object", "required": ["score"],
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}, "reason": {"type": "string"}},
}  # fmt: skip
_PROMPT = """Judge the answer below. A good answer: {wanted}

<question>
{question}
</question>

<answer>
{answer}
</answer>

Answer with one JSON object: {{"score": 1 for useless to 5 for very good, "reason": why, in one sentence}}.
"""


def is_evaluated(ledger: Ledger, task: str) -> bool:
    """Whether the answer of a task is judged before it is accepted."""
    return bool(ledger.spec(task).work.evaluate)


class Examination(NamedTuple):
    """A question to the coordinator's model: the slip, and the file with its prompt."""

    name: str
    slip: Slip
    path: str
    prompt: bytes


class Scored(NamedTuple):
    """The result of a task after its answer was judged."""

    result: Result
    has_score: bool = True


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer that waits for its score."""

    result: Result
    until_ms: int
    failures: int = 0  # questions about it to which there was no score


class Evaluations:
    """The answers that a coordinator has judged now."""

    def __init__(self) -> None:
        self._judged: dict[str, Judged] = {}  # slip of the examination -> the answer
        self._numbers = 0

    def is_under_way(self, name: str) -> bool:
        """Whether the answer of the task with this slip waits for its score."""
        return any(each.result.name == name for each in self._judged.values())

    def examine(self, ledger: Ledger, task: str, judged: Judged, answer: bytes, *, epoch: int) -> Examination:
        """Have an answer judged."""
        self._numbers += 1
        work, attempt = ledger.spec(task).work, ledger.state(task).attempt
        folder = f"tasks/{file_stem(task)}/a{attempt}"
        prompt = _PROMPT.format(
            wanted=text_of(ledger, task, work.evaluate),
            question=text_of(ledger, task, work.prompt),
            answer=answer.decode("utf-8", "replace")[: limits.EVALUATED_CHARS_MAX],
        )
        # The prompt is a file: a value in the answer that looks like a placeholder stays as it is.
        asked = Work(
            TaskType.PARSE,
            TaskClass.LLM,
            schema=json.dumps(_SCHEMA),
            prompt=f"file:{{BATCH_PATH}}/{folder}/evaluation.txt",
            is_private=judged.result.is_private,
        )
        headline = Headline(ledger.priority, self._numbers, TaskClass.LLM, 0, attempt, places.BRAIN)
        # The epoch is in the name: the score of a former coordinator's question is none of this one's.
        name = slip_name(
            headline, model="", batch=ledger.batch, task=f"{task}.evaluation-{epoch}-{self._numbers}"
        )
        slip = Slip(f"{task}.evaluation", ledger.batch, ledger.plan, attempt, epoch, 0, (), {}, (), asked)
        self._judged[name] = judged
        path = f"{places.batch_folder(ledger.plan, ledger.batch)}/{folder}/evaluation.txt"
        return Examination(name, slip, path, prompt.encode("utf-8", "replace"))

    def hear(self, result: Result) -> Scored | Judged | None:
        """The result of the task that an examination was about, as its score makes it; None for any other result.

        An answer that is to be judged once more comes back as it is.
        """
        judged = self._judged.pop(result.name, None)
        if judged is None or result.end in _LOST:
            return judged
        scored = _scored(judged.result, result)
        if scored.has_score or result.end is End.ABORTED or judged.failures + 1 >= limits.EVALUATIONS_MAX:
            return scored
        return replace(judged, failures=judged.failures + 1)

    def lose(self, name: str) -> Judged | None:
        """The answer that an examination was about which is lost with its agent."""
        return self._judged.pop(name, None)

    def overdue(self, now_ms: int) -> dict[str, Result]:
        """The answers that were not judged in time, by the slips of their examinations: they are accepted."""
        late = {name: each.result for name, each in self._judged.items() if now_ms >= each.until_ms}
        for name, result in late.items():
            del self._judged[name]
            _LOG.warning("action=accept why=not evaluated in time slip=%s", result.name)
        return late


def _scored(result: Result, score: Result) -> Scored:
    try:
        said = fields_of(score.answer.encode()) if score.end is End.DONE else Fields({})
    except ValueError:
        said = Fields({})
    points = said.whole("score")
    if not points:
        _LOG.warning("action=accept why=not evaluated slip=%s: %s", result.name, score.tail)
        return Scored(result, has_score=False)
    _LOG.info("action=evaluate slip=%s score=%d", result.name, points)
    if points >= _LEAST_SCORE:
        return Scored(result)
    reason = said.text("reason")[: limits.EVALUATION_REASON_CHARS_MAX]
    tail = f"scored {points} of 5: {reason}" if reason else f"scored {points} of 5"
    return Scored(replace(result, end=End.POOR, tail=tail))
