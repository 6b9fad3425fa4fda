"""A fleet for a test: its shared folder, its coordinator, and agents that are gone afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder, shared_folder
from support.fleet_rig import FleetRig, marked_processes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[FleetRig]:
    made = FleetRig(tmp_path / "shared")
    yield made
    made.close()
    wait_until(lambda: not marked_processes(str(tmp_path)))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetFolder]:
    """The shared folder as people use it, by commands; all that was started there is gone afterwards."""
    with shared_folder(tmp_path) as found:
        yield found
