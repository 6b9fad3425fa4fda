"""Any program can be an engine, and keeps the contract: here our own scripted server, started by command line."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eventually import eventually
from watchbill.catalog import EngineRules, Model
from watchbill.engines import scripted_server
from watchbill.engines.base import LoadError
from watchbill.engines.process import check_command, fill, signal_number, split_command
from watchbill.engines.registry import make_engine
from watchbill.engines.scripted import check_script
from watchbill.errors import ConfigError
from watchbill.processes import Withheld
from watchbill.units import Millis
from wire.engine_contract import EngineContract, Engines, Variant, within
from wire.test_engine_scripted import SCRIPTS

RULES = {"name": "process", "driver": "process"}


class TestProcess(EngineContract):
    """The contract, and what is particular."""

    def variant(self, kind: str, name: str, tmp_path: Path) -> Variant:
        script = shlex.quote(json.dumps(check_script(SCRIPTS[kind])))
        command = f"{sys.executable} -I -S {scripted_server.__file__} \\\n  ${{MODEL}} ${{PORT}} {script} ${{SOURCE}}"
        state = str(tmp_path / f"state of {name}")
        return RULES, {"name": name, "engine": "process", "command": command, "source": state}

    async def test_placeholders_arrive_as_one_word_each(self, engines: Engines, tmp_path: Path) -> None:
        """P8: whatever is in a source, it is one word and no shell sees it."""
        nasty = "a b;$(touch x) 'q\" ${PORT} `id` \\ *\n--flag"
        said = tmp_path / "said.json"
        tell = "import json, os, sys; json.dump([sys.argv[1:], os.environ['PORT']], open(sys.argv[1], 'w'))"
        command = f"{sys.executable} -c {shlex.quote(tell)} {said} ${{PORT}} ${{SOURCE}} x${{MODEL}}y --m=${{SOURCE}}"
        engine = engines.make(RULES)
        with pytest.raises(LoadError, match="exited with status 0"):
            await within(10, engine.load(Model("m", "process", source=nasty, command=command), 1))
        (_, port, *rest), port_of_environment = json.loads(said.read_text())
        assert port == port_of_environment
        assert rest == [nasty, "xmy", f"--m={nasty}"]

    async def test_a_program_is_asked_for_the_name_that_it_knows(self, up: Any) -> None:
        """LANE-01: vLLM refuses a request for any other name than the one it serves."""
        engine, model = up("healthy", served_as="vendor/big-120b")
        warm = await within(10, engine.load(model, 1))
        assert warm.endpoint.upstream_model == "vendor/big-120b"

    async def test_a_stop_command_is_asked_before_any_signal(self, up: Any, tmp_path: Path) -> None:
        note = tmp_path / "note"
        stop = f"sh -c 'echo stopping $0 on $1 > {note}; kill -KILL $0' ${{PID}} ${{PORT}}"
        engine, model = up("ignores-term", stop=stop)
        warm = await within(10, engine.load(model, 1))
        await within(3, engine.stop(model.name))
        assert note.read_text() == f"stopping {warm.pid} on {warm.endpoint.port}\n"

    async def test_a_stop_command_that_hangs_does_not_stop_the_ladder(
        self, engines: Engines, up: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R35: the polite step has a bound, too."""
        monkeypatch.setattr("watchbill.processes.limits.STOP_ASK_MS", 300)
        engine, model = up("healthy", stop="sleep 60")
        await within(10, engine.load(model, 1))
        await within(5, engine.stop(model.name))
        assert engines.leftovers() == []

    async def test_a_stop_command_that_is_not_there_does_not_stop_the_ladder(
        self, up: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """R35: a polite step that fails is over at once."""
        monkeypatch.setattr("watchbill.processes.limits.STOP_ASK_MS", 60_000)
        engine, model = up("healthy", stop="/nowhere/stop-it")
        await within(10, engine.load(model, 1))
        await within(10, engine.stop(model.name))
        assert "asking m to stop failed" in caplog.text

    async def test_stop_names_a_signal(self, engines: Engines, up: Any, tmp_path: Path) -> None:
        told = tmp_path / "told"
        program = tmp_path / "server.py"
        program.write_text(
            "import http.server, os, pathlib, signal, sys\n"
            "def note(number, _):\n"
            "    pathlib.Path(sys.argv[2]).write_text(signal.Signals(number).name)\n"
            "    os._exit(0)\n"
            "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, note)\n"
            "handler = http.server.SimpleHTTPRequestHandler\n"
            "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), handler).serve_forever()\n"
        )
        command = f"{sys.executable} {program} ${{PORT}} {told}"
        engine = engines.make(RULES)
        await within(10, engine.load(Model("m", "process", command=command, health="/", stop="SIGINT"), 1))
        await within(5, engine.stop("m"))
        assert told.read_text() == "SIGINT"

    async def test_an_engine_gets_none_of_the_daemons_secrets(
        self, engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the gateway's keys nor the way to systemd; what the model's own table says, and the rest, it gets."""
        hidden = {"BOSS_KEY": "k", "WATCHBILL_API_KEY": "k", "NOTIFY_SOCKET": "/x", "WATCHBILL_OTHER": "k"}
        hidden["COPY_OF_BOSS_KEY"] = "k"
        kept = {"LD_LIBRARY_PATH": "/opt/lib", "CUDA_CACHE_PATH": "/c", "LC_ALL": "C.UTF-8", "HF_TOKEN": "t"}
        for name, value in (hidden | kept | {"GIVEN_KEY": "outer"}).items():
            monkeypatch.setenv(name, value)
        seen = tmp_path / "environment"
        command = f"sh -c 'env > {seen}.part; mv {seen}.part {seen}; exec {sys.executable} -m http.server ${{PORT}}'"
        model = Model("m", "process", command=command, health="/", env={"GIVEN_KEY": "inner"})
        withheld = Withheld({"BOSS_KEY", "GIVEN_KEY"})
        engine = make_engine(
            EngineRules(**RULES), root=engines.root, on_death=lambda *_: None, withheld=withheld
        )
        engines.made.append(engine)
        await within(20, engine.load(model, 1))
        found = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
        assert not hidden.keys() & found.keys()
        assert found.items() >= (kept | {"GIVEN_KEY": "inner", "PATH": os.environ["PATH"]}).items()

    async def test_a_program_that_takes_a_key_from_its_environment_gets_one(
        self, engines: Engines, tmp_path: Path
    ) -> None:
        """A port on loopback is open to every local user: `${KEY}` in `env` closes it."""
        program = tmp_path / "keyed.py"
        program.write_text(
            "import http.server, os, sys\n"
            "class Handler(http.server.BaseHTTPRequestHandler):\n"
            "    def do_GET(self):\n"
            "        known = self.headers['Authorization'] == 'Bearer ' + os.environ['SERVER_KEY']\n"
            "        self.send_response(200 if known else 401); self.end_headers()\n"
            "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()\n"
        )
        command = f"{sys.executable} {program} ${{PORT}}"
        model = Model("m", "process", command=command, health="/", env={"SERVER_KEY": "${KEY}"})
        warm = await within(20, engines.make(RULES).load(model, 1))
        assert len(warm.endpoint.key) >= 32
        assert warm.endpoint.key.encode() not in Path(f"/proc/{warm.pid}/cmdline").read_bytes()

    async def test_a_command_that_is_not_there_is_hopeless(self, engines: Engines) -> None:
        engine = engines.make(RULES)
        with pytest.raises(LoadError, match="cannot start /nowhere/server: No such file") as failure:
            await within(5, engine.load(Model("m", "process", command="/nowhere/server ${PORT}"), 1))
        assert failure.value.hopeless

    async def test_a_command_that_cannot_be_read_is_hopeless(self, engines: Engines) -> None:
        engine = engines.make(RULES)
        with pytest.raises(LoadError, match="PROT") as failure:
            await within(5, engine.load(Model("m", "process", command="server ${PROT}"), 1))
        assert failure.value.hopeless

    @pytest.mark.parametrize(
        ("last", "advice"),
        [("8080", r"its command has no \$\{PORT\}"), ("${PORT}", "does it listen on 127.0.0.1")],
    )
    async def test_a_program_that_listens_elsewhere_is_said(
        self, engines: Engines, last: str, advice: str
    ) -> None:
        """Issue 19: it runs, and nothing answers on its port: what to look at is in the message."""
        command = f"{sys.executable} -c 'import time; time.sleep(60)' {last}"
        model = Model("m", "process", command=command, load_timeout_ms=Millis(1_500))
        with pytest.raises(LoadError, match=rf"nothing answers /\S* on port \d+ .*it was started.*{advice}"):
            await within(20, engines.make(RULES).load(model, 1))

    @pytest.mark.parametrize("devices", [("ram",), ("gpu:0",)])
    async def test_a_program_without_a_card_is_told_how_to_get_one(
        self, engines: Engines, devices: tuple[str, ...]
    ) -> None:
        """RES-02: a model sees its own cards only. What PyTorch says then names no cause."""
        line = "RuntimeError: No CUDA GPUs are available"
        command = f"{sys.executable} -c 'import sys; sys.exit(\"{line}\")' ${{PORT}}"
        model = Model("m", "process", command=command, devices=devices)
        with pytest.raises(LoadError) as failure:
            await within(20, engines.make(RULES).load(model, 1))
        is_told = 'write devices = ["gpu:0"] in its table' in str(failure.value)
        assert (is_told, failure.value.hopeless) == ((True, True) if devices == ("ram",) else (False, False))

    async def test_its_log_is_kept_per_model(self, engines: Engines, up: Any) -> None:
        engine, model = up("healthy", name="org/model:7b")
        await within(10, engine.load(model, 1))
        logs = list((engines.root / "logs").glob("org_model_7b-*.log"))
        assert len(logs) == 1
        await eventually(lambda: "scripted: ready" in logs[0].read_text())


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_looked_at_again(source: str, model: str) -> None:
    """R51: no second expansion, byte-equal."""
    values = {"SOURCE": source, "MODEL": model}
    assert fill("${SOURCE}", values) == source
    assert fill("a${MODEL}b${SOURCE}c", values) == f"a{model}b{source}c"


def test_a_llama_swap_line_is_understood() -> None:
    command = """
      /opt/llama-server --port ${PORT} \\
        --model '/models/a b.gguf' \\
        -ngl 99
      --ctx-size 4096
    """
    words = [fill(word, {"PORT": "9"}) for word in split_command(command)]
    assert words == [
        "/opt/llama-server", "--port", "9", "--model", "/models/a b.gguf", "-ngl", "99", "--ctx-size", "4096"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"command": ""}, "command"),
        ({"command": "x 'y"}, "closing quotation"),
        ({"command": "x ${HOME}"}, "HOME"),
        ({"command": "x ${SOURCE}"}, "SOURCE"),
        ({"command": "x ${PID}"}, "PID"),
        ({"command": "x --api-key ${KEY}"}, "KEY"),
        ({"command": "x", "env": {"A": "${B}"}}, "B"),
        ({"command": "x", "stop": "kill ${WHO}"}, "WHO"),
    ],
)
def test_a_command_that_cannot_work_is_a_config_error(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_command(Model(**{"name": "m", "engine": "process"} | fields))


def test_signals_are_told_from_commands() -> None:
    assert signal_number("SIGINT") == signal_number("int") == 2
    assert signal_number("stop-it ${PID}") is None


def test_an_unknown_driver_is_a_config_error_that_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'magic'.*llamacpp, ollama, process, remote, scripted"):
        make_engine(EngineRules("e", "magic"), root=tmp_path, on_death=lambda *_: None)


def test_a_shared_engine_owns_no_processes(tmp_path: Path) -> None:
    """RES-09: shared engines are routed to, never started."""
    with pytest.raises(ConfigError, match="cannot be shared"):
        make_engine(EngineRules("e", "process", shared=True), root=tmp_path, on_death=lambda *_: None)
