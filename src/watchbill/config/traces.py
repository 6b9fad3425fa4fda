"""`[traces]`: the collector of OpenTelemetry that spans of requests go to. Without one none are made."""

from collections.abc import Iterator, Mapping

from pydantic import Field

from watchbill import catalog
from watchbill.config.checks import Draft, Wrong
from watchbill.config.server import KeyText, check_secret, secret_of, variable_of
from watchbill.config.values import Line, Table, Url

__all__ = ["TracesTable", "build_traces", "check_traces", "trace_variables_of"]


class TracesTable(Table):
    """Where traces of requests go. Off unless `endpoint` is set; changes take effect at the next start."""

    endpoint: Url | None = Field(
        default=None,
        description="A collector that takes OTLP over HTTP (protobuf).",
        examples=["http://127.0.0.1:4318/v1/traces"],
    )
    token: KeyText | None = Field(
        default=None,
        description='The bearer token that it asks for, or "env:NAME" to read it from $NAME.',
        examples=["env:COLLECTOR_TOKEN"],
    )
    service: Line = Field(default="watchbill", description="The name of this service in traces.")
    sample: float = Field(
        default=1.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="The share of requests that is traced, where the caller has not decided it (`traceparent`).",
    )


def check_traces(table: TracesTable, draft: Draft) -> Iterator[Wrong]:
    """A secret that is not there, or that is for no collector."""
    if table.token is None:
        return
    if table.endpoint is None:
        yield ("traces", "token"), "means nothing without endpoint", "add endpoint = ..., or remove it"
    else:
        yield from check_secret(("traces", "token"), table.token, draft.environment)


def trace_variables_of(table: TracesTable) -> set[str]:
    """The environment variables that hold secrets: no engine gets them."""
    name = variable_of(table.token) if table.token is not None else None
    return {name} if name else set()


def build_traces(table: TracesTable, environment: Mapping[str, str]) -> catalog.TraceRules:
    """The record of a table that was found right."""
    secret = secret_of(table.token or "", environment)
    return catalog.TraceRules(table.endpoint, secret, table.service, table.sample)
