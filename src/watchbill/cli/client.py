"""The command line's way to the daemon: plain HTTP/1.1 with the standard library.

Owns how the daemon's address is found and how its answers become values or errors. Promises one of three ends for
every call: the answer, `DaemonRefused` with the daemon's own words, or `NotReachable` with what to do about it.
Imports nothing outside the standard library but Watchbill's lowest layers: `status` has 150 ms for everything.
"""

import http.client
import itertools
import json
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import quote, urlsplit

from watchbill.blocking_http import connect, reason_of
from watchbill.cli.limits import (
    CLI_ANSWER_BYTES_MAX,
    CLI_ANSWER_TIMEOUT_S,
    CLI_LINE_BYTES_MAX,
    CLI_STREAM_SILENCE_S,
)
from watchbill.errors import ConfigError, NotReachable, TheirsError
from watchbill.gateway.limits import FILE_PIECE_BYTES
from watchbill.root import Root, find_root

__all__ = ["DEFAULT_URL", "Address", "Client", "DaemonRefused", "Lines", "find_address", "quoted"]

DEFAULT_URL = "http://127.0.0.1:8470"
#: Between the parts of a form; lines of JSON do not have it.
_BOUNDARY = "watchbill-6b1f0d5e9c7a4c3f"


class DaemonRefused(TheirsError):
    """The daemon refused."""

    def __init__(self, message: str, *, answered: int, reason: str) -> None:
        super().__init__(message)
        self.answered = answered  # the HTTP status
        self.reason = reason  # the error's `code`


@dataclass(frozen=True, slots=True)
class Lines:
    """An answer that arrives line by line, and the headers that came before it, their names in small letters."""

    lines: Iterator[str]
    headers: Mapping[str, str]

    def __iter__(self) -> Iterator[str]:
        return self.lines


class Address(NamedTuple):
    """Where the daemon should be."""

    url: str
    #: It was named, or the root's own daemon listens there. Elsewhere any program may listen: it gets no key.
    is_trusted: bool


def find_address(
    chosen: str | None, root: Root, *, is_named: bool = False, environment: Mapping[str, str] = os.environ
) -> Address:
    """The daemon's address: --url, else $WATCHBILL_URL, else the address that the daemon of this root recorded.

    A root that was named (by --root: `is_named`; or by $WATCHBILL_HOME) leads to its own daemon and to no other: raises
    NotReachable when none runs on it. The usual root leads to the usual address.
    """
    if chosen:
        return Address(chosen, True)
    named = environment.get("WATCHBILL_URL")
    if named and not is_named:
        return Address(named, True)
    record = root.read_daemon()
    if record is not None and record.url and record.is_alive():
        return Address(record.url, True)
    if is_named or environment.get("WATCHBILL_HOME"):
        raise NotReachable(f"no daemon runs on {root.path}; start one with: {root.command_to_start()}")
    return Address(record.url if record is not None and record.url else DEFAULT_URL, False)


def quoted(name: str) -> str:
    """A name as one segment of a path; model names may hold slashes."""
    return quote(name, safe="", errors="replace")


