"""Who waits: names, places and ends of requests, seen by those who sent them; and wishes that would harm others."""

import asyncio
import json
from dataclasses import replace

import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, RawAnswer, open_gateway
from support.peer import Asked
from watchbill.catalog import ApiKey, Lane, Server
from watchbill.units import Millis

CHAT = {"model": "a", "messages": [{"role": "user", "content": "A zombie\ncomes."}]}
KEYS = (ApiKey("alice", "alice"), ApiKey("bob", "bob"), ApiKey("root", "root", admin=True))


def of(key: str, **more: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {key}",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def waiting(opened: OpenGateway, headers: dict[str, str]) -> "asyncio.Task[RawAnswer]":
    return asyncio.create_task(opened.ask("/v1/chat/completions", CHAT, headers=headers))


async def test_a_caller_learns_the_place_of_its_request_by_the_name_it_gave() -> None:
    """LANE-08: position and reason while it waits; the name comes back with the answer."""
    async with open_gateway(server=Server(keys=KEYS)) as opened:
        opened.engine.gate.clear()
        first = waiting(opened, of("alice", X_Request_Id="job:7"))
        await opened.until_waiting()
        told = (await opened.ask("/wb/v1/requests/job:7", headers=of("alice"))).json
        assert told["state"] == "waiting" and told["position"] == 0 and told["reason"]
        assert (await opened.ask("/wb/v1/requests/job:7", headers=of("bob"))).status == 404
        opened.engine.gate.set()
        answer = await first
        assert answer.headers["x-request-id"] == "job:7"
        assert answer.headers["x-watchbill-request-id"] == told["id"]
        assert (await opened.ask("/wb/v1/requests/job:7", headers=of("alice"))).status == 404


@pytest.mark.parametrize("name", ["a b", "x" * 129, "é", "../x", ""])
async def test_a_name_that_is_none_is_not_taken(name: str) -> None:
    """LANE-08: the request is served under the name that Watchbill gives."""
    async with open_gateway() as opened:
        answer = await opened.ask("/v1/chat/completions", CHAT, headers={"X-Request-Id": name})
        assert answer.status == 200
        assert answer.headers["x-request-id"] == answer.headers["x-watchbill-request-id"]


async def test_two_open_requests_of_a_key_never_have_one_name() -> None:
    """LANE-08: the second goes under a name of its own; another key's has nothing to do with it."""
    async with open_gateway(server=Server(keys=KEYS)) as opened:
        opened.engine.gate.clear()
        asked = [waiting(opened, of(key, X_Request_Id="one")) for key in ("alice", "alice", "bob")]
        await opened.until_waiting(3)
        opened.engine.gate.set()
        names = [(await answer).headers["x-request-id"] for answer in asked]
        assert sorted(name == "one" for name in names) == [False, True, True] and names[2] == "one"


async def test_a_caller_cancels_its_own_request_and_nobody_elses() -> None:
    """LANE-08, LANE-07: by its name or the scheduler's; an operator cancels any."""
    async with open_gateway(server=Server(keys=KEYS)) as opened:
        opened.engine.gate.clear()
        first = waiting(opened, of("alice", X_Request_Id="mine"))
        await opened.until_waiting()
        [id] = [str(request["id"]) for request in opened.driver.requests()]
        for name in ("mine", id):
            refused = await opened.ask(f"/wb/v1/requests/{name}", method="DELETE", headers=of("bob"))
            assert refused.status == 404
        assert (await opened.ask("/wb/v1/requests/mine", method="DELETE", headers=of("alice"))).status == 200
        assert (await first).status == 503 and opened.driver.requests() == []
        second = waiting(opened, of("alice"))
        await opened.until_waiting()
        [id] = [str(request["id"]) for request in opened.driver.requests()]
        assert (await opened.ask(f"/wb/v1/requests/{id}", method="DELETE", headers=of("root"))).status == 200
        assert (await second).status == 503


async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
async def test_a_request_that_was_cancelled_by_hand_is_not_sent_again(path: str, is_running: bool) -> None:
    """LANE-08: SDKs retry every 503 unless they are told not to, and would undo the cancel."""
    said = {"model": "a", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": False}
    async with open_gateway(hang) as opened:
        if not is_running:
            opened.engine.gate.clear()
        asked = asyncio.ensure_future(opened.ask(path, said))
        await eventually(lambda: opened.peer.working > 0 if is_running else opened.count("waiting") == 1)
        [id] = [str(request["id"]) for request in opened.driver.requests()]
        assert (await opened.ask(f"/wb/v1/requests/{id}", method="DELETE")).status == 200
        answer = await asked
        assert (answer.status, answer.headers.get("x-should-retry")) == (503, "false")
        assert "retry-after" not in answer.headers and b"cancelled" in answer.body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/rerank"])
async def test_an_answer_that_takes_too_long_is_503_with_retry_after(path: str) -> None:
    """LANE-04: in a lane without a fallback, in every dialect's shape."""
    body = {**CHAT, "max_tokens": 1, "stream": False}
    async with open_gateway(hang) as opened:
        answer = await opened.ask(path, body, headers={"X-Watchbill-Lane": "brief"})
        assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
        assert isinstance(answer.json["error"], str if path.startswith("/api/") else dict)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/completions", {"model": "a", "prompt": "A zombie\ncomes."}),
        ("/v1/messages", {**CHAT, "max_tokens": 1}),
        ("/api/chat", CHAT),
        ("/api/generate", {"model": "a", "prompt": "A zombie\ncomes.", "stream": False}),
    ],
)
async def test_a_lanes_fallback_is_filled_at_every_door(path: str, asked: dict[str, object]) -> None:
    """LANE-03, LANE-04, LANE-05: `{summary}` is what was asked, in one line."""
    lanes = {**CATALOG.lanes, "brief": Lane("brief", timeout_ms=Millis(200), fallback="I notice {summary}")}
    async with open_gateway(hang, catalog=replace(CATALOG, lanes=lanes)) as opened:
        answer = await opened.ask(path, asked, headers={"X-Watchbill-Lane": "brief"})
        assert answer.status == 200 and answer.headers["x-watchbill-fallback"] == "timeout"
        assert "I notice A zombie comes." in answer.body.decode()


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions"])
async def test_a_lane_is_named_after_the_model_at_every_door(path: str) -> None:
    """LANE-02: `MODEL:LANE`, for callers who can send no header; the engine is asked for the model."""
    asked = {**CHAT, "model": "a:batch", "prompt": "x", "max_tokens": 1, "stream": False}
    async with open_gateway() as opened:
        answer = await opened.ask(path, asked)
        assert answer.status == 200, answer.body
        assert answer.headers["x-watchbill-lane"] == "batch"
        assert json.loads(opened.peer.asked[0].body)["model"] == "a"


