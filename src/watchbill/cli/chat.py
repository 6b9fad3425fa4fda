"""`chat`: one question, or a conversation that remembers what was said.

The answer goes to standard output piece by piece as it is written; everything else (which model, that it loads,
that the answer was cut) goes to standard error. Nothing of a conversation is kept once the command ends.
"""

import importlib
import sys
from typing import Annotated, cast

from cyclopts import Parameter
from cyclopts.validators import Number

from watchbill.cli.conversation import Conversation
from watchbill.cli.options import Common
from watchbill.cli.session import Session
from watchbill.cli.status import Fields, fields, how_to_begin, rows_of
from watchbill.cli.terminal import plain
from watchbill.errors import ModelNotFound, NotReachable, RequestError, TheirsError

__all__ = ["chat"]

_DEFAULTS = Common()
_HELP = "/new forgets the conversation, /model NAME changes the model, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def chat(
    *prompt: Annotated[
        str,
        Parameter(
            name="PROMPT", help="The question. Without it: standard input, or on a terminal a conversation."
        ),
    ],
    model: Annotated[
        str | None,
        Parameter(name=["--model", "-m"], help="Which model. Default: one that is loaded, else the first."),
    ] = None,
    system: Annotated[str | None, Parameter(help="How the model shall behave.")] = None,
    max_tokens: Annotated[
        int | None, Parameter(help="Longest answer, in tokens.", validator=Number(gte=1))
    ] = None,
    common: Common = _DEFAULTS,
) -> None:
    """Ask a model; the answer is printed as it is written.

    Example: watchbill chat "Why is the sky blue?" --model smollm2
    """
    session = common.session()
    asked = " ".join(prompt)
    if not asked and not sys.stdin.isatty():
        asked = sys.stdin.read().strip()
        if not asked:
            raise RequestError(
                f"nothing to ask; write: {session.root.command('chat', 'Why is the sky blue?')}"
            )
    conversation = Conversation(session, model or _choose(session), system, max_tokens)
    if asked:
        conversation.ask(asked)
    else:
        _talk(conversation, session)


def _choose(session: Session) -> str:
    """A model that can answer: one that need not be loaded first, else one that did not fail, else any."""
    listed = rows_of(session.client.get_json("/v1/models"), "data")
    if not listed:
        raise ModelNotFound(f"the daemon has {how_to_begin(session.root)}")
    talking = [model for model in listed if not _only_embeds(model)] or listed
    standing = {"loaded": 0, "failed": 2}
    best = min(talking, key=lambda model: standing.get(str(fields(model.get("status")).get("value")), 1))
    return str(best.get("id"))


def _only_embeds(model: Fields) -> bool:
    known = model.get("capabilities")
    if not isinstance(known, list):
        return False
    able = cast("list[object]", known)
    return "embedding" in able and "completion" not in able


def _talk(conversation: Conversation, session: Session) -> None:
    """Reads questions until the end of input. Ctrl-C stops an answer; without one it leaves."""
    importlib.import_module("readline")  # its import alone gives `input` arrows and a history of lines
    session.terminal.note(f"talking to {conversation.model}; {_HELP}")
    while True:
        try:
            asked = input("> ").strip()
        except EOFError:
            session.terminal.show("")
            return
        if asked in {"/exit", "/quit", "/bye"}:
            return
        if asked.startswith("/"):
            _obey(asked, conversation, session)
        elif asked:
            _answer(asked, conversation, session)


def _obey(asked: str, conversation: Conversation, session: Session) -> None:
    match asked.split():
        case ["/new"]:
            conversation.forget()
            session.terminal.note("forgotten")
        case ["/model", name]:
            conversation.model = name
        case _:
            session.terminal.note(_HELP)


def _answer(asked: str, conversation: Conversation, session: Session) -> None:
    try:
        conversation.ask(asked)
    except KeyboardInterrupt:
        session.terminal.note("\nstopped; Ctrl-C again leaves")
    except NotReachable:
        raise
    except TheirsError as error:
        # An error, so also with --quiet; and the engine's own words, so stripped of what commands a terminal.
        print(f"watchbill: {plain(error)}", file=sys.stderr, flush=True)
