"""What can be learned about a config without loading any model: files, programs and sizes of models, and which engines
answer."""

import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from watchbill.blocking_http import FAILURES, connect, reason_of
from watchbill.catalog import EngineRules, Model
from watchbill.cli.broker_facts import broker_of, silent_servers
from watchbill.cli.limits import CLI_CALL_S
from watchbill.config import Loaded, MachineFacts, ModelFacts
from watchbill.config.starter import SMOLLM2
from watchbill.config.tiers import engine_name
from watchbill.engines.base import endpoint_of
from watchbill.engines.llamacpp import missing_server
from watchbill.engines.ollama import DEFAULT_URL
from watchbill.engines.process import missing_program, split_command
from watchbill.errors import ConfigError
from watchbill.footprint import predict_model, usable_context
from watchbill.gguf import GgufError, read_header
from watchbill.probes import Probe, ProbeError
from watchbill.probes.cards import find_cards
from watchbill.probes.ram import RamProbe
from watchbill.root import Root
from watchbill.runtime.found import Shelf
from watchbill.runtime.spools import schema_of, signer_of, verifier_of
from watchbill.units import Bytes

#: What a machine says that does not serve us as a peer.
_OF_A_PEER = {
    401: "it does not know the key that this machine shows there",
    403: "the key that this machine shows there is not that of a peer: it needs their_key in a table of [peers]",
    404: "it is no Watchbill machine",
}

__all__ = ["look_at", "silent_engines", "with_named_variables"]


def with_named_variables(text: str) -> dict[str, str]:
    """The environment, with a value for each variable that a config names and this shell does not have: the rest of the
    config can be checked without them."""
    named = re.findall(r"\benv:(\w+)", text)
    return {name: f"not-set-in-this-shell-{name}" for name in named} | dict(os.environ)


def look_at(loaded: Loaded, root: Root) -> MachineFacts:
    """Reads the machine's memory and every model file's header, and contacts engines. Blocks; changes nothing.

    Hints name this root."""
    engines = loaded.catalog.engines
    are_named = any(name.startswith("gpu:") for name in loaded.catalog.devices)
    cards, no_cards = find_cards() if are_named else (None, "")
    broker = broker_of(loaded.catalog)
    return MachineFacts(
        capacity=_capacities(cards),
        no_cards=no_cards,
        models={
            name: _look_at_model(model, engines[model.engine], root)
            for name, model in loaded.catalog.models.items()
            # The file of the embedded default is fetched by `up`.
            if loaded.file is not None or Path(model.source or "").exists()
        },
        is_config_public=loaded.file is not None and _can_others_read(loaded.file),
        spools=_look_at_spools(loaded),
        silent=silent_engines(
            {name: rules for name, rules in engines.items() if name not in _unused(loaded)}
        ),
        silent_brokers={} if broker is None else silent_servers(broker, root.path),
        no_commands=_missing_commands(engines),
        on_shelf=len(Shelf(root.models, loaded.catalog.library).look().models),
    )


def _unused(loaded: Loaded) -> set[str]:
    """The engines of tiers that are off: nothing is asked there."""
    return {engine_name(name) for name, tier in loaded.catalog.tiers.items() if not tier.enabled}


def _missing_commands(engines: Mapping[str, EngineRules]) -> dict[str, tuple[str, str]]:
    """Burst tiers whose machine can never be started or stopped. A relative path may be right for the daemon."""
    found: dict[str, tuple[str, str]] = {}
    for name, rules in engines.items():
        for key, text in (("start", rules.start), ("stop", rules.stop)):
            program = next(iter(split_command(text or "")), "")
            is_relative = "/" in program and not program.startswith("/")
            if program and not is_relative and shutil.which(program) is None:
                found.setdefault(name, (key, f"there is no program {program}"))
    return found


def _look_at_spools(loaded: Loaded) -> dict[str, tuple[str, str]]:
    """Schemas and keys that cannot be used: the events of such a spool would wait, or all be poisoned."""
    found: dict[str, tuple[str, str]] = {}
    for name, rules in loaded.catalog.spools.items():
        checks = {
            "schema": partial(schema_of, rules),
            "verify": partial(verifier_of, rules),
            "sign": partial(signer_of, rules),
        }
        for key, check in checks.items():
            try:
                check()
            except ConfigError as error:
                found.setdefault(name, (key, str(error)))
    return found


