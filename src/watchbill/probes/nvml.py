"""NVIDIA cards through NVML: memory, the processes that hold it, heat, power and throttling.

The library (`nvidia-ml-py`, extra `gpu`) is imported when the probe is created, never before. An idle card shows some
600 MiB as used that belong to the driver: capacity here is the total less that reserve, so that a card's free memory
and its capacity agree. The first query of a kind costs 2 ms, later ones 10-40 us, the list of processes 0.2 ms. A
driver that hangs is handled by `patient`.

A value that a card does not report (a laptop without a power sensor, a virtual GPU without its process list) is None or
empty, never an error; a card that cannot even report its memory fails the probe.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from watchbill.probes import CardHealth, ProbeError, Reading
from watchbill.units import Bytes, Millis

__all__ = ["NvmlProbe", "load_nvml"]

T = TypeVar("T")
#: NVML's throttle bits, in our words. Idling and a clock set by the operator are not among them.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
THRESHOLD_SHUTDOWN, THRESHOLD_SLOWDOWN = 0, 1
SENSOR_GPU, CLOCK_SM = 0, 1


class Nvml(Protocol):
    """The part of `pynvml` that is used. Handles and structures are the library's own."""

    NVMLError: type[Exception]
    nvmlMemory_v2: Any

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: Any = ...) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]: ...
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int: ...
    def nvmlDeviceGetTemperatureThreshold(self, handle: Any, which: int) -> int: ...
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int: ...
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int: ...
    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int: ...


def load_nvml() -> Nvml | None:
    """The library, or None where the extra is not installed."""
    try:
        return cast("Nvml", importlib.import_module("pynvml"))
    except ImportError:
        return None


class NvmlProbe:
    """All cards of this machine as `gpu:0`, `gpu:1` and so on. Raises ProbeError when there is no driver."""

    def __init__(self, nvml: Nvml, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise ProbeError(f"no NVIDIA driver: {error}") from error
        self._thresholds: dict[int, tuple[float | None, float | None]] = {}
        self._uuids: dict[int, str] = {}
        self._titles: dict[int, str] = {}

    def read(self) -> Mapping[str, Reading]:
        """The reading of every card that answers. Raises ProbeError when none does."""
        found: dict[str, Reading] = {}
        why: Exception | None = None
        try:
            for index in range(self._nvml.nvmlDeviceGetCount()):
                try:
                    found[f"gpu:{index}"] = self._card(index, self._nvml.nvmlDeviceGetHandleByIndex(index))
                except self._nvml.NVMLError as error:
                    # A card that fell off its bus says `GPU is lost` until the machine is restarted. The others serve.
                    why = error
        except self._nvml.NVMLError as error:
            why = error
        if why is not None and not found:
            raise ProbeError(f"NVML: {why}") from why
        return found

    def close(self) -> None:
        """Shuts the library down."""
        self._told(self._nvml.nvmlShutdown)

    def _card(self, index: int, handle: Any) -> Reading:
        memory = self._memory(handle)
        reserved = int(getattr(memory, "reserved", 0) or 0)
        capacity = int(memory.total) - reserved
        return Reading(
            capacity=Bytes(capacity),
            available=Bytes(min(capacity, int(memory.free))),
            taken_at=Millis(round(self._clock() * 1000)),
            processes=self._processes(handle),
            health=self._health(index, handle),
            uuid=self._uuid(index, handle),
            total=Bytes(int(memory.total)),
            title=self._title(index, handle),
        )

    def _uuid(self, index: int, handle: Any) -> str:
        """The card's own name; it does not change, so a card is queried once."""
        if index not in self._uuids:
            found = self._told(lambda: self._nvml.nvmlDeviceGetUUID(handle)) or ""
            self._uuids[index] = found.decode() if isinstance(found, bytes) else found
        return self._uuids[index]

    def _title(self, index: int, handle: Any) -> str:
        """What its maker calls it; it does not change, so a card is queried once."""
        if index not in self._titles:
            found = self._told(lambda: self._nvml.nvmlDeviceGetName(handle)) or ""
            self._titles[index] = found.decode() if isinstance(found, bytes) else found
        return self._titles[index]

    def _memory(self, handle: Any) -> Any:
        """Version 2 reports the driver's reserve separately; old drivers have only version 1, which counts it as
        used.
        """
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, self._nvml.nvmlMemory_v2)
        except (self._nvml.NVMLError, AttributeError):
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _processes(self, handle: Any) -> dict[int, Bytes]:
        listed = self._told(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        sizes: dict[int, Bytes] = {}
        for process in listed:  # a process may be listed once per context
            pid, used = int(process.pid), int(process.usedGpuMemory or 0)
            sizes[pid] = Bytes(sizes.get(pid, 0) + used)
        return sizes

    def _health(self, index: int, handle: Any) -> CardHealth:
        nvml, told = self._nvml, self._told
        slowdown, shutdown = self._limits_of(index, handle)
        power = told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = told(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        reasons = told(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
        rates = told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return CardHealth(
            temperature_c=told(lambda: float(nvml.nvmlDeviceGetTemperature(handle, SENSOR_GPU))),
            slowdown_c=slowdown,
            shutdown_c=shutdown,
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            clock_mhz=told(lambda: nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)),
            throttled=tuple(name for bit, name in THROTTLE_REASONS.items() if reasons & bit),
            utilisation_percent=None if rates is None else int(rates.gpu),
        )

    def _limits_of(self, index: int, handle: Any) -> tuple[float | None, float | None]:
        """Slowdown and shutdown temperature; they do not change, so a card is queried once."""
        if index not in self._thresholds:
            ask = self._nvml.nvmlDeviceGetTemperatureThreshold
            self._thresholds[index] = (
                self._told(lambda: float(ask(handle, THRESHOLD_SLOWDOWN))),
                self._told(lambda: float(ask(handle, THRESHOLD_SHUTDOWN))),
            )
        return self._thresholds[index]

    def _told(self, ask: Callable[[], T]) -> T | None:
        """The answer, or None when this card does not report it."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None
