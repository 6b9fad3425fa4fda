"""An agent's device through its host daemon: loans, models, the door, and a daemon that goes away."""

import json
import os
import secrets
import signal
from pathlib import Path

import pytest

from e2e.place import Place, is_listening, scripted
from support.eventually import eventually
from watchbill.core.ledger import READING_AGE_MAX_MS
from watchbill.engines.base import endpoint_of
from watchbill.errors import NotReachable, OursError
from watchbill.fleet.agent.host import HostMemory, PrivateDaemon, find_host
from watchbill.fleet.matching.claiming import Health
from watchbill.root import Root

UUID = f"GPU-{secrets.token_hex(8)}"  # a card has one owner on a host: other test runs have their own
STEP = {"at": 0, "temperature_c": 78, "power_w": 125.3, "clock_mhz": 1950, "utilisation_percent": 85}
CARDS = {
    "cards": [{"name": "gpu:1", "capacity": "6000MiB", "total": "6144MiB", "uuid": UUID, "timeline": [STEP]}]
}
CONFIG = '[devices."gpu:1"]\nreserve = 0\nmax_power_w = 140\n[devices.ram]\nreserve = 0\n' + scripted(
    "qwen", 'load = "100ms"', 'devices = ["gpu:1"]'
)


@pytest.fixture
def cards(place: Place) -> Path:
    """A card that every process of the test sees."""
    path = place.folder / "cards.json"
    path.write_text(json.dumps(CARDS))
    place.environment["WATCHBILL_FAKE_GPUS"] = str(path)
    return path


def memory_of(url: str) -> HostMemory:
    return HostMemory(url, ("gpu:1",), "gpu-1", model="qwen")


@pytest.mark.timeout(120)
async def test_an_agent_borrows_from_the_ledger_of_its_daemon_and_sees_its_card(
    place: Place, cards: Path
) -> None:
    """FLEET-01, FLEET-02, FLEET-06: one ledger; the budget is 80 % of the card; the heartbeat's keys are filled."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    memory = memory_of(daemon.url)
    await memory.open()
    try:
        state = memory.state
        assert (state.cards, state.budget_mb, state.is_hot, state.models) == (
            (UUID,),
            4915,
            False,
            ("qwen",),
        )
        assert state.readings["temperature_c"] == 78
        assert (state.readings["vram_total_mb"], state.readings["gpu_util_percent"]) == (6144, 85)
        assert await memory.borrow("transcribe", 4000)
        [loan] = daemon.status()["loans"].values()
        assert (loan["memory"], loan["why"], loan["pid"]) == (4000 * 2**20, "transcribe", os.getpid())
        assert not await memory.borrow("second", 4000)
        assert await memory.give_back("transcribe") == 0
        assert daemon.status()["loans"] == {}
        assert await memory.give_back("transcribe") == 0
    finally:
        await memory.close()


@pytest.mark.timeout(120)
async def test_a_task_on_a_pair_of_cards_borrows_on_both_or_not_at_all(place: Place, cards: Path) -> None:
    """FLEET-01, FLEET-14: it may use either card, and the ledger of the second one knew nothing of it."""
    uuids = {"gpu:1": UUID, "gpu:2": f"GPU-{secrets.token_hex(8)}"}
    pair = [{**CARDS["cards"][0], "name": name, "uuid": uuid} for name, uuid in uuids.items()]
    cards.write_text(json.dumps({"cards": pair}))
    place.config.write_text(CONFIG + '[devices."gpu:2"]\nreserve = 0\nmax_power_w = 140\n')
    daemon = place.up()
    memory = HostMemory(daemon.url, ("gpu:1", "gpu:2"), "gpu-1", model="qwen")
    await memory.open()
    try:
        assert await memory.borrow("train", 4000)
        lent = daemon.status()["loans"].values()
        assert sorted((loan["device"], loan["memory"]) for loan in lent) == [
            ("gpu:1", 4000 * 2**20),
            ("gpu:2", 4000 * 2**20),
        ]
        await memory.give_back("train")
        assert daemon.status()["loans"] == {}
        taken = {"device": "gpu:2", "memory": 4000 * 2**20, "for": "a person", "pid": os.getpid()}
        assert daemon.ask("/wb/v1/loans", taken)[0] == 200
        assert not await memory.borrow("train", 4000)
        assert [loan["device"] for loan in daemon.status()["loans"].values()] == ["gpu:2"]
    finally:
        await memory.close()


@pytest.mark.timeout(120)
async def test_a_model_is_heated_and_cooled_and_asked_at_the_agents_door(place: Place, cards: Path) -> None:
    """FLEET-05, FLEET-10: load_llm and unload_llm are loads and evictions of the daemon; scripts get an address."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    memory = memory_of(daemon.url)
    await memory.open()
    try:
        await memory.load("qwen")
        assert memory.state.is_hot and memory.state.health is Health.HEALTHY
        assert memory.state.model_url.startswith("http://127.0.0.1:")
        await memory.unload("qwen")
        assert not memory.state.is_hot
        with pytest.raises(OursError, match="no model is called"):
            await memory.load("nobody")
        # A question that it claimed now would wait for its model until the card is given back.
        assert daemon.ask("/wb/v1/maintenance", {"device": "gpu:1", "hours": 1})[0] == 200
        await memory.look()
        assert memory.state.constraints == ("it is lent to a person",)
    finally:
        await memory.close()


