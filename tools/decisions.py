"""A fingerprint of the core's decisions in random worlds: `python tools/decisions.py [WORLDS]`.

For a change that must not alter behaviour: run it before and after, the line must be the same. Sentences for people
do not count, so better wording leaves the fingerprint as it is.
"""

import hashlib
import sys
from collections.abc import Sequence
from enum import Enum

from msgspec.structs import fields

from watchbill.core.messages import Action, JournalEvent, Note
from watchbill.core.reasons import Planned, Swapped
from watchbill.simulate.fuzz import contended_world, random_world, run_out
from watchbill.simulate.world import World

WORLDS = 300
#: Every so many worlds one is contended for a quarter of an hour.
CONTENDED_EVERY = 25
CONTENDED_MS = 900_000
PROSE = {"message", "reason", "text"}


def facts(action: Action) -> tuple[object, ...]:
    """What was decided, without the words for it."""
    found = [getattr(action, field.name) for field in fields(action) if field.name not in PROSE]
    if isinstance(action, Note):
        why, is_change = action.reason, action.event in (JournalEvent.PLAN, JournalEvent.EVICT)
        found += [why.kind, why.target] if is_change and isinstance(why, Planned | Swapped) else [None, None]
    return tuple(value.value if isinstance(value, Enum) else value for value in found)


def decisions(seed: int) -> bytes:
    """The fingerprint of one world."""
    is_contended = seed % CONTENDED_EVERY == 0
    world: World = contended_world(seed) if is_contended else random_world(seed)
    found, step = hashlib.sha256(), world.core.step

    def seen(event: object, now: int) -> Sequence[Action]:
        actions = step(event, now)  # pyright: ignore[reportArgumentType]  passed on as it came
        for action in actions:
            found.update(f"{now} {facts(action)}\n".encode())
        return actions

    world.core.step = seen  # pyright: ignore[reportAttributeAccessIssue]  the one place to listen at
    if is_contended:
        world.run(CONTENDED_MS)
    else:
        run_out(world)
    return found.digest()


def main() -> None:
    """Prints one line for all worlds."""
    worlds = int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS
    whole = hashlib.sha256()
    for seed in range(1, worlds + 1):
        whole.update(decisions(seed))
    print(f"{worlds} worlds {whole.hexdigest()[:32]}")


if __name__ == "__main__":
    main()
