"""Cards that run hot and models that stay: played by a file that stands for the cards' own library."""

import json
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.place import Place, scripted
from gguf_models import GgufFiles
from support.eventually import wait_until
from watchbill.engines import llama_server
from watchbill.processes.device_lock import locks_folder

GB = 10**9


def card(temperature: int) -> str:
    step = {"at": 0, "used": 0, "temperature_c": temperature}
    return json.dumps({"cards": [{"name": "gpu:0", "capacity": "24GB", "timeline": [step]}]})


def weighing(name: str, size: str, script: str = "", rules: str = "") -> str:
    """A scripted model that says to need so much and touches nothing."""
    return scripted(name, script, rules).replace('memory = "30MB"', f"memory = {size}")


@pytest.mark.timeout(60)
def test_a_hot_card_takes_nothing_new_and_a_lower_tier_serves_until_it_cools(place: Place) -> None:
    """RES-27, RES-13: the answer says who served; what is loaded goes on serving; the card recovers by itself."""
    cards = place.folder / "cards.json"
    cards.write_text(card(60))
    place.environment["WATCHBILL_FAKE_GPUS"] = str(cards)
    place.config.write_text(
        "[devices.'gpu:0']\nmax_temp_c = 80\n"
        + weighing("warm", '{ "gpu:0" = "8GB" }')
        + weighing("large", '{ "gpu:0" = "14GB" }', "", "family = 'f'\ntier = 1")
        + weighing("small", '"30MB"', "", "family = 'f'\ntier = 2")
    )
    daemon = place.up()
    assert daemon.chat("warm")[0] == 200
    cards.write_text(card(91))
    wait_until(lambda: daemon.status()["devices"]["gpu:0"]["constrained"])
    status, headers, body = daemon.chat("large")
    assert (status, headers["x-watchbill-model"], body["model"]) == (200, "small", "small")
    assert daemon.model("large")["loads"] == 0
    assert daemon.chat("warm")[0] == 200
    assert daemon.model("warm")["loads"] == 1
    assert "91 C, and its limit is 80 C" in place.run("status").stdout
    wait_until(lambda: place.events("constrained"))
    cards.write_text(card(70))
    wait_until(lambda: not daemon.status()["devices"]["gpu:0"]["constrained"])
    (alert,) = [each for each in place.events("alert") if each["alert"] == "card"]
    assert alert["device"] == "gpu:0" and "91 C, and its limit is 80 C" in alert["reason"]
    assert [each["device"] for each in place.events("recovered")] == ["gpu:0"]
    assert daemon.chat("large")[1]["x-watchbill-model"] == "large"
    cards.write_text("not a card")
    wait_until(lambda: any(alert["alert"] == "probe" for alert in place.events("alert")))
    assert daemon.chat("large")[0] == 200


@pytest.mark.timeout(60)
def test_a_model_that_still_loads_is_not_somebody_else_on_the_card(place: Place) -> None:
    """RES-27, FLEET-04: a model that fills a small card made it take no loads, until its process was next looked at."""
    cards = place.folder / "cards.json"

    def fill(pids: Iterable[int]) -> dict[str, Any]:
        """What the daemon says of the card that is full by then, whoever fills it."""
        used = {str(pid): "5.8GB" for pid in pids}
        step = {"at": 0, "used": f"{5.8 + len(used) / 1000}GB", "processes": used}
        cards.write_text(json.dumps({"cards": [{"name": "gpu:0", "capacity": "6GB", "timeline": [step]}]}))
        free = round(6 * GB - (5.8 + len(used) / 1000) * GB)
        wait_until(lambda: daemon.status()["devices"]["gpu:0"]["available"] == free)
        return daemon.status()["devices"]["gpu:0"]

    cards.write_text(json.dumps({"cards": [{"name": "gpu:0", "capacity": "6GB"}]}))
    place.environment["WATCHBILL_FAKE_GPUS"] = str(cards)
    large = weighing("large", '{ "gpu:0" = "5GB" }', "load = '5m'", "permanent = true")
    place.config.write_text("[devices.'gpu:0']\n" + large)
    daemon = place.up()
    wait_until(lambda: daemon.is_in("large", "loading"))
    engine = psutil.Process(daemon.pid).children(recursive=True)[-1]
    assert fill([engine.pid])["constrained"] is None
    assert fill([])["constrained"] == "others use 97 % of its memory, and its limit is 95 %"


