"""Work: what an agent is told to do for a task, as the journal and the slip of the task hold it.

It is read once, where a journal or a slip is decoded, and keeps what it does not understand: a key of a later version
goes on to the agents of that version, and a word that this version does not know is refused where it would count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from watchbill.fleet.folder.values import Fields
from watchbill.plans.task import Sandbox, TaskClass, TaskType

__all__ = ["UnknownWord", "Work"]

Kind = TypeVar("Kind", bound=Enum)


class UnknownWord(NamedTuple):
    """A word of a later version in place of one of ours."""

    key: str
    word: str


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one task. Placeholders are still in its texts."""

    type: TaskType = TaskType.SHELL
    task_class: TaskClass = TaskClass.CPU
    command: str = ""
    prompt: str = ""
    system: str = ""
    schema: str = ""
    model: str = ""
    output: str = ""
    evaluate: str = ""
    timeout_ms: int = 0  # 0 for none
    requires: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    soft_stop: bool = False
    sandbox: Sandbox = Sandbox.NONE
    needs_pair: bool = False
    tokens_max: int = 0  # of an answer; 0 for none
    remark: str = ""  # what was wrong with an earlier answer
    is_private: bool = False  # a question that repeats private work: it may reach no external tier
    #: Keys and words of a later version.
    others: Mapping[str, object] = field(default_factory=dict[str, object])

    @classmethod
    def of(cls, fields: Fields) -> "Work":
        """Read it. A value of another kind counts as absent."""
        env = fields.fields("env")
        return cls(
            _word(TaskType, fields.text("type"), TaskType.SHELL),
            _word(TaskClass, fields.text("class"), TaskClass.CPU),
            fields.text("command"), fields.text("prompt"), fields.text("system"), fields.text("schema"),
            fields.text("model"), fields.text("output"), fields.text("evaluate"),
            max(0, fields.whole("timeout_ms")), fields.texts("requires"), fields.texts("produces"),
            {key: env.text(key) for key in env.all()}, fields.flag("soft_stop"),
            _word(Sandbox, fields.text("sandbox"), Sandbox.NONE), fields.flag("needs_pair"),
            max(0, fields.whole("max_tokens")), fields.text("remark"), fields.flag("private"),
            _others(fields),
        )  # fmt: skip

    def fields(self) -> dict[str, object]:
        """Its JSON, without what is empty."""
        found: dict[str, object] = {
            "type": self.type.value, "class": self.task_class.value, "command": self.command, "prompt": self.prompt,
            "system": self.system, "schema": self.schema, "model": self.model, "output": self.output,
            "evaluate": self.evaluate, "timeout_ms": self.timeout_ms, "requires": list(self.requires),
            "produces": list(self.produces), "env": dict(self.env), "soft_stop": self.soft_stop,
            "sandbox": self.sandbox.value, "needs_pair": self.needs_pair, "max_tokens": self.tokens_max,
            "remark": self.remark, "private": self.is_private,
        }  # fmt: skip
        return {key: value for key, value in found.items() if value} | dict(self.others)

    @property
    def is_question(self) -> bool:
        """Whether it is for a model, and not a command."""
        return self.type is not TaskType.SHELL or "type" in self.others

    @property
    def unknown(self) -> UnknownWord | None:
        """A word of a later version that decides how the task runs."""
        return next((UnknownWord(key, str(self.others[key])) for key in _WORDS if key in self.others), None)


_WORDS: Mapping[str, type[Enum]] = {"class": TaskClass, "type": TaskType, "sandbox": Sandbox}
#: The words of each key, once: every slip is read with them.
_KNOWN = {key: frozenset(each.value for each in kind) for key, kind in _WORDS.items()}
_KEYS = frozenset(_WORDS) | {
    "command", "prompt", "system", "schema", "model", "output", "evaluate", "timeout_ms", "requires", "produces", "env",
    "soft_stop", "needs_pair", "max_tokens", "remark", "private",
}  # fmt: skip


def _word(kind: type[Kind], word: str, default: Kind) -> Kind:
    try:
        return kind(word)
    except ValueError:
        return default


def _others(fields: Fields) -> dict[str, object]:
    words = {key: word for key, known in _KNOWN.items() if (word := fields.text(key)) and word not in known}
    return {key: value for key, value in fields.all().items() if key not in _KEYS} | words
