"""The asynchronous spool: the same names, the same promises, no disk on the event loop."""

import asyncio
from pathlib import Path

import pytest

from support.eventually import eventually
from watchbill.spool import AsyncSpool, EventRefused, PoisonEvent
from watchbill.spool.inspect import stats


async def test_enqueue_and_dequeue(tmp_path: Path) -> None:
    """SPOOL-02, SPOOL-03: done on success, released on error, poisoned by PoisonEvent, None when empty."""
    async with AsyncSpool(tmp_path) as spool:
        await spool.enqueue({"id": 1})
        await spool.enqueue_many([{"id": 2}, {"id": 3}])
        async with spool.dequeue() as item:
            assert item is not None
            assert item.event == {"id": 1}
        with pytest.raises(RuntimeError):
            async with spool.dequeue() as item:
                raise RuntimeError
        with pytest.raises(PoisonEvent):
            async with spool.dequeue() as item:
                raise PoisonEvent("no")
        found = stats(spool.spool)
        assert (found.queue, found.done, found.poison) == (1, 1, 1)
        await spool.recover()
        async with spool.dequeue() as item:
            assert item is not None
        async with spool.dequeue() as nothing:
            assert nothing is None


async def test_a_thousand_tasks_share_a_handful_of_commits(tmp_path: Path) -> None:
    """SPOOL-02: each gets its own name or its own error."""
    async with AsyncSpool(tmp_path) as spool:
        names = await asyncio.gather(*(spool.enqueue({"id": number}) for number in range(1000)))
        assert len(set(names)) == 1000
        assert stats(spool.spool).queue == 1000
        results = await asyncio.gather(
            spool.enqueue({"id": "fine"}), spool.enqueue({"id": float("nan")}), return_exceptions=True
        )
        assert isinstance(results[0], str)
        assert isinstance(results[1], EventRefused)


async def test_cancelling_a_consumer_releases_its_event(tmp_path: Path) -> None:
    """SPOOL-03, LANE-07: whether it is cancelled at work or while it waits for the lease."""
    async with AsyncSpool(tmp_path) as spool:
        await spool.enqueue({"id": 1})
        began = asyncio.Event()

        async def work() -> None:
            async with spool.dequeue():
                began.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        assert stats(spool.spool).queue == 1
        leasing = asyncio.create_task(spool.lease())
        await asyncio.sleep(0)
        leasing.cancel()
        await asyncio.wait([leasing])
        await spool.recover()  # one thread consumes: after this the cancelled lease has been made
        await eventually(lambda: not spool.spool.in_flight_here)
        assert stats(spool.spool).queue == 1


async def test_wait_wakes_on_arrival_and_on_cancel(tmp_path: Path) -> None:
    """SPOOL-04: a waiting task hears an arrival; a cancelled one does not hold its thread."""
    async with AsyncSpool(tmp_path) as spool, AsyncSpool(tmp_path) as other:
        await spool.wait(0.01)
        waiting = asyncio.create_task(spool.wait(30))
        await asyncio.sleep(0.05)
        await other.enqueue({"id": 1})
        assert await asyncio.wait_for(waiting, 10)
        waiting = asyncio.create_task(spool.wait(30))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_closed_spool_says_so_as_the_other_one_does(tmp_path: Path) -> None:
    """SPOOL-03: sync and async are one interface."""
    spool = AsyncSpool(tmp_path / "spool")
    await spool.enqueue({"id": 1})
    await spool.close()
    await spool.close()
    for act in (spool.enqueue({"id": 2}), spool.lease(), spool.wait(0.1)):
        with pytest.raises(ValueError, match="is closed"):
            await act
