"""A producer or a claimer of a spool, as on a host of its own: with a host name and a boot that no other one has.

    python host.py NAME SPOOL LOG produce FIRST COUNT
    python host.py NAME SPOOL LOG claim HOLD_MS

Writes a line to LOG for each event: `ack ID` when enqueue returned, `took ID` when it is leased, `done ID` when it is
finished, `lost ID` when it was no longer ours. A claimer ends when the file SPOOL.over is there and nothing waits. The
bounds of beats and silence are some thirty times shorter than in earnest.
"""

import sys
import time
from pathlib import Path

from watchbill.files import host, limits


def main() -> None:
    _, name, spool, log, act, *words = sys.argv
    host.boot_id = lambda: f"boot-of-{name}"
    host.host_name = lambda: name
    limits.BEAT_EVERY_S, limits.SILENCE_S_MAX, limits.LOOK_GAP_S_MAX = 0.3, 3.0, 1.0
    # Only now: everything takes its host and its bounds when it is imported.
    from watchbill.spool import Spool, queue

    queue.RECOVER_EVERY_S = 0.3
    with Path(log).open("a", buffering=1) as told, Spool(spool) as mine:
        if act == "produce":
            produce(mine, told, int(words[0]), int(words[1]))
        else:
            claim(mine, told, int(words[0]), Path(log).with_name("over"))


def produce(spool, told, first, count) -> None:
    from watchbill.spool import SpoolBroken

    for number in range(first, first + count):
        while True:
            try:
                spool.enqueue({"id": number, "kind": "note", "ts": 0})
                break
            except SpoolBroken:
                time.sleep(0.05)
        told.write(f"ack {number}\n")


def claim(spool, told, hold_ms, over) -> None:
    from watchbill.spool import LeaseLost, SpoolBroken

    while True:
        try:
            item = spool.lease()
            if item is None:
                if over.exists():
                    return
                spool.wait(0.05)
                continue
            told.write(f"took {item.event['id']}\n")
            time.sleep(hold_ms / 1000)
            spool.done(item)
            told.write(f"done {item.event['id']}\n")
        except LeaseLost:
            told.write(f"lost {item.event['id']}\n")
        except SpoolBroken as error:
            print(error, file=sys.stderr, flush=True)
            time.sleep(0.05)


if __name__ == "__main__":
    main()
