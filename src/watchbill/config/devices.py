"""`[devices.NAME]`: memory domains, host RAM and one for each GPU.

`[devices.gpu]` is no device but holds the defaults of all GPUs. With it, a GPU that a model names exists without a
table of its own.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field

from watchbill import catalog
from watchbill.catalog import RAM
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong
from watchbill.config.values import Count, Line, ModelName, Size, Table
from watchbill.units import Bytes, spell_bytes

__all__ = [
    "GPU_DEFAULTS", "HEALTH_KEYS", "UNNAMED_CARD", "DeviceTable", "ReservationTable", "build_device", "check_devices",
    "is_device_name",
    "room_of", "settle_devices",
]  # fmt: skip

# ------------------------------------------------------------------ the tables

#: `[devices.gpu]`: the defaults of all GPUs.
GPU_DEFAULTS = "gpu"
#: Stands for cards that the file does not name.
UNNAMED_CARD = "gpu:*"
#: Limits of a card's health; nothing on `ram` measures them.
HEALTH_KEYS = frozenset({"max_temp_c", "max_vram_percent", "max_power_w"})

Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class ReservationTable(Table):
    """Memory kept free for one small model that stays through every swap."""

    model: ModelName = Field(description="The model it is kept for.", examples=["lexicon"])
    memory: Size = Field(description="How much.", examples=["2GiB"])


class DeviceTable(Table):
    """A memory domain: `ram`, or one GPU as `"gpu:0"`. `[devices.gpu]` holds defaults for all GPUs."""

    capacity: Size | None = Field(
        default=None,
        ge=1,
        description="A cap on the device's memory; the machine's own figure otherwise.",
        examples=["15GB"],
    )
    reserve: Size | None = Field(
        default=None,
        description="Left free for everything else on the machine: 2GiB on ram, 0B on a GPU.",
        examples=["2GiB"],
    )
    budget: Share = Field(default=1.0, description="The part of the capacity that may be used.")
    max_resident: Count | None = Field(
        default=None, description="At most this many models at a time.", examples=[2]
    )
    parallel_loads: int = Field(default=1, ge=1, le=limits.PARALLEL_LOADS_MAX, description="Loads at a time.")
    protect: tuple[Line, ...] = Field(
        default=(),
        strict=False,
        description="Processes to raise an alert about when they die.",
        examples=[["routx"]],
    )
    reservation: ReservationTable | None = Field(default=None, description="Memory kept for a core model.")
    max_temp_c: float | None = Field(
        default=None,
        gt=0,
        le=150,
        allow_inf_nan=False,
        description="A hotter card takes no new model; 85 unless set.",
        examples=[85],
    )
    max_vram_percent: float = Field(
        default=95.0,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="No loads while other programs use more than this share of VRAM.",
    )
    max_power_w: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="A card that draws more takes no new model; its own limit unless set.",
        examples=[140],
    )


# ------------------------------------------------------------------ names and defaults

_DEVICE = re.compile(r"ram|gpu:(?:0|[1-9][0-9]{0,2})")
#: RES-04: what other services on the machine need to live.
RAM_RESERVE = Bytes(2 * 2**30)


def is_device_name(text: str) -> bool:
    """Whether the text names a memory domain: ram, or gpu:0 and so on."""
    return _DEVICE.fullmatch(text) is not None


def settle_devices(given: dict[str, DeviceTable], named: Iterable[str]) -> dict[str, DeviceTable]:
    """Every device with its reserve: `ram`, those of the file and, where GPUs have defaults, those that models name."""
    devices = {RAM: DeviceTable(), **given}
    defaults = devices.pop(GPU_DEFAULTS, None)
    if defaults is not None:
        for name in sorted(set(named)):
            devices.setdefault(name, DeviceTable())
    return {name: _settle_device(name, table, defaults) for name, table in devices.items()}


def _settle_device(name: str, table: DeviceTable, defaults: DeviceTable | None) -> DeviceTable:
    if name != RAM and defaults is not None:
        said = {key: getattr(defaults, key) for key in defaults.model_fields_set - table.model_fields_set}
        table = table.model_copy(update=said)
    if table.reserve is None:
        table = table.model_copy(update={"reserve": RAM_RESERVE if name == RAM else Bytes(0)})
    return table


def room_of(table: DeviceTable | None) -> int | None:
    """What the file itself leaves for models on a device; None when it sets no capacity."""
    if table is None or table.capacity is None:
        return None
    return max(0, int(table.capacity * table.budget) - (table.reserve or 0))


# ------------------------------------------------------------------ checks


def check_devices(devices: dict[str, DeviceTable], draft: Draft) -> Iterator[Wrong]:
    """Names that are no device, limits that nothing measures, and a reserve that leaves nothing."""
    for name in draft.names("devices"):
        if name != GPU_DEFAULTS and not is_device_name(name):
            hint = 'write ram, gpu for the defaults of all GPUs, or "gpu:0"'
            yield ("devices", name), "is not a device", hint
    for key in sorted(HEALTH_KEYS & draft.keys_at("devices", RAM)):
        yield ("devices", RAM, key), "is a limit of cards; ram has no such figure", "remove it"
    for name, table in devices.items():
        too_much = table.capacity is not None and (table.reserve or 0) >= table.capacity * table.budget
        if table.capacity is not None and too_much and draft.is_sound("devices"):
            text = f"leaves nothing of the capacity of {spell_bytes(table.capacity)}"
            yield ("devices", name, "reserve"), text, "make it smaller"


# ------------------------------------------------------------------ the catalog's record


def build_device(name: str, table: DeviceTable) -> catalog.Device:
    """The record of a table that was settled and found right."""
    kept = table.reservation
    return catalog.Device(
        name,
        capacity=table.capacity,
        reserve=table.reserve or Bytes(0),
        share=table.budget,
        max_resident=table.max_resident,
        parallel_loads=table.parallel_loads,
        protect=table.protect,
        reservation=catalog.Reservation(kept.model, kept.memory) if kept else None,
        max_temp_c=table.max_temp_c,
        max_vram_percent=table.max_vram_percent,
        max_power_w=table.max_power_w,
    )
