"""Thoughts: how a model is told whether and how much to think, and how a client keeps its thoughts for the next turn.

The same for every dialect that knows them. Does no I/O.
"""

import base64
import binascii

from watchbill.gateway.typed import object_of

__all__ = ["EFFORTS", "reveal", "seal", "thinking_fields"]

Fields = dict[str, object]

#: How much a model may think, in the words that chat templates know.
EFFORTS = {
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
#: Before thoughts from here: those of another server cannot be read.
_SEAL = "watchbill:"


def thinking_fields(thinks: bool | None, effort: str | None, chat: Fields) -> Fields:
    """The fields of a chat that say whether and how much to think; what its caller said itself stays."""
    if thinks is None and effort is None:
        return {}
    words: Fields = {"enable_thinking": effort != "none" if thinks is None else thinks}
    fields: Fields = {}
    if effort is not None:
        fields["reasoning_effort"] = EFFORTS[effort]
        if effort != "none":
            words["reasoning_effort"] = EFFORTS[effort]
    given = chat.get("chat_template_kwargs")
    kept = object_of(given)
    return {**fields, "chat_template_kwargs": {**words, **kept}}


def seal(thoughts: str) -> str:
    """Thoughts as a client keeps them that sends nothing else of them back. Not a secret: they are its own."""
    return _SEAL + base64.b64encode(thoughts.encode("utf-8", "replace")).decode()


def reveal(sealed: object) -> str:
    """The thoughts in what `seal` made; nothing for what another server made."""
    if not isinstance(sealed, str) or not sealed.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_SEAL), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
