"""The tables of work that Watchbill schedules by itself: background tasks, their rotation, and ingestion epochs."""

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from watchbill import units
from watchbill.config.fields import Duration, Line, ModelName, Priority, Written, refused
from watchbill.config.table import Table
from watchbill.errors import UnitError
from watchbill.units import Millis

__all__ = ["AUTO", "OFF", "BackgroundTable", "EpochTable", "RotationTable"]

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
            what, _, hint = str(error).partition("; ")
            raise refused(what, f"{hint}, or {either}") from error
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
    """What a model does by itself when it is its turn: a prompt, a command, or both."""

    prompt: Line | None = Field(
        default=None,
        description="What it is asked. {output} stands for what the command wrote; it follows the prompt otherwise.",
        examples=["Verify the last operation."],
    )
    command: Line | None = Field(
        default=None,
        description="Run first, with the model's address in $WATCHBILL_MODEL_URL and its name in $WATCHBILL_MODEL.",
        examples=["last-op --json"],
    )


class RotationTable(Table):
    """Background rotation: models with a background task take turns when nobody else wants the memory."""

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
        default=(), strict=False, description="Whose turn follows whose; by name otherwise."
    )
    silence: _Silence = Field(
        default=AUTO,
        description='Nothing loaded, served or done for this long is an alarm. "auto": the present interval and a '
        'minute. "off": never.',
    )


class EpochTable(Table):
    """A window in which ingestion work goes before other background work, so that it cannot wait for ever."""

    models: tuple[ModelName, ...] = Field(
        strict=False, description="Whose background work it is.", examples=[["embedder"]]
    )
    window: Duration = Field(default=Millis(600_000), ge=1, description="Lasts so long at the most.")
    every: Duration = Field(default=Millis(3_600_000), ge=1, description="Opens this often when work waits.")
    priority: Priority = Field(
        default=3, description="The least urgent priority of its work inside the window."
    )
