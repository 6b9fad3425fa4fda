"""Tiers: a request that this machine would refuse is served elsewhere, for a known price, within a daily limit."""

import asyncio
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.config_texts import SMALL_MODEL
from support.eventually import eventually
from support.open_gateway import GatewayClient, RawAnswer
from support.peer import Asked, EnginePeer, Talk, chat_events, peer_listening, sse, stream_of
from support.running import driving, running
from watchbill.catalog import Catalog
from watchbill.config import parse
from watchbill.engines import limits, scripted_server
from watchbill.engines.limits import UPSTREAM_CONNECT_MS
from watchbill.engines.scripted import check_script
from watchbill.errors import ShuttingDown
from watchbill.gateway import relay
from watchbill.gateway.answers import as_response
from watchbill.processes.ports import claim_port
from watchbill.runtime import spending, tiers
from watchbill.runtime.driver import Driver
from watchbill.runtime.spending import Spending
from watchbill.runtime.ticket import Submission
from wire.engine_contract import within

HELLO = stream_of(sse(*chat_events("from far away")))
#: A model that can never fit here, and one that does.
HERE = """
[devices.ram]
capacity = "100MiB"
reserve = 0
[models.big]
engine = "scripted"
memory = "1GiB"
[models.small]
engine = "scripted"
memory = "1MiB"
script = { touch = false }
"""
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}


def catalog(text: str) -> Catalog:
    # A gigabyte in a device of a hundred megabytes is refused by the check of the config: say it later.
    return parse(text, base=Path("/srv"), environment={"CLOUD_KEY": "secret-of-the-cloud"})


def cloud(peer: EnginePeer, more: str = "", models: str = '["far"]', daily: float = 5.0) -> str:
    return f"""
{SMALL_MODEL}[tiers.cloud]
kind = "external"
enabled = true
url = "http://127.0.0.1:{peer.port}/v1"
key = "env:CLOUD_KEY"
models = {models}
price_in = 100.0
price_out = 1000.0
daily = {daily}
{more}
"""


@asynccontextmanager
async def opened(root: Path, text: str) -> AsyncIterator[tuple[GatewayClient, Driver]]:
    async with running(root, catalog(text), responses=root / "responses") as (serving, driver):
        yield GatewayClient(serving), driver


async def ask(client: GatewayClient, model: str, **headers: str) -> RawAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.ask("/v1/chat/completions", BODY | {"model": model}, headers=named)


def tier_lines(root: Path, *events: str) -> list[dict[str, object]]:
    lines = (root / "events.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] in events]


async def test_an_external_tier_serves_a_model_that_is_not_here(tmp_path: Path) -> None:
    """SPOOL-10: under its own name there and with the tier's key; the answer names the tier and what it cost."""
    async with (
        peer_listening(HELLO) as peer,
        opened(tmp_path, cloud(peer, models='{ far = "large-1" }')) as (client, driver),
    ):
        answer = await ask(client, "far")
        assert answer.status == 200, answer.body
        assert answer.json["choices"][0]["message"]["content"] == "from far away"  # type: ignore[index]
        asked = peer.asked[-1]
        assert asked.json["model"] == "large-1"
        assert asked.headers["authorization"] == "Bearer secret-of-the-cloud"
        assert answer.headers["x-watchbill-tier"] == "external"
        # Three tokens of a prompt and three of an answer, as the server told.
        assert float(answer.headers["x-watchbill-cost"]) == pytest.approx((3 * 100 + 3 * 1000) / 1e6)
        page = driver.metrics.render().decode()
        assert 'watchbill_tier_requests_total{tier="external"} 1.0' in page
        assert 'watchbill_tier_cost_total{site="cloud",tier="external"} 0.0033' in page
        status = driver.status()["tiers"]["cloud"]  # type: ignore[index]
        assert status["spent_today"] == pytest.approx(0.0033)
        await eventually(lambda: len(tier_lines(tmp_path, "route", "cost")) == 2)
        route, cost = tier_lines(tmp_path, "route", "cost")
        assert route["reason"] == "external tier cloud serves far"
        assert "3 + 3 tokens" in str(cost["reason"])


async def test_local_answers_say_that_they_are_local(tmp_path: Path) -> None:
    """SPOOL-10: the route taken is recorded, also when it is none."""
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer)) as (client, driver):
        answer = await ask(client, "small")
        assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, "local")
        assert "x-watchbill-cost" not in answer.headers
        assert peer.asked == []
        assert 'watchbill_tier_requests_total{tier="local"} 1.0' in driver.metrics.render().decode()


@pytest.mark.parametrize(
    ("headers", "more", "why"),
    [
        *[
            ({"X_Watchbill_Private": said}, "", "private work is never sent to an external tier")
            for said in ("1", "true", "True", "yes", "on", "2", "please")
        ],
        ({"X_Watchbill_Lane": "quiet"}, "[lanes.quiet]\nprivate = true", "private work is never sent"),
        ({"X_Watchbill_Tier": "local"}, "", "must be served on this machine"),
        ({"X_Watchbill_Tier": "Local"}, "", "must be served on this machine"),
        ({"X_Watchbill_Tier": "exact, local"}, "", "must be served on this machine"),
        (
            {"X_Watchbill_Lane": "default, quiet"},
            "[lanes.quiet]\nprivate = true",
            "private work is never sent",
        ),
    ],
)
async def test_private_work_never_leaves(
    tmp_path: Path, headers: dict[str, str], more: str, why: str
) -> None:
    """SPOOL-10: not even when nobody here can do it."""
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, more)) as (client, _):
        answer = await ask(client, "far", **headers)
        assert (answer.status, answer.code) == (503, "tier_closed")
        assert why in answer.body.decode()
        copied = await ask(client, "small@cloud", **headers)
        assert copied.status == 404
        assert peer.asked == []


@pytest.mark.parametrize("said", ["0", "false", "No", "off", ""])
async def test_work_that_is_marked_as_not_private_may_leave(tmp_path: Path, said: str) -> None:
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer)) as (client, _):
        assert (await ask(client, "far", X_Watchbill_Private=said)).status == 200


@pytest.mark.parametrize("kind", ["external", "burst"])
async def test_a_request_that_comes_back_is_not_sent_out_again(tmp_path: Path, kind: str) -> None:
    """Two machines were tiers of each other: one request went round until all their places were taken by it."""
    async with peer_listening(HELLO) as peer:
        text = cloud(peer)
        if kind == "burst":
            text = f"""{SMALL_MODEL}[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{peer.port}"
models = ["far"]
start = "true"
stop = "true"
health = "/v1/models"
"""
        async with opened(tmp_path, text) as (client, _):
            earlier = "0123456789ab"
            assert (await ask(client, "far", X_Watchbill_Passed=earlier)).status == 200
            came_by, own = peer.asked[-1].headers["x-watchbill-passed"].split(", ")
            assert came_by == earlier
            answer = await ask(client, "far", X_Watchbill_Passed=f"{own}, {earlier}")
            assert (answer.status, answer.code) == (503, "tier_closed")
            assert "must be served on this machine" in answer.body.decode()
            assert (await ask(client, "small", X_Watchbill_Passed=own)).status == 200
            assert (await ask(client, "far", X_Watchbill_Passed="x" * 5000)).status == 200
            assert peer.asked[-1].headers["x-watchbill-passed"] == own


async def test_a_private_model_does_not_leave_under_the_name_of_its_copy(tmp_path: Path) -> None:
    """SPOOL-10: a caller that named the copy sent the prompts of a private model to the external tier."""
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, models='["small", "diary"]')
        text += '[models.diary]\nengine = "scripted"\nmemory = "1MiB"\nprivate = true\n'
        async with opened(tmp_path, text) as (client, _):
            answer = await ask(client, "diary@cloud")
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
            assert "private work is never sent to an external tier" in answer.body.decode()
            assert peer.asked == []
            assert (await ask(client, "small@cloud")).status == 200, "a caller may ask for a site otherwise"


async def test_a_private_lane_that_a_key_may_not_use_keeps_its_work_here(tmp_path: Path) -> None:
    """SPOOL-10: the request went into the lane of its key, and from there to the external tier."""
    more = """
[lanes.slow]
class = "background"
[lanes.quiet]
private = true
[server]
keys = { bot = { key = "of-the-bot-0123456789", lane = "slow" } }
"""
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, more)) as (client, _):
        for lane, status in (("quiet", 503), ("slow", 200)):
            answer = await ask(
                client, "far", X_Watchbill_Lane=lane, Authorization="Bearer of-the-bot-0123456789"
            )
            assert answer.status == status, answer.body


#: A public lane for typed work, a private one, and callers that are in each.
KEYED = """
[lanes.slow]
class = "background"
[lanes.quiet]
private = true
[server.keys.bot]
key = "of-the-bot-0123456789"
lane = "slow"
[server.keys.diarist]
key = "of-the-diarist-0123456789"
lane = "quiet"
[server.keys.boss]
key = "of-the-boss-0123456789"
admin = true
[process.think]
model = "small"
lane = "slow"
[routing]
order = ["cloud", "local"]
"""


async def door(client: GatewayClient, headers: dict[str, str], **assumed: str) -> GatewayClient:
    """Opens a further address."""
    made = await client.ask("/wb/v1/doors", {"name": "diary", **assumed}, headers=headers)
    return GatewayClient(client.serving, int(str(made.json["port"])))


