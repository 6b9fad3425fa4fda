"""Device health: whether a card is in a state in which nothing new should be loaded onto it (RES-27, FLEET-04)."""

from watchbill.catalog import Device
from watchbill.probes import Reading

__all__ = ["constraint"]

#: Where neither the config nor the card itself names a temperature.
TEMPERATURE_C_MAX = 85.0
#: A card that draws all of its own power limit is working, not ailing; only a limit that the config sets counts.


def constraint(device: Device, reading: Reading, ours: int = 0) -> str | None:
    """Why nothing new should be loaded there, or None when all is well. It recovers by itself.

    `ours` is what our own models hold there: they leave when another one is to come, so a card that they fill is not
    ailing. Counted as use it would keep every swap from happening.
    """
    health = reading.health
    if health is None:
        return None
    if health.temperature_c is not None:
        limit = device.max_temp_c or health.slowdown_c or TEMPERATURE_C_MAX
        if health.temperature_c >= limit:
            return f"{health.temperature_c:.0f} C, and its limit is {limit:.0f} C"
    used = 100 * (1 - (reading.available + ours) / reading.capacity) if reading.capacity else 0.0
    if used >= device.max_vram_percent:
        return f"others use {used:.0f} % of its memory, and its limit is {device.max_vram_percent:.0f} %"
    if device.max_power_w is not None and health.power_w is not None and health.power_w >= device.max_power_w:
        return f"{health.power_w:.0f} W, and its limit is {device.max_power_w:.0f} W"
    return None
