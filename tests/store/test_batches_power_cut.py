"""Power cuts while a batch is answered: what was told as answered stays, and every line is in the results once."""

import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.eventually import eventually
from watchbill.batches.asking import Question, Reply
from watchbill.batches.batch import Created, Dialect
from watchbill.batches.service import Batches
from watchbill.catalog import BatchRules
from watchbill.files.atomic import make_folder
from watchbill.gateway.dialects.batches.openai import OpenAiResults

Say = Callable[[object], None]
TRIALS = max(1, int(os.environ.get("WATCHBILL_POWER_CUTS", "12")) // 4)
LINES = 1500


class Echo:
    """Answers every line with its own body."""

    def begin(self, question: Question) -> "EchoCall":
        return EchoCall(question)


class EchoCall:
    """One line."""

    is_waiting = False

    def __init__(self, question: Question) -> None:
        self._question = question

    async def reply(self) -> Reply:
        await asyncio.sleep(0)
        return Reply(200, "r", self._question.body)


class AnyModel:
    """Models that are all in memory."""

    def resolve(self, name: str) -> str:
        return name

    def slots(self, name: str) -> int:
        return 8

    def is_warm(self, name: str) -> bool:
        return True


async def opened(folder: Path) -> Batches:
    batches = Batches(folder, BatchRules())
    await batches.start(Echo(), AnyModel(), {Dialect.OPENAI: OpenAiResults()})
    return batches


def line_of(number: int) -> bytes:
    body = {"model": f"m{number % 2}", "n": number}
    asked = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(asked).encode() + b"\n"


def begin(folder: Path, say: Say) -> None:
    """Makes a batch, and says how many lines of it are answered, until the power fails."""

    async def work() -> None:
        batches = await opened(folder)
        draft = await batches.files.begin("")
        await draft.write(b"".join(map(line_of, range(LINES))))
        file = await draft.keep("in.jsonl", "batch")
        id, now = batches.new_id(Dialect.OPENAI), batches.now_ms()
        asked = Created(now, id, "", Dialect.OPENAI, "/v1/chat/completions", file.id, "24h", 86_400_000)
        batch = await batches.create(asked)
        say([id, 0])
        while True:
            say([id, batch.completed])
            await asyncio.sleep(0.002)  # as often as this it is told

    asyncio.run(work())


def finish(folder: Path, say: Say) -> None:
    """Takes the batch up again, and says what was answered at first, and its results."""

    async def work() -> None:
        batches = await opened(folder)
        (batch,) = batches.listed(("",), Dialect.OPENAI)
        say([batch.id, batch.completed])
        await eventually(lambda: batch.has_ended, 60)
        output = None if batch.output_file is None else batches.files.get("", batch.output_file)
        content = b"" if output is None else batches.files.path(output).read_bytes()
        say([batch.stage, [json.loads(line)["custom_id"] for line in content.splitlines()]])
        await batches.close()

    asyncio.run(work())


def test_a_batch_survives_a_power_cut(disk: Any, child: Any) -> None:
    """R1, P1: at a random moment the power fails; what was told as answered is answered, every line once."""
    chance, told_in_all = random.Random(disk.kind), 0
    for trial in range(TRIALS):
        folder = disk.path / f"batches{trial}"
        make_folder(folder)
        first = child(lambda say, folder=folder: begin(folder, say))
        first.first()
        time.sleep(chance.uniform(0.0, 0.5))  # the moment of the cut is the experiment
        said = first.said()
        disk.shut_down()
        first.kill()
        disk.mount_again()
        id, told = said[-1]
        second = child(lambda say, folder=folder: finish(folder, say))
        (again, kept), (stage, found) = second.join()
        assert (again, stage) == (id, "completed")
        assert kept >= told, (kept, told)
        assert found == [str(number) for number in range(LINES)]
        told_in_all += told
    print(f"counts: cuts={TRIALS} told={told_in_all}")
