"""The config that is embedded, and the one that `config init` writes for people to edit."""

from pathlib import Path

from watchbill.toml import spell_value

__all__ = ["EMBEDDED", "SMOLLM2", "starter"]

#: The small model of both, below the root; `watchbill pull smollm2` puts it there.
SMOLLM2 = "models/SmolLM2-135M-Instruct.Q4_1.gguf"

#: What runs without any config; paths are relative to the root.
EMBEDDED = """\
[models.smollm2]
engine = "llamacpp"
source = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
aliases = ["default", "smollm2:135m"]
concurrency = 2

[library]
ollama = true
"""

_STARTER = """\
# Watchbill: the models, the memory they share, and the order in which requests are served.
# Every key with its default: watchbill config show. Check this file: watchbill config check.

[server]
port = 8470
# host = "0.0.0.0"                     # reachable from other machines; needs at least one key
# keys = { me = { key = "env:WATCHBILL_KEY", admin = true } }

[devices.ram]
reserve = "2GiB"                       # left free for everything else on this machine
# capacity = "12GB"                    # a cap; the machine's own memory otherwise

# One table for each model; the name in the brackets is what callers ask for.
[models.smollm2]
engine = "llamacpp"
# Fetched by: watchbill pull smollm2
source = "@ROOT@/models/SmolLM2-135M-Instruct.Q4_1.gguf"
aliases = ["default"]
concurrency = 2                        # requests at a time
idle = "5m"                            # leaves memory after this long without use

# [models.assistant]
# engine = "llamacpp"
# source = "models/assistant-7b.gguf"  # relative to this file
# memory = "4.6GB"                     # optional: predicted and measured otherwise
# context = 8192
# permanent = true                     # loaded at start, and stays

# [models.speech]
# engine = "process"                   # any program that listens on ${PORT}
# command = "whisper-server --port ${PORT} --model ${SOURCE}"
# source = "models/whisper.bin"
# memory = "2GiB"
# health = "/health"

# Every file in ROOT/models is a model without a table; so is what an installed Ollama has:
# [library]
# ollama = true

# Callers choose a lane with the header X-Watchbill-Lane, or get their key's.
# [lanes.batch]
# class = "background"                 # interactive, normal or background
# max_wait = "15m"
"""


def starter(root: Path) -> str:
    """A commented config with one model that `make up` or `watchbill pull smollm2` puts under the root."""
    return _STARTER.replace(
        '"@ROOT@/models/SmolLM2-135M-Instruct.Q4_1.gguf"', spell_value(str(root / SMOLLM2))
    )
