"""Commands that only look: `status`, `models`, `requests`, `explain`, `events`."""

from typing import Annotated

from cyclopts import Parameter

from watchbill.cli.client import DaemonRefused, parse, quoted
from watchbill.cli.explain import draw_event, draw_explanation
from watchbill.cli.options import Common, Json
from watchbill.cli.status import fields, show_models, show_requests, show_status
from watchbill.errors import NotReachable

__all__ = ["events", "explain", "models", "requests", "status"]

_DEFAULTS = Common()


def status(*, json: Json = False, common: Common = _DEFAULTS) -> None:
    """Show memory, models and lanes."""
    show_status(common.session(), json=json)


def models(*, json: Json = False, common: Common = _DEFAULTS) -> None:
    """List the models that can be asked for."""
    show_models(common.session(), json=json)


def requests(*, json: Json = False, common: Common = _DEFAULTS) -> None:
    """List the open requests.

    Each with its lane, its place in the queue, why it waits, and when it will probably start.
    """
    show_requests(common.session(), json=json)


def explain(
    subject: Annotated[str, Parameter(name="MODEL|REQUEST", help="A model's name or a request's id.")],
    /,
    *,
    with_: Annotated[
        str | None, Parameter(name="--with", help="Models or sets that must be in memory beside it: a,b.")
    ] = None,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Say what a model or a request waits for, and why.

    For a model: what would happen if it were requested now, by the same rules that would decide. For a request: its
    place, why it waits, and the forecast.
    """
    session = common.session()
    beside = f"&with={quoted(with_)}" if with_ else ""
    try:
        content = session.client.get(f"/wb/v1/explain?model={quoted(subject)}{beside}")
    except DaemonRefused as refused:
        if refused.answered != 404:
            raise
        try:
            content = session.client.get(f"/wb/v1/requests/{quoted(subject)}")
        except DaemonRefused as unknown:
            raise refused if unknown.answered == 404 else unknown from None
    if json:
        session.terminal.show_json(content)
    else:
        session.terminal.show(*draw_explanation(subject, fields(parse(content)), session.terminal))


def events(*, json: Json = False, common: Common = _DEFAULTS) -> None:
    """Follow the journal as it is written.

    Every load, eviction and refusal with its reason. Ctrl-C ends it.
    """
    session = common.session()
    with session.client.stream("GET", "/wb/v1/events") as lines:
        session.terminal.note("following the journal; Ctrl-C ends it")
        for line in lines:
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if json:
                session.terminal.show_json(data.encode())
            else:
                session.terminal.show(draw_event(fields(parse(data.encode())), session.terminal))
    # The journal has no end, so an end of the stream means that the daemon has stopped.
    raise NotReachable(
        f"the daemon at {session.client.url} hung up; look with: {session.root.command('logs')}"
    )
