"""The scripted engine: a real process that is as slow, large, broken or dishonest as its script says.

It ships with Watchbill and serves tests, demos and rehearsals of a config: a model of 40 GB that loads for a
minute can be tried on a laptop. The script is the model's `script` table:

    load        "3s"      until it is healthy
    wake        "0.2s"    until it has its memory again after POST /sleep; POST /wake_up or any request wakes it
    service     "0.5s"    duration of a whole answer, spread evenly over its tokens
    tokens      16        words of an answer; max_tokens cuts it
    text        "..."     the words, repeated as often as needed; the model's name otherwise
    memory      "1GiB"    really occupied, unless touch = false
    concurrency 4         slots; the model's otherwise
    linger      "1s"      how long it works on for a client that left
    jitter      0.2       durations vary by this share; `seed` makes it the same row every time
    fail        one failure or a list of them, see FAILURES; fail_times = N fails only the first N times
"""

import sys
from collections.abc import Mapping

import msgspec

from watchbill.catalog import Model
from watchbill.engines import scripted_server
from watchbill.engines.base import Capabilities
from watchbill.engines.owned import Launch
from watchbill.engines.sleep import TOLD
from watchbill.errors import ConfigError
from watchbill.names import file_stem
from watchbill.processes import Keeper
from watchbill.quoting import quoted
from watchbill.units import parse_bytes, parse_millis

__all__ = ["FAILURES", "ScriptedRecipe", "check_script"]

#: Every way to misbehave, and what it shows.
FAILURES: Mapping[str, str] = {
    "crash-on-load": "exits with 1 when the load time is over",
    "hang-on-load": "opens its port and never becomes healthy",
    "healthy-but-silent": "says it is healthy and answers nothing, not even the probe",
    "crash-before-first-byte": "exits with 1 when a request arrives",
    "crash-after-first-byte": "exits with 1 after the first frame of a stream",
    "hang-before-first-byte": "takes a request and never answers",
    "hang-mid-stream": "stops half way through a stream",
    "hang-late-in-stream": "stops a stream after 16 words; shorter answers are whole",
    "http-500": "answers with status 500",
    "bad-frames": "sends broken frames and ends without [DONE]",
    "ignore-term": "ignores SIGTERM",
    "fork-and-exit": "goes on in a child, in a session of its own, while its parent exits",
}


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `script` table as it is written."""

    load: str | int | float = 0
    wake: str | int | float = 0
    service: str | int | float = 0
    tokens: int = 8
    text: str = ""
    memory: str | int = 0
    touch: bool = True
    concurrency: int | None = None
    linger: str | int | float = 0
    jitter: float = 0.0
    seed: int = 1
    fail: str | list[str] = []
    fail_times: int = 0


class ScriptedRecipe:
    """How a scripted model is started."""

    capabilities = Capabilities(
        owned=True, measures_memory=True, stops_generation=True, continues=True, sleeps="told"
    )
    sleep = TOLD

    def probe_for(self, model: Model) -> str:
        """One answer of the kind the model gives."""
        return "embed" if model.embedding else "chat"

    async def launch(self, model: Model, port: int, keeper: Keeper) -> Launch:
        """The command line of the server."""
        script = check_script(model.script, model.concurrency)
        states = keeper.root / "run" / "scripted"
        states.mkdir(mode=0o700, parents=True, exist_ok=True)
        words = (
            model.name,
            str(port),
            msgspec.json.encode(script).decode(),
            str(states / file_stem(model.name)),
        )
        return Launch(argv=(sys.executable, "-I", "-S", scripted_server.__file__, *words), env=model.env)

    def diagnose(self, lines: list[str]) -> None:
        """A scripted failure needs no explanation."""


def check_script(script: Mapping[str, object], concurrency: int = 1) -> dict[str, object]:
    """The script as the server wants it. Raises ConfigError naming what cannot be used."""
    fields = {key.replace("-", "_"): value for key, value in script.items()}
    try:
        read = msgspec.convert(fields, type=Script)
    except msgspec.ValidationError as error:
        raise ConfigError(f"script: {error}; known keys are {', '.join(Script.__struct_fields__)}") from error
    failures = [read.fail] if isinstance(read.fail, str) else read.fail
    for failure in failures:
        if failure not in FAILURES:
            raise ConfigError(f"script: unknown failure {quoted(failure)}; known are {', '.join(FAILURES)}")
    if read.tokens < 1 or not 0 <= read.jitter <= 1:
        raise ConfigError("script: tokens must be at least 1, and jitter between 0 and 1")
    return {
        "load_ms": parse_millis(read.load),
        "wake_ms": parse_millis(read.wake),
        "service_ms": parse_millis(read.service),
        "tokens": read.tokens,
        "text": read.text,
        "memory_bytes": parse_bytes(read.memory) if read.touch else 0,
        "concurrency": read.concurrency or concurrency,
        "linger_ms": parse_millis(read.linger),
        "jitter": read.jitter,
        "seed": read.seed,
        "fail": failures,
        "fail_times": read.fail_times,
    }
