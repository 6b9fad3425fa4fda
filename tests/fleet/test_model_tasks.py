"""Tasks that ask a model, from the plan to the file with the answer: `up` with a scripted model, its agents, a plan."""

import asyncio
import json
import secrets
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.eventually import eventually, wait_until
from support.fleet_folder import FleetFolder, shared_folder
from support.open_gateway import open_gateway
from support.peer import Asked
from watchbill.core.messages import DeviceReading, Observed
from watchbill.fleet.agent.host import HostMemory
from watchbill.fleet.agent.memory import DeviceState, Memory, NoDevice
from watchbill.fleet.agent.model_work import ModelWork
from watchbill.fleet.agent.questions import Question
from watchbill.fleet.folder import places
from watchbill.plans.task import MetaCommand
from watchbill.processes.crew import Cause, Ended, Job

HOUR_MS = 3_600_000
EXAMPLES = Path(__file__).parents[2] / "examples"
SCORE = '{"score": 4, "why": "clear"}'
MODEL = """
[models.{name}]
engine = "scripted"
devices = ["{device}"]
memory = "1MiB"
script = {{ memory = "1MiB", text = '''{text}''', tokens = {tokens}, service = "{service}" }}
"""


def model(name: str, text: str, device: str = "gpu:1", service: str = "10ms") -> str:
    """A model that always answers with this text."""
    return MODEL.format(name=name, text=text, device=device, tokens=len(text.split()), service=service)


PAIR = 'memory = { "gpu:1" = "1MiB", "gpu:2" = "1MiB" }'
AGENT = '[coordinator]\n[agents.gpu-1]\ndevice = "gpu:1"\nmodel = "qwen"\ncpu_slots = 1\n'
Rig = Callable[[str], FleetFolder]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """`up` with two cards and this config, and the shared folder of its coordinator and agents."""
    with shared_folder(tmp_path) as fleet:

        def start(config: str) -> FleetFolder:
            cards, file = fleet.home / "cards.json", fleet.home / "watchbill.toml"
            found = [
                {"name": name, "capacity": "6144MiB", "uuid": f"GPU-{secrets.token_hex(8)}", "timeline": [{"at": 0}]}
                for name in ("gpu:1", "gpu:2")
            ]  # fmt: skip
            cards.write_text(json.dumps({"cards": found}))
            file.write_text('[devices."gpu:1"]\nreserve = 0\n[devices."gpu:2"]\nreserve = 0\n' + config)
            home = ("--root", str(fleet.home / "home"))
            fleet.start(
                "-m", "watchbill", "up", "--port", "0", "--config", str(file), *home, WATCHBILL_FAKE_GPUS=str(cards)
            )  # fmt: skip
            fleet.root = fleet.home / "home" / "fleet"
            wait_until((fleet.root / places.MARKER).exists)
            agents = [line[8:-1] for line in config.splitlines() if line.startswith("[agents.")]
            wait_until(lambda: all((fleet.root / places.heartbeat_path(each)).exists() for each in agents))
            return fleet

        yield start
        fleet.run("down", "--root", str(fleet.home / "home"))


def events(fleet: FleetFolder) -> list[dict[str, object]]:
    return [json.loads(line) for line in (fleet.home / "home" / "events.jsonl").read_text().splitlines()]


