"""Messages between an agent and the door: one line of JSON, then bytes. Standard library only.

A request names its operation, the agent's session and a number that rises with each request of that session. An answer
has a value, or the error of the operation by its errno: an agent raises it as if its own disk had.
"""

import errno
import json
import os
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from watchbill.errors import OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet.folder.values import Fields, fields_of

__all__ = ["PROTOCOL", "Message", "Op", "OtherVersion", "answer_error", "pack", "raise_error", "unpack"]

#: Raised whenever a request or an answer means something else than before.
PROTOCOL = 1
_NOT_A_FILE = "not_a_file"
_VERSION = "version"


class Op(Enum):
    """What an agent may ask of the door."""

    HELLO = "hello"
    MORE = "more"  # the rest of an answer that did not fit into one message
    NAMES = "names"
    READ = "read"
    PUT = "put"
    MOVE = "move"
    REMOVE = "remove"
    MAKE_FOLDER = "make_folder"
    CREATE_LOG = "create_log"
    APPEND_LOG = "append_log"
    CLOSE_LOG = "close_log"
    TREE = "tree"  # the files that a task may need
    FETCH = "fetch"
    STORE = "store"
    APPEND = "append"
    DISCARD = "discard"


class Message(NamedTuple):
    """A request or an answer."""

    fields: Fields
    body: bytes = b""


class OtherVersion(OursError):
    """The door speaks another version of its protocol."""


def pack(fields: Mapping[str, object], body: bytes = b"") -> bytes:
    """One message."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n" + body


def unpack(data: bytes) -> Message:
    """Read a message. Raises ValueError for one that is none."""
    line, _, body = data.partition(b"\n")
    return Message(fields_of(line), body)


def answer_error(error: Exception) -> bytes:
    """The answer to a request that failed."""
    if isinstance(error, NotAFile):
        return pack({"error": {"kind": _NOT_A_FILE, "text": str(error)}})
    if isinstance(error, OtherVersion):
        return pack({"error": {"kind": _VERSION, "text": str(error)}})
    if isinstance(error, OSError) and error.errno is not None:
        return pack({"error": {"errno": error.errno, "text": error.strerror}})
    return pack({"error": {"errno": errno.EIO, "text": str(error)}})


def raise_error(answer: Message, about: str) -> None:
    """Raise what went wrong at the door, if anything did. `about` is the path that an OSError names."""
    error = answer.fields.fields("error")
    if not error.all():
        return
    text, kind = error.text("text"), error.text("kind")
    if kind == _NOT_A_FILE:
        raise NotAFile(text)
    if kind == _VERSION:
        raise OtherVersion(text, hint="install the same version of Watchbill on both machines")
    number = error.whole("errno", errno.EIO)
    raise OSError(number, text or os.strerror(number), about)
