"""What the end-to-end tests share: a place with a daemon in it, and real model files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.place import Place
from gguf_models import gguf_files

__all__ = ["gguf_files"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty place. Whatever a test starts in it is gone afterwards, or the test fails."""
    place = Place(tmp_path)
    yield place
    place.close()


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place for the tests of one module that only ask questions."""
    place = Place(tmp_path_factory.mktemp("place"))
    yield place
    place.close()
