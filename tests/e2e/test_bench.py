"""`gpus --bench`: real llama.cpp on the processor, and what is put back afterwards."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gguf_models import GgufFiles
from support.eventually import wait_until
from support.fleet_folder import FleetFolder, shared_folder
from watchbill.fleet.folder import places

MODEL = '[models.{name}]\nengine = "llamacpp"\nsource = "{file}"\ncontext = 512\nthreads = 1\n'
SLOW = '[models.{name}]\nengine = "scripted"\nmemory = "1MiB"\nscript = {{ memory = "1MiB", {rest} }}\n'
Start = Callable[[str], FleetFolder]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A daemon with this config, with a coordinator so that it has a shared folder."""
    with shared_folder(tmp_path) as fleet:

        def begin(config: str) -> FleetFolder:
            file = fleet.home / "watchbill.toml"
            file.write_text(config + "[coordinator]\n")
            fleet.start("-m", "watchbill", "up", "--port", "0", "--config", str(file))
            fleet.root = fleet.home / "home" / "fleet"
            wait_until((fleet.root / places.MARKER).exists)
            wait_until(lambda: fleet.run("status").returncode == 0)
            return fleet

        yield begin
        fleet.run("down")


def models(fleet: FleetFolder) -> dict[str, dict[str, Any]]:
    return json.loads(fleet.run("status", "--json").stdout)["models"]


def in_memory(fleet: FleetFolder) -> set[str]:
    return {name for name, each in models(fleet).items() if each["state"] == "ready"}


def test_a_benchmark_measures_the_real_engine_and_puts_everything_back(
    start: Start, gguf_files: GgufFiles
) -> None:
    """FLEET-12: load time, tokens per second and memory bandwidth; kept, and shown by `gpus`."""
    fleet = start(
        MODEL.format(name="real", file=gguf_files.chat("20MB"))
        + SLOW.format(name="other", rest='service = "10ms"')
    )
    assert fleet.run("load", "other").returncode == 0
    done = fleet.run("gpus", "--bench", "--model", "real", "--json", "--root", str(fleet.root))
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["bench"].values()
    assert measured["model"] == "real" and measured["devices"] == ["ram"]
    assert measured["load_ms"] > 0 and measured["tokens_per_s"] > 0 and measured["first_token_ms"] > 0
    assert measured["read_bytes_per_s"] >= measured["tokens_per_s"] * 20_000_000 * 0.5
    assert in_memory(fleet) == {"other"}  # as before: what was measured has left again
    shown = fleet.run("gpus", "--root", str(fleet.root))
    assert "tokens/s" in shown.stdout and "real" in shown.stdout
    kept = json.loads(fleet.run("gpus", "--json", "--root", str(fleet.root)).stdout)["bench"]
    assert list(kept.values()) == [measured]


def test_ctrl_c_ends_a_benchmark_and_puts_everything_back(start: Start) -> None:
    fleet = start(
        SLOW.format(name="slow", rest='service = "600s"') + SLOW.format(name="first", rest='service = "10ms"')
    )
    assert fleet.run("load", "first").returncode == 0
    with subprocess.Popen(
        [sys.executable, "-m", "watchbill", "gpus", "--bench", "--model", "slow", "--root", str(fleet.root)],
        env=fleet.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        wait_until(lambda: models(fleet)["slow"]["in_flight"] == 1)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and b"Traceback" not in said
    assert in_memory(fleet) == {"first"}
    assert models(fleet)["slow"]["in_flight"] == 0


def test_an_engine_that_fails_is_said_for_its_card_and_everything_is_put_back(start: Start) -> None:
    fleet = start(SLOW.format(name="bad", rest='fail = "crash-after-first-byte", service = "1s"'))
    done = fleet.run("gpus", "--bench", "--root", str(fleet.root))
    assert done.returncode == 1 and "was not measured" in done.stdout, (done.stdout, done.stderr)
    unknown = fleet.run("gpus", "--bench", "--model", "bed", "--root", str(fleet.root))
    assert unknown.returncode == 2 and "bad" in unknown.stderr


def test_without_a_daemon_a_benchmark_says_how_to_start_one(tmp_path: Path) -> None:
    with shared_folder(tmp_path) as fleet:
        done = fleet.run("gpus", "--bench", "--root", str(fleet.root))
        assert done.returncode == 3 and "no daemon runs" in done.stderr and done.stderr.endswith(" up\n")
