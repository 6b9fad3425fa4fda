"""What no agent could run: said when a plan is submitted, in `plan status`, and in the coordinator's log."""

import json
from pathlib import Path

import pytest

from support.eventually import wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet import limits
from watchbill.fleet.coordinator.watchers import Stranded
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import AgentReport
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, write_heartbeat
from watchbill.fleet.folder.values import Fields
from watchbill.fleet.matching.abilities import Ability, Lack, Need, ability_of, lack_of, offered
from watchbill.plans.task import Sandbox, TaskClass

CPU, SCRIPT, LLM, META = TaskClass.CPU, TaskClass.SCRIPT, TaskClass.LLM, TaskClass.META
PI = Ability("pi", 4)
CARD = Ability("gpu-1", 0, True, False, 4915, "qwen", ("qwen", "bge"))
CAGED = Ability("pi-2", 4, sandbox=Sandbox.LIGHT)
PAIR = Ability("gpu-2", 0, True, True, 9830, "large", ("large",))
BRAIN = Ability("brain", 2, own_model="large", models=("large",))


@pytest.mark.parametrize(
    ("need", "agents", "lack"),
    [
        (Need(CPU), [PI, CARD], None),
        (Need(CPU), [CARD], Lack.SLOT),
        (Need(SCRIPT, 4915), [PI, CARD], None),
        (Need(SCRIPT, 4916), [PI, CARD], Lack.MEMORY),
        (Need(SCRIPT, 1), [PI], Lack.CARD),
        (Need(LLM), [PI, CARD], None),
        (Need(LLM), [PI], Lack.MODEL),
        (Need(LLM, model="bge"), [PI, CARD], None),
        (Need(LLM, model="rare"), [PI, CARD], Lack.OTHER_MODEL),
        (Need(LLM, needs_pair=True), [CARD], Lack.PAIR),
        (Need(LLM, needs_pair=True), [CARD, PAIR], None),
        (Need(META), [PI, CARD], None),
        (Need(META), [PI], Lack.MODEL),
        (Need(META, agent="gpu-7"), [PI, CARD], Lack.AGENT),
        (Need(LLM, for_brain=True), [CARD, BRAIN], None),
        (Need(LLM, for_brain=True), [CARD], Lack.AGENT),
        (Need(LLM, model="large"), [CARD, BRAIN], Lack.OTHER_MODEL),
        (Need(CPU), [], Lack.AGENT),
        (Need(CPU, sandbox=Sandbox.STRICT), [CAGED], Lack.SANDBOX),
        (Need(CPU, sandbox=Sandbox.LIGHT), [CAGED], None),
        (Need(CPU, sandbox=Sandbox.STRICT), [CAGED, PI], None),
        (Need(SCRIPT, 1, sandbox=Sandbox.STRICT), [CAGED], Lack.CARD),
        (Need(LLM, needs_pair=True), [PI, CARD], Lack.PAIR),
    ],
)  # fmt: skip
def test_a_task_can_be_run_by_an_agent_or_there_is_a_lack(
    need: Need, agents: list[Ability], lack: Lack | None
) -> None:
    """PLAN-03, FLEET-02, FLEET-14."""
    assert lack_of(need, agents) is lack


def test_the_ability_of_an_agent_is_in_its_heartbeat() -> None:
    """FLEET-06."""
    values = {
        "cpu_slots": 2, "devices": ["gpu:0", "gpu:3"], "claimed_vram_mb": 1000, "budget_available_mb": 3915,
        "model": "qwen", "models": ["qwen", "bge"],
    }  # fmt: skip
    found = ability_of("gpu-0", Heartbeat(Pulse("", 1, 1, 1), AgentReport.of(Fields(values))))
    assert found == Ability("gpu-0", 2, True, True, 4915, "qwen", ("qwen", "bge"))
    assert offered([PI, found, BRAIN]) == "pi (4 cpu); gpu-0 (2 cpu, 4,915 MB for scripts, models qwen, bge)"


def test_a_need_that_no_living_agent_meets_is_told_once_after_ten_minutes() -> None:
    """FLEET-08: again only when it was met in between."""
    stranded, need = Stranded(), Need(LLM, model="rare")
    assert stranded.look([need, need, Need(CPU)], [PI], 0) == []
    assert stranded.look([need], [PI], limits.STRANDED_MS - 1) == []
    assert stranded.look([need], [PI], limits.STRANDED_MS) == [(need, Lack.MODEL)]
    assert stranded.look([need], [PI], limits.STRANDED_MS + 1) == []
    assert stranded.look([], [PI], limits.STRANDED_MS + 2) == []
    assert stranded.look([need], [PI], 2 * limits.STRANDED_MS) == []
    assert stranded.look([need], [PI], 3 * limits.STRANDED_MS) == [(need, Lack.MODEL)]


def seen(fleet: FleetFolder, agent: str, **values: object) -> None:
    """An agent of another machine that joined the folder at some time."""
    disk = FolderDisk(fleet.root)
    places.make_fleet(fleet.root)
    for folder in (places.processing_folder(agent), str(Path(places.heartbeat_path(agent)).parent)):
        disk.make_folder(folder)
    report = AgentReport.of(Fields({"cpu_slots": 1, **values}))
    write_heartbeat(disk, agent, Heartbeat(Pulse("elsewhere", 1, 1, 1), report))


