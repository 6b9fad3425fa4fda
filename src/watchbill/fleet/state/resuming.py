"""Resuming: which tasks of a reopened batch keep what they came to, and why the others run again. Pure.

A task keeps its end when it was complete and is still the same: its command and everything else that the plan says of
its work, the files of the plan that it names, the inputs that it uses, its items; and when the files that it declares
are still there. A task without items also has to
follow those it depends on: when one of them ran again, so does the task. A task of a fan-out gets what it works on by
its item, so it follows only the tasks of the same item: a manifest that was made anew repeats no item that is in it
unchanged. The items themselves stay frozen as long as no task before the fan-out ran again, and the author of the
plan has not changed the file that they are in.

When single tasks are asked for (`plan retry`), tasks that failed and were not asked for keep that end, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from watchbill.fleet.state.entries import (
    Cause,
    Entry,
    Expand,
    Items,
    Keep,
    Names,
    Revoke,
    Spec,
    in_parts,
    size_of_text,
)
from watchbill.fleet.state.ledger import Effect, Former, Ledger, Phase
from watchbill.plans.placeholders import places_in

__all__ = ["Change", "Reason", "carry_over", "first_that_counts", "reason_of", "reason_of_waiting", "strays"]

_ENDS = (Phase.COMPLETE, Phase.FAILED, Phase.MANUAL)
#: How long a task may take says nothing about what it does.
_BOUNDS = frozenset({"timeout_ms", "soft_stop"})


class Change(Enum):
    """Why a task of a reopened batch runs, or does not."""

    KEPT = "kept"  # it was complete, and nothing changed
    LEFT = "left"  # it did not complete, and was not asked for
    NEW = "new"
    NOT_COMPLETE = "not complete"
    ASKED = "asked for"
    WORK = "its definition changed"
    SCRIPT = "a file of the plan changed"
    INPUT = "an input changed"
    ITEMS = "its items changed"
    PRODUCED = "a file that it made is gone"
    DEPENDENCY = "a task it depends on runs again"
    WAITS = "waits for its dependencies"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a task runs again or does not, with the file, the input, the task or the former state that it is about."""

    change: Change
    about: str = ""

    @property
    def is_kept(self) -> bool:
        return self.change in (Change.KEPT, Change.LEFT)

    def __str__(self) -> str:
        return f"{self.change.value}: {self.about}" if self.about else self.change.value


def reason_of(ledger: Ledger, task: str) -> Reason:
    """Why a task whose dependencies have ended runs again, or does not."""
    former = ledger.former.get(task)
    if former is None:
        return Reason(Change.NEW)
    is_complete = former.phase is Phase.COMPLETE
    if task in ledger.again or (ledger.template_of(task) in ledger.again and not is_complete):
        return Reason(Change.ASKED)
    if former.phase not in _ENDS or not (is_complete or ledger.again):
        return Reason(Change.NOT_COMPLETE, former.phase.value)
    changed = _changed(ledger, task, former)
    if changed is not None:
        return changed
    if is_complete and task in ledger.gone:
        return Reason(Change.PRODUCED, ledger.gone[task])
    return Reason(Change.KEPT) if is_complete else Reason(Change.LEFT, former.phase.value)


def first_that_counts(ledger: Ledger, task: str) -> int:
    """The attempt from which on items of a task with several are not repeated once they are done; 0 for other tasks.

    The next attempt begins with the first item when it is about other work than the last one, and when the task was
    complete: then a person, or what it depends on, wants all of it again.
    """
    if len(ledger.items(task)) < 2:
        return 0
    state, former = ledger.state(task), ledger.former.get(task)
    itself = state.attempt + 1
    if former is None or (state.since and state is not former.state):  # not the first attempt of this round
        return state.since or itself
    is_same = former.phase is not Phase.COMPLETE and _changed(ledger, task, former) is None
    return (is_same and former.state.since) or itself


def reason_of_waiting(ledger: Ledger, task: str) -> Reason:
    """Why a task is not judged yet: it waits for others, or for the items in a file that has changed."""
    spec = ledger.spec(task)
    if spec.place is not None and _is_manifest_changed(ledger, spec):
        return Reason(Change.ITEMS, spec.place.file)
    return Reason(Change.WAITS)


def _is_manifest_changed(ledger: Ledger, spec: Spec) -> bool:
    """Whether the author of the plan has changed the file of a foreach since its items were read."""
    former = ledger.former_items.get(spec.node.name)
    return former is not None and former.spec.manifest not in ("", spec.manifest)


