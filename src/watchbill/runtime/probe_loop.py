"""The probe loop: reads the machine for the core, periodically and when the kernel signals pressure.

Free memory is read often (microseconds), the processes' own memory every few seconds (milliseconds, in a thread). The
nearer the machine is to its reserve, the more often it is read; a threshold of the kernel (PSI, a control group's
limit) triggers a reading at once. A probe that fails keeps its last value, and the core sees its age. A probe that
goes on failing raises an alert.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from watchbill.catalog import RAM, Catalog
from watchbill.core.messages import Alert, AlertKind, Constraint, DeviceReading, ModelReading, Observed
from watchbill.files.disk import disk_failure
from watchbill.probes import Cards, Reading
from watchbill.probes.disk import DiskProbe
from watchbill.probes.health import constraint
from watchbill.probes.limits import LOOK_MS_MAX, LOOK_MS_MIN
from watchbill.probes.patient import PatientProbe
from watchbill.probes.pressure import PressureWatcher
from watchbill.probes.ram import RamProbe, next_look_ms
from watchbill.runtime.limits import PRESSURE_STALL_PERCENT_MAX, PROBE_FAILURES_MAX, PROCESS_LOOK_MS

__all__ = ["ProbeLoop"]

#: While memory is read as often as possible, the processes are read this many times less often.
HASTE_FACTOR = 4
Memory = Mapping[str, tuple[int, Mapping[str, int]]]
Borrowed = dict[str, Mapping[str, int]]  # device -> loan -> the bytes that its holder uses


class SeeLoans(Protocol):
    """How loans are measured: those of cards, and with `ram` those of RAM, which takes longer."""

    def __call__(self, cards: Cards, /, *, ram: bool) -> Mapping[str, Mapping[str, int]]: ...


class ProbeLoop:
    """One per daemon. `look` may be called from anywhere; readings do not overlap."""

    def __init__(
        self,
        catalog: Catalog,
        probes: list[PatientProbe],
        memory: Callable[[Cards], Memory],
        feed: Callable[[Observed], None],
        *,
        asleep: Callable[[], Awaitable[Mapping[str, bool]]] | None = None,
        borrowed: SeeLoans | None = None,
        ours: Callable[[Cards], Mapping[str, int]] | None = None,
        alert: Callable[[Alert], None] | None = None,
        ram: RamProbe | None = None,
        disk: DiskProbe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog, self._probes, self._memory, self._feed = catalog, probes, memory, feed
        self._ram, self._disk, self._clock, self._alert = ram, disk, clock, alert
        self._see_sleep, self._asleep = asleep, dict[str, bool]()
        self._see_loans, self._loans = borrowed, Borrowed()
        self._see_ours = ours
        self._ours: dict[str, int] = {}  # card -> what our models hold there
        self._constraints: dict[str, Constraint] = {}  # the devices that took no loads at the last reading
        self._failed = [0] * len(probes)  # failed readings in a row
        self._blind = 0  # failed readings of the processes in a row
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._models: Memory = {}
        self._models_at = 0.0
        self._next_ms = LOOK_MS_MAX  # until the next reading
        self.cards: dict[str, Reading] = {}  # the last reading of each card
        self._pressure: PressureWatcher | None = None
        self._task: asyncio.Task[None] | None = None

    def reconfigure(self, catalog: Catalog) -> None:
        """Watches the new devices."""
        self._catalog = catalog

    def start(self) -> None:
        """Starts periodic readings."""
        if self._ram is not None and RAM in self._catalog.devices:
            self._pressure = PressureWatcher(self._ram.groups, reserve=self._catalog.devices[RAM].reserve)
            asyncio.get_running_loop().add_reader(self._pressure.fileno(), self._alarmed)
        if self._disk is not None:
            self._disk.start()
        self._task = asyncio.create_task(self._watch(), name="probe loop")

    async def close(self) -> None:
        """Stops periodic readings."""
        if self._pressure is not None:
            asyncio.get_running_loop().remove_reader(self._pressure.fileno())
            self._pressure.close()
        if self._disk is not None:
            self._disk.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def look(self, *, processes: bool = True) -> None:
        """Reads everything and tells the core."""
        async with self._turn:
            readings = [await probe.look() for probe in self._probes]
            self._count_failures()
            cards = {name: r for found in readings for name, r in found.items() if r.health is not None}
            saw = processes and await self._see_processes(cards)
            if cards:
                await self._see_cards(cards, loans=not processes)
        self.cards = cards
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
        loans = {id: used for of_device in self._loans.values() for id, used in of_device.items()}
        self._feed(Observed(now, devices, models, self._stalls(), self._disk_fault(), loans))
        self._next_ms = self._pace(devices)

    def look_at_disk(self, then: Callable[[str | None], None]) -> None:
        """Has the disk tried now, and tells its fault. A disk that hangs is told about when it answers."""
        if self._disk is None:
            then(None)
            return
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the daemon has ended meanwhile
                loop.call_soon_threadsafe(lambda: then(self._disk_fault()))

        self._disk.look_now(tell)

    async def _see_cards(self, cards: Cards, *, loans: bool) -> None:
        """Reads what is ours on the cards, at every reading: a task may be over before the processes are due, and a
        model that was just loaded would count as memory of other programs until then."""
        with suppress(OSError):  # any errno: /proc cannot be read now, and the last figures stay valid
            if loans and self._see_loans is not None:
                self._loans = dict(await asyncio.to_thread(self._see_loans, cards, ram=False))
            if self._see_ours is not None:
                self._ours = dict(await asyncio.to_thread(self._see_ours, cards))

    async def _see_processes(self, cards: Cards) -> bool:
        """Reads each engine's process. Where that fails, the last readings stay valid."""
        try:
            self._models = await asyncio.to_thread(self._memory, cards)
            if self._see_loans is not None:
                self._loans = dict(await asyncio.to_thread(self._see_loans, cards, ram=True))
            if self._see_sleep is not None:
                self._asleep = dict(await self._see_sleep())
        except OSError as error:  # any errno: /proc cannot be read now, and readings of free memory go on
            self._blind += 1
            if self._blind == PROBE_FAILURES_MAX and self._alert is not None:
                self._alert(Alert(AlertKind.PROBE, f"the memory of the engines cannot be read: {error}"))
            return False
        self._models_at, self._blind = self._clock(), 0
        return True

    def _count_failures(self) -> None:
        for place, probe in enumerate(self._probes):
            self._failed[place] = self._failed[place] + 1 if probe.failure else 0
            if self._failed[place] == PROBE_FAILURES_MAX and self._alert is not None:
                text = f"memory cannot be read, so no model will be loaded there: {probe.failure}"
                self._alert(Alert(AlertKind.PROBE, text))

    def _judge(self, name: str, reading: Reading) -> Constraint | None:
        """Why a device takes no loads; the margin depends on the previous reading."""
        device, before = self._catalog.devices[name], self._constraints.pop(name, None)
        found = constraint(device, reading, self._held_on(name), before)
        if found is not None:
            self._constraints[name] = found
        return found

    def _held_on(self, device: str) -> int:
        """The bytes of a device that our models and the holders of loans use: they make no card unwell."""
        return sum(self._loans.get(device, {}).values()) + self._ours.get(device, 0)

    def _stalls(self) -> bool:
        try:
            return self._ram is not None and self._ram.stall_percent() > PRESSURE_STALL_PERCENT_MAX
        except OSError:  # any errno: the kernel does not report it, and the reading itself counts
            return False

    def _disk_fault(self) -> str | None:
        fault = None if self._disk is None else self._disk.fault
        return None if fault is None or self._disk is None else disk_failure(self._disk.folder, fault)

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
        """Whether the processes are due. Gigabytes take some 100 ms to read: too long while memory runs out."""
        patience = HASTE_FACTOR if self._next_ms <= LOOK_MS_MIN else 1
        return (self._clock() - self._models_at) * 1000 >= patience * PROCESS_LOOK_MS

    def _alarmed(self) -> None:
        if self._pressure is not None:
            self._pressure.drain()
        self._woken.set()
