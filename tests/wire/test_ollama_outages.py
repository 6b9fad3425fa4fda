"""The daemon over an Ollama that is stopped, gone, full, or larger than it said: real processes, real signals."""

import asyncio
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.eventually import eventually
from support.running import answering, chat, driving
from support.stopping import stop
from watchbill.config import parse
from watchbill.core import admission, model_state
from watchbill.engines import limits
from watchbill.runtime.driver import Driver
from wire import ollama_standin
from wire.engine_contract import within

MIB = 2**20


class Ollama:
    """A stand-in for Ollama in a process of its own."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it, again on the same port."""
        words = [sys.executable, ollama_standin.__file__, "--port", str(self.port), *self._words]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        assert self.process is not None
        stop(self.process.pid)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self.process is not None:
            self.go_on()
            self.process.kill()
            self.process.wait(10)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    async def listed(self) -> dict[str, bool]:
        """What is in its memory -> whether it stays there for ever."""
        return await asyncio.to_thread(self._listed)

    def _listed(self) -> dict[str, bool]:
        with urllib.request.urlopen(f"{self.url}/api/ps", timeout=10) as reply:
            models = msgspec.json.decode(reply.read())["models"]
        return {each["name"].removesuffix(":latest"): each["expires_at"] > "2100" for each in models}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OLLAMA_LOOK_MS", 40)
    monkeypatch.setattr(limits, "OLLAMA_ASK_MS", 300)
    monkeypatch.setattr(limits, "OLLAMA_UNLOAD_MS", 1_000)


@pytest.fixture
async def ollama(request: pytest.FixtureRequest) -> AsyncIterator[Ollama]:
    words: list[str] = request.param
    ollama = Ollama(*words)
    await asyncio.to_thread(ollama.start)
    yield ollama
    ollama.end()


def catalog_of(
    ollama: Ollama, *models: str, capacity: str = "1GiB", memory: str = "600MiB", rules: str = ""
) -> Any:
    text = f"[devices.ram]\ncapacity = '{capacity}'\nreserve = 0\n[engines.lab]\ndriver = 'ollama'\n"
    text += f"url = '{ollama.url}'\n{rules}\n"
    size = f"memory = '{memory}'\n" if memory else ""
    for name in models:
        text += f"[models.{name}]\nengine = 'lab'\nsource = '{name}'\n{size}"
    return parse(text, base=Path("/srv"), environment={})


def model(driver: Driver, name: str) -> dict[str, Any]:
    models: Any = driver.status()["models"]
    return models[name]


def silence(driver: Driver) -> str | None:
    engines: Any = driver.status()["engines"]
    return engines["lab"]["silence"]


TWO = [f"one={600 * MIB}", f"two={600 * MIB}"]


@pytest.mark.parametrize("ollama", [TWO], indirect=True)
async def test_a_stopped_ollama_never_holds_more_than_the_budget(tmp_path: Path, ollama: Ollama) -> None:
    """RES-03, RES-09: Ollama is stopped for longer than any look waits, and continued. What it held is still there, so
    the other model is loaded only when that has gone; and nothing stays pinned afterwards."""
    async with driving(tmp_path, catalog_of(ollama, "one", "two")) as driver, answering(driver) as url:
        assert (await within(15, chat(url, "one")))[0] == 200
        ollama.stop()
        await eventually(lambda: silence(driver) is not None)
        waiting = asyncio.create_task(chat(url, "two"))
        await eventually(lambda: model(driver, "two")["queued"] == 1)
        for _ in range(5 * limits.FOREIGN_MISSES_MAX):
            await asyncio.sleep(limits.OLLAMA_ASK_MS / 1000)
            assert model(driver, "one")["state"] == "ready"
            assert model(driver, "two")["state"] == "absent"
        reasons: Any = driver.requests()
        assert "until lab answers again" in reasons[0]["reason"]
        ollama.go_on()
        assert (await within(15, waiting))[0] == 200
        assert await ollama.listed() == {"two": True}
        assert model(driver, "one")["retry_ms"] is None
    assert await ollama.listed() == {}


@pytest.mark.parametrize("ollama", [TWO], indirect=True)
async def test_an_ollama_that_comes_back_serves_who_waited(tmp_path: Path, ollama: Ollama) -> None:
    """RES-20: an outage quarantines nothing, however often its models are asked for; who waits is served after it."""
    async with driving(tmp_path, catalog_of(ollama, "one", "two")) as driver, answering(driver) as url:
        assert (await within(15, chat(url, "one")))[0] == 200
        ollama.end()
        await eventually(lambda: silence(driver) is not None)
        waiting = [asyncio.create_task(chat(url, name)) for name in ("one", "two")]
        await eventually(lambda: model(driver, "two")["queued"] == 1)
        await asyncio.sleep(2 * model_state.HOST_RETRY_MS / 1000)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(ollama.start)
        answers = await within(20, asyncio.gather(*waiting))
        assert [status for status, _ in answers] == [200, 200]
        assert model(driver, "one")["state"] != "quarantined"


