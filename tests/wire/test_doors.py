"""Doors: further addresses of the gateway, and the lane of plans behind them."""

import asyncio
import http.client
import json
import socket

from support.open_gateway import open_gateway

MESSAGES: list[object] = [{"role": "user", "content": "hello"}]


async def asked(port: int, lane: str | None = None, **body: object) -> tuple[int, str | None, str | None]:
    """Asks for an answer at a port: status, lane and model."""

    def ask() -> tuple[int, str | None, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Content-Type": "application/json"} | ({"X-Watchbill-Lane": lane} if lane else {})
        connection.request(
            "POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, **body}), headers
        )
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, answer.headers["X-Watchbill-Lane"], answer.headers["X-Watchbill-Model"]

    return await asyncio.to_thread(ask)


async def test_requests_of_a_door_are_in_its_lane_and_for_its_model_unless_they_say_otherwise() -> None:
    """FLEET-10: a script asks the agent's model with nothing but an address; the main address assumes nothing."""
    async with open_gateway() as gateway:
        opened = await gateway.ask("/wb/v1/doors", {"name": "gpu-1", "model": "a"})
        assert opened.status == 200
        port = opened.json["port"]
        assert isinstance(port, int)
        assert await asked(port) == (200, "plans", "a")
        assert await asked(port, "batch") == (200, "batch", "a")
        assert await asked(port, model="b/with:slash") == (200, "plans", "b/with:slash")
        main = gateway.serving.port
        assert await asked(main, model="a") == (200, "default", "a")
        assert await asked(main, "plans", model="a") == (200, "plans", "a")
        assert await asked(main, "rotation", model="a") == (200, "default", "a")
        assert (await asked(main))[0] == 400


async def test_a_door_that_is_asked_for_again_keeps_its_address_and_changes_what_it_assumes() -> None:
    """FLEET-10: an agent that starts anew leaves no further port behind."""
    async with open_gateway() as gateway:
        first = (await gateway.ask("/wb/v1/doors", {"name": "gpu-1", "model": "a"})).json
        again = {"name": "gpu-1", "model": "b/with:slash", "lane": "batch"}
        assert (await gateway.ask("/wb/v1/doors", again)).json["port"] == first["port"]
        assert isinstance(first["port"], int)
        assert await asked(first["port"]) == (200, "batch", "b/with:slash")


async def test_a_door_that_cannot_be_opened_says_why() -> None:
    """LANE-09: a taken port, an unknown lane and an unknown model."""
    async with open_gateway() as gateway:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            refused = await gateway.ask("/wb/v1/doors", {"name": "x", "port": port})
            assert (refused.status, f"cannot listen on port {port}" in refused.body.decode()) == (400, True)
        wrong = (({}, 400), ({"name": "x", "lane": "nowhere"}, 400), ({"name": "x", "model": "?"}, 404))
        for body, status in wrong:
            assert (await gateway.ask("/wb/v1/doors", body)).status == status
