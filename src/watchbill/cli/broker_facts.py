"""Which NATS servers of a config answer, each asked by itself: a cluster hides that one of its servers is away."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from watchbill.catalog import Catalog, NatsRules
from watchbill.cli.limits import CLI_CALL_S
from watchbill.errors import ConfigError
from watchbill.runtime.spools import is_on_broker, reach_of
from watchbill.spool.faults import SpoolBroken, SpoolFull

__all__ = ["broker_of", "silent_servers"]


def broker_of(catalog: Catalog) -> NatsRules | None:
    """The servers that a spool or the fleet uses; None where nothing does, or `up --with-nats` runs the server."""
    used = [spool.nats for spool in catalog.spools.values() if is_on_broker(spool)]
    used += [catalog.fleet.broker] if catalog.fleet.nats is not None else []
    return next((rules for rules in used if rules.servers), None)


def silent_servers(rules: NatsRules, root: Path) -> Mapping[str, str]:
    """Server -> why nothing can be stored there, or nothing is known of it. Blocks, within a bound for all together."""
    told = {server: f"{server} does not answer within {CLI_CALL_S:g} s" for server in rules.servers}
    asking = [threading.Thread(target=_ask, args=(rules, root, server, told), daemon=True) for server in told]
    for thread in asking:
        thread.start()
    end = time.monotonic() + CLI_CALL_S + 1
    for thread in asking:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(told)


def _ask(rules: NatsRules, root: Path, server: str, told: dict[str, str]) -> None:
    """Removes the server's entry when JetStream answers there, else writes the reason."""
    from watchbill.spool.jetstream.link import Link

    link = Link(
        replace(reach_of(replace(rules, servers=(server,)), root), wait_s=CLI_CALL_S), "watchbill-check"
    )
    try:
        link.call(lambda: link.api("INFO"), "ask for its state")
        del told[server]
    except (SpoolBroken, SpoolFull, ConfigError) as error:
        told[server] = f"{server}: {link.trouble or error}"
    finally:
        link.close()
