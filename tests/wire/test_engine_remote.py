"""Shared engines are routed to and never managed, from the config to the answer."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.running import answering, chat, driving
from watchbill.catalog import Catalog, EngineRules, Model
from watchbill.config import parse
from watchbill.engines.base import Endpoint, LoadError, Router, endpoint_of
from watchbill.engines.registry import make_engine
from watchbill.errors import ConfigError, RequestError
from watchbill.runtime.ticket import Submission
from wire.engine_contract import within
from wire.ollama_standin import Kept, OllamaStandin


def config(url: str, driver: str = "remote") -> Catalog:
    text = f"""
[devices.ram]
reserve = 0
[engines.lab]
driver = "{driver}"
url = "{url}"
shared = true
[models.talker]
engine = "lab"
source = "one"
concurrency = 2
[models.near]
engine = "scripted"
memory = "1MiB"
"""
    return parse(text, base=Path("/srv"), environment={})


@pytest.fixture
async def server() -> AsyncIterator[OllamaStandin]:
    """Somebody else's server; it writes down what it is asked."""
    server = OllamaStandin(Kept("one"))
    await server.start()
    yield server
    await server.die()


def closed_port() -> int:
    with socket.socket() as draw:
        draw.bind(("127.0.0.1", 0))
        return draw.getsockname()[1]


@pytest.mark.parametrize("driver", ["remote", "ollama"])
async def test_a_shared_model_is_granted_at_once_and_answers(
    tmp_path: Path, server: OllamaStandin, driver: str
) -> None:
    """RES-09: routed to under its own name there; nothing is loaded, probed or unloaded, not even at the end. What an
    Ollama tells about its models is read."""
    async with driving(tmp_path, config(server.url, driver)) as driving_, answering(driving_) as url:
        status, answer = await within(10, chat(url))
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
        models: Any = driving_.status()["models"]
        assert (models["talker"]["state"], models["talker"]["memory"]) == ("ready", 0)
        with pytest.raises(RequestError, match="shared engine, which is never managed"):
            await within(5, driving_.evict("talker", force=True))
        assert "already in memory" in await within(5, driving_.load("talker"))
    work = [(path, body) for _, path, body in server.asked if path not in ("/api/tags", "/api/ps")]
    assert [(path, body["model"]) for path, body in work] == [("/v1/chat/completions", "one")]


async def test_a_shared_server_that_is_not_there_fails_the_request_and_nothing_else(tmp_path: Path) -> None:
    """Invariant 2: nobody hangs; the scheduler goes on, and a server that comes back answers."""
    port = closed_port()
    async with driving(tmp_path, config(f"http://127.0.0.1:{port}")) as driver, answering(driver) as url:
        status, answer = await within(10, chat(url))
        assert (status, answer["error"]["code"]) == (502, "engine_failed")
        assert driver.is_ready() and driver.requests() == []
        late = OllamaStandin(Kept("one"))
        late.port = port
        await late.start()
        try:
            assert (await within(10, chat(url)))[0] == 200
        finally:
            await late.die()


async def test_a_shared_model_holds_its_slots(tmp_path: Path, server: OllamaStandin) -> None:
    """RES-10: at its concurrency a request waits."""
    async with driving(tmp_path, config(server.url)) as driver:
        tickets = [driver.submit(Submission("talker")) for _ in range(3)]
        starts = [await within(1, ticket.granted()) for ticket in tickets[:2]]
        assert {start.endpoint.port for start in starts} == {server.port}
        assert tickets[2].is_waiting
        tickets[0].finish(ok=True)
        await within(1, tickets[2].granted())
        for ticket in tickets:
            ticket.close()


async def test_a_reload_moves_a_shared_model_to_its_new_address(
    tmp_path: Path, server: OllamaStandin
) -> None:
    async with (
        driving(tmp_path, config(f"http://127.0.0.1:{closed_port()}")) as driver,
        answering(driver) as url,
    ):
        assert (await within(10, chat(url)))[0] == 502
        await within(5, driver.reload(config(server.url)))
        assert (await within(10, chat(url)))[0] == 200