class Client:
    """Talks to one daemon. Every call opens a connection of its own."""

    __slots__ = ("_host", "_is_withheld", "_key", "_port", "_prefix", "_root", "_tls", "url")

    def __init__(
        self, url: str, key: str | None = None, root: Root | None = None, *, is_trusted: bool = True
    ) -> None:
        self._root = root  # whose daemon it is, for hints
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is not an address: {error}") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname or not _is_plain(url) or " " in url:
            raise ConfigError(f"{url!r} is not an address; write for example {DEFAULT_URL}")
        self.url = url.rstrip("/")
        self._host = parts.hostname
        self._tls = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._key = key and key.strip()  # often read from a file, with its last line break
        if self._key and not _is_plain(self._key):
            raise ConfigError(
                "$WATCHBILL_API_KEY cannot be a key: it has a character that is not of printable ASCII"
            )
        self._is_withheld = bool(self._key) and not is_trusted

    def get(self, path: str) -> bytes:
        """The body at `path`, unchanged."""
        return self._call("GET", path, None, CLI_ANSWER_TIMEOUT_S)

    def get_json(self, path: str) -> object:
        """The value at `path`."""
        return parse(self.get(path))

    def post(self, path: str, body: object = None, *, timeout_s: float = CLI_ANSWER_TIMEOUT_S) -> bytes:
        """Posts JSON and returns the answer's body, unchanged."""
        return self._call("POST", path, body if body is not None else {}, timeout_s)

    def delete(self, path: str, body: object = None) -> bytes:
        """Deletes, and returns the answer's body, unchanged."""
        return self._call("DELETE", path, body, CLI_ANSWER_TIMEOUT_S)

    def upload(self, path: str, file: BinaryIO, size: int, fields: Mapping[str, str]) -> bytes:
        """Posts a form with a file of `size` bytes, piece by piece, and returns the answer's body, unchanged."""
        connection = self._connect(CLI_STREAM_SILENCE_S)
        try:
            with self._translated():
                head, tail = _form_around(fields)
                headers = self._headers() | {
                    "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}",
                    "Content-Length": str(len(head) + size + len(tail)),
                }
                body = itertools.chain([head], _pieces_of(file, size), [tail])
                connection.request("POST", self._prefix + path, body, headers)
                answer = connection.getresponse()
                content = _read(answer)
                if answer.status >= 400:
                    raise self._refusal(answer, content)
                return content
        finally:
            connection.close()

    @contextmanager
    def download(self, path: str) -> Generator[Iterator[bytes]]:
        """Opens an answer of any size, piece by piece."""
        connection = self._connect(CLI_STREAM_SILENCE_S)
        try:
            with self._translated():
                answer = self._send(connection, "GET", path, None)
                if answer.status >= 400:
                    raise self._refusal(answer, _read(answer))
            yield self._pieces(answer)
        finally:
            connection.close()

    @contextmanager
    def stream(self, method: str, path: str, body: object = None) -> Generator["Lines"]:
        """Opens an answer that arrives line by line. Leaving the block hangs up, which cancels the work."""
        connection = self._connect(CLI_STREAM_SILENCE_S)
        try:
            with self._translated():
                answer = self._send(connection, method, path, body)
                if answer.status >= 400:
                    raise self._refusal(answer, _read(answer))
            headers = {name.lower(): value for name, value in answer.getheaders()}
            yield Lines(self._lines(answer), headers)
        finally:
            connection.close()

    def _call(self, method: str, path: str, body: object, timeout_s: float) -> bytes:
        connection = self._connect(timeout_s)
        try:
            with self._translated():
                answer = self._send(connection, method, path, body)
                content = _read(answer)
        finally:
            connection.close()
        if answer.status >= 400:
            raise self._refusal(answer, content)
        return content

    def _refusal(self, answer: http.client.HTTPResponse, content: bytes) -> TheirsError:
        message, code = _error_in(content)
        if answer.status == 401:
            message = f"{message.rstrip('.') or 'a key is needed'}; {self._advice_on_key()}"
        return DaemonRefused(
            message or f"the daemon answered {answer.status} {answer.reason}",
            answered=answer.status,
            reason=code,
        )

    def _advice_on_key(self) -> str:
        if self._is_withheld:
            return (
                f"$WATCHBILL_API_KEY was not sent, because no daemon of this root runs at {self.url}; "
                f"if you trust what does, add: --url {self.url}"
            )
        return "put the key into $WATCHBILL_API_KEY"

    def _lines(self, answer: http.client.HTTPResponse) -> Iterator[str]:
        while True:
            with self._translated():
                line = answer.readline(CLI_LINE_BYTES_MAX)
            if not line:
                return
            yield line.decode("utf-8", "replace").rstrip("\r\n")

    def _pieces(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            with self._translated():
                piece = answer.read(FILE_PIECE_BYTES)
            if not piece:
                return
            yield piece

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._key and not self._is_withheld:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        return connect(self._host, self._port, is_tls=self._tls, timeout_s=timeout_s)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object
    ) -> http.client.HTTPResponse:
        headers = self._headers()
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            # A terminal or a pipe may pass bytes that are not text; they are replaced.
            content = json.dumps(body, ensure_ascii=False).encode(errors="replace")
        connection.request(method, self._prefix + path, content, headers)
        return connection.getresponse()

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Turns errors of the network into messages with a hint."""
        try:
            yield
        except TimeoutError as error:
            raise NotReachable(
                f"the daemon at {self.url} does not answer; look with: {self._hint('logs')}"
            ) from error
        except (ConnectionResetError, http.client.IncompleteRead) as error:
            raise NotReachable(
                f"the daemon at {self.url} hung up; look with: {self._hint('logs')}"
            ) from error
        except http.client.HTTPException as error:
            raise NotReachable(
                f"what answers at {self.url} is not a Watchbill daemon; name the address with --url"
            ) from error
        except OSError as error:  # of any kind: the hint is the same
            raise NotReachable(
                f"no daemon answers at {self.url} ({reason_of(error)}); start one with: {self._hint('up')}"
            ) from error

    def _hint(self, *words: str) -> str:
        """A command for the root whose daemon this is."""
        return (self._root or find_root()).command(*words)


def _form_around(fields: Mapping[str, str]) -> tuple[bytes, bytes]:
    """What comes before and after the file of a form."""
    part = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
    texts = "".join(
        f'{part}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items() if name != "filename"
    )
    shown = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in fields["filename"])
    head = f'{texts}{part}"file"; filename="{shown}"\r\n\r\n'
    return head.encode(), f"\r\n--{_BOUNDARY}--\r\n".encode()


def _pieces_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Exactly so many bytes of a file; one that was cut meanwhile is filled with newlines."""
    while size > 0:
        piece = file.read(min(size, FILE_PIECE_BYTES)) or b"\n" * min(size, FILE_PIECE_BYTES)
        size -= len(piece)
        yield piece


def parse(content: bytes) -> object:
    """The JSON value in an answer. Raises NotReachable if it is not JSON: then no Watchbill daemon answered."""
    try:
        return cast("object", json.loads(content))
    except (ValueError, RecursionError) as error:
        raise NotReachable(
            "what answers there is not a Watchbill daemon; name the address with --url"
        ) from error


def _read(answer: http.client.HTTPResponse) -> bytes:
    content = answer.read(CLI_ANSWER_BYTES_MAX)
    if answer.read(1):
        raise http.client.HTTPException("answer too large")
    return content


def _is_plain(text: str) -> bool:
    """Whether it can be written into the head of a request unchanged."""
    return text.isascii() and text.isprintable()


def _error_in(content: bytes) -> tuple[str, str]:
    """Message and code of an error answer; empty texts where it has none."""
    try:
        found = cast("object", json.loads(content))
    except (ValueError, RecursionError):
        return "", ""
    fields = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    error = fields.get("error", fields.get("status"))  # the probes answer with a bare status
    if isinstance(error, str):
        return error, ""
    if not isinstance(error, dict):
        return "", ""
    said = cast("dict[str, object]", error)
    return str(said.get("message") or ""), str(said.get("code") or "")
