"""A power cut after a full disk: a response that was to be durable is durable also where it was written late."""

from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from watchbill.gateway.dialects.responses import store as store_module
from watchbill.gateway.dialects.responses.store import Store
from watchbill.names import file_stem

ID = f"resp_{7:032x}"


async def test_a_response_that_a_full_disk_refused_survives_a_power_cut(
    disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: one that was made in the background is not made again once its file is there, so the file has to stay."""
    monkeypatch.setattr(store_module, "RESPONSES_AGAIN_MS", 10)
    folder = Path(disk.path) / "responses"
    folder.mkdir()
    in_its_place = folder / file_stem("k")
    in_its_place.write_text("a file in the place of the key's folder")
    told = list[str]()
    store = Store(folder, tell=told.append)
    assert await store.put("k", ID, [b"made"], durable=True)
    await eventually(lambda: told)
    in_its_place.unlink()
    await store.until_written("k", ID)
    disk.shut_down()
    await store.close()
    disk.mount_again()
    again = Store(folder)
    assert await again.get("k", ID) == b"made"
    await again.close()
