"""The graph: which task waits for which, and which become ready, skipped or expandable when a task ends (PLAN-05).

Pure and incremental: ending a task touches the tasks that wait for it and nothing else, so the cost per task is the
same with 100 tasks and with 100,000.

    waiting --all dependencies satisfied--> ready --complete--> complete
       |                                      |-----fail------> failed
       |                                      |----cancel-----> cancelled (also from waiting)
       |                                      `-hold-> manual --release--> ready
       `--a dependency failed, was skipped or cancelled--> skipped

A dependency is satisfied when it is complete; for a task that `needs: done`, when it has ended in whatever way.

A foreach task is a **template**. When its dependencies are satisfied it is *expandable*: the caller reads the items
and calls `expand`. The template is complete when all its tasks are, and failed or skipped when all have ended and not
all well. Templates that follow each other item by item are expanded together from the same items; then task k waits
for the tasks of the other template with the same items, and there is no barrier between the two. These links are
not stored: they follow from the numbers of the items.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from watchbill.errors import IllegalTransition
from watchbill.plans.task import Needs, Task

__all__ = ["Changes", "Graph", "Node", "Stage", "nodes_of"]


class Stage(IntEnum):
    """Where a task is. What happens to a ready one (queued, running) is not the graph's business."""

    WAITING = 0
    READY = 1
    MANUAL = 2
    COMPLETE = 3
    FAILED = 4
    SKIPPED = 5
    CANCELLED = 6

    @property
    def has_ended(self) -> bool:
        """Whether nothing changes this stage any more."""
        return self >= Stage.COMPLETE


#: A template ends as the worst of its tasks.
_WORSE = (Stage.COMPLETE, Stage.SKIPPED, Stage.CANCELLED, Stage.FAILED)


class Node(NamedTuple):
    """A task as the graph sees it."""

    name: str
    depends_on: Sequence[str] = ()
    items_of: Sequence[str] = ()  # templates that this one follows item by item
    needs_done: bool = False
    is_template: bool = False
    batch_size: int = 1


@dataclass(slots=True)
class Changes:
    """What one event led to."""

    ready: list[str] = field(default_factory=list[str])
    expandable: list[str] = field(default_factory=list[str])
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # name, culprit


@dataclass(slots=True)
class _Family:
    """A template: what it follows, what follows it, and its tasks once it is expanded."""

    batch_size: int
    follows: list[int] = field(default_factory=list[int])
    followers: list[int] = field(default_factory=list[int])
    is_expanded: bool = False
    items: int = 0
    first: int = 0  # its tasks are `count` neighbours in the arrays, from here on
    count: int = 0
    open: int = 0
    worst: Stage = Stage.COMPLETE
    culprit: int = -1