def test_an_answer_is_the_result_and_the_output_of_its_task(rig: Rig) -> None:
    """PLAN-02, PLAN-08, FLEET-05: the card is heated for it; the file is there before a task that depends on it."""
    fleet = rig(model("qwen", SCORE) + AGENT)
    folder = fleet.write_plan(
        "p",
        "### say\n- **prompt**: file:prompts/say.txt\n- **output**: {BATCH_PATH}/said/{BATCH_ID}.txt\n"
        "- **produces**: {BATCH_PATH}/said/{BATCH_ID}.txt\n"
        "### rate\n- **type**: parse\n- **prompt**: Rate {TOPIC}.\n- **model**: {MODEL}\n"
        '- **schema**: `{"type": "object", "required": ["score"]}`\n'
        "- **output**: rated.json\n- **depends_on**: say\n"
        "### use\n- **depends_on**: rate\n"
        "- **command**: `cat {BATCH_PATH}/said/{BATCH_ID}.txt {PLAN_PATH}/rated.json`\n",
        inputs="- `TOPIC` (default: rain)\n- `MODEL` (default: qwen)",
    )
    (folder / "prompts").mkdir()
    (folder / "prompts" / "say.txt").write_text("Say something about {TOPIC}.")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout
    said = fleet.batch("p", batch) / "said" / f"{batch}.txt"
    assert said.read_text().strip() == SCORE
    assert json.loads((folder / "rated.json").read_text()) == json.loads(SCORE)
    assert not [each for each in said.parent.iterdir() if each != said]
    assert fleet.plan("logs", "use", "--batch", batch).stdout.count("score") == 2
    assert fleet.plan("logs", "say", "--batch", batch).stdout.strip() == SCORE
    loads = [each for each in events(fleet) if each["event"] == "load"]
    assert [each["model"] for each in loads] == ["qwen"], "heated once, before the first question"


def test_tasks_that_name_a_model_go_to_the_agent_that_serves_it(rig: Rig) -> None:
    """FLEET-05: each card is heated for its own tasks, and orders of a plan are obeyed by the agent that they name."""
    second = '[agents.gpu-2]\ndevice = "gpu:2"\nmodel = "qwen-large"\ncpu_slots = 1\n'
    fleet = rig(model("qwen", "small") + model("qwen-large", "large", "gpu:2") + AGENT + second)
    fleet.write_plan(
        "p",
        "### small\n- **prompt**: Who?\n- **model**: qwen\n- **output**: {BATCH_PATH}/small\n"
        "### large\n- **prompt**: Who?\n- **model**: qwen-large\n- **output**: {BATCH_PATH}/large\n"
        "### cool\n- **command**: `unload_llm gpu-2`\n- **depends_on**: small, large\n",
    )
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout
    folder = fleet.batch("p", batch)
    assert [(folder / name).read_text().strip() for name in ("small", "large")] == ["small", "large"]
    agents = {each["id"]: each["agent"] for each in fleet.status(batch)["tasks"]}
    assert agents == {"small": "gpu-1", "large": "gpu-2", "cool": "gpu-2"}
    assert [each["model"] for each in events(fleet) if each["event"] == "evict"] == ["qwen-large"]


def test_an_answer_that_cannot_be_written_is_a_failure_of_its_task_alone(rig: Rig) -> None:
    """PLAN-02, FLEET-09: an output that is a folder or lies elsewhere; the coordinator goes on.

    One that a value leads out of its folder, or out of the shared one, has failed before the model is asked, once.
    """
    fleet = rig(model("qwen", "words") + AGENT)
    folder = fleet.write_plan(
        "p",
        "### folder\n- **prompt**: Go.\n- **output**: {PLAN_PATH}/scripts\n- **retries**: 0\n"
        "### below\n- **prompt**: Go.\n- **output**: {PLAN_PATH}/plan.md/x\n- **retries**: 0\n"
        "### outside\n- **prompt**: Go.\n- **output**: {WHERE}/x\n"
        "### each\n- **prompt**: Go.\n- **output**: {BATCH_PATH}/said/{ITEM.id}.txt\n- **foreach**: items.json:all\n"
        "### well\n- **prompt**: Go.\n- **output**: {BATCH_PATH}/well.txt\n",
        inputs="- `WHERE` (default: /tmp)",
    )
    (folder / "items.json").write_text(
        json.dumps({"all": [{"id": each} for each in ("a", "../x", "b/../../c")]})
    )
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 1
    tasks = fleet.status(batch)["tasks"]
    found = {each["id"]: (each["state"], each["why"], each["attempt"]) for each in tasks}
    assert (found.pop("well"), found.pop("each_a")) == (("complete", "", 1), ("complete", "", 1))
    assert [found.pop(name) for name in ("outside", "each_2", "each_3")] == [("failed", "wrong", 1)] * 3
    assert set(found.values()) == {("failed", "missing_output", 1)}
    assert sorted(path.name for path in fleet.batch("p", batch).glob("said/*")) == ["a.txt"]
    assert "{ITEM.id} is '../x', which leads out of that folder" in fleet.plan("logs", "each_2").stdout
    assert (fleet.batch("p", batch) / "well.txt").read_text().strip() == "words"
    summary = fleet.summary("p", batch)
    assert "not a regular file" in json.dumps(summary)
    assert "/tmp/x is not in the shared folder" in json.dumps(summary)


