"""Statuses: what the HTTP status of an engine's answer says about the engine, in one rule for everything that asks one.

An engine that refuses a request, or does not have its address, is not at fault: the next request may be served well.
Only a failure counts for the watchdog (RES-20).
"""

from enum import Enum

__all__ = ["Said", "said_by"]


class Said(Enum):
    """The meaning of a status."""

    ANSWERED = "answered"  # below 400
    REFUSED = "refused"  # the request is at fault
    LACKS = "lacks"  # the engine does not have this address, or not for this method or model
    FAILED = "failed"  # the engine is at fault


#: `python3 -m http.server`, for one, answers 501 to every POST, and is well.
_LACKS = frozenset({404, 405, 501})


def said_by(status: int) -> Said:
    """What an engine says with this status."""
    if status in _LACKS:
        return Said.LACKS
    if status < 400:
        return Said.ANSWERED
    return Said.REFUSED if status < 500 else Said.FAILED
