"""Every error Watchbill raises on purpose, in one tree.

    WatchbillError
    ├── OursError                    Watchbill, or the operator's files, are wrong
    │   ├── ConfigError              the config file, its values or its paths
    │   │   └── UnitError            a size or duration that cannot be read
    │   ├── NameRefused              outside text that must not become a path, unit or header
    │   ├── RootInUse                another daemon owns this root
    │   └── IllegalTransition        a bug: the core got an event that cannot happen
    └── TheirsError                  a client, an engine or a disk failed; carries `code` and `status`
        ├── RequestError             400  invalid_request
        │   ├── PreviousNotFound     400  previous_response_not_found
        │   └── ThreadsUnsupported   400  thread_unsupported_request
        ├── ModelNotFound            404  model_not_found
        ├── AuthenticationFailed     401  authentication_failed
        ├── Forbidden                403  forbidden
        ├── NotFound                 404  not_found
        ├── MethodNotAllowed         405  invalid_request
        ├── ReceiptTimeout           408  receipt_timeout
        ├── UnsupportedMedia         415  invalid_request
        ├── LaneFull                 429  lane_full
        ├── NeverFits                503  never_fits
        ├── NoLease                  409  no_lease
        │   └── LeaseEnds            409  no_lease
        ├── TierClosed               503  tier_closed
        ├── NoMemory                 503  no_memory
        ├── WaitExceeded             503  wait_exceeded
        ├── RunTimeout               503  run_timeout
        ├── EngineFailed             502  engine_failed
        ├── ModelFailed              503  model_failed
        ├── DeviceUnreadable         503  device_unreadable
        ├── DiskFailed               507  disk_failed
        ├── InMaintenance            503  maintenance
        ├── Preempted                503  preempted
        │   └── Cancelled            503  preempted
        ├── ShuttingDown             503  shutting_down
        ├── Overloaded               503  overloaded
        ├── TooLarge                 413  too_large
        ├── NotOffered               501  not_offered
        ├── Stale                    200  stale: a fallback answers in its place
        ├── PullFailed               502  pull_failed
        │   └── NoRoomToPull         507  disk_failed
        └── NotReachable             the daemon does not answer (command line only, exit 3)

A class's docstring is its default message. A message says what happened, to which name, and what to do.
`code` is a closed list: scripts match it.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

__all__ = [
    "AuthenticationFailed", "Cancelled", "ConfigError", "DeviceUnreadable", "DiskFailed", "EngineFailed",
    "Forbidden", "IllegalTransition", "InMaintenance", "LaneFull", "LeaseEnds", "MethodNotAllowed", "ModelFailed",
    "ModelNotFound", "NameRefused", "NeverFits", "NoLease", "NoMemory", "NoRoomToPull", "NotFound", "NotOffered",
    "NotReachable", "OursError", "Overloaded", "Preempted", "PreviousNotFound", "Problem", "PullFailed",
    "ReceiptTimeout", "RequestError", "RootInUse", "RunTimeout", "ShuttingDown", "Stale", "TheirsError",
    "ThreadsUnsupported", "TierClosed", "TooLarge", "UnitError", "UnsupportedMedia", "WaitExceeded",
    "WatchbillError",
]  # fmt: skip


class WatchbillError(Exception):
    """Something went wrong in Watchbill."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class OursError(WatchbillError):
    """Watchbill or its configuration is wrong."""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.what = message
        self.hint = hint  # what to do; empty when the message already says it


class Problem(NamedTuple):
    """One problem in a file of the operator: where, what, and what to do about it."""

    file: str
    line: int | None  # None where it is unknown
    key: str  # as in TOML: models.a.memory; empty for the file as a whole
    text: str
    hint: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        said = f"{self.text}; {self.hint}" if self.hint else self.text
        return f"{place}: {self.key}: {said}" if self.key else f"{place}: {said}"


