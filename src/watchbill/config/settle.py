"""Settling: the defaults that depend on other keys, written out as if the operator had.

A document that is settled says everything: its devices are all there, its lanes have their times. `config show`
prints it and `build` copies it. Changes nothing that was given.
"""

from collections.abc import Iterable

from watchbill.catalog import DEFAULT_LANE, RAM
from watchbill.config.document import DeviceTable, Document, LaneTable, ModelTable
from watchbill.config.rotations import settle_rotation
from watchbill.config.spools import settle_spool
from watchbill.units import Bytes, Millis

__all__ = ["GPU_DEFAULTS", "RAM_RESERVE", "asleep_of", "devices_of", "memory_of", "settle"]

#: `[devices.gpu]` is no device but the defaults of all GPUs.
GPU_DEFAULTS = "gpu"
#: RES-04: what other services on the machine need to live.
RAM_RESERVE = Bytes(2 * 2**30)
#: RES-11 and LANE-04.
INTERACTIVE_MAX_WAIT = Millis(120_000)
OTHER_MAX_WAIT = Millis(900_000)
TIMEOUT = Millis(600_000)
FALLBACK_TIMEOUT = Millis(45_000)


def settle(document: Document) -> Document:
    """The same document with every default that depends on other keys filled in."""
    models = {
        name: table.model_copy(update={"devices": devices_of(table)})
        for name, table in document.models.items()
    }
    lanes = {DEFAULT_LANE: LaneTable(), **document.lanes}
    return document.model_copy(
        update={
            "devices": _settle_devices(document.devices, models.values()),
            "models": models,
            "lanes": {name: _settle_lane(table) for name, table in lanes.items()},
            "rotation": settle_rotation(document),
            "spool": {name: settle_spool(name, table) for name, table in document.spool.items()},
        }
    )


def devices_of(table: ModelTable) -> tuple[str, ...]:
    """The devices a model needs: as said, else those of its memory table, else the machine's memory."""
    if table.devices is not None:
        return table.devices
    return tuple(table.memory) if isinstance(table.memory, dict) and table.memory else (RAM,)


def memory_of(table: ModelTable) -> dict[str, Bytes]:
    """What a model declares for each device; empty when it leaves that to prediction and measurement."""
    if isinstance(table.memory, dict):
        return table.memory
    if table.memory is not None:
        return {devices_of(table)[0]: table.memory}
    if table.script is not None and table.script.memory:
        return {devices_of(table)[0]: table.script.memory}
    return {}


def asleep_of(table: ModelTable) -> dict[str, Bytes]:
    """What a model declares to keep on each device when it sleeps."""
    if isinstance(table.asleep, dict):
        return table.asleep
    return {} if table.asleep is None else {devices_of(table)[0]: table.asleep}


def _settle_devices(given: dict[str, DeviceTable], models: Iterable[ModelTable]) -> dict[str, DeviceTable]:
    devices = {RAM: DeviceTable(), **given}
    defaults = devices.pop(GPU_DEFAULTS, None)
    if defaults is not None:
        for name in sorted({name for table in models for name in table.devices or ()}):
            devices.setdefault(name, DeviceTable())
    return {name: _settle_device(name, table, defaults) for name, table in devices.items()}


def _settle_device(name: str, table: DeviceTable, defaults: DeviceTable | None) -> DeviceTable:
    if name != RAM and defaults is not None:
        said = {key: getattr(defaults, key) for key in defaults.model_fields_set - table.model_fields_set}
        table = table.model_copy(update=said)
    if table.reserve is None:
        table = table.model_copy(update={"reserve": RAM_RESERVE if name == RAM else Bytes(0)})
    return table


def _settle_lane(table: LaneTable) -> LaneTable:
    max_wait = INTERACTIVE_MAX_WAIT if table.work_class == "interactive" else OTHER_MAX_WAIT
    timeout = TIMEOUT if table.fallback is None else FALLBACK_TIMEOUT
    return table.model_copy(
        update={
            "max_wait": max_wait if table.max_wait is None else table.max_wait,
            "timeout": timeout if table.timeout is None else table.timeout,
        }
    )
