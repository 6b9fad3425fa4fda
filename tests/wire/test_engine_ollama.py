"""The Ollama driver keeps the contract against a stand-in, and against the real one where there is one."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_models import GgufFiles
from support.eventually import eventually
from support.running import answering, chat, driving
from watchbill.catalog import EngineRules, Model
from watchbill.config import parse
from watchbill.core.messages import Blame
from watchbill.engines import limits
from watchbill.engines.base import LoadError
from watchbill.engines.ollama_api import full_name
from watchbill.errors import ConfigError, EngineFailed
from watchbill.units import Millis
from wire.engine_contract import EngineContract, within
from wire.foreign_contract import ABOUT_PROCESSES, Foreign, ForeignContract
from wire.ollama_standin import Kept, OllamaStandin


class StandinWorld:
    """An Ollama with three models: two of the catalog, and one of another client."""

    def __init__(self, standin: OllamaStandin, root: Path) -> None:
        self.standin = standin
        self.root = root
        self.rules = EngineRules("lab", "ollama", url=standin.url)

    def model(self, name: str, *, slow: bool = False, **more: Any) -> Model:
        self.standin.load_s = 10.0 if slow else 0.02
        return Model(name, "lab", source=name, **more)

    def present(self) -> set[str]:
        return {name.removesuffix(":latest") for name in self.standin.listed()}

    async def take_away(self, name: str) -> None:
        await self.ask("/api/generate", {"model": name, "keep_alive": 0})
        await eventually(lambda: name not in self.present())

    async def bring(self, name: str) -> None:
        await self.ask("/api/generate", {"model": name, "keep_alive": "3m"})

    async def vanish(self) -> None:
        await self.standin.die()

    async def ask(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Another client of the same server."""
        return await asyncio.to_thread(self._ask, path, fields)

    def _ask(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        question = urllib.request.Request(self.standin.url + path, json.dumps(fields).encode())
        with urllib.request.urlopen(question, timeout=10) as reply:
            return json.loads(reply.read())

    def count(self, path: str, **wanted: object) -> int:
        """How often this was asked with these fields."""
        return sum(
            1
            for _, asked, fields in self.standin.asked
            if asked == path and all(fields.get(key) == value for key, value in wanted.items())
        )


class TestOllama(ForeignContract):
    """The contract, and what is particular."""

    @pytest.fixture
    async def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandinWorld]:
        monkeypatch.setattr(limits, "OLLAMA_LOOK_MS", 40)
        standin = OllamaStandin(Kept("one"), Kept("two"), Kept("foreign"), Kept("vectors", embedding=True))
        await standin.start()
        yield StandinWorld(standin, tmp_path)
        await standin.die()

    # ------------------------------------------------------------------ holding

    async def test_a_held_model_does_not_leave_by_itself(self, foreign: Foreign, world: StandinWorld) -> None:
        """RES-07: when a model leaves is our decision, not Ollama's."""
        await within(5, foreign.engine.load(world.model("one"), 1))
        assert world.standin.left_s("one:latest") > 86_400

    async def test_a_shorter_time_that_a_client_gave_is_undone(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """Another client's `keep_alive` must not take the model from under us."""
        await within(5, foreign.engine.load(world.model("one"), 1))
        await world.ask("/api/generate", {"model": "one", "keep_alive": "2m"})
        await eventually(lambda: world.standin.left_s("one:latest") > 86_400)
        assert world.standin.loads == ["one:latest"]
        assert foreign.deaths == []

    async def test_an_adopted_model_is_neither_loaded_again_nor_left_to_expire(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        await world.bring("one")
        await within(5, foreign.engine.load(world.model("one"), 1))
        assert world.standin.loads == ["one:latest"]
        assert world.standin.left_s("one:latest") > 86_400

    async def test_a_cancelled_takeover_leaves_the_model_as_it_was(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """Nothing of an attempt is left behind: neither is the other client's model taken away."""
        await world.bring("one")
        world.standin.token_s = 5.0  # the probe hangs
        loading = asyncio.create_task(foreign.engine.load(world.model("one"), 1))
        await eventually(lambda: world.standin.left_s("one:latest") > 86_400)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(5, loading)
        assert world.present() == {"one"}
        await eventually(lambda: 120 < world.standin.left_s("one:latest") <= 180)
        world.standin.token_s = 0.0
        await world.take_away("one")

    async def test_other_clients_models_are_never_touched(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """RES-09: what we were never asked for is not ours, neither while we work nor when we close."""
        await world.bring("foreign")
        await within(5, foreign.engine.load(world.model("one"), 1))
        await within(5, foreign.engine.stop("one"))
        await within(5, foreign.engine.load(world.model("two"), 2))
        await within(5, foreign.engine.close())
        assert world.present() == {"foreign"}
        assert world.count("/api/generate", model="foreign") == 1  # their own
        await world.take_away("foreign")

    async def test_a_model_that_had_to_make_room_is_a_death(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """Ollama has a limit of its own, and takes what is idle, whoever holds it."""
        world.standin.limit = 1
        await within(5, foreign.engine.load(world.model("one"), 3))
        await world.bring("foreign")
        await eventually(lambda: foreign.deaths != [])
        assert foreign.deaths == [
            ("one", 3, "it left Ollama's memory: another client unloaded it or needed the room")
        ]
        await within(5, foreign.engine.stop("one"))
        assert world.present() == {"foreign"}, "a model that is gone is not unloaded again"
        await world.take_away("foreign")

    async def test_a_busy_model_is_gone_when_its_answer_is(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """RES-12: stop returns when the memory is back, not when Ollama said yes."""
        await within(5, foreign.engine.load(world.model("one"), 1))
        world.standin.token_s = 0.1
        talking = asyncio.create_task(
            world.ask(
                "/api/generate",
                {"model": "one", "prompt": "Hi", "stream": False, "options": {"num_predict": 4}},
            )
        )
        await eventually(lambda: world.standin.runners["one:latest"].working == 1)
        await within(20, foreign.engine.stop("one"))
        assert world.present() == set()
        await within(20, talking)  # whole, although the model was told to go in its middle

    async def test_a_model_that_does_not_leave_is_an_error_and_can_be_stopped_again(
        self, foreign: Foreign, world: StandinWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Invariant 2: also the wait for Ollama has a deadline."""
        monkeypatch.setattr(limits, "OLLAMA_UNLOAD_MS", 200)
        await within(5, foreign.engine.load(world.model("one"), 1))
        world.standin.unload_s = 1.0
        with pytest.raises(EngineFailed, match="still in Ollama's memory after 200 ms"):
            await within(5, foreign.engine.stop("one"))
        with pytest.raises(LoadError, match="still stopping"):
            await foreign.engine.load(world.model("one"), 2)
        monkeypatch.undo()
        await within(5, foreign.engine.stop("one"))
        assert world.present() == set() and foreign.deaths == []

    # ------------------------------------------------------------------ failures

    async def test_a_model_that_is_not_there_is_hopeless_and_says_how_to_fetch_it(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        with pytest.raises(LoadError, match="fetch it with: ollama pull missing") as failure:
            await within(5, foreign.engine.load(world.model("missing"), 1))
        assert failure.value.hopeless

    async def test_memory_that_ran_out_at_ollama_is_not_hopeless(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """R27: the same load may work when others have gone."""
        text = "model requires more system memory (9.1 GiB) than is available (2.0 GiB)"
        world.standin.refuse = (500, text)
        with pytest.raises(LoadError, match="requires more system memory") as failure:
            await within(5, foreign.engine.load(world.model("one"), 1))
        assert not failure.value.hopeless

    async def test_a_server_that_dies_under_a_load_fails_it_at_once(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """Race 7: the caller of the load hears of it, and nobody else."""
        loading = asyncio.create_task(foreign.engine.load(world.model("one", slow=True), 1))
        await eventually(lambda: world.present() == {"one"})
        await world.standin.die()
        with pytest.raises(LoadError, match="does not answer at"):
            await within(3, loading)
        assert foreign.deaths == []

    async def test_a_restarted_server_is_survived(self, foreign: Foreign, world: StandinWorld) -> None:
        """R27: its models are dead, each once; then everything works as before."""
        await within(5, foreign.engine.load(world.model("one"), 4))
        await within(5, foreign.engine.load(world.model("two"), 5))
        await world.standin.die()
        await eventually(lambda: len(foreign.deaths) == 2)
        assert {death[:2] for death in foreign.deaths} == {("one", 4), ("two", 5)}
        assert "does not answer at http://127.0.0.1:" in foreign.deaths[0][2]
        await world.standin.start()
        await within(5, foreign.engine.stop("one"))
        await within(5, foreign.engine.load(world.model("one"), 6))
        assert world.present() == {"one"} and len(foreign.deaths) == 2

    async def test_a_silent_server_still_holds_its_models(
        self, foreign: Foreign, world: StandinWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RES-09, invariant 1: however long it says nothing, nothing is forgotten; what it lost meanwhile is told
        before it counts as there again."""
        for name in ("one", "two"):
            await within(5, foreign.engine.load(world.model(name), 1))
        monkeypatch.setattr(limits, "OLLAMA_ASK_MS", 50)
        world.standin.speaks.clear()
        await eventually(lambda: bool(foreign.states) and foreign.states[-1].silence is not None)
        before = len(world.standin.asked)
        await eventually(lambda: len(world.standin.asked) >= before + 2 * limits.FOREIGN_MISSES_MAX)
        assert foreign.deaths == []
        del world.standin.runners["one:latest"]
        world.standin.speaks.set()
        await eventually(lambda: foreign.states[-1].silence is None)
        assert [death[:2] for death in foreign.deaths] == [("one", 1)]
        assert foreign.blames == [Blame.HOST]

    async def test_a_load_that_a_silent_server_cannot_undo_can_be_stopped_later(
        self, foreign: Foreign, world: StandinWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R36: what may have been loaded counts as held until Ollama says that it is not."""
        monkeypatch.setattr(limits, "OLLAMA_ASK_MS", 50)
        monkeypatch.setattr(limits, "OLLAMA_UNLOAD_MS", 200)
        slow = replace(world.model("one", slow=True), load_timeout_ms=Millis(500))
        loading = asyncio.create_task(foreign.engine.load(slow, 1))
        await eventually(lambda: world.present() == {"one"})
        world.standin.speaks.clear()
        with pytest.raises(LoadError, match="was not warm after") as failure:
            await within(5, loading)
        assert failure.value.remains and failure.value.blame is Blame.HOST
        with pytest.raises(EngineFailed, match="does not answer"):
            await within(5, foreign.engine.stop("one"))
        world.standin.speaks.set()
        await within(5, foreign.engine.stop("one"))
        assert world.present() == set()
        assert list((world.root / "run").iterdir()) == []

    async def test_an_outage_is_not_the_fault_of_the_model(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """RES-20: neither a load that nobody takes, nor a model that went with its server, is a failure of its own."""
        await within(5, foreign.engine.load(world.model("one"), 1))
        await world.standin.die()
        await eventually(lambda: foreign.deaths != [])
        assert foreign.blames == [Blame.HOST]
        with pytest.raises(LoadError) as failure:
            await within(5, foreign.engine.load(world.model("two"), 2))
        assert failure.value.blame is Blame.HOST and not failure.value.remains
        await world.standin.start()
        await eventually(lambda: foreign.states[-1].silence is None)

    async def test_what_is_left_behind_is_written_down_and_named(
        self,
        foreign: Foreign,
        world: StandinWorld,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """R36: an Ollama that is stopped when we go keeps its models; the next start gives them back, also if it
        has to wait for Ollama first."""
        await within(5, foreign.engine.load(world.model("one"), 1))
        monkeypatch.setattr(limits, "OLLAMA_ASK_MS", 50)
        monkeypatch.setattr(limits, "OLLAMA_UNLOAD_MS", 200)
        world.standin.speaks.clear()
        await within(5, foreign.engine.close())
        assert "ollama stop one" in caplog.text
        again = foreign.another()
        await eventually(lambda: bool(foreign.states) and foreign.states[-1].silence is not None)
        world.standin.speaks.set()
        await eventually(lambda: world.present() == set())
        await within(5, again.close())
        assert list((world.root / "run").iterdir()) == []

    # ------------------------------------------------------------------ its own limit

    async def test_a_limit_is_learned_from_the_model_that_had_to_go(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """OLLAMA_MAX_LOADED_MODELS is not told by any answer; what it does shows it."""
        world.standin.limit = 1
        await within(5, foreign.engine.load(world.model("one"), 1))
        await within(5, foreign.engine.load(world.model("two"), 2))
        await eventually(lambda: foreign.deaths != [])
        assert [death[:2] for death in foreign.deaths] == [("one", 1)]
        assert foreign.blames == [Blame.HOST]
        await eventually(lambda: foreign.states[-1].places == 1)

    async def test_a_model_that_we_unloaded_teaches_no_limit(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        await within(5, foreign.engine.load(world.model("one"), 1))
        loading = asyncio.create_task(foreign.engine.load(replace(world.model("two"), source="two"), 2))
        world.standin.load_s = 0.3
        await within(5, foreign.engine.stop("one"))
        await within(5, loading)
        await within(5, foreign.engine.load(world.model("one"), 3))
        assert all(state.places is None for state in foreign.states)

    async def test_more_models_than_thought_possible_end_a_limit(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """It may have been memory, or Ollama's settings were changed."""
        world.standin.limit = 1
        for attempt, name in enumerate(("one", "two"), 1):
            await within(5, foreign.engine.load(world.model(name), attempt))
        await eventually(lambda: bool(foreign.states) and foreign.states[-1].places == 1)
        world.standin.limit = 0
        await world.bring("foreign")
        await eventually(lambda: foreign.states[-1].places is None)
        await world.take_away("foreign")

    async def test_a_model_that_ollama_is_about_to_unload_is_not_held_anew(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """To hold the victim would call its unload off, and Ollama would wait for it for ever, for every client."""
        world.standin.limit = 1
        await within(5, foreign.engine.load(world.model("one"), 1))
        victim = world.standin.runners["one:latest"]
        victim.idle_until = None  # busy since it was loaded: /api/ps shows what the scheduler wants
        world.standin.token_s = 0.3
        talking = asyncio.create_task(
            world.ask("/api/generate", {"model": "one", "prompt": "Hi", "stream": False})
        )
        await eventually(lambda: victim.working == 1)
        bringing = asyncio.create_task(world.bring("foreign"))
        await eventually(lambda: bool(foreign.states) and foreign.states[-1].leaving == {"one"})
        await within(10, talking)
        await within(10, bringing)
        assert world.present() == {"foreign"}
        await world.take_away("foreign")

    async def test_nothing_is_held_anew_while_a_load_is_under_way(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """Any of our models may be the one that Ollama waits for; /api/ps does not always tell which."""
        await within(5, foreign.engine.load(world.model("one"), 1))
        world.model("two", slow=True)
        world.standin.load_s = 0.5
        loading = asyncio.create_task(foreign.engine.load(Model("two", "lab", source="two"), 2))
        await eventually(lambda: "two" in world.present())
        await world.ask("/api/generate", {"model": "one", "keep_alive": "2m"})
        looks = world.count("/api/ps")
        await eventually(lambda: world.count("/api/ps") >= looks + 2 or loading.done())
        held = world.count("/api/generate", model="one", keep_alive=-1)
        assert held == 1 or loading.done()
        await within(5, loading)
        await eventually(lambda: world.standin.left_s("one:latest") > 86_400)

    # ------------------------------------------------------------------ kinds of models

    async def test_an_embedding_model_is_loaded_and_probed_as_one(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        with pytest.raises(LoadError, match="embedding = true") as failure:
            await within(5, foreign.engine.load(world.model("vectors"), 1))
        assert failure.value.hopeless
        warm = await within(5, foreign.engine.load(world.model("vectors", embedding=True), 2))
        assert warm.endpoint.upstream_model == "vectors"
        assert world.count("/v1/embeddings", model="vectors") == 1
        assert world.standin.left_s("vectors:latest") > 86_400

    async def test_the_endpoint_is_ollamas_own_with_its_own_name(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        model = Model("talker", "lab", source="one")
        warm = await within(5, foreign.engine.load(model, 1))
        assert (warm.endpoint.port, warm.endpoint.upstream_model, warm.pid) == (
            world.standin.port,
            "one",
            None,
        )

    @pytest.mark.parametrize(
        ("devices", "expected"),
        [
            (("ram",), {"ram": 1000}),
            (("gpu:0",), {"gpu:0": 700, "ram": 300}),
            (("gpu:0", "gpu:1", "ram"), {"gpu:0": 350, "gpu:1": 350, "ram": 300}),
        ],
    )
    async def test_memory_is_split_between_cards_and_ram(
        self, foreign: Foreign, world: StandinWorld, devices: tuple[str, ...], expected: dict[str, int]
    ) -> None:
        """RES-01: `size` is all of it, `size_vram` what is on cards."""
        world.standin.models["one:latest"].memory, world.standin.models["one:latest"].vram = 1000, 700
        warm = await within(5, foreign.engine.load(world.model("one", devices=devices), 1))
        assert warm.memory == expected

    # ------------------------------------------------------------------ kill -9

    async def test_the_next_start_gives_back_what_a_killed_daemon_held(
        self, foreign: Foreign, world: StandinWorld
    ) -> None:
        """R36: Ollama would keep it for ever. What another client has used since stays."""
        for name in ("one", "two"):
            await within(5, foreign.engine.load(world.model(name), 1))
        foreign.engine._watcher.cancel()  # type: ignore[attr-defined]  # dead: it neither looks nor closes
        await world.ask("/api/generate", {"model": "two", "keep_alive": "3m"})
        again = foreign.another()
        await eventually(lambda: world.present() == {"two"})
        await within(5, again.load(world.model("one"), 1))
        await within(5, again.close())
        assert world.present() == {"two"}
        await world.take_away("two")

    async def test_nothing_is_written_down_when_nothing_is_held(
        self, foreign: Foreign, world: StandinWorld, tmp_path: Path
    ) -> None:
        await within(5, foreign.engine.load(world.model("one"), 1))
        assert len(list((tmp_path / "run").glob("ollama-*.json"))) == 1
        await within(5, foreign.engine.stop("one"))
        assert list((tmp_path / "run").iterdir()) == []


async def test_the_driver_swaps_models_of_ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RES-03, RES-04: two models that do not fit together take turns; what another client unloads comes back."""
    monkeypatch.setattr(limits, "OLLAMA_LOOK_MS", 40)
    standin = OllamaStandin(*(Kept(name, memory=600 * 2**20) for name in ("one", "two")))
    await standin.start()
    text = f"""
[devices.ram]
capacity = "1GiB"
reserve = 0
[engines.lab]
driver = "ollama"
url = "{standin.url}"
[models.first]
engine = "lab"
source = "one"
memory = "600MiB"
[models.second]
engine = "lab"
source = "two"
memory = "600MiB"
"""
    async with driving(tmp_path, parsed(text)) as driver, answering(driver) as url:
        for model, name in (("first", "one"), ("second", "two"), ("first", "one")):
            assert (await within(15, chat(url, model)))[0] == 200
            assert standin.listed() == [f"{name}:latest"]
        models: Any = driver.status()["models"]
        assert models["first"]["memory"] == 600 * 2**20
        await StandinWorld(standin, tmp_path).take_away("one")
        await eventually(lambda: driver.status()["models"]["first"]["state"] == "absent")  # type: ignore[index]
        assert (await within(15, chat(url, "first")))[0] == 200
        assert driver.requests() == []
    assert standin.listed() == []
    await standin.die()


def test_no_promise_of_an_engine_was_forgotten() -> None:
    """Pitfall 11: every test of the process contract is kept here, too, or is about processes."""
    ours, theirs = (
        {name for name in vars(contract) if name.startswith("test_")}
        for contract in (ForeignContract, EngineContract)
    )
    assert theirs - ours == ABOUT_PROCESSES


def test_names_are_compared_as_ollama_does() -> None:
    assert full_name("smol") == full_name("Smol:latest") == "smol:latest"
    assert full_name("hf.co:443/a/b") == "hf.co:443/a/b:latest"


# ------------------------------------------------------------------ its config


def parsed(text: str) -> Any:
    return parse(text, base=Path("/srv"), environment={})


def test_a_model_of_ollama_needs_no_more_than_its_name() -> None:
    found = parsed('[models.a]\nengine = "ollama"\nsource = "qwen2.5:7b"\nembedding = true\nprobe = "none"\n')
    assert found.engines["ollama"] == EngineRules("ollama", "ollama")
    assert found.models["a"].source == "qwen2.5:7b" and not found.models["a"].shared


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[models.a]\nengine = "ollama"\n', "source: is missing"),
        (
            '[models.a]\nengine = "ollama"\nsource = "x"\ncontext = 8192\n',
            "context: the driver ollama does not read it",
        ),
        (
            '[engines.e]\ndriver = "ollama"\nurl = "http://me:secret@box:1"\n',
            "url: holds more than an address",
        ),
        ('[engines.e]\ndriver = "ollama"\nbinary = "x"\n', "binary: the driver ollama does not read it"),
    ],
)
def test_what_ollama_cannot_use_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parsed(text)


# ------------------------------------------------------------------ the real one


class RealWorld:
    """A real Ollama on a free port, with two tiny models of its own."""

    def __init__(self, binary: str, root: Path, files: GgufFiles) -> None:
        with socket.socket() as draw:
            draw.bind(("127.0.0.1", 0))
            port = draw.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.root = root
        self.rules = EngineRules("lab", "ollama", url=self.url)
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        env = {
            **kept,
            "HOME": str(root),
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "OLLAMA_MODELS": str(root / "store"),
        }
        with (root / "ollama.log").open("wb") as log:
            self.process = subprocess.Popen(
                [binary, "serve"], env=env, stdout=log, stderr=log, start_new_session=True
            )
        self._make(binary, env, files)

    def _make(self, binary: str, env: dict[str, str], files: GgufFiles) -> None:
        modelfile = self.root / "Modelfile"
        modelfile.write_text(f"FROM {files.chat('5MB')}\nPARAMETER num_thread 1\n")
        for name in ("one", "two"):
            for _ in range(50):  # until the server is up
                done = subprocess.run(
                    [binary, "create", name, "-f", str(modelfile)], env=env, capture_output=True, check=False
                )
                if done.returncode == 0:
                    break
            assert done.returncode == 0, done.stderr

    def model(self, name: str, *, slow: bool = False) -> Model:
        if slow:
            pytest.skip("a tiny model does not load slowly; the stand-in shows it")
        return Model(name, "lab", source=name)

    def present(self) -> set[str]:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/api/ps", timeout=5) as reply:
            return {model["name"].removesuffix(":latest") for model in json.loads(reply.read())["models"]}
        return set()

    async def take_away(self, name: str) -> None:
        await asyncio.to_thread(self._ask, {"model": name, "keep_alive": 0})
        await eventually(lambda: name not in self.present())

    async def bring(self, name: str) -> None:
        await asyncio.to_thread(self._ask, {"model": name})

    def _ask(self, fields: dict[str, Any]) -> None:
        question = urllib.request.Request(f"{self.url}/api/generate", json.dumps(fields).encode())
        urllib.request.urlopen(question, timeout=60).close()

    async def vanish(self) -> None:
        self.end()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(10)


@pytest.mark.skipif(shutil.which("ollama") is None, reason="no ollama on the PATH")
class TestRealOllama(ForeignContract):
    """The same contract against the real server."""

    notice_s = 10.0

    @pytest.fixture
    async def world(self, tmp_path: Path, gguf_files: GgufFiles) -> AsyncIterator[RealWorld]:
        binary = shutil.which("ollama")
        assert binary is not None
        world = RealWorld(binary, tmp_path, gguf_files)
        yield world
        world.end()
