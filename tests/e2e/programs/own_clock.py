"""Runs `watchbill` as on a machine with clocks of its own, and with shorter leases than in earnest.

    python own_clock.py '{"wall_s": 420, "monotonic_s": 3600, "lease_ms": 3000, "renew_ms": 500, "quiet_ms": 1000,
        "silence_ms": 2000}' up

Both clocks are ahead of the kernel's by so much, for everything that this process asks Python.
"""

import json
import sys
import time
from collections.abc import Callable


def ahead(clock: Callable[[], float], seconds: float) -> Callable[[], float]:
    return lambda: clock() + seconds


def ahead_ns(clock: Callable[[], int], seconds: int) -> Callable[[], int]:
    return lambda: clock() + seconds * 10**9


def main() -> None:
    _, text, *words = sys.argv
    told = json.loads(text)
    time.time, time.time_ns = ahead(time.time, told["wall_s"]), ahead_ns(time.time_ns, told["wall_s"])
    time.monotonic = ahead(time.monotonic, told["monotonic_s"])
    time.monotonic_ns = ahead_ns(time.monotonic_ns, told["monotonic_s"])
    # Only now: everything takes its clock and its bounds when it is imported.
    from watchbill.core import leases
    from watchbill.engines import limits

    leases.LEASE_MS, leases.RENEW_MS, leases.QUIET_MS = told["lease_ms"], told["renew_ms"], told["quiet_ms"]
    limits.LEASE_RENEW_MS, limits.UPSTREAM_SILENCE_MS = told["renew_ms"], told["silence_ms"]
    sys.argv = ["watchbill", *words]

    from watchbill.__main__ import main as watchbill

    watchbill()


if __name__ == "__main__":
    main()
