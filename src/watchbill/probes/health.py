"""Device health: whether a card is in a state in which it takes no loads (RES-27, FLEET-04).

The limits are 85 C, 95 % of its memory used by other programs, and the card's own power limit, unless the config sets
others. A card that throttles because of heat or its supply is over its limit, too. A card that was over a limit counts
as healthy again only with a margin below it: at the limit itself its state would change at every reading.
"""

from watchbill.catalog import Device
from watchbill.core.messages import Constraint, Trouble
from watchbill.probes import CardHealth, Reading

__all__ = ["constraint"]

#: The limit where the config sets no temperature.
TEMPERATURE_C_MAX = 85.0
#: How far below its limit a card must be before it counts as healthy again.
TEMPERATURE_C_MARGIN = 4.0
VRAM_PERCENT_MARGIN = 2.0
POWER_SHARE_MARGIN = 0.05
#: Throttle reasons other than load. A card at its power cap is only busy.
AILING = frozenset({"hardware slowdown", "software thermal", "hardware thermal", "power brake"})


def constraint(
    device: Device, reading: Reading, ours: int = 0, before: Constraint | None = None
) -> Constraint | None:
    """Why the card takes no loads, or None when it is healthy. It recovers by itself.

    `ours` is the memory of our own models there. They leave when another one is to be loaded, so a card that they fill
    is healthy; counting it as use would prevent every swap. `before` is the result of the previous reading.
    """
    if reading.health is None:
        return None
    was = before.trouble if before is not None else None
    return (
        _heat(device, reading.health, was)
        or _memory(device, reading, ours, was)
        or _power(device, reading.health, was)
        or _throttled(reading.health)
    )


def _heat(device: Device, health: CardHealth, was: Trouble | None) -> Constraint | None:
    limit = device.max_temp_c or TEMPERATURE_C_MAX
    bound = limit - TEMPERATURE_C_MARGIN if was is Trouble.HEAT else limit
    if health.temperature_c is None or health.temperature_c < bound:
        return None
    return Constraint(Trouble.HEAT, health.temperature_c, limit)


def _memory(device: Device, reading: Reading, ours: int, was: Trouble | None) -> Constraint | None:
    limit = device.max_vram_percent
    bound = limit - VRAM_PERCENT_MARGIN if was is Trouble.MEMORY else limit
    free = min(reading.capacity, reading.available + ours)
    used = 100 * (1 - free / reading.capacity) if reading.capacity else 0.0
    return Constraint(Trouble.MEMORY, used, limit) if used >= bound else None


def _power(device: Device, health: CardHealth, was: Trouble | None) -> Constraint | None:
    limit = device.max_power_w or health.power_limit_w
    if limit is None or health.power_w is None:
        return None
    bound = limit * (1 - POWER_SHARE_MARGIN) if was is Trouble.POWER else limit
    # A busy card draws up to its limit: only one that draws more is over it.
    is_over = (
        health.power_w >= bound if device.max_power_w or was is Trouble.POWER else health.power_w > bound
    )
    return Constraint(Trouble.POWER, health.power_w, limit) if is_over else None


def _throttled(health: CardHealth) -> Constraint | None:
    why = tuple(reason for reason in health.throttled if reason in AILING)
    return Constraint(Trouble.THROTTLED, 0.0, 0.0, why) if why else None
