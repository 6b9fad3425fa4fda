"""Which models' lines are asked now, so that loads stay few and no model waits without end. Pure.

Lines of models that are in memory cost no load, so they are asked first, all of them side by side. Only when none of
these has lines left, the model whose lines waited longest is asked for, one at a time: asking for two that do not fit
together would have the scheduler swap them again and again. A model whose lines have not been served for a turn goes
before all others, so that an endless supply of lines for one model does not hold up another.
"""

from collections.abc import Collection, Mapping

from watchbill.batches.limits import BATCH_TURN_MS

__all__ = ["choose"]


def choose(waiting_since: Mapping[str, int], warm: Collection[str], now: int) -> list[str]:
    """The models whose lines are asked now.

    `waiting_since` has every model with lines that are not answered: since when none of them was served, in
    milliseconds. Of equal ones the first by name is asked for, so that the choice does not change all the time."""
    if not waiting_since:
        return []
    longest = min(waiting_since, key=lambda model: (waiting_since[model], model))
    if now - waiting_since[longest] >= BATCH_TURN_MS and longest not in warm:
        return [longest]
    return [model for model in waiting_since if model in warm] or [longest]