async def test_work_at_the_door_of_a_private_lane_does_not_leave(tmp_path: Path) -> None:
    """SPOOL-10: a key that may not use the door's lane sent what came there to the external tier."""
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, KEYED)) as (client, _):
        boss = {"Authorization": "Bearer of-the-boss-0123456789"}
        there = await door(client, boss, lane="quiet", model="far")
        for asked in (
            ask(there, "far", Authorization="Bearer of-the-bot-0123456789"),
            ask(there, "far", **boss),
        ):
            answer = await asked
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
        assert peer.asked == []


async def test_typed_work_of_a_caller_in_a_private_lane_does_not_leave(tmp_path: Path) -> None:
    """SPOOL-10: the lane of the type took the place of the key's, and with it the privacy of the work."""
    async with (
        peer_listening(HELLO) as peer,
        opened(tmp_path, cloud(peer, KEYED, '["small"]')) as (client, _),
    ):
        for name, tier in (("diarist", "local"), ("bot", "external")):
            answer = await client.ask(
                "/process", {"type": "think"}, headers={"Authorization": f"Bearer of-the-{name}-0123456789"}
            )
            assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, tier), answer.body


async def test_a_load_by_hand_is_a_load_here(tmp_path: Path) -> None:
    """SPOOL-10: where a tier stood before this machine, the model was said to be in memory and was not."""
    more = '[routing]\norder = ["cloud", "local"]\n'
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, more, '["small"]')) as (_, driver):
        await driver.load("small")
        assert driver.status()["models"]["small"]["state"] == "ready"  # type: ignore[index]


async def test_a_caller_whose_key_has_a_private_lane_does_not_leave_by_naming_another(tmp_path: Path) -> None:
    """SPOOL-10: the key of a diary was private until its caller named any other lane."""
    diarist = "Bearer of-the-diarist-0123456789"
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, KEYED)) as (client, _):
        for headers in ({"X_Watchbill_Lane": "slow"}, {"X_Watchbill_Lane": "default"}):
            answer = await ask(client, "far", Authorization=diarist, **headers)
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
        assert peer.asked == []


@pytest.mark.parametrize("is_reference", [False, True])
@pytest.mark.parametrize("first", [{"model": "diary"}, {"model": "small", "lane": "quiet"}])
async def test_a_conversation_that_began_privately_does_not_leave_later(
    tmp_path: Path, first: dict[str, str], is_reference: bool
) -> None:
    """SPOOL-10: the next turn of a kept response named no private lane or model, and took its text along."""
    more = (
        '[models.diary]\nengine = "scripted"\nmemory = "1MiB"\nprivate = true\nscript = { touch = false }\n'
    )
    more += '[lanes.quiet]\nprivate = true\n[routing]\norder = ["cloud", "local"]\n'
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, more, '["small"]')
        async with opened(tmp_path, text) as (client, _):
            lane = {"X-Watchbill-Lane": first["lane"]} if "lane" in first else {}
            body = {"model": first["model"], "input": "Dear diary"}
            private = await client.ask("/v1/responses", body, headers=lane)
            assert private.headers["x-watchbill-private"] == "1", "its caller is told so"
        async with opened(tmp_path, text) as (client, _):
            item = private.json["output"][0]["id"]  # type: ignore[index]
            said = {"input": [{"type": "item_reference", "id": item}, {"role": "user", "content": "And?"}]}
            earlier = said if is_reference else {"input": "And?", "previous_response_id": private.json["id"]}
            second = await client.ask("/v1/responses", {"model": "small", **earlier})
            later = {"model": "small", "input": "And?", "previous_response_id": second.json["id"]}
            third = await client.ask("/v1/responses", later)
            assert [each.headers["x-watchbill-tier"] for each in (second, third)] == ["local"] * 2
            assert peer.asked == []
            fresh = await client.ask("/v1/responses", {"model": "small", "input": "Hi"})
            assert fresh.headers["x-watchbill-tier"] == "external", "this one is not private"
            assert "x-watchbill-private" not in fresh.headers


async def test_the_rotation_does_not_leave(tmp_path: Path) -> None:
    """SPOOL-10: a lane `rotation` of the config let it go to an external tier, where nothing of it was counted."""
    rotating = """
[devices.ram]
capacity = "100MiB"
reserve = 0
[rotation]
every = "1s"
[lanes.default]
[lanes.rotation]
class = "background"
[routing]
order = ["cloud", "local"]
[models.thinker]
engine = "scripted"
memory = "1MiB"
idle = "500ms"
background = { prompt = "Think." }
script = { touch = false }
"""
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, rotating, '["thinker"]').removeprefix(f"\n{SMALL_MODEL}")
        async with opened(tmp_path, text):
            await eventually(lambda: tier_lines(tmp_path, "rotation"))
            assert peer.asked == []


@pytest.mark.parametrize("address", ["/lane/quiet/v1/responses", "door"])
async def test_a_private_response_in_the_background_does_not_leave_after_a_restart(
    tmp_path: Path, address: str
) -> None:
    """SPOOL-10, RES-12: the next daemon knew the body of the request, and not the address with its lane."""
    slow = (
        '[models.slow]\nengine = "scripted"\nmemory = "1MiB"\nscript = { service = "20s", touch = false }\n'
    )
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, KEYED, '["slow"]') + slow
        boss = {"Authorization": "Bearer of-the-boss-0123456789"}
        async with opened(tmp_path, text) as (client, driver):
            body = {"input": "Dear diary", "background": True}
            if address == "door":
                there = await door(client, boss, lane="quiet", model="slow")
                answer = await there.ask("/v1/responses", body, headers=boss)
            else:
                answer = await client.ask(address, body | {"model": "slow"}, headers=boss)
            assert answer.status == 200, answer.body
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
        async with opened(tmp_path, text) as (_, driver):
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
            (request,) = driver.requests()
            assert (request["lane"], request["model"], peer.asked) == ("quiet", "slow", [])


async def test_what_waits_for_a_model_that_became_private_does_not_leave(tmp_path: Path) -> None:
    """SPOOL-10: the config that holds when a request is sent counts, not the one of its arrival."""
    async with peer_listening(HELLO) as peer:
        slow = '[models.slow]\nengine = "scripted"\nmemory = "1MiB"\nscript = { service = "20s", touch = false }\n'
        text = cloud(peer, '[lanes.default]\nmax_wait = "3s"\n[routing]\nafter = "30s"', '["slow"]') + slow
        async with opened(tmp_path, text) as (client, driver):
            first = asyncio.create_task(ask(client, "slow"))
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
            second = asyncio.create_task(ask(client, "slow", X_Watchbill_Deadline_Ms="60000"))
            await eventually(lambda: any(r["state"] == "waiting" for r in driver.requests()) or second.done())
            await driver.reload(catalog(text + "private = true\n"))
            answer = await within(20, second)
            assert (answer.status, peer.asked) == (503, []), answer.body
            first.cancel()


async def test_a_machine_is_told_that_work_became_private_while_it_waited(tmp_path: Path) -> None:
    """SPOOL-10: the machine was not told, and as a Watchbill with an external tier it might have sent it on."""
    gate, chats = asyncio.Event(), list[Asked]()

    async def patient(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path == "/v1/chat/completions":
            chats.append(asked)
            await gate.wait()
        await HELLO(asked, writer)

    async with peer_listening(patient) as peer:
        text = f"""{SMALL_MODEL}[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{peer.port}"
models = ["big"]
start = "true"
stop = "true"
concurrency = 1
[lanes.quiet]
private = PRIVATE
"""
        async with opened(tmp_path, text.replace("PRIVATE", "false")) as (client, driver):
            first = asyncio.create_task(ask(client, "big"))
            await eventually(lambda: chats)
            second = asyncio.create_task(ask(client, "big", X_Watchbill_Lane="quiet"))
            await eventually(lambda: any(r["state"] == "waiting" for r in driver.requests()))
            await driver.reload(catalog(text.replace("PRIVATE", "true")))
            gate.set()
            for answer in (await within(20, first), await within(20, second)):
                assert answer.status == 200, answer.body
            assert [asked.headers.get("x-watchbill-private") for asked in chats] == [None, "1"]


async def test_work_that_became_private_during_its_reservation_does_not_leave(tmp_path: Path) -> None:
    """SPOOL-10: on a slow disk it was sent seconds after the reload that made its lane private."""
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, "[lanes.quiet]\nprivate = PRIVATE")
        async with opened(tmp_path, text.replace("PRIVATE", "false")) as (client, driver):
            disk = threading.Event()
            driver.tiers._spending._thread.submit(disk.wait, 20)  # pyright: ignore[reportPrivateUsage]
            asking = asyncio.create_task(ask(client, "far", X_Watchbill_Lane="quiet"))
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
            await driver.reload(catalog(text.replace("PRIVATE", "true")))
            disk.set()
            answer = await within(20, asking)
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
            assert "private work is never sent to an external tier" in answer.body.decode()
            assert peer.asked == []
            assert driver.status()["tiers"]["cloud"]["spent_today"] == 0  # type: ignore[index]