def _changed(ledger: Ledger, task: str, former: Former) -> Reason | None:
    spec = ledger.spec(task)
    if _what_is_run(spec) != _what_is_run(former.spec):
        return Reason(Change.WORK)
    # A file that was not there before is one that the batch made: the command, which names it, is the same.
    for path in sorted(former.spec.scripts.keys()):
        if spec.scripts.get(path) != former.spec.scripts.get(path):
            return Reason(Change.SCRIPT, path)
    for name in sorted(_inputs_of(spec)):
        if ledger.inputs.get(name) != former.inputs.get(name):
            return Reason(Change.INPUT, name)
    if ledger.items(task) != former.items:
        return Reason(Change.ITEMS)
    again = next(_ran_before(ledger, task), None)
    return None if again is None else Reason(Change.DEPENDENCY, again)


def _what_is_run(spec: Spec) -> dict[str, object]:
    return {key: value for key, value in spec.work.fields().items() if key not in _BOUNDS}


def _inputs_of(spec: Spec) -> set[str]:
    return {place.name for text in _texts(spec.work.fields()) for _, place in places_in(text)}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():  # pyright: ignore[reportUnknownVariableType]  JSON
            yield from _texts(each)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(each)  # pyright: ignore[reportUnknownArgumentType]


def _ran_before(ledger: Ledger, task: str) -> Iterator[str]:
    """The dependencies of a task that ran in this round, or whose tasks are others than before."""
    if ledger.template_of(task) != task:
        yield from (each for each in ledger.followed(task) if not _stands(ledger, each))
        return
    yield from _ran(ledger, ledger.spec(task).node.depends_on)


def _ran(ledger: Ledger, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        former = ledger.former_items.get(name)
        tasks = ledger.tasks_of(name)
        if former is None and not tasks:
            if not _stands(ledger, name):
                yield name
        elif former is None or tuple(tasks) != former.names:
            yield name
        else:
            yield from (each for each in tasks if not _stands(ledger, each))


def _stands(ledger: Ledger, task: str) -> bool:
    """Whether a task is what it was: its end is kept, or it was skipped and is skipped again."""
    former = ledger.former.get(task)
    was_skipped = former is not None and former.phase is Phase.SKIPPED
    return task in ledger.kept or (was_skipped and ledger.phase(task) is Phase.SKIPPED)


def carry_over(ledger: Ledger, effect: Effect, apply: Callable[[Entry], Effect]) -> list[Effect]:
    """Apply the entries for what became ready or expandable and need not run, or not be read, again.

    Returns the effect and all that followed from it. Items are carried over when everything that is kept without them
    is kept: a template that is skipped, because a task that failed stays failed, gets no items. A batch that was never
    reopened has nothing to carry over.
    """
    effects = [effect]
    if not ledger.requests:
        return effects
    templates: list[str] = []
    seen = 0
    while seen < len(effects) or templates:
        if seen < len(effects):
            effects += [apply(entry) for entry in _kept(ledger, effects[seen])]
            templates += effects[seen].expandable
            seen += 1
        elif not ledger.is_expanded(template := templates.pop(0)):
            effects += [apply(entry) for entry in _frozen(ledger, template)]
    return effects


def _kept(ledger: Ledger, effect: Effect) -> list[Entry]:
    """The entries by which tasks that became ready keep what they came to."""
    ready = [task for task in effect.ready if ledger.phase(task) is Phase.READY]
    kept = [task for task in ready if reason_of(ledger, task).is_kept]
    return [Keep(part) for part in in_parts(kept, size_of_text)]


def strays(ledger: Ledger) -> list[Entry]:
    """The entries that take tokens back from tasks which have to wait in this round, because one that they depend on
    runs again: what they come to now does not count. To be asked for when all that is kept was carried over."""
    if not ledger.requests:
        return []
    return [
        Revoke(task, ledger.state(task).attempt, Cause.REOPENED)
        for task in ledger.by_token.values()
        if ledger.has_to_wait(task)
    ]


def _frozen(ledger: Ledger, template: str) -> list[Entry]:
    """The entries by which a template, and those that follow it, get the tasks they had; none where they change."""
    group = ledger.group(template)
    former = [ledger.former_items.get(spec.node.name) for spec in group]
    first = former[0]
    if first is None or next(_ran(ledger, group[0].node.depends_on), None) is not None:
        return []
    if any(_is_manifest_changed(ledger, spec) for spec in group):
        return []
    for spec, found in zip(group, former, strict=True):
        if found is None or found.items != first.items or found.spec.place != spec.place:
            return []
        if found.spec.node.batch_size != spec.node.batch_size:
            return []
    entries: list[Entry] = [Items(part) for part in in_parts(first.items, size_of_text)]
    for spec, found in zip(group, former, strict=True):
        assert found is not None
        entries += [Names(spec.node.name, part) for part in in_parts(found.names, size_of_text)]
    return [*entries, Expand(tuple(spec.node.name for spec in group), sha256="")]
