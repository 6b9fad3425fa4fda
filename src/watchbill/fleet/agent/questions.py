"""Questions: what a task of the types `generate`, `parse` and `decide` asks a model. Pure.

A decision is an object with `decision` and `reason`, unless the plan has a schema of its own for it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from watchbill.plans.task import TaskType

__all__ = ["Message", "Question", "decision"]

Message = Mapping[str, str]

_DECISION = {
    "type": "object", "required": ["decision", "reason"],
    "properties": {"decision": {"type": "string"}, "reason": {"type": "string"}},
}  # fmt: skip
_HOW_TO_DECIDE = 'Answer with one JSON object: {"decision": what to do, "reason": why, in one sentence}.'


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked. Placeholders are filled in."""

    model: str  # empty: the one of the agent
    prompt: str
    system: str = ""
    schema: str = ""  # JSON Schema of the answer, as text
    type: TaskType = TaskType.GENERATE
    tokens_max: int = 0  # of the answer, by the plan's word; 0: the plan has none
    is_private: bool = False  # it repeats what was asked and said privately

    @property
    def messages(self) -> list[Message]:
        """The question as a chat."""
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]


def decision(model: str, prompt: str, system: str = "", schema: str = "", tokens_max: int = 0) -> Question:
    """A question whose answer is a decision."""
    if not schema:
        prompt, schema = f"{prompt}\n\n{_HOW_TO_DECIDE}", json.dumps(_DECISION)
    return Question(model, prompt, system, schema, TaskType.DECIDE, tokens_max)
