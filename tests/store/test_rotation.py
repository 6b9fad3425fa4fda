"""Rotation: every log has NAME as its newest file, NAME.1 as the one before, and no more files than its bound."""

import os
from pathlib import Path

import pytest

from watchbill.files.rotate import rotate


def names_and_texts(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_the_newest_files_are_kept_and_the_oldest_is_overwritten(tmp_path: Path) -> None:
    for number in range(6):
        rotate(str(tmp_path / "log"), 3)
        (tmp_path / "log").write_text(str(number))
    assert names_and_texts(tmp_path) == {"log": "5", "log.1": "4", "log.2": "3"}


@pytest.mark.parametrize("missing", ["log", "log.1"])
def test_a_file_that_is_missing_is_passed_over(tmp_path: Path, missing: str) -> None:
    for name in {"log", "log.1"} - {missing}:
        (tmp_path / name).write_text(name)
    rotate(str(tmp_path / "log"), 3)
    assert names_and_texts(tmp_path) == ({"log.2": "log.1"} if missing == "log" else {"log.1": "log"})


def test_a_folder_that_was_renamed_meanwhile_is_still_the_one_that_is_meant(tmp_path: Path) -> None:
    """The reactor holds its folders open: their names may lead elsewhere by now."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log").write_text("text")
    folder = os.open(tmp_path / "a", os.O_RDONLY | os.O_DIRECTORY)
    try:
        (tmp_path / "a").rename(tmp_path / "b")
        rotate("log", 2, dir_fd=folder)
    finally:
        os.close(folder)
    assert names_and_texts(tmp_path / "b") == {"log.1": "text"}
