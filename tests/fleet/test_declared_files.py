"""Files that complete tasks declare, looked for when a batch is resumed."""

from pathlib import Path

import pytest

from watchbill.fleet.coordinator.declared_files import Listings
from watchbill.fleet.folder import places
from watchbill.fleet.folder.disk import FolderDisk

THERE = ("r/17.x", "r/170.x", "r/a[1].txt", "r/.hidden", "r/sub/deep.x", "file")
ASKED = (
    "r/17.x", "r/18.x", "r/17.*", "r/1.*", "r/*.x", "r/*.y", "r/.hid*", "r/*en", "r/a[[]1].txt", "r/a[[]2].txt",
    "r/a[1].txt", "r/a[[]*.txt", "r/1[67].x", "r/1[^6].x", "r/**", "r/**/deep.x", "*/17.x", "r/", "r/sub", "file/17.x",
    "nowhere/x",
    "r/dangling", "r/dang*", "r/1?.x", "r/link/deep.x", "r",
)  # fmt: skip


class Counting(FolderDisk):
    """Counts the questions that list a folder each where the answer is no."""

    asked = 0

    def has(self, pattern: str) -> bool:
        self.asked += 1
        return super().has(pattern)


@pytest.fixture
def disk(tmp_path: Path) -> Counting:
    for name in THERE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "r" / "dangling").symlink_to("nothing")
    (tmp_path / "r" / "link").symlink_to("sub")
    places.make_root(tmp_path)
    return Counting(tmp_path)


@pytest.mark.parametrize("pattern", ASKED)
def test_a_listing_answers_as_the_disk_does(disk: Counting, pattern: str) -> None:
    """PLAN-07: whatever a plan may name in `produces`."""
    assert Listings(disk).have(pattern) is disk.has(pattern)


def test_a_folder_is_listed_once_for_all_files_that_are_gone(disk: Counting) -> None:
    """PLAN-07: a coordinator that listed a folder of ten thousand names for each of them would count as dead."""
    listings = Listings(disk)
    assert not any(
        listings.have(f"r/gone{number}.*") or listings.have(f"r/gone{number}") for number in range(50)
    )
    assert disk.asked == 0