@pytest.mark.timeout(60)
def test_a_card_has_one_daemon_on_a_host(place: Place, tmp_path: Path) -> None:
    """R14: the second one refuses to start and says who has the card, whatever number the card has for it."""
    uuid = f"GPU-test-{os.urandom(6).hex()}"

    def cards(name: str) -> str:
        file = tmp_path / f"{name.replace(':', '')}.json"
        file.write_text(json.dumps({"cards": [{"name": name, "capacity": "24GB", "uuid": uuid}]}))
        return str(file)

    place.environment["WATCHBILL_FAKE_GPUS"] = cards("gpu:0")
    place.config.write_text("[devices.'gpu:0']\n" + weighing("one", '{ "gpu:0" = "8GB" }'))
    daemon = place.up()
    other = tmp_path / "other.toml"
    other.write_text("[devices.'gpu:5']\n" + weighing("one", '{ "gpu:5" = "8GB" }'))
    place.environment["WATCHBILL_FAKE_GPUS"] = cards("gpu:5")
    words = ("up", "--port", "0", "--config", str(other), "--root", str(tmp_path / "second"))
    try:
        refused = place.run(*words)
        assert refused.returncode == 2
        assert f"gpu:5 ({uuid}) belongs to the daemon of " in refused.stderr
        assert f"(pid {daemon.pid})" in refused.stderr
    finally:
        (locks_folder() / f"watchbill-{uuid}.lock").unlink()


@pytest.mark.timeout(60)
def test_the_core_model_stays_through_every_swap(place: Place) -> None:
    """RES-15: its margin is free before it comes, and neither swaps nor its idle time take it out afterwards."""
    place.config.write_text(
        "[devices.ram]\ncapacity = '2GB'\nreserve = '200MB'\n"
        "reservation = { model = 'lexicon', memory = '300MB' }\n"
        + weighing("lexicon", '"300MB"', "", "idle = '100ms'")
        + weighing("left", '"1.4GB"')
        + weighing("right", '"1.4GB"')
        + weighing("tiny", '"250MB"')
        + weighing("greedy", '"1.7GB"')
    )
    daemon = place.up()
    assert daemon.chat("left")[0] == 200
    assert daemon.chat("lexicon")[0] == 200
    assert daemon.is_in("left", "ready")  # there was room: nobody had to leave
    for name in ("right", "left", "right"):
        assert daemon.chat(name)[0] == 200
        assert daemon.is_in("lexicon", "ready")
    assert daemon.chat("tiny")[0] == 200  # the core model's place would do, and nobody has used it for longer
    assert daemon.model("lexicon")["loads"] == 1
    assert daemon.is_in("lexicon", "ready")
    assert daemon.model("left")["evictions"] == 2
    status, _, body = daemon.chat("greedy")  # it would need the margin
    assert (status, body["error"]["code"]) == (503, "never_fits")


# ------------------------------------------------------------------ without a config


def two_cards(place: Place, *, free: str = "0") -> None:
    """A small card, and a large one of which other programs use some."""
    cards = [
        {"name": "gpu:0", "title": "NVIDIA Small", "capacity": "100MB"},
        {"name": "gpu:1", "title": "NVIDIA Large", "capacity": "24GB", "timeline": [{"at": 0, "used": free}]},
    ]
    (place.folder / "cards.json").write_text(json.dumps({"cards": cards}))
    place.environment["WATCHBILL_FAKE_GPUS"] = str(place.folder / "cards.json")


