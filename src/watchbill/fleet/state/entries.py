"""Journal entries: everything that a coordinator may write down about a batch, as types, and their form as lines.

The first line of each file is `Epoch`. A large plan or fan-out is written in parts before the entry that makes it
count, so that no line is too long and half of it counts for nothing:

    Epoch, Tasks..., Open, Items..., Names..., Expand, Issue, Accept | Fail | Lost | Revoke, Hold, Approve | Deny,
    Cancel, End
    Tasks..., Gone..., Reopen, Keep...

That a task is skipped is not written down: it follows from what its dependencies came to. Times (`at_ms`) are of the
coordinator's wall clock and for people: no decision depends on them. `clock_ms` is of the monotonic clock of the boot
that the last `Epoch` names, and is compared with times of the same boot only.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TypeVar, cast

from watchbill.fleet import limits
from watchbill.fleet.folder.results import End
from watchbill.fleet.folder.values import Fields, encode
from watchbill.fleet.folder.work import Work
from watchbill.plans.graph import Node
from watchbill.plans.summary import Outcome
from watchbill.plans.task import Place, TaskClass
from watchbill.quoting import quoted

__all__ = [
    "Accept", "Approve", "Cancel", "Cause", "Deny", "Ended", "Entry", "Epoch", "Expand", "Fail", "Gone", "Hold",
    "Issue", "Items", "Keep", "Lost", "Names", "Open", "Reopen", "Revoke", "Spec", "Tasks", "Timed", "decode",
    "encode_entry", "in_parts", "size_of_spec", "size_of_text",
]  # fmt: skip

_Part = TypeVar("_Part")


class Cause(Enum):
    """Why a coordinator takes a token back, or leaves a task to a person."""

    AGENT_DEAD = "agent_dead"
    UNSTARTED = "unstarted"  # the same, but it had more slips than slots: this one was claimed ahead
    UNREADABLE = "unreadable"  # the slip was empty after a power cut
    CANCELLED = "cancelled"
    REOPENED = "reopened"  # a task that it depends on runs again
    LOSSES = "losses"  # it may be what kills the agents
    STUCK = "stuck"  # neither abort nor kill had an effect
    APPROVAL = "approval"  # permissions.toml does not allow its command


@dataclass(frozen=True, slots=True)
class Spec:
    """A task as the plan declared it when the batch was opened; the plan may change later, this does not."""

    node: Node
    task_class: TaskClass = TaskClass.CPU
    place: Place | None = None  # the array of a foreach
    line: int = 0  # in plan.md
    priority: int | None = None
    vram_mb: int = 0
    attempts: int = 3
    for_brain: bool = False
    model: str = ""
    work: Work = field(default_factory=Work)
    scripts: Mapping[str, object] = field(default_factory=dict[str, object])  # file of the plan -> sha256
    manifest: str = ""  # the sha256 of the file of a foreach where the plan's author wrote it

    def fields(self) -> dict[str, object]:
        node = self.node
        place = None if self.place is None else [self.place.file, *self.place.path]
        return {
            "name": node.name, "depends_on": list(node.depends_on), "items_of": list(node.items_of),
            "needs_done": node.needs_done, "batch_size": node.batch_size, "place": place, "line": self.line,
            "class": self.task_class.value, "priority": self.priority, "vram_mb": self.vram_mb,
            "attempts": self.attempts, "brain": self.for_brain, "model": self.model, "work": self.work.fields(),
            "scripts": self.scripts, **({"manifest": self.manifest} if self.manifest else {}),
        }  # fmt: skip

    @classmethod
    def of(cls, fields: Fields) -> "Spec":
        place = fields.texts("place")
        node = Node(
            fields.text("name"), fields.texts("depends_on"), fields.texts("items_of"), fields.flag("needs_done"),
            bool(place), fields.whole("batch_size", 1),
        )  # fmt: skip
        return cls(
            node, TaskClass(fields.text("class")), Place(place[0], place[1:]) if place else None,
            fields.whole("line"), fields.optional_whole("priority"), fields.whole("vram_mb"),
            fields.whole("attempts", 3), fields.flag("brain"), fields.text("model"), Work.of(fields.fields("work")),
            fields.mapping("scripts"), fields.text("manifest"),
        )  # fmt: skip


# ------------------------------------------------------------------ the entries


@dataclass(frozen=True, slots=True)
class Epoch:
    """A coordinator begins. What earlier epochs wrote counts up to these bytes; an epoch that is not listed wrote
    nothing that counts."""

    epoch: int
    after: Mapping[int, int]
    fleet: str = ""  # the id in the marker of its folder: a copy in another fleet is told by it
    boot: str = ""  # of its machine
    clock_ms: int = 0  # when it took the batch up


@dataclass(frozen=True, slots=True)
class Tasks:
    """A part of the plan."""

    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """The batch is open, with all tasks of the parts before."""

    plan: str
    inputs: Mapping[str, object]
    priority: int
    goal: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Gone:
    """A part of the complete tasks of which a declared file is gone when the batch is reopened, each with that file."""

    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reopen:
    """A batch goes on: with the tasks of the parts before or, without parts, with those it had.

    What it came to before counts for a task only when `Keep` says so. With `again` only these tasks, and those that
    depend on them, are to run again.
    """

    request: str  # the id of the request: one that is found twice is obeyed once
    again: tuple[str, ...]
    inputs: Mapping[str, object]
    priority: int
    goal: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Keep:
    """What these tasks came to before the batch was reopened counts."""

    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A part of the items of a fan-out, each as JSON."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """A part of the names that the tasks of a template get, in the order of the items."""

    template: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expand:
    """These templates have the items and the tasks of the parts before."""

    templates: tuple[str, ...]
    sha256: str  # of the manifest


@dataclass(frozen=True, slots=True)
class Issue:
    """A token: this attempt of the task, on the slip of this name."""

    task: str
    attempt: int
    name: str
    vram_mb: int = 0
    avoid: tuple[str, ...] = ()
    since: int = 0  # with several items: those that this attempt and later ones have done are not repeated


@dataclass(frozen=True, slots=True)
class Accept:
    """The attempt's result is the task's."""

    task: str
    attempt: int
    agent: str
    ms: int = 0
    peak_vram_mb: int = 0
    at_ms: int = 0
    peak_rss_mb: int = 0
    is_unscored: bool = False  # its plan wants it evaluated, and no evaluation succeeded


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed. Another one follows after the delay, unless this is final."""

    task: str
    attempt: int
    agent: str
    end: End
    rc: int | None = None
    tail: str = ""
    is_final: bool = False
    is_counted: bool = True  # as one of the attempts that the task has
    delay_ms: int = 0
    vram_mb: int = 0  # of the next attempt
    avoid: tuple[str, ...] = ()
    at_ms: int = 0
    ms: int = 0
    clock_ms: int = 0  # when the coordinator decided it: the delay begins


