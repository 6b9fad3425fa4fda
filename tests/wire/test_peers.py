"""Peers: two machines on loopback ports; one has its requests served by the other, under leases."""

import asyncio
import contextlib
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Authority, write_certificate
from support.config_texts import SMALL_MODEL
from support.eventually import eventually
from support.open_gateway import GatewayClient, RawAnswer
from support.peer import Asked, chat_events, peer_listening, sse, stream_of
from support.recorded import Recorded
from support.running import running
from watchbill.catalog import Catalog, SpoolRules
from watchbill.config import parse
from watchbill.core import leases, model_state
from watchbill.engines import limits
from watchbill.engines.dial import _trust  # pyright: ignore[reportPrivateUsage]
from watchbill.gateway import breaks, relay
from watchbill.runtime.driver import Driver
from wire.engine_contract import within

TEXT = "One two three four. Five six seven eight. Nine ten eleven twelve. Thirteen fourteen fifteen sixteen."
KEYS = {"HOME_SHOWS": "what-home-shows-at-the-rig"}
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500}


def rig_config(service: str = "50ms", tokens: int = 8, more: str = "", *, load: str = "0s") -> Catalog:
    """The machine that lends: one model with a long answer, and one for the person there."""
    text = f"""
[devices.ram]
reserve = 0
[models.big]
engine = "scripted"
memory = "1MiB"
script = {{ touch = false, load = "{load}", service = "{service}", tokens = {tokens}, text = "{TEXT}" }}
[models.own]
engine = "scripted"
memory = "1MiB"
script = {{ touch = false }}
[models.secret]
engine = "scripted"
memory = "1MiB"
private = true
[peers.home]
their_key = "env:HOME_SHOWS"
{more}
"""
    return parse(text, base=Path("/srv"), environment=KEYS)


def home_config(port: int, more: str = "") -> Catalog:
    text = f"""
{SMALL_MODEL}[peers.rig]
url = "http://127.0.0.1:{port}"
key = "env:HOME_SHOWS"
models = ["big", "secret"]
{more}
"""
    return parse(text, base=Path("/srv"), environment=KEYS)


CLOUD = """
[tiers.cloud]
kind = "external"
enabled = true
url = "http://127.0.0.1:{port}/v1"
models = ["big"]
price_in = 1.0
price_out = 1.0
daily = 1.0
"""
Machine = tuple[GatewayClient, Driver]


@asynccontextmanager
async def machine(root: Path, catalog: Catalog) -> AsyncIterator[Machine]:
    root.mkdir()
    async with running(root, replace(catalog)) as (serving, driver):
        yield GatewayClient(serving), driver


@asynccontextmanager
async def two(
    tmp_path: Path, rig: Catalog | None = None, more: str = ""
) -> AsyncIterator[tuple[Machine, Machine]]:
    async with machine(tmp_path / "rig", rig or rig_config()) as far:
        port = far[0].serving.port
        async with machine(tmp_path / "home", home_config(port, more)) as near:
            yield near, far


@pytest.fixture
def quiet_ms(monkeypatch: pytest.MonkeyPatch) -> int:
    """A person is away after so long."""
    monkeypatch.setattr(leases, "QUIET_MS", 1_500)
    return 1_500


async def test_a_model_that_is_not_here_is_served_by_the_peer(tmp_path: Path) -> None:
    """RES-23: under a lease, in the class leased; both machines' status say so."""
    async with two(tmp_path) as ((home, here), (_, there)):
        answer = await home.ask("/v1/chat/completions", BODY | {"model": "big"})
        assert answer.status == 200, answer.body
        assert answer.headers["x-watchbill-tier"] == "peer"
        assert there.status()["models"]["big"]["leased"] == "home"  # type: ignore[index]
        (lease,) = there.status()["leases"].values()  # type: ignore[attr-defined, union-attr]
        assert (lease["peer"], lease["model"], lease["resting"]) == ("home", "big", False)
        assert here.status()["models"]["big"]["site"] == "rig"  # type: ignore[index]
        for name, event in (("home", "route"), ("rig", "lease")):
            file = tmp_path / name / "events.jsonl"
            await eventually(
                lambda f=file, e=event: e in [json.loads(x)["event"] for x in f.read_text().splitlines()]
            )


async def test_a_private_request_is_not_captured_by_the_peer(tmp_path: Path) -> None:
    """SPOOL-13: its caller's mark holds there, too, and so does what its lane says here."""
    sink = Recorded()
    rig = rig_config()
    models = {**rig.models, "big": replace(rig.models["big"], capture="corpus")}
    rules = {"corpus": SpoolRules("corpus", "spool", {"*": "corpus.jsonl"}, drain=False)}
    rig = replace(rig, models=models, spools=rules)
    async with two(tmp_path, rig, "[lanes.quiet]\nprivate = true") as ((home, _), (there, _)):
        there.serving.gateway.capturing.sink = sink
        for marks in ({"X-Watchbill-Private": "1"}, {"X-Watchbill-Lane": "quiet"}, {}):
            answer = await home.ask("/v1/chat/completions", BODY | {"model": "big"}, headers=marks)
            assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, "peer")
        await eventually(lambda: sink.events)
        assert len(sink.events) == 1


