"""`[server]`: the address that the gateway listens on, and the keys of its callers.

A server that other machines can reach needs at least one key; `refuse_open_bind` says so for `--host`, too. A key may
stand in the environment instead of the file.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from watchbill import catalog
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong
from watchbill.config.values import ENV_NAME, HIDDEN, Masked, PlainName, Priority, Size, Table, refused
from watchbill.errors import ConfigError
from watchbill.limits import SIZE_BYTES_MAX
from watchbill.quoting import quoted
from watchbill.toml import KeyPath
from watchbill.units import Bytes

__all__ = [
    "KeyTable", "KeyText", "PasswordText", "ServerTable", "build_server", "check_secret", "check_server",
    "refuse_open_bind", "secret_of", "variable_of",
]  # fmt: skip

# ------------------------------------------------------------------ the tables

_ENV = "env:"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[?[0-9a-fA-F:.]{2,45}\]?")
#: A scheme and a host; `*` is the whole host of a scheme that is no website's, its first label, or any port.
_ORIGIN = re.compile(
    r"(?:https?://(?:\*\.)?|(?!https?:)[a-z][a-z0-9+.-]{1,63}://(?:\*\.)?)[A-Za-z0-9_.\[\]:-]{1,255}?(?::\*)?"
    r"|(?!https?:)[a-z][a-z0-9+.-]{1,63}://\*?"
)


def _check_host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise refused(
            f"{quoted(text)} is not a host name or address", "write for example 127.0.0.1 or box.lan"
        )
    return text


def _check_origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise refused(
            f"{quoted(text)} is not the origin of a web page",
            "write for example https://chat.lan:3000, https://*.lan, http://localhost:* or app://*",
        )
    return text


def _check_key_text(text: str) -> str:
    """A key travels in a header, so it has to be one that can."""
    if text.startswith(_ENV) and not ENV_NAME.fullmatch(text.removeprefix(_ENV)):
        raise refused(f"{quoted(text)} names no environment variable", 'write for example "env:ALICE_KEY"')
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise refused(
            "cannot be an API key", 'use printable ASCII without spaces, or "env:NAME" to read it from $NAME'
        )
    return text


def _mask_key(key: object) -> object:
    return key if str(key).startswith(_ENV) else HIDDEN


def _check_password_text(text: str) -> str:
    if text.startswith(_ENV) and not ENV_NAME.fullmatch(text.removeprefix(_ENV)):
        raise refused(
            f"{quoted(text)} names no environment variable", 'write for example "env:NATS_PASSWORD"'
        )
    if not text.isprintable():
        raise refused("cannot be a password", 'use printable characters, or "env:NAME" to read it from $NAME')
    return text


Hostname = Annotated[str, AfterValidator(_check_host)]
Origin = Annotated[str, AfterValidator(_check_origin)]
KeyText = Annotated[str, AfterValidator(_check_key_text), Masked(_mask_key)]
#: A secret that is shown in no header: blanks and letters of any language belong to it.
PasswordText = Annotated[str, AfterValidator(_check_password_text), Masked(_mask_key)]


def variable_of(key: str) -> str | None:
    """The environment variable that holds a key; None when the key itself stands in the file."""
    return key.removeprefix(_ENV) if key.startswith(_ENV) else None


def secret_of(key: str, environment: Mapping[str, str]) -> str:
    """The key itself; empty when its variable is not set."""
    variable = variable_of(key)
    return key if variable is None else environment.get(variable, "")


class KeyTable(Table):
    """An API key, and what its caller may do. Without any key, every program on this machine may call."""

    key: KeyText = Field(
        description='The key itself, or "env:NAME" to read it from $NAME.', examples=["env:ALICE_KEY"]
    )
    lane: PlainName | None = Field(
        default=None, description="The lane of this caller's requests.", examples=["chat"]
    )
    admin: bool = Field(
        default=False, description="May load, evict and cancel; its calls go first within their class."
    )
    max_priority: Priority = Field(default=1, description="The best priority that its requests may have.")
    requests_max: int | None = Field(default=None, ge=1, description="Requests open at once; more get 429.")
    waiting_max: int | None = Field(
        default=None,
        ge=1,
        description="Requests waiting at once; more get 429. Default, with several keys: half of a lane's queue.",
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of prompts and answers within a minute; over it the next request gets 429.",
    )
    bodies_max: Size | None = Field(
        default=None,
        ge=1024,
        description="Bytes of its requests' bodies at once; more get 429. Default: a quarter of the server's.",
    )
    capture: PlainName | None = Field(
        default=None, description="The spool that its finished requests go into.", examples=["corpus"]
    )


class ServerTable(Table):
    """Listen address, allowed hosts and origins."""

    host: Hostname = Field(
        default="127.0.0.1", description="The address to listen on. Any but a loopback one needs a key."
    )
    port: int = Field(default=8470, ge=0, le=65535, description="The port; 0 picks a free one.")
    keys: dict[PlainName, KeyTable] = Field(default={}, description="API keys by the name of their caller.")
    hosts: tuple[Hostname, ...] = Field(
        default=(),
        strict=False,
        description="Further names that a request's Host header may carry.",
        examples=[["box.lan"]],
    )
    origins: tuple[Origin, ...] = Field(
        default=(),
        strict=False,
        description="Web pages, apps and extensions that may call from a browser; never what needs admin rights.",
        examples=[["https://chat.lan:3000"]],
    )
    ollama_origins: bool = Field(
        default=False,
        description="Let those call that Ollama lets by default: pages of this machine, app://, file://, tauri://, "
        "vscode-webview:// and vscode-file://.",
    )
    body_max: Size = Field(
        default=Bytes(64 * 2**20), ge=1024, le=limits.BODY_BYTES_MAX, description="The largest request body."
    )
    bodies_max: Size = Field(
        default=Bytes(256 * 2**20),
        ge=1024,
        le=SIZE_BYTES_MAX,
        description="Bytes of all requests' bodies at once; more get 503. It takes up to three times the memory.",
    )
    connections_max: int = Field(
        default=4096, ge=1, le=limits.CONNECTIONS_MAX, description="Open connections; further ones get 503."
    )
    store_responses: bool = Field(
        default=True,
        description="Keep responses of /v1/responses for a day; false: none is kept, nor continued by its id.",
    )


#: Who may call an Ollama by default, but for extensions of browsers: those are named one by one.
_LOOPBACK = ("localhost", "127.0.0.1", "0.0.0.0", "[::1]")
OLLAMA_ORIGINS = (
    *(
        f"{scheme}://{host}{port}"
        for scheme in ("http", "https")
        for host in _LOOPBACK
        for port in ("", ":*")
    ),
    *(f"{scheme}://*" for scheme in ("app", "file", "tauri", "vscode-webview", "vscode-file")),
)

# ------------------------------------------------------------------ checks

_OPEN = "a non-loopback bind without an API key: everyone who reaches {} could use it"
_OPEN_HINT = 'add [server.keys.me] with key = "env:WATCHBILL_KEY", or listen on 127.0.0.1'


def check_server(server: ServerTable, draft: Draft) -> Iterator[Wrong]:
    """An address that is open to the network, and keys that cannot be used."""
    if draft.is_sound("server") and not server.keys and not _is_loopback(server.host):
        yield ("server", "host"), _OPEN.format(server.host), _OPEN_HINT
    owners: dict[str, str] = {}
    for name, table in server.keys.items():
        path, secret = ("server", "keys", name, "key"), secret_of(table.key, draft.environment)
        wrong = list(check_secret(path, table.key, draft.environment))
        yield from wrong
        if not wrong and owners.setdefault(secret, name) != name:
            yield path, f"is the same key as {owners[secret]}'s", "give each caller a key of their own"


def check_secret(
    path: KeyPath, key: str, environment: Mapping[str, str], *, in_header: bool = True
) -> Iterator[Wrong]:
    """A key whose variable is not set, or that cannot travel in a header."""
    variable, secret = variable_of(key), secret_of(key, environment)
    if not secret:
        text = f"the environment variable {quoted(variable)} is not set"
        yield path, text, f"export {variable}=... before starting"
    elif in_header and (not secret.isascii() or not secret.isprintable() or " " in secret):
        yield path, "the key cannot travel in a header", "use printable ASCII without spaces"


def refuse_open_bind(host: str, has_keys: bool) -> None:
    """Raises ConfigError when the gateway would stand open to the network. For `--host`, which comes after the
    config was checked."""
    if not has_keys and not _is_loopback(host):
        raise ConfigError(_OPEN.format(host), hint=_OPEN_HINT)


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name that is not an address is taken as public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


# ------------------------------------------------------------------ the catalog's record


def build_server(
    server: ServerTable, environment: Mapping[str, str], other_variables: Iterable[str] = ()
) -> catalog.Server:
    """The server and its keys, with their secrets. `other_variables` hold keys for other servers."""
    variables = (*(variable_of(table.key) for table in server.keys.values()), *other_variables)
    return catalog.Server(
        host=server.host,
        port=server.port,
        keys=tuple(_build_key(name, table, environment) for name, table in server.keys.items()),
        hosts=server.hosts,
        origins=(*server.origins, *(OLLAMA_ORIGINS if server.ollama_origins else ())),
        body_max=server.body_max,
        bodies_max=server.bodies_max,
        connections_max=server.connections_max,
        store_responses=server.store_responses,
        key_variables=frozenset(name for name in variables if name is not None),
    )


def _build_key(name: str, table: KeyTable, environment: Mapping[str, str]) -> catalog.ApiKey:
    return catalog.ApiKey(
        name,
        key=secret_of(table.key, environment),
        lane=table.lane,
        admin=table.admin,
        max_priority=table.max_priority,
        requests_max=table.requests_max,
        waiting_max=table.waiting_max,
        tokens_per_minute=table.tokens_per_minute,
        capture=table.capture,
        bodies_max=table.bodies_max,
    )
