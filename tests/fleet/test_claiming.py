"""What an agent may claim: the two tables of the seed, amounts, addressees, holds and the order of the queue."""

import pytest

from watchbill.fleet.folder.slips import Headline, slip_name
from watchbill.fleet.matching.claiming import Health, Refusal, Standing, choose, is_for, may_claim, needs_heat
from watchbill.plans.task import TaskClass

CPU, SCRIPT, LLM, META = TaskClass.CPU, TaskClass.SCRIPT, TaskClass.LLM, TaskClass.META


def slip(
    task_class: TaskClass,
    *,
    vram_mb: int = 0,
    model: str = "",
    priority: int = 3,
    to: str = "",
    number: int = 1,
) -> str:
    headline = Headline(priority, number, task_class, vram_mb, 1, to)
    return slip_name(headline, model=model, batch="b1", task="t")


def agent(**changes: object) -> Standing:
    whole: dict[str, object] = {
        "agent": "gpu-1", "cpu_slots_free": 2, "has_device": True, "own_model": "qwen7b", "models": ("qwen7b", "bge"),
        "llm_slots_free": 1, "vram_mb_free": 4915, **changes,
    }  # fmt: skip
    return Standing(**whole)  # type: ignore[arg-type]


@pytest.mark.parametrize("health", Health)
@pytest.mark.parametrize("is_hot", [True, False])
def test_health_and_heat_decide_which_classes_are_taken(health: Health, is_hot: bool) -> None:
    """FLEET-04, FLEET-05: the seed's combined table."""
    standing = agent(health=health, is_hot=is_hot)
    taken = {
        each
        for each in TaskClass
        if may_claim(slip(each, to="gpu-1" if each is META else ""), standing) is None
    }
    expected = {META, CPU}
    if health is Health.HEALTHY:
        expected |= {LLM} if is_hot else {LLM, SCRIPT}
    assert taken == expected


@pytest.mark.parametrize(
    ("name", "changes", "refusal"),
    [
        (slip(CPU), {"cpu_slots_free": 0}, Refusal.NO_SLOT),
        (slip(SCRIPT, vram_mb=4915), {}, None),
        (slip(SCRIPT, vram_mb=4916), {}, Refusal.NO_MEMORY),
        (slip(SCRIPT, vram_mb=1), {"llm_tasks": 1, "gpu_tasks": 1}, Refusal.NO_MEMORY),
        (slip(LLM), {"gpu_tasks": 1}, Refusal.NO_MEMORY),
        (slip(LLM), {"gpu_tasks": 1, "llm_tasks": 1, "llm_slots_free": 0}, Refusal.NO_SLOT),
        (slip(LLM, model="qwen7b"), {}, None),
        (slip(LLM, model="other"), {}, Refusal.OTHER_MODEL),
        (slip(SCRIPT), {"has_device": False}, Refusal.NO_DEVICE),
        (slip(LLM), {"has_device": False}, Refusal.NO_DEVICE),
        (slip(CPU), {"has_device": False}, None),
        (slip(CPU), {"is_held": True}, Refusal.HELD),
        (slip(META, to="gpu-1"), {"is_held": True}, None),
        (slip(META, to="gpu-2"), {}, Refusal.ADDRESSED_ELSEWHERE),
        (slip(META), {}, None),
        (slip(META), {"own_model": ""}, Refusal.OTHER_MODEL),
        (slip(LLM), {"own_model": ""}, Refusal.OTHER_MODEL),
        (slip(LLM, model="bge"), {"own_model": ""}, None),
        (slip(CPU, to="brain"), {}, Refusal.ADDRESSED_ELSEWHERE),
        (slip(CPU, to="brain"), {"agent": "brain", "only_addressed": True}, None),
        (slip(CPU), {"agent": "brain", "only_addressed": True}, Refusal.NOT_ADDRESSED),
        ("notes.txt", {}, Refusal.NOT_A_SLIP),
    ],
)  # fmt: skip
def test_a_slip_is_claimed_or_there_is_a_reason(
    name: str, changes: dict[str, object], refusal: Refusal | None
) -> None:
    """FLEET-02."""
    standing = agent(**changes)
    assert may_claim(name, standing) is refusal
    # An agent is not woken by what it could never claim, and by everything else.
    never = (Refusal.NOT_A_SLIP, Refusal.ADDRESSED_ELSEWHERE, Refusal.NOT_ADDRESSED)
    assert is_for(name, standing.agent, only_addressed=standing.only_addressed) is (refusal not in never)


def test_the_queue_is_taken_in_its_order_as_far_as_there_is_room() -> None:
    """Priority is in the name, so that the first of the names is the first to be run."""
    late = slip(CPU, priority=1, number=9)
    offered = sorted([slip(CPU, number=1), slip(CPU, number=2), late, slip(SCRIPT, vram_mb=3000, number=3),
                      slip(SCRIPT, vram_mb=3000, number=4)])  # fmt: skip
    chosen = choose(offered, agent())
    assert chosen == [late, slip(CPU, number=1), slip(SCRIPT, vram_mb=3000, number=3)]
    assert choose(offered, agent(), declined=[late])[0] == slip(CPU, number=1)


def test_an_llm_task_and_a_script_are_never_claimed_together() -> None:
    """FLEET-02: an llm task takes the whole budget."""
    both = [slip(LLM, number=1), slip(SCRIPT, vram_mb=10, number=2)]
    assert choose(both, agent()) == both[:1]
    assert choose(both[::-1], agent()) == both[1:]


def test_a_cold_card_is_told_from_one_that_is_heated_for_a_task() -> None:
    """FLEET-05: a slip is left to heated cards for a while, where there can be another one."""
    cold, hot = agent(), agent(is_hot=True, hot_models=("qwen7b",))
    assert needs_heat(slip(LLM), cold) and needs_heat(slip(LLM, model="qwen7b"), cold)
    assert not needs_heat(slip(LLM), hot) and not needs_heat(slip(LLM, model="qwen7b"), hot)
    assert needs_heat(slip(LLM, model="bge"), hot)
    assert not needs_heat(slip(LLM, to="gpu-1"), cold)
    assert not any(needs_heat(slip(each), cold) for each in (CPU, SCRIPT))
    assert not needs_heat(slip(LLM, model="other"), cold)  # it may not claim that one at all
