"""`[rotation]`, `[epochs.NAME]` and the background tasks of models: work that Watchbill schedules by itself.

Models with a background task take turns when nothing else wants the memory. An epoch is a window in which ingestion
work goes before other background work. How the interval and the order agree with the models is checked in `across`.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from watchbill import catalog, units
from watchbill.config.checks import Draft, Wrong
from watchbill.config.values import Duration, Line, ModelName, Priority, Table, Written, refused
from watchbill.errors import UnitError
from watchbill.toml import KeyPath
from watchbill.units import Millis, spell_millis

__all__ = [
    "BackgroundTable", "EpochTable", "RotationTable", "build_background", "build_epoch", "build_rotation",
    "check_epochs", "check_task", "interval_of", "settle_rotation",
]  # fmt: skip

# ------------------------------------------------------------------ the tables


OFF, AUTO = "off", "auto"


def _duration_or(*words: str) -> Callable[[object], Millis | str]:
    """Reads a duration above zero, or one of these words."""
    either = " or ".join(f'"{word}"' for word in words)

    def read(value: object) -> Millis | str:
        if isinstance(value, str) and value in words:
            return value
        if not isinstance(value, str | int | float):
            raise refused("must be a duration", f"write for example 12m in quotes, or {either}")
        try:
            found = units.parse_millis(value)
        except UnitError as error:
            raise refused(error.what, f"{error.hint}, or {either}") from error
        if found <= 0:
            raise refused("must be longer than nothing", f"write for example 12m, or {either}")
        return found

    return read


_OR_DURATION = {"type": ["string", "number"]}
_Interval = Annotated[
    Millis | str,
    BeforeValidator(_duration_or(OFF)),
    WithJsonSchema({**_OR_DURATION, "description": 'a duration: 12m, or "off"'}),
    Written(units.spell_millis),
]
_Silence = Annotated[
    Millis | str,
    BeforeValidator(_duration_or(AUTO, OFF)),
    WithJsonSchema({**_OR_DURATION, "description": 'a duration: 30m, or "auto", or "off"'}),
    Written(units.spell_millis),
]


class BackgroundTable(Table):
    """The background task of a model, run in its turn: a prompt, a command, or both."""

    prompt: Line | None = Field(
        default=None,
        description="The prompt. {output} is replaced by the command's output, which otherwise follows the prompt.",
        examples=["Verify the last operation."],
    )
    command: Line | None = Field(
        default=None,
        description="Run first, with the model's address in $WATCHBILL_MODEL_URL and its name in $WATCHBILL_MODEL.",
        examples=["last-op --json"],
    )


class RotationTable(Table):
    """Background rotation: models with a background task take turns while no request needs the memory."""

    every: _Interval | None = Field(
        default=None,
        description="One turn of one model in this time, longer than any model's idle time: 12m where a model has a "
        'background task. "off": no turns.',
        examples=["12m"],
    )
    max: Duration | None = Field(
        default=None,
        ge=1,
        description="While loading takes longer than the work the interval doubles up to this: 2h, or `every` where "
        "that is longer.",
        examples=["2h"],
    )
    order: tuple[ModelName, ...] = Field(
        default=(), strict=False, description="The order of turns; by name otherwise."
    )
    silence: _Silence = Field(
        default=AUTO,
        description="Raise an alert when nothing was loaded, served or done for this long. "
        '"auto": the present interval and a minute. "off": never.',
    )


class EpochTable(Table):
    """A window in which ingestion work is served before other background work, so that it cannot starve."""

    models: tuple[ModelName, ...] = Field(
        strict=False, description="The models whose background work it is.", examples=[["embedder"]]
    )
    window: Duration = Field(default=Millis(600_000), ge=1, description="The longest duration of a window.")
    every: Duration = Field(default=Millis(3_600_000), ge=1, description="Opens this often when work waits.")
    priority: Priority = Field(
        default=3, description="The least urgent priority of its work inside the window."
    )


# ------------------------------------------------------------------ defaults

#: RES-16: a slow heartbeat, longer than the five minutes after which an idle model leaves.
EVERY = Millis(720_000)
EVERY_MAX = Millis(7_200_000)


def settle_rotation(table: RotationTable, *, has_tasks: bool) -> RotationTable:
    """The same table with its interval. Without any task there is nothing to take turns at, and no silence."""
    every = table.every if table.every is not None else EVERY if has_tasks else OFF
    longest = table.max if table.max is not None else Millis(max(EVERY_MAX, _millis(every)))
    return table.model_copy(update={"every": every, "max": longest})


def interval_of(table: RotationTable) -> Millis:
    """The time between two turns; 0 when there are none."""
    return _millis(table.every)


def _millis(value: Millis | str | None) -> Millis:
    """A duration; nothing for a word."""
    return value if isinstance(value, int) else Millis(0)


# ------------------------------------------------------------------ checks


def check_task(path: KeyPath, task: BackgroundTable, *, is_embedding: bool) -> Iterator[Wrong]:
    """What is wrong about a model's own task, which stands at this path."""
    if task.prompt is None and task.command is None:
        yield path, "says nothing to do", 'add prompt = "..." or command = "..."'
    if task.prompt is not None and is_embedding:
        yield (*path, "prompt"), "a model for embeddings cannot be asked", "use a command alone"
    try:
        shlex.split(task.command or "")
    except ValueError as error:
        yield (*path, "command"), f"cannot be split into words: {str(error).lower()}", "fix its quotes"


def check_epochs(epochs: Mapping[str, EpochTable], draft: Draft) -> Iterator[Wrong]:
    """Windows for no model, and windows that never close."""
    for name, table in epochs.items():
        path = ("epochs", name)
        if not table.models:
            yield (*path, "models"), "must not be empty", "name at least one model"
        if table.window >= table.every:
            key = "window" if "window" in draft.keys_at(*path) else "every"
            text = f"a window of {spell_millis(table.window)} every {spell_millis(table.every)} never closes"
            yield (*path, key), text, "make window shorter than every"


# ------------------------------------------------------------------ the catalog's records


def build_background(task: BackgroundTable | None) -> catalog.BackgroundTask | None:
    """A model's own work."""
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


def build_epoch(name: str, table: EpochTable) -> catalog.Epoch:
    """One window."""
    return catalog.Epoch(name, table.models, table.window, table.every, table.priority)
