"""What a key may ask for: ceilings of class and priority, and bounds on how much of the gateway it takes."""

import asyncio
from dataclasses import replace

import pytest

from support import open_gateway as full
from support.eventually import eventually
from watchbill.catalog import ApiKey, Catalog, Lane, Model, Server, WorkClass
from watchbill.errors import LaneFull
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
                    lambda w=caller_options, s=served: any(t.turn and p not in s for p, t in w.items())
                )
                served.append(next(p for p, t in caller_options.items() if t.turn and p not in served))
                caller_options[served[-1]].finish(ok=True)
            assert served == order, lane
