"""`door`: lets agents without the shared folder reach it, over a NATS broker."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

from watchbill.cli.broker_choice import FROM_CONFIG, FleetBroker, Nats, choose_broker
from watchbill.cli.fleet_root import find_fleet
from watchbill.cli.options import QUIET, FleetRoot
from watchbill.errors import OursError
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.logs import Part, set_up_logs
from watchbill.processes.device_lock import HostLock, LockHeld
from watchbill.root import find_root

__all__ = ["door"]


def door(
    *,
    root: FleetRoot = None,
    nats: Nats = FROM_CONFIG,
    quiet: Annotated[bool, QUIET] = False,
) -> int:
    """Let agents without the shared folder reach it over NATS.

    Agents that are started with `--nats` claim tasks through it, fetch the files of each, and send back what the task
    has left in the folder of its batch. It can run on any machine that has the folder, beside the coordinator as a
    rule; one for each folder. It can be killed and started anew at any time.

    Stays until Ctrl-C or SIGTERM.

    Example: watchbill door --root /mnt/shared --nats nats://10.0.0.5:4222
    """
    set_up_logs(os.environ, [logging.StreamHandler(sys.stderr)], logging.WARNING if quiet else logging.NOTSET)
    folder = find_fleet(root)
    broker = choose_broker(nats)
    fleet_id = places.wait_for_root(folder, limits.FLEET_WAIT_MS, Part.AGENT.logger.warning)
    private = find_root(None).path / "doors"
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = HostLock(private / f"{fleet_id}.lock")
    try:
        lock.take(f"the door of {folder}")
    except LockHeld as held:
        raise OursError(f"{held.holder} runs already", hint="stop that one first") from None
    try:
        _serve(folder, broker)
    finally:
        lock.release()
    return 0


def _serve(folder: Path, broker: FleetBroker) -> None:
    from watchbill.fleet.door.service import DoorService

    service = DoorService(folder, broker.reach, broker.subject)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: service.stop())
    service.run()
