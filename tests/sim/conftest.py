"""The makers of small worlds, as fixtures."""

from pathlib import Path

import pytest

from support.worlds import ModelOf, WorldOf, make_model, make_world

#: Worlds compute and never wait: on a busy machine they take several times as long, and nothing is wrong.
PATIENCE_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture
def world_of() -> WorldOf:
    return make_world


@pytest.fixture
def model() -> ModelOf:
    return make_model
