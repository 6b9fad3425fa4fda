"""What a key may ask for: ceilings of class and priority, and bounds on how much of the gateway it takes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from support import open_gateway as full
from support.eventually import eventually
from watchbill.catalog import ApiKey, Catalog, Lane, Model, Server, WorkClass
from watchbill.errors import LaneFull
from watchbill.gateway.limits import EVENT_STREAMS_ADMIN_RESERVE, EVENT_STREAMS_KEY_MAX
from watchbill.gateway.meters import Meters
from watchbill.gateway.options import CallerOptions
from watchbill.runtime.ticket import Submission

CATALOG = Catalog(
    {},
    {},
    {"qwen": Model("qwen", "scripted"), "a:b": Model("a:b", "scripted")},
    {
        "default": Lane("default"),
        "chat": Lane("chat", WorkClass.INTERACTIVE),
        "bg": Lane("bg", WorkClass.BACKGROUND),
        "b": Lane("b", WorkClass.BACKGROUND),
    },
)


def read(headers: dict[str, str], key: ApiKey | None = None, model: str = "qwen", path: str | None = None):
    return CallerOptions().read(headers, {"model": model}, CATALOG, key, path)


@pytest.mark.parametrize(
    ("headers", "model", "path", "lane"),
    [
        ({"x-watchbill-lane": "chat"}, "qwen", None, "chat"),
        ({}, "qwen", "bg", "bg"),
        ({}, "qwen:bg", None, "bg"),
        ({"x-watchbill-lane": "chat"}, "qwen:bg", "bg", "chat"),
        ({}, "a:b", None, None),  # a model's own name goes before an alias with a lane
        ({"x-watchbill-lane": "nope"}, "qwen", None, None),
    ],
)
def test_a_lane_is_chosen_by_header_path_or_alias(
    headers: dict[str, str], model: str, path: str | None, lane: str | None
) -> None:
    """LANE-02: callers who cannot send headers have a path and an alias; an unknown lane degrades."""
    submission = read(headers, model=model, path=path)
    assert (submission.model, submission.lane) == (model.removesuffix(":bg"), lane)


def test_a_key_cannot_claim_a_higher_class_or_priority_than_it_has() -> None:
    """LANE-06: the ceiling of a key holds whatever header, path or alias says."""
    key = ApiKey("worker", "k", lane="bg", max_priority=4)
    assert read({"x-watchbill-lane": "chat"}, key).lane == "bg"
    assert read({}, key).lane == "bg"
    submission = read({"x-watchbill-priority": "1"}, key)
    assert (submission.priority, submission.best_priority) == (1, 4)


def test_a_key_has_bounds_of_its_own() -> None:
    """LANE-08: open requests and tokens per minute; over a bound 429, others unharmed."""
    now = [0.0]
    meters = Meters(lambda: now[0])
    key = ApiKey("bot", "k", requests_max=2, tokens_per_minute=3)
    first = meters.enter(key)
    second = meters.enter(key)
    meters.enter(ApiKey("other", "k", requests_max=1))
    with pytest.raises(LaneFull, match="requests_max"):
        meters.enter(key)
    first.leave()
    second.spend(3)
    with pytest.raises(LaneFull, match="tokens_per_minute") as refused:
        meters.enter(key)
    assert refused.value.retry_after_ms == 60_000
    second.spend(-1)
    meters.enter(key).leave()
    second.spend(1)
    now[0] = 60.1
    meters.enter(key)


async def test_a_key_may_have_so_many_requests_waiting() -> None:
    """LANE-08: one more gets 429, however its predecessors came to wait."""
    server = Server(keys=(ApiKey("bot", "k", waiting_max=1),))
    said, headers = {"model": "a", "messages": []}, {"Authorization": "Bearer k"}
    async with full.open_gateway(server=server) as opened:
        opened.engine.gate.clear()
        first = asyncio.create_task(opened.ask("/v1/chat/completions", said, headers=headers))
        await opened.until_waiting()
        refused = await opened.ask("/v1/chat/completions", said, headers=headers)
        assert refused.status == 429 and "waiting_max" in refused.body.decode()
        opened.engine.gate.set()
        assert (await first).status == 200


async def test_a_callers_priority_counts_in_a_lane_of_priorities_alone() -> None:
    """LANE-02: in a `fifo` lane nobody goes before who came earlier, whatever they ask for."""
    lanes = {"queue": Lane("queue", queue_max=16), "ranked": Lane("ranked", policy="priority", queue_max=16)}
    serial = {"a": replace(full.CATALOG.models["a"], concurrency=1)}
    for lane, order in (("queue", [5, 3, 1]), ("ranked", [1, 3, 5])):
        async with full.open_gateway(catalog=replace(full.CATALOG, models=serial, lanes=lanes)) as opened:
            opened.engine.gate.clear()
            caller_options = {
                p: opened.driver.submit(Submission("a", lane=lane, priority=p)) for p in (5, 3, 1)
            }
            opened.engine.gate.set()
            served: list[int] = []
            for _ in caller_options:
                await eventually(
                    lambda w=caller_options, s=served: any(t.start and p not in s for p, t in w.items())
                )
                served.append(next(p for p, t in caller_options.items() if t.start and p not in served))
                caller_options[served[-1]].finish(ok=True)
            assert served == order, lane


#: `b` has one place, which the first request takes; the others wait in a lane of eight.
CROWDED = replace(
    full.CATALOG,
    models={"a": full.CATALOG.models["a"], "b": replace(full.CATALOG.models["a"], name="b", aliases=(), concurrency=1)},
    lanes={"default": Lane("default", queue_max=8)},
)  # fmt: skip
SEVERAL = Server(keys=(ApiKey("one", "1"), ApiKey("two", "2"), ApiKey("boss", "0", admin=True)))


class Crowd:
    """Asks for `b` until a request is refused; nothing that waits is answered before the end."""

    def __init__(self, opened: full.OpenGateway, server: Server) -> None:
        self.opened, self.server = opened, server
        self.waiting: list[asyncio.Task[full.RawAnswer]] = []

    def ask(self, key: str | None, model: str) -> "asyncio.Task[full.RawAnswer]":
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        said = {"model": model, "messages": [{"role": "user", "content": "x"}]}
        return asyncio.create_task(self.opened.ask("/v1/chat/completions", said, headers=headers))

    async def fill(self, key: str | None) -> full.RawAnswer:
        """The first refusal."""
        while True:
            asked = self.ask(key, "b")
            known = self.opened.count("waiting")
            await eventually(lambda k=known, a=asked: a.done() or self.opened.count("waiting") > k)
            if asked.done():
                return await asked
            self.waiting.append(asked)

    async def end(self) -> None:
        for each in self.waiting:
            each.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)


@asynccontextmanager
async def crowded(server: Server) -> AsyncGenerator[Crowd]:
    """`a` is warm and free, `b` waits for its load."""
    async with full.open_gateway(server=server, catalog=replace(CROWDED, server=server)) as opened:
        crowd = Crowd(opened, server)
        first_key = server.keys[0].key if server.keys else None
        assert (await crowd.ask(first_key, "a")).status == 200
        opened.engine.gate.clear()
        try:
            yield crowd
        finally:
            await crowd.end()


async def test_one_key_of_several_never_fills_a_lane() -> None:
    """LANE-08: it has half of the queue; another key has its own, and no key more than the queue holds."""
    async with crowded(SEVERAL) as crowd:
        refused = await crowd.fill("1")
        assert refused.status == 429 and refused.code == "lane_full"
        assert "share" in refused.body.decode()
        assert len(crowd.waiting) == 4
        refused = await crowd.fill("2")
        assert refused.status == 429 and len(crowd.waiting) == 8


async def test_a_request_that_need_not_wait_is_served_while_its_lane_is_full() -> None:
    """LANE-08: whoever filled it; its model is warm and has a free place."""
    async with crowded(SEVERAL) as crowd:
        await crowd.fill("1")
        await crowd.fill("2")
        for key in ("1", "2", "0"):
            assert (await crowd.ask(key, "a")).status == 200


async def test_an_operators_request_is_let_into_a_full_lane() -> None:
    """LANE-06: also one that has to wait."""
    async with crowded(SEVERAL) as crowd:
        await crowd.fill("1")
        await crowd.fill("2")
        asked = crowd.ask("0", "b")
        crowd.waiting.append(asked)
        await crowd.opened.until_waiting(9)
        assert not asked.done()


@pytest.mark.parametrize(
    "keys", [(), (ApiKey("one", "1"),), (ApiKey("one", "1", waiting_max=8), ApiKey("two", "2"))],
    ids=["no keys", "one key", "a bound of its own"],
)  # fmt: skip
async def test_a_lane_belongs_to_the_only_key_or_to_one_with_a_bound_of_its_own(
    keys: tuple[ApiKey, ...],
) -> None:
    """LANE-08"""
    async with crowded(Server(keys=keys)) as crowd:
        refused = await crowd.fill(keys[0].key if keys else None)
        assert refused.status == 429 and len(crowd.waiting) == 8


async def test_one_key_cannot_take_every_place_of_those_who_follow_the_journal() -> None:
    """LANE-08: each key has some, and an admin key finds one whoever came before."""
    keys = (*(ApiKey(f"user{n}", f"{n}") for n in range(1, 6)), ApiKey("boss", "0", admin=True))

    async def follow(opened: full.OpenGateway, key: str) -> int:
        reader, writer = await opened.connect()
        writer.write(
            b"GET /wb/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
            % key.encode()
        )
        return int((await reader.readuntil(b"\r\n")).split()[1])

    async with full.open_gateway(server=Server(keys=keys)) as opened:
        assert [await follow(opened, "1") for _ in range(9)] == [200] * EVENT_STREAMS_KEY_MAX + [429]
        for key in ("2", "3", "4"):
            assert {await follow(opened, key) for _ in range(EVENT_STREAMS_KEY_MAX)} == {200}
        assert await follow(opened, "5") == 429
        assert [await follow(opened, "0") for _ in range(9)] == [200] * EVENT_STREAMS_ADMIN_RESERVE + [429]
