"""Load and evict at the operator's door: what is answered is what happened."""

import asyncio
from dataclasses import replace

from support.open_gateway import CATALOG, open_gateway
from watchbill.catalog import Catalog, Model
from watchbill.engines.base import LoadError, Warm
from watchbill.units import Bytes

CHAT = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_load_that_waits_is_refused_when_its_model_is_evicted() -> None:
    """RES-02: nothing is loaded again after the reply that the model was unloaded."""
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        load = asyncio.create_task(opened.ask("/wb/v1/models/a/load", {}))
        await opened.until_waiting()
        evicted = await opened.ask("/wb/v1/models/a/evict", {})
        assert (evicted.status, evicted.json["message"]) == (200, "a was unloaded")
        refused = await load
        assert (refused.status, refused.code) == (503, "preempted")
        assert b"unloaded by hand" in refused.body
        opened.engine.gate.set()
        assert (await opened.ask("/wb/v1/status")).json["models"]["a"]["state"] == "absent"
        assert (await opened.ask("/wb/v1/models/a/load", {})).status == 200


async def test_a_caller_who_waits_is_answered_and_evict_says_that_the_model_comes_back() -> None:
    """RES-12: an eviction takes nobody's answer away."""
    async with open_gateway() as opened:
        opened.engine.gate.clear()
        caller = asyncio.create_task(opened.ask("/v1/chat/completions", CHAT))
        await opened.until_waiting()
        evicted = await opened.ask("/wb/v1/models/a/evict", {})
        assert "1 request waits for it and brings it back" in evicted.json["message"]
        opened.engine.gate.set()
        assert (await caller).status == 200


async def test_a_load_brings_the_very_model_that_was_named_or_says_why_not() -> None:
    """RES-13: a smaller model answers requests; it is not what `load` was asked for."""
    models = {
        "big": Model("big", "peer", family="f", family_rank=1, memory={"ram": Bytes(2**40)}),
        "small": Model("small", "peer", family="f", family_rank=2, memory={"ram": Bytes(2**20)}),
    }
    catalog: Catalog = replace(CATALOG, models=models)
    async with open_gateway(catalog=catalog) as opened:
        answer = await opened.ask("/wb/v1/models/big/load", {})
        assert (answer.status, answer.code) == (503, "never_fits")


async def test_a_failed_load_names_the_model_once() -> None:
    """RES-20: an engine's error does not name the model; what people read does, once."""

    async def fails(_model: Model, _attempt: int, _expected_ms: int | None = None) -> Warm:
        raise LoadError("exited with status 9", hopeless=True)

    async with open_gateway() as opened:
        opened.engine.load = fails  # type: ignore[method-assign]
        for _ in range(2):  # who waited for it, and who comes later
            answer = await opened.ask("/wb/v1/models/a/load", {})
            assert answer.json["error"]["message"] == "a: exited with status 9"
        assert (await opened.ask("/wb/v1/status")).json["models"]["a"]["reason"] == "exited with status 9"
