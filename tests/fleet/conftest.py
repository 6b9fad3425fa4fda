"""A fleet for a test: its shared folder, its coordinator, and agents that are gone afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_rig import FleetRig, marked_processes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[FleetRig]:
    made = FleetRig(tmp_path / "shared")
    yield made
    made.close()
    wait_until(lambda: not marked_processes(str(tmp_path)))
