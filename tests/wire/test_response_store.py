"""Kept responses: per key, for a day, within bounds, and still there after a restart."""

import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.eventually import eventually
from watchbill.errors import DiskFailed
from watchbill.gateway.dialects.responses import store as store_module
from watchbill.gateway.dialects.responses.store import Bounds, Store
from watchbill.gateway.limits import RESPONSE_BYTES_MAX
from watchbill.names import file_stem

DAY_S = 86_400


def name(at: int) -> str:
    return f"resp_{at:032x}"


class Clock:
    """The wall clock, as a test turns it."""

    def __init__(self) -> None:
        self.now = 2_000_000_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@asynccontextmanager
async def kept(
    folder: Path | None, bounds: Bounds | None = None, clock: Clock | None = None
) -> AsyncIterator[Store]:
    store = Store(folder, bounds=bounds, clock=clock or Clock())
    try:
        yield store
    finally:
        await store.close()


def files(folder: Path) -> set[str]:
    return {file.stem for file in folder.rglob("*.json")}


async def test_a_response_survives_a_restart_and_belongs_to_its_key(tmp_path: Path) -> None:
    """LANE-01: at once from memory, later from a file that only its owner may read."""
    clock = Clock()
    async with kept(tmp_path / "r", clock=clock) as store:
        assert await store.put("one", name(1), [b"a", b"b"])
        assert await store.get("one", name(1)) == b"ab"
        assert await store.get("two", name(1)) is None
        assert not await store.delete("two", name(1))
        assert await store.put("one", name(1), [b"later"])
    [file] = (tmp_path / "r").rglob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with kept(tmp_path / "r", clock=clock) as store:
        assert await store.get("one", name(1)) == b"later"
        assert await store.get("", name(1)) is None
        assert await store.delete("one", name(1))
        assert await store.get("one", name(1)) is None
        assert not await store.delete("one", name(1))
    assert not files(tmp_path)


async def test_what_was_not_used_for_a_day_is_gone(tmp_path: Path) -> None:
    """LANE-01: also when nobody asks, and when it was kept by an earlier daemon; use prolongs it."""
    clock = Clock()
    async with kept(tmp_path / "r", clock=clock) as store:
        for at in range(2):
            await store.put("", name(at), [b"x"])
        clock.now += DAY_S / 2
        assert await store.get("", name(1)) == b"x"
        clock.now += DAY_S / 2 + 10
        assert await store.get("", name(0)) is None
        assert await store.get("", name(1)) == b"x"
    clock.now += DAY_S / 2
    async with kept(tmp_path / "r", clock=clock):
        await eventually(lambda: files(tmp_path) == {name(1)})
    clock.now += DAY_S
    async with kept(tmp_path / "r", clock=clock):
        await eventually(lambda: not files(tmp_path))


async def test_the_bounds_of_a_key_take_its_own_oldest(tmp_path: Path) -> None:
    """LANE-01: by number and by bytes; another key loses nothing."""
    async with kept(tmp_path, Bounds(of_key_max=3, of_key_bytes_max=100)) as store:
        await store.put("quiet", name(99), [b"x" * 90])
        for at in range(4):
            await store.put("loud", name(at), [b"x"])
        assert await store.get("loud", name(0)) is None
        await store.put("loud", name(7), [b"x" * 99])
        assert await store.get("loud", name(7)) is not None
        assert await store.get("quiet", name(99)) is not None
        left = [at for at in range(4) if await store.get("loud", name(at)) is not None]
        assert len(left) == 1
    assert len(files(tmp_path)) == 3


async def test_all_keys_together_have_a_bound(tmp_path: Path) -> None:
    """LANE-01: the key that has most gives way."""
    async with kept(tmp_path, Bounds(bytes_max=100)) as store:
        await store.put("small", name(1), [b"x" * 20])
        for at in range(2, 8):
            await store.put("large", name(at), [b"x" * 30])
        assert await store.get("small", name(1)) is not None
        assert await store.get("large", name(7)) is not None
        assert await store.get("large", name(2)) is None


