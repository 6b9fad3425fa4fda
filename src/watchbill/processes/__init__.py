"""Processes: everything Watchbill starts, guards, stops and reaps.

    keeper = Keeper(root)                                   # one per root
    process = await keeper.start("qwen", argv, log=path)    # behind a guard, with a record on disk
    await process.stop()                                    # ask, TERM, KILL; the whole tree
    reap(root)                                              # at start, with the RootLock held

No other module starts a process.
"""

from watchbill.processes.device_lock import CardLocks
from watchbill.processes.environment import Withheld
from watchbill.processes.keeper import Finished, Keeper
from watchbill.processes.logs import Log, Seen, engine_log, read_growth, watch_own_log
from watchbill.processes.owned import Ending, OwnedProcess, shielded
from watchbill.processes.ports import LOOPBACK, is_taken, try_to_listen
from watchbill.processes.reaping import Reaped, reap
from watchbill.processes.root_lock import RootLock
from watchbill.processes.signals import Signals

__all__ = [
    "LOOPBACK", "CardLocks", "Ending", "Finished", "Keeper", "Log", "OwnedProcess", "Reaped", "RootLock", "Seen",
    "Signals", "Withheld", "engine_log", "is_taken", "read_growth", "reap", "shielded", "try_to_listen",
    "watch_own_log",
]  # fmt: skip