@dataclass(frozen=True, slots=True)
class Lost:
    """The agent says that nothing will come of this attempt, and that the task is not to blame."""

    task: str
    attempt: int
    agent: str
    end: End = End.LOST


@dataclass(frozen=True, slots=True)
class Revoke:
    """The coordinator takes the token back."""

    task: str
    attempt: int
    cause: Cause
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """The task waits for a person."""

    task: str
    cause: Cause
    agent: str = ""
    text: str = ""  # what the person has to know
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Approve:
    """A person let the task go on, with the command that this is the digest of (`approving`)."""

    task: str
    who: str = ""
    digest: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Deny:
    """A person does not let the task go on: it has failed."""

    task: str
    who: str = ""
    reason: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """The batch is not wanted any more: whatever has not ended is cancelled."""

    # Its id: one that is found twice is obeyed once, or it would cancel a batch that goes on since.
    request: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The batch has ended."""

    outcome: Outcome
    at_ms: int = 0


#: Entries that say when they were written.
Timed = Open | Reopen | Accept | Fail | Hold | Approve | Deny | Ended
Entry = (
    Epoch | Tasks | Open | Gone | Reopen | Keep | Items | Names | Expand | Issue | Accept | Fail | Lost | Revoke | Hold
    | Approve | Deny | Cancel | Ended
)  # fmt: skip


# ------------------------------------------------------------------ lines


def encode_entry(entry: Entry) -> dict[str, object]:
    """The line of an entry: its kind, and its fields by their names."""
    line: dict[str, object] = {"e": type(entry).__name__.lower()}
    for each in fields(entry):
        line[each.name] = _plain(cast("object", getattr(entry, each.name)))
    return line


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return cast("object", value.value)
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        return [part.fields() if isinstance(part, Spec) else part for part in parts]
    return value


def decode(line: Fields) -> Entry:
    """Read a line. Raises ValueError for one that this version does not know: a batch is not replayed in part."""
    kind = line.text("e")
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"a journal has an entry {quoted(kind)}, which this version does not know")
    return reader(line)


def in_parts(values: Iterable[_Part], size_of: Callable[[_Part], int]) -> Iterator[tuple[_Part, ...]]:
    """Values in groups that are not too long for a line."""
    group: list[_Part] = []
    size = 0
    for value in values:
        group.append(value)
        size += size_of(value)
        if size >= limits.JOURNAL_PART_BYTES_MAX:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def size_of_spec(spec: Spec) -> int:
    """How many bytes of a line a task takes."""
    return len(encode(spec.fields()))


def size_of_text(text: str) -> int:
    """How many bytes of a line a text takes."""
    return len(json.dumps(text))


def _epoch(line: Fields) -> Epoch:
    after = line.fields("after")
    believed = {int(key): after.whole(key) for key in after.all() if key.isdigit()}
    return Epoch(line.whole("epoch"), believed, line.text("fleet"), line.text("boot"), line.whole("clock_ms"))


def _tasks(line: Fields) -> Tasks:
    specs = (cast("dict[str, object]", each) for each in line.items("specs") if isinstance(each, dict))
    return Tasks(tuple(Spec.of(Fields(each)) for each in specs))


def _token(line: Fields) -> tuple[str, int]:
    return line.text("task"), line.whole("attempt")


def _fail(line: Fields) -> Fail:
    return Fail(
        *_token(line), line.text("agent"), End(line.text("end")), line.optional_whole("rc"), line.text("tail"),
        line.flag("is_final"), line.flag("is_counted"), line.whole("delay_ms"), line.whole("vram_mb"),
        line.texts("avoid"), line.whole("at_ms"), line.whole("ms"), line.whole("clock_ms"),
    )  # fmt: skip


def _reopen(line: Fields) -> Reopen:
    return Reopen(
        line.text("request"), line.texts("again"), line.mapping("inputs"), line.whole("priority", 3),
        line.text("goal"), line.whole("at_ms"),
    )  # fmt: skip


_READERS: dict[str, Callable[[Fields], Entry]] = {
    "epoch": _epoch,
    "tasks": _tasks,
    "open": lambda line: Open(
        line.text("plan"),
        line.mapping("inputs"),
        line.whole("priority", 3),
        line.text("goal"),
        line.whole("at_ms"),
    ),
    "gone": lambda line: Gone({task: str(path) for task, path in line.mapping("files").items()}),
    "reopen": _reopen,
    "keep": lambda line: Keep(line.texts("tasks")),
    "items": lambda line: Items(line.texts("items")),
    "names": lambda line: Names(line.text("template"), line.texts("names")),
    "expand": lambda line: Expand(line.texts("templates"), line.text("sha256")),
    "issue": lambda line: Issue(
        *_token(line), line.text("name"), line.whole("vram_mb"), line.texts("avoid"), line.whole("since")
    ),
    "accept": lambda line: Accept(
        *_token(line),
        line.text("agent"),
        line.whole("ms"),
        line.whole("peak_vram_mb"),
        line.whole("at_ms"),
        line.whole("peak_rss_mb"),
        line.flag("is_unscored"),
    ),
    "fail": _fail,
    "lost": lambda line: Lost(*_token(line), line.text("agent"), End(line.text("end"))),
    "revoke": lambda line: Revoke(*_token(line), Cause(line.text("cause")), line.text("agent")),
    "hold": lambda line: Hold(
        line.text("task"),
        Cause(line.text("cause")),
        line.text("agent"),
        line.text("text"),
        line.whole("at_ms"),
    ),
    "approve": lambda line: Approve(
        line.text("task"), line.text("who"), line.text("digest"), line.whole("at_ms")
    ),
    "deny": lambda line: Deny(line.text("task"), line.text("who"), line.text("reason"), line.whole("at_ms")),
    "cancel": lambda line: Cancel(line.text("request")),
    "ended": lambda line: Ended(Outcome(line.text("outcome")), line.whole("at_ms")),
}