async def test_private_work_that_waits_for_a_machine_does_not_follow_its_model_to_an_external_tier(
    tmp_path: Path,
) -> None:
    """SPOOL-10: a reload gave the model to another site, and what waited for it went along, also what is private."""
    port = claim_port(tmp_path / "ports")  # where nothing listens
    async with peer_listening(HELLO) as peer:
        box = f"""{SMALL_MODEL}[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{port}"
models = ["far"]
start = "true"
stop = "true"
"""
        async with opened(tmp_path, box) as (client, driver):
            private = asyncio.create_task(ask(client, "far", X_Watchbill_Private="1"))
            here = asyncio.create_task(ask(client, "far", X_Watchbill_Tier="exact"))
            await eventually(lambda: len(driver.requests()) == 2)
            await driver.reload(catalog(cloud(peer)))
            refused, served = await within(20, private), await within(20, here)
            assert (refused.status, refused.code) == (503, "tier_closed"), refused.body
            assert (served.status, served.headers["x-watchbill-tier"]) == (200, "external")
            assert len(peer.asked) == 1


async def test_a_tier_that_only_reservations_fill_is_said_to_open_soon(tmp_path: Path) -> None:
    """SPOOL-10: it said that it is asked again at the end of the day, and opened when the first answer ended."""
    gate = asyncio.Event()

    async def patient(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await HELLO(asked, writer)

    async with peer_listening(patient) as peer, opened(tmp_path, cloud(peer, daily=0.11)) as (client, driver):
        first = asyncio.create_task(ask(client, "far"))  # 0.1 of 0.11 is reserved
        await eventually(lambda: peer.asked)
        answer = await ask(client, "far")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "tier_closed", "5")
        assert "it is asked again in 5 s" in answer.body.decode()
        gate.set()
        assert (await within(20, first)).status == 200
        assert (await ask(client, "far")).status == 200
        assert driver.status()["tiers"]["cloud"]["closed"] is False  # type: ignore[index]


async def test_an_external_tier_is_off_until_it_is_enabled(tmp_path: Path) -> None:
    async with peer_listening(HELLO) as peer:
        text = cloud(peer).replace("enabled = true\n", "")
        async with opened(tmp_path, text) as (client, _):
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (503, "tier_closed")
            assert "add enabled = true to [tiers.cloud]" in answer.body.decode()
            assert peer.asked == []


async def test_the_daily_limit_holds_over_restarts(tmp_path: Path) -> None:
    """An answer of 100 tokens may cost 0.1 and a little: the second would pass 0.11, also for the next daemon."""

    async def long_answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        events = chat_events("word " * 99 + "end")
        await stream_of(sse(*events))(asked, writer)

    async with peer_listening(long_answer) as peer:
        text = cloud(peer, daily=0.11)
        async with opened(tmp_path, text) as (client, driver):
            assert (await ask(client, "far")).status == 200
            assert driver.status()["tiers"]["cloud"]["spent_today"] == pytest.approx(0.1003)  # type: ignore[index]
        async with opened(tmp_path, text) as (client, driver):
            assert driver.status()["tiers"]["cloud"]["spent_today"] == pytest.approx(0.1003)  # type: ignore[index]
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (503, "tier_closed")
            assert "its daily limit is reached" in answer.body.decode()
            assert driver.status()["tiers"]["cloud"]["closed"] is True  # type: ignore[index]
            assert len(peer.asked) == 1
            await eventually(lambda: tier_lines(tmp_path, "spent"))
            await driver.reload(catalog(cloud(peer, daily=1.0)))
            assert (await ask(client, "far")).status == 200, "a raised limit opens the tier"


async def test_a_tier_opens_with_the_new_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPOOL-10: for up to ten seconds after midnight it was still closed, to the callers that had been told to come
    again then."""
    left_s, began = 3.0, time.monotonic()
    midnight = (time.time() // 86_400 + 1) * 86_400
    monkeypatch.setattr(spending, "_clock", lambda: midnight - left_s + time.monotonic() - began)
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, daily=0.11)) as (client, driver):
        await driver.tiers._spending.reserve("cloud", 0.105)  # pyright: ignore[reportPrivateUsage]
        answer = await ask(client, "far")
        assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
        assert 1 <= int(answer.headers["retry-after"]) <= left_s
        await asyncio.sleep(began + left_s + 0.2 - time.monotonic())
        assert (await ask(client, "far")).status == 200


async def test_a_clock_that_is_put_back_over_midnight_forgets_nothing(tmp_path: Path) -> None:
    """SPOOL-10: the day began anew with nothing spent, as often as the clock passed midnight."""
    days = ["2026-01-01"]
    spent = Spending(tmp_path, lambda: days[-1])
    await spent.start()
    await spent.reserve("cloud", 3.0)
    days.append("2026-01-02")
    await spent.reserve("cloud", 1.0)
    days.append("2026-01-01")
    assert spent.spent("cloud") == 3.0
    days.append("2026-01-02")
    assert spent.spent("cloud") == 1.0
    await spent.close()


async def test_a_clock_that_is_set_to_a_day_of_a_former_daemon_forgets_nothing(tmp_path: Path) -> None:
    """SPOOL-09: a machine without a clock of its own starts in the past, and its clock is set a moment later. What a
    daemon had spent before on that day did not count."""
    days = ["2026-01-02"]
    former = Spending(tmp_path, lambda: days[-1])
    await former.start()
    await former.reserve("cloud", 3.0)
    await former.close()
    days.append("2026-01-01")
    spent = Spending(tmp_path, lambda: days[-1])
    await spent.start()
    early = await spent.reserve("cloud", 0.5)
    days.append("2026-01-02")
    spent.settle(early, 0.25)  # counts on both days
    await spent.know_today()
    assert spent.spent("cloud") == 3.25
    await spent.reserve("cloud", 1.0)
    days.append("2026-01-01")
    assert spent.spent("cloud") == 0.5
    days.append("2026-01-02")
    assert spent.spent("cloud") == 4.25
    await spent.close()


async def test_a_clock_that_is_far_ahead_removes_nothing_that_was_spent_today(tmp_path: Path) -> None:
    """SPOOL-09: a daemon whose clock stood in the next year for a moment took all amounts for old ones."""
    days = ["2026-01-02"]
    for day in ("2026-01-02", "2027-01-02"):
        days.append(day)
        spent = Spending(tmp_path, lambda: days[-1])
        await spent.start()
        await spent.reserve("cloud", 3.0)
        await spent.close()
    days.append("2026-01-02")
    spent = Spending(tmp_path, lambda: days[-1])
    await spent.start()
    assert spent.spent("cloud") == 3.0
    await spent.close()


async def test_a_tier_stays_closed_when_the_clock_is_set_to_a_day_that_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-09: the limit of a day was spent twice: before a restart, and after it with a clock that was late."""
    ahead_s = [0.0]
    monkeypatch.setattr(spending, "_clock", lambda: 1_767_355_200 + ahead_s[-1])
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, daily=0.11)
        async with opened(tmp_path, text) as (client, driver):
            await driver.tiers._spending.reserve("cloud", 0.105)  # pyright: ignore[reportPrivateUsage]
        ahead_s.append(-86_400)
        async with opened(tmp_path, text) as (client, driver):
            assert (await ask(client, "far")).status == 200
            ahead_s.append(0.0)
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
            assert len(peer.asked) == 1


async def test_a_reservation_of_a_daemon_that_was_killed_counts(tmp_path: Path) -> None:
    """What was sent and never settled may have cost all that was reserved."""
    sent = asyncio.Event()

    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        sent.set()
        await asyncio.sleep(60)

    async with peer_listening(silent) as peer:
        text = cloud(peer, daily=0.15)
        async with opened(tmp_path, text) as (client, _):
            asking = asyncio.create_task(ask(client, "far"))
            await within(10, sent.wait())
            # As kill -9 leaves it: a copy of the root while the request runs.
            copy = tmp_path.parent / "killed"
            (copy / "spending").mkdir(parents=True)
            for path in (tmp_path / "spending").iterdir():
                (copy / "spending" / path.name).write_bytes(path.read_bytes())
            asking.cancel()
        async with driving(copy, catalog(text)) as driver:
            spent = driver.status()["tiers"]["cloud"]["spent_today"]  # type: ignore[index]
            assert spent == pytest.approx(0.1, abs=0.01)


async def test_a_request_that_would_cost_more_than_a_day_may_is_told_so(tmp_path: Path) -> None:
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, daily=0.01)) as (client, driver):
        answer = await ask(client, "far")
        assert (answer.status, answer.code) == (503, "tier_closed")
        assert "ask for fewer tokens, or raise daily" in answer.body.decode()
        assert driver.status()["tiers"]["cloud"]["closed"] is False  # type: ignore[index]


async def test_a_large_request_does_not_close_the_tier_for_others(tmp_path: Path) -> None:
    """SPOOL-10: one request for 1,000 tokens closed a tier for the day with 8 % of its limit spent."""
    async with (
        peer_listening(HELLO) as peer,
        peer_listening(HELLO) as spare,
        opened(tmp_path, cloud(peer, SPARE.format(port=spare.port), daily=0.2)) as (client, driver),
    ):
        for tokens, served in ((150, peer), (199, spare), (150, peer)):
            before = len(served.asked)
            answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "max_tokens": tokens})
            assert (answer.status, len(served.asked)) == (200, before + 1), answer.body
        assert driver.status()["tiers"]["cloud"]["closed"] is False  # type: ignore[index]


