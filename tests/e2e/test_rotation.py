"""What models do by themselves: background tasks, in order, and never in anybody's way."""

import time

import pytest

from e2e.place import Place, scripted
from support.eventually import wait_until

#: A task's command: says what it was told about its model.
COMMAND = """#!/bin/sh
echo "$WATCHBILL_MODEL at $WATCHBILL_MODEL_URL" >> "$(dirname "$0")/told"
echo 21
"""


@pytest.mark.timeout(60)
def test_models_take_turns_at_their_tasks_in_the_configured_order(place: Place) -> None:
    """RES-16: prompts and commands, in order, round and round; the command knows its model's address, its output goes
    into the prompt; both times are in the journal. One that fails is told, and the next has its turn all the same."""
    command = place.folder / "look"
    command.write_text(COMMAND)
    command.chmod(0o755)
    place.config.write_text(
        "[rotation]\nevery = '700ms'\norder = ['bad', 'mantis', 'gamma']\n"
        + scripted("bad", "", "idle = '500ms'\nbackground = { command = '/bin/false' }")
        + scripted(
            "gamma", 'text = "all is quiet"', "idle = '500ms'\nbackground = { prompt = 'Write the log.' }"
        )
        + scripted(
            "mantis",
            'service = "400ms"',
            f"idle = '500ms'\nbackground = {{ command = '{command}', prompt = 'Half of {{output}}?' }}",
        )
    )
    place.up()
    wait_until(lambda: len(place.events("rotation")) >= 3)
    turns = place.events("rotation")[:3]
    assert [turn["model"] for turn in turns] == ["mantis", "gamma", "mantis"]
    assert "/bin/false ended with 1" in place.events("rotation_failed")[0]["reason"]
    assert all("loaded for" in turn["reason"] and "useful for" in turn["reason"] for turn in turns)
    assert (place.folder / "told").read_text().startswith("mantis at http://127.0.0.1:")
    assert "all is quiet" in (place.root / "background" / "gamma.md").read_text()


@pytest.mark.timeout(60)
def test_a_background_task_makes_way_at_once_and_is_queued_again(place: Place) -> None:
    """RES-17: a person's request for another model is answered while a long task runs; the task begins again without
    waiting for its next turn."""
    place.config.write_text(
        "[rotation]\nevery = '1s'\n[devices.ram]\nmax_resident = 1\n"
        + scripted("gamma", 'service = "20s"', "idle = '500ms'\nbackground = { prompt = 'Write the log.' }")
        + scripted("sisters", "", "idle = '500ms'")
    )
    daemon = place.up()
    wait_until(lambda: daemon.model("gamma")["in_flight"] == 1)
    asked = time.monotonic()
    assert daemon.chat("sisters")[0] == 200
    assert time.monotonic() - asked < 8
    assert not place.events("rotation", "rotation_failed")
    wait_until(lambda: daemon.model("gamma")["in_flight"] == 1)
    assert daemon.model("gamma")["loads"] == 2
    assert not place.events("rotation", "rotation_failed")


@pytest.mark.timeout(60)
def test_silence_is_an_alarm(place: Place) -> None:
    """RES-18: nothing loaded, served or done for longer than the bound is an alert; looking does not count as life."""
    place.config.write_text("[rotation]\nsilence = '2s'\n" + scripted("a", "", "idle = '500ms'"))
    daemon = place.up()

    def silences() -> list[dict[str, object]]:
        assert daemon.status()
        return [event for event in place.events("alert") if event["alert"] == "silence"]

    wait_until(silences)
    assert daemon.chat("a")[0] == 200
    wait_until(lambda: len(silences()) == 2)


@pytest.mark.timeout(60)
def test_a_model_that_answers_only_errors_is_reset_and_then_quarantined(place: Place) -> None:
    """RES-20: three failed answers in a row reset it and raise an alert; three resets quarantine it; its callers are
    told at once and nobody loads it meanwhile."""
    place.config.write_text(scripted("sick", 'fail = "http-500"') + scripted("well"))
    daemon = place.up()
    seen: list[int] = []

    def ask() -> bool:
        seen.append(daemon.chat("sick", seconds=30)[0])
        return seen[-1] != 502

    wait_until(ask, 40)
    wait_until(lambda: daemon.is_in("sick", "quarantined"))
    model = daemon.model("sick")
    # One more may fail each time while the engine is asked whether it is well.
    assert model["loads"] == 3 and 9 <= seen.count(502) <= 12
    alerts = [event["alert"] for event in place.events("alert")]
    assert (alerts.count("watchdog"), alerts.count("quarantine")) == (3, 1)
    status, _, body = daemon.chat("sick")
    assert (status, body["error"]["code"]) == (503, "model_failed")
    assert daemon.chat("well")[0] == 200


@pytest.mark.timeout(60)
def test_a_model_that_failed_by_its_callers_fault_is_asked_and_stays(place: Place) -> None:
    """RES-20: three failed answers in a row, and it answers when it is asked something easy: nobody loses it."""
    place.config.write_text(scripted("moody", 'fail = "http-500", fail_times = 3'))
    daemon = place.up()
    assert [daemon.chat("moody")[0] for _ in range(3)] == [502] * 3
    wait_until(lambda: place.events("well"))
    assert daemon.chat("moody")[0] == 200
    assert daemon.model("moody")["loads"] == 1 and not place.events("alert")
