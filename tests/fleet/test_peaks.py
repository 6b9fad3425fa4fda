"""How much memory a task used: measured per process, reported, and learned from (FLEET-10)."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder, shared_folder
from watchbill.fleet.folder import places

#: Plays a program on the card: the card shows this process with so much memory until somebody has seen it.
USE = """
import json, os, pathlib, sys, time
cards, size, seen = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
table = json.loads(cards.read_text())
table["cards"][0]["timeline"] = [{"at": 0, "processes": {str(os.getpid()): size}}]
draft = cards.with_suffix(".new")
draft.write_text(json.dumps(table))
draft.replace(cards)
while not seen.exists():
    time.sleep(0.05)
"""
CONFIG = """
[devices."gpu:0"]
reserve = 0
[models.unused]
engine = "scripted"
devices = ["gpu:0"]
memory = "1MiB"
script = { memory = "1MiB" }
[coordinator]
[agents.gpu-1]
device = "gpu:0"
cpu_slots = 1
"""
TASK = "### use\n- **task_class**: script\n- **command**: `python3 scripts/use.py {CARDS} 700MiB {BATCH_PATH}/seen`\n"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetFolder]:
    with shared_folder(tmp_path) as found:
        cards, file = found.home / "cards.json", found.home / "watchbill.toml"
        card = {
            "name": "gpu:0",
            "capacity": "6144MiB",
            "uuid": f"GPU-{secrets.token_hex(8)}",
            "timeline": [{"at": 0}],
        }
        cards.write_text(json.dumps({"cards": [card]}))
        file.write_text(CONFIG)
        found.start(
            "-m", "watchbill", "up", "--port", "0", "--config", str(file), WATCHBILL_FAKE_GPUS=str(cards)
        )
        found.root = found.home / "home" / "fleet"
        wait_until((found.root / places.heartbeat_path("gpu-1")).exists)
        yield found
        found.run("down")


def running(fleet: FleetFolder) -> dict[str, Any]:
    beat = json.loads((fleet.root / places.heartbeat_path("gpu-1")).read_text())
    return next(iter(beat["active_tasks"]), {})


def run(fleet: FleetFolder, *options: str) -> str:
    """Run the plan, and let its task end when its memory was seen."""
    batch = fleet.submit("p", "--set", f"CARDS={fleet.home / 'cards.json'}", *options)
    wait_until(lambda: running(fleet).get("peak_vram_mb", 0) >= 700, 90)
    (fleet.batch("p", batch) / "seen").touch()
    assert fleet.wait(batch) == 0
    return batch


def test_the_peak_of_a_task_is_measured_reported_and_learned(fleet: FleetFolder) -> None:
    """FLEET-06, FLEET-10, PLAN-06."""
    fleet.write_plan("p", TASK, inputs="- `CARDS`", **{"use.py": USE})
    batch = run(fleet)
    (accepted,) = fleet.entries("p", batch, "accept")
    assert accepted["peak_vram_mb"] == 700
    assert accepted["peak_rss_mb"] > 3  # a Python of its own
    summary = fleet.summary("p", batch)
    assert summary["peak_vram_mb"] == 700 and summary["memory"]["use"]["vram_mb"] == 700
    assert summary["peak_rss_mb"] == accepted["peak_rss_mb"]
    assert "peak RSS MB" in (fleet.batch("p", batch) / "RUN_SUMMARY.md").read_text()
    assert fleet.entries("p", batch, "issue")[0]["vram_mb"] == 1024
    # The next batch asks for what the last one used, and a little more; an estimate that is fixed stays.
    assert fleet.entries("p", run(fleet), "issue")[0]["vram_mb"] == 770
    fleet.write_plan("p", TASK + "- **vram_estimate_mb**: 900\n", inputs="- `CARDS`")
    assert fleet.entries("p", run(fleet), "issue")[0]["vram_mb"] == 900
    fleet.write_plan(
        "p", TASK + "- **vram_estimate_mb**: 900\n- **vram_policy**: infer\n", inputs="- `CARDS`"
    )
    assert fleet.entries("p", run(fleet), "issue")[0]["vram_mb"] == 770
