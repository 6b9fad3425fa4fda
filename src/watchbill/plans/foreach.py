"""Foreach before the start: whether the file of a foreach has the items that its tasks use (PLAN-03, PLAN-04).

Only a file in the plan's folder that no task of the plan writes can be read before anything runs. Where the task waits
for others, one of them may still write the file without a word of it in the plan: then a mistake is a note, no error.
"""

import errno
import itertools
from collections.abc import Callable, Iterable, Sequence

from watchbill.errors import OursError
from watchbill.plans import limits
from watchbill.plans.expand import Item, items_at, values_of
from watchbill.plans.findings import Findings, shown
from watchbill.plans.named_files import Made
from watchbill.plans.placeholders import Placeholder
from watchbill.plans.task import Place, Task
from watchbill.suggest import nearest

__all__ = ["ContentOf", "check_manifests"]

#: The first bytes of a file of the plan's folder, by its path in it. Raises OSError.
ContentOf = Callable[[str, int], bytes]
#: The placeholders of a task with their lines.
PlacesOf = Callable[[Task], Iterable[tuple[int, Placeholder]]]

_PLAN_PATH = "{PLAN_PATH}/"
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})


def check_manifests(
    tasks: Sequence[Task], places_of: PlacesOf, content_of: ContentOf, findings: Findings
) -> None:
    """Look at the file of each foreach, as far as it is known now."""
    looping = [task for task in tasks if task.foreach is not None]
    made = Made(tasks, lambda place: "." if place.name == "PLAN_PATH" else None) if looping else ()
    read: dict[Place, list[Item] | None] = {}
    for task in looping:
        place = _in_folder(task, findings)
        if place is None or place.file in made:
            continue
        if place not in read:
            read[place] = _items(task, place, content_of, findings)
        items = read[place]
        if items is not None:
            _check_fields(task, items, place, places_of(task), findings)


def _in_folder(task: Task, findings: Findings) -> Place | None:
    """The place of a foreach in the plan's folder; None for another one, with a note where it cannot be there."""
    assert task.foreach is not None
    file = task.foreach.file.removeprefix(_PLAN_PATH).removeprefix("./")
    if "{BATCH_" in file and not task.depends_on:
        says = f"{shown(file)} is not there when a batch begins"
        findings.note(
            task.line_of("foreach"), f"{says}, and {shown(task.name)} waits for no task that writes it"
        )
    is_elsewhere = "{" in file or file.startswith(("/", "~")) or ".." in file.split("/")
    return None if is_elsewhere else Place(file, task.foreach.path)


def _items(task: Task, place: Place, content_of: ContentOf, findings: Findings) -> list[Item] | None:
    bytes_max = limits.PLAN_MANIFEST_CHECKED_BYTES_MAX
    try:
        content = content_of(place.file, bytes_max + 1)
        return None if len(content) > bytes_max else items_at(content, place)
    except OursError as error:
        _say(task, task.line_of("foreach"), error.what, error.hint, findings)
    except OSError as error:
        if error.errno in _NOT_THERE or error.errno is None:
            _say_missing(task, place, findings)
        else:
            why = f"{shown(place.file)} cannot be read: {error.strerror}"
            _say(task, task.line_of("foreach"), why, "foreach takes a file", findings)
    return None


def _say_missing(task: Task, place: Place, findings: Findings) -> None:
    says = f"{shown(place.file)} is not in the plan's folder"
    if task.depends_on:
        findings.note(
            task.line_of("foreach"),
            f"{says} yet",
            f"a task that {shown(task.name)} waits for has to write it; say so there with produces: {place.file}",
        )
    else:
        hint = "add the file, correct its path, or name the task that writes it in depends_on"
        findings.wrong(task.line_of("foreach"), f"{says}, and {shown(task.name)} waits for no task", hint)


def _check_fields(
    task: Task, items: list[Item], place: Place, places: Iterable[tuple[int, Placeholder]], findings: Findings
) -> None:
    """Look whether the items have the fields that the task uses; the first item without one is named."""
    used = {each: line for line, each in reversed(list(places)) if each.is_item and each.fields}
    for wanted, line in used.items():
        for number, item in enumerate(itertools.islice(items, limits.PLAN_ITEMS_CHECKED_MAX), start=1):
            try:
                values_of(item, str, where=f"item {number} of {shown(str(place))}")(wanted)
            except OursError as error:
                _say(task, line, error.what, _nearest_field(wanted, item), findings)
                break


def _nearest_field(wanted: Placeholder, item: Item) -> str:
    names = [str(name) for name in item] if isinstance(item, dict) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  JSON
    near = nearest(wanted.fields[0], names)
    if near:
        return f"did you mean {{ITEM.{near}}}?"
    return "name a field that every item has" if names else "write {ITEM} for the item itself"


def _say(task: Task, line: int, text: str, hint: str, findings: Findings) -> None:
    if task.depends_on:
        findings.note(line, f"{text}, as it is now", hint)
    else:
        findings.wrong(line, text, hint)