def _capacities(cards: Probe | None) -> dict[str, Bytes]:
    found: dict[str, Bytes] = {}
    for probe in (RamProbe(), cards):
        try:
            found |= {name: seen.capacity for name, seen in probe.read().items()} if probe else {}
        except ProbeError:
            continue  # no /proc, no driver: the config can still be checked, only not against this machine
    return found


def _look_at_model(model: Model, engine: EngineRules, root: Root) -> ModelFacts:
    if engine.driver == "llamacpp":
        return _look_at_gguf(model, engine, root)
    if engine.driver == "process":
        return _look_at_command(model)
    return ModelFacts()


def _look_at_gguf(model: Model, engine: EngineRules, root: Root) -> ModelFacts:
    if not Path(model.source or "").exists():
        is_known = Path(model.source or "").name == Path(SMOLLM2).name
        fetch = root.command("pull", "smollm2") if is_known else "watchbill pull"
        hint = f"fetch it with {fetch}, or correct the path"
        return ModelFacts(f"{model.source} does not exist", hint)
    try:
        header = read_header(Path(model.source or ""))
    except GgufError as error:
        return ModelFacts(error.complaint, error.hint)
    complaint, hint = missing_server(engine)
    predicted, context = predict_model(model, header).total, usable_context(model, header)
    return ModelFacts(complaint, hint, "engine", predicted, context)


def _look_at_command(model: Model) -> ModelFacts:
    if (missing := missing_program(model)) is not None:
        return ModelFacts(*missing, key="command")
    if model.source is not None and not Path(model.source).exists():
        return ModelFacts(f"{model.source} does not exist", "fetch it or correct the path")
    return ModelFacts()


def _can_others_read(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except FileNotFoundError:  # removed since it was read
        return False


# ------------------------------------------------------------------ engines that answer at an address


def silent_engines(engines: Mapping[str, EngineRules]) -> dict[str, str]:
    """Engine -> why its address does not answer. Blocks, within a bound.

    Any answer counts, also an error. All engines are asked at once and none is waited for longer than the bound, so
    that a name that does not resolve does not hold up a check of the config.
    """
    urls = {
        name: rules.url or (DEFAULT_URL if rules.driver == "ollama" else "")
        for name, rules in engines.items()
        if rules.driver != "burst"  # it is started when it is needed
    }
    told = {name: f"{url} does not answer within {CLI_CALL_S:g} s" for name, url in urls.items() if url}
    asking = [
        threading.Thread(target=_ask, args=(name, urls[name], engines[name], told), daemon=True)
        for name in told
    ]
    for thread in asking:
        thread.start()
    end = time.monotonic() + CLI_CALL_S
    for thread in asking:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(told)


def _question(rules: EngineRules) -> tuple[str, str, Mapping[int, str]]:
    """Method and path of a question that changes nothing, and the answers that are as bad as none."""
    if rules.driver == "peer":  # no lease has this name: a machine that knows the key answers 409
        return "POST", "/wb/v1/leases/none/renew", _OF_A_PEER
    if rules.driver == "remote" and rules.key:
        return "GET", "/v1/models", {401: "it does not accept our key"}
    return "GET", "/", {}


def _ask(name: str, url: str, rules: EngineRules, told: dict[str, str]) -> None:
    """Removes the engine's entry when it answers, else writes the reason."""
    try:
        endpoint = endpoint_of(url)
    except ConfigError as error:
        told[name] = str(error)
        return
    method, path, wrong = _question(rules)
    shown = {"Authorization": f"Bearer {rules.key}"} if rules.key else {}
    connection = connect(endpoint.host, endpoint.port, is_tls=endpoint.tls, timeout_s=CLI_CALL_S)
    try:
        connection.request(method, endpoint.path_prefix + path, headers=shown)
        status = connection.getresponse().status
        if status in wrong:
            told[name] = f"{url} answers, but {wrong[status]}"
        else:
            del told[name]
    except FAILURES as error:
        told[name] = f"{url} does not answer: {reason_of(error)}"
    finally:
        connection.close()
