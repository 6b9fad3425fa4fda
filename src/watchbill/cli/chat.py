"""`chat`: one question, or a conversation.

The answer goes to standard output as it arrives; everything else (the model, that it loads, that the answer was cut)
goes to standard error. Nothing of a conversation is kept after the command ends.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Annotated, cast

from cyclopts import Parameter
from cyclopts.validators import Number

from watchbill.cli.client import DaemonRefused, parse
from watchbill.cli.limits import CLI_CHAT_MESSAGES_MAX
from watchbill.cli.options import Common
from watchbill.cli.session import Session
from watchbill.cli.status import Fields, fields, how_to_begin, rows_of
from watchbill.cli.terminal import plain
from watchbill.errors import (
    EngineFailed,
    ModelNotFound,
    NotReachable,
    RequestError,
    TheirsError,
    WaitExceeded,
)

__all__ = ["Conversation", "chat", "talk"]

_DEFAULTS = Common()
_HELP = "/new forgets the conversation, /model NAME changes the model, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


class Conversation:
    """The messages of one conversation, asked through the OpenAI API, streamed.

    An answer that was stopped is kept as far as it was shown; a question without any answer is dropped. A stream that
    ends without its end mark is an error, never a short answer.
    """

    def __init__(self, session: Session, model: str, system: str | None, max_tokens: int | None) -> None:
        self.model = model
        self._session = session
        self._max_tokens = max_tokens
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def forget(self) -> None:
        """Starts over; the system prompt stays."""
        self._messages.clear()

    def ask(self, question: str) -> str:
        """Asks, prints the answer as it arrives, and returns it. An interruption also stops the model."""
        self._messages.append({"role": "user", "content": question})
        said: list[str] = []
        try:
            for piece in self._pieces():
                said.append(piece)
                self._session.terminal.write(piece)
            self._session.terminal.show("")
        except DaemonRefused as refused:
            raise self._with_hint(refused) from refused
        finally:
            if said:
                self._messages.append({"role": "assistant", "content": "".join(said)})
            else:
                self._messages.pop()
            del self._messages[:-CLI_CHAT_MESSAGES_MAX]
        return "".join(said)

    def _with_hint(self, refused: DaemonRefused) -> DaemonRefused:
        """The same refusal, with a command that explains it where there is one."""
        if refused.reason != WaitExceeded.code:
            return refused
        text = f"{refused}; see: {self._session.root.command('explain', self.model)}"
        return DaemonRefused(text, answered=refused.answered, reason=refused.reason)

    def _pieces(self) -> Iterator[str]:
        body: dict[str, object] = {
            "model": self.model, "messages": [*self._opening, *self._messages], "stream": True,
        }  # fmt: skip
        if self._max_tokens is not None:
            body["max_tokens"] = self._max_tokens
        self._whisper(f"{self.model} …")
        try:
            with self._session.client.stream("POST", "/v1/chat/completions", body) as lines:
                yield from self._read(lines)
        finally:
            self._whisper("")

    def _read(self, lines: Iterator[str]) -> Iterator[str]:
        begun, ended = False, ""
        for line in lines:
            if (
                line.startswith(":") and not begun
            ):  # a comment that the daemon sends while the request waits: what it waits for
                self._whisper(line.removeprefix(":").strip())
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                break
            piece, ended = _piece(fields(parse(data.encode())), ended)
            if piece:
                begun = True
                self._whisper("")
                yield piece
        else:
            if not ended:
                look = self._session.root.command("logs")
                raise EngineFailed(f"the answer ended before its end; look with: {look}")
        if ended == "length":
            self._session.terminal.note("\n(cut: the longest answer was reached)")

    def _whisper(self, text: str) -> None:
        """Shows a temporary message on a terminal; the next one replaces it."""
        self._session.terminal.whisper(plain(text))


def _piece(chunk: Fields, ended: str) -> tuple[str, str]:
    """What a chunk adds to the answer, and why the answer ended, once it has."""
    if error := chunk.get("error"):
        said = fields(error)
        raise DaemonRefused(
            str(said.get("message") or error), answered=200, reason=str(said.get("code") or "")
        )
    for choice in rows_of(chunk, "choices"):
        text = fields(choice.get("delta")).get("content")
        return text if isinstance(text, str) else "", str(choice.get("finish_reason") or ended)
    return "", ended


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
    system: Annotated[str | None, Parameter(help="The system prompt.")] = None,
    max_tokens: Annotated[
        int | None, Parameter(help="Longest answer, in tokens.", validator=Number(gte=1))
    ] = None,
    common: Common = _DEFAULTS,
) -> None:
    """Ask a model; the answer is printed as it arrives.

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
        talk(conversation, session)


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


def talk(conversation: Conversation, session: Session) -> None:
    """Reads questions until the end of input. Ctrl-C stops an answer; without one it leaves."""
    importlib.import_module("readline")  # importing it gives `input` line editing and a history
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
        # An error, so shown with --quiet, too; an engine's text, so without control characters.
        print(f"watchbill: {plain(error)}", file=sys.stderr, flush=True)
