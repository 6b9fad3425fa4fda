"""Probes of GPUs, and probes that fail: a stand-in library, timelines in a file, threads that hang.

No card is needed: the NVML probe gets an object with the library's functions and the figures that a real H200 gave.
"""

import asyncio
import json
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from support.eventually import eventually
from watchbill.probes import ProbeError, Reading
from watchbill.probes.cards import find_cards
from watchbill.probes.fake import FakeGpuProbe
from watchbill.probes.nvml import NvmlProbe
from watchbill.probes.patient import PatientProbe
from watchbill.units import Bytes, Millis

MIB, GIB = 2**20, 2**30


class NotSupported(Exception):
    """What the library raises."""


class Library:
    """An H200 as its own driver describes it: idle, 615 MiB held by the driver."""

    NVMLError = NotSupported
    nvmlMemory_v2 = 2

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.memory = SimpleNamespace(total=143_771 * MIB, reserved=615 * MIB, used=0, free=143_156 * MIB)
        self.processes = [SimpleNamespace(pid=77, usedGpuMemory=8804 * MIB)]
        self.throttle = 0x1
        self.asked_thresholds = self.asked_uuids = 0
        self.is_shut = False
        self.cards = 1
        self.lost: set[object] = set()

    def answer(self, name: str, value: object) -> object:
        if name in self.silent:
            raise NotSupported(f"{name}: Not Supported")
        return value

    def nvmlInit(self) -> None:
        self.answer("init", None)

    def nvmlShutdown(self) -> None:
        self.is_shut = True

    def nvmlDeviceGetCount(self) -> object:
        return self.answer("count", self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        if index in self.lost:
            raise NotSupported("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, index: object) -> object:
        self.asked_uuids += 1
        return self.answer("uuid", f"GPU-{index}")

    def nvmlDeviceGetName(self, index: object) -> object:
        return self.answer("title", f"Card {index}")

    def nvmlDeviceGetMemoryInfo(self, _: object, version: int | None = None) -> object:
        if version is None:
            total = SimpleNamespace(total=self.memory.total, used=615 * MIB, free=self.memory.free)
            return self.answer("memory", total)
        return self.answer("memory v2", self.memory)

    def nvmlDeviceGetComputeRunningProcesses(self, _: object) -> object:
        return self.answer("processes", self.processes)

    def nvmlDeviceGetTemperature(self, _: object, sensor: int) -> object:
        return self.answer("temperature", 41)

    def nvmlDeviceGetTemperatureThreshold(self, _: object, which: int) -> object:
        self.asked_thresholds += 1
        return self.answer("thresholds", (95, 89)[which])

    def nvmlDeviceGetPowerUsage(self, _: object) -> object:
        return self.answer("power", 76_500)

    def nvmlDeviceGetEnforcedPowerLimit(self, _: object) -> object:
        return self.answer("power", 700_000)

    def nvmlDeviceGetClockInfo(self, _: object, kind: int) -> object:
        return self.answer("clock", 1980)

    def nvmlDeviceGetUtilizationRates(self, _: object) -> object:
        return self.answer("utilisation", SimpleNamespace(gpu=85, memory=40))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: object) -> object:
        return self.answer("throttle", self.throttle)


def test_the_drivers_own_reserve_is_neither_capacity_nor_use() -> None:
    """RES-01: an idle card has all of its capacity available."""
    card = NvmlProbe(Library()).read()["gpu:0"]
    assert card.capacity == card.available == 143_156 * MIB
    assert card.processes == {77: 8804 * MIB}


def test_a_cards_health_is_read_with_the_cards_own_limits() -> None:
    """RES-27: temperature, power and throttling; idling is no throttling."""
    library = Library()
    probe = NvmlProbe(library)
    health = probe.read()["gpu:0"].health
    assert health is not None
    assert (health.temperature_c, health.slowdown_c, health.shutdown_c) == (41, 89, 95)
    assert (health.power_w, health.power_limit_w, health.clock_mhz, health.throttled) == (76.5, 700, 1980, ())
    library.throttle = 0x4 | 0x40
    health = probe.read()["gpu:0"].health
    assert health is not None and health.throttled == ("power cap", "hardware thermal")
    assert library.asked_thresholds == 2  # they do not change
    probe.close()
    assert library.is_shut


def test_a_card_has_a_uuid_a_total_a_utilisation_and_says_when_it_follows_others() -> None:
    """FLEET-06, FLEET-10: what a heartbeat shows of a card; its UUID does not change and is asked once."""
    library = Library()
    library.throttle = 0x10
    probe = NvmlProbe(library)
    card = [probe.read()["gpu:0"] for _ in range(3)][-1]
    assert (card.uuid, card.total) == ("GPU-0", 143_771 * MIB)
    assert card.health is not None
    assert (card.health.utilisation_percent, card.health.throttled) == (85, ("sync boost",))
    assert library.asked_uuids == 1


def test_what_a_card_does_not_tell_is_none_not_an_error() -> None:
    library = Library()
    library.silent = {
        "memory v2", "processes", "temperature", "thresholds", "power", "clock", "throttle", "uuid", "utilisation",
    }  # fmt: skip
    card = NvmlProbe(library).read()["gpu:0"]
    assert card.uuid == ""
    assert card.available == 143_156 * MIB and card.processes == {}
    assert card.health is not None and card.health.temperature_c is card.health.power_w is None


def test_a_driver_that_is_lost_fails_the_probe() -> None:
    """R25: the caller keeps its last value."""
    library = Library()
    probe = NvmlProbe(library)
    library.silent = {"memory", "memory v2"}
    with pytest.raises(ProbeError, match="Not Supported"):
        probe.read()
    library.silent = {"init"}
    with pytest.raises(ProbeError, match="no NVIDIA driver"):
        NvmlProbe(library)


async def test_a_card_that_falls_off_its_bus_leaves_the_others_readable() -> None:
    """R25, RES-27: one lost card of five, and no card of the machine took loads any more."""
    library = Library()
    library.cards = 2
    patient = PatientProbe(NvmlProbe(library))
    first = await patient.look()
    assert (list(first), patient.failure) == (["gpu:0", "gpu:1"], None)
    library.lost = {1}
    later = await patient.look()
    assert later["gpu:1"] == first["gpu:1"] and later["gpu:0"] is not first["gpu:0"]
    assert patient.failure == "gpu:1 cannot be read any more"


# ------------------------------------------------------------------ fake cards


def timeline(folder: Path, *steps: Mapping[str, object]) -> Path:
    path = folder / "gpus.json"
    card = {"name": "gpu:0", "capacity": "24GB", "slowdown_c": 89, "timeline": list(steps)}
    path.write_text(json.dumps({"started": 1000, "cards": [card]}))
    return path


def test_a_fake_card_follows_its_timeline(tmp_path: Path) -> None:
    """R24: a foreign process takes memory, the card heats up, the driver is lost, all of it by script."""
    now = [1000.0]
    hot = {"at": 30, "used": "2GB", "temperature_c": 91, "processes": {"5": "2GB"}, "throttled": ["heat"]}
    path = timeline(tmp_path, {"at": 0, "used": 0}, hot, {"at": 60, "fail": "lost"}, {"at": 70, "used": 0})
    probe = FakeGpuProbe(path, wall=lambda: now[0])
    assert probe.read()["gpu:0"].available == 24 * 10**9
    now[0] = 1030
    card = probe.read()["gpu:0"]
    assert card.available == 22 * 10**9 and card.processes == {5: 2 * 10**9}
    assert card.health is not None and (card.health.temperature_c, card.health.throttled) == (91, ("heat",))
    now[0] = 1060
    with pytest.raises(ProbeError, match="lost"):
        probe.read()
    now[0] = 1070
    assert probe.read()["gpu:0"].available == 24 * 10**9


def test_the_timeline_is_read_anew_at_every_look(tmp_path: Path) -> None:
    path = timeline(tmp_path, {"used": "1GB"})
    probe = FakeGpuProbe(path, wall=lambda: 2000)
    assert probe.read()["gpu:0"].available == 23 * 10**9
    timeline(tmp_path, {"used": "9GB"})
    assert probe.read()["gpu:0"].available == 15 * 10**9


def test_without_a_start_the_timeline_begins_when_the_file_was_written(tmp_path: Path) -> None:
    path = tmp_path / "gpus.json"
    steps = [{"used": 1}, {"at": 10, "used": 2}]
    path.write_text(json.dumps({"cards": [{"name": "gpu:1", "capacity": 100, "timeline": steps}]}))
    os.utime(path, (5000, 5000))
    assert FakeGpuProbe(path, wall=lambda: 5009).read()["gpu:1"].available == 99
    assert FakeGpuProbe(path, wall=lambda: 5010).read()["gpu:1"].available == 98


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"cards": [{}]}', '{"cards": [{"name": "a", "capacity": "x"}]}']
)
def test_a_senseless_file_fails_the_probe(tmp_path: Path, content: str) -> None:
    path = tmp_path / "gpus.json"
    path.write_text(content)
    with pytest.raises(ProbeError, match="not a timeline"):
        FakeGpuProbe(path).read()
    with pytest.raises(ProbeError, match="No such file"):
        FakeGpuProbe(tmp_path / "none").read()


