"""Unit files: what the host needs so that Watchbill's models can run as units of its init system.

A model with a `command` becomes a plain service, one with an `image` a Podman quadlet; members of an exclusive group
conflict with each other, so that the law holds even when one is started by hand. Nothing is installed or enabled:
the units are started by the reactor, when the scheduler says so. Writes text only; `cli.systemd` writes files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchbill.catalog import RAM, Catalog, Model
from watchbill.engines.base import endpoint_of
from watchbill.engines.process import fill, split_command
from watchbill.errors import ConfigError
from watchbill.quoting import quoted
from watchbill.reactor.intents import unit_of

__all__ = ["MARK", "Programs", "daemon_unit", "fleet_units", "model_units", "reactor_unit", "unit_models"]

#: The first line of everything written here; a file that does not begin with it was written by another program.
MARK = "# Written by `watchbill systemd units`. It is overwritten by the next one."

#: Words that systemd takes as they are.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
#: Before a command these change what it may do.
_PREFIXES = "@-:+!|"
#: How long a unit gets between TERM and KILL: the stop ladder's own bound.
_STOP_S = 10
#: The same for an agent, whose tasks have 20 s to end by themselves.
_FLEET_STOP_S = 60


@dataclass(frozen=True, slots=True)
class Programs:
    """Where Watchbill itself is, and how it was called."""

    watchbill: str
    root: Path
    config: Path | None
    user: str | None  # None for units of a user's own systemd
    #: Whether the coordinator and the agents have units, so the daemon does not run them.
    has_fleet_units: bool = False


def unit_models(catalog: Catalog) -> list[Model]:
    """The models that units host."""
    return [m for m in catalog.models.values() if catalog.engines[m.engine].driver == "systemd"]


def model_units(catalog: Catalog, user: str | None) -> dict[str, str]:
    """File name -> text for every model that says how it is run. Raises ConfigError when it cannot be.

    `user` is the account that services run under; None for units of a user's own systemd.
    """
    models = unit_models(catalog)
    written: dict[str, str] = {}
    for model in models:
        rivals = [unit_of(other) for other in models if other is not model and _exclude(model, other)]
        if model.image is not None:
            written[f"{unit_of(model).removesuffix('.service')}.container"] = _container(model, rivals)
        elif model.command is not None:
            written[unit_of(model)] = _service(model, rivals, user)
    return written


def daemon_unit(programs: Programs) -> str:
    """The unit of the daemon itself."""
    config = () if programs.config is None else ("--config", str(programs.config))
    fleet = ("--no-fleet",) if programs.has_fleet_units else ()
    command = (programs.watchbill, "up", "--root", str(programs.root), *config, *fleet)
    return _text(
        ("Unit", [("Description", "Watchbill"), ("After", "network.target")]),
        ("Service", [
            # The first start may fetch a model; a loop that stands still for the watchdog's time is restarted.
            ("Type", "notify"), ("NotifyAccess", "main"), ("TimeoutStartSec", "3600"), ("WatchdogSec", "60"),
            *_user(programs.user), ("ExecStart", _command(command)), ("ExecReload", "/bin/kill -HUP $MAINPID"),
            ("Restart", "on-failure"), ("RestartSec", "2"), ("KillMode", "mixed"), ("TimeoutStopSec", "70"),
        ]),
        ("Install", [("WantedBy", _target(programs))]),
    )  # fmt: skip


def fleet_units(programs: Programs, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """File name -> text for the coordinator and each agent, from their command lines behind `watchbill`.

    They find the daemon of this root, whose unit is wanted and not needed: an agent without a card works without it.
    """
    return {
        f"watchbill-{label}.service": _fleet_unit(programs, label, words) for label, words in commands.items()
    }


def _fleet_unit(programs: Programs, label: str, words: Sequence[str]) -> str:
    config = {} if programs.config is None else {"WATCHBILL_CONFIG": str(programs.config)}
    environment = _env_lines({"WATCHBILL_HOME": str(programs.root), **config})
    return _text(
        ("Unit", [
            ("Description", f"Watchbill {label}"), ("After", "watchbill.service network.target remote-fs.target"),
        ]),
        ("Service", [
            *_user(programs.user), *environment,
            # Their own guard ends the tasks; an agent gets the time that running tasks have to end.
            ("ExecStart", _command((programs.watchbill, *words))), ("Restart", "on-failure"), ("RestartSec", "5"),
            ("KillMode", "mixed"), ("TimeoutStopSec", str(_FLEET_STOP_S)),
        ]),
        ("Install", [("WantedBy", _target(programs))]),
    )  # fmt: skip


def reactor_unit(programs: Programs, catalog: Catalog) -> str:
    """The unit of the reactor. It allows exactly the units of this config, by name."""
    allow = [word for model in unit_models(catalog) for word in ("--allow", unit_of(model))]
    user = () if programs.user is not None else ("--user",)
    command = (programs.watchbill, "reactor", "--root", str(programs.root), *user, *allow)
    return _text(
        ("Unit", [("Description", "Watchbill's host reactor")]),
        ("Service", [("ExecStart", _command(command)), ("Restart", "on-failure"), ("RestartSec", "2")]),
        ("Install", [("WantedBy", _target(programs))]),
    )


# ------------------------------------------------------------------ models


def _exclude(one: Model, other: Model) -> bool:
    """Whether the two are never in memory together: one group, and a device in common."""
    return one.group is not None and one.group == other.group and bool({*one.devices} & {*other.devices})


def _unit_section(model: Model, rivals: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    # After= makes systemd wait until the rival is gone. One direction is enough, and two would be a circle.
    earlier = [rival for rival in rivals if rival < unit_of(model)]
    lines = [("Description", f"Watchbill model {model.name}")]
    lines += [("Conflicts", " ".join(rivals))] if rivals else []
    lines += [("After", " ".join(earlier))] if earlier else []
    return "Unit", lines


def _service(model: Model, rivals: Sequence[str], user: str | None) -> str:
    cards = ",".join(_cards(model))
    env = {**({"CUDA_VISIBLE_DEVICES": cards} if cards else {}), **_environment(model)}
    return _text(
        _unit_section(model, rivals),
        ("Service", [
            ("Type", "exec"), *_user(user), *_env_lines(env), ("ExecStart", _command(_words(model))), ("Restart", "no"),
            ("KillMode", "mixed"), ("TimeoutStopSec", str(_STOP_S)),
        ]),
    )  # fmt: skip


def _container(model: Model, rivals: Sequence[str]) -> str:
    port = _port(model)
    lines = [
        ("Image", _line(model.image or "")),
        ("ContainerName", unit_of(model).removesuffix(".service")),
        ("PublishPort", f"127.0.0.1:{port}:{port}"),
        *(("AddDevice", f"nvidia.com/gpu={card}") for card in _cards(model)),
        *_env_lines(_environment(model)),
    ]
    if model.source is not None:
        lines.append(("Volume", _line(f"{model.source}:{model.source}:ro")))
    if model.command is not None:
        lines.append(("Exec", _join(_words(model))))
    service = [("Restart", "no"), ("TimeoutStopSec", str(_STOP_S))]
    return _text(_unit_section(model, rivals), ("Container", lines), ("Service", service))


def _port(model: Model) -> int:
    return endpoint_of(model.url or "").port


def _values(model: Model) -> dict[str, str]:
    values = {"PORT": str(_port(model)), "MODEL": model.name, "MODEL_ID": model.name}
    return values if model.source is None else values | {"SOURCE": model.source}


def _words(model: Model) -> list[str]:
    return [fill(word, _values(model)) for word in split_command(model.command or "")]


def _environment(model: Model) -> dict[str, str]:
    filled = {name: fill(text, _values(model)) for name, text in model.env.items()}
    return {"PORT": str(_port(model)), **filled}


def _cards(model: Model) -> list[str]:
    return [device.removeprefix("gpu:") for device in model.devices if device != RAM]


# ------------------------------------------------------------------ systemd's own spelling


def _user(user: str | None) -> list[tuple[str, str]]:
    return [] if user is None else [("User", user)]


def _target(programs: Programs) -> str:
    return "default.target" if programs.user is None else "multi-user.target"


def _text(*sections: tuple[str, Iterable[tuple[str, str]]]) -> str:
    parts = [f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in lines) for name, lines in sections]
    return f"{MARK}\n\n" + "\n".join(parts)


def _command(words: Sequence[str]) -> str:
    """A command line that systemd splits into exactly these words."""
    if not words or words[0][:1] in _PREFIXES:
        raise ConfigError(f"{' '.join(words)!a} cannot be the command of a unit; begin with the program")
    return _join(words)


def _join(words: Sequence[str]) -> str:
    return " ".join(_quote(word, dollar="$$") for word in words)


def _env_lines(env: Mapping[str, str]) -> list[tuple[str, str]]:
    return [("Environment", _quote(f"{name}={value}", dollar="$")) for name, value in env.items()]


def _quote(word: str, *, dollar: str) -> str:
    """One word, whatever is in it: % and $ mean themselves, and nothing begins a new line."""
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{_line(escaped).replace("$", dollar)}"'


def _line(text: str) -> str:
    """A value that is one line and holds no specifier. Raises ConfigError for control characters."""
    if not text.isprintable():
        raise ConfigError(f"{quoted(text)} cannot be written into a unit file; leave out control characters")
    return text.replace("%", "%%")
