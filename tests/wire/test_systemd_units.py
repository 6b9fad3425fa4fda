"""Unit files: systemd accepts them, splits their commands into the words we meant, and keeps rivals apart."""

import configparser
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eventually import wait_until
from watchbill.catalog import Catalog, Device, EngineRules, Model
from watchbill.cli import run as run_cli
from watchbill.config import parse
from watchbill.errors import ConfigError
from watchbill.reactor.units import MARK, Programs, daemon_unit, model_units, reactor_unit
from wire.reactor_host import host_in

CONFIG = """
[devices.gpu]
capacity = "24GB"
[models.big]
engine = "systemd"
url = "http://127.0.0.1:9101"
command = "{python} -m http.server ${{PORT}}"
memory = {{ "gpu:0" = "20GB", "gpu:3" = "20GB" }}
group = "heavy"
env = {{ GREETING = "50% of $HOME" }}
[models.other]
engine = "systemd"
url = "http://127.0.0.1:9102"
image = "ghcr.io/ggml-org/llama.cpp:server"
command = "--port ${{PORT}} --model ${{SOURCE}}"
source = "/models/other.gguf"
memory = {{ "gpu:0" = "20GB" }}
group = "heavy"
[models.elsewhere]
engine = "systemd"
url = "http://127.0.0.1:9103"
command = "{python} -m http.server ${{PORT}}"
memory = "1GB"
group = "heavy"
[models.theirs]
engine = "systemd"
unit = "vllm.service"
url = "http://127.0.0.1:9104"
memory = "1GB"
"""


def catalog() -> Catalog:
    return parse(CONFIG.format(python=sys.executable), base=Path("/srv"), environment={})


def read(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def one(command: str, **more: Any) -> str:
    """The unit of a single model."""
    model = Model("m", "systemd", url="http://127.0.0.1:9101", command=command, **more)
    found = model_units(
        Catalog({"ram": Device("ram")}, {"systemd": EngineRules("systemd", "systemd")}, {"m": model}), None
    )
    return found["watchbill-m.service"]


def test_every_model_that_says_how_it_runs_gets_its_unit() -> None:
    """RES-22: a plain unit for a command, a quadlet for an image, none for a unit that is the operator's own."""
    assert set(model_units(catalog(), "me")) == {
        "watchbill-big.service", "watchbill-other.container", "watchbill-elsewhere.service"
    }  # fmt: skip


def test_members_of_a_group_on_one_device_conflict() -> None:
    """RES-08: also when somebody starts one by hand. Models without a common device do not exclude each other."""
    found = model_units(catalog(), "me")
    big, other = read(found["watchbill-big.service"]), read(found["watchbill-other.container"])
    assert big["Unit"]["Conflicts"] == "watchbill-other.service"
    assert other["Unit"]["Conflicts"] == other["Unit"]["After"] == "watchbill-big.service"
    assert "After" not in big["Unit"]
    assert "Conflicts" not in read(found["watchbill-elsewhere.service"])["Unit"]


def test_a_container_gets_its_port_its_file_and_its_cards() -> None:
    text = model_units(catalog(), "me")["watchbill-other.container"]
    for line in (
        "Image=ghcr.io/ggml-org/llama.cpp:server", "PublishPort=127.0.0.1:9102:9102",
        "Volume=/models/other.gguf:/models/other.gguf:ro", "AddDevice=nvidia.com/gpu=0",
        "Exec=--port 9102 --model /models/other.gguf",
    ):  # fmt: skip
        assert f"\n{line}\n" in text


def test_a_service_sees_its_cards_alone_and_its_environment_as_written() -> None:
    text = model_units(catalog(), "me")["watchbill-big.service"]
    assert "\nEnvironment=CUDA_VISIBLE_DEVICES=0,3\n" in text
    assert '\nEnvironment="GREETING=50%% of $HOME"\n' in text
    assert "\nUser=me\n" in text


def test_the_reactors_own_unit_allows_the_units_of_the_config_and_no_other() -> None:
    programs = Programs("/opt/wb/bin/watchbill", Path("/var/lib/watchbill"), None, "me")
    command = read(reactor_unit(programs, catalog()))["Service"]["ExecStart"]
    assert command.count("--allow") == 4 and "--allow vllm.service" in command and "*" not in command
    assert "--user" not in command
    mine = Programs("/opt/wb/bin/watchbill", Path("/var/lib/watchbill"), None, None)
    assert "--user" in read(reactor_unit(mine, catalog()))["Service"]["ExecStart"]


def test_the_daemons_own_unit_restarts_it_when_it_fails() -> None:
    programs = Programs("/opt/wb/bin/watchbill", Path("/srv/my state"), Path("/etc/watchbill.toml"), "me")
    service = read(daemon_unit(programs))["Service"]
    assert (
        service["ExecStart"] == '/opt/wb/bin/watchbill up --root "/srv/my state" --config /etc/watchbill.toml'
    )
    assert (service["Restart"], service["KillMode"], service["User"]) == ("on-failure", "mixed", "me")
    assert (service["Type"], int(service["WatchdogSec"]) > 0) == ("notify", True)  # R57, R58


@pytest.mark.parametrize("command", ["-rm -rf /", "@x y", "!x", "+x", ":x"])
def test_a_command_that_systemd_would_read_otherwise_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the command of a unit"):
        one(command)


@given(st.text(min_size=1))
def test_what_a_model_brings_stays_within_its_line(source: str) -> None:
    """R51: no source, whatever is in it, begins a line, a section or an assignment of its own."""
    try:
        text = one("serve ${SOURCE} ${PORT}", source=source)
    except ConfigError:
        return
    assert [line.partition("=")[0] for line in text.splitlines()] == [
        line.partition("=")[0] for line in one("serve x ${PORT}").splitlines()
    ]


# ------------------------------------------------------------------ systemd itself

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt install systemd"
)


