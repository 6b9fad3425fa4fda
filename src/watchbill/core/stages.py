"""Stages: where a model is on its way into memory and out of it, and the groups of stages that others ask for.

`residency` has the table of which stage follows which, and the acts that change them.
"""

from enum import Enum, StrEnum

__all__ = ["AWAY", "HOLDING", "LEAVING", "MOVING", "STAYING", "ModelStatus", "Stage"]


class Stage(Enum):
    """The stage of a model on its way into memory and out of it."""

    __hash__ = object.__hash__  # Enum's own hashes the name in Python, at every table lookup

    ABSENT = "absent"  # no memory held
    PLANNED = "planned"  # memory promised, its victims are leaving
    LOADING = "loading"  # memory held, the engine was told to load
    READY = "ready"  # serving
    DRAINING = "draining"  # no new work; leaves when its running requests have ended
    STOPPING = "stopping"  # the engine was told to stop, or to sleep; memory held until it is back
    ASLEEP = "asleep"  # its process runs without its weights; it wakes faster than it loads


class ModelStatus(StrEnum):
    """A model's stage, and whether it failed: one word for people and scripts."""

    ABSENT = "absent"
    PLANNED = "planned"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    ASLEEP = "asleep"
    FAILED = "failed"  # absent, and a load would fail again
    QUARANTINED = "quarantined"  # absent, and not tried for a while


HOLDING = frozenset({Stage.LOADING, Stage.READY, Stage.DRAINING, Stage.STOPPING, Stage.ASLEEP})
STAYING = frozenset({Stage.PLANNED, Stage.LOADING, Stage.READY, Stage.ASLEEP})
#: Neither warm nor on the way in: a request for it needs a plan.
AWAY = (Stage.ABSENT, Stage.ASLEEP)
#: On the way out: it takes no new requests, and those that come wait for its return.
LEAVING = (Stage.DRAINING, Stage.STOPPING)
MOVING = frozenset({Stage.PLANNED, Stage.LOADING, Stage.DRAINING, Stage.STOPPING})
