"""Foreach before the start: whether the file of a foreach has the items that its tasks use (PLAN-03, PLAN-04).

Only a file that no task of the plan writes can be read before anything runs: one in the plan's folder, or the one that
an input names. Where the task waits for others, one of them may still write the file without a word of it in the plan,
and a default counts only unless the input is set: then a mistake is a note, no error.

The coordinator reads the file: one outside of the shared folder is never found, also where the submitter has it.
"""

import errno
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from watchbill.errors import OursError
from watchbill.plans import limits
from watchbill.plans.expand import Item, items_at, values_of
from watchbill.plans.findings import Findings, shown
from watchbill.plans.inputs import BUILT_INS
from watchbill.plans.named_files import Made
from watchbill.plans.placeholders import Placeholder, fill, places_in
from watchbill.plans.task import Place, Task
from watchbill.suggest import nearest

__all__ = ["ContentOf", "InputValues", "check_manifests"]

#: The first bytes of a file, by its path in the plan's folder or by an absolute one. Raises OSError.
ContentOf = Callable[[str, int], bytes]
#: The placeholders of a task with their lines.
PlacesOf = Callable[[Task], Iterable[tuple[int, Placeholder]]]

_PLAN_PATH = "{PLAN_PATH}/"
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class InputValues:
    """The inputs as far as they are known: those that were given, and defaults that may still be replaced."""

    given: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, str] = field(default_factory=dict[str, str])
    root: PurePosixPath | None = None  # the shared folder, where it is known: inputs may name files below it

    def of(self, name: str) -> str | None:
        """The value of an input; None where it is not known."""
        return self.given.get(name, self.defaults.get(name))


@dataclass(frozen=True, slots=True)
class _Looked:
    """A foreach whose file is looked at, and why a mistake in it may still go away."""

    task: Task
    place: Place
    unless: str = ""  # the input whose default names the file

    @property
    def doubt(self) -> str:
        """In words; "" where a mistake is certain."""
        if self.unless:
            return f"with the default of {self.unless}"
        return "as the file is now" if self.task.depends_on else ""


def check_manifests(
    tasks: Sequence[Task],
    places_of: PlacesOf,
    content_of: ContentOf,
    findings: Findings,
    inputs: InputValues | None = None,
) -> None:
    """Look at the file of each foreach, as far as it is known now."""
    values = inputs or InputValues()
    looping = [task for task in tasks if task.foreach is not None]
    made = (
        Made(tasks, lambda place: "." if place.name == "PLAN_PATH" else values.of(place.name))
        if looping
        else ()
    )
    read: dict[Place, list[Item] | None] = {}
    for task in looping:
        looked = _by_input(task, values) or _in_folder(task, findings)
        if looked is None or _strays(looked, values, findings) or looked.place.file in made:
            continue
        if looked.place not in read:
            read[looked.place] = _items(looked, content_of, findings)
        items = read[looked.place]
        if items is not None:
            _check_fields(looked, items, places_of(task), findings)


def _by_input(task: Task, values: InputValues) -> _Looked | None:
    """The foreach whose file an input names; None for another one, and for a file that is not known now."""
    assert task.foreach is not None
    text = task.foreach.file.removeprefix(_PLAN_PATH)
    names = [place.name for _, place in places_in(text)]
    known = {name: value for name in names if (value := values.of(name)) is not None}
    if not names or len(known) < len(set(names)) or any(name in BUILT_INS for name in names):
        return None
    file = fill(text, lambda place: known[place.name]).removeprefix("./")
    unless = next((name for name in names if name not in values.given), "")
    return _Looked(task, Place(file, task.foreach.path), unless)


def _in_folder(task: Task, findings: Findings) -> _Looked | None:
    """The foreach whose file is in the plan's folder; None for another one, with a note where it cannot be there."""
    assert task.foreach is not None
    file = task.foreach.file.removeprefix(_PLAN_PATH).removeprefix("./")
    if "{BATCH_" in file and not task.depends_on:
        says = f"{shown(file)} is not there when a batch begins"
        findings.note(
            task.line_of("foreach"), f"{says}, and {shown(task.name)} waits for no task that writes it"
        )
    return None if "{" in file else _Looked(task, Place(file, task.foreach.path))


