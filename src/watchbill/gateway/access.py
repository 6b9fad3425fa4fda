"""Who may come in: API keys, the Host header, and the Origin of web pages.

Every browser names a Host; what comes without one, in HTTP/1.0, is a load balancer that looks whether we are well.
A browser sends no Origin for an image, a script or a link, but says in `Sec-Fetch-Site` that another site's page asks:
such a page gets only what is open without a key. Else any page could load models and read engines' addresses.
Owns the three checks, made for every route and method before anything of the request is used. Denied by default:
only routes that say so are open without a key. Keys are compared over digests, all of them, in constant time.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from enum import Enum
from ipaddress import ip_address
from types import MappingProxyType

from watchbill.catalog import ApiKey, Server
from watchbill.errors import AuthenticationFailed, Forbidden, RequestError
from watchbill.gateway.http.messages import Request, Response
from watchbill.gateway.limits import HOSTS_REMEMBERED_MAX

__all__ = ["BROWSER_KEY", "Access", "Guard"]

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?", re.ASCII)
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,1024}", re.ASCII)
#: What a peer may ask beside leases.
_FOR_PEERS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
#: How OpenAI's clients in browsers show a key for a websocket.
BROWSER_KEY = "openai-insecure-api-key."
#: `Sec-Fetch-Site` of what no foreign page asks: a program, our own page, a person who typed the address.
_NOT_FOREIGN = (None, "same-origin", "none")
_METHODS = "GET, POST, DELETE, OPTIONS"
_HEADERS = "Authorization, Content-Type"


class Access(Enum):
    """What a route asks of its caller when API keys are configured."""

    OPEN = "open"  # no key: says nothing about any caller
    KEY = "key"  # any key
    ADMIN = "admin"  # a key with admin rights: changes what others get
    PEER = "peer"  # the key of another machine


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Guard:
    """Checks every request against the server's rules."""

    def __init__(self, server: Server) -> None:
        self._asks_for_keys = server.asks_for_keys
        self._keys = [
            (hashlib.sha256(secret.encode()).digest(), key)
            for key in server.keys
            for secret in (key.key, key.old_key)
            if secret
        ]
        named = {
            origin.lower() if origin.endswith("//") else origin.lower().rstrip("/")
            for origin in server.origins
        }
        self._origins = frozenset(origin for origin in named if "*" not in origin)
        self._patterns = re.compile(
            "|".join(sorted(map(_pattern, named - self._origins))) or "(?!)", re.ASCII
        )
        self._names = frozenset({"localhost", *(name.lower().strip("[]") for name in server.hosts)})
        self._bound_wide = not _is_loopback(server.host)
        self._hosts: dict[str, bool] = {}

    def admit(self, request: Request, access: Access) -> Mapping[str, str]:
        """Lets a request pass by where it comes from, and returns the headers that every answer to it needs.

        Raises RequestError or Forbidden."""
        headers = request.headers
        host = headers.get("host", "")
        if not self._is_known_host(host) and (host or request.version != "1.0"):
            raise Forbidden("this Host is not served here; add it to server.hosts in the config")
        if not request.target.startswith("/"):
            raise RequestError("the request's address must be a path")
        if "origin" in headers:
            return self._check_origin(headers["origin"], host, access)
        if access is not Access.OPEN and headers.get("sec-fetch-site") not in _NOT_FOREIGN:
            raise Forbidden("a page or link of another address may not ask this; type the address instead")
        return _NO_HEADERS

    def identify(self, request: Request, access: Access) -> ApiKey | None:
        """Who calls, or raises: Forbidden, AuthenticationFailed."""
        if not self._keys and access is not Access.PEER:
            return None
        return self._check_key(request, access)

    def answer_preflight(self, request: Request) -> Response | None:
        """The answer to a browser's question whether a page may call; None when it is none."""
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        if not self._is_known_host(request.headers.get("host", "")):
            raise Forbidden("this Host is not served here")
        cors = self._check_origin(request.headers.get("origin", ""), request.headers.get("host", ""))
        wanted = request.headers.get("access-control-request-headers", "")
        cors["Access-Control-Allow-Methods"] = _METHODS
        cors["Access-Control-Allow-Headers"] = wanted if _HEADER_NAMES.fullmatch(wanted) else _HEADERS
        cors["Access-Control-Max-Age"] = "600"
        return Response(b"", cors, 204)

    # ------------------------------------------------------------------ the checks

    def _is_known_host(self, host: str) -> bool:
        known = self._hosts.get(host)
        if known is None:
            known = self._judge_host(host)
            if len(self._hosts) >= HOSTS_REMEMBERED_MAX:
                self._hosts.clear()
            self._hosts[host] = known
        return known

    def _judge_host(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match["name"].lower().strip("[]")
        if name in self._names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        # A rebinding attack needs a name that its owner can point elsewhere; an address cannot be rebound.
        return address.is_loopback or self._bound_wide

    def _check_origin(self, asked: str, host: str, access: Access | None = None) -> dict[str, str]:
        origin = asked.lower()  # two headers arrive joined, and match no page's address
        own = origin in (f"http://{host.lower()}", f"https://{host.lower()}")
        if not own and origin not in self._origins and not self._patterns.fullmatch(origin):
            raise Forbidden("this web page may not call; add its address to server.origins in the config")
        if not own and access is Access.ADMIN:
            raise Forbidden("web pages of other addresses may not do this; ask from the command line")
        return {
            "Access-Control-Allow-Origin": asked,
            "Access-Control-Expose-Headers": "*",
            "Vary": "Origin",
        }

    def _check_key(self, request: Request, access: Access) -> ApiKey | None:
        if access is Access.OPEN:
            return None
        key = self._find_key(_offered(request))
        if key is not None and key.peer is not None:
            _check_peer(request, access)
            return key
        if key is None and self._asks_for_keys:
            raise AuthenticationFailed
        if access is Access.PEER:
            raise Forbidden("only another machine of [peers] may ask this")
        if key is None:
            return None
        if access is Access.ADMIN and not key.admin:
            raise Forbidden(f"the key of {key.name} has no admin rights")
        return key

    def _find_key(self, offered: str) -> ApiKey | None:
        digest = hashlib.sha256(offered.encode("utf-8", "surrogateescape")).digest()
        found: ApiKey | None = None
        for known, key in self._keys:
            # Every key is compared, whatever was found before: time tells nothing about which one matched.
            if hmac.compare_digest(known, digest):
                found = key
        return found if offered else None


def _pattern(origin: str) -> str:
    """An origin with `*` as an expression: digits for a port, names of hosts and dots for a host."""
    return re.escape(origin).replace(r":\*", r":\d{1,5}").replace(r"\*", r"[a-z0-9_.-]*")


def _check_peer(request: Request, access: Access) -> None:
    """Another machine has answers of models made here, and sees nothing else."""
    if access is not Access.PEER and request.path not in _FOR_PEERS:
        raise Forbidden("the key of another machine is for leases and answers only")


def _offered(request: Request) -> str:
    """The key that the caller shows. Two headers that could disagree are none."""
    headers = request.headers
    bearer, plain = headers.get("authorization"), headers.get("x-api-key", headers.get("api-key"))
    if bearer is None:
        return _shown_by_browser(headers.get("sec-websocket-protocol", "")) if plain is None else plain
    scheme, _, token = bearer.partition(" ")
    if plain is not None:  # some clients send the same key both ways
        return plain if token == plain else ""
    return token.strip() if scheme.lower() == "bearer" else ""


def _shown_by_browser(protocols: str) -> str:
    """The key in the handshake of a websocket: a browser can set no other header there."""
    named = (each.strip() for each in protocols.split(","))
    return next((each.removeprefix(BROWSER_KEY) for each in named if each.startswith(BROWSER_KEY)), "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
