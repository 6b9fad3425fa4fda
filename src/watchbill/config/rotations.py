"""Background tasks, rotation and epochs between the config's tables and the catalog."""

import shlex
from collections.abc import Iterator

from watchbill import catalog
from watchbill.config.document import Document, ModelTable
from watchbill.config.draft import Draft
from watchbill.config.locate import KeyPath
from watchbill.config.problems import Wrong, did_you_mean
from watchbill.config.rotation_table import AUTO, OFF, RotationTable
from watchbill.units import Millis, spell_millis

__all__ = [
    "build_background",
    "build_epochs",
    "build_rotation",
    "check_rotation",
    "idle_of",
    "settle_rotation",
]

#: RES-16: a slow heartbeat, longer than the five minutes after which an idle model leaves.
EVERY = Millis(720_000)
EVERY_MAX = Millis(7_200_000)
IDLE = Millis(300_000)


def settle_rotation(document: Document) -> RotationTable:
    """The same table with its interval: without any task there is nothing to take turns at, and no silence."""
    table = document.rotation
    works = any(model.background is not None for model in document.models.values())
    every = table.every if table.every is not None else EVERY if works else OFF
    longest = table.max if table.max is not None else Millis(max(EVERY_MAX, _millis(every)))
    return table.model_copy(update={"every": every, "max": longest})


def idle_of(table: ModelTable) -> Millis:
    """RES-07: how long a model stays without use."""
    return IDLE if table.idle is None else table.idle


def _millis(value: Millis | str | None) -> Millis:
    """A duration; nothing for a word."""
    return value if isinstance(value, int) else Millis(0)


# ------------------------------------------------------------------ what is wrong


def check_rotation(draft: Draft) -> Iterator[Wrong]:
    """Everything that is wrong about background tasks, their turns, and epochs."""
    for name, table in draft.document.models.items():
        yield from _check_task(name, table)
    yield from _check_interval(draft)
    yield from _check_order(draft)
    yield from _check_epochs(draft)


def _check_task(name: str, table: ModelTable) -> Iterator[Wrong]:
    task, path = table.background, ("models", name, "background")
    if task is None:
        return
    if task.prompt is None and task.command is None:
        yield path, "says nothing to do", 'add prompt = "..." or command = "..."'
    if task.prompt is not None and table.embedding:
        yield (*path, "prompt"), "a model for embeddings cannot be asked", "use a command alone"
    try:
        shlex.split(task.command or "")
    except ValueError as error:
        yield (*path, "command"), f"cannot be split into words: {str(error).lower()}", "mend its quotes"


def _check_interval(draft: Draft) -> Iterator[Wrong]:
    rotation, said = draft.document.rotation, draft.keys_at("rotation")
    every = _millis(rotation.every)
    if not every or not draft.is_sound("rotation") or not draft.is_sound("models"):
        return
    if "every" in said and not _tasks(draft.document):
        text = "no model has a background task, so nothing would ever run"
        yield ("rotation", "every"), text, 'give a model background = { prompt = "..." }, or remove it'
    if rotation.max is not None and rotation.max < every:
        yield ("rotation", "max"), f"is shorter than every, {spell_millis(every)}", "make it longer"
    idle, model = max(
        ((idle_of(table), name) for name, table in draft.document.models.items() if not table.permanent),
        default=(Millis(0), ""),
    )
    if every <= idle:
        at: KeyPath = ("rotation", "every") if "every" in said else ("models", model, "idle")
        text = (
            f"the rotation's interval of {spell_millis(every)} does not exceed the idle time of {model}, "
            f"{spell_millis(idle)}: models would come and go without rest"
        )
        yield at, text, f"let [rotation] every be more than {spell_millis(idle)}, or models idle for less"


def _tasks(document: Document) -> list[str]:
    return [name for name, table in document.models.items() if table.background is not None]


def _check_order(draft: Draft) -> Iterator[Wrong]:
    order, tasks = draft.document.rotation.order, _tasks(draft.document)
    for place, name in enumerate(order):
        path = ("rotation", "order", place)
        if not draft.knows("models", name):
            yield path, f"there is no model {name}", did_you_mean(name, sorted(draft.names("models")))
        elif name not in tasks and draft.is_sound("models", name):
            yield path, f"{name} has no background task", "give it one, or remove it here"
        elif name in order[:place]:
            yield path, f"names {name} twice", "remove one"
    missing = [name for name in tasks if order and name not in order]
    if missing:
        text = f"leaves out {', '.join(missing)}, so that this background task would never run"
        yield ("rotation", "order"), text, "add it, or remove its task"


def _check_epochs(draft: Draft) -> Iterator[Wrong]:
    for name, table in draft.document.epochs.items():
        path = ("epochs", name)
        if not table.models:
            yield (*path, "models"), "must not be empty", "name at least one model"
        for place, model in enumerate(table.models):
            if not draft.knows("models", model):
                hint = did_you_mean(model, sorted(draft.names("models")))
                yield (*path, "models", place), f"there is no model {model}", hint
        if table.window >= table.every:
            key = "window" if "window" in draft.keys_at(*path) else "every"
            text = f"a window of {spell_millis(table.window)} every {spell_millis(table.every)} never closes"
            yield (*path, key), text, "make window shorter than every"


# ------------------------------------------------------------------ the catalog's records


def build_background(table: ModelTable) -> catalog.BackgroundTask | None:
    """A model's own work."""
    task = table.background
    return None if task is None else catalog.BackgroundTask(task.prompt, task.command)


def build_rotation(table: RotationTable) -> catalog.RotationRules:
    """The rules of a table that was settled and found right."""
    silence = table.silence
    return catalog.RotationRules(
        every_ms=_millis(table.every) or None,
        max_ms=table.max or EVERY_MAX,
        order=table.order,
        silence_ms=None if silence in (AUTO, OFF) else _millis(silence),
        silence=silence != OFF,
    )


def build_epochs(document: Document) -> dict[str, catalog.Epoch]:
    """Every window."""
    return {
        name: catalog.Epoch(name, table.models, table.window, table.every, table.priority)
        for name, table in document.epochs.items()
    }
