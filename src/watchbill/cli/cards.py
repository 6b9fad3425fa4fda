"""The agents of a shared folder and their cards, from the heartbeats alone. Needs the standard library and no daemon.

For an agent of this boot the kernel is asked. Of any other agent only the heartbeat is known. It counts as dead when
the heartbeat has not moved for 90 s while this command watched. A single look says `silent` where the file is older, as
far as the clocks agree.
"""

import json as json_module
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from watchbill.cli.bench import BENCH_COLUMNS, bench_row
from watchbill.cli.fleet_root import open_fleet
from watchbill.cli.limits import GPUS_LOOK_MS
from watchbill.cli.plan_views import told_hold
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.files.host import boot_id
from watchbill.fleet import limits as fleet_limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import STOPPED
from watchbill.fleet.folder.benchmarks import Benchmark, read_benchmarks
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Watcher, read_heartbeat
from watchbill.fleet.folder.values import Fields

__all__ = ["show_cards"]

_COLUMNS = (
    Column("agent"), Column("state"), Column("in memory"), Column("C", right=True), Column("W", right=True),
    Column("VRAM", right=True),
    Column("use", right=True), Column("MHz", right=True), Column("throttled"), Column("tasks", right=True),
    Column("done", right=True), Column("failed", right=True), Column("constraints"),
)  # fmt: skip


def show_cards(root: Path | None, *, follow: bool, json: bool, quiet: bool) -> int:
    """`gpus`."""
    folder, disk = open_fleet(root)
    terminal, watcher = Terminal(quiet=quiet), Watcher(boot_id())
    while True:
        found, measured = _read(disk, watcher), read_benchmarks(disk)
        if json:
            agents = {name: each.fields() for name, each in found.items()}
            told = {name: each.fields() for name, each in measured.items()}
            terminal.show_json(json_module.dumps({"agents": agents, "bench": told}).encode())
        else:
            terminal.show(*_draw(found, terminal), *_draw_benchmarks(measured, terminal))
            terminal.show(*_held(folder, found))
        if not follow:
            return 0
        time.sleep(GPUS_LOOK_MS / 1000)


class _Seen(NamedTuple):
    """An agent's heartbeat, and whether it lives."""

    beat: Heartbeat
    lives: bool
    silent_ms: int  # since its heartbeat was last written, by this machine's clock

    @property
    def state(self) -> str:
        """Its own word, where it can still speak for itself."""
        if not self.lives and self.beat.report.state != STOPPED:
            return "dead"
        hangs = self.lives and self.silent_ms > fleet_limits.SILENCE_MS_MAX
        return "silent" if hangs else self.beat.report.state or "?"

    def fields(self) -> dict[str, object]:
        return {**self.beat.fields(), "alive": self.lives, "silent_ms": self.silent_ms}


def _read(disk: FolderDisk, watcher: Watcher) -> dict[str, _Seen]:
    found: dict[str, _Seen] = {}
    for agent in places.agents_in(folder.replace("_", "-") for folder in disk.names(places.GPUS)):
        heartbeat = read_heartbeat(disk, agent)
        if heartbeat is not None:
            name = heartbeat.report.name or agent
            age_ms = disk.age_ms(places.heartbeat_path(agent))
            found[name] = _Seen(heartbeat, _lives(heartbeat, name, watcher), age_ms)
    return found


def _lives(heartbeat: Heartbeat, name: str, watcher: Watcher) -> bool:
    """Whether it may live: it did not say goodbye, and is neither dead nor silent."""
    is_stopped = heartbeat.report.state == STOPPED
    return not is_stopped and not watcher.is_dead(name, heartbeat.pulse, round(time.monotonic() * 1000))


def _draw(found: dict[str, _Seen], terminal: Terminal) -> list[str]:
    if not found:
        return ["no agent has joined this folder yet; start one with: watchbill agent NAME --root FOLDER"]
    return terminal.table(_COLUMNS, [_row(name, seen) for name, seen in sorted(found.items())])


def _held(root: Path, found: dict[str, _Seen]) -> list[str]:
    """How to let agents go on that claim nothing."""
    holds = {name: seen.beat.report.hold for name, seen in found.items() if seen.lives}
    return [plain(told_hold(root, name, hold)) for name, hold in holds.items() if hold is not None]


def _draw_benchmarks(measured: Mapping[str, Benchmark], terminal: Terminal) -> list[str]:
    rows = [bench_row(name, each) for name, each in sorted(measured.items())]
    return ["", *terminal.table(BENCH_COLUMNS, rows)] if rows else []


def _row(name: str, seen: _Seen) -> list[str]:
    report = seen.beat.report
    card = Fields(report.readings)
    total, used = card.whole("vram_total_mb"), card.whole("vram_used_mb")
    return [
        plain(name),
        plain(seen.state),
        plain(", ".join(report.hot_models)),
        *(_figure(card, key) for key in ("temperature_c", "power_draw_w")),
        f"{used} of {total} MB" if total else "",
        *(_figure(card, key) for key in ("gpu_util_percent", "clock_mhz")),
        plain(card.text("throttle_status")).replace("None", ""),
        str(len(report.tasks)),
        str(report.completed),
        str(report.failed),
        plain("; ".join(report.constraints)),
    ]


def _figure(values: Fields, key: str) -> str:
    value = values.all().get(key)
    return f"{value:g}" if isinstance(value, int | float) else ""
