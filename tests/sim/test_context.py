"""Context that a swap would lose is part of a model's momentum."""

from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.machine import Machine
from watchbill.core.tipping import Rate
from watchbill.units import Bytes, Millis

GB = 10**9
SIZE = {"gpu:0": Bytes(16 * GB)}


class House:
    """A core with two models of which one fits; answers take 1 s, 0.5 s of it for reading the prompt."""

    def __init__(self) -> None:
        models = {n: Model(n, "scripted", memory=SIZE, devices=("gpu:0",), concurrency=2) for n in "ab"}
        lanes = {"chat": Lane("chat", WorkClass.INTERACTIVE, max_wait_ms=Millis(120_000))}
        devices = {"gpu:0": Device("gpu:0", capacity=Bytes(24 * GB))}
        catalog = Catalog(devices, {"scripted": EngineRules("scripted", "scripted")}, models, lanes)
        self.core = Machine(catalog, {n: m.Knowledge(m.Footprint(SIZE, SIZE), 3_000, 1_000) for n in "ab"})
        self.now, self._count = 0, 0
        self.do(m.Observed(0, {"gpu:0": m.DeviceReading(24 * GB, 24 * GB)}, {}))

    def do(self, event: m.Event) -> None:
        for action in self.core.step(event, self.now):
            if isinstance(action, m.Load):
                self.now += 3_000
                self.do(m.Loaded(action.model, action.attempt, dict(SIZE)))

    def ask(self, model: str, prompt_bytes: int) -> None:
        """One question and its answer."""
        self._count += 1
        request = m.Request(
            f"r{self._count}", model, "chat", WorkClass.INTERACTIVE, self.now, 120_000, 600_000
        )
        self.do(m.Arrived(request))
        self.now += 1_000
        self.do(m.Ended(request.id, True, None, 500, prompt_bytes))

    def round_trip_ms(self) -> float:
        state = self.core.state
        return Rate().balance(state, state.stations["b"], (state.stations["a"],), self.now).round_trip_ms


def test_lost_context_makes_a_round_trip_longer() -> None:
    """RES-11: the contexts in the slots, times the learned time to read a prompt, count as part of the reload."""
    house = House()
    house.ask("a", 100)
    short = house.round_trip_ms()
    house.ask("a", 512 * 1024)
    house.ask("a", 512 * 1024)
    assert house.round_trip_ms() - short == 1_000  # two slots, half a second each
    house.ask("a", 100)  # the older of the two contexts has gone from its slot
    assert 500 <= house.round_trip_ms() - short <= 501


def test_context_is_lost_with_its_model() -> None:
    """RES-11: a model that was away has none to lose."""
    house = House()
    house.ask("a", 512 * 1024)
    station = house.core.state.stations["a"]
    assert station.context.rebuild_ms == 500
    house.do(m.Died("a", station.attempt, "killed"))
    assert station.context.rebuild_ms == 0
