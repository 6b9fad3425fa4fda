"""The makers of small worlds, as fixtures."""

import pytest

from support.worlds import ModelOf, WorldOf, make_model, make_world

#: Worlds compute and never wait: on a busy machine they take several times as long, and nothing is wrong.
PATIENCE_S = 900


def pytest_itemcollected(item: pytest.Item) -> None:
    if not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture
def world_of() -> WorldOf:
    return make_world


@pytest.fixture
def model() -> ModelOf:
    return make_model
