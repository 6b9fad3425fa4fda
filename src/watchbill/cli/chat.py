"""`chat`: one question, or a conversation.

The answer goes to standard output as it arrives; everything else (the model, that it loads, that the answer was cut)
goes to standard error. Nothing of a conversation is kept after the command ends.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, cast

from cyclopts import Parameter
from cyclopts.validators import Number

from watchbill.cli.client import DaemonRefused, Lines, parse
from watchbill.cli.limits import CLI_CHAT_MESSAGES_MAX
from watchbill.cli.options import Common
from watchbill.cli.session import Session
from watchbill.cli.status import Fields, fields, how_to_begin, rows_of
from watchbill.cli.terminal import plain
from watchbill.cli.timings import Timings
from watchbill.errors import (
    EngineFailed,
    ModelNotFound,
    NotReachable,
    RequestError,
    TheirsError,
    WaitExceeded,
)

__all__ = ["Conversation", "Verbose", "chat", "talk", "thinking_options"]

_DEFAULTS = Common()
Verbose = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        help="After each answer, print how long it and its parts took, and how many tokens.",
    ),
]
_HELP = "/new forgets the conversation, /model NAME changes the model, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
_MORE_HELP = (
    "/system TEXT sets the system prompt, /set think and /set nothink turn thinking on and off, "
    "/verbose turns the figures after each answer on or off, "
    '""" begins and ends a question of several lines'
)
#: The fields of a request that say whether, or how much, to think.
_THINKING = frozenset({"reasoning_effort", "chat_template_kwargs"})
#: What begins and ends a question of several lines, as in Ollama.
_FENCE = '"""'


