"""Three real models and memory for two: everybody is answered, and the memory is never exceeded."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.place import Daemon, Place, chat_body
from gguf_models import GgufFiles
from watchbill.footprint import predict
from watchbill.gguf import read_header

SAMPLER = Path(__file__).parent / "programs" / "sample_memory.py"
#: A large cache makes these models heavy although their files are small and quickly made.
SLOTS, CONTEXT = 4, 4096
MODEL = """
[models.{name}]
engine = "llamacpp"
source = "{path}"
context = {context}
concurrency = {slots}
threads = 1
"""
DEVICE = """
[devices.ram]
capacity = {capacity}
reserve = "200MB"
"""
RESERVE = 200_000_000
#: A letter is a token: a prompt that fills a batch touches all that a model allocated.
LONG_PROMPT = "a watch bill says who stands where and when. " * 12


class Samples:
    """What the sampling process saw."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    @property
    def largest(self) -> int:
        return self.seen["largest"]


@contextmanager
def sampled(daemon: Daemon) -> Iterator[Samples]:
    """Another process looks at the memory of the engines meanwhile."""
    samples, begun = Samples(), time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(SAMPLER), str(daemon.pid)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as sampler:  # fmt: skip
        try:
            yield samples
        finally:
            said, _ = sampler.communicate(timeout=20)
    samples.seen = json.loads(said)
    # It really looked all the time: on loaded cores a look may be late, and a machine may stand still for a second.
    assert samples.seen["samples"] > (time.monotonic() - begun) * 2, samples.seen
    assert samples.seen["pause_s"] < 5, samples.seen


def traffic(daemon: Daemon, names: list[str]) -> list[int]:
    """Twenty requests, the models taking turns, in waves of five: some find their model, others wait for it."""

    def ask(number: int, name: str) -> int:
        prompt = LONG_PROMPT if number < len(names) else f"This is number {number}."
        body = chat_body(name, 4) | {"messages": [{"role": "user", "content": prompt}]}
        status, _, text = daemon.ask("/v1/chat/completions", body, seconds=100)
        assert status != 200 or json.loads(text)["usage"]["completion_tokens"] == 4
        return status

    turns = itertools.cycle(names)
    with ThreadPoolExecutor(20) as crowd:
        answers: list[Future[int]] = []
        for wave in range(4):
            fresh = [crowd.submit(ask, 5 * wave + place, next(turns)) for place in range(5)]
            answers += fresh
            # The next wave comes when the first of this one is answered, so that loads and answers overlap.
            wait(fresh, 60, FIRST_COMPLETED)
        return [answer.result(100) for answer in answers]


@pytest.mark.timeout(180)
def test_twenty_requests_for_three_models_stay_within_memory_for_two(
    place: Place, gguf_files: GgufFiles
) -> None:
    """RES-01, RES-03, RES-04: all answered, and what the engines occupy, seen every 20 ms by another process, is
    never above the budget. Without the budget the same traffic takes more."""
    paths = {
        "small": gguf_files.chat("5MB"),
        "middle": gguf_files.chat("20MB"),
        "large": gguf_files.chat("60MB"),
    }
    sizes = {
        name: predict(read_header(path), context=CONTEXT, slots=SLOTS).total for name, path in paths.items()
    }
    models = "".join(
        MODEL.format(name=name, path=path, context=CONTEXT, slots=SLOTS) for name, path in paths.items()
    )
    budget = sizes["small"] + sizes["large"] + 1_000_000
    assert sizes["middle"] + sizes["large"] > budget

    place.config.write_text(DEVICE.format(capacity=budget + RESERVE) + models)
    daemon = place.up()
    with sampled(daemon) as within:
        assert traffic(daemon, list(paths)) == [200] * 20
    status = daemon.status()
    ram = status["devices"]["ram"]
    assert (ram["budget"], ram["reserve"]) == (budget, RESERVE)
    assert ram["used"] + ram["loading"] + ram["stopping"] <= budget
    assert all(model["loads"] >= 1 for model in status["models"].values())
    assert status["models"]["middle"]["evictions"] + status["models"]["large"]["evictions"] >= 1
    assert sum(model["in_flight"] + model["queued"] for model in status["models"].values()) == 0
    assert daemon.stop() == 0
    assert within.largest <= budget, within.seen

    place.config.write_text(DEVICE.format(capacity='"8GB"') + models)
    unbounded = place.up()
    with sampled(unbounded) as without:
        assert traffic(unbounded, list(paths)) == [200] * 20
    assert sum(model["evictions"] for model in unbounded.status()["models"].values()) == 0
    assert without.largest > budget, without.seen
    print(f"budget {budget:,}: at most {within.largest:,} with it, {without.largest:,} without it")
