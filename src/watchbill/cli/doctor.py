"""`doctor`: checks everything Watchbill depends on, and says how to mend what is wrong.

Each check reads, changes nothing, and returns findings; none of them raises.
"""

import contextlib
import json as jsonlib
import os
import platform
import shlex
import shutil
import stat
import sys
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from watchbill import __version__
from watchbill.catalog import RAM
from watchbill.cli.client import Client, DaemonRefused
from watchbill.cli.limits import CLI_DOCTOR_FILES_MAX
from watchbill.cli.options import CONFIG_DEFAULT, Common
from watchbill.cli.session import open_for_doctor
from watchbill.cli.status import fields
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import ConfigError, WatchbillError
from watchbill.packages import how_to_install
from watchbill.probes import ProbeError
from watchbill.probes.ram import RamProbe
from watchbill.root import LAYOUT_VERSION, Root
from watchbill.units import format_bytes

if TYPE_CHECKING:
    from watchbill.config.load import Loaded

__all__ = ["Finding", "Health", "check_all", "doctor"]

#: Below these a pull or a journal will soon fail.
DISK_FREE_WARN_BYTES = 5 * 10**9
DISK_FREE_FAIL_BYTES = 200 * 10**6
#: The default reserve: with less nothing is loaded.
MEMORY_WARN_BYTES = 2 * 2**30
STALL_WARN_PERCENT = 20.0
_FORGETFUL = frozenset({"tmpfs", "ramfs", "overlay"})


