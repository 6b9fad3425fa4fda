"""What the llama.cpp at hand computes on: asked of the program itself, because a build for the processor alone looks
the same from outside.

Blocks while the program answers, within a bound; for the daemon's start and for commands.
"""

import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from watchbill.catalog import EngineRules
from watchbill.engines import llama_server
from watchbill.engines.limits import ENGINE_DEVICES_S_MAX, ENGINE_DEVICES_TICK_S
from watchbill.processes.command import run_to_end
from watchbill.processes.limits import COMMAND_OUTPUT_BYTES_MAX

__all__ = ["OnProcessor", "why_no_card"]

_CARD = re.compile(r"^\s+(?:CUDA|ROCm|HIP|Vulkan|SYCL|MUSA|CANN)\d+:", re.MULTILINE)
#: Where the project that makes the embedded llama.cpp keeps its builds for NVIDIA's cards.
_CUDA_WHEELS = "https://xorbitsai.github.io/xllamacpp/whl/cu128"


class OnProcessor(NamedTuple):
    """An engine that uses no card."""

    why: str
    mend: str  # what to do about it: one command, where there is one


def why_no_card(engine: EngineRules) -> OnProcessor | None:
    """Why this engine's llama.cpp computes on no card; None where it does."""
    binary = shutil.which(engine.binary or "llama-server")
    if binary is None and engine.binary is not None:
        return OnProcessor(
            f"there is no program {engine.binary}", f"correct `binary` of the engine {engine.name}"
        )
    program = (sys.executable, "-I", llama_server.__file__) if binary is None else (binary,)
    said = _said((*program, "--list-devices"))
    if _CARD.search(said):
        return None
    if binary is not None:
        mend = "put a llama-server that is built for cards first on the PATH"
        return OnProcessor(
            f"{binary} computes on the processor only",
            f"{mend}, or name it as binary in [engines.{engine.name}]",
        )
    words = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", "xllamacpp"]
    return OnProcessor(
        "the embedded llama.cpp (xllamacpp) is a build for the processor only",
        shlex.join([*words, "--index-url", _CUDA_WHEELS]),
    )


def _said(argv: tuple[str, ...]) -> str:
    """What a command prints; nothing where it cannot be run."""
    with tempfile.TemporaryDirectory(prefix="watchbill-") as folder:
        log = Path(folder) / "log"
        try:
            run_to_end(
                argv, log=log, env=os.environ, seconds_max=ENGINE_DEVICES_S_MAX, on_tick=lambda: None,
                tick_s=ENGINE_DEVICES_TICK_S,
            )  # fmt: skip
        except OSError:  # whichever errno: a program that does not start computes on nothing
            return ""
        with log.open("rb") as file:
            return file.read(COMMAND_OUTPUT_BYTES_MAX).decode("utf-8", "replace")
