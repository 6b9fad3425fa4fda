"""Patterns of paths: what a plan names with them, and what they cost where a task has left something odd behind."""

import glob
import os
from pathlib import Path

import pytest

from watchbill.files.patterns import matches

FILES = ("a.txt", "b.txt", ".hidden.txt", "d/e/c.txt", "d/a.txt", "a[1].txt", "x*y", "list")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "in [here]" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "in [here]"


def found(pattern: str, folder: Path) -> list[str]:
    return sorted(path.removeprefix(f"{folder}/") for path in matches(pattern, folder))


@pytest.mark.parametrize(
    "pattern",
    [
        "a.txt", "./a.txt", "d//a.txt", "*.txt", "d/*", "d/*/*", "*/a.txt", "**/*.txt", "**/a.txt", "d/**/c.txt",
        "**/d/**/*",
        "no", "no/*", "a.txt/x", "*/no", "d/", "*/", "a.txt/", "l?st", "[ab].txt", "[!a].txt", "../*/list", "d/../list",
    ],
)  # fmt: skip
def test_a_pattern_names_what_glob_finds(folder: Path, pattern: str) -> None:
    """PLAN-02: where there are neither links nor brackets in names, the two agree."""
    whole = f"{glob.escape(str(folder))}/{pattern}"
    expected = {os.path.normpath(path) for path in glob.iglob(whole, recursive=True, include_hidden=True)}
    own = [os.path.normpath(path) for path in matches(pattern, folder)]
    assert set(own) == expected
    assert len(own) == len(expected)


def test_an_absolute_pattern_is_not_about_the_folder(folder: Path, tmp_path: Path) -> None:
    absolute = f"{glob.escape(str(folder))}/d/*.txt"
    assert list(matches(absolute, tmp_path / "elsewhere")) == [f"{folder}/d/a.txt"]


def test_everything_below_a_folder(folder: Path) -> None:
    assert found("d/**", folder) == ["d/", "d/a.txt", "d/e", "d/e/c.txt"]


def test_a_name_with_brackets_is_found_as_it_is_written(folder: Path) -> None:
    """PLAN-02: `produces: a[1].txt` failed a task that had written just that file."""
    assert found("a[1].txt", folder) == ["a[1].txt"]
    assert found(glob.escape("a[1].txt"), folder) == ["a[1].txt"]
    assert found(glob.escape("x*y"), folder) == ["x*y"]
    (folder / "a1.txt").touch()
    assert found("a[1].txt", folder) == ["a1.txt", "a[1].txt"]


def test_a_link_to_nothing_is_not_there(folder: Path) -> None:
    """PLAN-02: a task that had left a link to nothing counted as complete."""
    (folder / "gone").symlink_to("nowhere")
    (folder / "round").symlink_to("round")
    (folder / "kept").symlink_to("a.txt")
    assert found("gone", folder) == found("round", folder) == []
    assert found("?o*", folder) == []
    assert found("k*", folder) == ["kept"]


@pytest.mark.timeout(10)
def test_links_in_circles_are_not_walked(folder: Path) -> None:
    """FLEET-09: two links to their own folder were 2**40 paths, and hung agent after agent."""
    for name in ("one", "two", "d/three"):
        (folder / name).symlink_to(folder, target_is_directory=True)
    assert found("**/*.none", folder) == []
    assert found("**/c.txt", folder) == ["d/e/c.txt"]
    assert found("**/**/c.txt", folder) == found("**/e/**/c.txt", folder) == ["d/e/c.txt"]
    assert found("one/d/*.txt", folder) == ["one/d/a.txt"]


@pytest.mark.timeout(20)
def test_many_stars_in_a_deep_folder_take_no_longer_than_few(tmp_path: Path) -> None:
    """R53: each folder is looked at once for each part of the pattern, however many ways lead there."""
    (tmp_path / "/".join(["a"] * 60)).mkdir(parents=True)
    assert list(matches("**/a/" * 6 + "no", tmp_path)) == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("[^a].txt", ["b.txt"]),
        ("[^.]*.txt", ["a.txt", "a[1].txt", "b.txt"]),
        ("[[^]*", []),
        ("[^]]*t", ["a.txt", ".hidden.txt", "a[1].txt", "b.txt", "list"]),
        (".", [""]),
        ("d/.", ["d/"]),
        ("*/.", ["d/"]),
        ("a.txt/.", []),
    ],
)
def test_a_pattern_means_what_it_means_in_bash(folder: Path, pattern: str, expected: list[str]) -> None:
    """PLAN-02: `[^a]` leaves out as `[!a]` does, and a path that ends with a dot is a folder."""
    assert found(pattern, folder) == sorted(expected)


def test_nothing_is_looked_for_below_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLAN-02: `**/*/name` asked the disk for a path below each of a million files."""
    for number in range(100):
        (tmp_path / f"{number}").touch()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").touch()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "loop").symlink_to("loop")
    asked: list[object] = []
    really = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: asked.append(path) or really(path))
    assert found("**/*/x", tmp_path) == ["d/x", "link/x"]
    assert len(asked) < 10


@pytest.mark.parametrize("pattern", ["a\0b", "*/a\0b", "\ud800", "", "/" + "x" * 5000])
def test_what_cannot_name_a_file_names_none(folder: Path, pattern: str) -> None:
    assert [path for path in matches(pattern, folder) if path != f"{folder}/"] == []
