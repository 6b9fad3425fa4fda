"""When a card takes nothing new, and when it does again."""

from pathlib import Path

import pytest

from watchbill.catalog import Device, Model
from watchbill.core.messages import Constraint, Trouble
from watchbill.engines.owned import visible_cards
from watchbill.probes import CardHealth, Reading
from watchbill.probes.health import constraint
from watchbill.probes.trees import pids_of_unit
from watchbill.units import Bytes, Millis

GB = 10**9
CARD = Device("gpu:0")


def card(used: int = 0, **health: object) -> Reading:
    felt = CardHealth(slowdown_c=95.0, power_limit_w=350.0, **health)  # type: ignore[arg-type]
    return Reading(Bytes(24 * GB), Bytes(24 * GB - used), Millis(0), health=felt)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (card(temperature_c=84.0), None),
        (card(temperature_c=85.0), Constraint(Trouble.HEAT, 85.0, 85.0)),
        (card(temperature_c=88.0), Constraint(Trouble.HEAT, 88.0, 85.0)),
        (card(power_w=350.0), None),
        (card(power_w=361.0), Constraint(Trouble.POWER, 361.0, 350.0)),
        (card(throttled=("power cap",)), None),
        (
            card(throttled=("hardware thermal",)),
            Constraint(Trouble.THROTTLED, 0.0, 0.0, ("hardware thermal",)),
        ),
        (card(used=22 * GB), None),
    ],
)
def test_the_limits_of_a_card_that_nobody_configured(reading: Reading, expected: Constraint | None) -> None:
    """RES-27, FLEET-04: 85 C, 95 % in the hands of others, and the card's own power limit."""
    assert constraint(CARD, reading) == expected


def test_memory_that_others_hold_constrains_a_card_and_our_own_does_not() -> None:
    """FLEET-04: what our own models hold leaves when another one is to come."""
    full = card(used=23 * GB)
    found = constraint(CARD, full)
    assert found is not None and found.trouble is Trouble.MEMORY and round(found.figure) == 96
    assert constraint(CARD, full, ours=20 * GB) is None
    assert constraint(CARD, full, ours=30 * GB) is None


def test_the_config_sets_other_limits() -> None:
    strict = Device("gpu:0", max_temp_c=70.0, max_power_w=140.0)
    assert constraint(strict, card(temperature_c=71.0)) == Constraint(Trouble.HEAT, 71.0, 70.0)
    assert constraint(strict, card(power_w=140.0)) == Constraint(Trouble.POWER, 140.0, 140.0)
    assert constraint(Device("gpu:0", max_temp_c=92.0), card(temperature_c=88.0)) is None


@pytest.mark.parametrize(
    ("over", "near", "well"),
    [
        (card(temperature_c=86.0), card(temperature_c=82.0), card(temperature_c=80.0)),
        (card(used=23 * GB), card(used=int(22.5 * GB)), card(used=22 * GB)),
        (card(power_w=360.0), card(power_w=340.0), card(power_w=330.0)),
    ],
)
def test_a_card_is_well_again_only_with_a_margin(over: Reading, near: Reading, well: Reading) -> None:
    """FLEET-04: at its limit a card would change its mind at every look."""
    assert constraint(CARD, near) is None
    first = constraint(CARD, over)
    assert first is not None
    still = constraint(CARD, near, before=first)
    assert still is not None and (still.trouble, still.limit) == (first.trouble, first.limit)
    assert constraint(CARD, well, before=still) is None


def test_a_card_that_does_not_tell_is_not_blamed() -> None:
    assert constraint(CARD, Reading(Bytes(24 * GB), Bytes(24 * GB), Millis(0), health=CardHealth())) is None
    assert constraint(CARD, Reading(Bytes(24 * GB), Bytes(0), Millis(0))) is None


def test_the_processes_of_a_unit_are_known_by_their_control_group(tmp_path: Path) -> None:
    """RES-01: a plain service, a container of a quadlet, and somebody whose unit only begins like ours."""
    groups = {
        1: "0::/system.slice/watchbill-a.service\n",
        2: "12:memory:/x\n0::/system.slice/watchbill-a.service/libpod-payload-77\n",
        3: "0::/system.slice/watchbill-a.service-other\n",
        4: "0::/user.slice\n",
    }
    for pid, text in groups.items():
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cgroup").write_text(text)
    assert pids_of_unit("watchbill-a.service", [*groups, 5], tmp_path) == [1, 2]


def test_a_model_sees_its_own_cards_by_uuid_and_a_model_in_ram_sees_none() -> None:
    """FLEET-10: numbers only where a card has no UUID, and never both kinds."""
    both = Model("split", "llamacpp", devices=("gpu:3", "gpu:0"))
    uuids = {"gpu:0": "GPU-aa", "gpu:3": "GPU-bb"}
    assert visible_cards(both, uuids)["CUDA_VISIBLE_DEVICES"] == "GPU-bb,GPU-aa"
    assert visible_cards(both, {"gpu:0": "GPU-aa"})["CUDA_VISIBLE_DEVICES"] == "3,0"
    assert visible_cards(Model("small", "llamacpp"), uuids)["CUDA_VISIBLE_DEVICES"] == ""
