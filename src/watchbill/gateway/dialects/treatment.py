"""Treatments: what becomes of each documented part of a protocol. The tables of the dialects are made of them."""

from enum import StrEnum

__all__ = ["Treatment"]


class Treatment(StrEnum):
    """What happens to a part of a request, or whether an event is sent."""

    WORKS = "works"
    IGNORED = "ignored"  # accepted, and without effect
    REFUSED = "refused"  # 400, and the message says why