class Conversation:
    """The messages of one conversation, asked through the OpenAI API, streamed.

    An answer that was stopped is kept as far as it was shown; a question without any answer is dropped. A stream that
    ends without its end mark is an error, never a short answer.
    """

    def __init__(
        self,
        session: Session,
        model: str,
        system: str | None,
        max_tokens: int | None,
        *,
        verbose: bool = False,
        shows_thoughts: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.model = model
        self.verbose = verbose  # prints the figures of each answer after it
        self._shows_thoughts = shows_thoughts
        self._session = session
        self._max_tokens = max_tokens
        self._options = dict(options or {})  # further fields of each request
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def forget(self) -> None:
        """Starts over; the system prompt stays."""
        self._messages.clear()

    def instruct(self, system: str) -> None:
        """Sets the system prompt of the answers to come."""
        self._opening = [{"role": "system", "content": system}]

    def think(self, wanted: bool | str) -> None:
        """Says whether, or how much, the model thinks from now on; thoughts that are asked for are shown."""
        self._shows_thoughts = wanted is not False
        self._options = {
            name: value for name, value in self._options.items() if name not in _THINKING
        } | thinking_options(wanted)

    def ask(self, question: str) -> str:
        """Asks, prints the answer as it arrives, and returns it. An interruption also stops the model."""
        self._messages.append({"role": "user", "content": question})
        said: list[str] = []
        timings = Timings()
        try:
            for piece in self._pieces(timings):
                said.append(piece)
                self._session.terminal.write(piece)
            self._session.terminal.show("")
            if self.verbose:
                # Asked for, so shown with --quiet, too; not a part of the answer, so not on standard output.
                print("", *timings.lines(), sep="\n", file=sys.stderr, flush=True)
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

    def _pieces(self, timings: Timings) -> Iterator[str]:
        body: dict[str, object] = {
            **self._options, "model": self.model, "messages": [*self._opening, *self._messages], "stream": True,
        }  # fmt: skip
        if self.verbose:
            body["stream_options"] = {"include_usage": True}
        if self._max_tokens is not None:
            body["max_tokens"] = self._max_tokens
        self._whisper(f"{self.model} …")
        try:
            with self._session.client.stream("POST", "/v1/chat/completions", body) as lines:
                timings.take_headers(lines.headers)
                yield from self._read(lines, timings)
        finally:
            self._whisper("")

    def _read(self, lines: Lines, timings: Timings) -> Iterator[str]:
        begun, ended, thought = False, "", False
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
            chunk = fields(parse(data.encode()))
            timings.take(chunk)
            piece, ended = _piece(chunk, ended)
            if not piece and not begun and (thoughts := _thoughts(chunk)):
                thought = self._show_thoughts(thoughts, thought)
            if piece:
                if thought and not begun:
                    self._session.terminal.note("\n...done thinking.\n")
                begun = True
                timings.count_piece()
                self._whisper("")
                yield piece
        else:
            if not ended:
                look = self._session.root.command("logs")
                raise EngineFailed(f"the answer ended before its end; look with: {look}")
        if ended == "length":
            self._session.terminal.note("\n(cut: the longest answer was reached)")

    def _show_thoughts(self, thoughts: str, begun: bool) -> bool:
        """On standard error, because they are no part of the answer; returns whether any are shown."""
        if not self._shows_thoughts:
            self._whisper("thinking …")
            return False
        if not begun:
            self._whisper("")
            self._session.terminal.note("Thinking...")
        self._session.terminal.mutter(thoughts)
        return True

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


def _thoughts(chunk: Fields) -> str:
    """The thoughts of the model in a chunk."""
    for choice in rows_of(chunk, "choices"):
        if isinstance(text := fields(choice.get("delta")).get("reasoning_content"), str):
            return text
    return ""


def thinking_options(wanted: bool | str) -> dict[str, object]:
    """The fields of a request that say whether, or how much, to think."""
    if isinstance(wanted, bool):
        return {"chat_template_kwargs": {"enable_thinking": wanted}}
    return {"reasoning_effort": wanted, "chat_template_kwargs": {"enable_thinking": True}}


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
    verbose: Verbose = False,
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
    conversation = Conversation(session, model or _choose(session), system, max_tokens, verbose=verbose)
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
            asked = _read_question()
        except EOFError:
            session.terminal.show("")
            return
        if asked in {"/exit", "/quit", "/bye"}:
            return
        if asked.startswith("/"):
            _obey(asked, conversation, session)
        elif asked:
            _answer(asked, conversation, session)


def _read_question() -> str:
    """A line, or the lines between two fences. Raises EOFError at the end of input."""
    asked = input("> ").strip()
    if not asked.startswith(_FENCE):
        return asked
    asked = asked.removeprefix(_FENCE)
    while not asked.rstrip().endswith(_FENCE):
        asked += "\n" + input("... ")
    return asked.rstrip().removesuffix(_FENCE).strip()


def _obey(asked: str, conversation: Conversation, session: Session) -> None:
    """Carries out a command of a conversation, in our words or in Ollama's."""
    terminal = session.terminal
    match asked.split():
        case ["/new" | "/clear"]:
            conversation.forget()
            terminal.note("forgotten")
        case ["/model" | "/load", name]:
            conversation.model = name
            terminal.note(f"talking to {plain(name)}")
        case ["/verbose"]:
            conversation.verbose = not conversation.verbose
            terminal.note(f"figures after each answer: {'on' if conversation.verbose else 'off'}")
        case ["/set", "verbose" | "quiet" as word]:
            conversation.verbose = word == "verbose"
            terminal.note(f"figures after each answer: {'on' if conversation.verbose else 'off'}")
        case ["/set", "think" | "nothink" as word]:
            conversation.think(word == "think")
            terminal.note(f"thinking: {'on' if word == 'think' else 'off'}")
        case ["/set", "think", "low" | "medium" | "high" as effort]:
            conversation.think(effort)
            terminal.note(f"thinking: {effort}")
        case ["/system", _, *_] | ["/set", "system", _, *_]:
            conversation.instruct(asked.partition("system")[2].strip().strip('"'))
            terminal.note("the system prompt is set")
        case ["/?" | "/help"]:
            terminal.note(f"{_HELP}; {_MORE_HELP}")
        case [word, *_]:
            terminal.note(f"there is no command {plain(word)}; {_HELP}; /? tells more")
        case _:
            terminal.note(_HELP)


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