def llama_server_for_cards(place: Place) -> None:
    """A llama-server on the PATH that says to compute on a card, and is the embedded one otherwise."""
    folder = place.folder / "bin"
    folder.mkdir()
    program = folder / "llama-server"
    embedded = shlex.join([sys.executable, "-I", llama_server.__file__])
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --list-devices ]; then echo "  CUDA0: NVIDIA Large (24000 MiB, 1000 MiB free)"; exit; fi\n'
        f'exec {embedded} "$@"\n'
    )  # fmt: skip
    program.chmod(0o755)
    place.environment["PATH"] = f"{folder}:{place.environment['PATH']}"


@pytest.mark.timeout(120)
def test_without_a_config_models_go_to_a_card_that_has_room(place: Place, gguf_files: GgufFiles) -> None:
    """It finds the card: `up` says what it found and where models go, and a model that is pulled later goes there."""
    two_cards(place, free="20GB")
    llama_server_for_cards(place)
    models = place.root / "models"
    models.mkdir(parents=True)
    (models / "half.gguf").write_bytes(gguf_files.chat("3MB").read_bytes()[:-500])
    (models / "one.gguf").write_bytes(gguf_files.chat("3MB").read_bytes())
    daemon = place.begin()
    daemon.wait_ready()
    assert "found gpu:1 (NVIDIA Large, 4 GB of 24 GB free); one goes there" in daemon.stderr
    assert "found gpu:0 (NVIDIA Small, 100 MB of 100 MB free)\n" in daemon.stderr, "CUDA itself takes more"
    assert daemon.chat("one", 2)[0] == 200
    status = daemon.status()
    assert status["devices"]["gpu:1"]["used"] > 0 and status["unused_cards"] is None
    assert "100% GPU" in place.run("ps").stdout
    (models / "two.gguf").write_bytes(gguf_files.chat("3MB").read_bytes())
    wait_until(lambda: "two" in daemon.status()["models"], 20)
    assert daemon.chat("two", 2)[0] == 200
    assert daemon.status()["devices"]["gpu:1"]["used"] > 0
    told = place.run("doctor").stdout
    assert "found gpu:1 (NVIDIA Large" in told
    place.run("down")
    assert daemon.wait() == 0


@pytest.mark.timeout(60)
def test_devices_may_be_left_out_in_a_config_and_said_ones_are_kept(
    place: Place, gguf_files: GgufFiles
) -> None:
    """Only cards that the config names are taken, where it names any."""
    two_cards(place)
    llama_server_for_cards(place)
    file = gguf_files.chat("3MB")
    table = f"engine = 'llamacpp'\nsource = '{file}'\ncontext = 256\nthreads = 1\n"
    place.config.write_text(
        f"[devices.'gpu:1']\nmax_resident = 1\n[models.free]\n{table}[models.held]\n{table}devices = ['ram']\n"
        f"[models.large]\n{table}memory = '30GB'\n"
    )
    daemon = place.up()
    assert "free goes there" in daemon.stderr and "gpu:0" not in daemon.stderr
    assert "large goes to the machine's memory: no card has room for it" in daemon.stderr
    assert daemon.chat("free", 2)[0] == 200 and daemon.chat("held", 2)[0] == 200
    devices = daemon.status()["devices"]
    assert set(devices) == {"ram", "gpu:1"} and devices["gpu:1"]["used"] > 0 and devices["ram"]["used"] > 0
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_card_that_the_engine_cannot_use_is_said_with_the_command_that_mends_it(
    place: Place, gguf_files: GgufFiles
) -> None:
    """In `up`, `status` and `doctor`; the models are served all the same."""
    two_cards(place)
    models = place.root / "models"
    models.mkdir(parents=True)
    (models / "one.gguf").write_bytes(gguf_files.chat("3MB").read_bytes())
    daemon = place.begin()
    daemon.wait_ready()
    mend = f"{sys.executable} -m pip install --force-reinstall --no-deps xllamacpp --index-url "
    assert "NVIDIA Large" in daemon.stderr and "is a build for the processor only" in daemon.stderr
    assert mend in daemon.stderr
    assert set(daemon.status()["devices"]) == {"ram"}
    assert daemon.chat("one", 2)[0] == 200
    assert f"\n  {mend}" in place.run("status").stdout
    assert mend in place.run("doctor").stdout
    place.run("down")
    assert daemon.wait() == 0
