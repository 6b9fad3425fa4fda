"""llama-swap's config, rewritten for Watchbill. Does no I/O.

    models        [models.NAME] of the driver `process`: the same command line, health path, stop command, environment
    groups        `group`: models that are never in memory together; `permanent` for persistent ones
    matrix        the same, where it can be said with groups
    macros        filled in
    ttl           `idle`
    apiKeys       [server] keys
    peers         [engines.NAME] of the driver `remote`, or [tiers.NAME] where they need a key

A model that cannot be started by Watchbill as it stands (a fixed address that its command does not name) is written as
comments. Raises ConfigError for a text that is no such config, with everything that is wrong.
"""

import re
import shlex
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from watchbill.config.imports.draft import Draft, Section
from watchbill.config.imports.macros import Macros
from watchbill.config.imports.together import Group, Together, of_groups, of_matrix, without_either
from watchbill.errors import ConfigError, NameRefused, Problem
from watchbill.names import check_model_name, check_plain_name

__all__ = ["import_llama_swap"]

Fields = Mapping[str, object]

#: llama-swap's own bound of parallel requests per model.
_CONCURRENCY = 10
#: Slots of a llama-server that is not told how many.
_SLOTS = 4
_PORT = "${PORT}"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})

#: Keys of a model that change nothing here, and why.
_NEEDLESS = {
    "name": "names for display are not kept",
    "description": "descriptions are not kept",
    "metadata": "metadata is not passed on in /v1/models",
    "timeouts": "the lane's max_wait and timeout bound every request",
    "unloadTimeout": "a model that does not stop in time is killed, with all its processes",
    "sendLoadingState": "streams get comments while their model loads",
}
#: The same of the whole file.
_NEEDLESS_AT_TOP = {
    "logLevel": "set $WATCHBILL_LOG_LEVEL",
    "logTimeFormat": "log lines have a time",
    "logToStdout": "see: watchbill logs MODEL",
    "metricsMaxInMemory": "/metrics is for Prometheus; the journal keeps what happened",
    "captureBuffer": "see `capture` of a model and [spool]",
    "startPort": "ports are free ones, picked when a model starts",
    "sendLoadingState": "streams get comments while their model loads",
    "includeAliasesInList": "aliases are in each model's entry of /v1/models",
    "unloadTimeout": "a model that does not stop in time is killed, with all its processes",
    "performance": "the page and /metrics show the machine",
    "store": "the journal is on the disk",
    "ui": "the page has no settings",
    "upstream": "/upstream/NAME/... passes every path on",
}
_KNOWN_AT_TOP = frozenset(
    {
        "models",
        "groups",
        "matrix",
        "macros",
        "hooks",
        "apiKeys",
        "peers",
        "globalTTL",
        "healthCheckTimeout",
        "profiles",
    }
)
_KNOWN = frozenset(
    {
        "cmd", "cmdStop", "proxy", "checkEndpoint", "ttl", "aliases", "env", "macros", "concurrencyLimit", "unlisted",
        "useModelName", "filters", "capabilities",
    }
)  # fmt: skip


def import_llama_swap(config: object, origin: str, environment: Mapping[str, str]) -> Draft:
    """The draft of a config that was read from YAML. Raises ConfigError."""
    top = _fields(config)
    if not isinstance(top.get("models"), Mapping):
        text = "has no `models`, so it is no config of llama-swap"
        raise ConfigError(problems=[Problem(origin, None, "models", text, "name the file of llama-swap")])
    return _Import(top, origin, environment).draft()


