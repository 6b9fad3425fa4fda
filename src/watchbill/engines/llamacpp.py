"""The llama.cpp engine: one `llama-server` process per model.

Uses the binary that the config names, else a `llama-server` on the PATH, else the server inside the wheel
`xllamacpp` through our `llama_server`. What is set against llama.cpp's own defaults, and why:

    --threads-http 64   idle keep-alive connections hold its HTTP threads; with few a burst stalls for 5 s
    --cache-ram 0       its prompt cache takes up to 8 GiB that no estimate of a model's size knows of
    --load-mode none    with mmap most memory is file pages that the kernel may drop and that readers may
                        share, so that the ledger would be wrong; `mmap = true` brings it back for a model
    --ctx-size          context x concurrency: llama.cpp divides it among its slots
    --fit off           a context that shrinks by itself is a surprise, not a service
    --no-warmup         the probe is a real token and warms it just as well
"""

import asyncio
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from watchbill.catalog import EngineRules, Model
from watchbill.engines import llama_server
from watchbill.engines.base import Capabilities, LoadError
from watchbill.engines.limits import LLAMA_HTTP_THREADS
from watchbill.engines.owned import Diagnosis, Launch
from watchbill.engines.sleep import LLAMA
from watchbill.errors import ConfigError
from watchbill.footprint import usable_context
from watchbill.gguf import GgufError, read_header
from watchbill.packages import how_to_install
from watchbill.processes import LOOPBACK, Keeper

__all__ = ["LlamaRecipe", "missing_server"]

#: On machines with at most this many cores, one core is left to other programs, unless the config sets `threads`.
SMALL_MACHINE_CORES = 4
MIB = 2**20
#: Where llama-server reads the key that it asks of its callers.
KEY_VARIABLE = "LLAMA_API_KEY"
KEY_FLAGS = ("--api-key",)
KEY_BYTES = 16

#: What llama.cpp writes when it cannot load, what that means, and whether trying again is pointless.
SIGNS: tuple[tuple[re.Pattern[str], str, bool], ...] = (
    (re.compile(r"corrupted or incomplete"), "the file is corrupt or incomplete; fetch it again", True),
    (re.compile(r"invalid magic"), "the file is not a GGUF model", True),
    (re.compile(r"failed to read (key-value|tensor)"), "the file's header is corrupt; fetch it again", True),
    (re.compile(r"(unknown model architecture: '?[\w-]+'?)"), "this llama.cpp does not know it: {0}", True),
    (
        re.compile(r"(?:llama_server: |error: )(unknown parameter [^;]+|--.*|invalid argument: .*)"),
        "its arguments are refused: {0}",
        True,
    ),
    (re.compile(r"(is not installed .*)"), "the embedded llama.cpp {0}", True),
    (
        re.compile(r"(?:unable|failed) to allocate|bad_alloc|[Cc]annot allocate memory|out of memory"),
        "there was not enough memory",
        False,
    ),
    (re.compile(r"error loading model: (.*)"), "{0}", False),
)


