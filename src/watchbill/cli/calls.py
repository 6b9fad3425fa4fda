"""Whether the engines that a config only names by an address answer there at all.

Any answer counts, an error, too: somebody is there. All are asked at once and none is waited for longer than a bound,
so that a name that nobody resolves does not hold up a check of the config.
"""

import http.client
import threading
import time
from collections.abc import Mapping

from watchbill.catalog import EngineRules
from watchbill.cli.bounds import CLI_CALL_S
from watchbill.engines.base import endpoint_of
from watchbill.engines.ollama import DEFAULT_URL
from watchbill.errors import ConfigError

__all__ = ["silent_engines"]


def silent_engines(engines: Mapping[str, EngineRules]) -> dict[str, str]:
    """Engine -> why nobody answers at its address. Blocks, within a bound."""
    urls = {
        name: rules.url or (DEFAULT_URL if rules.driver == "ollama" else "")
        for name, rules in engines.items()
    }
    told = {name: f"{url} does not answer within {CLI_CALL_S:g} s" for name, url in urls.items() if url}
    asking = [threading.Thread(target=_ask, args=(name, urls[name], told), daemon=True) for name in told]
    for thread in asking:
        thread.start()
    end = time.monotonic() + CLI_CALL_S
    for thread in asking:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(told)


def _ask(name: str, url: str, told: dict[str, str]) -> None:
    """Takes the complaint away when somebody answers, or says what went wrong."""
    try:
        endpoint = endpoint_of(url)
    except ConfigError as error:
        told[name] = str(error)
        return
    kind = http.client.HTTPSConnection if endpoint.tls else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=CLI_CALL_S)
    try:
        connection.request("GET", endpoint.path_prefix + "/")
        connection.getresponse()
        del told[name]
    except (OSError, http.client.HTTPException) as error:
        # Every kind means the same to who reads it: nobody useful is there. The text says which it was.
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        told[name] = f"{url} does not answer: {why.lower()}"
    finally:
        connection.close()
