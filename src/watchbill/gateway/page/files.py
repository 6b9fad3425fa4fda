"""The files of the page, as they are sent to browsers.

They are read once and kept. Every answer has a content security policy that allows nothing but these files and this
address: no inline script or style, no other host, and texts can never become markup (trusted types). Pictures may also
be of the page's own making (`blob:`), because an image sends no key; a browser runs nothing in them. The address says
nothing about the daemon, so it is open without a key; everything that the page shows is asked for with one.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from watchbill.errors import NotFound
from watchbill.gateway.http.messages import Response
from watchbill.gateway.request_context import RequestContext
from watchbill.quoting import quoted

__all__ = ["PageFiles"]

ASSETS = Path(__file__).parent / "assets"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' blob:", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
    "trusted-types 'none'",
))  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks each time whether it has changed
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    content_type: str
    tag: str


class PageFiles:
    """Serves / to browsers, and /page."""

    def __init__(self, folder: Path = ASSETS) -> None:
        self._files = {path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES}

    async def index(self, context: RequestContext) -> Response:
        """GET / of a browser."""
        return self._send("index.html", context)

    async def file(self, context: RequestContext) -> Response:
        """GET /page/{name}."""
        return self._send(context.request.match["name"], context)

    def _send(self, name: str, context: RequestContext) -> Response:
        found = self._files.get(name)
        if found is None:
            raise NotFound(f"the page has no file {quoted(name)}")
        headers = {"Content-Type": found.content_type, "ETag": found.tag, **_HEADERS}
        if context.request.headers.get("if-none-match") == found.tag:
            return Response(b"", headers, 304, context.lines())
        return Response(found.body, headers, lines=context.lines())


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')
