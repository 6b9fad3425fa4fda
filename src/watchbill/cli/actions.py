"""Commands that change what the daemon does: `load`, `evict`, `pin`, `cancel`, and `config reload`."""

from typing import Annotated

from cyclopts import Parameter

from watchbill.cli.client import DaemonRefused, parse, quoted
from watchbill.cli.limits import CLI_LOAD_TIMEOUT_S
from watchbill.cli.options import Common, Json
from watchbill.cli.progress import while_watching
from watchbill.cli.session import Session
from watchbill.cli.status import fields

__all__ = ["cancel", "evict", "load", "pin", "reload"]

_DEFAULTS = Common()
_Model = Annotated[str, Parameter(name="MODEL", help="The model's name, as `watchbill models` lists it.")]


def load(model: _Model, /, *, json: Json = False, common: Common = _DEFAULTS) -> None:
    """Load a model now and wait until it is warm.

    Models that have to leave memory for it finish their requests first. A model in quarantine is tried again at once.
    """
    session = common.session()
    content = while_watching(
        session,
        model,
        f"loading {model}",
        lambda: session.client.post(f"/wb/v1/models/{quoted(model)}/load", timeout_s=CLI_LOAD_TIMEOUT_S),
    )
    _tell(session, content, f"{model} is loaded", json=json)


def evict(
    model: _Model,
    /,
    *,
    force: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Do not wait for running requests; evict a permanent model, too.",
        ),
    ] = False,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Take a model out of memory.

    Its running requests end first. A permanent model is evicted only with --force. The next request for the model
    loads it again, also a request that already waits.
    """
    session = common.session()
    content = while_watching(
        session,
        model,
        f"evicting {model}",
        lambda: session.client.post(
            f"/wb/v1/models/{quoted(model)}/evict", {"force": force}, timeout_s=CLI_LOAD_TIMEOUT_S
        ),
    )
    _tell(session, content, f"{model} is evicted", json=json)
    if not json and fields(parse(content or b"{}")).get("waiting"):
        root = session.root
        session.terminal.note(
            f"{root.command('requests')} lists who waits; {root.command('cancel')} ID ends one"
        )


def pin(
    model: _Model,
    /,
    *,
    off: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Let it go: it is no longer pinned."),
    ] = False,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Keep a model in memory until the daemon ends, or let it go.

    A pinned model is like a permanent one of the config: it is loaded now, and nothing takes its place. --off ends
    that; the model stays until its memory is needed.
    """
    session = common.session()
    content = session.client.post(f"/wb/v1/models/{quoted(model)}/pin", {"pinned": not off})
    _tell(session, content, f"{model} is {'no longer ' if off else ''}pinned", json=json)


def cancel(
    request: Annotated[str, Parameter(name="ID", help="The request's id, as `watchbill requests` lists it.")],
    /,
    *,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Cancel a request, whether it waits or runs."""
    session = common.session()
    try:
        content = session.client.delete(f"/wb/v1/requests/{quoted(request)}")
    except DaemonRefused as refused:
        if refused.answered == 404:
            text = f"no open request {request}; {session.root.command('requests')} lists them"
            raise DaemonRefused(text, answered=404, reason=refused.reason) from refused
        raise
    _tell(session, content, f"{request} is cancelled", json=json)


def reload(*, json: Json = False, common: Common = _DEFAULTS) -> None:
    """Let the daemon read its config again.

    The new config is applied as a whole, or refused with all its errors; then the old one stays. Models that did not
    change keep running. What needs a restart, such as a new address, is named in the answer.
    """
    session = common.session()
    content = session.client.post("/wb/v1/config/reload")
    _tell(session, content, "the config was read again", json=json)


def _tell(session: Session, content: bytes, otherwise: str, *, json: bool) -> None:
    """Shows the daemon's message, if the answer has one."""
    if json:
        session.terminal.show_json(content or b"{}")
        return
    said = fields(parse(content or b"{}"))
    session.terminal.show(str(said.get("message") or said.get("detail") or otherwise))