async def test_a_model_that_would_wait_too_long_here_goes_to_the_tier(tmp_path: Path) -> None:
    """The routing rule: `after` says how long a wait here may be; `explain` says what each site would do."""
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, '[routing]\nafter = "1s"', models='["small", "slow"]')
        text += '[models.slow]\nengine = "scripted"\nmemory = "1MiB"\nscript = { service = "30s", touch = false }\n'
        async with opened(tmp_path, text) as (client, driver):
            assert (await ask(client, "small")).headers["x-watchbill-tier"] == "local"
            first = asyncio.create_task(ask(client, "slow"))
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
            second = await ask(client, "slow")
            assert second.headers["x-watchbill-model"] == "slow@cloud"
            told = (await client.ask("/wb/v1/explain?model=slow")).json
            assert told["served_by"] == "slow@cloud"
            assert told["tier"] == "external"
            assert list(told["sites"]) == ["local", "cloud"]  # type: ignore[call-overload]
            private = asyncio.create_task(ask(client, "slow", X_Watchbill_Private="1"))
            await eventually(lambda: any(r["state"] == "waiting" for r in driver.requests()))
            assert len(peer.asked) == 1
            first.cancel()
            private.cancel()
            listed = [each["id"] for each in (await client.ask("/v1/models")).json["data"]]  # type: ignore[attr-defined, union-attr]
            assert listed == ["small", "slow"], "copies are not listed"


async def test_a_request_that_nobody_took_costs_nothing(tmp_path: Path) -> None:
    """A tier that cannot be reached must not use up its day."""
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, models='["far"]')
    async with opened(tmp_path, text) as (client, driver):
        answer = await ask(client, "far")
        assert answer.status == 502, answer.body
        await eventually(lambda: driver.status()["tiers"]["cloud"]["spent_today"] == 0)  # type: ignore[index]


def refusing(status: int, **headers: str) -> Talk:
    """A server that refuses every request, and repeats a part of the key that it was shown."""

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = json.dumps(
            {"error": {"message": "Incorrect API key: secret-***", "type": "invalid_key"}}
        ).encode()
        told = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{told}\r\n"
        writer.write(head.encode() + body)

    return talk


@pytest.mark.parametrize(
    ("status", "word"), [(401, "set key of [tiers.cloud]"), (402, "asks to be paid first")]
)
async def test_a_tier_that_does_not_accept_this_machine_is_closed_and_the_caller_is_not_blamed(
    tmp_path: Path, status: int, word: str
) -> None:
    """SPOOL-10: a 401 of the tier came to callers as if their own key were wrong, with parts of the tier's, and cost
    money."""
    async with (
        peer_listening(refusing(status)) as peer,
        opened(tmp_path, cloud(peer)) as (client, driver),
    ):
        for _ in range(2):
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
            assert word in answer.body.decode() and b"secret" not in answer.body
            assert "www-authenticate" not in answer.headers
        assert len(peer.asked) == 1, "it is asked again after a minute"
        tier = driver.status()["tiers"]["cloud"]  # type: ignore[index]
        assert tier["closed"] and word in tier["barred"]
        await eventually(lambda: driver.status()["tiers"]["cloud"]["spent_today"] == 0)  # type: ignore[index]
        await driver.tiers.reconfigure(catalog(cloud(peer)))
        assert not driver.status()["tiers"]["cloud"]["closed"]  # type: ignore[index]


async def test_another_site_serves_what_a_tier_with_a_wrong_key_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-10: the first site that can serve it, and the first one again after a while."""
    monkeypatch.setattr(tiers, "TIER_AGAIN_MS", 300)
    second = """
[tiers.spare]
kind = "external"
enabled = true
url = "http://127.0.0.1:{port}/v1"
models = ["far"]
price_in = 1.0
price_out = 1.0
daily = 1.0
"""
    async with peer_listening(refusing(401)) as first, peer_listening(HELLO) as spare:
        text = cloud(first, second.format(port=spare.port))
        async with opened(tmp_path, text) as (client, driver):
            for _ in range(2):
                answer = await ask(client, "far")
                assert answer.status == 200, answer.body
                assert answer.headers["x-watchbill-model"] == "far@spare"
            await eventually(lambda: not driver.status()["tiers"]["cloud"]["closed"])  # type: ignore[index]
            first.talk = HELLO
            assert (await ask(client, "far")).headers["x-watchbill-model"] == "far"


SPARE = """
[tiers.spare]
kind = "external"
enabled = true
url = "http://127.0.0.1:{port}/v1"
models = ["far", "other"]
price_in = 1.0
price_out = 1.0
daily = 1.0
"""


def told_of(driver: Driver, site: str = "cloud") -> dict[str, object]:
    return driver.status()["tiers"][site]  # type: ignore[index, no-any-return]


async def test_a_busy_tier_is_closed_for_as_long_as_it_says(tmp_path: Path) -> None:
    """P3: an earlier question is refused again, so it is not sent; callers are told the true time."""
    async with (
        peer_listening(refusing(429, Retry_After="117")) as peer,
        opened(tmp_path, cloud(peer)) as (client, driver),
    ):
        for _ in range(2):
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
            assert 115 <= int(answer.headers["retry-after"]) <= 117, "the default of 5 s was a lie"
            assert b"its server wants to be asked later; it is asked again in 11" in answer.body
        assert len(peer.asked) == 1
        assert told_of(driver)["closed"]
        await eventually(lambda: told_of(driver)["spent_today"] == 0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "9999999"}, 3_600),
        ({"Retry_After": "9" * 400}, 3_600),
        (
            {"Date": "Wed, 21 Oct 2015 07:28:00 GMT", "Retry_After": "Wed, 21 Oct 2015 07:30:05 GMT"},
            125,
        ),
        ({"Retry_After": "Wed, 21 Oct 2015 07:30:05 GMT"}, 1),
        ({"Retry_After": "soon"}, 5),
        ({"Retry_After": "0"}, 1),
        ({"Retry_After": "-3"}, 5),
    ],
)
async def test_every_way_to_name_a_time(tmp_path: Path, headers: dict[str, str], seconds: int) -> None:
    """P3: within bounds, and by the server's own clock."""
    async with (
        peer_listening(refusing(429, **headers)) as peer,
        opened(tmp_path, cloud(peer)) as (client, _),
    ):
        answer = await ask(client, "far")
        assert seconds - 1 <= int(answer.headers["retry-after"]) <= seconds, answer.headers


async def test_a_busy_tier_that_names_no_time_is_asked_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "TIER_BUSY_MS", 200)
    monkeypatch.setattr(tiers, "TIER_BUSY_MS_MIN", 100)
    async with peer_listening(refusing(429)) as peer, opened(tmp_path, cloud(peer)) as (client, driver):
        assert (await ask(client, "far")).code == "tier_closed"
        peer.talk = HELLO
        await eventually(lambda: not told_of(driver)["closed"])
        assert (await ask(client, "far")).status == 200


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429, 500, 502, 503, 529])
@pytest.mark.parametrize("streamed", [False, True])
async def test_another_site_serves_what_a_tier_refuses_or_fails(
    tmp_path: Path, status: int, streamed: bool
) -> None:
    """SPOOL-10: the caller has seen nothing yet, so it never learns of it; the first site costs nothing."""
    async with (
        peer_listening(refusing(status)) as first,
        peer_listening(HELLO) as spare,
        opened(tmp_path, cloud(first, SPARE.format(port=spare.port))) as (client, driver),
    ):
        body = BODY | {"model": "far", "stream": streamed}
        answer = await client.ask("/v1/chat/completions", body)
        assert (answer.status, answer.headers["x-watchbill-model"]) == (200, "far@spare"), answer.body
        assert b"far " in answer.body and b"error" not in answer.body
        assert (len(first.asked), len(spare.asked)) == (1, 1)
        await eventually(lambda: told_of(driver)["spent_today"] == 0)


@pytest.mark.parametrize("status", [403, 404])
async def test_a_model_that_a_tier_does_not_have_is_told_and_its_others_are_served(
    tmp_path: Path, status: int
) -> None:
    """SPOOL-10: a wrong name in the config is said to be one; it closes no other model of the tier."""

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (refusing(status) if asked.json["model"] == "far" else HELLO)(asked, writer)

    async with (
        peer_listening(talk) as peer,
        opened(tmp_path, cloud(peer, models='["far", "other"]')) as (client, driver),
    ):
        for _ in range(2):
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
            word = (
                b"does not know the model; correct models of"
                if status == 404
                else b"does not let our key use the model"
            )
            assert word in answer.body and b"secret" not in answer.body
            assert 58 <= int(answer.headers["retry-after"]) <= 60
        assert len(peer.asked) == 1
        assert (await ask(client, "other")).status == 200
        told = told_of(driver)
        assert not told["closed"] and str(told["barred"]).startswith("far: ")


async def test_an_address_that_a_tier_lacks_says_nothing_of_its_models(tmp_path: Path) -> None:
    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (HELLO if asked.path.endswith("/chat/completions") else refusing(404))(asked, writer)

    async with peer_listening(talk) as peer, opened(tmp_path, cloud(peer)) as (client, _):
        answer = await client.ask("/v1/embeddings", {"model": "far", "input": "x"})
        assert answer.status == 404, answer.body
        assert (await ask(client, "far")).status == 200