async def test_a_model_that_others_use_stays_whoever_wishes_it_away() -> None:
    """RES-07: keep_alive of 0 is a wish: while another caller used the model a short while ago it stays."""
    async with open_gateway(server=Server(keys=KEYS)) as opened:
        await opened.ask("/v1/chat/completions", CHAT, headers=of("bob"))
        for path in ("/api/generate", "/v1/chat/completions"):
            answer = await opened.ask(path, {**CHAT, "keep_alive": 0, "stream": False}, headers=of("alice"))
            assert answer.status == 200
        await opened.until_idle()
        assert opened.driver.status()["models"]["a"]["state"] == "ready"  # pyright: ignore[reportIndexIssue, reportUnknownMemberType]  any JSON
        await opened.ask("/api/generate", {"model": "a", "keep_alive": 0}, headers=of("root"))
        await eventually(lambda: not opened.engine.attempts)


async def test_a_caller_cannot_unload_a_model_over_and_over() -> None:
    """RES-07: so many wishes are honoured in a minute; then the model keeps its own time."""
    async with open_gateway(server=Server(keys=KEYS)) as opened:
        for _ in range(12):
            await opened.ask("/v1/chat/completions", {**CHAT, "keep_alive": 0}, headers=of("alice"))
            await opened.until_idle()
        assert "a" in opened.engine.attempts
        assert opened.driver.status()["models"]["a"]["loads"] <= 7  # pyright: ignore[reportIndexIssue, reportUnknownMemberType]  any JSON