def test_an_answer_that_is_aborted_stops_its_engine_and_shows_its_progress_before(rig: Rig) -> None:
    """FLEET-06, FLEET-07: characters are signs of progress; an abort leaves the stream."""
    fleet = rig(model("qwen", " ".join(["word"] * 2_000), service="300s") + AGENT)
    fleet.write_plan("p", "### long\n- **prompt**: Go on.\n- **retries**: 0\n")
    batch = fleet.submit("p")

    def written() -> int:
        beat = json.loads((fleet.root / places.heartbeat_path("gpu-1")).read_text())
        return sum(each["progress"]["output_bytes"] for each in beat["active_tasks"])

    wait_until(lambda: (fleet.root / places.heartbeat_path("gpu-1")).exists() and written() > 0)
    wait_until(lambda: "word word" in fleet.plan("logs", "long").stdout)  # FLEET-12: what it has said so far
    assert fleet.run("signal", "gpu-1", "abort", "long", "--root", str(fleet.root)).returncode == 0
    assert fleet.wait(batch) == 1
    [task] = fleet.status(batch)["tasks"]
    assert (task["state"], task["why"]) == ("failed", "aborted")

    def in_flight() -> int:
        shown = fleet.run("status", "--json", "--root", str(fleet.home / "home"))
        return json.loads(shown.stdout)["models"]["qwen"]["in_flight"]

    wait_until(lambda: in_flight() == 0)


def test_a_decision_is_made_by_the_model_of_the_coordinator(rig: Rig) -> None:
    """PLAN-08, FLEET-14: in the agent `brain`, by a model that may span a pair of cards."""
    said = '{"decision": "retry", "reason": "it was the network"}'
    pair = model("large", said).replace('devices = ["gpu:1"]\nmemory = "1MiB"', PAIR)
    fleet = rig(
        pair + AGENT.replace("[coordinator]", '[coordinator]\nmodel = "large"').replace("qwen", "large")
    )
    fleet.write_plan(
        "p", "### choose\n- **type**: decide\n- **prompt**: What now?\n- **output**: {BATCH_PATH}/next\n"
    )
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout
    assert json.loads((fleet.batch("p", batch) / "next").read_text()) == json.loads(said)
    [task] = fleet.status(batch)["tasks"]
    assert task["agent"] == "brain"


@pytest.mark.parametrize(("score", "attempts"), [(2, 2), (3, 1)])
def test_an_answer_below_three_is_queued_again_and_counts_as_an_attempt(
    rig: Rig, score: int, attempts: int
) -> None:
    """FLEET-08: scored by the coordinator's model; the rework is told what was wrong, and nothing poor is published."""
    verdict = json.dumps({"score": score, "reason": "too vague"})
    brain = '[coordinator]\nmodel = "judge"\n'
    fleet = rig(
        model("qwen", "words {BATCH_ID}")
        + model("judge", verdict, "gpu:2")
        + AGENT.replace("[coordinator]\n", brain)
    )
    fleet.write_plan(
        "p",
        "### say\n- **prompt**: Say something about {TOPIC}.\n- **output**: {BATCH_PATH}/said\n- **retries**: 1\n"
        "- **evaluate**: names {TOPIC}\n",
        inputs="- `TOPIC` (default: rain)",
    )
    batch = fleet.submit("p")
    is_good = score >= 3
    assert fleet.wait(batch) == (0 if is_good else 1), fleet.plan("status", batch).stdout
    [task] = fleet.status(batch)["tasks"]
    assert (task["attempt"], task["why"]) == (attempts, "" if is_good else "poor")
    folder = fleet.batch("p", batch)
    assert (folder / "said").exists() is is_good
    asked = (folder / "tasks" / "say" / "a1" / "evaluation.txt").read_text()
    assert "A good answer: names rain" in asked and "words {BATCH_ID}" in asked
    if not is_good:
        [slip] = (fleet.root / places.FAILED).iterdir()
        assert json.loads(slip.read_text())["remark"] == "scored 2 of 5: too vague"
        assert "scored 2 of 5: too vague" in json.dumps(fleet.summary("p", batch)["failures"])


