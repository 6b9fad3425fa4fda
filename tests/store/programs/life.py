"""The whole life of some events, for runs under strace: what is acknowledged is said on stdout, at once."""

import os
import sys

from watchbill.spool import Spool


def say(word: str, name: str) -> None:
    os.write(1, f"{word} {name}\n".encode())


def main(path: str, durability: str) -> None:
    spool = Spool(path, durability=durability)  # type: ignore[arg-type]
    for number in range(3):
        say("enqueued", spool.enqueue({"id": f"one-{number}"}))
    for name in spool.enqueue_many([{"id": f"many-{number}"} for number in range(30)]):
        say("enqueued", name)
    for name in spool.enqueue_many([{"id": f"line-{number}"} for number in range(5)], bundle=True):
        say("enqueued", name)
    spool.checkpoint()
    for number in range(2):
        say("enqueued", spool.enqueue({"id": f"after-{number}"}))
    for settle in (spool.done, spool.release, lambda item: spool.poison(item, "on purpose"), spool.done):
        item = spool.lease()
        assert item is not None
        settle(item)
        say("settled", item.name)
    spool.lease()  # left in flight
    spool.close()
    say("closed", "")


main(sys.argv[1], sys.argv[2])