class ConfigError(OursError):
    """The configuration cannot be used."""

    def __init__(self, message: str = "", *, hint: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(message or "\n".join(map(str, problems)), hint=hint)
        self.problems = tuple(problems)


class UnitError(ConfigError):
    """A size or duration cannot be read."""


class NameRefused(OursError):
    """This text cannot be used as a name."""


class RootInUse(OursError):
    """Another Watchbill daemon owns this root."""


class IllegalTransition(OursError):
    """The core got an event that cannot happen; this is a bug in Watchbill."""


class TheirsError(WatchbillError):
    """A client, an engine or a disk failed."""

    code: ClassVar[str] = "server_error"
    status: ClassVar[int] = 500

    def __init__(self, message: str = "", *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class RequestError(TheirsError):
    """The request cannot be understood."""

    code = "invalid_request"
    status = 400


class PreviousNotFound(RequestError):
    """The response that this one should continue is not kept here; send the whole conversation as input."""

    code = "previous_response_not_found"


class ThreadsUnsupported(RequestError):
    """thread cannot be used: conversations are not kept here; send all messages."""

    code = "thread_unsupported_request"


class ModelNotFound(TheirsError):
    """No such model; GET /v1/models lists the available ones."""

    code = "model_not_found"
    status = 404


class AuthenticationFailed(TheirsError):
    """A valid API key is needed: Authorization: Bearer KEY."""

    code = "authentication_failed"
    status = 401


class Forbidden(TheirsError):
    """This caller may not do that."""

    code = "forbidden"
    status = 403


class NotFound(TheirsError):
    """There is nothing here."""

    code = "not_found"
    status = 404


class MethodNotAllowed(TheirsError):
    """This address does not take this method."""

    code = "invalid_request"
    status = 405


class ReceiptTimeout(TheirsError):
    """The request did not arrive in time."""

    code = "receipt_timeout"
    status = 408


class UnsupportedMedia(TheirsError):
    """Send JSON: Content-Type: application/json, and no Content-Encoding."""

    code = "invalid_request"
    status = 415


class LaneFull(TheirsError):
    """The lane's queue is full; try again later."""

    code = "lane_full"
    status = 429


class NeverFits(TheirsError):
    """The model can never fit into the memory that this machine's configuration leaves for it."""

    code = "never_fits"
    status = 503


class NoLease(TheirsError):
    """This request needs a lease, and there is none."""

    code = "no_lease"
    status = 409


class LeaseEnds(NoLease):
    """This machine shuts down, and its leases end with it; ask for a new one when it is back."""


class TierClosed(TheirsError):
    """No tier that has the model may serve this request."""

    code = "tier_closed"
    status = 503


class NoMemory(TheirsError):
    """The memory is in use, so nothing can be lent now; ask again later."""

    code = "no_memory"
    status = 503


class WaitExceeded(TheirsError):
    """The request could not start within its lane's max_wait."""

    code = "wait_exceeded"
    status = 503


class RunTimeout(TheirsError):
    """The answer did not end within its lane's timeout."""

    code = "run_timeout"
    status = 503


class EngineFailed(TheirsError):
    """The engine failed while it answered."""

    code = "engine_failed"
    status = 502


class ModelFailed(TheirsError):
    """The model cannot be loaded."""

    code = "model_failed"
    status = 503


class DeviceUnreadable(TheirsError):
    """The memory of the model's device cannot be read, so nothing is loaded there; `watchbill doctor` says why."""

    code = "device_unreadable"
    status = 503


class DiskFailed(TheirsError):
    """The disk under Watchbill's root is full or fails; make room, and it goes on by itself."""

    code = "disk_failed"
    status = 507


class InMaintenance(TheirsError):
    """The device is lent out for maintenance."""

    code = "maintenance"
    status = 503


class Preempted(TheirsError):
    """The answer was cut: its memory was needed at once, or the operator ended it."""

    code = "preempted"
    status = 503


class Cancelled(Preempted):
    """This request was cancelled, by its caller or by the operator."""


class ShuttingDown(TheirsError):
    """Watchbill is shutting down; try again when it is back."""

    code = "shutting_down"
    status = 503


class Overloaded(TheirsError):
    """More connections or larger bodies than Watchbill takes at once; try again later."""

    code = "overloaded"
    status = 503


class TooLarge(TheirsError):
    """The request is larger than the limit."""

    code = "too_large"
    status = 413


class NotOffered(TheirsError):
    """Neither Watchbill nor an engine behind it does this."""

    code = "not_offered"
    status = 501


class Stale(TheirsError):
    """A newer request of the same lane or supersede key took this one's place before it started."""

    code = "stale"
    status = 200


class PullFailed(TheirsError):
    """The model file could not be fetched."""

    code = "pull_failed"
    status = 502


class NoRoomToPull(PullFailed):
    """The disk has no room for the model file; make room, and pull again."""

    code = "disk_failed"
    status = 507


class NotReachable(TheirsError):
    """No daemon answers; start one with: watchbill up."""

    code = "not_reachable"
    status = 503