@pytest.mark.timeout(120)
async def test_a_card_that_is_too_hot_makes_its_agent_constrained(place: Place, cards: Path) -> None:
    """FLEET-04: the daemon judges the card, and the agent says why."""
    hot = json.loads(json.dumps(CARDS))
    hot["cards"][0]["timeline"][0]["temperature_c"] = 91
    cards.write_text(json.dumps(hot))
    place.config.write_text(CONFIG)
    memory = memory_of(place.up().url)
    await memory.open()
    try:
        assert memory.state.health is Health.CONSTRAINED
        assert memory.state.constraints == ("91 C, and its limit is 85 C",)
    finally:
        await memory.close()


@pytest.mark.timeout(120)
async def test_a_card_that_falls_off_takes_no_tasks_while_its_last_reading_is_recent(
    place: Place, cards: Path
) -> None:
    """FLEET-04: for half a minute its agent went on to claim tasks for it, which failed there."""
    place.config.write_text(CONFIG)
    memory = memory_of(place.up().url)
    await memory.open()
    try:
        assert memory.state.is_open

        async def is_open_now() -> bool:
            await memory.look()
            return memory.state.is_open

        async def is_shut_now() -> bool:
            return not await is_open_now()

        cards.write_text(json.dumps({"cards": []}))
        await eventually(is_shut_now, READING_AGE_MAX_MS / 2000)  # long before its reading is too old
        cards.write_text(json.dumps(CARDS))
        await eventually(is_open_now)
    finally:
        await memory.close()


@pytest.mark.timeout(180)
async def test_an_agent_whose_daemon_is_gone_has_no_memory_to_lend(place: Place, cards: Path) -> None:
    """FLEET-01: nothing is claimed for a device that nobody keeps the ledger of."""
    place.config.write_text(CONFIG)
    daemon = place.up()
    memory = memory_of(daemon.url)
    await memory.open()
    try:
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        assert not await memory.borrow("transcribe", 100)
        with pytest.raises(NotReachable):
            await memory.look()
        await eventually(lambda: not memory.state.is_open, 20)
        assert memory.state.models == ("qwen",)  # what it could do when the daemon is back
    finally:
        await memory.close()


@pytest.mark.timeout(120)
async def test_an_agent_has_its_door_again_after_a_restart_that_it_did_not_see(place: Place) -> None:
    """FLEET-01, FLEET-10: it looked before and after, so it took the door for open, and failed every question."""
    place.config.write_text(scripted("qwen"))
    daemon = place.up()
    memory = HostMemory(daemon.url, (), "cpu-1", model="qwen")
    await memory.open()
    try:
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        place.up(port=daemon.port)
        await memory.look()
        assert is_listening(endpoint_of(memory.state.model_url).port)
    finally:
        await memory.close()


@pytest.mark.timeout(180)
async def test_an_agent_starts_a_daemon_of_its_own_where_none_runs_and_ends_it(
    place: Place, tmp_path: Path
) -> None:
    """FLEET-01: an agent that is started alone runs the same core for its device."""
    place.config.write_text(scripted("qwen"))
    root = Root(tmp_path / "private", is_named=True)
    assert find_host(root) is None
    private = PrivateDaemon(root, place.config, (), has_model=True)
    url = await private.start()
    try:
        assert find_host(root) == url
    finally:
        await private.stop()
    assert find_host(root) is None