async def test_what_no_other_site_may_serve_is_told_in_the_servers_words(tmp_path: Path) -> None:
    """R30: a failure of the one server closes nothing: it may be about this request alone."""
    async with peer_listening(refusing(500)) as first, peer_listening(HELLO) as spare:
        text = cloud(first, SPARE.format(port=spare.port).replace("enabled = true", "enabled = false"))
        async with opened(tmp_path, text) as (client, driver):
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (502, "engine_failed"), answer.body
            assert b"Incorrect API key" in answer.body
            assert not told_of(driver)["closed"] and spare.asked == []
            first.talk = HELLO
            assert (await ask(client, "far")).status == 200


async def test_private_work_does_not_follow_to_another_external_tier(tmp_path: Path) -> None:
    """SPOOL-10: what may not leave does not leave because another site failed."""
    machine = Machine(tmp_path / "machine")
    async with peer_listening(HELLO) as peer:
        text = machine.tier().replace(f'start = "{machine.command("start")}"', 'start = "false"')
        text += "[tiers.cloud]" + cloud(peer, models='["big"]').split("[tiers.cloud]")[1]
        async with opened(tmp_path / "root", text) as (client, _):
            answer = await within(30, ask(client, "big", X_Watchbill_Private="1"))
            assert answer.status == 503, answer.body
            assert peer.asked == []


async def test_another_site_serves_what_an_unreachable_tier_cannot(tmp_path: Path) -> None:
    """SPOOL-10: the connection is refused; the next requests do not try it for a few seconds."""
    async with peer_listening(HELLO) as spare:
        async with peer_listening(HELLO) as first:
            text = cloud(first, SPARE.format(port=spare.port))
        async with opened(tmp_path, text) as (client, driver):
            answer = await ask(client, "far")
            assert (answer.status, answer.headers["x-watchbill-model"]) == (200, "far@spare"), answer.body
            told = told_of(driver)
            assert told["closed"] and "cannot be reached" in str(told["barred"])
            assert told["spent_today"] == 0


@contextmanager
def full_house() -> Iterator[int]:
    """A port that accepts no further connection: a dial hangs."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@pytest.mark.parametrize("has_spare", [True, False])
async def test_a_tier_that_accepts_no_connection_in_time_is_closed_for_a_while(
    tmp_path: Path, has_spare: bool
) -> None:
    """SPOOL-10, P3: the first caller waits as long as a dial may take, and the next ones wait no more."""
    async with peer_listening(HELLO) as spare:
        with full_house() as port:
            text = cloud(spare, SPARE.format(port=spare.port) if has_spare else "")
            text = text.replace(f"http://127.0.0.1:{spare.port}/v1", f"http://127.0.0.1:{port}/v1", 1)
            async with opened(tmp_path, text) as (client, driver):
                began = time.monotonic()
                first = await ask(client, "far")
                took_s = time.monotonic() - began
                assert first.status == (200 if has_spare else 502), first.body
                assert UPSTREAM_CONNECT_MS / 1000 <= took_s < 2 * UPSTREAM_CONNECT_MS / 1000
                assert "cannot be reached" in str(told_of(driver)["barred"])
                second = await ask(client, "far")
                assert time.monotonic() - began - took_s < 2
                assert second.status == (200 if has_spare else 503), second.body
                assert told_of(driver)["spent_today"] == 0


async def test_a_caller_that_leaves_during_the_dial_costs_nothing(tmp_path: Path) -> None:
    """SPOOL-10: it paid for a prompt that no server had seen."""
    with full_house() as port:
        text = cloud(EnginePeer(HELLO, port))
        async with opened(tmp_path, text) as (client, driver):
            asking = asyncio.create_task(ask(client, "far"))
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
            await asyncio.sleep(0.3)
            asking.cancel()
            await eventually(lambda: tier_lines(tmp_path, "cost"))
            assert told_of(driver)["spent_today"] == 0


async def test_another_site_serves_what_a_tier_broke_off_before_its_caller_saw_any(tmp_path: Path) -> None:
    """R30: the first server closes the connection without an answer."""

    async def breaking(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with (
        peer_listening(breaking) as first,
        peer_listening(HELLO) as spare,
        opened(tmp_path, cloud(first, SPARE.format(port=spare.port))) as (client, _),
    ):
        answer = await ask(client, "far")
        assert (answer.status, answer.headers["x-watchbill-model"]) == (200, "far@spare"), answer.body


def saying(body: bytes, kind: str = "application/json", *, missing: int = 0, status: int = 200) -> Talk:
    """A server that says this, and closes the connection where bytes are missing."""

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body) + missing}\r\n"
        writer.write(f"{head}Location: /elsewhere\r\n\r\n".encode() + body)
        if missing:
            await writer.drain()
            writer.close()

    return talk


async def test_headers_that_go_before_the_answer_name_no_site_that_may_not_serve_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-10: a stream whose first site hung named that site, its tier and its price, and came from the second."""
    monkeypatch.setattr(relay, "HEADERS_HELD_MS", 50)

    async def hanging(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        writer.close()

    async with (
        peer_listening(hanging) as first,
        peer_listening(HELLO) as spare,
        opened(tmp_path, cloud(first, SPARE.format(port=spare.port))) as (client, _),
    ):
        answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "stream": True})
        assert (answer.status, len(spare.asked)) == (200, 1), answer.body
        assert answer.headers.keys().isdisjoint({"x-watchbill-model", "x-watchbill-tier", "x-watchbill-cost"})


def in_pieces(*pieces: bytes) -> Talk:
    """A server that streams these, each one when the last has been read."""

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.close()

    return talk


_FAILURE = b'{"error": {"message": "out of GPUs", "code": 500}}'
_LATER = b'{"error": {"message": "not so fast", "code": 429}}'
_STREAM = "text/event-stream"
#: What a server may send with 200 that is no answer.
NO_ANSWERS = {
    "an error that it calls a success": saying(_FAILURE),
    "a page": saying(b"<html>log in first</html>", "text/html"),
    "nothing": saying(b""),
    "half of an object": saying(b'{"id": "c", "choices": ['),
    "an object that breaks off": saying(b'{"id": "c", "choices": [', missing=100),
    "an error as its first event": saying(b"data: " + _FAILURE + b"\n\n", _STREAM),
    "a stream without an event": saying(b"", _STREAM),
    "a sign of life, and then a break": saying(b": working\n\n", _STREAM, missing=100),
    "a redirect": saying(b"", status=302),
    "an error in two pieces": in_pieces(b"data: " + _FAILURE[:20], _FAILURE[20:] + b"\n\n"),
    "a sign of life and half an error": in_pieces(
        b": working\n\ndata: " + _FAILURE[:20], _FAILURE[20:] + b"\n\n"
    ),
    "an error by the name of its event": saying(
        b'event: error\ndata: {"message": "out of GPUs"}\n\n', _STREAM
    ),
    "that it wants to be asked later": saying(_LATER),
    "the same as its first event": saying(b"data: " + _LATER + b"\n\n", _STREAM),
    "nothing but the end of a stream": saying(b"data: [DONE]\n\n", _STREAM),
    "a sign of life and the end of a stream": saying(b": working\n\ndata: [DONE]\n\n", _STREAM),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("said", NO_ANSWERS)
async def test_another_site_serves_what_got_something_that_is_no_answer(
    tmp_path: Path, said: str, streamed: bool
) -> None:
    """SPOOL-10: the status alone does not make an answer, and the caller has seen nothing of it."""
    async with (
        peer_listening(NO_ANSWERS[said]) as first,
        peer_listening(HELLO) as spare,
        opened(tmp_path, cloud(first, SPARE.format(port=spare.port))) as (client, _),
    ):
        answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "stream": streamed})
        assert (answer.status, answer.headers["x-watchbill-model"]) == (200, "far@spare"), answer.body
        assert b"far " in answer.body and b"error" not in answer.body and b"working" not in answer.body
        assert (len(first.asked), len(spare.asked)) == (1, 1)


@pytest.mark.parametrize(
    "end",
    [sse(*chat_events("half of")[:-1]), sse(*chat_events("half of")[:2]) + b"data: " + _FAILURE + b"\n\n"],
)
async def test_another_site_serves_a_whole_answer_whose_stream_ended_too_early(
    tmp_path: Path, end: bytes
) -> None:
    """SPOOL-10: no byte of it is in the answer of the other one."""
    end = end.removesuffix(b"data: [DONE]\n\n").replace(b'"finish_reason": "stop"', b'"finish_reason": null')
    async with (
        peer_listening(saying(end, _STREAM)) as first,
        peer_listening(HELLO) as spare,
        opened(tmp_path, cloud(first, SPARE.format(port=spare.port))) as (client, _),
    ):
        answer = await ask(client, "far")
        assert answer.status == 200, answer.body
        assert answer.json["choices"][0]["message"]["content"] == "from far away"  # type: ignore[index]


async def test_what_a_server_calls_a_success_and_is_none_is_told_and_costs_nothing(tmp_path: Path) -> None:
    for told in (_FAILURE, b"data: " + _FAILURE + b"\n\n"):
        kind = _STREAM if told.startswith(b"data") else "application/json"
        async with (
            peer_listening(saying(told, kind)) as peer,
            opened(tmp_path, cloud(peer)) as (client, driver),
        ):
            for streamed in (False, True):
                answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "stream": streamed})
                assert (answer.status, answer.code) == (502, "engine_failed"), answer.body
                assert b"out of GPUs" in answer.body
            await eventually(lambda: told_of(driver)["spent_today"] == 0)