class LlamaRecipe:
    """How llama.cpp is started, and what its log means."""

    capabilities = Capabilities(
        owned=True, measures_memory=True, stops_generation=True, continues=True, sleeps="itself"
    )
    sleep = LLAMA

    def __init__(self, binary: str | None = None) -> None:
        self._binary = binary
        self._known_flags: dict[tuple[str, int, int], frozenset[str]] = {}

    def probe_for(self, model: Model) -> str:
        """One token, or one vector."""
        return "embed" if model.embedding else "chat"

    async def launch(self, model: Model, port: int, keeper: Keeper) -> Launch:
        """The command line. Raises LoadError when the file can be seen to be no model."""
        source, context = await asyncio.to_thread(check_source, model)
        binary = self._find_binary()
        if binary is None:
            program, known = (
                (sys.executable, "-I", llama_server.__file__),
                frozenset(llama_server.known_flags()),
            )
        else:
            program, known = (binary,), await self._flags_of(binary, keeper)
        words = flags_for(replace(model, context=context), source, port, known)
        key = key_of(model) or secrets.token_hex(KEY_BYTES)
        # In the environment, which only this user can read: every user can read a command line.
        env = {KEY_VARIABLE: key, **model.env}
        return Launch((*program, *words, *model.arguments), env=env, key=key)

    def diagnose(self, lines: list[str]) -> Diagnosis | None:
        """The first sign that any of the lines shows."""
        for sign, meaning, hopeless in SIGNS:
            for line in lines:
                if found := sign.search(line):
                    return Diagnosis(meaning.format(*found.groups()), hopeless)
        return None

    def _find_binary(self) -> str | None:
        if self._binary is None:
            return shutil.which("llama-server")
        found = shutil.which(self._binary)
        if found is None:
            raise ConfigError(
                f"there is no program {self._binary}; correct `binary` of the engine, or leave it out"
            )
        return found

    async def _flags_of(self, binary: str, keeper: Keeper) -> frozenset[str]:
        """Which flags this build of llama-server has; they come and go between versions."""
        there = Path(binary).stat()
        key = (binary, there.st_mtime_ns, there.st_size)
        if key not in self._known_flags:
            text = (await keeper.run("llama-server --help", (binary, "--help"))).output
            self._known_flags[key] = frozenset(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
        return self._known_flags[key]


def check_source(model: Model) -> tuple[Path, int]:
    """The model's file, and the context it can have. Raises LoadError when there is none, or one that cannot be a
    model. Reads the header: call it in a thread."""
    if not model.source:
        raise LoadError("has no source; name its GGUF file", hopeless=True)
    path = Path(model.source)
    try:
        header = read_header(path)
    except GgufError as error:
        raise LoadError(str(error), hopeless=True) from error
    return path, usable_context(model, header)


def key_of(model: Model) -> str:
    """The key that the model's own table sets, in its `env` or its arguments; empty where it sets none."""
    given = model.env.get(KEY_VARIABLE, "")
    words = [*model.arguments, ""]
    for word, after in pairwise(words):
        if word in KEY_FLAGS or word.startswith(tuple(f"{flag}=" for flag in KEY_FLAGS)):
            given = word.partition("=")[2] or after
    return given.split(",")[0]  # llama-server accepts each of several


def flags_for(model: Model, source: Path, port: int, known: frozenset[str]) -> list[str]:
    """The flags for one model, in the words this build knows."""
    words = ["--model", str(source), "--host", LOOPBACK, "--port", str(port), "--alias", model.name]
    words += ["--ctx-size", str(model.context * model.concurrency), "--parallel", str(model.concurrency)]
    words += _if_known(known, ["--threads-http", str(LLAMA_HTTP_THREADS)])
    words += _if_known(known, ["--cache-ram", str(model.prompt_cache // MIB)])
    words += _if_known(known, ["--fit", "off"], ["--no-warmup"], ["--no-ui"])
    if "--load-mode" in known:
        words += ["--load-mode", "mmap" if model.mmap else "none"]
    elif not model.mmap:
        words += _if_known(known, ["--no-mmap"])
    if threads := model.threads or _spare_threads():
        words += ["--threads", str(threads)]
    if model.sleep_ms is not None:
        words += _if_known(known, ["--sleep-idle-seconds", str(max(1, -(-model.sleep_ms // 1000)))])
    if model.embedding:
        # A text to embed goes through in one piece: it must fit into one physical batch.
        words += ["--embedding", "--batch-size", str(model.context), "--ubatch-size", str(model.context)]
    if not _gpus(model):
        words += ["--n-gpu-layers", "0"]
    return words


def _if_known(known: frozenset[str], *options: list[str]) -> Iterable[str]:
    return [word for option in options if option[0] in known for word in option]


def _gpus(model: Model) -> list[str]:
    return [device.removeprefix("gpu:") for device in model.devices if device.startswith("gpu:")]


def _spare_threads() -> int:
    """Threads for a small machine: all cores but one, because llama.cpp's threads wait for each other, and a core that
    it shares with other programs costs it nearly all its speed. 0 on larger machines: llama.cpp chooses there."""
    cores = os.cpu_count() or 1
    return max(1, cores - 1) if cores <= SMALL_MACHINE_CORES else 0


def missing_server(engine: EngineRules) -> tuple[str | None, str]:
    """What is missing to run a llama.cpp server, if anything is, and what to do about it."""
    if engine.binary is not None:
        if shutil.which(engine.binary):
            return None, ""
        return f"there is no program {engine.binary}", f"correct `binary` of the engine {engine.name}"
    if shutil.which("llama-server") or find_spec("xllamacpp"):
        return None, ""
    return "there is no llama.cpp here", f"{how_to_install('local')}, or put llama-server on the PATH"
