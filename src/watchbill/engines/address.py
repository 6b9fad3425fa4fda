"""Addresses: from the `url` of a config table to the endpoint that requests are sent to."""

from dataclasses import replace
from urllib.parse import urlsplit

from watchbill.engines.base import Endpoint
from watchbill.errors import ConfigError

__all__ = ["endpoint_of"]

_PORTS = {"http": 80, "https": 443}


def endpoint_of(url: str, *, upstream_model: str = "") -> Endpoint:
    """The endpoint of an address; a path before /v1 is kept, /v1 itself may be written or left out.

    Raises ConfigError for anything that is more than scheme, host, port and path: a key in an address would
    end in logs.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise ConfigError(f"{url!a} is not an address: {error}") from error
    if port is None or not parts.hostname:
        raise ConfigError(f"{url!a} is not an address; write for example http://127.0.0.1:11434")
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"the address of {parts.hostname} must not hold a name, a question or a mark")
    plain = Endpoint(parts.hostname, port, tls=parts.scheme == "https", upstream_model=upstream_model)
    return replace(plain, path_prefix=parts.path.rstrip("/").removesuffix("/v1").rstrip("/"))
