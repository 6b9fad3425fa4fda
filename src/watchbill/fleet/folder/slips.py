"""Slips: the small files that tasks are on the board. A slip's name says who may take it, its body what to do.

    P-SSSSSSSSSS-CLASS-vMIB-MODEL-BATCH-TASK.aN[.for-AGENT].json

Priority 1 to 5, the coordinator's sequence number, class, MiB of GPU memory, model or "_", batch, task, attempt, and
the one agent it is for, if it is for one. Sorted by name is sorted by order. An agent decides by the name alone
whether it can run a task; the coordinator never takes a name apart, because the journal says which name it gave.

A body holds what an agent needs and nothing else. Placeholders are still in it: the agent, not the coordinator, puts
paths into commands, because every machine may mount the folder elsewhere.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from watchbill.fleet import limits
from watchbill.fleet.folder.values import Fields, fields_of
from watchbill.fleet.folder.work import Work
from watchbill.names import file_stem
from watchbill.plans.task import TaskClass

__all__ = ["Headline", "Slip", "asks_for_model", "headline_of", "is_of", "slip_name"]

_NAME = re.compile(
    r"([1-5])-(\d{10})-(cpu|script|llm|meta)-v(\d{1,8})-(.+)\.a([1-9]\d{0,6})(?:\.for-([A-Za-z0-9-]+))?\.json"
)
#: How much of a name its parts may take, in bytes: together with the rest less than SLIP_NAME_BYTES_MAX.
_MODEL_BYTES, _BATCH_BYTES, _TASK_BYTES = 32, 40, 56
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Headline:
    """What the name of a slip says: enough to decide whether to take it."""

    priority: int
    sequence: int
    task_class: TaskClass
    vram_mb: int
    attempt: int
    addressee: str  # "" for a slip that every agent may take


def slip_name(headline: Headline, *, model: str, batch: str, task: str) -> str:
    """The name of a slip. Parts that are too long are cut, with a digest; the sequence number keeps names apart."""
    addressed = f".for-{headline.addressee}" if headline.addressee else ""
    return (
        f"{headline.priority}-{headline.sequence:010}-{headline.task_class.value}-v{headline.vram_mb}"
        f"-{_cut(model, _MODEL_BYTES) if model else '_'}-{_cut(batch, _BATCH_BYTES)}-{_cut(task, _TASK_BYTES)}"
        f".a{headline.attempt}{addressed}.json"
    )


@functools.lru_cache(maxsize=limits.SLIP_NAMES_READ_MAX)
def headline_of(name: str) -> Headline | None:
    """Read a slip's name; None for a file that is no slip."""
    match = _NAME.fullmatch(name)
    if match is None or len(name) > limits.SLIP_NAME_BYTES_MAX:
        return None
    return Headline(
        int(match[1]), int(match[2]), TaskClass(match[3]), int(match[4]), int(match[6]), match[7] or ""
    )


def is_of(name: str, batch: str) -> bool:
    """Whether a slip may be of a batch, as its name tells."""
    return f"-{_cut(batch, _BATCH_BYTES)}-" in name


def asks_for_model(name: str, models: Iterable[str]) -> bool:
    """Whether a slip asks for one of these models, or for any. Names are joined with "-", so that "a" is also taken for
    "a-b": the body decides."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    stems = ("_", *(_cut(model, _MODEL_BYTES) for model in models))
    return match[5].startswith(tuple(f"{stem}-" for stem in stems))


def _cut(text: str, bytes_max: int) -> str:
    stem = file_stem(text)
    if len(stem) <= bytes_max:
        return stem
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{stem[: bytes_max - _DIGEST_CHARS - 1]}-{digest}"


@dataclass(frozen=True, slots=True)
class Slip:
    """What an agent is to do: the token, and the task as its plan and its items have it."""

    task: str
    batch: str
    plan: str
    attempt: int
    epoch: int
    vram_mb: int
    avoid: tuple[str, ...]  # agents that give this slip back
    inputs: Mapping[str, object]
    items: tuple[str, ...]  # each as JSON, spelled as in the manifest
    work: Work
    approved: str = ""  # the digest of what a person let run (`approving`)
    since: int = 0  # the items that this attempt and later ones have done are not repeated

    def encode(self) -> bytes:
        """The content of the file."""
        fields = {
            "format": 1, "task": self.task, "batch": self.batch, "plan": self.plan, "attempt": self.attempt,
            "epoch": self.epoch, "vram_mb": self.vram_mb, "avoid": self.avoid, "inputs": self.inputs,
            "items": self.items, "approved": self.approved, **({"since": self.since} if self.since else {}),
            **self.work.fields(),
        }  # fmt: skip
        return json.dumps(fields).encode() + b"\n"  # with an indent Python takes ten times as long

    @classmethod
    def decode(cls, content: bytes) -> "Slip":
        """Read the file. Raises ValueError: after a power cut it may be empty, and any program may have written it."""
        fields = fields_of(content)
        if fields.whole("format") != 1 or not fields.text("task") or not fields.whole("attempt"):
            raise ValueError("it is not a slip of format 1")
        return cls(
            fields.text("task"), fields.text("batch"), fields.text("plan"), fields.whole("attempt"),
            fields.whole("epoch"), fields.whole("vram_mb"), fields.texts("avoid"), fields.mapping("inputs"),
            fields.texts("items"), Work.of(_work_of(fields)), fields.text("approved"),
            fields.whole("since"),
        )  # fmt: skip


_OWN = frozenset(
    {
        "format", "task", "batch", "plan", "attempt", "epoch", "vram_mb", "avoid", "inputs", "items", "approved",
        "since",
    }
)  # fmt: skip


def _work_of(fields: Fields) -> Fields:
    return Fields({key: value for key, value in fields.all().items() if key not in _OWN})
