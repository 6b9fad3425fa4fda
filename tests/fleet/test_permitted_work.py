"""An agent runs what permissions.toml allows: what it denies fails with the rule, what it asks about waits."""

import pytest

from support.eventually import wait_until
from support.fleet_rig import FleetRig, marked_processes
from watchbill.fleet.folder import places
from watchbill.processes.sandbox import can_bubblewrap, can_landlock


def task(name: str, command: str) -> str:
    return f"### {name}\n- **command**:\n  ```bash\n  {command}\n  ```\n"


def finish(rig: FleetRig) -> None:
    rig.start("cpu-1")
    wait_until(rig.turn, 30.0)


def test_a_denied_command_fails_once_and_names_its_rule(rig: FleetRig) -> None:
    """FLEET-10: with file and line, without another attempt, and nothing of it has run"""
    (rig.root / "permissions.toml").write_text('deny = [\n  "touch *",\n]\n')
    rig.submit("b1", task("good", "echo fine") + task("bad", "echo a; touch {BATCH_PATH}/ran"))
    finish(rig)
    (failed,) = rig.entries("b1", "fail")
    assert (failed["task"], failed["end"], failed["is_final"]) == ("bad", "blocked", True)
    assert 'permissions.toml:2: deny "touch *"' in failed["tail"]
    assert [entry["task"] for entry in rig.entries("b1", "accept")] == ["good"]
    assert not (rig.batch_folder("b1") / "ran").exists()


def test_a_command_that_is_asked_about_waits_for_a_person(rig: FleetRig) -> None:
    """FLEET-10: as manual, with the rule, and nothing of it has run"""
    rig.submit("b1", task("asks", "touch {BATCH_PATH}/ran"))
    (rig.root / "plans/p/permissions.toml").write_text('ask = ["touch *"]\n')
    finish(rig)
    (held,) = rig.entries("b1", "hold")
    assert (held["task"], held["cause"]) == ("asks", "approval")
    assert 'plans/p/permissions.toml:1: ask "touch *"' in held["text"]
    assert len(list((rig.root / places.MANUAL).iterdir())) == 1
    assert not (rig.batch_folder("b1") / "ran").exists()
    assert rig.entries("b1", "ended")[0]["outcome"] != "complete"


def test_a_broken_file_of_rules_runs_nothing_and_says_where_it_is_broken(rig: FleetRig) -> None:
    """FLEET-10"""
    (rig.root / "permissions.toml").write_text('allow = ["touch *"]\ndefualt = "ask"\n')
    rig.submit("b1", task("a", "touch {BATCH_PATH}/ran"))
    finish(rig)
    (held,) = rig.entries("b1", "hold")
    assert "permissions.toml:2" in held["text"] and "default" in held["text"]
    assert not (rig.batch_folder("b1") / "ran").exists()


def test_an_item_of_a_batch_that_names_a_denied_program_blocks_it(rig: FleetRig) -> None:
    """FLEET-10: rules are about the command with its values"""
    (rig.root / "permissions.toml").write_text('deny = ["touch *"]\n')
    folder = rig.submit(
        "b1",
        task("a", "{ITEM} {BATCH_PATH}/ran") + "- **foreach**: items.json\n- **batch_size**: 2\n",
    )
    (folder / "items.json").write_text('["touch"]')
    finish(rig)
    assert [entry["end"] for entry in rig.entries("b1", "fail")] == ["blocked"]
    assert not (rig.batch_folder("b1") / "ran").exists()


def test_without_rules_commands_and_scripts_of_the_plan_run(rig: FleetRig) -> None:
    """FLEET-10"""
    folder = rig.submit("b1", task("a", "touch {BATCH_PATH}/ran && bash scripts/s.sh {BATCH_PATH}"))
    (folder / "scripts").mkdir()
    (folder / "scripts/s.sh").write_text('touch "$1/script_ran"\n')
    finish(rig)
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete"
    assert (rig.batch_folder("b1") / "script_ran").exists()


def test_a_task_that_takes_more_memory_than_it_may_is_killed_and_says_so(rig: FleetRig) -> None:
    """R55: all its processes together; one that stays below is left alone."""
    (rig.root / "permissions.toml").write_text('[sandbox]\nmemory = "150MB"\n')
    hold = "python3 -c 'x = bytearray(90 * 2**20); import time; time.sleep(600)'"
    command = f"{hold} & {hold} & wait"
    rig.submit("b1", task("good", "echo fine") + task("bad", command) + "- **retries**: 0\n")
    finish(rig)
    (failed,) = rig.entries("b1", "fail")
    assert (failed["task"], failed["end"]) == ("bad", "failed") and "150 MB" in failed["tail"]
    assert [entry["task"] for entry in rig.entries("b1", "accept")] == ["good"]
    assert not marked_processes("bytearray(90")


@pytest.mark.parametrize("level", ["none", "light", "strict"])
def test_a_task_cannot_allocate_many_times_its_memory_at_once(rig: FleetRig, level: str) -> None:
    """R55: not even between two looks of its guard, with or without a sandbox; a few times is not refused."""
    if level == "light" and not can_landlock():
        pytest.skip("needs landlock")
    if level == "strict" and not can_bubblewrap():
        pytest.skip("needs bubblewrap")
    (rig.root / "permissions.toml").write_text(f'[sandbox]\nmemory = "100MB"\nlevel = "{level}"\n')
    reserve = (
        "python3 -c 'import mmap; mmap.mmap(-1, {} * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)'"
    )
    rig.submit(
        "b1", task("good", reserve.format(200)) + task("bad", reserve.format(1000)) + "- **retries**: 0\n"
    )
    finish(rig)
    (failed,) = rig.entries("b1", "fail")
    assert failed["task"] == "bad" and "Cannot allocate memory" in failed["tail"], failed
    assert [entry["task"] for entry in rig.entries("b1", "accept")] == ["good"]


def test_a_task_with_more_processes_than_it_may_is_killed_and_the_plan_can_only_tighten(
    rig: FleetRig,
) -> None:
    """R55: by the number of its processes, whoever runs the agent."""
    (rig.root / "permissions.toml").write_text("[sandbox]\nprocesses = 5\n")
    rig.submit(
        "b1", task("bad", "for i in 1 2 3 4 5 6 7 8; do sleep 597 & done; wait") + "- **retries**: 0\n"
    )
    (rig.root / "plans/p/permissions.toml").write_text("[sandbox]\nprocesses = 100\n")
    finish(rig)
    (failed,) = rig.entries("b1", "fail")
    assert failed["end"] == "failed" and "processes" in failed["tail"] and "have 5" in failed["tail"]
