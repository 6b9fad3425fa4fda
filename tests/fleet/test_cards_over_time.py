"""The seed's table of health and state against a card that changes while a real fleet works on it."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder, shared_folder
from watchbill.fleet.folder import places

CONFIG = """
[devices."gpu:1"]
reserve = 0
[models.qwen]
engine = "scripted"
devices = ["gpu:1"]
memory = "1MiB"
script = { memory = "1MiB", text = "words", tokens = 1, service = "10ms" }
[coordinator]
[agents.gpu-1]
device = "gpu:1"
model = "qwen"
cpu_slots = 1
"""
ALL = """### scripted
- **task_class**: script
- **command**: `true`
### asked
- **prompt**: Go.
- **output**: {BATCH_PATH}/answer
### counted
- **command**: `true`
"""


class Rig:
    """`up` with one played-back card and its agent."""

    def __init__(self, fleet: FleetFolder) -> None:
        self.fleet = fleet
        self._uuid = f"GPU-{secrets.token_hex(8)}"
        self._cards = fleet.home / "cards.json"
        self.play(70)
        config = fleet.home / "watchbill.toml"
        config.write_text(CONFIG)
        home = str(fleet.home / "home")
        fleet.start(
            "-m", "watchbill", "up", "--port", "0", "--config", str(config), "--root", home,
            WATCHBILL_FAKE_GPUS=str(self._cards),
        )  # fmt: skip
        fleet.root = fleet.home / "home" / "fleet"
        wait_until((fleet.root / places.heartbeat_path("gpu-1")).exists)

    def play(self, degrees: int) -> None:
        """From now on the card has this temperature."""
        step = {"at": 0, "temperature_c": degrees}
        card = {"name": "gpu:1", "capacity": "6144MiB", "uuid": self._uuid, "timeline": [step]}
        draft = self._cards.with_suffix(".new")
        draft.write_text(json.dumps({"cards": [card]}))
        draft.replace(self._cards)

    def heartbeat(self) -> dict[str, Any]:
        return json.loads((self.fleet.root / places.heartbeat_path("gpu-1")).read_text())

    def is_constrained(self) -> bool:
        return bool(self.heartbeat()["constraints"])

    def state(self) -> str:
        return str(self.heartbeat()["state"])

    def accepted(self, batch: str) -> list[str]:
        return [str(entry["task"]) for entry in self.fleet.entries("p", batch, "accept")]

    def offered(self) -> list[str]:
        """The classes of the slips that nobody has taken."""
        return sorted(path.name.split("-")[2] for path in (self.fleet.root / places.QUEUE).iterdir())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with shared_folder(tmp_path) as fleet:
        yield Rig(fleet)
        fleet.run("down", "--root", str(fleet.home / "home"))


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_a_card_that_gets_hot_and_cools_takes_what_the_table_says(rig: Rig) -> None:
    """FLEET-04, FLEET-05: cold and healthy, hot and healthy, constrained, and well again."""
    fleet = rig.fleet
    fleet.write_plan("p", ALL)
    first = fleet.submit("p")
    assert fleet.wait(first) == 0, fleet.plan("status", first).stdout
    order = rig.accepted(first)
    assert sorted(order) == ["asked", "counted", "scripted"], (
        "cold and healthy: everything; heated for the question"
    )
    wait_until(lambda: rig.state() == "hot", 60)

    rig.play(86)
    wait_until(rig.is_constrained, 60)
    log = fleet.home / "home" / "logs" / "agent-gpu-1.log"
    wait_until(lambda: "the device is constrained: 86 C, and its limit is " in log.read_text())
    wait_until(lambda: rig.state() == "cold", 60)  # a constrained card obeys `meta`, and is told to unload
    second = fleet.submit("p")
    wait_until(lambda: "counted" in rig.accepted(second), 60)
    # The others were offered before this one, and were passed over in the same look at the queue.
    assert rig.accepted(second) == ["counted"] and rig.offered() == ["llm", "script"]

    rig.play(82)  # below the limit and not yet four degrees below: still constrained
    third = fleet.submit("p")
    wait_until(lambda: "counted" in rig.accepted(third), 60)
    assert rig.offered() == ["llm", "llm", "script", "script"] and rig.is_constrained()

    rig.play(70)
    for batch in (second, third):
        assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout
    assert not rig.is_constrained()