class Graph:
    """All tasks of a batch. Names are checked by `check`; an unknown one raises KeyError."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        listed = list(nodes)
        self._names = [node.name for node in listed]
        self._index = {name: at for at, name in enumerate(self._names)}
        self._stage = bytearray(len(listed))
        self._needs_done = bytearray(node.needs_done for node in listed)
        self._waits = array("q", (len(set(node.depends_on)) + len(set(node.items_of)) for node in listed))
        self._parent = array("q", (-1 for _ in listed))
        self._dependents: dict[int, list[int]] = {}
        self._families: dict[int, _Family] = {}
        self._culprits: dict[int, int] = {}
        self._open = len(listed)
        self._link(listed)

    def _link(self, listed: Sequence[Node]) -> None:
        for at, node in enumerate(listed):
            if node.is_template:
                self._families[at] = _Family(node.batch_size)
            for name in dict.fromkeys(node.depends_on):
                self._dependents.setdefault(self._index[name], []).append(at)
        for at, node in enumerate(listed):
            for name in dict.fromkeys(node.items_of):
                self._families[at].follows.append(self._index[name])
                self._families[self._index[name]].followers.append(at)

    # ------------------------------------------------------------ questions

    def stage(self, name: str) -> Stage:
        """Where a task is."""
        return Stage(self._stage[self._index[name]])

    def culprit(self, name: str) -> str | None:
        """The task that failed or was cancelled, for which this one was skipped."""
        found = self._culprits.get(self._index[name])
        return None if found is None else self._names[found]

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def is_template(self, name: str) -> bool:
        """Whether the name is a foreach task, which has tasks and is none."""
        return self._index[name] in self._families

    @property
    def has_ended(self) -> bool:
        """Whether every task has ended."""
        return self._open == 0

    def counts(self) -> dict[Stage, int]:
        """How many tasks are in each stage; templates count only until they are expanded."""
        found = {stage: self._stage.count(stage) for stage in Stage}
        for at, family in self._families.items():
            if family.is_expanded:
                found[Stage(self._stage[at])] -= 1
        return found

    def group(self, name: str) -> list[str]:
        """The templates that are expanded together with this one, itself first."""
        found = [self._index[name]]
        seen = set(found)
        for at in found:
            family = self._families[at]
            for other in (*family.followers, *family.follows):
                if other not in seen and not self._families[other].is_expanded and not self._ended(other):
                    seen.add(other)
                    found.append(other)
        return [self._names[at] for at in found]

    # ------------------------------------------------------------ events

    def start(self) -> Changes:
        """What can begin at once."""
        changes = Changes()
        for at in range(len(self._names)):
            if not self._waits[at] and self._stage[at] == Stage.WAITING:
                self._awaken(at, changes)
        return changes

    def complete(self, name: str) -> Changes:
        """A ready task has succeeded."""
        return self._end(name, Stage.COMPLETE)

    def fail(self, name: str) -> Changes:
        """A ready task, or a template that cannot be expanded, has failed for good."""
        return self._end(name, Stage.FAILED)

    def cancel(self, name: str) -> Changes:
        """A task that has not ended is not wanted any more."""
        return self._end(name, Stage.CANCELLED)

    def hold(self, name: str) -> None:
        """A ready task waits for a person. Those that depend on it go on waiting."""
        self._move(name, Stage.READY, Stage.MANUAL)

    def release(self, name: str) -> None:
        """A person let the task go on."""
        self._move(name, Stage.MANUAL, Stage.READY)

    def expand(self, tasks: Mapping[str, Sequence[str]], items: int) -> Changes:
        """The items of a group of templates are known: for each template the names of its tasks."""
        changes = Changes()
        members = [self._index[name] for name in tasks]
        for at, names in zip(members, tasks.values(), strict=True):
            self._refuse_unless(not self._families[at].is_expanded and not self._ended(at), at, "expanded")
            self._grow(at, names, items)
        for at in members:
            self._set_waits(at)
        # Only when every member has its tasks: the first of them may end, and its followers must be there.
        for at in members:
            self._begin(at, changes)
        return changes

    # ------------------------------------------------------------ expansion

    def _grow(self, at: int, names: Sequence[str], items: int) -> None:
        family = self._families[at]
        if len(names) != -(-items // family.batch_size):
            raise IllegalTransition(f"{self._names[at]} has {len(names)} names for {items} items")
        family.is_expanded, family.items, family.first, family.count = (
            True,
            items,
            len(self._names),
            len(names),
        )
        family.open = len(names)
        for name in names:
            if name in self._index:
                raise IllegalTransition(f"there are two tasks {name}")
            self._index[name] = len(self._names)
            self._names.append(name)
        self._stage.extend(bytes(len(names)))
        self._needs_done.extend(bytes([self._needs_done[at]]) * len(names))
        self._parent.extend([at] * len(names))
        self._waits.extend([0] * len(names))
        self._open += len(names)

    def _set_waits(self, at: int) -> None:
        """How many tasks each new one waits for: those with its items, and one for all that its template waits for."""
        family = self._families[at]
        followed = [self._families[other] for other in family.follows if self._families[other].is_expanded]
        self._waits[at] -= sum(
            not self._ended(other) for other in family.follows if self._families[other].is_expanded
        )
        outside = int(self._waits[at] > 0)
        for number in range(family.count):
            tasks = sum(len(_with_items(family, number, other)) for other in followed)
            self._waits[family.first + number] = outside + tasks

    def _begin(self, at: int, changes: Changes) -> None:
        family = self._families[at]
        if not family.count and not self._ended(at) and not self._waits[at]:
            self._settle(at, Stage.COMPLETE, changes)
        for child in range(family.first, family.first + family.count):
            if not self._waits[child] and self._stage[child] == Stage.WAITING:
                self._awaken(child, changes)

    # ------------------------------------------------------------ ends

    def _end(self, name: str, stage: Stage) -> Changes:
        at = self._index[name]
        family = self._families.get(at)
        if family is not None and family.is_expanded:
            raise IllegalTransition(f"{name} is expanded: its tasks end, one by one")
        before = Stage(self._stage[at])
        can_expand = family is not None and before is Stage.WAITING and not self._waits[at]
        legal = before is Stage.READY or (stage is Stage.FAILED and can_expand)
        self._refuse_unless(
            legal or (stage is Stage.CANCELLED and not before.has_ended), at, stage.name.lower()
        )
        changes = Changes()
        self._settle(at, stage, changes)
        return changes

    def _settle(self, first: int, stage: Stage, changes: Changes) -> None:
        """Ends a task and everything that ends with it. A list of its own instead of recursion: chains may be long."""
        ends = [(first, stage, first)]
        while ends:
            at, stage, culprit = ends.pop()
            if self._ended(at):
                continue
            self._stage[at] = stage
            self._open -= 1
            if stage is Stage.SKIPPED:
                self._culprits[at] = culprit
                changes.skipped.append((self._names[at], self._names[culprit]))
            is_well = stage is Stage.COMPLETE
            for waiting in self._waiting_for(at):
                if is_well or self._needs_done[waiting]:
                    self._satisfy(waiting, changes, ends)
                else:
                    self._doom(waiting, culprit, ends)
            if self._parent[at] >= 0:
                self._count_down(self._parent[at], stage, culprit, ends)

    def _waiting_for(self, at: int) -> Iterable[int]:
        """The tasks and templates that wait for this one."""
        yield from self._dependents.get(at, ())
        family = self._families.get(at)
        if family is not None and not family.is_expanded:
            yield from family.followers  # it ended before it had tasks: its followers have nothing to follow
        parent = self._parent[at]
        if parent >= 0:
            own = self._families[parent]
            for follower in own.followers:
                other = self._families[follower]
                if other.is_expanded:
                    yield from _with_items(own, at - own.first, other)

    def _satisfy(self, at: int, changes: Changes, ends: list[tuple[int, Stage, int]]) -> None:
        self._waits[at] -= 1
        if self._waits[at] or self._stage[at] != Stage.WAITING:
            return
        family = self._families.get(at)
        if family is None or not family.is_expanded:
            self._awaken(at, changes)
            return
        if not family.count:
            ends.append((at, Stage.COMPLETE, at))
        for child in range(family.first, family.first + family.count):
            self._satisfy(child, changes, ends)

    def _doom(self, at: int, culprit: int, ends: list[tuple[int, Stage, int]]) -> None:
        family = self._families.get(at)
        if self._stage[at] != Stage.WAITING:
            return
        if family is None or not family.is_expanded or not family.count:
            ends.append((at, Stage.SKIPPED, culprit))
        else:
            ends.extend(
                (child, Stage.SKIPPED, culprit) for child in range(family.first, family.first + family.count)
            )

    def _count_down(self, at: int, stage: Stage, culprit: int, ends: list[tuple[int, Stage, int]]) -> None:
        """One task of a template has ended; the last one ends the template."""
        family = self._families[at]
        family.open -= 1
        if _WORSE.index(stage) > _WORSE.index(family.worst):
            family.worst, family.culprit = stage, culprit
        if not family.open:
            ends.append((at, family.worst, family.culprit if family.culprit >= 0 else at))

    # ------------------------------------------------------------ small steps

    def _awaken(self, at: int, changes: Changes) -> None:
        family = self._families.get(at)
        if family is None:
            self._stage[at] = Stage.READY
            changes.ready.append(self._names[at])
        elif not family.is_expanded:
            changes.expandable.append(self._names[at])

    def _move(self, name: str, before: Stage, after: Stage) -> None:
        at = self._index[name]
        self._refuse_unless(self._stage[at] == before, at, after.name.lower())
        self._stage[at] = after

    def _ended(self, at: int) -> bool:
        return self._stage[at] >= Stage.COMPLETE

    def _refuse_unless(self, is_legal: bool, at: int, what: str) -> None:
        if not is_legal:
            stage = Stage(self._stage[at]).name.lower()
            raise IllegalTransition(f"{self._names[at]} is {stage} and cannot become {what}")


def nodes_of(tasks: Iterable[Task]) -> list[Node]:
    """The tasks of a checked plan as nodes of a graph."""
    return [
        Node(
            task.name,
            [each.name for each in task.depends_on if not each.per_item],
            [each.name for each in task.depends_on if each.per_item],
            needs_done=task.needs is Needs.DONE,
            is_template=task.foreach is not None,
            batch_size=task.batch_size,
        )
        for task in tasks
    ]


def _with_items(family: _Family, number: int, other: _Family) -> range:
    """The tasks of the other template that have items of task `number` of this one."""
    first = number * family.batch_size
    last = min(first + family.batch_size, family.items) - 1
    return range(other.first + first // other.batch_size, other.first + last // other.batch_size + 1)
