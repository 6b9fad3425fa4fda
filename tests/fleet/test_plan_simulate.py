"""`plan simulate`: forecasts from what earlier batches came to."""

import json
import os
from typing import Any

import pytest

from support.fleet_folder import FleetFolder
from watchbill.files.host import boot_id, start_time
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import AgentReport
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, write_heartbeat

TASKS = """
### list
- **command**: `printf '{"all":[{"id":"a"},{"id":"b"},{"id":"c"}]}' > {BATCH_PATH}/m.json`

### each
- **command**: `sleep 0.4 # {ITEM.id}`
- **foreach**: {BATCH_PATH}/m.json:all
- **depends_on**: list

### ask
- **prompt**: What is {WORD}?
- **depends_on**: each
"""


def simulated(fleet: FleetFolder, *options: str) -> dict[str, Any]:
    done = fleet.plan("simulate", "p", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_times_are_guesses_until_a_batch_has_shown_them(fleet: FleetFolder) -> None:
    """PLAN-06, FLEET-12: the journal of a batch is what the next forecast is made from."""
    fleet.write_plan("p", TASKS.split("### ask", maxsplit=1)[0], inputs="- `WORD`")
    before = simulated(fleet, "--agents", "cpu:1")
    assert {task["time_source"] for task in before["tasks"]} == {"guess"}
    assert [task["items_source"] for task in before["tasks"]] == [None, "guess"]
    fleet.start_coordinator()
    fleet.start_agent("cpu-1")
    assert fleet.wait(fleet.submit("p")) == 0
    after = simulated(fleet, "--agents", "cpu:1")
    each = after["tasks"][1]
    assert (each["time_source"], each["runs"], each["tasks"], each["items_source"]) == (
        "learned",
        3,
        3,
        "learned",
    )
    # Three times 0.4 s, as the agent heard it, one after the other on one slot.
    assert each["work_ms"] >= 1_000
    assert after["elapsed_ms"] >= each["work_ms"]
    wide = simulated(fleet, "--agents", "3xcpu:1")
    assert wide["elapsed_ms"] < after["elapsed_ms"]
    assert after["one_more"][0]["saved_ms"] > 0
    assert simulated(fleet)["agents"][0]["name"] == "cpu-1"  # those that live, unless others are named
    many = simulated(fleet, "--agents", "cpu:1", "--items", "each=30")
    assert many["tasks"][1]["tasks"] == 30 and many["elapsed_ms"] > 5 * after["elapsed_ms"]


def test_a_forecast_says_what_is_a_guess_and_changes_nothing(fleet: FleetFolder) -> None:
    fleet.write_plan("p", TASKS, inputs="- `WORD`")
    files = sorted(fleet.root.rglob("*"))
    done = fleet.plan("simulate", "p", "--agents", "2xcard:6144")
    assert done.returncode == 0, done.stderr
    assert "a guess; so is the number of items" in done.stdout
    assert "--items each=NUMBER" in done.stdout
    assert "one more like card-6144" in done.stdout
    assert "watchbill gpus --bench" in done.stdout
    assert sorted(fleet.root.rglob("*")) == files


def join_with_a_model(
    fleet: FleetFolder, name: str, *, is_hot: bool, lives: bool = True, model: str = "m"
) -> None:
    """An agent with a card, whose model takes 40 s to load, and is in its memory or not."""
    disk, pid = FolderDisk(fleet.root), os.getpid()
    for folder in (places.processing_folder(name), os.path.dirname(places.heartbeat_path(name))):
        disk.make_folder(folder)
    report = AgentReport(
        name, available_mb=4_000, cpu_slots=1, devices=("gpu:1",), host=name, model=model, models=("m",),
        hot_models=("m",) if is_hot else (), llm_slots=1, load_ms={"m": 40_000},
    )  # fmt: skip
    pulse = Pulse(boot_id(), pid, (start_time(pid) or 0) if lives else 1, 1)
    write_heartbeat(disk, name, Heartbeat(pulse, report))


def test_a_model_that_is_in_memory_is_not_loaded_in_a_forecast(fleet: FleetFolder) -> None:
    """FLEET-05, FLEET-12: a rig whose models are hot was said to be slower by a load of each."""
    fleet.write_plan("p", "### ask\n- **prompt**: What?\n")
    places.make_fleet(fleet.root)
    join_with_a_model(fleet, "gpu-1", is_hot=False)
    cold = simulated(fleet)
    join_with_a_model(fleet, "gpu-1", is_hot=True)
    hot = simulated(fleet)
    assert cold["elapsed_ms"] - hot["elapsed_ms"] >= 39_000
    assert [each["loads"] for each in (cold["agents"][0], hot["agents"][0])] == [1, 0]
    assert simulated(fleet, "--agents", "gpu-1")["agents"][0]["loads"] == 0
    # A further card has nothing in its memory, and neither has that of a dead agent.
    fleet.write_plan("p", "".join(f"### ask_{number}\n- **prompt**: What?\n" for number in range(12)))
    assert [each["loads"] for each in simulated(fleet, "--agents", "2xgpu-1")["agents"][:2]] == [0, 1]
    join_with_a_model(fleet, "gpu-1", is_hot=True, lives=False)
    assert simulated(fleet)["agents"][0]["loads"] == 1


def test_a_load_that_was_measured_counts_for_an_agent_without_a_model_of_its_own(fleet: FleetFolder) -> None:
    """FLEET-12: the time was a guess for ever, with the advice to measure what had been measured."""
    fleet.write_plan("p", "### ask\n- **prompt**: What?\n- **model**: m\n")
    places.make_fleet(fleet.root)
    join_with_a_model(fleet, "gpu-1", is_hot=False, model="")
    assert simulated(fleet)["agents"][0]["load_ms"] == 40_000
    assert "gpus --bench" not in fleet.plan("simulate", "p").stdout


def test_a_card_whose_model_fills_it_is_cooled_for_scripts_in_a_forecast(fleet: FleetFolder) -> None:
    """FLEET-05."""
    fleet.write_plan("p", "### work\n- **command**: `true`\n- **task_class**: script\n")
    places.make_fleet(fleet.root)
    join_with_a_model(fleet, "gpu-1", is_hot=True)
    assert simulated(fleet)["agents"][0]["tasks"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no agent has joined this folder"),
        (("--agents", "gpu-7"), "no agent gpu-7 ever joined"),
        (("--agents", ","), "names no agent"),
        (("--agents", "9999xcpu:1"), "1,000 agents are the limit"),
        (("--agents", "cpu:2"), "plan.md:"),  # nobody could answer the question
        (("--agents", "card:6144", "--items", "eech=3"), "each"),
        (("--agents", "card:6144", "--items", "each=x"), "give a number from 0"),
        (("--agents", "card:6144", "--set", "WURD=3"), "WORD"),
    ],
)
def test_wrong_words_are_named_with_what_to_write(
    fleet: FleetFolder, options: tuple[str, ...], said: str
) -> None:
    fleet.write_plan("p", TASKS, inputs="- `WORD`")
    done = fleet.plan("simulate", "p", *options)
    assert done.returncode == 2 and said in done.stderr, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_plan_with_scripts_and_a_table_is_played_whole(fleet: FleetFolder) -> None:
    """FLEET-12: every task is played, also of a plan that names files which the simulation does not have."""
    tasks = """
### each
- **command**: `python3 scripts/count.py {ITEM.name} < data.txt`
- **foreach**: {ROWS}

### last
- **command**: `cat data.txt`
- **depends_on**: each
"""
    folder = fleet.write_plan("p", tasks, inputs="- `ROWS` (default: rows.csv)", **{"count.py": ""})
    (folder / "data.txt").write_text("some")
    (folder / "rows.csv").write_text('id,name\na,x\nb,"y, z"\n')
    assert [task["tasks"] for task in simulated(fleet, "--agents", "cpu:1")["tasks"]] == [2, 1]
