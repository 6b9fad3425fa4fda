"""The systemd driver keeps the contract, through intent files, a real reactor and a host that is played."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from support.running import answering, chat, driving
from support.stopping import stop
from watchbill.catalog import EngineRules, Model
from watchbill.config import parse
from watchbill.core import residency
from watchbill.core.stages import Stage
from watchbill.engines import limits as engines_limits
from watchbill.engines import scripted_server
from watchbill.engines.base import LoadError
from watchbill.engines.scripted import check_script
from watchbill.errors import ConfigError, EngineFailed
from watchbill.probes import CardHealth, Reading
from watchbill.probes.patient import PatientProbe
from watchbill.processes.ports import claim_port
from watchbill.reactor import limits
from watchbill.units import Bytes, Millis
from wire.engine_contract import within
from wire.foreign_contract import Foreign, ForeignContract
from wire.reactor_host import Host, host_in, reacting

GB = 10**9


class UnitWorld:
    """A host with a unit per model, and a reactor that may touch those alone."""

    def __init__(self, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits = monkeypatch
        self.root = tmp_path / "a root"
        self.root.mkdir()
        self.host = host
        self.rules = EngineRules("systemd", "systemd")
        self.reactor = AsyncExitStack()
        self._ports = {name: claim_port(tmp_path / "ports") for name in ("one", "two", "three")}

    def model(self, name: str, *, slow: bool = False, **more: Any) -> Model:
        port = self._ports.get(name, 1)
        script = json.dumps(check_script({"load": "10s" if slow else "10ms"}))
        server = [sys.executable, "-I", "-S", scripted_server.__file__, name, str(port), script]
        self.host.define(f"watchbill-{name}.service", argv=[*server, str(self.root / f"{name}.state")])
        memory = {"ram": Bytes(2**20)}
        return Model(name, "systemd", url=f"http://127.0.0.1:{port}", memory=memory, probe="chat", **more)

    def present(self) -> set[str]:
        return {name for name in self._ports if self.host.pid(f"watchbill-{name}.service")}

    async def take_away(self, name: str) -> None:
        self.host.kill(f"watchbill-{name}.service")
        await eventually(lambda: name not in self.present())

    async def bring(self, name: str) -> None:
        self.model(name)
        process = await asyncio.create_subprocess_exec(
            self.host.systemctl, "start", "--", f"watchbill-{name}.service"
        )
        await process.wait()

    async def vanish(self) -> None:
        self.limits.setattr(limits, "REACTOR_ANSWER_MS", 100)
        await self.reactor.aclose()


@contextmanager
def units_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnitWorld]:
    """A host whose units are looked at often enough for a test."""
    monkeypatch.setattr(engines_limits, "UNIT_LOOK_MS", 40)
    monkeypatch.setattr(limits, "REACTOR_STATE_POLL_MS", 20)
    with host_in(folder / "host") as host:
        yield UnitWorld(folder, host, monkeypatch)


class TestSystemd(ForeignContract):
    """The contract, and what is particular."""

    cancel_ms = (0, 1, 10, 50, 120, 200)

    @pytest.fixture
    async def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UnitWorld]:
        monkeypatch.setattr(limits, "REACTOR_ANSWER_MS", 3_000)
        with units_in(tmp_path, monkeypatch) as world:
            async with world.reactor:
                await world.reactor.enter_async_context(
                    reacting(world.root, world.host, "watchbill-*.service")
                )
                yield world

    async def test_units_are_started_and_stopped_by_the_reactor_alone(
        self, foreign: Foreign, world: UnitWorld
    ) -> None:
        """RES-22: two plain words for systemctl, and no trace of the intent."""
        await within(10, foreign.engine.load(world.model("one"), 1))
        await within(10, foreign.engine.stop("one"))
        assert world.host.calls() == [
            ["start", "--no-block", "--", "watchbill-one.service"],
            ["stop", "--", "watchbill-one.service"],
        ]
        assert list((world.root / "reactor" / "intents").iterdir()) == []

    async def test_a_unit_that_the_reactor_may_not_touch_is_hopeless(
        self, foreign: Foreign, world: UnitWorld
    ) -> None:
        """RES-22: the list is the host's; the same load would be refused again."""
        model = Model("one", "systemd", unit="sshd.service", url="http://127.0.0.1:1")
        with pytest.raises(
            LoadError, match=r"refused by the reactor: sshd.service is not allowed"
        ) as failure:
            await within(10, foreign.engine.load(model, 1))
        assert failure.value.hopeless
        assert world.host.calls() == []

    async def test_a_unit_that_fails_to_start_fails_the_load_at_once(
        self, foreign: Foreign, world: UnitWorld
    ) -> None:
        model = world.model("one")
        world.host.define("watchbill-one.service", states=["activating", "failed"])
        with pytest.raises(
            LoadError, match=r"failed \(exit-code\); see: journalctl -u watchbill-one"
        ) as failure:
            await within(10, foreign.engine.load(model, 1))
        assert not failure.value.hopeless

    async def test_a_unit_that_is_not_there_fails_the_load_with_systemds_words(
        self, foreign: Foreign, world: UnitWorld
    ) -> None:
        model = Model("ghost", "systemd", url="http://127.0.0.1:1")
        with pytest.raises(LoadError, match=r"Unit watchbill-ghost.service not found"):
            await within(10, foreign.engine.load(model, 1))

    async def test_a_unit_that_hangs_is_dead_and_its_memory_comes_back(
        self, foreign: Foreign, world: UnitWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R31: it does not answer, so it is useless; it still runs, so it must be stopped."""
        await within(10, foreign.engine.load(world.model("one"), 5))
        monkeypatch.setattr(engines_limits, "HEALTH_MS_MAX", 50)
        pid = world.host.pid("watchbill-one.service")
        assert pid is not None
        stop(pid)
        await eventually(lambda: foreign.deaths != [])
        assert foreign.deaths[0][:2] == ("one", 5)
        assert world.present() == {"one"}
        await within(10, foreign.engine.stop("one", hard=True))
        assert world.present() == set()

    async def test_a_stop_that_systemd_refuses_is_an_error_and_can_be_tried_again(
        self, foreign: Foreign, world: UnitWorld
    ) -> None:
        await within(10, foreign.engine.load(world.model("one"), 1))
        world.host.define("watchbill-one.service", exit=1, states=["active"])
        with pytest.raises(EngineFailed, match="does not stop"):
            await within(10, foreign.engine.stop("one"))
        world.model("one")
        await within(10, foreign.engine.stop("one"))
        assert world.present() == set()

    async def test_an_intent_that_nobody_took_is_withdrawn(self, foreign: Foreign, world: UnitWorld) -> None:
        """A reactor that starts later must not find old intents. What mends it works when it is pasted."""
        await world.vanish()
        with pytest.raises(
            LoadError, match=r"watchbill reactor --root '/.*/a root' --allow watchbill-one.service"
        ):
            await within(10, foreign.engine.load(world.model("one"), 1))
        assert list((world.root / "reactor" / "intents").iterdir()) == []
        assert world.host.calls() == []

    async def test_the_last_unit_that_no_reactor_stopped_ends_the_silence_when_it_is_stopped(
        self, foreign: Foreign, world: UnitWorld
    ) -> None:
        """RES-22: with nothing else in memory nobody looked any more, and nothing was ever loaded again."""
        await within(10, foreign.engine.load(world.model("one"), 1))
        await world.vanish()
        with pytest.raises(EngineFailed, match="no reactor answered"):
            await within(10, foreign.engine.stop("one"))
        assert (foreign.states[-1].silence is None, foreign.states[-1].serves) == (False, True)
        async with reacting(world.root, world.host, "watchbill-*.service"):
            world.limits.setattr(limits, "REACTOR_ANSWER_MS", 3_000)
            await within(10, foreign.engine.stop("one"))
            await eventually(lambda: foreign.states[-1].silence is None)


# ------------------------------------------------------------------ its config

UNIT = '[models.a]\nengine = "systemd"\nmemory = "1GB"\nurl = "http://127.0.0.1:9101"\n'


def test_a_unit_needs_an_address_and_its_memory() -> None:
    found = parse(UNIT + 'unit = "vllm.service"\n', base=Path("/srv"), environment={}).models["a"]
    assert (found.unit, found.url, found.memory) == ("vllm.service", "http://127.0.0.1:9101", {"ram": 10**9})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (UNIT.replace("memory", "#"), "1: models.a.memory: is missing; the driver systemd needs it"),
        (UNIT.replace("url", "#"), "1: models.a.url: is missing; the driver systemd needs it"),
        (UNIT + 'unit = "a*.service"\n', "5: models.a.unit: 'a.*' cannot be the name of a unit"),
        (UNIT + 'unit = "-x.service"\n', "5: models.a.unit: '-x.service' cannot be the name of a unit"),
        (UNIT + 'unit = "dbus.socket"\n', "5: models.a.unit: 'dbus.socket' cannot be the name of a unit"),
        (UNIT.replace("9101", "9101/?key=1"), "4: models.a.url: holds more than an address"),
        (UNIT + "context = 4096\n", "5: models.a.context: the driver systemd does not read it"),
        (
            '[models.a]\nengine = "process"\ncommand = "x"\nurl = "http://x"\n',
            "4: models.a.url: the driver process",
        ),
    ],
)
def test_what_a_unit_cannot_be_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(text, base=Path("/srv"), environment={})


# ------------------------------------------------------------------ a daemon that is killed, and cards


async def test_a_unit_that_a_killed_daemon_was_loading_is_stopped_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: its memory is neither lost nor forgotten, and nobody has to stop it by hand."""
    with units_in(tmp_path, monkeypatch) as world:
        async with reacting(world.root, world.host, "watchbill-*.service"):
            model = world.model("one", slow=True)
            asked = {"root": str(world.root), "rules": {"name": "systemd", "driver": "systemd"}}
            asked["model"] = {"name": "one", "engine": "systemd", "url": model.url, "probe": "chat"}  # type: ignore[assignment]
            program = Path(__file__).parent / "programs" / "host_engine.py"
            daemon = await asyncio.create_subprocess_exec(sys.executable, str(program), json.dumps(asked))
            await eventually(lambda: world.present() == {"one"})
            daemon.kill()
            await daemon.wait()
            foreign = Foreign(world)
            await eventually(lambda: world.present() == set())
            await within(20, foreign.engine.load(world.model("two"), 1))
            await within(20, foreign.engine.close())
            assert world.present() == set()
            assert list((world.root / "run").glob("units-*")) == []


async def test_a_unit_of_a_killed_daemon_that_is_asked_for_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: what is warm need not be loaded again."""
    with host_in(tmp_path / "host") as host:
        world = UnitWorld(tmp_path, host, monkeypatch)
        async with reacting(world.root, host, "watchbill-*.service"):
            first = Foreign(world)
            await within(20, first.engine.load(world.model("one"), 1))
            first.engine._watcher.cancel()  # type: ignore[attr-defined]  # dead: it neither looks nor closes
            pid = host.pid("watchbill-one.service")
            second = Foreign(world)
            second.engine._watcher.cancel()  # type: ignore[attr-defined]  # the load is the first to come
            await within(20, second.engine.load(world.model("one"), 1))
            assert host.pid("watchbill-one.service") == pid
            await within(20, second.engine.close())
            assert world.present() == set()


SMALL = 2 * GB


async def test_units_that_no_reactor_stops_are_stopped_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7, RES-22: a reactor that was away for longer than a unit may take to stop left the unit's memory lost for good,
    and the model in quarantine. Meanwhile every other unit serves, and none leaves for a load that cannot be."""
    monkeypatch.setattr(limits, "REACTOR_ANSWER_MS", 300)
    monkeypatch.setattr(residency, "STOP_LIMIT_MS", 400)
    with units_in(tmp_path, monkeypatch) as world:
        sizes = {"one": 20 * GB, "two": 20 * GB, "three": SMALL}
        text = "[devices.'gpu:0']\ncapacity = '24GB'\nreserve = 0\n"
        for name, size in sizes.items():
            text += f"[models.{name}]\nengine = 'systemd'\nurl = '{world.model(name).url}'\nprobe = 'chat'\n"
            text += f"memory = {{ 'gpu:0' = {size} }}\n"
        catalog = parse(text, base=Path("/srv"), environment={})
        card = Card(world.host, {f"watchbill-{name}.service": size for name, size in sizes.items()})
        await world.reactor.enter_async_context(reacting(world.root, world.host, "watchbill-*.service"))
        async with driving(world.root, catalog, PatientProbe(card)) as driver, answering(driver) as url:
            for name in ("three", "one"):
                assert (await within(30, chat(url, name)))[0] == 200
            await world.reactor.aclose()
            waiting = asyncio.create_task(chat(url, "two"))
            state = driver._core.state
            await eventually(lambda: state.models["one"].silence is not None)
            assert (await within(10, chat(url, "three")))[0] == 200
            told: set[int] = set()  # when it was told to stop

            def was_told_often() -> bool:
                told.add(state.models["one"].since)
                return len(told) > residency.STOP_TRIES

            await eventually(was_told_often)
            assert (state.models["one"].stage, state.models["one"].trouble) == (Stage.STOPPING, None)
            assert state.models["three"].stage is Stage.READY
            status: Any = driver.status()
            assert "no reactor answered" in status["models"]["one"]["reason"]
            assert "no reactor answered" in status["models"]["two"]["reason"]
            assert {alert["kind"] for alert in status["alerts"]} == {"host"}
            async with reacting(world.root, world.host, "watchbill-*.service"):
                assert (await within(30, waiting))[0] == 200
                assert world.present() == {"two", "three"}
                await eventually(lambda: state.models["two"].silence is None)


class Card:
    """A card whose memory is what the units that run on it declare; its driver lists no processes."""

    def __init__(self, host: Host, sizes: dict[str, int]) -> None:
        self._host, self._sizes = host, sizes

    def read(self) -> dict[str, Reading]:
        used = sum(size for unit, size in self._sizes.items() if self._host.pid(unit))
        now = Millis(time.monotonic_ns() // 1_000_000)
        return {"gpu:0": Reading(Bytes(24 * GB), Bytes(24 * GB - used), now, health=CardHealth())}


async def test_units_that_fill_a_card_take_turns_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RES-01, FLEET-04: what our own unit holds on a card is ours, so the other one can come in its place."""
    with units_in(tmp_path, monkeypatch) as world:
        text = "[devices.'gpu:0']\ncapacity = '24GB'\nreserve = 0\n"
        for name in ("one", "two"):
            text += f"[models.{name}]\nengine = 'systemd'\nurl = '{world.model(name).url}'\nprobe = 'chat'\n"
            text += "memory = { 'gpu:0' = '23GB' }\n"
        catalog = parse(text, base=Path("/srv"), environment={})
        card = Card(world.host, {f"watchbill-{name}.service": 23 * GB for name in ("one", "two")})
        async with (
            reacting(world.root, world.host, "watchbill-*.service"),
            driving(world.root, catalog, PatientProbe(card)) as driver,
            answering(driver) as url,
        ):
            for name in ("one", "two", "one"):
                assert (await within(30, chat(url, name)))[0] == 200
                assert world.present() == {name}
                await driver._look()
                devices: Any = driver.status()["devices"]
                assert devices["gpu:0"]["constraint"] is None
        assert world.present() == set()