async def test_what_is_beyond_a_peers_bound_waits_at_the_lender(tmp_path: Path) -> None:
    """RES-23: the asking machine's bounds are for each model, the lender's for all of them; no caller is refused."""
    rig = rig_config(service="200ms", more="requests_max = 2")
    rig = replace(rig, models={**rig.models, "big": replace(rig.models["big"], concurrency=4)})
    async with two(tmp_path, rig, more="concurrency = 4") as ((home, _), (_, there)):
        asking = asyncio.gather(
            *(home.ask("/v1/chat/completions", BODY | {"model": "big"}) for _ in range(4))
        )
        lane: Any = {}
        most = waited = 0
        while not asking.done():
            lane = there.status()["lanes"]["leased:home"]  # type: ignore[index]
            most, waited = max(most, lane["running"]), max(waited, lane["queued"])
            await asyncio.sleep(0.01)
        assert [answer.status for answer in await asking] == [200] * 4
        assert (most, lane["class"]) == (2, "leased") and waited >= 2
        assert rig.offered_lane("leased:home") is None  # nobody else may name it


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("held_ms", [60_000, 50], ids=["at once", "after signs of life"])
async def test_the_wait_in_the_headers_counts_what_a_request_waited_at_its_lender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_ms: int, streamed: bool
) -> None:
    """RES-23, LANE-08: it is all that the caller waited; it was 0 however long the lender let the request wait. Headers
    that go out before that is known do not have it."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", held_ms)
    rig = rig_config(service="600ms", more="requests_max = 1")
    async with two(tmp_path, rig, more="concurrency = 4") as ((home, _), _):
        body = BODY | {"model": "big", "stream": streamed}
        await home.ask("/v1/chat/completions", body)
        asked = [home.ask("/v1/chat/completions", body) for _ in range(2)]
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200, 200]
        waits = sorted(int(answer.headers.get("x-watchbill-wait-ms", "-1")) for answer in answers)
        if streamed and held_ms == 50:
            assert waits[0] == -1 and waits[1] < 400
        else:
            assert 0 <= waits[0] < waits[1] and waits[1] >= 400


@pytest.mark.parametrize("wrong", ["model", "key"])
async def test_what_a_peer_will_never_lend_is_refused_at_once(tmp_path: Path, wrong: str) -> None:
    """RES-23, P3: a model that is not there or private, or a key that it does not know: no wait would help."""
    rig = rig_config()
    if wrong == "key":
        shown = tuple(replace(key, key="another") for key in rig.server.keys)
        rig = replace(rig, server=replace(rig.server, keys=shown))
    async with two(tmp_path, rig) as ((home, _), _):
        model = "secret" if wrong == "model" else "big"
        answer = await within(10, home.ask("/v1/chat/completions", BODY | {"model": model}))
        assert (answer.status, answer.code) == (503, "model_failed"), answer.body
        assert b"the peer rig gives no lease" in answer.body


async def test_a_person_at_the_peer_interrupts_and_the_caller_sees_a_longer_answer(
    tmp_path: Path, quiet_ms: int
) -> None:
    """RES-23: the text so far is kept, memory is handed over, and the answer goes on after a time of quiet."""
    async with two(tmp_path, rig_config("4s", 64)) as ((home, _), (rig, there)):
        straight = await home.ask("/v1/chat/completions", BODY | {"model": "big"})
        asking = asyncio.create_task(home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        await eventually(
            lambda: any(r["class"] == "leased" and r["state"] == "running" for r in there.requests())
        )
        await asyncio.sleep(1.0)  # some of the answer's words
        person = await rig.ask("/v1/chat/completions", BODY | {"model": "own"})
        assert person.status == 200
        await eventually(lambda: there.status()["models"]["big"]["state"] == "absent")  # type: ignore[index]
        assert not asking.done()
        assert next(iter(there.status()["leases"].values()))["resting"] is True  # type: ignore[attr-defined, union-attr]
        answer = await within(40, asking)
        assert answer.status == 200
        assert answer.json["choices"] == straight.json["choices"], "no word twice, none lost"


async def test_what_a_peers_key_may_do(tmp_path: Path) -> None:
    """Leases and answers, of models that are lent, under a lease of its own; nothing else, and nobody else."""
    async with two(tmp_path) as (_, (rig, there)):
        key = {"Authorization": f"Bearer {KEYS['HOME_SHOWS']}"}
        assert (await rig.ask("/wb/v1/status", headers=key)).status == 403
        assert (await rig.ask("/wb/v1/leases", {"model": "secret"}, headers=key)).status == 404
        assert (await rig.ask("/wb/v1/leases", {"model": "big"})).status == 403
        without = await rig.ask("/v1/chat/completions", BODY | {"model": "big"}, headers=key)
        assert (without.status, without.code) == (409, "no_lease")
        given = await rig.ask("/wb/v1/leases", {"model": "big"}, headers=key)
        leased = key | {"X-Watchbill-Lease": str(given.json["id"])}
        assert (await rig.ask("/v1/chat/completions", BODY | {"model": "big"}, headers=leased)).status == 200
        other = await rig.ask("/v1/chat/completions", BODY | {"model": "own"}, headers=leased)
        assert (other.status, other.code) == (409, "no_lease")
        assert (await rig.ask("/wb/v1/status")).status == 200, "callers without a key are not locked out"
        ended = await rig.ask(f"/wb/v1/leases/{given.json['id']}", method="DELETE", headers=key)
        assert ended.status == 200
        assert there.status()["leases"] == {}


async def test_a_leased_request_is_never_leased_on(tmp_path: Path) -> None:
    """No loops: a model that a machine has only from another peer is lent to nobody."""
    third = '[peers.third]\nurl = "http://127.0.0.1:9"\nkey = "env:HOME_SHOWS"\nmodels = ["theirs", "big"]\n'
    async with machine(tmp_path / "rig", rig_config(more=third)) as (rig, there):
        key = {"Authorization": f"Bearer {KEYS['HOME_SHOWS']}"}
        assert "theirs" in there.catalog.models
        for name in ("theirs", "big@third"):
            assert (await rig.ask("/wb/v1/leases", {"model": name}, headers=key)).status == 404
        given = await rig.ask("/wb/v1/leases", {"model": "big"}, headers=key)
        leased = key | {"X-Watchbill-Lease": str(given.json["id"])}
        answer = await rig.ask("/v1/chat/completions", BODY | {"model": "big"}, headers=leased)
        assert answer.headers["x-watchbill-tier"] == "local"


async def test_the_lease_of_a_peer_that_is_gone_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-23: counted by this machine's own clock; the peer's request ends with it."""
    monkeypatch.setattr(leases, "LEASE_MS", 1_000)
    async with machine(tmp_path / "rig", rig_config()) as (rig, there):
        key = {"Authorization": f"Bearer {KEYS['HOME_SHOWS']}"}
        given = await rig.ask("/wb/v1/leases", {"model": "big"}, headers=key)
        assert given.status == 200
        await eventually(lambda: there.status()["leases"] == {})
        again = await rig.ask(f"/wb/v1/leases/{given.json['id']}/renew", method="POST", headers=key)
        assert (again.status, again.code) == (409, "no_lease")