class _Import:
    """One file on its way."""

    def __init__(self, top: Fields, origin: str, environment: Mapping[str, str]) -> None:
        self._top, self._origin = top, origin
        self._macros = Macros(_texts(top.get("macros")), environment)
        self._models = {str(name): _fields(table) for name, table in _fields(top["models"]).items()}
        self._names = {name: _model_name(name) for name in self._models}
        self._aliases = set(self._names.values())
        self._problems: list[Problem] = []
        self._draft = Draft(origin)

    def draft(self) -> Draft:
        """The whole file. Raises ConfigError with everything that is wrong."""
        self._open()
        together = self._together()
        for name, table in self._models.items():
            self._add_model(name, table, together)
        self._add_keys()
        self._add_peers()
        self._add_hooks()
        self._tell_rest(together)
        for text in sorted(self._macros.unknown):
            hint = (
                "set the variable and run it again" if text.startswith("${env.") else "define it in `macros`"
            )
            self._problems.append(Problem(self._origin, None, "", f"{text} is not known", hint))
        if self._problems:
            raise ConfigError(problems=self._problems)
        if self._macros.read:
            listed = ", ".join(f"${name}" for name in sorted(self._macros.read))
            self._draft.say(f"Filled in from the environment of this import: {listed}.")
        return self._draft

    def _open(self) -> None:
        self._draft.say("Check it with: watchbill config check --config FILE. Every key: docs/config.md.")
        self._draft.say(
            "Sizes of models are measured at their first load; `memory` declares one beforehand. Remove `group` from "
            "models that fit into memory together: then memory alone decides."
        )
        server = self._draft.section("server")
        server.say("llama-swap listens on 8080 unless told otherwise; its clients then need no change:")
        server.say("port = 8080")

    # ------------------------------------------------------------------ models

    def _add_model(self, name: str, table: Fields, together: Together) -> None:
        section = self._draft.section("models", self._names[name])
        macros = self._macros.within(_texts(table.get("macros")))
        if self._names[name] != name:
            section.say(f"llama-swap's name, which cannot be one here: {name}")
        command = self._command(name, table, macros, section)
        section.set("engine", "process")
        section.set("command", command)
        self._add_life(table, macros, section)
        self._add_names(name, table, macros, section)
        if variables := self._environment(table, macros):
            section.set("env", variables)
        if (limit := _whole(table.get("concurrencyLimit"))) > 0:
            section.set("concurrency", limit)
        else:
            count, why = _slots(command)
            section.set("concurrency", count, why)
        if (group := together.groups.get(name)) is not None:
            section.set("group", group)
        if name in together.staying:
            section.set("permanent", True, "persistent; it is loaded at start")
        self._tell_rest_of(table, section)

    def _command(self, name: str, table: Fields, macros: Macros, section: Section) -> str:
        """The command line, on one line, with ${PORT} where it listens."""
        given = table.get("cmd")
        if not isinstance(given, str) or not given.strip():
            self._problems.append(Problem(self._origin, None, f"models.{name}.cmd", "is missing", "add it"))
            return ""
        command = _one_line(macros.fill(given))
        proxy = macros.fill(str(table.get("proxy") or ""))
        if not proxy or _PORT in proxy:
            return command
        address = urlsplit(proxy)
        port = str(address.port or {"https": 443}.get(address.scheme, 80))
        found = re.compile(rf"(?<![\d.]){port}(?![\d.])")
        if address.hostname in _LOOPBACK and _PORT not in command and found.search(command):
            section.say(f"The fixed port {port} of its proxy became ${{PORT}}, a free one at each start.")
            return found.sub(_PORT, command, count=1)
        if address.hostname in _LOOPBACK and _PORT in command:
            section.say(f"proxy was {proxy}; Watchbill asks the program at ${{PORT}}.")
            return command
        section.is_left_out = True
        why = f"its proxy is {proxy}, and its command does not name that port"
        section.say(f"Left out: {why}. Let the program listen on ${{PORT}}.")
        self._draft.notes.append(f"model {name} is left out: {why}")
        return command

    def _add_life(self, table: Fields, macros: Macros, section: Section) -> None:
        if stop := _one_line(macros.fill(str(table.get("cmdStop") or ""))):
            section.set("stop", stop)
        health = macros.fill(str(table.get("checkEndpoint") or ""))
        if health == "none":
            section.set("probe", "none")
        elif health and health != "/health":
            section.set("health", health)
        ttl = _whole(table.get("ttl", -1))
        ttl = _whole(self._top.get("globalTTL")) if ttl < 0 else ttl
        if ttl > 0:
            section.set("idle", f"{ttl}s", "ttl")
        if timeout := _whole(self._top.get("healthCheckTimeout")):
            section.set("load_timeout", f"{timeout}s", "healthCheckTimeout")

    def _add_names(self, name: str, table: Fields, macros: Macros, section: Section) -> None:
        """Aliases, and the names that setParamsByID makes."""
        filters = _fields(table.get("filters"))
        given = [*_listed(table.get("aliases")), *_fields(filters.get("setParamsByID"))]
        texts = [str(_fields(each).get("id", each)) for each in given]
        aliases: list[str] = []
        for text in texts:
            alias = macros.fill(text).replace("${MODEL_ID}", name)
            if alias in self._aliases or _model_name(alias) != alias:
                continue
            self._aliases.add(alias)
            aliases.append(alias)
        if aliases:
            section.set("aliases", aliases)

    def _environment(self, table: Fields, macros: Macros) -> dict[str, str]:
        pairs = (macros.fill(str(each)).partition("=") for each in _listed(table.get("env")))
        return {key.strip(): value for key, _, value in pairs if key.strip()}

    def _tell_rest_of(self, table: Fields, section: Section) -> None:
        filters = _fields(table.get("filters"))
        for key, value in filters.items():
            section.say(f"No counterpart: filters.{key} = {value}: Watchbill passes parameters on unchanged.")
            self._draft.notes.append(f"{section.path[-1]}: filters.{key} has no counterpart")
        if upstream := table.get("useModelName"):
            section.say(
                f"useModelName was {upstream}: the program is asked for {section.path[-1]}; let it know that name "
                "(vllm --served-model-name, llama-server --alias)."
            )
        if table.get("unlisted"):
            section.say(
                "unlisted: every model is listed here; `models` of a key limits what its caller sees."
            )
        abilities = _abilities(_fields(table.get("capabilities")))
        if abilities:
            section.set("abilities", abilities)
        for key in sorted(set(table) & set(_NEEDLESS)):
            section.say(f"{key}: {_NEEDLESS[key]}.")
        for key in sorted(set(table) - _KNOWN - set(_NEEDLESS)):
            section.say(f"No counterpart: {key} is not known to this import.")
            self._draft.notes.append(f"{section.path[-1]}: {key} is not known to this import")

    # ------------------------------------------------------------------ which together

    def _together(self) -> Together:
        groups, matrix = _fields(self._top.get("groups")), _fields(self._top.get("matrix"))
        if matrix:
            try:
                return of_matrix(_texts(matrix.get("vars")), _texts(matrix.get("sets")), self._models)
            except ValueError as error:
                self._problems.append(Problem(self._origin, None, "matrix.sets", str(error), "correct it"))
                return Together()
        return of_groups(self._groups(groups), self._models) if groups else without_either(self._models)

    def _groups(self, groups: Fields) -> dict[str, Group]:
        found: dict[str, Group] = {}
        for name, each in groups.items():
            table = _fields(each)
            members = tuple(str(member) for member in _listed(table.get("members")))
            for member in members:
                if member not in self._models:
                    text, key = f"there is no model {member}", f"groups.{name}.members"
                    self._problems.append(Problem(self._origin, None, key, text, "correct the name"))
            swap, exclusive = (table.get(key, True) is not False for key in ("swap", "exclusive"))
            found[_plain(str(name))] = Group(members, swap, exclusive, table.get("persistent") is True)
        return found

    # ------------------------------------------------------------------ keys, peers, hooks

    def _add_keys(self) -> None:
        keys: dict[str, object] = {}
        for number, given in enumerate(_listed(self._top.get("apiKeys")), start=1):
            variable = re.fullmatch(r"\$\{env\.(\w+)\}", str(given).strip())
            keys[f"key{number}"] = {
                "key": f"env:{variable[1]}" if variable else self._macros.fill(str(given))
            }
        if keys:
            section = self._draft.section("server")
            section.say("A key with admin = true may load, unload and delete models.")
            section.set("keys", keys)

    def _add_peers(self) -> None:
        for name, each in _fields(self._top.get("peers")).items():
            table, engine = _fields(each), _plain(str(name))
            models = [str(model) for model in _listed(table.get("models"))]
            url = self._macros.fill(str(table.get("proxy") or "")).rstrip("/")
            key = str(table.get("apiKey") or "")
            if key:
                self._add_tier(engine, url, key, models)
            else:
                remote = self._draft.section("engines", engine)
                remote.set("driver", "remote")
                remote.set("url", url)
                for model in models:
                    section = self._draft.section("models", _model_name(model))
                    section.set("engine", engine)
                    section.set("source", model)
            for other in sorted(set(table) - {"proxy", "models", "apiKey"}):
                self._draft.lack(f"peers.{name}.{other}", "requests are passed on unchanged")

    def _add_tier(self, name: str, url: str, key: str, models: list[str]) -> None:
        variable = re.fullmatch(r"\$\{env\.(\w+)\}", key.strip())
        tier = self._draft.section("tiers", name)
        tier.set("kind", "external")
        tier.set("url", url)
        tier.set("key", f"env:{variable[1]}" if variable else self._macros.fill(key))
        tier.set("models", models)
        tier.say("Prices of a million tokens, and what a day may cost: correct them before you turn it on.")
        tier.set("price_in", 1.0)
        tier.set("price_out", 1.0)
        tier.set("daily", 5.0)
        tier.set("enabled", False, "requests leave this machine: turn it on by yourself")
        self._draft.notes.append(
            f"peer {name} needs a key: it is an external tier, and off until you turn it on"
        )

    def _add_hooks(self) -> None:
        startup = _fields(_fields(self._top.get("hooks")).get("on_startup"))
        for model in _listed(startup.get("preload")):
            name = self._names.get(str(model), str(model))
            self._draft.lack(
                f"hooks.on_startup.preload {model}",
                f"`permanent = true` loads it at start and keeps it; or run: watchbill load {shlex.quote(name)}",
            )

    def _tell_rest(self, together: Together) -> None:
        for note in together.notes:
            self._draft.lack(*note.split(": ", 1))
        if costs := _fields(_fields(self._top.get("matrix")).get("evict_costs")):
            self._draft.lack(
                f"matrix.evict_costs ({', '.join(costs)})", "load times are measured and weighed"
            )
        for name in _fields(self._top.get("profiles")):
            self._draft.lack(
                f"profiles.{name}", "an alias, or `watchbill config reload` with another file, does it"
            )
        for key in sorted(set(self._top) & set(_NEEDLESS_AT_TOP)):
            self._draft.say(f"{key}: {_NEEDLESS_AT_TOP[key]}.")
        for key in sorted(set(map(str, self._top)) - _KNOWN_AT_TOP - set(_NEEDLESS_AT_TOP)):
            self._draft.lack(key, "it is not known to this import")


