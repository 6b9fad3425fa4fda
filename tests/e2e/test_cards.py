"""Cards that run hot and models that stay: played by a file that stands for the cards' own library."""

import json
import os
from pathlib import Path

import pytest

from e2e.place import Place, scripted
from support.eventually import wait_until
from watchbill.processes.device_lock import locks_folder

MB = 10**6


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
    cards.write_text(card(70))
    wait_until(lambda: not daemon.status()["devices"]["gpu:0"]["constrained"])
    assert daemon.chat("large")[1]["x-watchbill-model"] == "large"
    cards.write_text("not a card")
    wait_until(lambda: any(alert["alert"] == "probe" for alert in place.events("alert")))
    assert daemon.chat("large")[0] == 200


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
