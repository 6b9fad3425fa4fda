"""RES-24: one load at a time, and what that means for everybody behind it."""

from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.units import Bytes, Millis

GB = 10**9
SIZE = {"gpu:0": Bytes(4 * GB)}
LOADS_MS = {"slow": 8_000.0, "quick": 300.0}


class House:
    """A core with room for everything; engines load when they are told to."""

    def __init__(self, max_wait_ms: int) -> None:
        models = {n: Model(n, "scripted", memory=SIZE, devices=("gpu:0",)) for n in LOADS_MS}
        lanes = {
            "chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(max_wait_ms)),
            "batch": Lane("batch", WorkClass.BACKGROUND, max_wait_ms=Millis(600_000)),
        }
        devices = {"gpu:0": Device("gpu:0", capacity=Bytes(24 * GB))}
        catalog = Catalog(devices, {"scripted": EngineRules("scripted", "scripted")}, models, lanes)
        known = {n: m.Knowledge(m.Footprint(SIZE, SIZE), ms, 100) for n, ms in LOADS_MS.items()}
        self.core = Machine(catalog, known)
        self.now = 0
        self.do(m.Observed(0, {"gpu:0": m.DeviceReading(24 * GB, 24 * GB)}, {}))

    def do(self, event: m.Event) -> list[m.Action]:
        return self.core.step(event, self.now)

    def ask(self, model: str, lane: str) -> list[m.Action]:
        rules = self.core.state.catalog.lanes[lane]
        request = m.Request(
            f"{model} {self.now}", model, lane, rules.work_class, self.now, rules.max_wait_ms, 600_000
        )
        return self.do(m.Arrived(request))


def test_a_forecast_counts_the_load_that_is_on_the_bus() -> None:
    """RES-24, RES-11: a model that fits was forecast 0.4 s, and waited 8 s for another model's load."""
    house = House(60_000)
    house.ask("slow", "batch")
    house.now = 400
    (admitted,) = [a for a in house.ask("quick", "chat") if isinstance(a, m.Admit)]
    assert admitted.forecast_ms >= 7_600 + 300


def test_a_request_that_the_bus_makes_late_is_refused_at_once() -> None:
    """RES-11: even the optimistic forecast misses its bound: told now, not after the whole wait."""
    house = House(4_000)
    house.ask("slow", "batch")
    house.now = 400
    (refused,) = [a for a in house.ask("quick", "chat") if isinstance(a, m.Refuse)]
    assert refused.code == "wait_exceeded"
    assert (refused.retry_after_ms or 0) >= 7_600


def test_a_load_that_hangs_holds_up_no_other() -> None:
    """RES-24: a load that takes far longer than it should keeps its memory, and no longer the bus."""
    house = House(60_000)
    house.ask("slow", "batch")
    house.now = 400
    assert not [a for a in house.ask("quick", "chat") if isinstance(a, m.Load)]
    house.now = 3 * 8_000
    assert [a.model for a in house.do(m.Tick()) if isinstance(a, m.Load)] == ["quick"]
