"""Which broker a fleet uses: the address of an option, with the credentials of `[nats]` in the config.

Secrets are in the config or in the environment that it names, never in options: every user can read those.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from watchbill.errors import ConfigError
from watchbill.root import find_root
from watchbill.runtime.spools import reach_of
from watchbill.spool.jetstream.reach import Reach

__all__ = ["FROM_CONFIG", "FleetBroker", "Nats", "choose_broker"]

#: Stands for the servers of the config.
FROM_CONFIG = "config"
_SCHEMES = ("nats://", "tls://")

Nats = Annotated[
    str,
    Parameter(
        help="The address of a NATS server, as nats://10.0.0.5:4222; config: the servers of [nats] in the config. "
        "[nats] also has the credentials, and [fleet] the subject.",
    ),
]


@dataclass(frozen=True, slots=True)
class FleetBroker:
    """A broker, and the subject at which the door of a fleet answers."""

    reach: Reach
    subject: str


def choose_broker(address: str, config: Path | None = None) -> FleetBroker:
    """The broker that an option names. Raises ConfigError."""
    from watchbill.config import find_config, read

    if address != FROM_CONFIG and not address.startswith(_SCHEMES):
        raise ConfigError(f"--nats {address} is no address; write for example --nats nats://10.0.0.5:4222")
    root = find_root(None)
    fleet = read(find_config(config, root), root=root.path, only=("nats", "fleet")).catalog.fleet
    rules = fleet.broker if address == FROM_CONFIG else replace(fleet.broker, servers=(address,))
    return FleetBroker(reach_of(rules, root.path), fleet.subject)
