"""What-if questions over HTTP: answered by a program of its own, one at a time, ended when they are cancelled."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from support.eventually import eventually
from support.open_gateway import CATALOG, OpenGateway, open_gateway
from support.traffic import write_traffic
from watchbill.catalog import ApiKey, JournalRules, Model, Server
from watchbill.errors import RunTimeout
from watchbill.processes import Keeper
from watchbill.runtime.what_if import Question, ask_what_if
from watchbill.units import Bytes

GB = 10**9
PATH = "/wb/v1/simulate"
MODELS = {
    name: Model(name, "peer", memory=MappingProxyType({"ram": Bytes(6 * GB)})) for name in ("one", "two")
}
TWO = replace(CATALOG, models=MODELS)
KEYS = Server(keys=(ApiKey("user", "k" * 20), ApiKey("admin", "a" * 20, admin=True)))


def day(root: Path, requests: int) -> None:
    """Two models that never fit together, asked in turn."""
    write_traffic(
        root / "traffic", ("one", "two"), requests=requests, memory=6 * GB, capacity=8 * GB, hours=0.5
    )


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenGateway]:
    async with open_gateway(catalog=TWO, root=tmp_path) as found:
        yield found


def simulators(root: Path) -> list[int]:
    """The programs that simulate for this root."""
    told = [(each.pid, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    return [pid for pid, words in told if any(str(root) in word for word in words) and "-m" in words]


async def test_more_memory_is_compared_with_what_was(opened: OpenGateway, tmp_path: Path) -> None:
    """The answer to "what would 8 GB more buy me" from the recorded day, beside what was."""
    day(tmp_path, 60)
    answer = await opened.ask(PATH, {"memory": {"ram": "+8GB"}})
    assert answer.status == 200, answer.body
    recorded, present, larger = answer.json["runs"]
    assert (recorded["name"], present["name"], larger["name"]) == ("recorded", "as it is", "8 GB more on ram")
    assert recorded["classes"]["interactive"]["wait_p95_ms"] == 900 and recorded["loads"] == 2
    assert larger["loads"] < present["loads"] > 10
    waits = [run["classes"]["interactive"]["wait_p50_ms"] for run in (present, larger)]
    assert waits[1] < waits[0]
    assert answer.json["requests"] == 60 and answer.json["svg"].startswith("<svg ")
    kept = (await opened.ask(PATH)).json
    assert kept == {"running": False, "kept": True, "last": answer.json}
    assert not list((tmp_path / "run").glob("what-if-*")) and not simulators(tmp_path)


async def test_without_history_the_words_say_what_to_do(opened: OpenGateway, tmp_path: Path) -> None:
    answer = await opened.ask(PATH, {})
    assert answer.status == 404 and "ask a model something" in json.dumps(answer.json)
    write_traffic(tmp_path / "traffic", ("gone",), requests=3, memory=GB, capacity=GB)
    answer = await opened.ask(PATH, {})
    assert answer.status == 404 and "not in the config any more" in json.dumps(answer.json)
    day(tmp_path, 4)
    answer = await opened.ask(PATH, {"memory": {"ram": "-8GB"}})
    assert answer.status == 404 and "no memory for models" in json.dumps(answer.json)


@pytest.mark.parametrize(
    "body",
    [
        {"memory": {"gpu:9": "+1GB"}}, {"memory": {"ram": "8GB"}}, {"memory": {"ram": 8}}, {"memory": {"ram": "+x"}},
        {"memory": {"ram": "+9999999TB"}}, {"memory": []}, {"policy": "best"}, {"hours": 0}, {"hours": 25},
        {"hours": True}, {"hours": "1"},
    ],
)  # fmt: skip
async def test_a_question_that_makes_no_sense_is_refused(opened: OpenGateway, body: object) -> None:
    assert (await opened.ask(PATH, body)).status == 400


async def test_one_runs_at_a_time_and_is_cancelled(opened: OpenGateway, tmp_path: Path) -> None:
    """A second one is refused; a cancelled one leaves no process, and the next one begins."""
    day(tmp_path, 10_000)
    first = asyncio.create_task(opened.ask(PATH, {"memory": {"ram": "+1GB"}}))
    await eventually(lambda: bool(simulators(tmp_path)))
    assert (await opened.ask(PATH, {})).status == 429
    assert (await opened.ask(PATH)).json["running"] is True
    assert (await opened.ask(PATH, method="DELETE")).status == 200
    cancelled = await first
    assert cancelled.status == 503 and "cancelled" in json.dumps(cancelled.json)
    await eventually(lambda: not simulators(tmp_path))
    assert (await opened.ask(PATH, method="DELETE")).status == 404
    day(tmp_path, 4)
    assert (await opened.ask(PATH, {"policy": "fifo"})).status == 200


async def test_a_simulation_ends_with_its_deadline(tmp_path: Path) -> None:
    day(tmp_path, 10_000)
    question = Question(tmp_path / "traffic", TWO, (), 24, {"ram": GB})
    with pytest.raises(RunTimeout, match="took longer"):
        await ask_what_if(Keeper(tmp_path), question, timeout_ms=700)
    await eventually(lambda: not simulators(tmp_path))


async def test_only_an_operator_may_spend_a_core(tmp_path: Path) -> None:
    """Where keys are set, an ordinary one sees the last answer and starts nothing."""
    async with open_gateway(catalog=TWO, root=tmp_path, server=KEYS) as opened:
        user = {"Authorization": f"Bearer {'k' * 20}"}
        assert (await opened.ask(PATH, {}, headers=user)).status == 403
        assert (await opened.ask(PATH, method="DELETE", headers=user)).status == 403
        assert (await opened.ask(PATH, headers=user)).status == 200


async def test_where_no_traffic_is_kept_the_answer_says_so(tmp_path: Path) -> None:
    async with open_gateway(
        catalog=replace(TWO, journal=JournalRules(traffic=False)), root=tmp_path
    ) as opened:
        answer = await opened.ask(PATH, {})
        assert answer.status == 404 and "[journal]" in json.dumps(answer.json)