@pytest.mark.parametrize("is_private", [True, False])
def test_the_score_of_a_private_answer_is_asked_for_privately(rig: Rig, is_private: bool) -> None:
    """SPOOL-10, FLEET-08: the question about its score repeated what a private model was asked and had said, and went
    to the external tier of the coordinator's model."""
    tier = """
[tiers.cloud]
kind = "external"
enabled = true
url = "http://127.0.0.1:9/v1"
models = ["judge"]
price_in = 1.0
price_out = 1.0
daily = 5.0
[routing]
order = ["cloud", "local"]
"""
    qwen = model("qwen", "words") + ("private = true\n" if is_private else "")
    judge = model("judge", '{"score": 5, "reason": "good"}', "gpu:2")
    fleet = rig(qwen + judge + AGENT.replace("[coordinator]\n", '[coordinator]\nmodel = "judge"\n') + tier)
    fleet.write_plan("p", "### say\n- **prompt**: Say something.\n- **evaluate**: names rain\n")
    batch = fleet.submit("p")
    assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout
    lines = (fleet.home / "home" / "events.jsonl").read_text().splitlines()
    routed = [line for line in map(json.loads, lines) if line["event"] == "route"]
    assert bool(routed) is not is_private, routed


def test_the_example_plan_asks_a_model_for_each_text_and_makes_one_page(rig: Rig) -> None:
    """PLAN-01 to PLAN-08: examples/plans/summaries as a user copies it, with the agent of examples/plans.toml."""
    own = tomllib.loads((EXAMPLES / "plans.toml").read_text())["agents"]["cpu-1"]
    agent = "[coordinator]\n[agents.cpu-1]\n" + "".join(f"{key} = {json.dumps(own[key])}\n" for key in own)
    fleet = rig(model("smollm2", "A short summary.", "ram") + agent)
    shutil.copytree(EXAMPLES / "plans" / "summaries", fleet.root / "plans" / "summaries")
    batch = fleet.submit("summaries")
    assert fleet.wait(batch) == 0, fleet.plan("status", batch).stdout
    page = (fleet.batch("summaries", batch) / "output" / "summaries.md").read_text()
    assert page.count("A short summary.") == 3 and "## tides" in page
    agents = {each["id"]: each["agent"] for each in fleet.status(batch)["tasks"]}
    assert agents["scan"] == "brain" and agents["summarize_bread"] == "cpu-1"
    wait_until(lambda: "smollm2" in fleet.run("gpus", "--root", str(fleet.root)).stdout)


# ------------------------------------------------------------------ the agent's side alone


class Door(NoDevice):
    """A device whose model is in memory, behind this address."""

    def __init__(self, url: str) -> None:
        self.state = DeviceState(is_open=True, own_model="a", hot=("a",), models=("a",), model_url=url)

    def miss(self) -> None:
        self.state = replace(self.state, is_open=False)


def job(timeout_ms: int | None = None) -> Job:
    return Job("j", (), {}, timeout_ms)


async def ended_of(memory: Memory, act: Callable[[ModelWork], None]) -> list[Ended]:
    ends: list[Ended] = []
    work = ModelWork(memory, "", ends.append)
    act(work)
    await eventually(lambda: ends)
    await work.close()
    return ends


async def test_a_model_that_cannot_be_loaded_fails_its_task_with_the_reason() -> None:
    """FLEET-08: a task ends once, whatever happens, and says why."""
    [end] = await ended_of(NoDevice(), lambda work: work.ask(job(), Question("qwen", "Go.")))
    assert (end.cause, end.code) == (Cause.EXIT, 1)
    assert b"no device" in end.err.tail
    [end] = await ended_of(NoDevice(), lambda work: work.obey(job(), MetaCommand.UNLOAD, "qwen"))
    assert (end.cause, end.code) == (Cause.EXIT, 1)


