"""An installed Ollama, rewritten for Watchbill: its environment, and the models that it has on disk. Does no I/O.

Its models are served from where they lie (`[library] ollama = true`). Where the environment has settings that hold for
every model, each model that brings no texts or parameters of its own gets a table with them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from watchbill.config.imports.draft import Draft, Section

__all__ = ["KeptModel", "import_ollama"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
#: Variables that change nothing here, and why.
_NEEDLESS = {
    "OLLAMA_DEBUG": "set $WATCHBILL_LOG_LEVEL",
    "OLLAMA_LOAD_TIMEOUT": "load times are learned; load_timeout of a model sets one",
    "OLLAMA_GPU_OVERHEAD": "reserve of a device in [devices] keeps memory free",
    "OLLAMA_SCHED_SPREAD": "devices of a model says where it is",
    "OLLAMA_NOPRUNE": "nothing is pruned",
    "OLLAMA_LLM_LIBRARY": "a build of llama.cpp is chosen with binary in [engines.NAME]",
    "OLLAMA_FLASH_ATTENTION": "llama.cpp turns it on where it can",
    "OLLAMA_KV_CACHE_TYPE": 'arguments = ["--cache-type-k", ...] of a model sets it',
    "OLLAMA_NOHISTORY": "no history is kept",
}


class KeptModel(NamedTuple):
    """A model of Ollama's folder."""

    name: str
    file: str
    has_texts: bool  # a system text, parameters or messages
    embedding: bool = False


def import_ollama(environment: Mapping[str, str], folder: str, models: Iterable[KeptModel]) -> Draft:
    """The draft for an Ollama with this environment, whose models lie in `folder`."""
    draft = Draft("the Ollama of this machine")
    draft.say("Check it with: watchbill config check --config FILE. Every key: docs/config.md.")
    draft.say(
        "Only variables of this shell were seen; those of a service are in: systemctl show ollama -p Environment"
    )
    draft.say(
        "Apps that look for Ollama find Watchbill with: watchbill up --ollama-port 11434, once Ollama is stopped."
    )
    _add_server(draft, environment)
    library = draft.section("library")
    library.set("ollama", True, "its models are served from where they lie; nothing there is changed")
    library.set("ollama_folder", folder)
    if count := _whole(environment.get("OLLAMA_MAX_LOADED_MODELS")):
        draft.section("devices", "ram").set("max_resident", count, "OLLAMA_MAX_LOADED_MODELS")
    if length := _whole(environment.get("OLLAMA_MAX_QUEUE")):
        draft.section("lanes", "default").set("queue_max", length, "OLLAMA_MAX_QUEUE")
    _add_models(draft, environment, list(models))
    for name in sorted(set(environment) & set(_NEEDLESS)):
        draft.say(f"{name}: {_NEEDLESS[name]}.")
    return draft


def _add_server(draft: Draft, environment: Mapping[str, str]) -> None:
    host, port = _address(environment.get("OLLAMA_HOST", ""))
    section = draft.section("server")
    if port is not None:
        section.say(f"Ollama listens on {port}; while it runs, Watchbill needs a port of its own.")
    if host in {"", "127.0.0.1", "localhost"}:
        section.say("Watchbill listens on 127.0.0.1:8470.")
    else:
        draft.lack(f"OLLAMA_HOST={environment['OLLAMA_HOST']}", "an open address needs a key; see below")
        section.say(f'host = "{host}"')
        section.say('keys = { me = { key = "env:WATCHBILL_KEY", admin = true } }')
    if environment.get("OLLAMA_ORIGINS"):
        origins = [each.strip() for each in environment["OLLAMA_ORIGINS"].split(",") if each.strip()]
        section.set("origins", origins, "OLLAMA_ORIGINS")
    section.set("ollama_origins", True, "browsers' addresses that Ollama lets in by default")


def _add_models(draft: Draft, environment: Mapping[str, str], models: list[KeptModel]) -> None:
    settings = _settings(draft, environment)
    if not settings:
        return
    for model in models:
        if model.has_texts:
            draft.say(f"{model.name} has texts or parameters of its own and stays as Ollama has it.")
            continue
        section = draft.section("models", model.name)
        section.set("engine", "llamacpp")
        section.set("source", model.file)
        if model.embedding:
            section.set("embedding", True)
        _add(section, settings)


def _add(section: Section, settings: Mapping[str, tuple[object, str]]) -> None:
    for key, (value, variable) in settings.items():
        section.set(key, value, variable)


def _settings(draft: Draft, environment: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    """Settings that hold for every model, with the variable that they come from."""
    found: dict[str, tuple[object, str]] = {}
    if slots := _whole(environment.get("OLLAMA_NUM_PARALLEL")):
        found["concurrency"] = slots, "OLLAMA_NUM_PARALLEL"
    if context := _whole(environment.get("OLLAMA_CONTEXT_LENGTH")):
        found["context"] = max(16, context), "OLLAMA_CONTEXT_LENGTH"
    kept = environment.get("OLLAMA_KEEP_ALIVE", "").strip()
    if kept:
        idle = _idle(kept)
        if idle:
            found["idle"] = idle, "OLLAMA_KEEP_ALIVE"
        elif kept.startswith("-"):
            draft.say(f"OLLAMA_KEEP_ALIVE={kept}: a model without `idle` stays while there is room.")
        else:
            draft.lack(
                f"OLLAMA_KEEP_ALIVE={kept}", "a model leaves when it is idle or another needs its memory"
            )
    return found


def _idle(text: str) -> str:
    """Go's durations as ours; a bare number is in seconds. Empty where it means "at once" or "never"."""
    parts = _DURATION.findall(text)
    if text.startswith("-") or not parts or "".join(number + unit for number, unit in parts) != text:
        return ""
    scale = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}
    seconds = sum(float(number) * scale[unit] for number, unit in parts)
    return f"{int(seconds)}s" if seconds >= 1 else ""


def _address(text: str) -> tuple[str, int | None]:
    bare = text.strip().removeprefix("http://").removeprefix("https://").rstrip("/")
    host, colon, port = bare.rpartition(":")
    if not colon:
        return bare.strip("[]"), None
    return host.strip("[]"), int(port) if port.isdecimal() else None


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdecimal() else 0
