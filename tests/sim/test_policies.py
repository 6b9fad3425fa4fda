"""Policies of somebody else's: the contract, the example that ships, and what happens when one fails (RES-21)."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.worlds import ModelOf, WorldOf
from watchbill.catalog import PolicyRules
from watchbill.config import load
from watchbill.core import messages as m
from watchbill.core.companions import Candidate
from watchbill.core.forecast import Forecast
from watchbill.core.guarded import Guarded
from watchbill.core.policy import Plan, Rate, Turns
from watchbill.core.stages import Stage
from watchbill.core.state import State
from watchbill.runtime.explain import explain
from watchbill.testing import PolicyContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "thrift.toml"
THRIFT = load(EXAMPLE, environment={}).policy.strategy
assert THRIFT is not None


class TestThrift(PolicyContract):
    """RES-21: the energy-aware example keeps the contract."""

    strategy = THRIFT


class TestShipped(PolicyContract):
    """RES-21: a shipped policy keeps it, too, when it is named by its class."""

    strategy = Turns
    worlds = 6


def rules_of(strategy: type[object]) -> PolicyRules:
    return PolicyRules("test:Policy", strategy=strategy)


# ------------------------------------------------------------------ the example


def test_thrift_loads_what_costs_least_energy_per_request(world_of: WorldOf, model: ModelOf) -> None:
    """RES-21: of two models that wait and exclude each other the one with the shorter load comes in."""
    world = world_of(model("A"), model("B"), rules=rules_of(THRIFT))
    world.run(100)
    world.core.state.models["A"].load.learn(60_000)
    world.feed(m.MaintenanceAsked(1, "gpu:0", True, "both shall wait"))
    world.arrive("A", 500, lane="chat")
    world.arrive("B", 500, lane="chat")
    world.feed(m.MaintenanceAsked(2, "gpu:0", False, "now"))
    stages = {s.name: s.stage for s in world.core.state.managed}
    assert (stages["A"], stages["B"]) == (Stage.ABSENT, Stage.LOADING)


@pytest.mark.parametrize(("watts", "swaps"), [(100.0, True), (290.0, False)])
def test_thrift_swaps_nothing_near_a_cards_power_limit(
    world_of: WorldOf, model: ModelOf, watts: float, swaps: bool
) -> None:
    """RES-21, RES-27: until a request has used up half of its patience."""
    world = world_of(model("A"), model("B"), rules=rules_of(THRIFT))
    world.power_w, world.power_limit_w = watts, 300.0
    world.arrive("A", 300, lane="chat")
    world.run(15_000)
    caller = world.arrive("B", 300, lane="chat")
    world.run(25_000)
    assert (caller.outcome == "answered") is swaps
    world.run(75_000)
    assert caller.outcome == "answered"
    assert not world.judge.broken


# ------------------------------------------------------------------ one that fails


class Raises(Turns):
    """Breaks in every decision."""

    def choose(self, state: State, now: int) -> Plan | None:
        raise ValueError("no idea")

    def forecast(self, state: State, model: Candidate, request: m.Request, now: int) -> Forecast:
        raise KeyError(model.name)


class Greedy(Turns):
    """Closes a permanent model."""

    def choose(self, state: State, now: int) -> Plan | None:
        plan = super().choose(state, now)
        return plan and replace(plan, victims=(state.models["rock"],))


class Wild(Turns):
    """Answers with what is no plan, and no time."""

    def choose(self, state: State, now: int) -> Plan | None:
        return "B"  # type: ignore[return-value]

    def forecast(self, state: State, model: Candidate, request: m.Request, now: int) -> Forecast:
        return Forecast(float("nan"), is_guess=False)


class Breaks(Turns):
    """Cannot even be made."""

    def __init__(self) -> None:
        raise OSError("no licence")


@pytest.mark.parametrize("strategy", [Raises, Greedy, Wild, Breaks])
def test_a_policy_that_fails_costs_one_decision_and_an_alert(
    world_of: WorldOf, model: ModelOf, strategy: type[object]
) -> None:
    """RES-21: `turns` decides in its place, the permanent model stays, and alerts are not raised in every step."""
    rock = model("rock", 2, permanent=True)
    world = world_of(rock, model("A"), model("B"), rules=rules_of(strategy))
    for turn in range(12):
        world.at(2_000 + turn * 8_000, lambda name="AB"[turn % 2]: world.arrive(name, 300, lane="chat"))
    world.run(200_000)
    assert {caller.outcome for caller in world.callers.values()} == {"answered"}
    assert world.core.state.models["rock"].stage is Stage.READY
    told = [alert for alert in world.alerts if alert.kind == "policy"]
    assert len(told) == (0 if strategy is Breaks else 1)
    assert isinstance(world.core.policy, Guarded)
    assert world.core.policy.last_failure
    assert not world.judge.broken


def test_explain_answers_though_the_policy_fails(world_of: WorldOf, model: ModelOf) -> None:
    """RES-11: the same guard stands before the copy, and asking raises no alert."""
    world = world_of(model("A"), rules=rules_of(Raises))
    world.run(100)
    request = m.Request("x", "A", "chat", world.catalog.lanes["chat"].work_class, 100, 60_000, 60_000)
    assert explain(world.core, request, 100)["verdict"] == "fits"
    assert not world.alerts


def test_a_reload_changes_the_policy(world_of: WorldOf, model: ModelOf) -> None:
    """RES-21: from one decision to the next, while requests wait."""
    world = world_of(model("A"), model("B"))
    first = world.core.policy
    assert isinstance(first, Rate)
    waiting = [world.arrive(name, 300, lane="chat") for name in "AB"]
    world.reload(replace(world.catalog, policy=PolicyRules("turns")))
    assert isinstance(world.core.policy, Turns)
    world.reload(replace(world.catalog, policy=rules_of(THRIFT)))
    assert isinstance(world.core.policy, Guarded)
    world.run(60_000)
    assert {caller.outcome for caller in waiting} == {"answered"}


# ------------------------------------------------------------------ named in the config

WRONG = {
    "": ("nothing_there:Mine", "there is no module nothing_there; install it where Watchbill is installed"),
    "x = 1": ("{module}:Mine", "the module {module} has no class Mine"),
    "class Mein: pass": ("{module}:Mine", "the module {module} has no class Mine; did you mean Mein?"),
    "class Mine: pass": ("{module}:Mine", "Mine is no policy: it lacks refuses_late, which is True or False"),
    "class Mine:\n  refuses_late = in_order = False\n  def forecast(self, state, model, request, now): ...":
        ("{module}:Mine", "Mine is no policy: it lacks choose(state, now)"),
    "class Mine:\n  refuses_late = in_order = False\n  def forecast(self): ...\n  def choose(self, state, now): ...":
        ("{module}:Mine", "its forecast cannot be called as forecast(state, model, request, now)"),
    "class Mine:\n  def __init__(self, figure): ...": ("{module}:Mine", "Mine() raises TypeError"),
    "import watchbill\n1 / 0":
        ("{module}:Mine", "cannot be imported: ZeroDivisionError: division by zero; see {module}.py:2"),
    "class Mine(": ("{module}:Mine", "cannot be imported: SyntaxError"),
    "import nothing_here": ("{module}:Mine", "cannot be imported: ModuleNotFoundError: No module named 'nothing_here'"),
}  # fmt: skip


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A module's name that no other test uses."""
    name = f"policy_{abs(hash(request.node.nodeid))}"
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("text", list(WRONG), ids=lambda text: text[:30])
def test_a_policy_that_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, module: str, text: str
) -> None:
    """RES-21: module missing, class missing, protocol not met: what, where, and what to do."""
    name, told = (each.format(module=module) for each in WRONG[text])
    (tmp_path / f"{module}.py").write_text(text)
    config = tmp_path / "watchbill.toml"
    config.write_text(f'[models.a]\nengine = "scripted"\n[policy]\nname = "{name}"\n')
    with pytest.raises(Exception, match=r"watchbill\.toml:4: policy\.name: ") as refused:
        load(config, environment={})
    assert told in str(refused.value)


def test_a_policy_that_was_mended_is_found_by_the_next_reload(tmp_path: Path, module: str) -> None:
    """RES-21: the module is written after the config; the second try finds it."""
    config = tmp_path / "watchbill.toml"
    config.write_text(f'[models.a]\nengine = "scripted"\n[policy]\nname = "{module}:Mine"\n')
    with pytest.raises(Exception, match="there is no module"):
        load(config, environment={})
    (tmp_path / f"{module}.py").write_text(
        "from watchbill.core.policy import Turns\nclass Mine(Turns): ...\n"
    )
    assert load(config, environment={}).policy.strategy.__name__ == "Mine"  # type: ignore[union-attr]
