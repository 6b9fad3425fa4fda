"""RES-10: a slot is free when the engine has let go of a cut request, and not before: one at a time is its truth."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.eventually import eventually
from support.open_gateway import raw
from support.running import running
from watchbill.catalog import Catalog, Device, EngineRules, Lane, Model, WorkClass
from watchbill.engines.base import Endpoint
from watchbill.engines.upstream import Outgoing, Upstream
from watchbill.gateway.server import Serving
from watchbill.runtime.driver import Driver
from watchbill.units import Bytes, Millis

DEAF = Path(__file__).parent / "programs" / "deaf_engine.py"
LANES = {
    "default": Lane("default"),
    "brief": Lane("brief", timeout_ms=Millis(300)),
    "batch": Lane("batch", WorkClass.BACKGROUND),
}
#: How much longer than the engine itself a cut request may keep its slot; generous for a busy machine.
MARGIN_S = 8.0


def catalog_of(model: Model, driver: str) -> Catalog:
    engines = {driver: EngineRules(driver, driver)}
    return Catalog({"ram": Device("ram")}, engines, {model.name: model}, LANES)


def scripted(**script: object) -> Catalog:
    """One model with one slot, whose engine works on for a client that left."""
    script = {"service": "3s", "tokens": 30, "linger": "500ms", **script}
    model = Model("a", "scripted", memory={"ram": Bytes(2**20)}, script=script, embedding=False)
    return catalog_of(model, "scripted")


async def ask(
    serving: Serving, path: str, *, lane: str, stream: bool, tokens: int = 30
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a request and does not wait for its answer."""
    body: dict[str, object] = {"model": "a", "stream": stream, "max_tokens": tokens}
    body |= {"input": "Hi"} if "embed" in path else {"messages": [{"role": "user", "content": "Hi"}]}
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port, limit=2**20)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nX-Watchbill-Lane: {lane}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    return reader, writer


async def state_of(endpoint: Endpoint) -> dict[str, int]:
    """What the scripted engine counts of itself."""
    upstream = Upstream()
    try:
        reply = await upstream.fetch(Outgoing(endpoint, "GET", "/wb-scripted/state"), timeout_ms=5_000)
        return json.loads(reply.body)
    finally:
        await upstream.close()


def endpoint_of(driver: Driver) -> Endpoint:
    return driver._engines.warm["a"].endpoint


async def until_active(driver: Driver) -> None:
    """Waits until the engine works on something."""

    async def is_active() -> bool:
        return "a" in driver._engines.warm and (await state_of(endpoint_of(driver)))["active"] == 1

    await eventually(is_active)


async def leaves(serving: Serving, driver: Driver, path: str, *, stream: bool) -> None:
    _, writer = await ask(serving, path, lane="default", stream=stream)
    await until_active(driver)
    writer.transport.abort()


async def times_out(serving: Serving, driver: Driver, path: str, *, stream: bool) -> None:
    reader, writer = await ask(serving, path, lane="brief", stream=stream)
    answer = await raw(reader)
    assert b"run_timeout" in answer.body
    writer.close()


async def is_cancelled(serving: Serving, driver: Driver, path: str, *, stream: bool) -> None:
    reader, writer = await ask(serving, path, lane="default", stream=stream)
    await until_active(driver)
    (request,) = driver.requests()
    assert driver.cancel(str(request["id"]))
    assert b"preempted" in (await raw(reader)).body
    writer.close()


Cut = Callable[..., Awaitable[None]]


@pytest.mark.parametrize("cut", [leaves, times_out, is_cancelled])
@pytest.mark.parametrize(
    ("path", "stream"),
    [("/v1/chat/completions", True), ("/v1/chat/completions", False), ("/v1/embeddings", False)],
    ids=["streamed", "collected", "fetched"],
)
async def test_the_next_request_starts_when_the_engine_has_let_go_of_the_cut_one(
    tmp_path: Path, cut: Cut, path: str, stream: bool
) -> None:
    """RES-10: an engine with one slot never has two requests in hand, whoever cut the first one, and however."""
    async with running(tmp_path, scripted()) as (serving, driver):
        for _ in range(2):
            await cut(serving, driver, path, stream=stream)
            reader, writer = await ask(serving, "/v1/chat/completions", lane="default", stream=True, tokens=1)
            async with asyncio.timeout(MARGIN_S):
                assert (await raw(reader)).status == 200
            writer.close()
        state = await state_of(endpoint_of(driver))
        assert (state["most"], state["cancelled"]) == (1, 2)


async def test_who_makes_way_for_a_person_does_so_at_the_engine_too(tmp_path: Path) -> None:
    """RES-10, RES-17: background work that has not begun gives its slot away once, and the engine has one in hand."""
    async with running(tmp_path, scripted(tokens=1, service="2s")) as (serving, driver):
        _, batch = await ask(serving, "/v1/chat/completions", lane="batch", stream=True)
        await until_active(driver)
        persons = [await ask(serving, "/v1/chat/completions", lane="default", stream=True) for _ in range(2)]
        for reader, writer in persons:
            assert (await raw(reader)).status == 200
            writer.close()
        assert (await state_of(endpoint_of(driver)))["most"] == 1
        batch.transport.abort()


@pytest.mark.parametrize(("kind", "seconds"), [("whole", 2.0), ("stream", 20.0)])
async def test_a_program_that_does_not_watch_its_clients_is_waited_for(
    tmp_path: Path, kind: str, seconds: float
) -> None:
    """RES-10: one that ends its answer for nobody is done then; one that goes on writing learns of it by a reset."""
    counts = tmp_path / "counts"
    command = f"{sys.executable} {DEAF} ${{PORT}} {counts} {kind} {seconds}"
    model = Model("a", "process", command=command, memory={"ram": Bytes(2**20)}, health="/health")
    async with running(tmp_path / "root", catalog_of(model, "process")) as (serving, driver):
        for lane in ("default", "brief", "default"):
            reader, writer = await ask(serving, "/v1/chat/completions", lane=lane, stream=True)
            if lane == "brief":
                assert b"run_timeout" in (await raw(reader)).body
            else:
                before = len(counts.read_text().split()) if counts.exists() else 0
                await eventually(lambda n=before: counts.exists() and len(counts.read_text().split()) > n)
            writer.transport.abort()
        await eventually(lambda: not driver.requests())
        await eventually(lambda: not driver._core.state.models["a"].lingering)
    assert counts.read_text().split() == ["1"] * 3


async def test_an_engine_that_never_lets_go_holds_its_slot_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-10: the bound is the limit of what an engine can keep from those that wait."""
    monkeypatch.setattr("watchbill.engines.connection.UPSTREAM_LET_GO_MS", 300)
    async with running(tmp_path, scripted(linger="20s", concurrency=2)) as (serving, driver):
        await leaves(serving, driver, "/v1/chat/completions", stream=False)
        reader, writer = await ask(serving, "/v1/chat/completions", lane="default", stream=True, tokens=1)
        async with asyncio.timeout(MARGIN_S):
            assert (await raw(reader)).status == 200
        writer.close()
        assert (await state_of(endpoint_of(driver)))["most"] == 2