async def test_a_task_that_is_stopped_before_its_first_step_ends_all_the_same() -> None:
    """FLEET-07: every start has exactly one end."""

    def start_and_stop(work: ModelWork) -> None:
        work.ask(job(), Question("qwen", "Go."))
        work.stop("j")
        assert "j" in work

    [end] = await ended_of(NoDevice(), start_and_stop)
    assert (end.cause, end.code) == (Cause.STOPPED, None)


async def test_a_question_whose_daemon_has_ended_is_lost_and_has_not_failed() -> None:
    """FLEET-08: each restart of a daemon used up an attempt of every question that waited for a place."""
    door = Door("http://127.0.0.1:9")  # no program listens there
    [end] = await ended_of(door, lambda work: work.ask(job(), Question("", "Go.")))
    assert (end.cause, end.code, door.state.is_open) == (Cause.DAEMON_GONE, None, False)


async def test_a_question_to_a_daemon_that_shuts_down_is_lost_and_has_not_failed() -> None:
    """FLEET-08: also while it lets its last answers end."""
    async with open_gateway() as gateway:
        gateway.serving.gateway.closing.set()
        door = Door(gateway.url)
        [end] = await ended_of(door, lambda work: work.ask(job(), Question("", "Go.")))
        assert (end.cause, door.state.is_open) == (Cause.DAEMON_GONE, False)
        assert (await gateway.ask("/wb/v1/doors", {"name": "gpu-1"})).status == 503


async def test_an_agent_whose_device_is_not_read_any_more_claims_nothing_for_it_and_keeps_its_model() -> None:
    """R25, FLEET-04: an agent that is constrained and hot would be told to unload a model that serves on."""
    async with open_gateway() as gateway:
        memory = HostMemory(gateway.url, (), "cpu-1", model="a")
        await memory.open()
        assert memory.state.is_open
        old = {"ram": DeviceReading(2**30, 2**30, age_ms=HOUR_MS)}

        async def is_closed() -> bool:  # the gateway reads its machine, too
            gateway.driver.feed(Observed(time.monotonic_ns() // 1_000_000, old, {}))
            await memory.look()
            return not memory.state.is_open

        await eventually(is_closed)
        assert memory.state.constraints == ("it could not be read for 3600 s",) and not memory.state.hot
        await memory.close()


async def test_an_answer_that_takes_longer_than_the_timeout_of_its_task_is_left() -> None:
    """PLAN-02: also while the engine says nothing at all."""
    async with open_gateway(never) as gateway:
        [end] = await ended_of(Door(gateway.url), lambda work: work.ask(job(300), Question("", "Go.")))
        assert (end.cause, end.code) == (Cause.TIMEOUT, None)


async def never(question: Asked, writer: asyncio.StreamWriter) -> None:
    """An engine that takes a question and does not answer."""
    await asyncio.sleep(3_600)


@pytest.mark.parametrize("is_kept", [True, False])
def test_questions_and_accepted_answers_are_kept_unless_that_is_turned_off(rig: Rig, is_kept: bool) -> None:
    """FLEET-10: logs/training_samples.jsonl has the prompt as it was asked, and a switch."""
    switch = "" if is_kept else "training_samples = false\n"
    fleet = rig(model("qwen", "It is blue.") + AGENT.replace("[coordinator]\n", f"[coordinator]\n{switch}"))
    fleet.write_plan(
        "p",
        "### say\n- **prompt**: What is {TOPIC}?\n- **system**: Be short.\n### run\n- **command**: `true`\n",
        inputs="- `TOPIC`",
    )
    batch = fleet.submit("p", "--set", "TOPIC=the sky")
    assert fleet.wait(batch) == 0
    file = fleet.root / "logs" / "training_samples.jsonl"
    if not is_kept:
        assert not file.exists()
        return
    (sample,) = (json.loads(line) for line in file.read_text().splitlines())  # none of the command
    assert (sample["prompt"], sample["system"]) == ("What is the sky?", "Be short.")
    assert (sample["answer"].strip(), sample["model"]) == ("It is blue.", "qwen")
    assert (sample["batch"], sample["task"], sample["agent"]) == (batch, "say", "gpu-1")
