"""Paths and models that a plan names, as the coordinator sees them: with their values, paths relative to the root.

Only an agent knows where its machine mounts the folder. What the coordinator reads or writes itself (a manifest, the
answer of a model) or looks for (what a task produces) is below the root, or it is not the coordinator's business.
"""

import glob
from collections.abc import Callable, Iterator

from watchbill.errors import OursError
from watchbill.fleet.folder import places
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.state.ledger import Ledger
from watchbill.plans.expand import item_of, values_of
from watchbill.plans.placeholders import Placeholder, fill, places_in

__all__ = ["manifest_path", "model_of", "output_path", "patterns_of", "text_of"]


def manifest_path(ledger: Ledger, text: str) -> str:
    """Where a manifest is. Raises OursError for a path outside, and for a placeholder without a value here."""
    return _filled(ledger, text, lambda place: _value(ledger, place))


def output_path(ledger: Ledger, task: str, text: str) -> str:
    """Where the answer of a task belongs. Raises OursError as `manifest_path` does."""
    return _filled(ledger, text, _values(ledger, task))


def model_of(ledger: Ledger, task: str) -> str:
    """The model that a task names; empty where it names none, or one that has no value: its agent says so."""
    try:
        return fill(ledger.spec(task).model, _values(ledger, task))
    except OursError:
        return ""


def text_of(ledger: Ledger, task: str, text: str) -> str:
    """A text of a task as far as the coordinator can fill it in; else as it stands in the plan."""
    try:
        return fill(text, _values(ledger, task))
    except OursError:
        return text


def _values(ledger: Ledger, task: str) -> Callable[[Placeholder], str]:
    """What placeholders mean in a task; of several items the first counts."""
    items = [item_of(each) for each in ledger.items(task)[:1]]
    return values_of(items[0] if items else None, lambda place: _value(ledger, place))


def patterns_of(ledger: Ledger, task: str, texts: tuple[str, ...]) -> Iterator[str]:
    """These paths of a task, for each of its items, as patterns; those that are not below the root are left out."""
    items = [item_of(text) for text in ledger.items(task)] or [None]
    for text in texts:
        for item in items:
            value_of = values_of(item, lambda place: _value(ledger, place))
            try:  # what comes from a value is no pattern
                yield _filled(ledger, text, lambda place, value_of=value_of: glob.escape(value_of(place)))
            except OursError:  # on a disk of the agent, or with a value that only the agent has
                continue


def _filled(ledger: Ledger, text: str, value_of: Callable[[Placeholder], str]) -> str:
    """What is relative is below the plan's folder, as in a command, also where the value of an input or an item is."""
    filled = fill(text, value_of)
    if not filled.startswith("/") and not _begins_below_root(ledger, text):
        filled = f"plans/{ledger.plan}/{filled}"
    places.refuse_outside(filled)
    return filled


def _begins_below_root(ledger: Ledger, text: str) -> bool:
    """Whether a path begins with a folder whose place in the root is known: a built-in, or an input that lies there."""
    offset, first = next(places_in(text), (-1, None))
    if offset != 0 or first is None or first.is_item:
        return False
    return first.name in _folders(ledger) or not isinstance(ledger.inputs.get(first.name), str)


def _folders(ledger: Ledger) -> dict[str, str]:
    """The built-ins that are folders, relative to the root."""
    return {
        "BATCH_PATH": places.batch_folder(ledger.plan, ledger.batch),
        "PLAN_PATH": f"plans/{ledger.plan}",
        "ROOT": ".",
    }


def _value(ledger: Ledger, place: Placeholder) -> str:
    """A built-in or an input, with paths relative to the root."""
    known: dict[str, object] = {**ledger.inputs, "BATCH_ID": ledger.batch, **_folders(ledger)}
    value = known.get(place.name)
    if isinstance(value, str):
        return value
    below = Fields(known).fields(place.name).text("below_root")
    if not below:
        raise OursError(f"{place} has no value here")
    return below
