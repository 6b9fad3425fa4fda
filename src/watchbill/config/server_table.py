"""The tables of the server: where it listens, and who may call with which rights."""

from pydantic import Field

from watchbill import limits
from watchbill.config.fields import Hostname, KeyText, Origin, PlainName, Priority, Size
from watchbill.config.table import Table
from watchbill.units import Bytes

__all__ = ["KeyTable", "ServerTable"]


class KeyTable(Table):
    """An API key: who may call, and with which rights. Without any key everyone on this machine may."""

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
    waiting_max: int | None = Field(default=None, ge=1, description="Requests waiting at once; more get 429.")
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
    """Where the gateway listens and whom it believes."""

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
        description="Web pages that may call from a browser.",
        examples=[["https://chat.lan:3000"]],
    )
    body_max: Size = Field(
        default=Bytes(64 * 2**20), ge=1024, le=limits.BODY_BYTES_MAX, description="The largest request body."
    )
    bodies_max: Size = Field(
        default=Bytes(256 * 2**20),
        ge=1024,
        le=limits.SIZE_BYTES_MAX,
        description="Bytes of all requests' bodies at once; more get 503. It takes up to three times the memory.",
    )
    connections_max: int = Field(
        default=4096, ge=1, le=limits.CONNECTIONS_MAX, description="Open connections; further ones get 503."
    )
