"""The engine protocol: what Watchbill asks of any program that hosts models.

An engine object serves every model of one `[engines.NAME]` table. It owns the processes (or the foreign
server's models) behind them, and promises four things:

- `load` returns only when the model is warm: healthy **and** one real probe answered. When it raises or is
  cancelled, nothing of the attempt is left behind: no process, no port, no memory. Where that cannot be known (another
  program hosts the model and does not answer) the error says so: `remains`.
- `stop` returns only when the memory is back, and does so within its stop ladder's bound.
- A model that ends without being stopped is reported once, through the `on_death` callback given at construction.
- A shared engine never starts, stops or unloads anything.

A driver proves itself by inheriting the contract suite in `tests/wire/engine_contract.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable
from urllib.parse import quote, urlsplit

from watchbill.catalog import Model
from watchbill.core.messages import Blame
from watchbill.errors import ConfigError, ModelFailed
from watchbill.quoting import quoted

__all__ = [
    "Capabilities",
    "DeathCallback",
    "Endpoint",
    "Engine",
    "HostCallback",
    "HostState",
    "LoadError",
    "Router",
    "Sleeper",
    "Successor",
    "Warm",
    "endpoint_of",
    "escape_path",
]

_PORTS = {"http": 80, "https": 443}


class DeathCallback(Protocol):
    """Is told of a model that ended without being stopped, and whose fault that is."""

    def __call__(self, model: str, attempt: int, reason: str, blame: Blame = Blame.MODEL, /) -> None: ...


@dataclass(frozen=True, slots=True)
class HostState:
    """What is known of a foreign program that hosts an engine's models."""

    silence: str | None = None  # why it cannot be asked
    places: int | None = None  # how many of our models it holds at once; None: no limit was noticed
    leaving: frozenset[str] = frozenset()  # our models that it is about to unload
    serves: bool = False  # while it is silent, its models that are in memory answer


#: Is told of every change.
HostCallback = Callable[[HostState], None]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a warm model answers. Comes from the config or from our own port choice, never from a client."""

    host: str
    port: int
    path_prefix: str = ""  # put before /v1/...
    upstream_model: str = ""  # the name the engine knows the model by; empty: leave the request's
    tls: bool = False
    continues: bool = False  # continues an assistant's message that the request begins
    key: str = field(default="", repr=False)  # the key that this engine asks for; only this client knows it
    lease: str = ""  # of another machine: the lease that requests there are under
    private: bool = False  # says so to another machine of the operator's, which may have tiers of its own
    # The marks of daemons that the request came through, for one with tiers of its own.
    passed: tuple[str, ...] = ()
    # Tells a peer that the request can be served elsewhere while a person works there.
    is_elsewhere: bool = False
    # Of the request's wait at another machine: what is left of it. None where it has begun, or waits nowhere.
    start_within_ms: int | None = None

    @property
    def about(self) -> tuple[str, ...]:
        """The lines of a request's head that every request there has."""
        lines = (
            f"Authorization: Bearer {self.key}" if self.key else "",
            f"X-Watchbill-Lease: {self.lease}" if self.lease else "",
            "X-Watchbill-Private: 1" if self.private else "",
            f"X-Watchbill-Passed: {', '.join(self.passed)}" if self.passed else "",
            "X-Watchbill-Elsewhere: 1" if self.is_elsewhere else "",
            "" if self.start_within_ms is None else f"X-Watchbill-Deadline-Ms: {self.start_within_ms}",
        )
        return tuple(filter(None, lines))

    @property
    def url(self) -> str:
        """The address before /v1/..., as a client writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path_prefix}"


def endpoint_of(url: str, *, upstream_model: str = "") -> Endpoint:
    """The endpoint of a `url` in the config. A path before /v1 is kept; /v1 itself may be written or left out.

    Raises ConfigError for anything that is more than scheme, host, port and path: a key in an address would
    end in logs.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
        host = _ascii(parts.hostname or "")
    except ValueError as error:
        raise ConfigError(f"{quoted(url)} is not an address: {quoted(str(error), 200)}") from error
    if port is None or not host:
        raise ConfigError(f"{quoted(url)} is not an address; write for example http://127.0.0.1:11434")
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"the address of {host} must not contain a user name, a query or a fragment")
    path = escape_path(parts.path).rstrip("/").removesuffix("/v1").rstrip("/")
    return Endpoint(host, port, path, upstream_model, tls=parts.scheme == "https")