async def test_an_overloaded_server_tells_its_first_caller_when_to_come_again(tmp_path: Path) -> None:
    """SPOOL-10: the first caller got 502 without a time, and only the next ones were told it."""
    async with (
        peer_listening(refusing(503, Retry_After="7")) as peer,
        opened(tmp_path, cloud(peer)) as (client, _),
    ):
        for _ in range(2):
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
            assert answer.headers["retry-after"] == "7"
        assert len(peer.asked) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stream_without_an_answer_is_told(tmp_path: Path, streamed: bool) -> None:
    """SPOOL-10: a stream that held only its end became an answer without a choice, with 200."""
    async with (
        peer_listening(saying(b"data: [DONE]\n\n", _STREAM)) as peer,
        opened(tmp_path, cloud(peer)) as (client, _),
    ):
        answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "stream": streamed})
        assert (answer.status, answer.code) == (502, "engine_failed"), answer.body


async def test_an_answer_that_comes_in_pieces_is_passed_on_whole(tmp_path: Path) -> None:
    text = sse(*chat_events("from far away"))
    pieces = [b": working\n", b"\n", *(text[n : n + 7] for n in range(0, len(text), 7))]
    async with (
        peer_listening(in_pieces(*pieces[:40], b"".join(pieces[40:]))) as peer,
        opened(tmp_path, cloud(peer)) as (client, _),
    ):
        answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "stream": True})
        assert (answer.status, answer.body) == (200, text), answer.body


async def test_a_caller_that_leaves_before_its_request_is_sent_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-10: a caller that left while its cost was written down kept the reservation for the rest of the day, and
    one that left a moment later paid for its prompt. An editor that cancels while somebody types closed the tier."""
    write, writing = Spending._write, threading.Event()  # pyright: ignore[reportPrivateUsage]

    def slowly(self: Spending, *line: Any) -> None:
        writing.set()
        time.sleep(0.3)
        write(self, *line)

    monkeypatch.setattr(Spending, "_write", slowly)
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer)) as (client, driver):
        asking = asyncio.create_task(ask(client, "far"))
        await within(10, asyncio.to_thread(writing.wait))
        assert told_of(driver)["spent_today"] != 0
        asking.cancel()
        await eventually(lambda: told_of(driver)["spent_today"] == 0)
        assert peer.asked == []
        assert not [
            line for line in tier_lines(tmp_path, "cost") if "0 + 0 tokens" not in str(line["reason"])
        ]


async def test_a_request_that_was_not_sent_is_not_counted_for_its_tier(tmp_path: Path) -> None:
    """OBS: a request that was too dear for one tier and served by the next counted for both."""
    async with (
        peer_listening(HELLO) as peer,
        peer_listening(HELLO) as spare,
        opened(tmp_path, cloud(peer, SPARE.format(port=spare.port), daily=0.01)) as (client, driver),
    ):
        answer = await ask(client, "far")
        assert (answer.status, len(peer.asked), len(spare.asked)) == (200, 0, 1), answer.body
        assert 'watchbill_tier_requests_total{tier="external"} 1.0' in driver.metrics.render().decode()


async def test_every_choice_of_an_answer_is_reserved(tmp_path: Path) -> None:
    """SPOOL-10: a request for eight answers reserved the price of one, and the limit of the day did not hold."""
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, daily=0.5)) as (client, _):
        answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "n": 8})
        assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
        assert b"it may cost 0.8" in answer.body and peer.asked == []


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", BODY | {"max_tokens": 2000}),
        ("/v1/chat/completions", BODY | {"max_tokens": 2000.0}),
        ("/v1/chat/completions", BODY | {"max_tokens": 2000, "max_completion_tokens": 1}),
        ("/v1/chat/completions", BODY | {"max_tokens": 1000, "n": 2.0}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 2000}),
        ("/v1/messages", BODY | {"max_tokens": 2000}),
        ("/api/chat", {"messages": BODY["messages"], "options": {"num_predict": 2000}}),
        ("/api/generate", {"prompt": "Hi", "options": {"num_predict": 2000}}),
        ("/upstream/far/v1/chat/completions", BODY | {"max_tokens": 2000}),
        ("/v1/images/edits", {"prompt": "Hi", "n": "2"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(list(value)[1:]),
)
async def test_as_much_is_reserved_as_a_request_may_cost_at_every_door(
    tmp_path: Path, path: str, asked: dict[str, object]
) -> None:
    """SPOOL-09: where the door or the number had another form, 1,024 tokens were reserved for any answer, and answers
    that came at once cost many times the daily limit."""
    async with (
        peer_listening(HELLO) as peer,
        opened(tmp_path, cloud(peer, daily=1.5)) as (client, _),
    ):
        fields = asked | {"model": "far"}
        if path == "/v1/images/edits":
            kind = {"Content-Type": "multipart/form-data; boundary=b"}
            parts = (
                f'--b\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()
            )
            answer = await client.ask(path, ("".join(parts) + "--b--\r\n").encode(), headers=kind)
        else:
            answer = await client.ask(path, fields)
        assert (answer.status, peer.asked) == (503, []), answer.body
        assert "it may cost 2" in answer.body.decode()


async def test_a_websocket_is_not_carried_to_an_external_tier(tmp_path: Path) -> None:
    """SPOOL-09: what it cost was never counted, and the daily limit did not end it."""
    asked = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "Sec-WebSocket-Version": "13",
    }
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer)) as (client, _):
        answer = await client.ask("/v1/realtime?model=far", method="GET", headers=asked)
        assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
        assert "a websocket is not carried to an external tier" in answer.body.decode()
        assert answer.headers["x-should-retry"] == "false"
        assert peer.asked == []


async def test_all_sites_that_refuse_are_named_with_the_time_of_the_first_that_opens(tmp_path: Path) -> None:
    async with (
        peer_listening(refusing(401)) as first,
        peer_listening(refusing(429, Retry_After="17")) as spare,
        opened(tmp_path, cloud(first, SPARE.format(port=spare.port))) as (client, _),
    ):
        answer = await ask(client, "far")
        assert (answer.status, answer.code) == (503, "tier_closed"), answer.body
        assert b"the tier cloud: its server does not accept our key" in answer.body
        assert b"the tier spare: its server wants to be asked later" in answer.body
        assert 16 <= int(answer.headers["retry-after"]) <= 17


async def test_what_a_retry_does_not_mend_names_no_time(tmp_path: Path) -> None:
    """P3: private work is refused for good, a spent day until midnight of UTC."""
    async with peer_listening(HELLO) as peer, opened(tmp_path, cloud(peer, daily=0.15)) as (client, _):
        answer = await ask(client, "far", X_Watchbill_Private="1")
        assert "retry-after" not in answer.headers and answer.headers["x-should-retry"] == "false"
        await client.ask("/v1/chat/completions", BODY | {"model": "far", "max_tokens": 1})
        left_s = 86_400 - time.time() % 86_400
        answer = await client.ask("/v1/chat/completions", BODY | {"model": "far", "max_tokens": 144})
        assert answer.code == "tier_closed" and b"of 0.15 left today" in answer.body
        assert abs(int(answer.headers["retry-after"]) - left_s) < 30


async def test_an_engine_that_wants_a_key_is_no_fault_of_the_caller(tmp_path: Path) -> None:
    """RES-20: whose key this Watchbill accepted."""
    async with peer_listening(refusing(401)) as peer:
        text = f"""
