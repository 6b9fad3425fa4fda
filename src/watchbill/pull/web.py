"""Web: a file from an address, continued where it broke off.

Redirects are followed here and nowhere else in Watchbill: the operator names the address, and hubs hand large
files over to other hosts. Never from https to http, and never to anything but these two.
"""

import http.client
import re
import time
import urllib.error
import urllib.request
from email.message import Message
from typing import IO
from urllib.parse import unquote, urlsplit

from watchbill import __version__
from watchbill.blocking_http import reason_of
from watchbill.errors import NameRefused, PullFailed
from watchbill.names import header_text
from watchbill.pull import limits
from watchbill.pull.landing import Landing, Part

__all__ = ["NoSuchFile", "fetch", "file_name", "read"]

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")
_SHA256 = re.compile(r'"?([0-9a-f]{64})"?')
#: Answers that may be different in a moment.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_HINTS = {
    401: ", it wants a login",
    403: ", it wants a login",
    404: ", there is no such file",
} | dict.fromkeys(range(300, 309), ", it leads to where a pull may not go")


class _Broken(Exception):
    """The connection broke or the server is busy; another attempt may go on."""


def file_name(url: str) -> str:
    """The name under which the file of an address is kept."""
    parts = urlsplit(url)
    name = unquote(parts.path.rpartition("/")[2])
    if not parts.hostname or not name or len(url) > limits.PULL_URL_CHARS_MAX:
        raise NameRefused(f"{header_text(url)!r} does not end in the name of a file")
    return name


class NoSuchFile(PullFailed):
    """The server has no such file."""


def read(url: str, accept: str, bytes_max: int) -> bytes:
    """A small answer, whole. Raises NoSuchFile for 404, PullFailed for every other failure."""
    headers = {"User-Agent": f"watchbill/{__version__}", "Accept-Encoding": "identity", "Accept": accept}
    request = urllib.request.Request(url, headers=headers)
    try:
        with _opener(_Redirects()).open(request, timeout=limits.PULL_SILENCE_S) as answer:
            text = answer.read(bytes_max + 1)
    except urllib.error.HTTPError as refusal:
        with refusal:
            kind = NoSuchFile if refusal.code == http.HTTPStatus.NOT_FOUND else PullFailed
            raise kind(f"{header_text(url)}: the server answers {refusal.code}") from refusal
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        raise PullFailed(f"{header_text(url)}: {header_text(reason_of(error))}") from error
    if len(text) > bytes_max:
        raise PullFailed(f"{header_text(url)}: more than {bytes_max:,} bytes")
    return text


def fetch(url: str, landing: Landing) -> None:
    """Downloads the file of an address into its place.

    A connection that breaks is continued with a Range request, some times; after that what arrived is kept
    for the next call. Raises PullFailed.
    """
    with landing.receive() as part:
        download = _Download(url, landing, part)
        reason = ""
        for attempt in range(limits.PULL_ATTEMPTS_MAX):
            before = part.size_bytes
            try:
                download.go_on()
                part.finish(download.linked_sha256)
                return
            except _Broken as broken:
                reason = str(broken)
                if part.size_bytes == before and attempt > 0:
                    break  # twice in a row without a byte: the next call may have more luck
            time.sleep(limits.PULL_RETRY_WAIT_S * 2**attempt)
        kept = f"; {part.size_bytes:,} bytes are kept, the same command goes on from there"
        raise PullFailed(f"{header_text(url)}: {reason}{kept if part.size_bytes else ''}")