class Health(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"  # works, but not well, or not for long
    FAIL = "fail"  # does not work


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    health: Health
    text: str
    advice: str = ""


_DEFAULTS = Common()
_SIGNS = {Health.OK: ("✓", "green"), Health.WARN: ("!", "yellow"), Health.FAIL: ("✗", "red")}


def doctor(
    *,
    config: Annotated[
        Path | None, Parameter(help=f"The config file to check. {CONFIG_DEFAULT}", show_default=False)
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print the findings as JSON.")
    ] = False,
    common: Common = _DEFAULTS,
) -> int:
    """Check everything Watchbill depends on.

    Environment, root, disk, memory, cards, config, model files, daemon, and whether the other machines of the config
    answer. Exit code 1 when something is broken.
    """
    root, client, terminal = open_for_doctor(common.url, common.root, quiet=common.quiet)
    findings = check_all(root, client, config)
    if json:
        terminal.show(jsonlib.dumps({"findings": [finding._asdict() for finding in findings]}))
    else:
        for finding in findings:
            terminal.show(*_draw(finding, terminal))
    return 1 if any(finding.health is Health.FAIL for finding in findings) else 0


def _draw(finding: Finding, terminal: Terminal) -> list[str]:
    sign, style = _SIGNS[finding.health]
    name = finding.name.ljust(12)
    first, *rest = terminal.wrapped(plain(finding.text), 16)
    lines = [f"{terminal.mark(sign, style)} {terminal.mark(name, 'bold')}  {first.strip()}", *rest]
    if finding.advice:
        lines += [terminal.mark(each, "dim") for each in terminal.wrapped(f"→ {plain(finding.advice)}", 16)]
    return lines


# ------------------------------------------------------------------ the checks


def check_all(root: Root, client: Client | None, config: Path | None) -> list[Finding]:
    """All checks, in the order in which to mend the findings."""
    return [
        *check_environment(),
        *check_root(root),
        *check_memory(),
        *check_cards(config, root),
        *check_config(config, root),
        *check_models(root),
        *check_daemon(root, client),
    ]


def check_environment() -> list[Finding]:
    """Interpreter, platform, and what can run models here."""
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    findings = [Finding("watchbill", Health.OK, f"{__version__} on {where} ({sys.prefix})")]
    if sys.platform != "linux":
        findings.append(Finding("platform", Health.WARN, "only the command line and the spool run here"))
    if binary := shutil.which("llama-server"):
        findings.append(Finding("llama.cpp", Health.OK, f"llama-server at {binary}"))
    elif version := _version_of("xllamacpp"):
        findings.append(Finding("llama.cpp", Health.OK, f"embedded (xllamacpp {version})"))
    else:
        advice = f"{how_to_install('local')}, or put llama-server on the PATH"
        findings.append(
            Finding("llama.cpp", Health.WARN, "neither llama-server nor xllamacpp is here", advice)
        )
    return findings


def check_cards(path: Path | None, root: Root) -> list[Finding]:
    """The cards of this machine, and whether the engine at hand computes on them."""
    from watchbill.config import find_config, read
    from watchbill.runtime.library import Library
    from watchbill.runtime.placing import find_places

    try:
        loaded = read(find_config(path, root), root=root.path)
    except ConfigError:  # the check of the config says so
        return []
    catalog = loaded.catalog
    with contextlib.suppress(OSError):  # whichever errno: the check of the root says so
        if root.models.is_dir():
            catalog = Library.of(root.models, catalog, is_default=loaded.file is None).catalog
    placing = find_places(catalog, None)
    findings = [Finding("cards", Health.WARN, note) for note in placing.notes]
    if unused := placing.unused():
        told = f"{unused['cards']} is not used: {unused['why']}"
        return [*findings, Finding("cards", Health.WARN, told, unused["mend"])]
    return [*findings, *(Finding("cards", Health.OK, f"found {card}") for card in placing.cards)]


def check_root(root: Root) -> list[Finding]:
    """The state root: there, ours, private, readable by this version, on a disk with room."""
    if not root.path.exists():
        return [_check_absent(root.path), *_check_disk(root.path)]
    try:
        version = root.read_version()
    except (WatchbillError, OSError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        return [Finding("root", Health.FAIL, f"{root.path}: {why}", "name another root with --root")]
    if version > LAYOUT_VERSION:
        text = f"{root.path} has layout {version}, written by a newer Watchbill"
        return [Finding("root", Health.FAIL, text, "upgrade Watchbill, or name another root with --root")]
    if not os.access(root.path, os.R_OK | os.W_OK | os.X_OK):
        return [
            Finding(
                "root",
                Health.FAIL,
                f"{root.path} is not writable",
                f"sudo chown -R $USER {shlex.quote(str(root.path))}",
            )
        ]
    open_to = stat.S_IMODE(root.path.stat().st_mode) & 0o077
    if open_to:
        advice = shlex.join(["chmod", "700", str(root.path)])
        first = Finding("root", Health.WARN, f"{root.path} can be entered by other users", advice)
    else:
        first = Finding("root", Health.OK, f"{root.path}, layout {version or 'new'}")
    return [first, *_check_disk(root.path)]


def check_memory() -> list[Finding]:
    """The memory that the machine and its control groups leave for models."""
    probe = RamProbe()
    try:
        reading = probe.read()[RAM]
    except ProbeError as error:
        return [Finding("memory", Health.FAIL, str(error))]
    text = f"{format_bytes(reading.available)} of {format_bytes(reading.capacity)} available"
    scarce = reading.available < MEMORY_WARN_BYTES
    advice = "models load only while the reserve (2 GiB by default) stays free" if scarce else ""
    findings = [Finding("memory", Health.WARN if scarce else Health.OK, text, advice)]
    if room := probe.groups.headroom():
        limit = f"limited to {format_bytes(room.limit)} by {room.folder}"
        findings.append(Finding("cgroup", Health.OK, f"{limit} (version {probe.groups.version})"))
    if (stall := probe.stall_percent()) > STALL_WARN_PERCENT:
        findings.append(
            Finding("pressure", Health.WARN, f"work stood still for memory {stall:.0f} % of the last 10 s")
        )
    return findings


def check_config(path: Path | None, root: Root) -> list[Finding]:
    """The config of this root, the model files it names, and whether they can ever fit."""
    from watchbill.cli.facts import look_at
    from watchbill.config import examine, find_config, read

    try:
        loaded = read(find_config(path, root), root=root.path)
    except ConfigError as error:
        first, *more = error.problems or (error,)
        further = f" (and {len(more)} more)" if more else ""
        named = [] if path is None else [str(path)]
        advice = f"{root.command('config', 'check', *named)} lists everything"
        return [Finding("config", Health.FAIL, f"{first}{further}", advice)]
    told = f"{loaded.origin}: {', '.join(loaded.catalog.models) or 'no models'}"
    if loaded.file is None and not all(
        Path(model.source or "").exists() for model in loaded.catalog.models.values()
    ):
        return [_check_without_config(loaded, told, root)]
    return [
        Finding("config", Health.OK, told),
        *(
            Finding("config", Health.FAIL if found.is_grave else Health.WARN, str(found.problem))
            for found in examine(loaded, look_at(loaded, root))
        ),
    ]


def _check_without_config(loaded: "Loaded", told: str, root: Root) -> Finding:
    """What `up` would serve where neither a config nor the embedded model is here."""
    from watchbill.runtime.library import Library, without_missing

    first = Finding("config", Health.OK, told, f"{root.command('up')} fetches its model first")
    if not os.access(root.models, os.R_OK | os.X_OK):  # not made yet, or what the check of the root tells
        return first
    try:
        others = without_missing(loaded.catalog, root.models)
        if others is loaded.catalog:
            return first
        count = len(Library.of(root.models, others, is_default=True).catalog.models)
    except WatchbillError as error:
        return Finding("model names", Health.FAIL, str(error))
    text = f"none; without one the {count} models that are here are served"
    if count == 1:
        text = "none; without one the model that is here is served"
    return Finding("config", Health.OK, text, f"{root.command('list')} shows what")


def check_models(root: Root) -> list[Finding]:
    """Files of the models folder that are not served though they were meant to be."""
    from watchbill.shelf import Folder, Why

    if not root.models.is_dir():
        return []
    _, passed = Folder(root.models).look()
    advice = {
        Why.BROKEN: "fetch it again, or remove the file",
        Why.UNFINISHED: "the command that began the download continues it; or remove the file",
        Why.SAME_NAME: "rename one of the two files",
    }
    told = [each for each in passed if each.why in advice]
    found = [
        Finding(
            "model file", Health.WARN, f"{each.file.relative_to(root.models)}: {each.told}", advice[each.why]
        )
        for each in told[:CLI_DOCTOR_FILES_MAX]
    ]
    if more := len(told) - len(found):
        found.append(
            Finding("model file", Health.WARN, f"and {more} more", f"{root.command('list')} names all")
        )
    return found


def check_daemon(root: Root, client: Client | None) -> list[Finding]:
    """Whether a daemon runs on this root, answers, and schedules. Without a client none was found there."""
    try:
        record = root.read_daemon()
    except (
        ConfigError
    ):  # the root of another user: the root's own check says so, and its daemon may still answer
        record = None
    if client is not None and record is not None and record.url != client.url and record.is_alive():
        record = None  # another daemon was named than that of the root
    if record is not None and not record.is_alive():
        advice = f"{root.command_to_start()} starts a new one and clears what the old one left"
        return [Finding("daemon", Health.WARN, f"pid {record.pid} ended without cleaning up", advice)]
    if client is None:
        return [
            Finding("daemon", Health.OK, f"none runs on {root.path}", f"{root.command_to_start()} starts one")
        ]
    logs = f"{root.command('logs')} says why"
    whose = f"pid {record.pid} at {client.url}" if record is not None else client.url
    try:
        client.get("/ready")
    except DaemonRefused as refused:
        return [Finding("daemon", Health.FAIL, f"{whose} is not ready: {refused}", logs)]
    except WatchbillError as error:
        if record is None:
            return [
                Finding(
                    "daemon",
                    Health.OK,
                    f"none answers at {client.url}",
                    f"{root.command_to_start()} starts one",
                )
            ]
        return [Finding("daemon", Health.FAIL, f"{whose}: {error}", logs)]
    return [Finding("daemon", Health.OK, f"{whose} is ready"), *_check_spools(client, logs)]


def _check_spools(client: Client, logs: str) -> list[Finding]:
    """What the daemon says is wrong with its spools now."""
    try:
        told = fields(fields(client.get_json("/wb/v1/status")).get("spools"))
    except WatchbillError:  # its status is for administrators
        return []
    return [
        Finding("spool", Health.WARN, f"{name}: {complaint}", logs)
        for name, each in told.items()
        if (complaint := fields(each).get("complaint"))
    ]


def _check_absent(path: Path) -> Finding:
    """A root that does not exist yet: `up` makes it, if it can."""
    place = _nearest(path)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        text = f"{path} cannot be made: {place} is not writable"
        return Finding("root", Health.FAIL, text, "name another root with --root")
    return Finding("root", Health.OK, f"{path} will be made by: {Root(path).command('up')}")


def _nearest(path: Path) -> Path:
    """The folder itself, or the first above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _check_disk(path: Path) -> list[Finding]:
    place = _nearest(path)
    free = shutil.disk_usage(place).free
    health = Health.OK
    if free < DISK_FREE_WARN_BYTES:
        health = Health.FAIL if free < DISK_FREE_FAIL_BYTES else Health.WARN
    advice = "" if health is Health.OK else "models and logs need room: free some, or name another root"
    findings = [Finding("disk", health, f"{format_bytes(free)} free at {place}", advice)]
    if (kind := _file_system(place)) in _FORGETFUL:
        findings.append(
            Finding("disk", Health.WARN, f"{place} is on {kind}, which may not outlive this machine's boot")
        )
    return findings


def _file_system(place: Path) -> str:
    """The kind of the file system a folder is on; empty where the system does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    found = ("", "")
    for mount in mounts:
        _, folder, kind, *_ = mount.split(" ")
        if place.is_relative_to(folder) and len(folder) >= len(found[0]):
            found = (folder, kind)
    return found[1]


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