# ------------------------------------------------------------------ values


def _fields(value: object) -> Fields:
    return cast("Fields", value) if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _texts(value: object) -> dict[str, str]:
    return {str(key): _text(each) for key, each in _fields(value).items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _one_line(command: str) -> str:
    """A command of several lines as one: lines that are comments are left out, ends with a backslash joined."""
    lines = (line.strip() for line in command.splitlines())
    kept = (line.removesuffix("\\").rstrip() for line in lines if line and not line.startswith("#"))
    return " ".join(part for part in kept if part)


def _slots(command: str) -> tuple[int, str]:
    """Requests at a time, and why so many."""
    found = re.search(r"(?:^|\s)(?:-np|--parallel)[\s=]+(\d+)", command)
    if found and int(found[1]) > 0:
        return int(found[1]), "its slots"
    if "llama-server" in command:
        return _SLOTS, "slots of a llama-server; name more with --parallel"
    return _CONCURRENCY, "llama-swap's default"


def _abilities(capabilities: Fields) -> list[str]:
    takes = {str(each) for each in _listed(capabilities.get("in"))}
    known = {
        "tools": capabilities.get("tools") is True,
        "vision": "image" in takes,
        "audio": "audio" in takes,
    }
    return [name for name, has in known.items() if has]


def _model_name(name: str) -> str:
    try:
        return check_model_name(name)
    except NameRefused:
        return re.sub(r"[^A-Za-z0-9._:/@+-]+", "-", name).strip("-./:") or "model"


def _plain(name: str) -> str:
    try:
        return check_plain_name(name)
    except NameRefused:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "group"
