"""The private daemon of an agent ends with its agent, and an agent that could run nothing does not start."""

import json
import signal
from pathlib import Path

import pytest

from support.eventually import PATIENCE_S, wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet.folder import places


def daemons_below(folder: Path) -> list[int]:
    """The daemons whose root lies in this folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:  # it has ended
            continue
        if b"up" in words and any(word.startswith(bytes(folder)) for word in words):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_private_daemon_of_an_agent_that_is_ended_while_it_starts_ends_with_it(
    fleet: FleetFolder, number: int
) -> None:
    """FLEET-01, SUP-05: nothing outlives the process that it was started for."""
    places.make_root(fleet.root)
    agent = fleet.start("-m", "watchbill", "agent", "k1", "--device", "gpu:9", "--root", str(fleet.root))
    wait_until(lambda: len(daemons_below(fleet.home)) == 1)
    agent.send_signal(number)
    agent.wait(2 * PATIENCE_S)
    wait_until(lambda: not daemons_below(fleet.home))


def test_an_agent_for_a_device_that_is_not_there_says_so_and_leaves_nothing(fleet: FleetFolder) -> None:
    """FLEET-01: it does not join a fleet whose tasks it could never run."""
    places.make_root(fleet.root)
    told = fleet.run("agent", "k1", "--device", "gpu:9", "--root", str(fleet.root))
    assert told.returncode == 2 and "this machine has no device gpu:9; it has " in told.stderr
    assert not daemons_below(fleet.home) and not (fleet.root / places.PROCESSING / "k1").exists()


def test_an_agent_without_slots_device_and_model_is_refused(fleet: FleetFolder) -> None:
    """FLEET-01."""
    places.make_root(fleet.root)
    told = fleet.run("agent", "k1", "--cpu-slots", "0", "--root", str(fleet.root))
    assert told.returncode == 2 and "runs nothing; give it --cpu-slots 1" in told.stderr


def cards(fleet: FleetFolder, count: int) -> str:
    """A file with played-back cards."""
    made = [
        {
            "name": f"gpu:{number}",
            "capacity": "6144MiB",
            "uuid": f"GPU-{fleet.home.name}-{number}",
            "timeline": [{"at": 0, "used": 0, "temperature_c": 50}],
        }
        for number in range(count)
    ]
    path = fleet.home / "cards.json"
    path.write_text(json.dumps({"cards": made}))
    return str(path)


def agents_there(fleet: FleetFolder) -> set[str]:
    folder = fleet.root / places.GPUS
    return {path.parent.name for path in folder.glob("*/heartbeat.json")}


def test_agents_of_one_machine_that_are_started_by_hand_have_a_card_each(fleet: FleetFolder) -> None:
    """FLEET-01: one agent per card, without a daemon, a config, or an engine that computes on cards: the first one left
    none to the others, and a card that no engine uses was said not to be there."""
    fleet.write_plan(
        "script",
        "### use\n- **command**: `sleep 2; echo $WATCHBILL_AGENT $CUDA_VISIBLE_DEVICES`\n- **foreach**: items.json\n"
        "- **task_class**: script\n- **vram_estimate_mb**: 4000\n",
    )
    (fleet.root / "plans" / "script" / "items.json").write_text("[1, 2, 3, 4]")
    fleet.start_coordinator()
    wait_until((fleet.root / places.RESULTS).is_dir)
    fake = cards(fleet, 2)
    for number in (0, 1):
        words = ("agent", f"gpu-{number}", "--device", f"gpu:{number}", "--cpu-slots", "1")
        fleet.start("-m", "watchbill", *words, "--root", str(fleet.root), WATCHBILL_FAKE_GPUS=fake)
    wait_until(lambda: {"gpu_0", "gpu_1"} <= agents_there(fleet), 2 * PATIENCE_S)
    batch = fleet.submit("script")
    assert fleet.wait(batch) == 0
    done = {task["agent"] for task in fleet.status(batch)["tasks"]}
    assert done == {"gpu-0", "gpu-1"}, fleet.log.read_text()
    # A third one was told that the machine has no such device.
    words = ("agent", "third", "--device", "gpu:0", "--root", str(fleet.root))
    third = fleet.run(*words, WATCHBILL_FAKE_GPUS=fake)
    assert third.returncode == 2
    assert "belongs to the daemon of " in third.stderr and "/agents/gpu-0." in third.stderr


def test_the_private_daemon_of_an_agent_starts_no_other_programs_of_the_config(fleet: FleetFolder) -> None:
    """FLEET-01: with the config of a rig, one agent that is started by hand is one agent, and no coordinator."""
    places.make_root(fleet.root)
    config = fleet.home / "rig.toml"
    config.write_text(
        f'[fleet]\nroot = "{fleet.root}"\n[coordinator]\n[agents.other]\ncpu_slots = 1\n'
        '[devices."gpu:0"]\n[devices."gpu:1"]\n[models.m]\nengine = "scripted"\nmemory = { "gpu:0" = "1GB" }\n'
    )
    environment = {"WATCHBILL_FAKE_GPUS": cards(fleet, 2), "WATCHBILL_CONFIG": str(config)}
    fleet.start(
        "-m", "watchbill", "agent", "k1", "--device", "gpu:0", "--cpu-slots", "1", "--root", str(fleet.root),
        **environment,
    )  # fmt: skip
    wait_until(lambda: "k1" in agents_there(fleet), 2 * PATIENCE_S)
    wait_until(lambda: "k1 is ready" in fleet.log.read_text(), 2 * PATIENCE_S)
    (logs,) = fleet.home.glob("home/agents/*/daemon/logs")
    assert [path.name for path in logs.iterdir()] == []
    assert agents_there(fleet) == {"k1"}