# ------------------------------------------------------------------ probes that fail


class Scripted:
    """A probe that answers, fails or hangs as it is told."""

    def __init__(self) -> None:
        self.mood = "answer"
        self.reads = 0
        self.hanging, self.go_on = threading.Event(), threading.Event()

    def read(self) -> Mapping[str, Reading]:
        self.reads += 1
        match self.mood:
            case "fail":
                raise ProbeError("the driver is gone")
            case "break":
                raise OSError(5, "Input/output error")
            case "hang":
                self.hanging.set()
                self.go_on.wait(30)
            case _:
                pass
        return {"gpu:0": Reading(Bytes(100), Bytes(50 - self.reads), Millis(1000 * self.reads))}


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    probe = Scripted()
    yield probe
    probe.go_on.set()


async def test_a_probe_that_fails_keeps_its_last_value_with_its_age(scripted: Scripted) -> None:
    """R25: last value with age."""
    patient = PatientProbe(scripted)
    first = await patient.look()
    for mood, why in (("fail", "the driver is gone"), ("break", "Input/output error")):
        scripted.mood = mood
        assert await patient.look() == first
        assert why in str(patient.failure)
    assert first["gpu:0"].for_core(61_000).age_ms == 60_000
    scripted.mood = "answer"
    assert (await patient.look())["gpu:0"].taken_at == 4000 and patient.failure is None


