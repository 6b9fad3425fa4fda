"""Plans of tasks that do nothing: what a task costs, beside a bare `posix_spawn` of the same program in the same run.

    .venv/bin/python bench/plans.py [--tasks N] [--chain N] [--agents N] [--simulated N] [--nats]

A real coordinator, a real agent with four slots and a shared folder on this disk; everything is durable. The time of a
batch is that between the first and the last line of its journal. `fan-out`: N tasks of one foreach, then ten times as
many. `chain`: each task waits for the one before. Fan-out and chain are run in rounds, each beside spawns of the same
minute, and the median of their ratios counts. `simulated`: the real coordinator in virtual time, 100 agents and 100,000
tasks beside a tenth of them, wall time per journal line. `--nats`: only an agent without the shared folder beside one
with it. Exits 1 when a goal is missed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.eventually import wait_until
from support.fleet_folder import FleetFolder, shared_folder
from support.nats_server import TOKEN, broker
from watchbill.fleet.folder import places
from watchbill.plans.batch import ExecutePlan
from watchbill.simulate.rig import Rig, SimAgent

#: The goals: a task beside a spawn, many tasks beside a tenth of them, a link of a chain beside a spawn.
FAN_OUT_MAX = 3.0
FLAT_MAX = 1.25
CHAIN_MAX = 8.0
SLOTS = 4
ROUNDS = 3
CHAIN_ROUNDS = 5
SPAWNS = 300


def main() -> int:
    """Measure, and print pass or fail per goal."""
    parser = argparse.ArgumentParser(description="What a task of a plan costs.")
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--chain", type=int, default=200)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--simulated", type=int, default=100_000)
    parser.add_argument("--nats", action="store_true")
    given = parser.parse_args()
    if given.nats:
        return over_nats(given.tasks)
    passed = [*real(given.tasks, given.chain), *simulated(given.agents, given.simulated)]
    return 0 if all(passed) else 1


def told(what: str, figures: str, goal: str, *, is_met: bool) -> bool:
    print(f"{'pass' if is_met else 'FAIL'}  {what:<34} {figures:<44} goal {goal}", flush=True)
    return is_met


# ------------------------------------------------------------------ real processes


def real(tasks: int, chain: int) -> list[bool]:
    """A fan-out, ten times as many, and a chain; each beside spawns of the same minute."""
    with tempfile.TemporaryDirectory() as folder, shared_folder(Path(folder)) as fleet:
        write_plans(fleet, tasks, chain)
        fleet.start_coordinator()
        wait_until((fleet.root / places.RESULTS).is_dir)
        fleet.start("-m", "watchbill", "agent", "a", "--root", str(fleet.root), "--cpu-slots", str(SLOTS))
        wait_until((fleet.root / places.heartbeat_path("a")).exists)
        run(fleet, "few")  # the first one imports modules and makes folders
        few = [(run(fleet, "few"), spawn_ms()) for _ in range(ROUNDS)]
        many = [(run(fleet, "many"), spawn_ms())]
        linked = [(run(fleet, "chain"), spawn_ms()) for _ in range(CHAIN_ROUNDS)]
    ratio = median(ms / spawn for ms, spawn in few)
    flat = many[0][0] / median(ms for ms, _ in few)
    link = median(ms / spawn for ms, spawn in linked)
    return [
        told(f"{tasks:,} tasks", shown(few), f"{FAN_OUT_MAX:g} x", is_met=ratio <= FAN_OUT_MAX),
        told(f"{tasks * 10:,} tasks", f"{shown(many)}, {flat:.2f} x of fewer", f"{FLAT_MAX:g} x",
             is_met=flat <= FLAT_MAX),
        told(f"a chain of {chain:,}", shown(linked), f"{CHAIN_MAX:g} x", is_met=link <= CHAIN_MAX),
    ]  # fmt: skip


def over_nats(tasks: int) -> int:
    """The same fan-out by an agent with the folder, and by one that goes through a door."""
    with (
        tempfile.TemporaryDirectory() as home,
        shared_folder(Path(home)) as fleet,
        broker(Path(home) / "broker") as server,
    ):
        write_plans(fleet, tasks, 1)
        config = Path(home) / "nats.toml"
        config.write_text(f'[nats]\nservers = ["{server.url}"]\ntoken = "{TOKEN}"\n')
        fleet.start_coordinator()
        wait_until((fleet.root / places.RESULTS).is_dir)
        fleet.start("-m", "watchbill", "door", "--root", str(fleet.root), WATCHBILL_CONFIG=str(config))
        figures: list[float] = []
        for name, where in (("a", ("--root", str(fleet.root))), ("b", ("--nats", "config"))):
            words = ("-m", "watchbill", "agent", name, *where, "--cpu-slots", str(SLOTS))
            agent = fleet.start(*words, WATCHBILL_CONFIG=str(config))
            wait_until((fleet.root / places.heartbeat_path(name)).exists)
            run(fleet, "few")
            figures.append(median(run(fleet, "few") for _ in range(ROUNDS)))
            agent.terminate()
            agent.wait(60)
    folder, nats = figures
    print(
        f"{tasks:,} tasks: {folder:.2f} ms a task with the folder, {nats:.2f} over NATS: {nats / folder:.1f} x"
    )
    return 0


def shown(rounds: list[tuple[float, float]]) -> str:
    ms, spawn = median(each[0] for each in rounds), median(each[1] for each in rounds)
    return f"{ms:.2f} ms a task, {spawn:.2f} a spawn: {median(m / s for m, s in rounds):.1f} x"


def write_plans(fleet: FleetFolder, tasks: int, chain: int) -> None:
    for name, count in (("few", tasks), ("many", tasks * 10)):
        folder = fleet.write_plan(name, "### t\n- **command**: `true`\n- **foreach**: items.json:all\n")
        (folder / "items.json").write_text(json.dumps({"all": list(range(count))}))
    links = "".join(
        f"### t{number}\n- **command**: `true`\n" + (f"- **depends_on**: t{number - 1}\n" if number else "")
        for number in range(chain)
    )
    fleet.write_plan("chain", links)


def run(fleet: FleetFolder, plan: str) -> float:
    """Milliseconds per task, from the journal's own times."""
    batch = fleet.submit(plan)
    assert fleet.wait(batch, 600) == 0, fleet.log.read_text()[-2000:]
    began, accepted, ended = (fleet.entries(plan, batch, kind) for kind in ("open", "accept", "ended"))
    return (ended[0]["at_ms"] - began[0]["at_ms"]) / len(accepted)