@pytest.mark.parametrize(
    ("ollama", "is_running"), [(TWO, False), ([*TWO, "--token", "0.1"], True)], indirect=["ollama"]
)
async def test_a_killed_ollama_costs_no_request_although_nobody_had_looked(
    tmp_path: Path, ollama: Ollama, is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20, LANE-04: a connection that is refused or reset says that it is gone. The request waits for it within its
    own bound, and status tells before the next look."""
    monkeypatch.setattr(limits, "OLLAMA_LOOK_MS", 4_000)
    async with driving(tmp_path, catalog_of(ollama, "one", "two")) as driver, answering(driver) as url:
        assert (await within(15, chat(url, "one")))[0] == 200
        asked = [asyncio.create_task(chat(url, "one"))] if is_running else []
        if asked:
            await eventually(lambda: model(driver, "one")["in_flight"] == 1)
        ollama.end()
        asked += [asyncio.create_task(chat(url, "one")) for _ in range(3)]
        await eventually(lambda: silence(driver) is not None and model(driver, "one")["state"] == "absent")
        asked.append(asyncio.create_task(chat(url, "one")))
        await eventually(lambda: model(driver, "one")["queued"] == len(asked))
        await asyncio.to_thread(ollama.start)
        answers = await within(20, asyncio.gather(*asked))
        assert [status for status, _ in answers] == [200] * len(asked)


@pytest.mark.parametrize(
    "ollama", [["one", "two", "three", "--limit", "2", "--unload", "0.4", "--load", "0.4"]], indirect=True
)
async def test_places_are_learned_from_an_eviction_that_takes_a_moment(
    tmp_path: Path, ollama: Ollama
) -> None:
    """RES-09: looks that find the dropped model gone while the load for which it went is still under way."""
    names = ("one", "two", "three")
    catalog = catalog_of(ollama, *names, memory="1MiB")
    async with driving(tmp_path, catalog) as driver, answering(driver) as url:
        for name in names:
            assert (await within(15, chat(url, name)))[0] == 200
        await eventually(lambda: driver.status()["engines"]["lab"]["places"] == 2)  # type: ignore[index]


@pytest.mark.parametrize("ollama", [["one", "two", "three", "four", "--limit", "3"]], indirect=True)
async def test_four_models_share_an_ollama_with_three_places(tmp_path: Path, ollama: Ollama) -> None:
    """RES-09: the limit is learned from the first model that had to go, and obeyed from then on: nothing hangs, nothing
    is lost again, nothing is quarantined."""
    names = ("one", "two", "three", "four")
    async with (
        driving(tmp_path, catalog_of(ollama, *names, memory="1MiB")) as driver,
        answering(driver) as url,
    ):
        for name in names:
            assert (await within(15, chat(url, name)))[0] == 200
        engines: Any = driver.status()
        await eventually(lambda: driver.status()["engines"]["lab"]["places"] == 3)  # type: ignore[index]
        before = sum(model(driver, name)["evictions"] for name in names)
        for _ in range(3):
            answers = await within(30, asyncio.gather(*(chat(url, name) for name in names)))
            assert [status for status, _ in answers] == [200] * 4, engines
        lost = [line for line in (tmp_path / "events.jsonl").read_text().splitlines() if '"lost"' in line]
        assert len(lost) <= 1
        assert sum(model(driver, name)["evictions"] for name in names) > before
        assert len(await ollama.listed()) == 3


@pytest.mark.parametrize("ollama", [[f"huge={900 * MIB}", f"one={100 * MIB}"]], indirect=True)
async def test_a_model_that_turns_out_too_large_is_refused_as_soon_as_that_is_known(
    tmp_path: Path, ollama: Ollama
) -> None:
    """LANE-02: nobody waits for the end of max_wait for a model that was found not to fit."""
    catalog = catalog_of(ollama, "huge", "one", capacity="500MiB", memory="")
    async with driving(tmp_path, catalog) as driver, answering(driver) as url:
        status, body = await within(lanes_bound(catalog) / 4, chat(url, "huge"))
        assert (status, body["error"]["code"]) == (503, "never_fits")
        await eventually(lambda: model(driver, "huge")["state"] == "absent")
        assert await ollama.listed() == {}
        assert (await within(15, chat(url, "one")))[0] == 200


def lanes_bound(catalog: Any) -> float:
    return min(lane.max_wait_ms for lane in catalog.lanes.values()) / 1000


@pytest.mark.parametrize("ollama", [["one"]], indirect=True)
async def test_a_quarantine_is_lifted_by_hand(
    tmp_path: Path, ollama: Ollama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-20: whoever mended the cause need not wait for the end of the back-off."""
    monkeypatch.setattr(admission, "RETRY_AFTER_MIN_MS", 1)
    catalog = catalog_of(ollama, "one", "missing", memory="1MiB")
    async with driving(tmp_path, catalog) as driver, answering(driver) as url:
        assert (await within(15, chat(url, "missing")))[0] == 503
        assert model(driver, "missing")["state"] == "failed"
        ollama.end()
        ollama._words = ("one", "missing")
        await asyncio.to_thread(ollama.start)
        assert (await within(15, chat(url, "missing")))[0] == 503  # still in quarantine
        assert "missing is in memory" in await within(15, driver.load("missing"))
        assert (await within(15, chat(url, "missing")))[0] == 200


@pytest.mark.parametrize("ollama", [TWO], indirect=True)
async def test_what_a_stopped_ollama_keeps_at_the_end_is_given_back_at_the_next_start(
    tmp_path: Path, ollama: Ollama
) -> None:
    """R36: nothing stays pinned, also when Ollama could not be asked in the moment in which we went."""
    catalog = catalog_of(ollama, "one", "two")
    async with driving(tmp_path, catalog) as driver, answering(driver) as url:
        assert (await within(15, chat(url, "one")))[0] == 200
        ollama.stop()
    ollama.go_on()
    assert await ollama.listed() == {"one": True} or await ollama.listed() == {}
    async with driving(tmp_path, catalog) as driver, answering(driver) as url:
        assert (await within(15, chat(url, "two")))[0] == 200
        assert await ollama.listed() == {"two": True}
    assert await ollama.listed() == {}