[engines.far]
driver = "remote"
url = "http://127.0.0.1:{peer.port}"
[models.far]
engine = "far"
"""
        async with opened(tmp_path, text) as (client, _):
            answer = await ask(client, "far")
            assert (answer.status, answer.code) == (502, "engine_failed"), answer.body
            assert b"secret" not in answer.body and "www-authenticate" not in answer.headers


async def test_a_full_lane_here_is_no_reason_to_refuse_what_a_tier_can_start(tmp_path: Path) -> None:
    async with peer_listening(HELLO) as peer:
        text = cloud(peer, "[lanes.narrow]\nqueue_max = 1", models='["slow"]')
        text += '[models.slow]\nengine = "scripted"\nmemory = "1MiB"\nscript = { service = "30s", touch = false }\n'
        async with opened(tmp_path, text) as (client, driver):
            held = [asyncio.create_task(ask(client, "slow", X_Watchbill_Lane="narrow"))]
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
            held.append(asyncio.create_task(ask(client, "slow", X_Watchbill_Lane="narrow")))
            await eventually(lambda: any(r["state"] == "waiting" for r in driver.requests()))
            answer = await ask(client, "slow", X_Watchbill_Lane="narrow")
            assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, "external")
            for each in held:
                each.cancel()


# ------------------------------------------------------------------ burst


class Machine:
    """A machine that a command starts and stops: the scripted server, and a file of what the commands did."""

    def __init__(self, folder: Path, script: dict[str, object] | None = None) -> None:
        folder.mkdir()
        self.port = claim_port(folder / "ports")
        self.said, self.pid_file = folder / "said", folder / "pid"
        words = [sys.executable, "-I", "-S", scripted_server.__file__, "big", str(self.port)]
        words += [json.dumps(check_script({"touch": False, **(script or {})})), str(folder / "state")]
        self._program = folder / "machine.py"
        self._program.write_text(
            "import os, signal, subprocess, sys\n"
            f"with open({str(self.said)!r}, 'a') as said: said.write(sys.argv[1] + '\\n')\n"
            "if sys.argv[1] == 'start':\n"
            f"    child = subprocess.Popen({words!r}, start_new_session=True, stdin=subprocess.DEVNULL,\n"
            "                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
            f"    open({str(self.pid_file)!r}, 'w').write(str(child.pid))\n"
            "else:\n"
            "    try:\n"
            f"        os.kill(int(open({str(self.pid_file)!r}).read()), signal.SIGKILL)\n"
            "    except (ProcessLookupError, FileNotFoundError):\n"
            "        pass\n"
        )

    def command(self, verb: str) -> str:
        return f"{sys.executable} {self._program} {verb}"

    def tier(self, more: str = "") -> str:
        return f"""
{SMALL_MODEL}[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{self.port}"
models = ["big"]
start = "{self.command("start")}"
stop = "{self.command("stop")}"
idle = "1s"
price_hour = 3.6
{more}
"""

    @property
    def calls(self) -> list[str]:
        return self.said.read_text().split() if self.said.exists() else []

    def preempt(self) -> None:
        """The machine vanishes."""
        import os
        import signal

        os.kill(int(self.pid_file.read_text()), signal.SIGKILL)

    @contextmanager
    def out_of_order(self) -> Iterator[None]:
        """The commands fail meanwhile."""
        before = self._program.read_text()
        self._program.write_text(
            f"import sys\nwith open({str(self.said)!r}, 'a') as said: said.write('out-of-order\\n')\nsys.exit(4)"
        )
        try:
            yield
        finally:
            self._program.write_text(before)

    def break_down(self) -> None:
        """The machine vanishes, and does not start again."""
        self._program.write_text("import sys; sys.exit(sys.argv[1] == 'start')")
        self.preempt()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path / "machine")
    yield machine
    process = await asyncio.create_subprocess_shell(machine.command("stop"))
    await process.wait()


async def test_a_burst_tier_is_started_on_demand_and_stopped_when_idle(
    tmp_path: Path, machine: Machine
) -> None:
    """SPOOL-09: nothing runs there before the first request, and nothing after its idle time."""
    async with opened(tmp_path / "root", machine.tier()) as (client, driver):
        assert machine.calls == []
        answer = await ask(client, "big")
        assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, "burst")
        assert float(answer.headers["x-watchbill-cost"]) > 0
        assert machine.calls == ["start"]
        assert driver.status()["tiers"]["box"]["models"] == {"big": "ready"}  # type: ignore[index]
        await eventually(lambda: machine.calls == ["start", "stop"])
        assert (await ask(client, "big")).status == 200
        assert machine.calls == ["start", "stop", "start"]
    assert machine.calls == ["start", "stop", "start", "stop"]
    assert not list((tmp_path / "root" / "run").glob("burst-*"))


async def test_a_burst_machine_that_could_not_be_stopped_is_stopped_later(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-09: one stop that failed left it running for good, and its model in quarantine."""
    monkeypatch.setattr(limits, "BURST_STOP_AGAIN_MS", 1_000)
    monkeypatch.setattr(limits, "BURST_LOOK_MS", 100)
    async with opened(tmp_path / "root", machine.tier()) as (client, _):
        assert (await ask(client, "big")).status == 200
        with machine.out_of_order():
            await eventually(lambda: machine.calls[-2:] == ["out-of-order", "out-of-order"])
            assert (await ask(client, "big")).status == 200, "it is there, and serves"
        await eventually(lambda: machine.calls[-1] == "stop")
        await eventually(lambda: not list((tmp_path / "root" / "run").glob("burst-*")))


async def test_a_burst_machine_whose_start_outlives_its_daemon_is_stopped(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-09: the next daemon stopped it before it was there, forgot it, and it came up for good."""
    monkeypatch.setattr(limits, "BURST_STOP_AGAIN_MS", 500)
    monkeypatch.setattr(limits, "BURST_LOOK_MS", 100)
    async with opened(tmp_path / "root", machine.tier()) as (client, _):
        asking = asyncio.create_task(ask(client, "big"))
        found = await eventually(lambda: list((tmp_path / "root" / "run").glob("burst-*")))
        record, left = found[0], found[0].read_bytes()
        assert (await within(30, asking)).status == 200
    record.write_bytes(left)  # as if the daemon had been killed then
    async with opened(tmp_path / "root", machine.tier()):
        await eventually(lambda: machine.calls[-2:] == ["stop", "stop"])

        async def comes_and_is_stopped() -> bool:
            process = await asyncio.create_subprocess_shell(machine.command("start"))
            assert await process.wait() == 0
            await eventually(lambda: machine.calls[-1] == "stop")
            await asyncio.sleep(0.2)
            return not record.exists()

        # What was still under way ends. A stop that comes before it listens is not the last one.
        await eventually(comes_and_is_stopped, 60)


async def test_the_output_of_a_start_that_failed_is_kept(tmp_path: Path, machine: Machine) -> None:
    """SPOOL-09: the stop that follows overwrote it, and the message named a file with other words."""
    text = machine.tier().replace(machine.command("start"), "sh -c 'echo no quota; exit 3'")
    async with opened(tmp_path / "root", text) as (client, _):
        answer = await within(60, ask(client, "big"))
        assert answer.status == 503
        path = re.search(r"its output is in (\S+?)\"", answer.body.decode())
        assert path is not None and "no quota" in Path(path[1]).read_text()


async def test_a_burst_machine_is_told_that_work_is_private(tmp_path: Path) -> None:
    """SPOOL-10: the machine is a Watchbill with an external tier of its own, and sent private work there."""
    async with peer_listening(HELLO) as peer:
        text = f"""
{SMALL_MODEL}[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{peer.port}"
models = ["big"]
start = "true"
stop = "true"
[lanes.default]
[lanes.quiet]
private = true
"""
        async with opened(tmp_path, text) as (client, _):
            for headers, mark in (
                ({}, None),
                ({"X_Watchbill_Private": "yes"}, "1"),
                ({"X_Watchbill_Lane": "quiet"}, "1"),
            ):
                assert (await ask(client, "big", **headers)).status == 200
                assert peer.asked[-1].headers.get("x-watchbill-private") == mark


async def test_a_burst_machine_that_shuts_down_is_waited_for(tmp_path: Path) -> None:
    """SPOOL-09: one that was told to end, as before a preemption, refused what came meanwhile, with a Retry-After. That
    closed its tier, and every request was refused; the machine was not started anew."""
    left = 2

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        if asked.path == "/v1/chat/completions" and left:
            left -= 1
            told = as_response(ShuttingDown())
            lines = "".join(f"{name}: {value}\r\n" for name, value in told.headers.items())
            head = f"HTTP/1.1 503 X\r\n{lines}Content-Length: {len(told.body)}\r\n\r\n"
            writer.write(head.encode() + bytes(told.body))
            return
        await HELLO(asked, writer)

    async with peer_listening(talk) as peer:
        text = f"""
{SMALL_MODEL}[tiers.box]
kind = "burst"
url = "http://127.0.0.1:{peer.port}"
models = ["big"]
start = "true"
stop = "true"
"""
        async with opened(tmp_path, text) as (client, _):
            for stream in (False, True):
                left = 2
                body = BODY | {"model": "big", "stream": stream}
                answer = await within(20, client.ask("/v1/chat/completions", body))
                assert (answer.status, left) == (200, 0), answer.body


async def test_a_burst_tier_is_not_stopped_while_it_answers(tmp_path: Path) -> None:
    """SPOOL-09: an answer of three seconds outlives the idle time of one."""
    machine = Machine(tmp_path / "machine", {"service": "3s"})
    async with opened(tmp_path / "root", machine.tier()) as (client, _):
        assert (await ask(client, "big")).status == 200
        assert machine.calls == ["start"]


async def test_a_request_whose_burst_machine_vanishes_before_its_first_byte_is_served_again(
    tmp_path: Path,
) -> None:
    """SPOOL-09: preemption loses nothing: what is left is stopped, and the machine starts anew."""
    machine = Machine(tmp_path / "machine", {"service": "2s", "tokens": 1})
    async with opened(tmp_path / "root", machine.tier()) as (client, driver):
        asking = asyncio.create_task(ask(client, "big"))
        await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
        machine.preempt()
        answer = await within(30, asking)
        assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, "burst")
        assert machine.calls == ["start", "stop", "start"]


async def test_an_answer_that_a_vanished_burst_machine_had_begun_is_continued(tmp_path: Path) -> None:
    """SPOOL-09: the machine starts anew and goes on from the words that the caller has."""
    words = [f"word{number}" for number in range(40)]
    machine = Machine(tmp_path / "machine", {"service": "4s", "tokens": 40, "text": " ".join(words)})
    async with opened(tmp_path / "root", machine.tier()) as (client, _):
        reader, writer = await client.connect()
        body = json.dumps({**BODY, "model": "big", "stream": True, "max_tokens": 40}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{client.serving.port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        heard = await within(30, reader.readuntil(b"word3"))
        machine.preempt()
        heard += await within(30, reader.read())
        writer.close()
        assert b'"error"' not in heard, heard
        assert re.findall(r"word\d+", heard.decode()) == words
        assert machine.calls[:3] == ["start", "stop", "start"]


async def test_a_whole_answer_that_a_vanished_machine_had_begun_begins_anew_at_an_external_tier(
    tmp_path: Path,
) -> None:
    """SPOOL-09: its caller has seen nothing, and no word of the first machine is in the answer of the second."""
    machine = Machine(tmp_path / "machine", {"service": "4s", "tokens": 40, "text": "lost"})
    async with peer_listening(HELLO) as peer:
        text = machine.tier() + "[tiers.cloud]" + cloud(peer, models='["big"]').split("[tiers.cloud]")[1]
        async with opened(tmp_path / "root", text) as (client, driver):
            asking = asyncio.create_task(ask(client, "big"))
            await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
            await asyncio.sleep(1)  # until there are words
            machine.break_down()
            answer = await within(60, asking)
            assert answer.status == 200, answer.body
            assert answer.headers["x-watchbill-tier"] == "external"
            assert answer.json["choices"][0]["message"]["content"] == "from far away"  # type: ignore[index]


async def test_a_request_is_served_elsewhere_when_the_burst_tier_does_not_start(tmp_path: Path) -> None:
    """Three failed starts put the tier into quarantine, and the next in the order serves."""
    machine = Machine(tmp_path / "machine")
    async with peer_listening(HELLO) as peer:
        text = machine.tier().replace(f'start = "{machine.command("start")}"', 'start = "false"')
        text += cloud(peer, models='["big"]').split("[tiers.cloud]")[0].split("[models.small]")[0] * 0
        text += "[tiers.cloud]" + cloud(peer, models='["big"]').split("[tiers.cloud]")[1]
        async with opened(tmp_path / "root", text) as (client, driver):
            answer = await within(30, ask(client, "big"))
            assert (answer.status, answer.headers["x-watchbill-tier"]) == (200, "external")
            told = driver.status()["tiers"]["box"]  # type: ignore[index]
            assert "false ended with 1" in told["reason"]


@pytest.mark.parametrize("now", ["same config", "tier taken out", "another machine"])
async def test_the_next_daemon_stops_the_machine_of_one_that_was_killed(
    tmp_path: Path, machine: Machine, now: str
) -> None:
    """SPOOL-09: a machine that nobody knows of would cost money without end, also one whose tier was taken out of the
    config meanwhile, or has another machine there: its record lay there unread, or was taken for that of the other."""
    text, root = machine.tier().replace('idle = "1s"', 'idle = "10m"'), tmp_path / "root"
    async with opened(root, text) as (client, _):
        assert (await ask(client, "big")).status == 200
        (record,) = (root / "run").glob("burst-*")
        kept = record.read_bytes()
    machine.said.unlink()
    record.write_bytes(kept)  # as kill -9 leaves it
    other = text.replace(f'"http://127.0.0.1:{machine.port}"', '"http://127.0.0.1:9"')
    other = other.replace(machine.command("stop"), "true")
    configs = {"same config": text, "tier taken out": SMALL_MODEL, "another machine": other}
    async with driving(root, catalog(configs[now])):
        await eventually(lambda: machine.calls == ["stop"])
        await eventually(lambda: not record.exists())


async def test_a_reload_does_not_stop_a_machine_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-09: the changed tier took the machine for one that a killed daemon had left, and stopped it."""
    monkeypatch.setattr(limits, "BURST_LOOK_MS", 50)
    machine = Machine(tmp_path / "machine", {"service": "3s", "tokens": 30})
    text = machine.tier('key = "old-key-0123456789"').replace('models = ["big"]', 'models = ["big", "huge"]')
    async with opened(tmp_path / "root", text) as (client, driver):
        asking = asyncio.create_task(ask(client, "big"))
        await eventually(lambda: any(r["state"] == "running" for r in driver.requests()))
        await driver.reload(catalog(text.replace("old-key", "new-key")))
        assert (await ask(client, "huge")).status == 200, "the new engine uses the machine that is there"
        answer = await within(30, asking)
        assert answer.status == 200, answer.body
        await eventually(lambda: machine.calls == ["start", "stop"])


async def test_a_machine_that_runs_for_seconds_is_charged(tmp_path: Path, machine: Machine) -> None:
    """SPOOL-09: the time was looked at every ten seconds, and a machine that came and went between cost nothing."""
    async with opened(tmp_path / "root", machine.tier().replace('idle = "1s"', 'idle = "3s"')) as (
        client,
        driver,
    ):
        assert (await ask(client, "big")).status == 200
        await eventually(lambda: machine.calls == ["start", "stop"])
        assert 0.001 < float(str(told_of(driver, "box")["spent_today"])) < 0.01, "3.6 an hour"


async def test_what_is_written_down_of_a_machine_outlives_a_power_cut(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-09: the cut ends the daemon and not the machine, which is elsewhere."""
    synced, sync = set[int](), os.fsync

    def noted(fd: int) -> None:
        sync(fd)
        synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    text = machine.tier().replace('idle = "1s"', 'idle = "10m"')
    async with opened(tmp_path / "root", text) as (client, _):
        assert (await ask(client, "big")).status == 200
        (record,) = (tmp_path / "root" / "run").glob("burst-*")
        assert {record.stat().st_ino, record.parent.stat().st_ino} <= synced


async def test_a_start_that_takes_too_long_leaves_nothing_running(tmp_path: Path, machine: Machine) -> None:
    """SPOOL-09: the script was killed, and the program that it waited for ran on."""
    pid_file = tmp_path / "pid"
    script = tmp_path / "start.sh"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {pid_file}\nwait\n")
    text = machine.tier('start_timeout = "1s"').replace(machine.command("start"), f"sh {script}")
    async with opened(tmp_path / "root", text) as (client, _):
        assert (await within(30, ask(client, "big"))).status == 503
        child = Path("/proc") / pid_file.read_text().strip()
        await eventually(lambda: not child.exists())


async def test_a_burst_tier_whose_limit_is_reached_is_stopped_with_its_last_answer(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-09: it ran on for its idle time, which costs money, and served nobody."""
    monkeypatch.setattr("watchbill.runtime.tiers.TIER_CHARGE_MS", 50)
    text = machine.tier("daily = 0.003").replace('idle = "1s"', 'idle = "10m"')
    async with opened(tmp_path / "root", text) as (client, driver):
        assert (await ask(client, "big")).status == 200
        await eventually(lambda: machine.calls == ["start", "stop"])
        assert told_of(driver, "box")["closed"]
        lines = (tmp_path / "root" / "events.jsonl").read_text()
        assert "the daily limit of its tier is reached" in lines


async def test_the_time_that_a_burst_tier_runs_is_charged(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tier whose limit is reached takes no more requests, and is stopped when nothing runs there."""
    monkeypatch.setattr("watchbill.runtime.tiers.TIER_CHARGE_MS", 50)
    # Three seconds of it: a start takes one on a busy machine.
    text = machine.tier("daily = 0.003").replace('idle = "1s"', 'idle = "10m"')
    async with opened(tmp_path / "root", text) as (client, driver):
        assert (await ask(client, "big")).status == 200
        await eventually(lambda: driver.status()["tiers"]["box"]["closed"])  # type: ignore[index]
        answer = await ask(client, "big")
        assert (answer.status, answer.code) == (503, "tier_closed")
        await eventually(lambda: machine.calls == ["start", "stop"])


async def test_a_start_that_never_answers_costs_nothing(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPOOL-09: it is counted while it lasts, so that the limit holds, and given back."""
    monkeypatch.setattr("watchbill.runtime.tiers.TIER_CHARGE_MS", 50)
    text = machine.tier('daily = 1.0\nstart_timeout = "1s"').replace(machine.command("start"), "sleep 0.1")
    async with opened(tmp_path / "root", text) as (client, driver):
        asking = asyncio.create_task(ask(client, "big"))
        await eventually(lambda: told_of(driver, "box")["spent_today"] != 0)
        answer = await within(30, asking)
        assert answer.status == 503, answer.body
        await eventually(lambda: told_of(driver, "box")["spent_today"] == 0)
    async with driving(tmp_path / "root", catalog(text)) as driver:
        assert told_of(driver, "box")["spent_today"] == 0, "the next daemon reads the same"


async def test_the_time_of_a_start_that_succeeds_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchbill.runtime.tiers.TIER_CHARGE_MS", 50)
    machine = Machine(tmp_path / "machine", {"load": "1s"})
    async with opened(tmp_path / "root", machine.tier()) as (client, driver):
        assert (await ask(client, "big")).status == 200
        assert 0.0007 < float(str(told_of(driver, "box")["spent_today"])) < 0.01, "3.6 an hour, for a second"
        counted = 'watchbill_tier_cost_total{site="box",tier="burst"}'
        await eventually(lambda: counted in driver.metrics.render().decode())


async def test_loads_here_do_not_wait_for_the_start_of_a_burst_tier(tmp_path: Path) -> None:
    """RES-24: one load at a time on the bus of this machine; a start elsewhere is not on it."""
    machine = Machine(tmp_path / "machine", {"load": "20s"})
    async with opened(tmp_path / "root", machine.tier()) as (client, driver):
        far = asyncio.create_task(ask(client, "big"))
        await eventually(lambda: driver.status()["models"]["big"]["state"] == "loading")  # type: ignore[index]
        ticket = driver.submit(Submission("small"))
        await within(10, ticket.granted())
        ticket.finish(ok=None)
        assert driver.status()["models"]["big"]["state"] == "loading"  # type: ignore[index]
        far.cancel()
