"""Who may come in: every route and method, generated from the router (R44, R45, R46)."""

import hashlib
import hmac
import itertools
import re

import pytest

from support.open_gateway import HELLO, OpenGateway, open_gateway
from watchbill.catalog import ApiKey, Server
from watchbill.gateway import access
from watchbill.gateway.access import Access

KEY, ADMIN = "user-key-0123456789", "admin-key-0123456789"
SERVER = Server(
    keys=(ApiKey("user", KEY, lane="batch"), ApiKey("root", ADMIN, admin=True)),
    hosts=("bill.lan",),
    origins=("https://page.example",),
)
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE"]
NAMES = {"{id}": "x", "{id:.+}": "a", "{name:.+}": "a", "{which:.+}": "a", "{name}": "style.css"}
#: Where a bookmark of another program leads to the page.
LEADING = {"/ui": 302, "/ui/": 302}


def address(pattern: str) -> str:
    for name, value in NAMES.items():
        pattern = pattern.replace(name, value)
    return pattern


def matrix(opened: OpenGateway) -> list[tuple[str, str, Access | None]]:
    """Every address x method, with what the router asks for it; None where nothing is served."""
    routes = opened.gateway.routes()
    known = {(method, path): access for method, path, access, _ in routes}
    paths = sorted({path for _, path, _, _ in routes})

    def asked_of(method: str, path: str) -> Access | None:
        """Its own line, or that of a pattern that covers it: `/v1/responses/input_tokens` is an id to GET."""
        covering = (
            access for (other, pattern), access in known.items() if other == method and covers(pattern, path)
        )
        return known.get((method, path)) or next(covering, None)

    return [(method, path, asked_of(method, path)) for method, path in itertools.product(METHODS, paths)]


def covers(pattern: str, path: str) -> bool:
    form = re.sub(r"\{\w+(?::([^}]+))?\}", lambda name: name[1] or "[^/]+", pattern)
    return re.fullmatch(form, address(path)) is not None


def disguises(path: str) -> list[str]:
    """The same address in other clothes."""
    return [
        f"/{path}",
        f"{path}/",
        path.replace("/", "//"),
        "/%" + f"{ord(path[1]):02x}" + path[2:],
        f"/health/..{path}",
        f"/health%2f..{path}",
        f"{path}?x=/health",
        f"{path}%00",
        f"{path};/health",
        f"http://localhost{path}",
        path.upper(),
    ]