async def test_a_probe_that_hangs_blocks_nobody_and_holds_one_thread(scripted: Scripted) -> None:
    """R25: a hanging driver never stops the daemon, and its late answer still counts."""
    patient = PatientProbe(scripted, deadline_ms=20)
    first = await patient.look()
    scripted.mood = "hang"
    for _ in range(5):
        assert await patient.look() == first
        assert "no answer within" in str(patient.failure)
    assert scripted.reads == 2  # the one that hangs is not joined by others
    scripted.mood = "answer"
    scripted.go_on.set()

    async def has_come() -> bool:
        return (await patient.look())["gpu:0"].taken_at >= 2000

    await eventually(has_come)
    assert patient.failure is None


async def test_a_caller_who_leaves_does_not_spoil_the_next_look(scripted: Scripted) -> None:
    patient = PatientProbe(scripted, deadline_ms=20_000)
    scripted.mood = "hang"
    look = asyncio.create_task(patient.look())
    assert await asyncio.to_thread(scripted.hanging.wait, 20)
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    scripted.go_on.set()
    assert (await patient.look())["gpu:0"].taken_at == 1000


def test_a_machine_without_a_driver_has_no_cards_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-04: a driver that an upgrade took away must not take the models in RAM along."""

    class Driverless(ModuleType):
        class NVMLError(Exception):
            pass

        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver/library version mismatch")

    monkeypatch.delenv("WATCHBILL_FAKE_GPUS", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Driverless("pynvml"))
    assert find_cards() == (
        None, "no NVIDIA driver: Driver/library version mismatch; does nvidia-smi work?",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", None)
    install = f"{shlex.quote(sys.executable)} -m pip install 'nvidia-ml-py>=12'"
    assert find_cards() == (None, f"NVIDIA's library for Python is not installed: {install}")
