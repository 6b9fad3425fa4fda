"""Where NATS servers are, and how this machine identifies itself there."""

from dataclasses import dataclass, field

from watchbill.spool.limits import BROKER_WAIT_S

__all__ = ["Reach"]


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the brokers are, and how this machine identifies itself."""

    servers: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: str = ""  # a file
    ca: str = ""  # files of TLS
    certificate: str = ""
    key: str = ""
    wait_s: float = BROKER_WAIT_S
    variables: frozenset[str] = frozenset()  # of the environment, in which the password or the token stands

    @property
    def named(self) -> str:
        """The servers, for messages."""
        return ", ".join(self.servers)
