"""The patient probe: reads another probe and never waits longer than a deadline for it.

A driver library can hang inside the kernel, a file system under /sys can stall, a value can be missing for once. In
each case the caller gets the last value that was read, with its age. A read that hangs keeps its one thread until it
returns; no second one is started beside it.
"""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress

from watchbill.probes import Probe, ProbeError, Reading
from watchbill.probes.limits import PROBE_DEADLINE_MS

__all__ = ["PatientProbe"]


class PatientProbe:
    """One probe, read in a thread of its own. Call `look` on the event loop."""

    def __init__(self, probe: Probe, *, deadline_ms: int = PROBE_DEADLINE_MS) -> None:
        self._probe = probe
        self._deadline_s = deadline_ms / 1000
        self._last: dict[str, Reading] = {}
        self._pending: asyncio.Future[Mapping[str, Reading]] | None = None
        #: Why the last `look` brought nothing new, or not of every device; None when it did.
        self.failure: str | None = None

    @property
    def uuids(self) -> dict[str, str]:
        """Device -> UUID, of the cards that were read at least once."""
        return {name: reading.uuid for name, reading in self._last.items() if reading.uuid}

    async def look(self) -> Mapping[str, Reading]:
        """The newest readings, each with the time it was taken. Never raises for a failing probe."""
        if self._pending is None:
            self._pending = self._start()
        try:
            # Shielded: the deadline ends our waiting, not the read, whose late answer still counts next time. Not
            # wait_for: until Python 3.12 it swallows a cancellation that meets the answer, and a daemon that ended in
            # that moment waited for its probe loop without end.
            async with asyncio.timeout(self._deadline_s):
                found = await asyncio.shield(self._pending)
        except TimeoutError:
            self.failure = f"no answer within {self._deadline_s:g} s"
            return dict(self._last)
        except ProbeError as error:
            self.failure = str(error)
        else:
            lost = sorted(self._last.keys() - found.keys())
            self._last.update(found)
            self.failure = f"{', '.join(lost)} cannot be read any more" if lost else None
        self._pending = None
        return dict(self._last)

    def _start(self) -> "asyncio.Future[Mapping[str, Reading]]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Mapping[str, Reading]] = loop.create_future()
        # A daemon thread, not the loop's executor: the interpreter waits for an executor's threads at its end,
        # and this one may hang without end.
        threading.Thread(target=self._read, args=(loop, answer), name="watchbill-probe", daemon=True).start()
        return answer

    def _read(self, loop: asyncio.AbstractEventLoop, answer: "asyncio.Future[Mapping[str, Reading]]") -> None:
        found: Mapping[str, Reading] = {}
        # The result if the probe raises an unexpected error.
        failure: ProbeError | None = ProbeError("the probe broke off")
        try:
            found = self._probe.read()
            failure = None
        except ProbeError as error:
            failure = error
        except OSError as error:  # any errno: the device cannot be read now, and the text says why
            failure = ProbeError(f"{type(self._probe).__name__}: {error}")
        finally:
            with suppress(RuntimeError):  # the loop was closed while we hung: nothing waits for the result
                loop.call_soon_threadsafe(_settle, answer, found, failure)


def _settle(
    answer: "asyncio.Future[Mapping[str, Reading]]", found: Mapping[str, Reading], failure: ProbeError | None
) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(found)
    else:
        answer.set_exception(failure)
        answer.exception()  # nothing may read it any more, which is no reason for a warning