async def test_what_is_too_large_or_has_no_folder_is_not_kept(tmp_path: Path) -> None:
    """LANE-01: and the caller is told."""
    async with kept(tmp_path) as store:
        assert not await store.put("", name(1), [b"x" * (RESPONSE_BYTES_MAX + 1)])
    async with kept(None) as store:
        assert not await store.put("", name(1), [b"x"])
        assert await store.get("", name(1)) is None


async def test_half_a_file_of_a_killed_daemon_is_removed(tmp_path: Path) -> None:
    """LANE-01: and what is not ours stays."""
    async with kept(tmp_path) as store:
        await store.put("", name(1), [b"x"])
    [file] = tmp_path.rglob("*.json")
    half, foreign = file.with_name(f".{file.name}.new"), file.with_name("notes.txt")
    half.write_bytes(b"{")
    foreign.write_text("mine")
    async with kept(tmp_path) as store:
        assert await store.get("", name(1)) == b"x"
        assert not half.exists() and foreign.exists()


async def test_a_disk_that_refuses_costs_no_answer(tmp_path: Path) -> None:
    """LANE-01: the response is in memory until there is room; a file that somebody removed is not found."""
    blocked = tmp_path / "r"
    blocked.write_text("a file in the folder's place")
    async with kept(blocked) as store:
        assert await store.put("", name(1), [b"x"])
        assert await store.get("", name(1)) == b"x"
    async with kept(tmp_path / "other") as store:
        await store.put("", name(2), [b"y"])
        await eventually(lambda: files(tmp_path / "other") == {name(2)})
        [file] = (tmp_path / "other").rglob("*.json")

        async def is_on_the_disk_alone() -> bool:
            file.unlink(missing_ok=True)
            return await store.get("", name(2)) is None

        await eventually(is_on_the_disk_alone)


@pytest.mark.parametrize("is_at_end", [False, True], ids=["while it runs", "at the end"])
async def test_what_a_full_disk_refused_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_end: bool
) -> None:
    """LANE-01: a response that was promised is there after a restart; an alert says that it waits."""
    monkeypatch.setattr(store_module, "RESPONSES_AGAIN_MS", 3_600_000 if is_at_end else 10)
    folder, told = tmp_path / "r", list[str]()
    folder.mkdir()
    (folder / file_stem("k")).write_text("a file in the place of the key's folder")
    store = Store(folder, clock=Clock(), tell=told.append)
    for at in range(3):
        assert await store.put("k", name(at), [b"x"], durable=at == 1)
    await store.delete("k", name(2))
    await eventually(lambda: len(told) == 1 and "wait in memory" in told[0])
    (folder / file_stem("k")).unlink()
    if not is_at_end:
        await eventually(lambda: files(folder) == {name(0), name(1)})
    await store.close()
    assert files(folder) == {name(0), name(1)} and len(told) == 1
    async with kept(folder) as store:
        assert await store.get("k", name(1)) == b"x"


async def test_responses_that_a_full_disk_cost_are_counted_at_the_end(tmp_path: Path) -> None:
    """LANE-01: nothing is lost in silence."""
    told = list[str]()
    (tmp_path / file_stem("k")).write_text("a file in the place of the key's folder")
    store = Store(tmp_path, clock=Clock(), tell=told.append)
    for at in range(2):
        await store.put("k", name(at), [b"x"])
    await store.close()
    assert [text.split()[0] for text in told] == ["responses", "2"]


async def test_a_disk_that_hangs_is_an_error_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LANE-01: every wait has a deadline."""
    async with kept(tmp_path) as store:
        await store.put("k", name(1), [b"x"])
    begun, release = threading.Event(), threading.Event()

    def stuck(*_: object, **__: object) -> bytes:
        begun.set()
        release.wait(30)
        return b""

    monkeypatch.setattr(store_module, "read_regular", stuck)
    monkeypatch.setattr(store_module, "RESPONSES_DISK_MS", 50)
    monkeypatch.setattr(store_module, "RESPONSES_STOP_MS", 50)
    async with kept(tmp_path) as store:
        with pytest.raises(DiskFailed):
            await store.get("k", name(1))
        assert begun.is_set()
    release.set()
