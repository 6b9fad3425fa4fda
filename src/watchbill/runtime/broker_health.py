"""Whether the broker of `watchbill up --with-nats` still stores what it is sent.

A nats-server whose disk was full stores nothing more until it is started anew, also when there is room again: its
clients get no answer. It says so to a user of its system account. While the disk has no room for the largest event, a
new start would help nothing, so the server counts as sound until there is room. Blocks.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from watchbill.errors import ConfigError
from watchbill.runtime.broker import observer_reach
from watchbill.runtime.limits import NATS_PAYLOAD_BYTES_MAX, NATS_UNSOUND_LOOKS
from watchbill.spool.faults import SpoolBroken, SpoolFull
from watchbill.spool.jetstream.link import Link

__all__ = ["BrokerHealth"]

_HEALTH = "$SYS.REQ.SERVER.PING.HEALTHZ"
_UNAVAILABLE = 503


class BrokerHealth:
    """What the broker of this root says of itself."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "nats"
        self._link = Link(observer_reach(root), "watchbill-observer")
        self._unsound = 0  # looks in a row

    def needs_restart(self) -> bool:
        """Whether it says again and again that it does not store, although there is room on its disk."""
        self._unsound = self._unsound + 1 if self._is_unavailable() else 0
        return self._unsound >= NATS_UNSOUND_LOOKS and self._has_room()

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()

    def _is_unavailable(self) -> bool:
        try:
            answer = self._link.call(lambda: self._link.request(_HEALTH, b"{}"), "ask how the broker is")
            told = cast("Mapping[str, Any]", json.loads(answer.data))
        except (ConfigError, SpoolBroken, SpoolFull, ValueError):  # it starts, or ends: others see that
            return False
        return told.get("data", {}).get("status_code") == _UNAVAILABLE

    def _has_room(self) -> bool:
        try:
            return shutil.disk_usage(self._folder).free > NATS_PAYLOAD_BYTES_MAX
        except OSError:
            return False