@needs_systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """RES-22: verified by the program that will read them."""
    program = tmp_path / "watchbill"
    program.symlink_to("/bin/true")
    programs = Programs(str(program), tmp_path, None, None)
    files = {name: text for name, text in model_units(catalog(), None).items() if name.endswith(".service")}
    files |= {
        "watchbill.service": daemon_unit(programs),
        "watchbill-reactor.service": reactor_unit(programs, catalog()),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    # The rival that is a container has its service made by Podman; here it is only a name.
    (tmp_path / "watchbill-other.service").write_text("[Service]\nExecStart=/bin/true\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--user", *(str(tmp_path / name) for name in files)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    # Those about the host's own units are none of ours: the runtime folder of a test may be too long for its sockets.
    told = [line for line in done.stderr.splitlines() if not line.startswith("/usr/lib/systemd/")]
    complaints = [line for line in told if str(tmp_path) in line or "watchbill" in line]
    assert (done.returncode, complaints) == (0, [])


@needs_systemd
def test_systemd_complains_about_a_broken_unit(tmp_path: Path) -> None:
    """The test above can fail."""
    (tmp_path / "bad.service").write_text(
        one("serve").replace("ExecStart=serve", "ExecStart=/nowhere/at/all")
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--user", str(tmp_path / "bad.service")],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert "/nowhere/at/all" in done.stderr


GENERATOR = "/usr/lib/systemd/system-generators/podman-system-generator"


@pytest.mark.skipif(not Path(GENERATOR).exists(), reason="no Podman: apt install podman")
def test_podman_accepts_the_quadlet(tmp_path: Path) -> None:
    name = "watchbill-other.container"
    (tmp_path / name).write_text(model_units(catalog(), None)[name])
    done = subprocess.run(
        [GENERATOR, "--dryrun"],
        env={"QUADLET_UNIT_DIRS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "ExecStart=" in done.stdout, done.stderr


# ------------------------------------------------------------------ the commands


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "watchbill.toml"
    path.write_text(CONFIG.format(python=sys.executable))
    return path


def test_the_command_writes_files_and_overwrites_only_its_own(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "systemd",
        "units",
        "--config",
        str(config),
        "--dir",
        str(tmp_path / "out"),
        "--root",
        str(tmp_path),
    ]
    assert run_cli([*words, "--self"]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"watchbill-big.service", "watchbill-other.container", "watchbill-elsewhere.service",
                       "watchbill.service", "watchbill-reactor.service"}  # fmt: skip
    assert all(path.read_text().startswith(MARK) for path in (tmp_path / "out").iterdir())
    assert run_cli(words) == 0
    (tmp_path / "out" / "watchbill-big.service").write_text("[Unit]\nDescription=mine\n")
    assert run_cli(words) == 2
    assert "was not written by Watchbill" in capsys.readouterr().err


def test_without_a_folder_the_units_are_printed(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["systemd", "units", "--config", str(config), "--root", str(tmp_path)]) == 0
    assert "# --- watchbill-big.service\n" in capsys.readouterr().out


def test_a_config_without_units_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.toml").write_text('[models.a]\nengine = "scripted"\n')
    assert run_cli(["systemd", "units", "--config", str(tmp_path / "w.toml"), "--root", str(tmp_path)]) == 2
    assert "no model of the driver systemd" in capsys.readouterr().err


def test_the_reactor_command_does_what_is_there_and_leaves(tmp_path: Path) -> None:
    """RES-22: as a program of its own, with its list on its own command line."""
    root = tmp_path / "root"
    intents = root / "reactor" / "intents"
    intents.mkdir(parents=True)
    now = datetime.now(UTC)
    for number, unit in (("a1", "watchbill-m.service"), ("a2", "sshd.service")):
        fields = {"id": number, "verb": "start", "unit": unit, "model": "m", "reason": "a test",
                  "issued_at": now.isoformat(), "expires_at": (now + timedelta(seconds=20)).isoformat()}  # fmt: skip
        (intents / f"{number}.json").write_text(json.dumps(fields))
    with host_in(tmp_path / "host") as host:
        host.define("watchbill-m.service", states=["active"])
        done = subprocess.run(
            [sys.executable, "-m", "watchbill", "reactor", "--once", "--root", str(root), "--allow",
             "watchbill-*.service", "--systemctl", str(host.systemctl), "--user"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert host.calls() == [["--user", "start", "--no-block", "--", "watchbill-m.service"]]
    assert "refused a2: sshd.service is not allowed" in done.stderr
    assert json.loads((root / "reactor" / "done" / "a1.json").read_text())["ok"]


def test_a_reactor_without_a_list_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["reactor", "--root", str(tmp_path)]) == 2
    assert "--allow" in capsys.readouterr().err


FLEET = """
[fleet]
root = "{shared}"
[coordinator]
stuck_after = "30m"
[agents.cpu-1]
cpu_slots = 3
"""


def test_the_coordinator_and_each_agent_get_a_unit_whose_command_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FLEET-01, FLEET-13: the same programs as `up` runs, which then leaves them to systemd."""
    shared, config = tmp_path / "shared", tmp_path / "w.toml"
    (shared / "plans" / "p").mkdir(parents=True)
    (shared / "plans" / "p" / "plan.md").write_text("# P\n\n## Tasks\n\n### a\n- **command**: `true`\n")
    config.write_text(FLEET.format(shared=shared))
    units, words = tmp_path / "units", ["--config", str(config), "--root", str(tmp_path / "root"), "--quiet"]
    assert run_cli(["systemd", "units", "--fleet", "--self", "--dir", str(units), *words]) == 0
    assert {path.name for path in units.iterdir()} == {
        "watchbill.service", "watchbill-coordinator.service", "watchbill-agent-cpu-1.service"
    }  # fmt: skip
    assert "--no-fleet" in read((units / "watchbill.service").read_text())["Service"]["ExecStart"]
    service = read((units / "watchbill-coordinator.service").read_text())["Service"]
    assert "--stuck-after 30m" in service["ExecStart"] and service["Restart"] == "on-failure"
    brain = subprocess.Popen(service["ExecStart"].split(), stderr=subprocess.DEVNULL)
    try:
        assert run_cli(["plan", "submit", "p", "--root", str(shared), "--quiet"]) == 0
        batch = capsys.readouterr().out.split()[-1]
        wait_until((shared / "tasks" / "results").is_dir)
        agent = read((units / "watchbill-agent-cpu-1.service").read_text())["Service"]["ExecStart"].split()
        working = subprocess.Popen(
            agent, stderr=subprocess.DEVNULL, env={**os.environ, "WATCHBILL_HOME": str(tmp_path / "root")}
        )
        try:
            assert run_cli(["plan", "wait", batch, "--timeout", "120", "--root", str(shared)]) == 0
        finally:
            working.terminate()
            working.wait(60)
    finally:
        brain.terminate()
        brain.wait(60)


def test_units_of_a_fleet_need_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.toml").write_text("[devices.ram]\n")
    words = ["systemd", "units", "--fleet", "--config", str(tmp_path / "w.toml"), "--root", str(tmp_path)]
    assert run_cli(words) == 2
    assert "[agents.NAME]" in capsys.readouterr().err
