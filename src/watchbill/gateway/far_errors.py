"""The errors by which another Watchbill says that it cannot answer now. The same request may be answered later, or
elsewhere.
"""

from watchbill.errors import (
    DeviceUnreadable,
    DiskFailed,
    EngineFailed,
    InMaintenance,
    ModelFailed,
    NoMemory,
    Preempted,
    ShuttingDown,
    TheirsError,
    WaitExceeded,
)

__all__ = ["FAR_BREAKS", "FAR_REFUSALS"]

#: In place of an answer: the request could not start there in time, or its model cannot be loaded now.
FAR_REFUSALS: dict[str, type[TheirsError]] = {
    error.code: error for error in (WaitExceeded, DiskFailed, InMaintenance, NoMemory, DeviceUnreadable)
}
#: In the middle of an answer: also that its engine died, or that its model does not come back after a pause.
FAR_BREAKS = FAR_REFUSALS.keys() | {e.code for e in (EngineFailed, Preempted, ShuttingDown, ModelFailed)}
