"""The makers of small worlds, as fixtures."""

import pytest

from support.worlds import ModelOf, WorldOf, make_model, make_world


@pytest.fixture
def world_of() -> WorldOf:
    return make_world


@pytest.fixture
def model() -> ModelOf:
    return make_model