def _strays(looked: _Looked, values: InputValues, findings: Findings) -> bool:
    """Whether a path leads to no file that the coordinator could read; then a finding says so."""
    file, says, hint = looked.place.file, "", "put the file into the plan's folder, or name it below {ROOT}"
    path = PurePosixPath(file)
    below = _below(values.root, path) if path.is_absolute() else ""
    if not file:
        says, hint = f"the foreach of {shown(looked.task.name)} names no file", "set the input that names it"
    elif "\0" in file:
        says = f"{shown(file)} is no path"
    elif file.startswith(("~", "$")):
        says = f"{shown(file)} in foreach is no path: only a shell knows what it stands for"
    elif below or (path.is_absolute() and values.root is None):
        if _is_by_input(looked):  # it is stored relative to the shared folder
            return False
        says = f"{shown(file)} may be elsewhere on other machines"
        hint = f"write {{ROOT}}/{below}" if below else hint
    elif ".." in path.parts:  # it may well lead to a file of another plan
        says = f"{shown(file)} leads upwards, and the coordinator reads the file of a foreach by a path without `..`"
    elif path.is_absolute():
        says = f"{shown(file)} is outside of the shared folder, and the coordinator reads the file of a foreach there"
    if not says:
        return False
    if looked.unless:
        findings.note(looked.task.line_of("foreach"), f"{looked.doubt}, {says}", hint)
    else:
        findings.wrong(looked.task.line_of("foreach"), says, hint)
    return True


def _is_by_input(looked: _Looked) -> bool:
    assert looked.task.foreach is not None
    return looked.task.foreach.file.startswith("{")


def _below(root: PurePosixPath | None, path: PurePosixPath) -> str:
    """A path relative to the shared folder; "" where it is not in it, or where that is not known."""
    is_below = root is not None and ".." not in path.parts and path.is_relative_to(root)
    return str(path.relative_to(root)) if root is not None and is_below else ""


def _items(looked: _Looked, content_of: ContentOf, findings: Findings) -> list[Item] | None:
    task, place = looked.task, looked.place
    bytes_max = limits.PLAN_MANIFEST_CHECKED_BYTES_MAX
    try:
        content = content_of(place.file, bytes_max + 1)
        return None if len(content) > bytes_max else items_at(content, place)
    except OursError as error:
        _say(looked, task.line_of("foreach"), error.what, error.hint, findings)
    except OSError as error:
        if error.errno in _NOT_THERE or error.errno is None:
            _say_missing(looked, findings)
        else:
            why = f"{shown(place.file)} cannot be read: {error.strerror}"
            _say(looked, task.line_of("foreach"), why, "foreach takes a file", findings)
    return None


def _say_missing(looked: _Looked, findings: Findings) -> None:
    task, place = looked.task, looked.place
    says = f"{shown(place.file)} is not " + (
        "there" if place.file.startswith("/") else "in the plan's folder"
    )
    if looked.unless:
        hint = f"add the file, or correct the default of {looked.unless}"
        findings.note(
            task.line_of("foreach"),
            f"{says}, and {shown(task.name)} reads it unless {looked.unless} is set",
            hint,
        )
    elif task.depends_on:
        findings.note(
            task.line_of("foreach"),
            f"{says} yet",
            f"a task that {shown(task.name)} waits for has to write it; say so there with produces: {place.file}",
        )
    else:
        hint = "add the file, correct its path, or name the task that writes it in depends_on"
        findings.wrong(task.line_of("foreach"), f"{says}, and {shown(task.name)} waits for no task", hint)


def _check_fields(
    looked: _Looked, items: list[Item], places: Iterable[tuple[int, Placeholder]], findings: Findings
) -> None:
    """Look whether the items have the fields that the task uses; the first item without one is named."""
    used = {each: line for line, each in reversed(list(places)) if each.is_item and each.fields}
    for wanted, line in used.items():
        for number, item in enumerate(itertools.islice(items, limits.PLAN_ITEMS_CHECKED_MAX), start=1):
            try:
                values_of(item, str, where=f"item {number} of {shown(str(looked.place))}")(wanted)
            except OursError as error:
                _say(looked, line, error.what, _nearest_field(wanted, item), findings)
                break


def _nearest_field(wanted: Placeholder, item: Item) -> str:
    names = [str(name) for name in item] if isinstance(item, dict) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  JSON
    near = nearest(wanted.fields[0], names)
    if near:
        return f"did you mean {{ITEM.{near}}}?"
    return "name a field that every item has" if names else "write {ITEM} for the item itself"


def _say(looked: _Looked, line: int, text: str, hint: str, findings: Findings) -> None:
    if looked.doubt:
        findings.note(line, f"{looked.doubt}, {text}", hint)
    else:
        findings.wrong(line, text, hint)
