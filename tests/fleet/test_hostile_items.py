"""Hostile values of items through a whole fleet: manifest, journal, slip, agent, guard, sandbox and bash.

The values are data: they are written to a manifest by Python, and the command only prints them. The agent runs as a
user without rights, and the task in a sandbox.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plans.test_plan_commands import SNIPPETS
from support.eventually import wait_until
from support.fleet_rig import AgentProcess, FleetRig
from watchbill.processes.sandbox import can_landlock

NOBODY = 65534
PER_TASK = 200
COMMAND = "printf '%s\\0' {ITEM.v} \"{ITEM.v}\" '{ITEM.v}' >> {BATCH_PATH}/{ITEM.n}"


@pytest.fixture
def rig() -> Iterator[FleetRig]:
    """A fleet in a folder that a user without rights can reach."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to run an agent as a user without rights")
    home = Path(tempfile.mkdtemp(prefix="watchbill-hostile-"))
    home.chmod(0o777)
    probe = subprocess.run(
        [sys.executable, "-c", "import watchbill"], user=NOBODY, group=NOBODY, cwd=home, check=False,
        capture_output=True,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("a user without rights cannot run this checkout")
    made = FleetRig(home / "shared")
    yield made
    made.close()
    shutil.rmtree(home)


def hostile(chance: random.Random) -> str:
    letters = [chr(code) for code in (*range(1, 0xD800), 0x1F600, 0x10FFFF)]
    parts = (
        chance.choice(SNIPPETS if chance.random() < 0.7 else letters) for _ in range(chance.randrange(8))
    )
    return "".join(parts).encode("utf-8", "replace").decode()


def run(rig: FleetRig, count: int) -> None:
    level = "light" if can_landlock() else "none"
    folder = rig.submit(
        "b1",
        f"### print\n- **command**:\n  ```bash\n  {COMMAND}\n  ```\n- **foreach**: items.json\n"
        f"- **batch_size**: {PER_TASK}\n- **retries**: 0\n- **sandbox**: {level}\n",
    )
    chance = random.Random(os.urandom(8))
    values = [hostile(chance) for _ in range(count)]
    items = [{"n": f"n{number // PER_TASK}", "v": value} for number, value in enumerate(values)]
    (folder / "items.json").write_text(json.dumps(items))
    wait_until(lambda: rig.turn() is None or rig.disk.names("tasks/queue"))
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(rig.root)], check=True)
    rig.agents.append(_without_rights(rig))
    wait_until(rig.turn, 60 + count / 50)
    assert rig.entries("b1", "ended")[0]["outcome"] == "complete", rig.entries("b1", "fail")[:2]
    for number in range(0, count, PER_TASK):
        expected = [value for value in values[number : number + PER_TASK] for _ in range(3)]
        found = (rig.batch_folder("b1") / f"n{number // PER_TASK}").read_bytes()
        assert found == b"".join(value.encode() + b"\0" for value in expected)
    assert not list(rig.root.rglob("pwned"))


def _without_rights(rig: FleetRig) -> AgentProcess:
    return AgentProcess(rig, "cpu-1", "--cpu-slots", "2", user=NOBODY)


def test_hostile_items_reach_a_program_without_rights_byte_for_byte(rig: FleetRig) -> None:
    """R51, R52: in the three kinds of quotes."""
    run(rig, 400)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_twenty_thousand_hostile_items_reach_a_program_without_rights_byte_for_byte(rig: FleetRig) -> None:
    """R51, R52: in the three kinds of quotes."""
    run(rig, 20_000)