def _ascii(host: str) -> str:
    """A host as DNS and TLS know it. Raises ValueError for a name that cannot be one."""
    return host if ":" in host else host.encode("idna").decode()


def escape_path(text: str) -> str:
    """A path or query as a request can carry it; what is escaped already stays."""
    return quote(text, safe="/%?:@!$&'()*+,;=~")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a driver can do; `status` shows it, and a contract test may skip only what is declared False."""

    owned: bool  # may start and stop its models
    measures_memory: bool  # can tell what a model occupies
    stops_generation: bool  # leaving a stream stops the work at the engine
    continues: bool = False  # a chat that ends with the assistant's own words is continued
    #: When it gives its weights back and keeps its process: never, by itself when idle, when it is told.
    sleeps: Literal["", "itself", "told"] = ""


@dataclass(frozen=True, slots=True)
class Warm:
    """The outcome of a load."""

    endpoint: Endpoint
    pid: int | None
    memory: Mapping[str, int]  # device -> bytes, measured; empty when it cannot be told
    probe: str = "none"  # what proved it warm, and can be asked again
    unit: str = ""  # the systemd unit that hosts it
    health: str = ""  # its health address, where it has one


class LoadError(ModelFailed):
    """The engine could not be brought up. The message does not name the model: the core adds its name."""

    def __init__(
        self,
        message: str,
        *,
        hopeless: bool = False,
        blame: Blame = Blame.MODEL,
        remains: bool = False,
    ) -> None:
        super().__init__(message)
        self.hopeless = hopeless  # the same load will fail again: a missing or corrupt file
        self.blame = blame
        #: Whether the load could not be undone: the model must be stopped before its memory counts as back.
        self.remains = remains


class Engine(Protocol):
    """One engine of the config."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def load(self, model: Model, attempt: int, expected_ms: int | None = None) -> Warm:
        """Brings the model up. Raises LoadError with the engine's last log lines in its message.

        `expected_ms` is what its loads usually take, for drivers that ask whether it is ready."""
        ...

    async def stop(self, model: str, *, hard: bool = False) -> None:
        """Takes the model down; does nothing when it is not up. `hard` starts the ladder at KILL."""
        ...

    def memory(self, model: str) -> Mapping[str, int]:
        """What the model occupies now, per device. Blocking file reads: call it in a thread."""
        ...

    async def close(self) -> None:
        """Stops everything this engine owns. The engine cannot be used afterwards."""
        ...


@runtime_checkable
class Sleeper(Protocol):
    """An engine whose models can sleep has these methods, too."""

    async def sleep(self, model: str, attempt: int) -> Mapping[str, int]:
        """Puts a warm model to sleep and says what it still occupies. Raises LoadError when it does not."""
        ...

    async def wake(self, model: Model, attempt: int) -> Warm:
        """Wakes a model; returns when it is warm. When it raises LoadError, nothing of the model is left."""
        ...

    async def is_asleep(self, model: str) -> bool | None:
        """Whether the model sleeps; None when it is not up or does not say."""
        ...


@runtime_checkable
class Watched(Protocol):
    """An engine whose models are in another program has this method, too."""

    async def look_again(self) -> None:
        """Looks at the other program, and returns when what it showed has been reported."""
        ...


@runtime_checkable
class Successor(Protocol):
    """An engine that may share something with the engine of a former config has this method, too."""

    def succeed(self, former: "Engine") -> None:
        """Takes its place, before anything is loaded."""
        ...


@runtime_checkable
class Router(Protocol):
    """A shared engine has this method, too: requests are routed to it, and it is never asked to load."""

    def route(self, model: Model) -> Warm:
        """Where the model answers, as the config says. Nothing is asked; a wrong address fails the first request."""
        ...
