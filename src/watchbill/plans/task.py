"""The task: one unit of work of a plan, with every default filled in (PLAN-02). Data only.

`fields` makes one of what the author wrote; texts still hold their placeholders.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from watchbill.units import Millis

__all__ = [
    "PRIORITIES", "Dependency", "Executor", "MetaCommand", "Needs", "Place", "Sandbox", "Task", "TaskClass", "TaskType",
    "Text", "VramPolicy",
]  # fmt: skip

#: The words for priorities, as plans and `plan submit` take them.
PRIORITIES = {"urgent": 1, "high": 2, "normal": 3, "low": 4}


class Executor(Enum):
    """Who runs a task."""

    WORKER = "worker"
    BRAIN = "brain"


class TaskClass(Enum):
    """What a task needs of an agent."""

    CPU = "cpu"
    SCRIPT = "script"
    LLM = "llm"
    META = "meta"


class TaskType(Enum):
    """What a task is."""

    SHELL = "shell"
    GENERATE = "generate"
    PARSE = "parse"
    DECIDE = "decide"


class MetaCommand(Enum):
    """What a task of class meta tells an agent to do."""

    LOAD = "load_llm"
    UNLOAD = "unload_llm"


class Needs(Enum):
    """How the dependencies must have ended."""

    COMPLETE = "complete"
    DONE = "done"


class VramPolicy(Enum):
    """Where the figure for GPU memory comes from."""

    DEFAULT = "default"
    INFER = "infer"
    FIXED = "fixed"


class Sandbox(Enum):
    """The least sandbox that a task demands."""

    NONE = "none"
    LIGHT = "light"
    STRICT = "strict"

    @property
    def strength(self) -> int:
        """By which the stricter of two is told."""
        return _STRENGTHS[self]


_STRENGTHS = {each: place for place, each in enumerate(Sandbox)}


class Dependency(NamedTuple):
    """Another task that must end first; item by item where `per_item`."""

    name: str
    line: int
    per_item: bool = False


class Place(NamedTuple):
    """Where the items of a foreach stand: the file, and the path of keys to the array in it."""

    file: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{'.'.join(self.path)}" if self.path else self.file


class Text(NamedTuple):
    """A text of the author's and the line on which it begins."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a plan. Texts still hold their placeholders."""

    name: str
    line: int
    type: TaskType = TaskType.SHELL
    executor: Executor = Executor.WORKER
    task_class: TaskClass = TaskClass.CPU
    inferred: str = ""  # why it has this class, where the plan does not say it
    command: Text | None = None
    prompt: Text | None = None
    system: Text | None = None
    schema: Text | None = None
    model: Text | None = None
    output: Text | None = None
    evaluate: Text | None = None
    tokens_max: int = 0  # of an answer; 0: no bound is written
    depends_on: tuple[Dependency, ...] = ()
    needs: Needs = Needs.COMPLETE
    foreach: Place | None = None
    batch_size: int = 1
    vram_mb: int | None = None
    vram_policy: VramPolicy = VramPolicy.DEFAULT
    requires: tuple[Text, ...] = ()
    produces: tuple[Text, ...] = ()
    timeout_ms: Millis | None = None
    retries: int = 2
    priority: int | None = None
    soft_stop: bool = False
    sandbox: Sandbox = Sandbox.NONE
    env: tuple[tuple[str, Text], ...] = ()
    needs_pair: bool = False
    titles: tuple[str, ...] = ()  # its heading, whole and without what is no name
    lines: dict[str, int] = field(default_factory=dict[str, int])  # key -> line

    def line_of(self, key: str) -> int:
        """The line of a key, or of the heading where the key is not written."""
        return self.lines.get(key, self.line)

    @property
    def texts(self) -> list[Text]:
        """Everything in which placeholders are filled, but the command and the foreach."""
        single = (self.prompt, self.system, self.schema, self.model, self.output, self.evaluate)
        return [*filter(None, single), *self.requires, *self.produces, *(text for _, text in self.env)]
