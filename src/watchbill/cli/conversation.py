"""A conversation with one model over the OpenAI door, streamed.

Owns the messages so far. Promises that an answer that was stopped half way is remembered as far as it was seen,
that a question without any answer is forgotten, and that a stream which ends without its end mark is an error,
never a short answer.
"""

from collections.abc import Iterator

from watchbill.cli.bounds import CLI_CHAT_MESSAGES_MAX
from watchbill.cli.client import DaemonRefused, parse
from watchbill.cli.session import Session
from watchbill.cli.status import Fields, fields, rows_of
from watchbill.cli.terminal import plain
from watchbill.errors import EngineFailed, WaitExceeded

__all__ = ["Conversation"]


class Conversation:
    """What was said so far, and to whom."""

    def __init__(self, session: Session, model: str, system: str | None, max_tokens: int | None) -> None:
        self.model = model
        self._session = session
        self._max_tokens = max_tokens
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def forget(self) -> None:
        """Begins anew; the system prompt stays."""
        self._messages.clear()

    def ask(self, question: str) -> str:
        """Asks, prints the answer as it arrives, and returns it. Leaving early stops the model's work, too."""
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
        """The same refusal, with the command that says more where there is one."""
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
            ):  # a sign of life while the request waits: what it waits for
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
        """Shows a passing word on a terminal; the next one replaces it."""
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