class _Download:
    """One download over as many connections as it takes."""

    def __init__(self, url: str, landing: Landing, part: Part) -> None:
        self._url = url
        self._landing = landing
        self._part = part
        self._redirects = _Redirects()
        self._opener = _opener(self._redirects)

    @property
    def linked_sha256(self) -> str | None:
        """The hash that the hub itself named on the way, if it did."""
        return self._redirects.linked_sha256

    def go_on(self) -> None:
        """Receives until the file is whole. Raises _Broken where another attempt makes sense."""
        try:
            with self._opener.open(self._request(), timeout=limits.PULL_SILENCE_S) as answer:
                self._take(answer, self._total(answer))
        except urllib.error.HTTPError as refusal:
            with refusal:
                self._judge(refusal)
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise _Broken(header_text(reason_of(error))) from error

    def _request(self) -> urllib.request.Request:
        headers = {"User-Agent": f"watchbill/{__version__}", "Accept-Encoding": "identity"}
        part = self._part
        if part.size_bytes and not (part.validator or part.wanted.sha256):
            part.restart()  # neither a mark nor a hash: two versions could be glued together unnoticed
        if part.size_bytes:
            headers["Range"] = f"bytes={part.size_bytes}-"
            if part.validator:
                headers["If-Range"] = part.validator
        return urllib.request.Request(self._url, headers=headers)

    def _total(self, answer: http.client.HTTPResponse) -> int | None:
        """Places the part where this answer begins, and says how large the file is."""
        part = self._part
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            begin, total = _content_range(answer.headers)
            if begin != part.size_bytes:
                part.restart()
                raise _Broken("the server continued at another place than asked")
            return total
        part.restart(_validator(answer.headers))
        length = answer.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None

    def _take(self, answer: http.client.HTTPResponse, total: int | None) -> None:
        declared = self._part.wanted.size_bytes
        if declared is not None and total not in (None, declared):
            self._part.discard()
            raise PullFailed(f"{header_text(self._url)} has {total:,} bytes, declared were {declared:,}")
        total = declared if total is None else total
        if total is not None:
            self._landing.check_room(total - self._part.size_bytes)
        while chunk := answer.read(limits.PULL_CHUNK_BYTES):
            self._part.write(chunk, total)
        if total is not None and self._part.size_bytes != total:
            raise _Broken("the connection broke off")

    def _judge(self, refusal: urllib.error.HTTPError) -> None:
        """Returns when the refusal means that everything is here; raises otherwise."""
        part = self._part
        if refusal.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if _content_range(refusal.headers)[1] == part.size_bytes:
                return  # the part was whole already: the last call ended between its last byte and its rename
            part.restart()
            raise _Broken("the file on the server has changed") from refusal
        if refusal.code in _PASSING:
            raise _Broken(f"the server answers {refusal.code}") from refusal
        hint = _HINTS.get(refusal.code, "")
        raise PullFailed(f"{header_text(self._url)}: the server answers {refusal.code}{hint}") from refusal


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows few redirects, never to less safety, and hears what the hub says of the file on the way."""

    max_redirections = limits.PULL_REDIRECTS_MAX
    max_repeats = limits.PULL_REDIRECTS_MAX

    def __init__(self) -> None:
        self.linked_sha256: str | None = None

    def redirect_request(  # noqa: PLR0917 - the signature is urllib's
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        secure, target = req.full_url.startswith("https:"), urlsplit(newurl)
        if target.scheme != "https" and (secure or target.scheme != "http"):
            raise PullFailed(f"{header_text(req.full_url)} leads to {header_text(newurl)}: not https")
        linked = _SHA256.fullmatch(headers.get("X-Linked-ETag", ""))
        self.linked_sha256 = self.linked_sha256 or (linked and linked[1])
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # pyright: ignore[reportArgumentType] # typeshed wants HTTPMessage, which is a Message


def _opener(redirects: _Redirects) -> urllib.request.OpenerDirector:
    """Knows http and https and the proxies of the environment; no files, no FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        redirects,
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _validator(headers: Message) -> str:
    """A mark that is different when the file is different: a strong ETag, else nothing."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') and header_text(etag) == etag else ""


def _content_range(headers: Message) -> tuple[int | None, int | None]:
    """Where an answer begins and how large the file is; None for what it does not say."""
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        return None, None
    return (int(match[1]) if match[1] else None), (int(match[2]) if match[2] != "*" else None)
