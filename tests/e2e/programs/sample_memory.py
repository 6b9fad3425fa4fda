"""Samples the memory of all engines below a daemon every 20 ms until its standard input ends.

    python sample_memory.py DAEMON_PID

Memory is PSS, summed over every process below the daemon, guards included. Prints one JSON object: the number of
samples, the largest sum, the longest pause between two samples. Imports nothing of Watchbill.
"""

import contextlib
import json
import os
import select
import sys
import time

INTERVAL_S = 0.02


def below(root: int) -> list[int]:
    """Every process whose ancestor is `root`."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found = list(children.get(root, ()))
    for pid in found:  # grows while we walk
        found += children.get(pid, ())
    return found


def pss(pid: int) -> int:
    """The proportional memory of one process, in bytes; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def main(daemon: int) -> None:
    """Samples until nobody wants more."""
    with contextlib.suppress(PermissionError):
        os.nice(-15)  # on loaded cores its looks would be late
    samples, largest, pause, last = 0, 0, 0.0, time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, last + INTERVAL_S - time.monotonic()))[0]:
        now = time.monotonic()
        pause, last = max(pause, now - last), now
        samples += 1
        largest = max(largest, sum(pss(pid) for pid in below(daemon)))
    print(json.dumps({"samples": samples, "largest": largest, "pause_s": pause}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