async def status(opened: OpenGateway, method: str, path: str, **headers: str) -> int:
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    every = {name.replace("_", "-"): value for name, value in headers.items()}
    if method == "HEAD":
        every["Connection"] = "close"
        reader, writer = await opened.connect()
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "localhost", **every}.items())
        writer.write(f"HEAD {path} HTTP/1.1\r\n{lines}\r\n".encode())
        return int((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
    return (await opened.ask(path, body, method=method, headers=every)).status


async def test_every_route_and_method_is_closed_without_a_key() -> None:
    """R44: denied by default; only /health, /ready and the page are open."""
    async with open_gateway(server=SERVER) as opened:
        for method, pattern, access in matrix(opened):
            got = await status(opened, method, address(pattern))
            open_door = access is Access.OPEN
            assert got == (LEADING.get(pattern, 200) if open_door else 401), (method, pattern)
        assert not opened.peer.asked and not opened.engine.attempts


async def test_addresses_in_disguise_are_closed_without_a_key() -> None:
    """R44: encoded, doubled, absolute, dotted paths."""
    async with open_gateway(server=SERVER) as opened:
        for method, pattern, access in matrix(opened):
            if access in (Access.KEY, Access.ADMIN):
                for path in disguises(address(pattern)):
                    assert await status(opened, method, path) in (400, 401, 404), (method, path)
        assert not opened.peer.asked and not opened.engine.attempts


WRONG = {
    "empty": {"Authorization": ""},
    "no token": {"Authorization": "Bearer"},
    "an empty token": {"Authorization": "Bearer "},
    "a prefix": {"Authorization": f"Bearer {KEY[:-1]}"},
    "a longer one": {"Authorization": f"Bearer {KEY}x"},
    "another case": {"Authorization": f"Bearer {KEY.upper()}"},
    "another scheme": {"Authorization": f"Basic {KEY}"},
    "the bare key": {"Authorization": KEY},
    "a name": {"Authorization": "Bearer user"},
    "two that disagree": {"Authorization": f"Bearer {KEY}", "X-Api-Key": "other"},
    "an empty key header": {"X-Api-Key": ""},
    "two in one": {"Authorization": f"Bearer {KEY}, Bearer {KEY}"},
    "not ASCII": {"Authorization": "Bearer k\u00e9y"},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
async def test_a_wrong_key_is_refused(headers: dict[str, str]) -> None:
    """R44"""
    async with open_gateway(server=SERVER) as opened:
        answer = await opened.ask("/v1/models", headers=headers)
        assert (answer.status, answer.code) == (401, "authentication_failed")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY not in answer.body.decode()


async def test_the_same_header_twice_is_refused() -> None:
    """R44: two keys that could disagree are none."""
    async with open_gateway(server=SERVER) as opened:
        line = f"Authorization: Bearer {KEY}\r\n"
        request = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{line}{line}\r\n"
        assert (await opened.send(request.encode())).status in (400, 401)


async def test_the_right_key_opens_what_is_its_own() -> None:
    """R44: an ordinary key may call models, and changes nothing for others."""
    async with open_gateway(server=SERVER) as opened:
        for method, pattern, access in matrix(opened):
            if pattern.endswith(("events", "live")):
                continue
            got = await status(opened, method, address(pattern), Authorization=f"Bearer {KEY}")
            if access in (Access.ADMIN, Access.PEER):
                assert got == 403, (method, pattern)
            elif access is None:
                assert got == 405, (method, pattern)
            else:
                assert got in (200, 302, 400, 404, 415, 501), (method, pattern)
            if pattern.startswith("/logs/stream"):  # without an end, where it is open
                continue
            got = await status(opened, method, address(pattern), X_Api_Key=ADMIN)
            if access is Access.PEER:  # for another machine alone: an operator's key takes no lease
                assert got == 403, (method, pattern)
            else:
                assert got not in (401, 403), (method, pattern)


async def test_a_key_decides_the_lane_and_never_reaches_an_engine() -> None:
    """api.md: callers who cannot send headers get their lane by API key."""
    body = {"model": "a", "messages": []}
    async with open_gateway(HELLO, server=SERVER) as opened:
        answer = await opened.ask("/v1/chat/completions", body, headers={"Authorization": f"bearer {KEY}"})
        assert answer.headers["x-watchbill-lane"] == "batch"
        assert "authorization" not in opened.peer.asked[0].headers


def test_keys_are_compared_over_digests_all_of_them_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """R45: time tells nothing about a key, nor which of them matched."""
    compared: list[tuple[bytes, bytes]] = []
    constant_time = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return constant_time(left, right)

    guard = access.Guard(SERVER)
    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    for offered in (KEY, ADMIN, "wrong", ""):
        compared.clear()
        guard._find_key(offered)  # pyright: ignore[reportPrivateUsage]
        assert len(compared) == len(SERVER.keys)
        assert {len(left) for left, _ in compared} == {32} == {len(right) for _, right in compared}
        assert {right for _, right in compared} == {hashlib.sha256(offered.encode()).digest()}


# ------------------------------------------------------------------ Host and Origin

GOOD_HOSTS = [
    "localhost",
    "localhost:8470",
    "LOCALHOST:1",
    "127.0.0.1",
    "127.0.0.1:8470",
    "127.9.9.9",
    "[::1]:8470",
    "bill.lan:8470",
]
BAD_HOSTS = [
    "evil.example",
    "evil.example:8470",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:127.0.0.1",
    "bill.lan.evil",
    "192.168.1.5",
    "0.0.0.0",
    "",
    "local host",
    "localhost:8470:1",
    "localhost:99999999",
    "[::2]",
    "[::1",
    "user@localhost",
]


async def test_only_known_hosts_are_served_on_every_route_and_method() -> None:
    """R46: DNS rebinding, for every method; Ray forgot DELETE."""
    async with open_gateway(server=SERVER) as opened:
        for method, pattern, _ in matrix(opened):
            for host in ("evil.example", "127.0.0.1.evil.example"):
                got = await status(
                    opened, method, address(pattern), Host=host, Authorization=f"Bearer {ADMIN}"
                )
                assert got == 403, (method, pattern, host)
        assert not opened.peer.asked and not opened.engine.attempts


async def test_hosts() -> None:
    """R46: what is a known host and what only looks like one."""
    async with open_gateway(server=SERVER) as opened:
        for host in GOOD_HOSTS:
            assert (await opened.ask("/health", headers={"Host": host})).status == 200, host
        for host in BAD_HOSTS:
            assert (await opened.ask("/health", headers={"Host": host})).status in (400, 403), host


async def test_addresses_are_hosts_where_the_bind_is_wide() -> None:
    """R46: an address cannot be rebound; a name still can."""
    async with open_gateway(server=Server(host="0.0.0.0", keys=SERVER.keys)) as opened:
        assert (await opened.ask("/health", headers={"Host": "192.168.1.5:8470"})).status == 200
        assert (await opened.ask("/health", headers={"Host": "evil.example"})).status == 403


BAD_ORIGINS = [
    "https://evil.example",
    "null",
    "http://page.example",
    "https://page.example.evil",
    "https://page.example:1",
    "http://localhost.evil",
    "file://",
    "",
    "https://page.example https://evil.example",
]


async def test_only_known_web_pages_may_call_on_every_route_and_method() -> None:
    """R46: cross-site requests, also those that need no preflight."""
    async with open_gateway(server=SERVER) as opened:
        for method, pattern, _ in matrix(opened):
            got = await status(
                opened,
                method,
                address(pattern),
                Origin="https://evil.example",
                Authorization=f"Bearer {ADMIN}",
            )
            assert got == 403, (method, pattern)
        for origin in BAD_ORIGINS:
            answer = await opened.ask("/health", headers={"Origin": origin})
            assert answer.status == 403 and "access-control-allow-origin" not in answer.headers, origin
        assert not opened.peer.asked and not opened.engine.attempts


async def test_a_foreign_page_gets_only_what_is_open_without_a_key() -> None:
    """R46: a browser sends no Origin for an image or a link; without keys it would load models for any page."""
    async with open_gateway(server=Server()) as opened:
        for method, pattern, access in matrix(opened):
            got = await status(opened, method, address(pattern), Sec_Fetch_Site="cross-site")
            assert (got == 403) == (access is not Access.OPEN), (method, pattern)
        assert not opened.peer.asked and not opened.engine.attempts
        sites = {"same-site": 403, "odd": 403, "none": 200, "same-origin": 200}
        for site, expected in sites.items():
            assert await status(opened, "GET", "/v1/models", Sec_Fetch_Site=site) == expected, site
    async with open_gateway(server=SERVER) as opened:
        named = {"Origin": "https://page.example", "Authorization": f"Bearer {KEY}"}
        assert await status(opened, "GET", "/v1/models", Sec_Fetch_Site="cross-site", **named) == 200


async def test_a_known_web_page_may_call_and_ask_before() -> None:
    """R46: preflight with an allow-list; our own pages need no entry."""
    origin = {"Origin": "https://page.example"}
    async with open_gateway(server=SERVER) as opened:
        asks = {
            **origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-stainless-os",
        }
        answer = await opened.ask("/v1/chat/completions", method="OPTIONS", headers=asks)
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert answer.headers["access-control-allow-headers"] == "x-stainless-os"
        body = {"model": "a", "stream": True}
        headers = {**origin, "Authorization": f"Bearer {KEY}"}
        answer = await opened.ask("/v1/chat/completions", body, headers=headers)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        own = {"Host": "localhost:8470", "Origin": "http://localhost:8470"}
        assert (await opened.ask("/health", headers=own)).status == 200
        asks["Origin"] = "https://evil.example"
        assert (await opened.ask("/v1/models", method="OPTIONS", headers=asks)).status == 403


async def test_a_known_web_page_can_read_why_it_is_refused() -> None:
    """R46: without its headers a browser shows a page a failed connection in place of a wrong key."""
    async with open_gateway(server=SERVER) as opened:
        for key, path, expected in (
            ("wrong", "/v1/models", 401),
            (KEY, "/nowhere", 404),
            (KEY, "/v1/models/none", 404),
        ):
            named = {"Origin": "https://page.example", "Authorization": f"Bearer {key}"}
            answer = await opened.ask(path, headers=named)
            assert answer.status == expected
            assert answer.headers.get("access-control-allow-origin") == "https://page.example", path
            foreign = await opened.ask(path, headers={**named, "Origin": "https://evil.example"})
            assert foreign.status == 403 and "access-control-allow-origin" not in foreign.headers


async def test_no_web_page_may_call_by_default() -> None:
    """R46: no CORS by default."""
    async with open_gateway() as opened:
        answer = await opened.ask("/v1/models", headers={"Origin": "https://page.example"})
        assert answer.status == 403 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/%0A", "/wb/v1/models/a%0Ab/load", "/v1/models/a%0D%0Ab", "/wb/v1/%0Astatus"]
)
async def test_a_line_break_in_an_address_goes_round_no_guard(path: str) -> None:
    """R44: found by schemathesis: such an address matched nothing, and the library answered without us."""
    async with open_gateway(server=SERVER) as opened:
        for method in ("GET", "POST"):
            assert (await opened.ask(path, method=method)).status == 401
            assert await status(opened, method, path, Authorization=f"Bearer {KEY}") in (403, 404, 405)
            answer = await opened.ask(path, method=method, headers={"Host": "evil.example"})
            assert answer.status == 403
            assert answer.headers["content-type"] == "application/json"