async def test_a_model_that_becomes_shared_while_it_is_loaded_is_answered_by_the_other_server(
    tmp_path: Path, server: OllamaStandin
) -> None:
    """The old engine is stopped, and its end must not take the new address away."""
    shared = config(server.url)
    own = parse(
        '[devices.ram]\nreserve = 0\n[models.talker]\nengine = "scripted"\nmemory = "1MiB"\n',
        base=Path("/srv"),
        environment={},
    )
    async with driving(tmp_path, own) as driver, answering(driver) as url:
        assert (await within(10, chat(url)))[0] == 200
        assert server.asked == []
        await within(5, driver.reload(shared))
        for _ in range(2):
            assert (await within(10, chat(url)))[0] == 200
        assert [path for _, path, _ in server.asked] == ["/v1/chat/completions"] * 2


# ------------------------------------------------------------------ the engine by itself


async def test_a_load_only_looks_whether_somebody_is_there(tmp_path: Path, server: OllamaStandin) -> None:
    """RES-09: it is a question, not a load; "already there" is a success."""
    engine = make_engine(
        EngineRules("lab", "remote", url=server.url, shared=True), root=tmp_path, on_death=lambda *_: None
    )
    assert isinstance(engine, Router) and not engine.capabilities.owned
    for attempt in (1, 2):
        warm = await within(5, engine.load(Model("m", "lab"), attempt))
    assert warm.endpoint == Endpoint("127.0.0.1", server.port, upstream_model="m")
    await engine.stop("m", hard=True)
    await engine.close()
    assert [path for _, path, _ in server.asked] == ["/v1/models"] * 2
    assert server.loads == server.unloads == []


async def test_a_load_of_a_server_that_is_not_there_says_so(tmp_path: Path) -> None:
    rules = EngineRules("lab", "remote", url=f"http://127.0.0.1:{closed_port()}", shared=True)
    engine = make_engine(rules, root=tmp_path, on_death=lambda *_: None)
    with pytest.raises(LoadError, match="no answer from http://127"):
        await within(5, engine.load(Model("m", "lab"), 1))
    await engine.load(Model("m", "lab", probe="none"), 1)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://box.lan", Endpoint("box.lan", 80)),
        ("https://box.lan/v1/", Endpoint("box.lan", 443, tls=True)),
        ("https://box.lan:8443/llm/v1", Endpoint("box.lan", 8443, "/llm", tls=True)),
        ("http://[::1]:9000/api", Endpoint("::1", 9000, "/api")),
    ],
)
def test_an_address_becomes_an_endpoint(url: str, endpoint: Endpoint) -> None:
    assert endpoint_of(url) == endpoint


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@box", "http://box?x=1", "http://box#y", "box:9000", "http://:1", "http://box:99999"],
)
def test_what_is_more_or_less_than_an_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        endpoint_of(url)
    assert "secret" not in str(refusal.value)


# ------------------------------------------------------------------ its config


def test_a_remote_engine_is_shared_without_saying_so() -> None:
    text = '[engines.lab]\ndriver = "remote"\nurl = "https://box.lan/v1"\n[models.a]\nengine = "lab"\n'
    found = parse(text, base=Path("/srv"), environment={})
    assert found.engines["lab"].shared and found.models["a"].shared


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[engines.lab]\ndriver = "remote"\n', "1: engines.lab: a shared engine needs its address"),
        ('[models.a]\nengine = "remote"\n', "2: models.a.engine: needs an address; add .engines.remote."),
        ('[engines.lab]\ndriver = "remote"\nurl = "http://x"\nshared = false\n', "4: engines.lab.shared: .*always is"),
        ('[engines.lab]\ndriver = "remote"\nurl = "http://x"\n[models.a]\nengine = "lab"\nidle = "1m"\n',
         "6: models.a.idle: the engine lab is shared"),
        ('[engines.lab]\ndriver = "process"\nshared = true\n', "3: engines.lab.shared: the driver process does not"),
        ('[engines.lab]\ndriver = "systemd"\nshared = true\n', "3: engines.lab.shared: the driver systemd does not"),
    ],
)  # fmt: skip
def test_what_a_shared_engine_cannot_be_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(text, base=Path("/srv"), environment={})