GPU = {"devices": ["gpu:1"], "budget_available_mb": 4915, "model": "qwen", "models": ["qwen"]}


@pytest.mark.parametrize(
    ("task", "line", "told"),
    [
        ("- **prompt**: Go.\n- **model**: {MODEL}\n", 15, "asks for the model rare, and no agent serves it"),
        ("- **command**: `true`\n- **vram_estimate_mb**: 6000\n", 15, "needs 6,000 MB of GPU memory"),
        ("- **command**: `unload_llm gpu-9`\n", 14, "is for the agent gpu-9, which never joined"),
        ("- **prompt**: Go.\n- **llm_placement**: split_gpu\n", 15, "needs a pair of GPUs"),
    ],
)
def test_a_plan_that_no_agent_could_run_is_refused_with_what_there_is(
    fleet: FleetFolder, task: str, line: int, told: str
) -> None:
    """PLAN-03, FLEET-02: by check and submit, with the line and what the agents have; nothing is queued."""
    folder = fleet.write_plan("p", f"### ask\n{task}", inputs="- `MODEL` (default: rare)")
    seen(fleet, "gpu-1", **GPU)
    here = fleet.run("plan", "check", str(folder))  # the shared folder that it lies in
    for done in (fleet.plan("submit", "p"), fleet.plan("check", "p"), here):
        assert done.returncode == 2
        assert f"plan.md:{line}: ask {told}" in done.stderr, done.stderr
        assert "gpu-1 (1 cpu, 4,915 MB for scripts, models qwen)" in done.stderr
    assert not (folder / "history").exists()


@pytest.mark.parametrize(
    ("key", "rules"), [("- **sandbox**: strict\n", ""), ("", '[sandbox]\nlevel = "strict"\n')]
)
def test_a_sandbox_that_no_agent_can_make_is_said_before_anything_runs(
    fleet: FleetFolder, key: str, rules: str
) -> None:
    """PLAN-03, FLEET-10: also one that the rules of the folder give to every task; a question needs none."""
    fleet.write_plan("p", f"### locked\n- **command**: `true`\n{key}### ask\n- **prompt**: Go.\n")
    (fleet.root / "permissions.toml").write_text(rules)
    seen(fleet, "gpu-1", **GPU, sandbox="light")
    for command in ("check", "submit"):
        done = fleet.plan(command, "p")
        assert done.returncode == 2 and done.stderr.count("demands the sandbox strict") == 1, done.stderr
        assert "sandbox light" in done.stderr and "install bubblewrap" in done.stderr
    seen(fleet, "gpu-1", **GPU, sandbox="strict")
    assert fleet.plan("check", "p").returncode == 0


def test_a_plan_that_wants_a_decision_or_a_score_needs_a_model_of_the_coordinator(fleet: FleetFolder) -> None:
    """PLAN-03, FLEET-08: the coordinator's own agent shows whether there is one."""
    fleet.write_plan("p", "### ask\n- **type**: decide\n- **prompt**: Go.\n")
    fleet.write_plan("q", "### ask\n- **prompt**: Go.\n- **evaluate**: short\n")
    seen(fleet, "brain")
    for plan in "pq":
        done = fleet.plan("submit", plan)
        assert done.returncode == 2 and "write model into [coordinator]" in done.stderr, done.stderr
    seen(fleet, "brain", model="large", models=["large"])
    assert [fleet.plan("submit", plan).returncode for plan in "pq"] == [0, 0]


def test_a_plan_is_taken_where_nothing_is_known_or_an_agent_could_run_it(fleet: FleetFolder) -> None:
    """PLAN-03: agents may join later; an item may name the model."""
    fleet.write_plan("p", "### ask\n- **prompt**: Go.\n- **model**: rare\n")
    folder = fleet.write_plan(
        "q", "### ask\n- **prompt**: Go.\n- **model**: {ITEM}\n- **foreach**: items.json\n"
    )
    (folder / "items.json").write_text('["rare"]')
    assert fleet.plan("submit", "p").returncode == 0
    seen(fleet, "gpu-1", **GPU)
    assert fleet.plan("submit", "q").returncode == 0
    assert fleet.plan("submit", "p").returncode == 2


def test_a_task_that_only_an_agent_could_run_that_left_is_told_of(fleet: FleetFolder) -> None:
    """FLEET-08: when it is submitted, and as long as it waits."""
    fleet.write_plan("p", "### ask\n- **prompt**: Go.\n")
    seen(fleet, "gpu-1", state="stopped", **GPU)
    done = fleet.plan("submit", "p")
    assert "ask must wait: no living agent can run it" in done.stderr
    fleet.start_coordinator()
    batch = done.stdout.strip()

    def waiting() -> bool:
        tasks = fleet.status(batch)["tasks"]
        return [(each["state"], each["why"]) for each in tasks] == [("queued", "no_living_agent")]

    wait_until(waiting)
    assert "no_living_agent" in fleet.plan("status", batch).stdout
    seen(fleet, "gpu-1", state="cold", **GPU)
    wait_until(lambda: json.dumps(fleet.status(batch)).count("no_living_agent") == 0)
