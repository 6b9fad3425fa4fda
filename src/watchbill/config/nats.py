"""`[nats]`: the brokers that spools with `backend = "nats"` are on, and how this machine identifies itself there.

Without servers they are on the one that `watchbill up --with-nats` runs in the same root.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from watchbill import catalog, names
from watchbill.config.checks import Draft, Wrong
from watchbill.config.server import PasswordText, check_secret, secret_of, variable_of
from watchbill.config.values import Duration, Line, Table, refused
from watchbill.errors import NameRefused
from watchbill.units import Millis

__all__ = ["NatsTable", "build_nats", "check_nats", "nats_variables_of"]

_SERVER = re.compile(
    r"(?:nats|tls)://(?:\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(?::\d{1,5})?", re.ASCII
)


def _check_server(text: str) -> str:
    if not _SERVER.fullmatch(text):
        hint = 'write for example "nats://10.0.0.5:4222", or "tls://..." for an encrypted connection'
        raise refused("must be the address of a NATS server", hint)
    return text


Server = Annotated[str, AfterValidator(_check_server)]


class NatsTable(Table):
    """NATS servers with JetStream, for spools with `backend = "nats"`. Files are relative to the config file."""

    servers: tuple[Server, ...] = Field(
        default=(),
        strict=False,
        description="Addresses of one server, or of all servers of a cluster. Without any: the server that "
        "`watchbill up --with-nats` runs in the same root.",
        examples=[["nats://10.0.0.5:4222"]],
    )
    token: PasswordText | None = Field(
        default=None, description='A token, or "env:NAME".', examples=["env:NATS_TOKEN"]
    )
    user: Line | None = Field(default=None, description="A user.", examples=["watchbill"])
    password: PasswordText | None = Field(
        default=None, description='The password of `user`, or "env:NAME".', examples=["env:NATS_PASSWORD"]
    )
    credentials: Line | None = Field(
        default=None, description="A credentials file (JWT and key).", examples=["nats.creds"]
    )
    ca: Line | None = Field(
        default=None,
        description="The certificate that the servers' are signed with (PEM).",
        examples=["ca.pem"],
    )
    certificate: Line | None = Field(
        default=None, description="The certificate of this machine (PEM).", examples=["me.pem"]
    )
    key: Line | None = Field(
        default=None, description="The private key of `certificate` (PEM).", examples=["me.key.pem"]
    )
    replicas: int = Field(
        default=1, ge=1, le=5, description="Servers of a cluster that each event is stored on: 1, 3 or 5."
    )
    timeout: Duration = Field(
        default=Millis(20_000),
        ge=1_000,
        le=600_000,
        description="How long one operation waits for the servers before it fails and is tried again.",
    )


def check_nats(table: NatsTable, draft: Draft, *, is_used: bool) -> Iterator[Wrong]:
    """Secrets that are not there, files that cannot be, and settings that exclude each other."""
    for name in ("token", "password"):
        secret = getattr(table, name)
        if secret is not None and is_used:
            yield from check_secret(("nats", name), secret, draft.environment, in_header=False)
    for name in ("credentials", "ca", "certificate", "key"):
        try:
            if (text := getattr(table, name)) is not None:
                names.operator_path(draft.base, text)
        except NameRefused as error:
            yield ("nats", name), error.what, error.hint
    for name, needed in (("user", "password"), ("password", "user"), ("key", "certificate")):
        if getattr(table, name) is not None and getattr(table, needed) is None:
            yield ("nats", name), f"means nothing without {needed}", f"add {needed} = ..., or remove it"
    ways = [name for name in ("token", "user", "credentials") if getattr(table, name) is not None]
    if len(ways) > 1:
        yield ("nats", ways[1]), f"stands beside {ways[0]}", "choose one way to identify this machine"
    given = [*ways, *(name for name in ("ca", "certificate") if getattr(table, name) is not None)]
    given += ["replicas"] if table.replicas > 1 else []
    if not table.servers and given:
        text = "means nothing without servers; the server of --with-nats needs none of it"
        yield ("nats", given[0]), text, 'add servers = ["nats://..."], or remove it'


def nats_variables_of(table: NatsTable) -> set[str]:
    """The environment variables that hold secrets: no engine gets them."""
    keys = [key for key in (table.token, table.password) if key is not None]
    return {name for key in keys if (name := variable_of(key))}


def build_nats(table: NatsTable, base: Path, environment: Mapping[str, str]) -> catalog.NatsRules:
    """The record of a table that was found right."""

    def file(text: str | None) -> str:
        return "" if text is None else str(names.operator_path(base, text))

    return catalog.NatsRules(
        servers=table.servers,
        user=table.user or "",
        password=secret_of(table.password or "", environment),
        token=secret_of(table.token or "", environment),
        credentials=file(table.credentials),
        ca=file(table.ca),
        certificate=file(table.certificate),
        key=file(table.key),
        replicas=table.replicas,
        timeout_ms=table.timeout,
        variables=frozenset(nats_variables_of(table)),
    )
