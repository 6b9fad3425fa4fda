"""A fleet on a real NVIDIA card: tasks that really take its memory, a model beside them, and a stranger on the card.

    python bench/card.py --cuda-python /opt/torch/bin/python3

Needs a card, its driver, `nvidia-ml-py` here, and a Python with PyTorch for the programs on the card. Prints what was
seen, one line per promise, and exits with 1 when one was not kept. Stops by itself.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from on_card import OnCard, Sampler
from support.fleet_folder import FleetFolder, shared_folder
from watchbill.fleet.folder import places

#: A model that takes so many MiB and answers every chat with one word.
MODEL = r"""
import json, sys, torch
from http.server import BaseHTTPRequestHandler, HTTPServer
held = torch.zeros(int(sys.argv[2]) << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.answer({"status": "ok"})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = {"role": "assistant", "content": "aye"}
        about = {"id": "1", "created": 1, "model": "mate"}
        if not asked.get("stream"):
            choice = {"index": 0, "message": told, "finish_reason": "stop"}
            return self.answer(about | {"object": "chat.completion", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for delta, why in ((told, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": why}
            chunk = about | {"object": "chat.completion.chunk", "choices": [choice]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
    def log_message(self, *words):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
CONFIG = """
[devices."gpu:0"]
capacity = "24GiB"
reserve = "1GiB"
[models.mate]
engine = "process"
command = "{python} {model} ${{PORT}} 8192"
devices = ["gpu:0"]
memory = "9GiB"
health = "/health"
[coordinator]
[agents.gpu-0]
device = "gpu:0"
model = "mate"
cpu_slots = 1
"""
SCRIPT = """### {name}
- **task_class**: script
- **vram_estimate_mb**: {estimate}
- **command**: `{python} {take} {size} {seconds}`
"""
#: What a CUDA context takes beside the tensors of a program, at most.
CONTEXT_MB = 1_024
CAPACITY_MB = 24 * 1024


class Trial(OnCard):
    """A daemon with one agent on the card, and what was promised and seen."""

    def __init__(self, fleet: FleetFolder, python: str) -> None:
        super().__init__(fleet.home, python)
        self.fleet = fleet
        (fleet.home / "model.py").write_text(MODEL)
        config = CONFIG.format(python=python, model=fleet.home / "model.py")
        (fleet.home / "watchbill.toml").write_text(config)
        fleet.start("-m", "watchbill", "up", "--port", "0", "--config", "watchbill.toml")
        fleet.root = fleet.home / "home" / "fleet"
        self.until(lambda: bool(self.heartbeat()))

    def heartbeat(self) -> dict[str, Any]:
        try:
            return json.loads((self.fleet.root / places.heartbeat_path("gpu-0")).read_text())
        except (FileNotFoundError, ValueError):
            return {}

    def run(self, name: str, tasks: str) -> tuple[str, dict[str, Any]]:
        """A batch to its end, and its status."""
        batch = self.submit(name, tasks)
        return batch, self.end(batch)

    def submit(self, name: str, tasks: str) -> str:
        self.fleet.write_plan(name, tasks)
        return self.fleet.submit(name)

    def end(self, batch: str) -> dict[str, Any]:
        self.fleet.wait(batch)
        status = self.fleet.status(batch)
        for task in status["tasks"]:
            if task["state"] != "complete":
                print(f"        {task['id']}: {task['state']}, {task['why']}, {task['error']}")
        return status

    def task(self, name: str, size_mb: int, estimate_mb: int, seconds: float = 3.0) -> str:
        return SCRIPT.format(
            name=name, estimate=estimate_mb, python=self.python, take=self.take, size=size_mb,
            seconds=seconds,
        )  # fmt: skip


def play(trial: Trial, sampler: Sampler) -> None:
    beat = trial.heartbeat()
    card = {key: beat.get(key) for key in ("temperature_c", "power_draw_w", "vram_used_mb", "vram_total_mb")}
    trial.say("the heartbeat tells the card", json.dumps(card), beat.get("budget_available_mb", 0) > 0)
    show_sizes(trial, sampler)
    show_question(trial, sampler)
    show_out_of_memory(trial)
    show_stranger(trial, sampler)
    show_killed_agent(trial, sampler)


def show_sizes(trial: Trial, sampler: Sampler) -> None:
    """Six tasks that do not fit together."""
    sizes = {"a": 4_096, "b": 8_192, "c": 6_144, "d": 10_240, "e": 2_048, "f": 12_288}
    sampler.again()
    tasks = "".join(trial.task(name, size, size + CONTEXT_MB) for name, size in sizes.items())
    batch, status = trial.run("sizes", tasks)
    peaks = {entry["task"]: entry["peak_vram_mb"] for entry in trial.fleet.entries("sizes", batch, "accept")}
    trial.say(
        "six tasks of 42 GiB on 24 GiB",
        f"{status['state']}, {status['counts']}",
        status["state"] == "complete",
    )
    trial.say(
        "the card never held more than its capacity",
        f"{sampler.most_mb} MiB at most",
        0 < sampler.most_mb <= CAPACITY_MB,
    )
    extra = {task: peak - sizes[task] for task, peak in sorted(peaks.items())}
    trial.say(
        "each peak is that of its process: its tensors and a context",
        f"MiB above the tensors: {extra}",
        extra.keys() == sizes.keys() and all(0 < each <= CONTEXT_MB for each in extra.values()),
    )  # fmt: skip


def show_question(trial: Trial, sampler: Sampler) -> None:
    """A question beside a task: the model is loaded on the same card, in the same ledger."""
    sampler.again()
    question = "### ask\n- **prompt**: Ready?\n- **output**: {BATCH_PATH}/answer.txt\n"
    batch, status = trial.run("asks", trial.task("beside", 12_288, 13_312) + question)
    answer = trial.fleet.batch("asks", batch) / "answer.txt"
    said = answer.read_text().strip() if answer.exists() else "nothing"
    trial.say(
        "a model is loaded for a question, beside a task", f"{status['state']}, it said {said}", said == "aye"
    )
    trial.say("model and task together", f"{sampler.most_mb} MiB at most", 0 < sampler.most_mb <= CAPACITY_MB)
    seconds = trial.until(lambda: trial.heartbeat().get("state") == "hot")
    trial.say("the agent says hot", f"{seconds:.1f} s later", True)


def show_out_of_memory(trial: Trial) -> None:
    """A task that asks the card for more than it has: CUDA says no, and the next try gets more memory."""
    batch, _ = trial.run("large", trial.task("huge", 900_000, 2_048) + "- **retries**: 1\n")
    issued = [entry["vram_mb"] for entry in trial.fleet.entries("large", batch, "issue")]
    trial.say(
        "after an out-of-memory end the next try asks for more",
        f"issued with {issued} MB",
        issued[1:] > issued[:1],
    )


def show_stranger(trial: Trial, sampler: Sampler) -> None:
    """Somebody fills the card: nothing new starts, and it goes on when they have gone."""
    with trial.stranger(sampler.free_mb() - 3_072):
        seconds = trial.until(lambda: bool(trial.heartbeat().get("constraints")))
        told = trial.heartbeat()["constraints"]
        trial.say("a stranger fills the card: constrained", f"after {seconds:.1f} s, by {told}", bool(told))
        batch = trial.submit("later", trial.task("later", 2_048, 3_072, 1.0))
        time.sleep(5)
        offered = [each.name for each in (trial.fleet.root / places.QUEUE).iterdir() if "later" in each.name]
        trial.say("a task waits meanwhile", f"{len(offered)} offered after 5 s", len(offered) == 1)
    seconds = trial.until(lambda: not trial.heartbeat().get("constraints"))
    status = trial.end(batch)
    trial.say(
        "they leave: it recovers, and the task runs",
        f"after {seconds:.1f} s, {status['state']}",
        status["state"] == "complete",
    )


def show_killed_agent(trial: Trial, sampler: Sampler) -> None:
    """kill -9 of the agent in the middle of a task: its memory is back, and the task runs again."""
    others = set(sampler.by_process())
    batch = trial.submit("killed", trial.task("long", 6_144, 7_168, 8.0))

    def theirs() -> set[int]:
        return {pid for pid, mib in sampler.by_process().items() if pid not in others and mib > 6_144}

    trial.until(lambda: bool(theirs()))
    before = theirs()
    os.kill(trial.heartbeat()["pid"], signal.SIGKILL)
    seconds = trial.until(lambda: not before & set(sampler.by_process()))
    trial.say("kill -9 of the agent: the card's memory is back", f"after {seconds:.2f} s", True)
    status = trial.end(batch)
    trial.say(
        "its task runs again",
        f"{status['state']}, attempt {status['tasks'][0]['attempt']}",
        status["state"] == "complete",
    )


def main(words: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="A fleet on a real NVIDIA card.")
    options.add_argument("--cuda-python", default=sys.executable, help="a Python with PyTorch and CUDA")
    python = options.parse_args(words).cuda_python
    with (
        tempfile.TemporaryDirectory(prefix="watchbill-card-") as folder,
        shared_folder(Path(folder)) as fleet,
    ):
        trial = Trial(fleet, python)
        try:
            play(trial, Sampler())
        except AssertionError as error:
            trial.say("in time", str(error), False)
        fleet.run("down")
        if trial.failed:
            print(fleet.log.read_text()[-4_000:])
    return 1 if trial.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
