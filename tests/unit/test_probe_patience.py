"""A look at the machine that is cancelled in the very moment in which its answer arrives."""

import asyncio
import threading

import pytest

from support.eventually import wait_until
from watchbill.probes import Reading
from watchbill.probes.patient import PatientProbe


class HeldProbe:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def read(self) -> dict[str, Reading]:
        self.asked.set()
        self.let_go.wait(10)
        return {}


async def test_a_cancelled_look_ends_even_when_its_answer_comes_at_the_same_time() -> None:
    """P7: a daemon that ends while it looks does not wait for its probe without a limit."""
    probe = HeldProbe()
    looking = asyncio.create_task(PatientProbe(probe, deadline_ms=10_000).look())
    await asyncio.to_thread(probe.asked.wait, 10)
    probe.let_go.set()
    # The loop stands still while the answer is posted, so that both are there when it turns again.
    wait_until(lambda: all(thread.name != "watchbill-probe" for thread in threading.enumerate()))
    asyncio.get_running_loop().call_soon(looking.cancel)
    with pytest.raises(asyncio.CancelledError):
        await looking
