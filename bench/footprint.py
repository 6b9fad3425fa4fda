"""Prediction against measurement: the memory of real GGUF models on the real llama.cpp.

    .venv/bin/python bench/footprint.py MODEL.gguf:CONTEXT:SLOTS[:mmap|:embed] ...

Each model is loaded by the llamacpp engine as the daemon would load it. Its memory (PSS of the process tree) is
read when it is warm, and again after one slot was filled to its end and all others with a whole batch: only then
have all buffers been touched. Prints the table of docs/memory.md and exits 1 when a prediction is too low or more
than a quarter and 64 MiB too high.
"""

import asyncio
import http.client
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from watchbill.catalog import RAM, Model
from watchbill.engines.base import Endpoint
from watchbill.engines.llamacpp import LlamaRecipe
from watchbill.engines.owned import OwnedEngine
from watchbill.gguf import predict, read_header

MIB = 2**20
ANSWER_TIMEOUT_S = 900


@dataclass(frozen=True)
class Row:
    name: str
    context: int
    slots: int
    how: str
    predicted: int
    warm: int
    used: int

    @property
    def verdict(self) -> str:
        if self.predicted < self.used:
            return "too low"
        return "ok" if self.predicted <= self.used * 1.25 + 64 * MIB else "too high"


def ask(endpoint: Endpoint, path: str, body: dict[str, object]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=ANSWER_TIMEOUT_S)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


async def fill(endpoint: Endpoint, model: Model) -> None:
    """One slot to its end, the others with more than a batch, all at once."""
    status, body = await asyncio.to_thread(ask, endpoint, "/tokenize", {"content": "lamp stone " * 50})
    assert status == 200, body
    per_word = len(json.loads(body)["tokens"]) / 100

    async def one(tokens: int) -> None:
        text = "lamp stone " * int(tokens / per_word / 2)
        path, submission = "/v1/completions", {"prompt": text, "max_tokens": 16, "logprobs": 5}
        if model.embedding:
            path, submission = "/v1/embeddings", {"input": text}
        status, body = await asyncio.to_thread(ask, endpoint, path, submission)
        assert status == 200, body[:500]

    longest = model.context - 40
    lengths = [longest] + [min(longest, 700)] * (model.concurrency - 1)
    await asyncio.gather(*(one(tokens) for tokens in lengths))


async def measure(engine: OwnedEngine, path: Path, context: int, slots: int, how: str) -> Row:
    header = read_header(path)
    model = Model(
        path.stem, "llamacpp", source=str(path), context=context, concurrency=slots, threads=1,
        mmap=how == "mmap", embedding=how == "embed",
        arguments=("--pooling", "mean") if how == "embed" and not header.is_embedding else (),
    )  # fmt: skip
    predicted = predict(header, context=context, slots=slots, mmap=model.mmap, embedding=model.embedding)
    warm = await engine.load(model, 1)
    try:
        await fill(warm.endpoint, model)
        used = engine.memory(model.name)[RAM]
    finally:
        await engine.stop(model.name)
    return Row(path.stem, context, slots, how, predicted.total, warm.memory[RAM], used)


async def run(caller_options: list[str]) -> int:
    print("| model | context x slots | predicted | warm | used | above |\n|---|---|---|---|---|---|")
    verdicts: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        engine = OwnedEngine(LlamaRecipe(), Path(root), lambda *_: None)
        for submission in caller_options:
            path, context, slots, *how = submission.split(":")
            row = await measure(engine, Path(path), int(context), int(slots), how[0] if how else "")
            above = f"{(row.predicted / row.used - 1) * 100:+.0f} %"
            figures = " | ".join(f"{size / MIB:.0f} MiB" for size in (row.predicted, row.warm, row.used))
            name = f"{row.name} {row.how}".strip()
            print(f"| {name} | {row.context} x {row.slots} | {figures} | {above} |", flush=True)
            verdicts.append(row.verdict)
        await engine.close()
    bad = [
        f"{submission}: {verdict}"
        for submission, verdict in zip(caller_options, verdicts, strict=True)
        if verdict != "ok"
    ]
    print("\n".join(bad) if bad else f"all {len(caller_options)} predictions within their bounds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:])))
