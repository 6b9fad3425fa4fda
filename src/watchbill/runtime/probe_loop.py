"""The probe loop: looks at the machine for the core, by the clock and when something tells it to.

Free memory is read often (microseconds), the processes' own memory every few seconds (milliseconds, in a thread).
The nearer the machine is to its reserve, the more often it looks; a threshold of the kernel (PSI, a control group's
limit) wakes it at once. A probe that fails keeps its last value, and the core sees how old that is; one that goes on
failing is an alert.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from watchbill.catalog import RAM, Catalog
from watchbill.core.messages import Alert, Constraint, DeviceReading, ModelReading, Observed
from watchbill.limits import (
    LOOK_MS_MAX,
    LOOK_MS_MIN,
    PRESSURE_STALL_PERCENT_MAX,
    PROBE_FAILURES_MAX,
    PROCESS_LOOK_MS,
)
from watchbill.probes import Reading
from watchbill.probes.health import constraint
from watchbill.probes.patient import PatientProbe
from watchbill.probes.pressure import PressureWatcher
from watchbill.probes.ram import RamProbe, next_look_ms

__all__ = ["ProbeLoop"]

#: While memory is looked at as often as can be, the processes are looked at this much more rarely.
HASTE_FACTOR = 4
Memory = Mapping[str, tuple[int, Mapping[str, int]]]
Cards = Mapping[str, Reading]


class ProbeLoop:
    """One per daemon. `look` may be called by anybody; looks do not overlap."""

    def __init__(
        self,
        catalog: Catalog,
        probes: list[PatientProbe],
        memory: Callable[[Cards], Memory],
        feed: Callable[[Observed], None],
        *,
        asleep: Callable[[], Awaitable[Mapping[str, bool]]] | None = None,
        alert: Callable[[Alert], None] | None = None,
        ram: RamProbe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog, self._probes, self._memory, self._feed = catalog, probes, memory, feed
        self._ram, self._clock, self._alert = ram, clock, alert
        self._see_sleep, self._asleep = asleep, dict[str, bool]()
        self._constraints: dict[str, Constraint] = {}  # the devices that took nothing new at the last look
        self._failed = [0] * len(probes)  # looks in a row that brought nothing
        self._blind = 0  # looks in a row at the processes that brought nothing
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._models: Memory = {}
        self._models_at = 0.0
        self._next_ms = LOOK_MS_MAX  # until the next look
        self._pressure: PressureWatcher | None = None
        self._task: asyncio.Task[None] | None = None

    def reconfigure(self, catalog: Catalog) -> None:
        """Watches for the new devices."""
        self._catalog = catalog

    def start(self) -> None:
        """Looks from now on by itself."""
        if self._ram is not None and RAM in self._catalog.devices:
            self._pressure = PressureWatcher(self._ram.groups, reserve=self._catalog.devices[RAM].reserve)
            asyncio.get_running_loop().add_reader(self._pressure.fileno(), self._alarmed)
        self._task = asyncio.create_task(self._watch(), name="probe loop")

    async def close(self) -> None:
        """Looks no more."""
        if self._pressure is not None:
            asyncio.get_running_loop().remove_reader(self._pressure.fileno())
            self._pressure.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def look(self, *, processes: bool = True) -> None:
        """Reads everything there is to read and tells the core."""
        async with self._turn:
            readings = [await probe.look() for probe in self._probes]
            self._count_failures()
            saw = processes and await self._see_processes(readings)
        now = round(self._clock() * 1000)
        devices = {
            name: reading.for_core(now, self._judge(name, reading))
            for found in readings
            for name, reading in found.items()
            if name in self._catalog.devices
        }
        models = {
            name: ModelReading(attempt, True, memory, self._asleep.get(name) if saw else None)
            for name, (attempt, memory) in self._models.items()
        }
        self._feed(Observed(now, devices, models, self._stalls()))
        self._next_ms = self._pace(devices)

    async def _see_processes(self, readings: list[Mapping[str, Reading]]) -> bool:
        """Looks at each engine's process. Where that fails, what was last seen of them stands."""
        cards = {name: r for found in readings for name, r in found.items() if r.health is not None}
        try:
            self._models = await asyncio.to_thread(self._memory, cards)
            if self._see_sleep is not None:
                self._asleep = dict(await self._see_sleep())
        except OSError as error:  # any errno: /proc cannot be read now, and looking at memory goes on
            self._blind += 1
            if self._blind == PROBE_FAILURES_MAX and self._alert is not None:
                self._alert(Alert("probe", f"what the engines occupy cannot be read: {error}"))
            return False
        self._models_at, self._blind = self._clock(), 0
        return True

    def _count_failures(self) -> None:
        for place, probe in enumerate(self._probes):
            self._failed[place] = self._failed[place] + 1 if probe.failure else 0
            if self._failed[place] == PROBE_FAILURES_MAX and self._alert is not None:
                text = f"memory cannot be read, so nothing new is loaded there soon: {probe.failure}"
                self._alert(Alert("probe", text))

    def _judge(self, name: str, reading: Reading) -> Constraint | None:
        """Whether a device takes anything new; it remembers what the last look said."""
        device, before = self._catalog.devices[name], self._constraints.pop(name, None)
        found = constraint(device, reading, self._held_on(name), before)
        if found is not None:
            self._constraints[name] = found
        return found

    def _held_on(self, device: str) -> int:
        return sum(memory.get(device, 0) for _, memory in self._models.values())

    def _stalls(self) -> bool:
        try:
            return self._ram is not None and self._ram.stall_percent() > PRESSURE_STALL_PERCENT_MAX
        except (
            OSError
        ):  # any errno: what the kernel does not tell is not known, and the reading itself counts
            return False

    def _pace(self, devices: Mapping[str, DeviceReading]) -> int:
        ram = devices.get(RAM)
        return LOOK_MS_MAX if ram is None else next_look_ms(ram.available, self._catalog.devices[RAM].reserve)

    async def _watch(self) -> None:
        while True:
            self._woken.clear()
            await self.look(processes=self._is_time_for_processes())
            try:
                async with asyncio.timeout(self._next_ms / 1000):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _is_time_for_processes(self) -> bool:
        """Their memory takes long to read, gigabytes some 100 ms: too long to be blind while memory runs out."""
        patience = HASTE_FACTOR if self._next_ms <= LOOK_MS_MIN else 1
        return (self._clock() - self._models_at) * 1000 >= patience * PROCESS_LOOK_MS

    def _alarmed(self) -> None:
        if self._pressure is not None:
            self._pressure.drain()
        self._woken.set()