async def test_a_socket_that_accepts_and_never_answers_is_no_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open: the question for a lease has a bound, and the caller is told within its own."""
    monkeypatch.setattr(limits, "PEER_ANSWER_MS", 300)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        text = '[lanes.default]\nmax_wait = "3s"\n'
        async with machine(tmp_path / "home", home_config(deaf.getsockname()[1], text)) as (home, _):
            answer = await within(20, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
            assert answer.status == 503
            assert (await home.ask("/v1/chat/completions", BODY | {"model": "small"})).status == 200


async def test_a_peer_that_forgot_a_lease_gives_a_new_one(tmp_path: Path) -> None:
    """A daemon that was started anew knows no lease: it is asked for again, and the caller notices nothing."""
    async with two(tmp_path) as ((home, _), (_, there)):
        assert (await home.ask("/v1/chat/completions", BODY | {"model": "big"})).status == 200
        (first,) = there.status()["leases"]  # type: ignore[misc]
        there.end_lease("home", str(first))
        answer = await home.ask("/v1/chat/completions", BODY | {"model": "big"})
        assert answer.status == 200, answer.body
        (second,) = there.status()["leases"]  # type: ignore[misc]
        assert first != second


async def whole(status: int, told: object, writer: asyncio.StreamWriter) -> None:
    body = json.dumps(told).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


@pytest.mark.parametrize(
    "body",
    [
        *(
            json.dumps({"id": id, "lasts_ms": 60_000, "renew_ms": 20_000}).encode()
            for id in ("a\r\nX-Other: 1", "Ω", "", "a/../b", "a b", "a\n", "a" * 101)
        ),
        b'{"id": "\xff", "lasts_ms": 60000, "renew_ms": 20000}',
    ],
    ids=ascii,
)
async def test_a_lease_whose_name_is_none_is_not_taken(tmp_path: Path, body: bytes) -> None:
    """RES-23: with a line break in its name the request ended with 500, and the leases of the peer were not renewed any
    more."""

    async def strange(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with (
        peer_listening(strange) as peer,
        machine(tmp_path / "home", home_config(peer.port)) as (home, _),
    ):
        answer = await within(20, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        assert answer.status == 503 and b"is no Watchbill machine" in answer.body, answer.body


async def test_a_peer_behind_a_tunnel_is_waited_for_while_it_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-23: a forwarded port accepts for a machine that is away, and closes; that is no failure of the request. It
    came to the caller as 502 within milliseconds, where a peer without a tunnel was waited for."""
    monkeypatch.setattr(limits, "LEASE_RENEW_MS", 60_000)
    is_away, unheard = False, 0

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal unheard
        if is_away:
            unheard += 1
            writer.transport.abort()
            raise ConnectionResetError
        if not asked.path.endswith("/completions"):
            given = {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000, "continues": True}
            return await whole(200, given, writer)
        return await stream_of(sse(*chat_events("One two three")))(asked, writer)

    async with (
        peer_listening(talk) as rig,
        machine(tmp_path / "home", home_config(rig.port)) as (home, here),
    ):
        assert (await home.ask("/v1/chat/completions", BODY | {"model": "big"})).status == 200
        is_away = True
        asking = asyncio.ensure_future(home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        await eventually(
            lambda: asking.done() or here.status()["models"]["big"]["state"] != "ready"  # type: ignore[index]
        )
        assert not asking.done(), asking.result().body
        assert unheard >= 2, "the request, and the renewal that it led to"
        is_away = False
        answer = await within(20, asking)
        assert answer.status == 200, answer.body


async def test_a_lender_that_hangs_up_before_a_byte_is_asked_again(tmp_path: Path) -> None:
    """RES-23: its leases were renewed, so it was there; behind a tunnel that lost each second connection requests came
    back as 502 within milliseconds, also in the middle of an answer."""
    hung_up: list[float] = []

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.path.endswith("/completions"):
            given = {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000, "continues": True}
            return await whole(200, given, writer)
        if not hung_up or time.monotonic() < hung_up[0] + 0.5:
            hung_up.append(time.monotonic())
            writer.transport.abort()
            raise ConnectionResetError
        return await stream_of(sse(*chat_events("One two three")))(asked, writer)

    async with peer_listening(talk) as rig, machine(tmp_path / "home", home_config(rig.port)) as (home, _):
        answer = await within(20, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        assert answer.status == 200 and len(hung_up) > 1, answer.body


GRANTED = {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000, "continues": True}


async def test_a_lender_that_is_started_anew_again_and_again_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-23: a lender that was killed six times before the first word made a 502 of a request that may wait for it:
    each time it had a new lease, and what broke was no connection that breaks each time."""
    monkeypatch.setattr(breaks, "UNHEARD_PAUSE_MS", 20)
    lease, is_known, broken = 0, False, 0

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal lease, is_known, broken
        if asked.path.endswith("/completions"):
            if broken < 9:
                broken, is_known = broken + 1, False
                writer.transport.abort()
                raise ConnectionResetError
            return await stream_of(sse(*chat_events("One two three")))(asked, writer)
        if asked.path.endswith("/leases"):
            lease, is_known = lease + 1, True
        if not is_known:
            return await whole(409, {"error": {"code": "no_lease", "message": "no such lease"}}, writer)
        return await whole(200, GRANTED | {"id": f"l{lease}"}, writer)

    async with peer_listening(talk) as rig, machine(tmp_path / "home", home_config(rig.port)) as (home, _):
        answer = await within(40, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        assert answer.status == 200, answer.body
        assert (broken, lease) == (9, 10)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "bytes_max", [340, 700]
)  # the answer to a question for a lease fits into the smaller one
async def test_a_connection_to_a_lender_that_breaks_without_end_ends_in_words_or_at_another_site(
    tmp_path: Path, stream: bool, bytes_max: int
) -> None:
    """RES-23, SPOOL-10: a proxy that cut each connection after some bytes made a 502 of "the engine" after the second
    one, also where another site would have served, and where the answer was whole but for the word that it is over."""
    is_flaky, connections = False, 0
    async with machine(tmp_path / "rig", rig_config(tokens=16)) as far:

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            behind, ahead = await asyncio.open_connection("127.0.0.1", far[0].serving.port)
            pumping = asyncio.ensure_future(_pump(reader, ahead))
            left = bytes_max if is_flaky else 2**30
            while left and (piece := await behind.read(min(left, 100))):
                left -= len(piece)
                writer.write(piece)
                await writer.drain()
            pumping.cancel()
            writer.transport.abort()
            ahead.transport.abort()

        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        body = BODY | {"model": "big", "stream": stream}
        async with server, peer_listening(stream_of(sse(*chat_events("something else")))) as cloud:
            async with machine(tmp_path / "home", home_config(port)) as (home, _):
                is_flaky, connections = True, 0
                answer = await within(60, home.ask("/v1/chat/completions", body))
                if answer.status == 200 and b'"error"' not in answer.body:
                    assert said(answer.body, stream=stream).startswith("One two three")
                else:
                    assert b"the connection to the peer rig broke 6 times in a row" in answer.body, (
                        answer.body
                    )
                assert connections >= 6
            is_flaky = False
            tier = CLOUD.format(port=cloud.port)
            async with machine(tmp_path / "beside", home_config(port, tier)) as (beside, _):
                is_flaky = True
                answer = await within(60, beside.ask("/v1/chat/completions", body))
                assert answer.status == 200, answer.body
                told = said(answer.body, stream=stream)
                assert told.startswith("One two three") or told == "something else", answer.body


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_with_all_its_words_ends_where_each_connection_breaks(
    tmp_path: Path, stream: bool
) -> None:
    """RES-23: a link that cut each connection after some bytes brought a word at a time, and never the event that says
    how the answer ended: behind its last word it ended with an error."""
    words, asked_for = ["One", "two", "three", "four", "five"], [0]

    async def cut(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.path.endswith("/completions"):
            given = {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000, "continues": True}
            return await whole(200, given, writer)
        last = asked.json["messages"][-1]  # type: ignore[index]
        known = len(last["content"].split()) if last["role"] == "assistant" else 0
        asked_for.append(known)
        event = chat_events(words[known] + " ", usage=False)[1]
        return await stream_of(sse(event), end=False)(asked, writer)

    async with peer_listening(cut) as rig, machine(tmp_path / "home", home_config(rig.port)) as (home, _):
        body = BODY | {"model": "big", "stream": stream, "max_tokens": 4}
        answer = await within(20, home.ask("/v1/chat/completions", body))
    assert answer.status == 200 and b'"error"' not in answer.body, answer.body
    assert said(answer.body, stream=stream).split() == words[:4]
    assert answer.body.count(b'"length"') == 1 and max(asked_for) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_behind_a_dead_connection_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """RES-23: a lender says that a request waits there, so one that says nothing is away. Before the first byte of an
    answer it was believed for five minutes, longer than its caller may wait."""
    monkeypatch.setattr(relay, "PEER_FIRST_SIGN_MS", 700)
    heard = 0

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        if not asked.path.endswith("/completions"):
            return await whole(200, GRANTED, writer)
        heard += 1
        if heard % 2:
            await asyncio.sleep(300)
        return await stream_of(sse(*chat_events("One two three")))(asked, writer)

    async with (
        peer_listening(talk) as rig,
        peer_listening(stream_of(sse(*chat_events("something else")))) as cloud,
    ):
        for name, more in (("home", ""), ("beside", CLOUD.format(port=cloud.port))):
            async with machine(tmp_path / name, home_config(rig.port, more)) as (home, _):
                answer = await within(
                    20, home.ask("/v1/chat/completions", BODY | {"model": "big", "stream": stream})
                )
                expected = "something else" if more else "One two three"
                assert answer.status == 200 and said(answer.body, stream=stream) == expected, answer.body


async def test_keys_are_changed_while_requests_go_on(tmp_path: Path) -> None:
    """RES-23: the lender knows the old and the new one for a while. Under load 54 of 67 requests failed: the key that a
    lease was asked for with was shown for as long as it was held."""
    new = {"HOME_SHOWS": "another-key-of-this-machine", "HOME_SHOWED": KEYS["HOME_SHOWS"]}
    both = '[peers.home]\ntheir_key = "env:HOME_SHOWS"\ntheir_old_key = "env:HOME_SHOWED"\n'
    async with two(tmp_path) as ((home, here), (far, there)):
        is_over = False
        answers: list[RawAnswer] = []

        async def ask_on(stream: bool) -> None:
            while not is_over:
                answers.append(
                    await home.ask("/v1/chat/completions", BODY | {"model": "big", "stream": stream})
                )

        async def some_more() -> None:
            known = len(answers)
            await eventually(lambda: len(answers) > known + 4)

        asking = asyncio.gather(*map(ask_on, (False, True)))
        try:
            await some_more()
            (lease,) = there.status()["leases"]  # type: ignore[misc]
            for known in (both, both.replace("their_old_key", "# their_old_key")):
                far.serving.gateway.reconfigure(_keys_of(there.catalog, known, new).server)
                await some_more()
                shown = home_config(far.serving.port)
                engines = {**shown.engines, "@rig": replace(shown.engines["@rig"], key=new["HOME_SHOWS"])}
                await here.reload(replace(shown, engines=engines))
                await some_more()
        finally:
            is_over = True
            await within(20, asking)
        assert {answer.status for answer in answers} == {200}, [a.body for a in answers if a.status != 200]
        assert lease in there.status()["leases"], "it went on"  # type: ignore[operator]
        for key, status in ((KEYS["HOME_SHOWS"], 403), (new["HOME_SHOWS"], 200)):
            shown_there = {"Authorization": f"Bearer {key}"}
            answer = await far.ask("/wb/v1/leases", {"model": "big"}, headers=shown_there)
            assert answer.status == status, answer.body


@pytest.mark.parametrize("of_people", ["", '[server.keys.me]\nkey = "what-i-show-here"\n'])
async def test_a_key_that_only_the_lender_changed_is_told_by_name_and_mended_at_once(
    tmp_path: Path, of_people: str
) -> None:
    """RES-23: the requests under a lease failed as if an engine had, for up to 20 s; where the lender asks nobody else
    for a key they were served as those of a person."""
    async with two(tmp_path) as ((home, here), (far, there)):
        body = BODY | {"model": "big"}
        assert (await home.ask("/v1/chat/completions", body)).status == 200
        known = of_people + '[peers.home]\ntheir_key = "env:HOME_SHOWS"\n'
        far.serving.gateway.reconfigure(_keys_of(there.catalog, known, {"HOME_SHOWS": "another"}).server)
        refused = await within(10, home.ask("/v1/chat/completions", body))
        assert (refused.status, refused.code) == (503, "model_failed"), refused.body
        assert b"the peer rig gives no lease" in refused.body
        shown = home_config(far.serving.port)
        engines = {**shown.engines, "@rig": replace(shown.engines["@rig"], key="another")}
        await here.reload(replace(shown, engines=engines))
        answer = await within(10, home.ask("/v1/chat/completions", body))
        assert answer.status == 200, answer.body


def _keys_of(catalog: Catalog, peers: str, environment: dict[str, str]) -> Catalog:
    """The same machine, as it knows its peers now."""
    told = parse(SMALL_MODEL + peers, base=Path("/srv"), environment=environment)
    return replace(catalog, server=replace(catalog.server, keys=told.server.keys))


async def test_a_new_key_is_shown_at_once(tmp_path: Path) -> None:
    """RES-23: after its keys were changed at the lender and then here, each request was refused for a minute more."""
    catalog = rig_config()
    new = tuple(replace(key, key="another-key-of-this-machine") for key in catalog.server.keys)
    rig = replace(catalog, server=replace(catalog.server, keys=new))
    async with two(tmp_path, rig) as ((home, here), (far, _)):
        refused = await home.ask("/v1/chat/completions", BODY | {"model": "big"})
        assert (refused.status, refused.code) == (503, "model_failed"), refused.body
        shown = home_config(far.serving.port)
        engines = {**shown.engines, "@rig": replace(shown.engines["@rig"], key="another-key-of-this-machine")}
        await here.reload(replace(shown, engines=engines))
        answer = await within(20, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        assert answer.status == 200, answer.body


async def test_a_lender_that_knows_us_again_and_lends_nothing_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-23: once it had refused the key, a person who worked there a minute later was a reason to refuse at once."""
    monkeypatch.setattr(model_state, "QUARANTINE_FIRST_MS", 100)
    answers = [(401, "no such key"), (409, "a person is using this machine")]

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.path.endswith("/completions"):
            if answers:
                status, text = answers.pop(0)
                return await whole(status, {"error": {"message": text, "code": "no_lease"}}, writer)
            return await whole(200, {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000}, writer)
        return await stream_of(sse(*chat_events("One two three")))(asked, writer)

    async with peer_listening(talk) as rig, machine(tmp_path / "home", home_config(rig.port)) as (home, _):
        assert (await home.ask("/v1/chat/completions", BODY | {"model": "big"})).code == "model_failed"
        await asyncio.sleep(0.2)  # until it is asked again
        answer = await within(20, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        assert answer.status == 200, answer.body


SAID_BREAKS = ("shutting_down", "engine_failed", "disk_failed")
BREAKS = ["the connection breaks", "the renewal finds the lease gone", *SAID_BREAKS]


@pytest.mark.parametrize("how", BREAKS)
async def test_an_answer_that_breaks_off_is_continued_also_after_a_forgotten_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """RES-23: a lender that was started anew and is killed, shut down, or loses its engine or its disk in the middle
    costs no word, whole or streamed."""
    chats, is_gone = 0, False
    monkeypatch.setattr(limits, "LEASE_RENEW_MS", 100)

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal chats, is_gone
        if is_gone and asked.path.endswith("/renew"):
            is_gone = False
            return await whole(409, {"error": {"message": "no such lease"}}, writer)
        if not asked.path.endswith("/completions"):
            given = {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000, "continues": True}
            return await whole(200, given, writer)
        chats += 1
        messages = asked.json["messages"]
        assert isinstance(messages, list)
        if chats == 1:
            return await whole(409, {"error": {"message": "no such lease"}}, writer)
        if chats == 2:  # two words, and the connection is gone
            events = sse(*chat_events("One two three")[:3])
            if how in SAID_BREAKS:
                events += sse({"error": {"message": "it does not go on", "code": how}})
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            writer.write(b"%x\r\n%b\r\n" % (len(events), events))
            await writer.drain()
            if how in SAID_BREAKS:
                return writer.write(b"0\r\n\r\n")
            if how == "the connection breaks":
                writer.transport.abort()
                raise ConnectionResetError
            is_gone = True
            await asyncio.sleep(60)
        assert messages[-1] == {"role": "assistant", "content": "One two "}
        return await stream_of(sse(*chat_events("three four")))(asked, writer)

    async with peer_listening(talk) as far, machine(tmp_path / "home", home_config(far.port)) as (home, _):
        for stream in (True, False):
            chats = 0
            answer = await within(
                20, home.ask("/v1/chat/completions", BODY | {"model": "big", "stream": stream})
            )
            assert answer.status == 200, answer.body
            assert b'"error"' not in answer.body
            assert "One two three four" in said(answer.body, stream=stream)


async def test_a_stream_that_waits_at_a_lender_outlives_its_end(tmp_path: Path) -> None:
    """RES-23: after 10 s a lender says that the request is queued. That is no byte of its answer: the stream broke with
    502 when the lender was killed after it, if its answer was one that cannot be continued."""
    grant = {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000, "continues": True}
    chats = 0

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal chats
        if not asked.path.endswith("/completions"):
            return await whole(200, grant, writer)
        chats += 1
        if chats > 1:
            return await stream_of(sse(*chat_events("One two")))(asked, writer)
        return await stream_of(b": queued, about 5 s\n", end=False)(asked, writer)

    async with peer_listening(talk) as far, machine(tmp_path / "home", home_config(far.port)) as (home, _):
        asked = BODY | {"model": "big", "stream": True, "logprobs": True}
        answer = await within(20, home.ask("/v1/chat/completions", asked))
        assert (answer.status, said(answer.body, stream=True)) == (200, "One two"), answer.body


@pytest.mark.parametrize("in_stream", [False, True])
async def test_what_keeps_a_lender_from_an_answer_for_now_may_be_asked_again(
    tmp_path: Path, *, in_stream: bool
) -> None:
    """RES-23: a full disk there was 502 here, as if the engine had failed: lines of batches used up their attempts."""
    told: dict[str, object] = {
        "error": {"message": "the disk is full", "code": "disk_failed", "source": "watchbill"}
    }

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if not asked.path.endswith("/completions"):
            return await whole(200, {"id": "l", "lasts_ms": 60_000, "renew_ms": 20_000}, writer)
        if in_stream:
            return await stream_of(b": queued\n\n", sse(told))(asked, writer)
        return await whole(507, told, writer)

    async with peer_listening(talk) as far, machine(tmp_path / "home", home_config(far.port)) as (home, _):
        answer = await within(20, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (507, "disk_failed", "5")
        assert b"rig: the disk is full" in answer.body


async def test_what_rests_at_a_lender_waits_no_longer_than_its_caller_or_its_lane_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-23, LANE-04, P3: it counted as running, so it ended with run_timeout when the timeout of its lane was over,
    ten minutes by default. Neither max_wait nor a deadline held. What has begun pauses for longer."""
    monkeypatch.setattr(leases, "QUIET_MS", 800)
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 50)  # they are told in the middle of the lender's stream
    async with two(tmp_path, rig_config("2s", 32), "concurrency = 3") as ((home, here), (rig, there)):
        body, late = BODY | {"model": "big"}, {"X-Watchbill-Deadline-Ms": "1200"}
        begun = asyncio.create_task(home.ask("/v1/chat/completions", body))
        await eventually(lambda: any(r["state"] == "running" for r in there.requests()))
        await asyncio.sleep(0.5)  # some of the answer's words
        person = asyncio.create_task(_work(rig))
        await eventually(lambda: any(lease["resting"] for lease in there.status()["leases"].values()))  # type: ignore[attr-defined, union-attr]
        resting = [
            home.ask("/v1/chat/completions", body | more, headers=late) for more in ({}, {"stream": True})
        ]
        whole, streamed = await within(20, asyncio.gather(*resting))
        await eventually(lambda: [r["reason"] for r in here.requests()] == ["it waits at rig"])
        person.cancel()
        assert (whole.status, whole.code) == (503, "wait_exceeded"), whole.body
        for each in (whole, streamed):
            assert b"a person is using this machine" in each.body and b"wait_exceeded" in each.body
        assert (await within(30, begun)).status == 200


async def test_a_pause_at_a_lender_is_no_part_of_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-23, LANE-04: while the person there works, a begun answer waits. Where the timeout of its lane was shorter
    than the rest, its caller saw run_timeout and not a longer answer."""
    monkeypatch.setattr(leases, "QUIET_MS", 600)
    rig = rig_config("1200ms", 32)
    async with two(tmp_path, rig, '[lanes.default]\ntimeout = "2s"\n') as ((home, here), (there, driver)):
        begun = asyncio.create_task(home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
        await asyncio.sleep(0.4)  # some of the answer's words
        person = asyncio.create_task(_work(there))
        await eventually(lambda: begun.done() or _ran_ms(here) > 2_500)
        person.cancel()
        answer = await within(20, begun)
        assert answer.status == 200, answer.body
        assert len(said(answer.body, stream=False).split()) == 32
        assert here._core.state.models["big"].service.ms < 2_000, "nor is it of the time that an answer takes"  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("way", ["whole", "stream", "embedding"])
async def test_a_load_at_a_lender_is_no_part_of_the_timeout(tmp_path: Path, way: str) -> None:
    """LANE-04, RES-23: a lender said only after ten seconds that a request waits there, and of one that is not streamed
    never. With a shorter timeout its caller got run_timeout before the model there was loaded."""
    rig, lane = rig_config(load="3s"), '[lanes.default]\ntimeout = "1500ms"\n'
    async with two(tmp_path, rig, lane) as ((home, here), _):
        path, body = "/v1/chat/completions", BODY | {"model": "big", "stream": way == "stream"}
        if way == "embedding":
            path, body = "/v1/embeddings", {"model": "big", "input": "Hi"}
        asked = asyncio.create_task(home.ask(path, body))
        await eventually(lambda: [r["reason"] for r in here.requests()] == ["it waits at rig"])
        answer = await within(20, asked)
        assert answer.status == 200 and b"run_timeout" not in answer.body, answer.body


@pytest.mark.parametrize("way", ["whole", "stream", "embedding"])
async def test_what_is_cut_at_a_lender_waits_there_for_its_model(tmp_path: Path, way: str) -> None:
    """RES-06, RES-23, LANE-04: an operator there took the model out of memory in the middle of an answer. Until it was
    back the asking machine took the request for one that runs, and ended it with run_timeout."""
    rig = rig_config("1s", load="3s")
    async with two(tmp_path, rig, '[lanes.default]\ntimeout = "2500ms"\n') as ((home, _), (_, there)):
        path, body = "/v1/chat/completions", BODY | {"model": "big", "stream": way == "stream"}
        if way == "embedding":
            path, body = "/v1/embeddings", {"model": "big", "input": "Hi"}
        assert (await within(20, home.ask(path, body))).status == 200
        asked = asyncio.create_task(home.ask(path, body))
        await eventually(lambda: any(r["state"] == "running" for r in there.requests()))
        await within(10, there.evict("big", force=True))
        answer = await within(20, asked)
        assert answer.status == 200 and b"run_timeout" not in answer.body, answer.body


def _ran_ms(driver: Driver) -> int:
    (request,) = driver.requests()
    return request["ran_ms"] or 0  # type: ignore[return-value]


async def _work(rig: GatewayClient) -> None:
    """A person who asks again and again."""
    for _ in range(600):
        assert (await rig.ask("/v1/chat/completions", BODY | {"model": "own", "max_tokens": 1})).status == 200
        await asyncio.sleep(0.1)


def said(body: bytes, *, stream: bool) -> str:
    if not stream:
        return json.loads(body)["choices"][0]["message"]["content"]
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def test_a_request_that_waits_for_a_peer_that_is_off_has_one_line_for_each_change(
    tmp_path: Path,
) -> None:
    """RES-26: three lines a second said the same for as long as a request waited, and pushed the rest out."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    async with machine(tmp_path / "home", home_config(port)) as (home, driver):
        asking = asyncio.create_task(home.ask("/v1/chat/completions", BODY | {"model": "big"}))
        await eventually(driver.requests)
        await asyncio.sleep(3.5)
        asking.cancel()
        lines = [json.loads(x) for x in (tmp_path / "home" / "events.jsonl").read_text().splitlines()]
        told = [line["event"] for line in lines if line["model"] == "big"]
        assert told == ["route", "plan", "load", "load_failed"], told


async def test_a_peer_beside_a_tier_costs_nothing(tmp_path: Path) -> None:
    """RES-23, SPOOL-10: a config may have both; a request to the peer is no request to a tier."""
    tier = '[tiers.cloud]\nkind = "external"\nenabled = true\nurl = "http://127.0.0.1:9/v1"\nmodels = ["other"]\n'
    async with two(tmp_path, more=f"{tier}price_in = 1.0\nprice_out = 1.0\ndaily = 1.0\n") as ((home, _), _):
        answer = await home.ask("/v1/chat/completions", BODY | {"model": "big"})
        assert answer.status == 200, answer.body
        assert answer.headers["x-watchbill-tier"] == "peer"
        assert "x-watchbill-cost" not in answer.headers


async def test_a_begun_answer_is_not_finished_by_a_server_that_would_begin_anew(tmp_path: Path) -> None:
    """RES-23, R30: the words of an external tier were put behind those of the peer, as if they were one answer."""
    config = rig_config("4s", 64)
    async with peer_listening(stream_of(sse(*chat_events("something else")))) as cloud:
        tier = '[lanes.default]\nmax_wait = "3s"\n' + CLOUD.format(port=cloud.port)
        async with AsyncExitStack() as stack:
            far = await stack.enter_async_context(machine(tmp_path / "rig", config))
            home, _ = await stack.enter_async_context(
                machine(tmp_path / "home", home_config(far[0].serving.port, tier))
            )
            body = BODY | {"model": "big", "stream": True}
            asking = asyncio.create_task(home.ask("/v1/chat/completions", body))
            await eventually(lambda: any(r["state"] == "running" for r in far[1].requests()))
            await asyncio.sleep(1.0)  # some of the answer's words
            await far[0].serving.close(grace_ms=100)
            answer = await within(40, asking)
            assert b"One " in answer.body and b"something" not in answer.body, answer.body
            assert b'"error"' in answer.body and cloud.asked == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_another_site_serves_while_a_peer_is_away_and_the_peer_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    """SPOOL-10: the first site of the order that can serve: requests waited two minutes for a machine that was off."""
    monkeypatch.setattr(model_state, "HOST_AWAY_MS", 1_500)
    async with (
        peer_listening(stream_of(sse(*chat_events("something else")))) as cloud,
        machine(tmp_path / "rig", rig_config()) as far,
    ):
        async with peer_listening(stream_of(b"")) as other:
            closed = other.port
        back: list[int] = []

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back.append(1)
            behind, ahead = await asyncio.open_connection("127.0.0.1", far[0].serving.port)
            await asyncio.gather(_pump(reader, ahead), _pump(behind, writer))

        tier = CLOUD.format(port=cloud.port)
        async with machine(tmp_path / "home", home_config(closed, tier)) as (home, _):
            body = BODY | {"model": "big", "stream": streamed}
            for asked in (1, 2):
                answer = await within(10, home.ask("/v1/chat/completions", body))
                assert answer.status == 200 and b"something" in answer.body, answer.body
                assert answer.headers["x-watchbill-tier"] == "external"
                assert len(cloud.asked) == asked
            private = {"X-Watchbill-Private": "1", "X-Watchbill-Deadline-Ms": "1500"}
            refused = await within(10, home.ask("/v1/chat/completions", body, headers=private))
            assert refused.status >= 500 and len(cloud.asked) == 2, (
                "it waits for the peer, and for nothing else"
            )
            server = await asyncio.start_server(pass_on, "127.0.0.1", closed)
            async with server:
                await asyncio.sleep(1.6)  # until it is tried again
                answer = await within(10, home.ask("/v1/chat/completions", body))
                assert answer.headers["x-watchbill-tier"] == "peer"
            assert back


async def test_another_site_serves_while_a_person_works_at_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-23, SPOOL-10: under a lease that rests, what has no byte of its answer waited at the lender for as long as a
    person worked there, with a free tier behind it. What has begun, or may not go there, waits."""
    monkeypatch.setattr(leases, "QUIET_MS", 5_000)
    async with (
        peer_listening(stream_of(sse(*chat_events("something else")))) as cloud,
        machine(tmp_path / "rig", rig_config("4s", 64, "requests_max = 1")) as (rig, there),
        machine(tmp_path / "home", home_config(rig.serving.port, CLOUD.format(port=cloud.port))) as (home, _),
    ):
        body = BODY | {"model": "big"}
        begun = asyncio.create_task(home.ask("/v1/chat/completions", body | {"stream": True}))
        await eventually(lambda: any(r["state"] == "running" for r in there.requests()))
        await asyncio.sleep(1.0)  # some of the answer's words
        waiting = asyncio.create_task(home.ask("/v1/chat/completions", body))
        await eventually(lambda: there.status()["lanes"]["leased:home"]["queued"])  # type: ignore[index]
        assert (await rig.ask("/v1/chat/completions", BODY | {"model": "own"})).status == 200
        moved = await within(20, waiting)
        assert (moved.status, moved.headers["x-watchbill-tier"]) == (200, "external"), moved.body
        later = await within(20, home.ask("/v1/chat/completions", body))
        assert (later.status, later.headers["x-watchbill-tier"]) == (200, "external"), later.body
        private = await within(
            40, home.ask("/v1/chat/completions", body, headers={"X-Watchbill-Private": "1"})
        )
        assert (private.status, private.headers["x-watchbill-tier"]) == (200, "peer"), private.body
        whole = await within(40, begun)
        assert b"One " in whole.body and b"something" not in whole.body and b"[DONE]" in whole.body
        assert len(cloud.asked) == 2


# ------------------------------------------------------------------ TLS


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def in_front(port: int, certificate: Path | None) -> AsyncIterator[int]:
    """A port that leads to another one, over TLS if it has a certificate: what a proxy does for the machine that
    lends."""
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(reader, ahead), _pump(behind, writer))

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context, family=socket.AF_INET)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Authority]:
    """A private authority that this machine trusts."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    _trust.cache_clear()
    yield authority
    _trust.cache_clear()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (None, ""),
        ("name", "certificate is refused: Hostname mismatch, certificate is not valid for 'localhost'"),
        ("expired", "certificate is refused: certificate has expired"),
        ("self-signed", "self-signed certificate; a private authority is trusted when SSL_CERT_FILE names"),
        ("plain", "does its url need http:// in place of https://?"),
    ],
)
async def test_a_peer_behind_tls_is_asked_only_if_it_is_trusted(
    tmp_path: Path, authority: Authority, wrong: str | None, told: str
) -> None:
    """RES-23, P3: a certificate does not mend itself, so no caller waits for that until its patience ends."""
    certificates = {
        None: authority.issue(),
        "name": authority.issue("elsewhere.example"),
        "expired": authority.issue(expired_days=1),
        "self-signed": write_certificate(tmp_path / "own.pem"),
        "plain": None,
    }
    async with (
        machine(tmp_path / "rig", rig_config()) as (rig, there),
        in_front(rig.serving.port, certificates[wrong]) as port,
    ):
        text = f"""
{SMALL_MODEL}[peers.rig]
url = "https://localhost:{port}"
key = "env:HOME_SHOWS"
models = ["big"]
"""
        here = parse(text, base=Path("/srv"), environment=KEYS)
        async with machine(tmp_path / "home", here) as (home, _):
            answer = await within(10, home.ask("/v1/chat/completions", BODY | {"model": "big"}))
            if wrong is None:
                assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, "peer"), answer.body
            else:
                assert (answer.status, answer.code) == (503, "model_failed"), answer.body
                assert told in answer.json["error"]["message"]  # type: ignore[index, call-overload, operator]
                assert there.status()["leases"] == {}