def spawn_ms() -> float:
    """One `posix_spawn` of `true` and its wait."""
    began = time.perf_counter()
    for _ in range(SPAWNS):
        pid = os.posix_spawnp("true", ["true"], os.environ)
        os.waitpid(pid, 0)
    return (time.perf_counter() - began) * 1000 / SPAWNS


# ------------------------------------------------------------------ virtual time


def simulated(agents: int, tasks: int) -> list[bool]:
    """The cost of a decision with many tasks beside that with a tenth of them."""
    few, many = decision_us(agents, tasks // 10), decision_us(agents, tasks)
    return [
        told(
            f"{agents} agents, {tasks:,} tasks (simulated)", f"{many:.0f} us a decision, {many / few:.2f} x of a tenth",
            f"{FLAT_MAX:g} x", is_met=many / few <= FLAT_MAX,
        )
    ]  # fmt: skip


def decision_us(agents: int, tasks: int) -> float:
    """CPU time of the whole simulation per journal line."""
    rig = Rig(
        [*(SimAgent(f"a-{n}", SLOTS) for n in range(agents)), SimAgent(places.BRAIN, 1)], lambda _t, _n: 1_000
    )
    rig.put(
        "plans/p/plan.md", b"# P\n\n## Tasks\n\n### t\n- **command**: `x {ITEM}`\n- **foreach**: m.json:all\n"
    )
    rig.put("plans/p/m.json", json.dumps({"all": list(range(tasks))}).encode())
    began = time.process_time()
    played = rig.play(ExecutePlan("b", "p", {}))
    assert played.tasks == {"t": tasks}
    return (time.process_time() - began) * 1e6 / played.entries


if __name__ == "__main__":
    sys.exit(main())
