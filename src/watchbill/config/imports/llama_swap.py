"""llama-swap's config, rewritten for Watchbill. Does no I/O.

    models        [models.NAME] of the driver `process`: the same command line, health path, stop command, environment
    groups        `group`: models that are never in memory together; `permanent` for persistent ones
    routing       groups or matrix, as newer versions nest them; its scheduler has no counterpart
    matrix        the same, where it can be said with groups
    macros        filled in
    ttl           `idle`
    filters       `drop_fields`, `set_fields`, `set_fields_by_name`
    apiKeys       [server] keys
    peers         [engines.NAME] of the driver `remote`, or [tiers.NAME] where they need a key

A model that cannot be started by Watchbill as it stands (a fixed address that its command does not name) is written as
comments. A key that is not carried over is named in a comment and in the draft's notes, whether it is known here or
not. Raises ConfigError for a text that is no such config, with everything that is wrong.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import cast
from urllib.parse import urlsplit

from watchbill.config.imports.draft import Draft, Section
from watchbill.config.imports.macros import Macros
from watchbill.config.imports.reading import Reading
from watchbill.config.imports.together import Group, Together, of_groups, of_matrix, without_either
from watchbill.errors import ConfigError, NameRefused, Problem
from watchbill.names import check_model_name, check_plain_name
from watchbill.quoting import quoted
from watchbill.toml import spell_key

__all__ = ["import_llama_swap"]

#: llama-swap's own bound of parallel requests per model.
_CONCURRENCY = 10
#: Slots of a llama-server that is not told how many.
_SLOTS = 4
_PORT = "${PORT}"
_PORT_OPTION = re.compile(r"(?<=\s)(--(?:listen-)?port[\s=]+)(\d+)(?=\s|$)")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})

#: Keys of a model that change nothing here, and why.
_NEEDLESS = {
    "name": "names for display are not kept",
    "description": "descriptions are not kept",
    "metadata": "metadata is not passed on in /v1/models",
    "timeouts": "the lane's max_wait and timeout bound every request",
    "unloadTimeout": "a model that does not stop in time is killed, with all its processes",
    "sendLoadingState": "streams get comments while their model loads",
    "unlisted": "every model is listed here; `models` of a key limits what its caller sees",
    "compat": "an open websocket does not keep a model in memory by itself",
}
#: The same of the whole file.
_NEEDLESS_AT_TOP = {
    "logLevel": "set $WATCHBILL_LOG_LEVEL",
    "logTimeFormat": "log lines have a time",
    "logToStdout": "see: watchbill logs MODEL",
    "logRequests": "the journal and /metrics show requests",
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


def import_llama_swap(config: object, origin: str, environment: Mapping[str, str]) -> Draft:
    """The draft of a config that was read from YAML. Raises ConfigError."""
    found = cast("Mapping[object, object]", config).get("models") if isinstance(config, Mapping) else None
    if not isinstance(found, Mapping):
        text = "has no `models`, so it is no config of llama-swap"
        raise ConfigError(problems=[Problem(origin, None, "models", text, "name the file of llama-swap")])
    return _Import(Reading(cast("object", config)), origin, environment).draft()


class _Import:
    """One file on its way."""

    def __init__(self, top: Reading, origin: str, environment: Mapping[str, str]) -> None:
        self._top, self._origin = top, origin
        self._macros = Macros(_texts(top.table("macros")), environment)
        self._models = top.table("models").tables()
        self._names = _names_of(self._models)
        self._taken = set(self._names.values())
        self._global_ttl, self._load_timeout = top.whole("globalTTL"), top.whole("healthCheckTimeout")
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
        self._add_hooks(together)
        self._tell_rest(together)
        for text, place in sorted(self._macros.unknown.items()):
            hint = (
                "set the variable and run it again" if text.startswith("${env.") else "define it in `macros`"
            )
            self._problems.append(Problem(self._origin, None, place, f"{text} is not known", hint))
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

    def _add_model(self, name: str, table: Reading, together: Together) -> None:
        section = self._draft.section("models", self._names[name])
        macros = self._macros.within(_texts(table.table("macros")), spell_key(("models", name)))
        if self._names[name] != name:
            section.say(f"llama-swap's name, which cannot be one here: {name}")
            self._draft.notes.append(
                f"model {quoted(name)} is called {self._names[name]} here: callers need that name"
            )
        command = self._command(name, table, macros, section)
        section.set("engine", "process")
        section.set("command", command)
        if upstream := table.text("useModelName"):
            section.set("served_as", upstream, "useModelName")
        self._add_life(table, macros, section)
        self._add_names(name, table, macros, section)
        if variables := self._environment(table, macros, section):
            section.set("env", variables)
        if (limit := table.whole("concurrencyLimit")) > 0:
            section.set("concurrency", limit)
        else:
            count, why = _slots(command)
            section.set("concurrency", count, why)
        if (group := together.groups.get(name)) is not None:
            section.set("group", group)
        if name in together.staying:
            section.set("permanent", True, "persistent; it is loaded at start")
        self._add_abilities(table, section)
        self._tell_rest_of(table, section)

    def _command(self, name: str, table: Reading, macros: Macros, section: Section) -> str:
        """The command line, on one line, with ${PORT} where it listens."""
        given = table.text("cmd")
        if not given.strip():
            self._problems.append(Problem(self._origin, None, f"models.{name}.cmd", "is missing", "add it"))
            return ""
        command, proxy = _one_line(macros.fill(given)), macros.fill(table.text("proxy"))
        if not proxy:
            return self._with_port(name, command, section)
        return command if _PORT in proxy else self._without_proxy(name, command, proxy, section)

    def _with_port(self, name: str, command: str, section: Section) -> str:
        """A command without a proxy: it listens on ${PORT}, or it could not be reached."""
        if _PORT in command:
            return command
        changed = _PORT_OPTION.sub(rf"\g<1>{_PORT}", command, count=1)
        if changed != command:
            section.say("Its fixed port became ${PORT}, a free one at each start.")
        else:
            section.say("Fill in: let the command listen on ${PORT}; $PORT of its environment has it, too.")
            self._draft.notes.append(f"model {name}: fill in where its command listens: ${{PORT}}")
        return changed

    def _without_proxy(self, name: str, command: str, proxy: str, section: Section) -> str:
        """A command with a fixed address."""
        address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        port = str(_port_of(proxy) or {"https": 443}.get(address.scheme, 80))
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

    def _add_life(self, table: Reading, macros: Macros, section: Section) -> None:
        if stop := _one_line(macros.fill(table.text("cmdStop"))):
            section.set("stop", stop)
        health = macros.fill(table.text("checkEndpoint"))
        if health == "none":
            section.set("probe", "none")
        elif health and health != "/health":
            section.set("health", health)
        ttl = table.whole("ttl", -1)
        ttl = self._global_ttl if ttl < 0 else ttl
        if ttl > 0:
            section.set("idle", f"{ttl}s", "ttl")
        if self._load_timeout > 0:
            section.set("load_timeout", f"{self._load_timeout}s", "healthCheckTimeout")

    def _add_names(self, name: str, table: Reading, macros: Macros, section: Section) -> None:
        """Aliases, and the names that setParamsByID makes."""
        aliases: list[str] = []
        for given in [*table.listed("aliases"), *table.table("filters").table("setParamsByID")]:
            fields = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {"id": given}
            for other in sorted(set(fields) - {"id"}):
                self._lose(section, f"aliases.{other}", _NEEDLESS.get(other, "only its id is kept"))
            alias = macros.fill(str(fields.get("id", ""))).replace("${MODEL_ID}", name)
            if alias == name:
                continue
            if why := self._why_no_alias(alias):
                self._lose(section, f"alias {quoted(alias)}", why)
                continue
            self._taken.add(alias)
            aliases.append(alias)
        if aliases:
            section.set("aliases", aliases)
        self._add_filters(table.table("filters"), macros, section, {name, *aliases})

    def _add_filters(self, filters: Reading, macros: Macros, section: Section, names: set[str]) -> None:
        """What is changed in the requests for a model."""
        dropped = filters.text("stripParams") or filters.text("strip_params")
        if words := [word for each in dropped.split(",") if (word := each.strip()) and word != "model"]:
            section.set("drop_fields", words, "stripParams")
        if fields := self._fields(filters.table("setParams"), macros, section):
            section.set("set_fields", fields, "setParams")
        by_name: dict[str, object] = {}
        for key, table in filters.table("setParamsByID").tables().items():
            alias = macros.fill(key).replace("${MODEL_ID}", str(section.path[-1]))
            fields = self._fields(table, macros, section)
            if alias in names and fields:
                by_name[alias] = fields
        if by_name:
            section.set("set_fields_by_name", by_name, "setParamsByID")

    def _fields(self, table: Reading, macros: Macros, section: Section) -> dict[str, object]:
        found: dict[str, object] = {}
        for key in table:
            value = table.value(key)
            if value is None:
                self._lose(section, f"{key} of a filter", "null cannot be written in TOML")
            else:
                found[key] = macros.fill(value) if isinstance(value, str) else value
        return found

    def _why_no_alias(self, alias: str) -> str:
        if _model_name(alias) != alias:
            return "a name here has letters, digits and . _ - : / @ +"
        return "another model has that name" if alias in self._taken else ""

    def _environment(self, table: Reading, macros: Macros, section: Section) -> dict[str, str]:
        given = table.value("env")
        if isinstance(given, Mapping):
            return {key: macros.fill(text) for key, text in _texts(table.table("env")).items()}
        found: dict[str, str] = {}
        for each in table.listed("env"):
            key, equals, value = macros.fill(str(each)).partition("=")
            if not equals or not key.strip():
                self._lose(section, f"env {quoted(str(each))}", "it is no NAME=value")
            else:
                found[key.strip()] = value
        return found

    def _add_abilities(self, table: Reading, section: Section) -> None:
        capabilities = table.table("capabilities")
        takes = {str(each) for each in capabilities.listed("in")}
        known = {
            "tools": capabilities.flag("tools", False),
            "vision": "image" in takes,
            "audio": "audio" in takes,
        }
        if abilities := [ability for ability, has in known.items() if has]:
            section.set("abilities", abilities)

    def _tell_rest_of(self, table: Reading, section: Section) -> None:
        for key, why in _NEEDLESS.items():
            table.drop(key, why)
        for path, why in table.rest().items():
            section.say(f"No counterpart: {spell_key(path[2:])}: {why}.")

    def _lose(self, section: Section, what: str, why: str) -> None:
        section.say(f"No counterpart: {what}: {why}.")
        self._draft.notes.append(f"{spell_key(section.path)}: {what} is left out: {why}")

    # ------------------------------------------------------------------ which together

    def _together(self) -> Together:
        router = self._top.table("routing").table("router")
        use, settings = router.text("use"), router.table("settings")
        groups = self._top.table("groups") if "groups" in self._top else settings.table("groups")
        matrix = self._top.table("matrix") if "matrix" in self._top else settings.table("matrix")
        if list(matrix) and use in {"", "matrix"}:
            return self._of_matrix(matrix)
        found = self._groups(groups)
        return of_groups(found, self._models) if found else without_either(self._models)

    def _of_matrix(self, matrix: Reading) -> Together:
        variables = _texts(matrix.table("vars"))
        for short, name in variables.items():
            if name not in self._models:
                matrix.table("vars").drop(short, f"there is no model {name}")
        if costs := list(matrix.table("evict_costs")):
            matrix.drop("evict_costs", f"of {', '.join(costs)}: load times are measured and weighed")
        known = {name: name for name in self._models} | variables
        try:
            return of_matrix(known, _texts(matrix.table("sets")), self._models)
        except ValueError as error:
            self._problems.append(Problem(self._origin, None, "matrix.sets", str(error), "correct it"))
            return Together()

    def _groups(self, groups: Reading) -> dict[str, Group]:
        found: dict[str, Group] = {}
        for name, table in groups.tables().items():
            members = tuple(str(member) for member in table.listed("members"))
            for member in members:
                if member not in self._models:
                    text, key = f"there is no model {member}", f"groups.{name}.members"
                    self._problems.append(Problem(self._origin, None, key, text, "correct the name"))
            found[_plain(name)] = Group(
                members,
                table.flag("swap", True),
                table.flag("exclusive", True),
                table.flag("persistent", False),
            )
        return found

    # ------------------------------------------------------------------ keys, peers, hooks

    def _add_keys(self) -> None:
        keys: dict[str, object] = {}
        for number, given in enumerate(self._top.listed("apiKeys"), start=1):
            variable = re.fullmatch(r"\$\{env\.(\w+)\}", str(given).strip())
            keys[f"key{number}"] = {
                "key": f"env:{variable[1]}" if variable else self._macros.fill(str(given))
            }
        if keys:
            section = self._draft.section("server")
            section.say("A key with admin = true may load, unload and delete models.")
            section.set("keys", keys)

    def _add_peers(self) -> None:
        for name, table in self._top.table("peers").tables().items():
            engine = _plain(name)
            models = [str(model) for model in table.listed("models")]
            url, key = self._macros.fill(table.text("proxy")).rstrip("/"), table.text("apiKey")
            if not url:
                self._top.table("peers").drop(name, "it names no proxy")
            elif key:
                self._add_tier(engine, url, key, models)
            else:
                self._add_remote(engine, url, models)
            for other in table:
                if other not in {"proxy", "models", "apiKey"}:
                    table.drop(other, "requests are passed on unchanged")

    def _add_remote(self, engine: str, url: str, models: list[str]) -> None:
        remote = self._draft.section("engines", engine)
        remote.set("driver", "remote")
        remote.set("url", url)
        for model in models:
            name = _model_name(model)
            if name in self._taken:
                self._lose(remote, f"model {quoted(model)}", "another model has that name")
                continue
            self._taken.add(name)
            section = self._draft.section("models", name)
            section.set("engine", engine)
            section.set("source", model)

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

    def _add_hooks(self, together: Together) -> None:
        startup = self._top.table("hooks").table("on_startup")
        for model in startup.listed("preload"):
            name = self._names.get(str(model), str(model))
            if str(model) in together.staying:
                continue  # it is permanent, so it is loaded at start
            self._draft.lack(
                f"hooks.on_startup.preload {model}",
                f"`permanent = true` loads it at start and keeps it; or run: watchbill load {shlex.quote(name)}",
            )

    def _tell_rest(self, together: Together) -> None:
        """Everything that was not carried over: one note for all keys with the same reason."""
        for note in together.notes:
            self._draft.lack(*note.split(": ", 1))
        for name in self._top.table("profiles"):
            self._top.table("profiles").drop(
                name, "an alias, or `watchbill config reload` with another file, does it"
            )
        self._top.table("routing").drop("scheduler", "lanes and priorities of keys say who is served first")
        for key, why in _NEEDLESS_AT_TOP.items():
            self._top.drop(key, why)
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        for path, why in self._top.rest().items():
            reasons[why].append(spell_key(path))
            if path[0] != "models":  # those are told in the tables of their models
                self._draft.say(f"No counterpart: {spell_key(path)}: {why}.")
        self._draft.notes += [f"{', '.join(paths)}: left out: {why}" for why, paths in reasons.items()]


# ------------------------------------------------------------------ values


def _texts(table: Reading) -> dict[str, str]:
    return {key: table.text(key) for key in table}


def _port_of(proxy: str) -> int | None:
    try:
        return urlsplit(proxy if "//" in proxy else f"//{proxy}").port
    except ValueError:  # no number, or none of a port
        return None


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


def _names_of(models: Iterable[str]) -> dict[str, str]:
    """llama-swap's name -> ours, each one once."""
    found: dict[str, str] = {}
    for name in models:
        fitting, number = _model_name(name), 2
        while fitting in found.values() or (fitting != name and fitting in models):
            fitting, number = f"{_model_name(name)}-{number}", number + 1
        found[name] = fitting
    return found


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
