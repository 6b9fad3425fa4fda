"""RES-12: a model that is ready is noticed soon, and one that loads is not asked all the time."""

import asyncio
import json
import statistics
import time
from pathlib import Path

import pytest

from support.peer import Asked, peer_listening, stream_of
from watchbill.catalog import EngineRules, Model
from watchbill.engines import limits
from watchbill.engines.base import LoadError
from watchbill.engines.readiness import Progress, warm_up
from watchbill.engines.registry import make_engine
from watchbill.engines.upstream import Outgoing, Upstream
from watchbill.units import Bytes

#: Noticed within 30 ms on a quiet machine; this one may be busy with everything else.
NOTICED_S = 0.5


def asked_during(load_ms: int, expected_ms: int | None) -> tuple[int, float]:
    """How often an engine is asked for its health while it loads, and how late it is noticed then."""
    progress, took, asked = Progress(expected_ms=expected_ms), 0.0, 0
    while took < load_ms:
        asked += 1
        progress.began = time.monotonic() - took / 1000
        took += progress.pause_ms()
    return asked, took - load_ms


def test_a_learned_load_is_asked_often_only_around_its_time() -> None:
    """RES-12: within 20 ms of ready, at a few hundred questions a minute at most."""
    for load_ms in (300, 900, 3_000, 10_000, 60_000):
        for off in (0.9, 1.0, 1.1):
            asked, late = asked_during(round(load_ms * off), load_ms)
            assert late <= limits.HEALTH_POLL_MS_MIN + 1
            assert asked <= 100 + load_ms * 0.03


def test_a_load_that_nobody_knows_is_asked_ever_more_rarely() -> None:
    """RES-12: late by the fiftieth part of its time at most, and 60 s are 400 questions, not 3,000."""
    for load_ms in (300, 900, 3_000, 10_000, 60_000):
        asked, late = asked_during(load_ms, None)
        assert late <= max(limits.HEALTH_POLL_MS_MIN, load_ms * limits.HEALTH_POLL_SHARE) + 1
        assert asked <= 400


@pytest.mark.parametrize("expected_ms", [None, 600], ids=["unknown", "learned"])
async def test_a_model_that_is_ready_is_noticed_soon(tmp_path: Path, expected_ms: int | None) -> None:
    """RES-12: with a real process, from its own word that it is ready to the end of its load."""
    engine = make_engine(EngineRules("scripted", "scripted"), root=tmp_path, on_death=lambda *_: None)
    script: dict[str, object] = {"load": "600ms"}
    model = Model("a", "scripted", memory={"ram": Bytes(2**20)}, script=script)
    late: list[float] = []
    upstream = Upstream()
    try:
        for attempt in range(1, 4):
            warm = await engine.load(model, attempt, expected_ms)
            noticed = time.monotonic()
            asked = Outgoing(warm.endpoint, "GET", "/wb-scripted/state")
            state = json.loads((await upstream.fetch(asked, timeout_ms=5_000)).body)
            late.append(noticed - state["ready_at"])
            assert state["health"] < 200
            await engine.stop("a", hard=True)
    finally:
        await upstream.close()
        await engine.close()
    assert statistics.median(late) < NOTICED_S, late


async def test_a_model_whose_file_names_no_pooling_says_what_to_do() -> None:
    """RES-12: `embedding = true` alone makes no vectors of a model for chats; llama.cpp says only that it does not."""
    refusal = {"message": "Pooling type 'none' is not OAI compatible. Please use a different pooling type"}
    answers = iter((200, 400))

    async def talk(asked: Asked, writer: asyncio.StreamWriter) -> None:
        told = json.dumps({"error": refusal}).encode()
        await stream_of(told, content_type="application/json", status=next(answers))(asked, writer)

    async with peer_listening(talk) as peer:
        with pytest.raises(LoadError, match=r'add arguments = \["--pooling", "mean"\]'):
            await warm_up(peer.endpoint, "/health", "embed", Progress())
