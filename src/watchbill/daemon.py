"""The daemon: all parts composed by hand, in one readable place.

    lock the root -> reap processes of a dead daemon -> read the config -> start the driver -> open the server
    close the server -> let running answers end -> stop the engines -> release the root

SIGTERM and Ctrl-C drain and end within DRAIN_MS and a little; a second one ends at once. SIGHUP and a changed config
file reload it.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from watchbill import __version__, config
from watchbill.batches.service import Batches
from watchbill.catalog import Catalog, FleetRules, Server, SpoolRules
from watchbill.config.limits import PORT_MAX
from watchbill.engines.llamacpp import missing_server
from watchbill.engines.process import missing_program
from watchbill.engines.registry import make_engine
from watchbill.errors import ConfigError, DiskFailed, PullFailed, WatchbillError
from watchbill.files.atomic import make_folder
from watchbill.files.disk import DISK_FULL
from watchbill.fleet.command_lines import fleet_folder, programs_of
from watchbill.gateway.app import Gateway
from watchbill.gateway.limits import DRAIN_MS
from watchbill.gateway.server import Serving, serve
from watchbill.gateway.tracing import Tracing
from watchbill.journal import Journal
from watchbill.limits import CONFIG_LOOK_MS, DESCRIPTORS_KEPT
from watchbill.notify import Notifier
from watchbill.otlp import Exporter
from watchbill.probes.cards import find_cards
from watchbill.probes.disk import DiskProbe
from watchbill.probes.patient import PatientProbe
from watchbill.probes.ram import RamProbe
from watchbill.processes import Keeper, RootLock, Signals, Withheld, reap, watch_own_log
from watchbill.pull import pull
from watchbill.pull.registry import registry_address
from watchbill.root import Root
from watchbill.runtime.alerts import Alerts, Deliverer
from watchbill.runtime.broker import prepare, wait_until_up
from watchbill.runtime.capture import SpoolCapture
from watchbill.runtime.children import Children
from watchbill.runtime.drains import Drains
from watchbill.runtime.driver import Driver, Parts
from watchbill.runtime.heap import map_large_blocks
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.runtime.library import Library, without_missing
from watchbill.runtime.placing import Placing, find_places
from watchbill.runtime.probe_loop import ProbeLoop
from watchbill.runtime.recorder import Recorder
from watchbill.runtime.traffic import Traffic
from watchbill.shelf import Why
from watchbill.shelf.limits import SHELF_LOOK_MS
from watchbill.sizes import Sizes

__all__ = ["Options", "Screen", "run"]

_ACCESS = logging.getLogger("watchbill.access")
#: Python's own thresholds are (700, 10, 10): a pass over the young objects every few requests.
COLLECTOR_THRESHOLDS = (20_000, 20, 20)
_LOG = logging.getLogger("watchbill.daemon")
Progress = Callable[[int, int | None], None]


class Options(Protocol):
    """The options of `up`. None means: as in the config."""

    @property
    def config(self) -> Path | None: ...
    @property
    def root(self) -> Path: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def ollama_port(self) -> int | None: ...
    @property
    def record(self) -> Path | None: ...
    @property
    def no_fleet(self) -> bool: ...
    @property
    def with_nats(self) -> bool: ...


class Screen(Protocol):
    """The daemon's output to the person who started it."""

    def pulling(self, text: str) -> "contextlib.AbstractContextManager[Progress]":
        """A bar for a download."""
        ...

    def warn(self, text: str) -> None:
        """Prints a warning; Watchbill goes on."""
        ...

    def tell(self, text: str) -> None:
        """Prints something good to know."""
        ...

    def ready(self, url: str, model: str, *, newcomer: bool) -> None:
        """Prints that the start is complete."""
        ...


def run(options: Options, screen: Screen) -> int:
    """Runs the daemon until it is told to stop. Raises WatchbillError when it cannot start."""
    root = Root(options.root)
    root.create()
    try:
        return _run(root, options, screen)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise ConfigError(
            f"cannot write in {root.path}: {error.strerror}; free some space, or name another root with --root"
        ) from error


def _run(root: Root, options: Options, screen: Screen) -> int:
    with RootLock(root.lock_file) as lock:
        root.settle_version()
        for reaped in reap(root.path):
            screen.warn(f"a dead daemon left {reaped.label} (pid {reaped.pid}) behind; it was stopped")
        loaded = config.read(config.find_config(options.config, None), root=root.path)
        catalog = _with_address(loaded.catalog, options)
        if loaded.file is None:
            catalog = _with_embedded(catalog, root, screen)
        withheld = Withheld(catalog.server.key_variables)
        library = Library.of(root.models, catalog, registry_address(), is_default=loaded.file is None)
        placing = find_places(library.catalog, _owner(root))
        library.place_with(placing)
        _tell_of_files(library, screen)
        _tell_of_engines(library.catalog, screen)
        _tell_of_cards(placing, library.catalog, screen)
        _sweep(library)
        setting = _Setting(root, lock, loaded.file, options, screen, withheld, Notifier(), library, placing)
        with _event_loop() as runner:
            return runner.run(_serve(setting, library.catalog))


def _with_address(catalog: Catalog, options: Options) -> Catalog:
    server = catalog.server
    host = server.host if options.host is None else options.host
    port = server.port if options.port is None else options.port
    for asked in (port, options.ollama_port or 0):
        if not 0 <= asked <= PORT_MAX:  # 99999 would silently become 34463
            raise ConfigError(
                f"{asked} is not a port; ports are 1 to {PORT_MAX}, and 0 picks one that is free"
            )
    config.refuse_open_bind(host, server.asks_for_keys)
    room = _allow_descriptors(server.connections_max)
    return replace(catalog, server=replace(server, host=host, port=port, connections_max=room))


def _allow_descriptors(connections: int) -> int:
    """Raises the limit of open files for these connections, each perhaps with one to an engine.

    Returns how many connections there is room for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + DESCRIPTORS_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, (soft - DESCRIPTORS_KEPT) // 2))


def _with_embedded(catalog: Catalog, root: Root, screen: Screen) -> Catalog:
    """Where there is no config: the embedded model, which is fetched on first use, unless the models folder has others.

    An installed Ollama has models, too, but people who try Watchbill beside it begin with the embedded one.
    """
    found = without_missing(catalog, root.models)
    beside_ollama = replace(catalog, library=replace(catalog.library, ollama=False))
    if without_missing(beside_ollama, root.models) is not beside_ollama:
        return found
    try:
        with screen.pulling("fetching the embedded model, SmolLM2-135M") as progress:
            pull("smollm2", root.models, progress=progress)
    except PullFailed as error:
        if found is catalog:
            raise
        screen.warn(f"{error}; the models of the installed Ollama are served")
        return found
    return catalog


def _tell_of_engines(catalog: Catalog, screen: Screen) -> None:
    """Warns where llama.cpp or a model's program is missing: its models would fail at their first request."""
    used = {model.engine for model in catalog.models.values()}
    for rules in catalog.engines.values():
        if rules.name in used and rules.driver == "llamacpp":
            complaint, hint = missing_server(rules)
            if complaint is not None:
                screen.warn(f"models of the engine {rules.name} cannot be loaded: {complaint}: {hint}")
    for model in catalog.models.values():
        if catalog.engines[model.engine].driver == "process" and (missing := missing_program(model)):
            screen.warn(f"{model.name} cannot be loaded: {missing[0]}; {missing[1]}")


def _owner(root: Root) -> str:
    return f"the daemon of {root.path}"


def _tell_of_cards(placing: Placing, catalog: Catalog, screen: Screen) -> None:
    """Says which cards were found and what goes there, or the one command that would let them be used."""
    for note in placing.notes:
        screen.warn(note)
    if unused := placing.unused():
        screen.warn(f"{unused['cards']} is not used: {unused['why']}; mend it with: {unused['mend']}")
        return
    for line in placing.told(catalog):
        screen.tell(line)


def _sweep(library: Library) -> None:
    """Removes what earlier daemons left in the models folder; a disk that refuses delays no start."""
    try:
        if removed := library.sweep():
            _LOG.info("models: removed %d files that no name uses", removed)
    except (OSError, DiskFailed) as error:  # whichever errno: the next start tries again
        _LOG.warning("models: unused files are left: %s", error)


def _tell_of_files(library: Library, screen: Screen) -> None:
    """Warns about each file that looks like a model and is none; the others are served."""
    for passed in library.passed:
        if passed.why is not Why.PROJECTOR:
            screen.warn(f"{passed.file} is not served: {passed.told}")


def _event_loop() -> "asyncio.Runner":
    """uvloop where it is installed; otherwise asyncio's own loop, which is slower."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


# ------------------------------------------------------------------ a running daemon


@dataclass(frozen=True, slots=True)
class _Setting:
    """Values that stay the same while the daemon runs."""

    root: Root
    lock: RootLock
    file: Path | None  # the config; None: the embedded default
    options: Options
    screen: Screen
    withheld: Withheld  # from engines
    notifier: Notifier
    library: Library
    placing: Placing


async def _serve(setting: _Setting, catalog: Catalog) -> int:
    root, stopping = setting.root, _Stopping()
    reload_asked = asyncio.Event()
    signals = Signals(stopping.hear, reload_asked.set)
    notifier = setting.notifier
    journal = Journal(root.path, catalog.journal)
    alerts = Alerts(catalog.alerts, journal.write, Deliverer(root.path).deliver)
    tell = partial(asyncio.get_running_loop().call_soon_threadsafe, alerts.raise_)
    spools = _Spools(Drains(root.path, tell), SpoolCapture(root.path, catalog.spools, tell))
    keeper = Keeper(root.path, withheld=setting.withheld)
    # Brokers are kept apart: they end after the drains.
    programs, brokers = (Children(keeper, root.logs, {"WATCHBILL_HOME": str(root.path)}) for _ in range(2))
    batches = Batches(root.batches, catalog.batches, note=journal.write, tell=alerts.raise_)
    cards = _Cards(catalog, setting)
    beside = _Beside(spools, (programs, brokers), batches)
    driver = _make_driver(setting, catalog, journal, alerts, beside, cards=cards)
    try:
        await cards.own(catalog)
        await driver.start()
        _tell_of_failures(driver, setting)
        serving = await _open(driver, catalog.server, setting, batches)
        map_large_blocks()
        _relieve_collector()
        setting.lock.publish(serving.url)
        root.write_config_path(setting.file)
        root.write_daemon(serving.url)
        if not setting.options.no_fleet:
            _start_fleet(
                programs, root, catalog.fleet
            )  # its agents look for the address that was just written
        await _start_spools(spools, brokers, serving, catalog, setting)
        reloading = _Reloading(_Reloaded(driver, spools, serving, cards, batches), setting, reload_asked)
        await reloading.begin()
        watches = _begin_watches(setting, driver)
        pings = asyncio.create_task(notifier.keep_watchdog_calm(driver.is_ready), name="watchdog")
        notifier.ready(f"serving {len(catalog.models)} models at {serving.url}")
        setting.screen.ready(serving.url, _first_to_try(catalog), newcomer=setting.file is None)
        await stopping.asked.wait()
        notifier.stopping()
        for watch in watches:
            watch.cancel()
        await reloading.close()
        driver.stop_admitting()
        await stopping.unless_again(_drain(serving, programs))
    finally:
        await programs.close(hard=True)  # what a second signal, or an error, left
        await _close_spools(spools, brokers, setting)
        await batches.close()
        await driver.close()
        cards.locks.release()
        journal.close()
        root.forget_daemon()
    pings.cancel()
    signals.leaving(stopping.exit_code)
    return stopping.exit_code


def _begin_watches(setting: _Setting, driver: Driver) -> list[asyncio.Task[None]]:
    """Starts to watch the daemon's own log and the model files."""
    log, shelf = watch_own_log(setting.root.daemon_log), _watch_shelf(setting.library, driver)
    return [asyncio.create_task(log, name="log"), asyncio.create_task(shelf, name="shelf")]


async def _watch_shelf(library: Library, driver: Driver) -> None:
    """Takes over model files that come or go while the daemon runs."""
    while True:
        await asyncio.sleep(SHELF_LOOK_MS / 1000)
        try:
            changes = await library.look_again(driver)
        except Exception:  # noqa: BLE001  a fault of ours with one file must not end the watch for the others
            _LOG.exception("the models folder could not be looked at")
            continue
        if changes:
            _LOG.info("model files changed: %s", "; ".join(changes))


async def _drain(serving: Serving, programs: Children) -> None:
    """Lets running answers end, and the programs beside the daemon leave meanwhile."""
    await asyncio.gather(serving.close(grace_ms=DRAIN_MS), programs.close())


def _make_driver(
    setting: _Setting,
    catalog: Catalog,
    journal: Journal,
    alerts: Alerts,
    beside: "_Beside",
    *,
    cards: "_Cards",
) -> Driver:
    root, ram, withheld = setting.root, RamProbe(), setting.withheld
    return Driver(
        catalog,
        Parts(
            make_engine=lambda rules, on_death, on_host: make_engine(
                rules,
                root=root.path,
                on_death=on_death,
                on_host=on_host,
                withheld=withheld,
                uuids=cards.uuids,
            ),
            learned=LearnedSizes(catalog, Sizes(root.path)),
            root=root.path,
            journal=journal,
            alerts=alerts,
            make_probe_loop=partial(
                ProbeLoop,
                probes=[PatientProbe(ram), *([] if cards.probe is None else [cards.probe])],
                ram=ram,
                disk=DiskProbe(root.path),
            ),
            recorder=Recorder(setting.options.record, Driver.now(), _traffic(root, catalog)),
            spools=beside.spools.view,
            programs=beside.programs,
            batches=beside.batches.view,
            unused_cards=setting.placing.unused,
        ),
    )


def _traffic(root: Root, catalog: Catalog) -> Traffic | None:
    return Traffic(root.traffic) if catalog.journal.traffic else None


@dataclass(frozen=True, slots=True)
class _Beside:
    """What runs beside the driver and is shown in its status."""

    spools: "_Spools"
    children: tuple[Children, ...]
    batches: Batches

    def programs(self) -> dict[str, dict[str, object]]:
        """The programs that run beside the daemon."""
        return {label: told for each in self.children for label, told in each.view().items()}


def _start_fleet(programs: Children, root: Root, rules: FleetRules) -> None:
    """Runs the coordinator and the agents that the config names, each as a program of its own."""
    folder = fleet_folder(root.path, rules)
    found = programs_of(rules, folder)
    if rules.root is None and found:
        make_folder(folder / "plans")  # our own folder: no mount can be missing there
    for label, words in found.items():
        programs.start(label, (sys.executable, "-m", "watchbill", *words))


async def _start_spools(
    spools: "_Spools", brokers: Children, serving: Serving, catalog: Catalog, setting: _Setting
) -> None:
    """Captures and drains from now on, once the broker of this root runs where it was asked for."""
    if setting.options.with_nats:
        await _start_broker(brokers, setting)
    serving.gateway.capturing.sink = spools.captures
    await asyncio.to_thread(spools.drains.reconfigure, catalog.spools)


async def _close_spools(spools: "_Spools", brokers: Children, setting: _Setting) -> None:
    """Ends the drains, tells of events that were lost, and ends the broker that they used."""
    for lost in await asyncio.to_thread(spools.close):
        setting.screen.warn(lost)
    await brokers.close()


async def _start_broker(brokers: Children, setting: _Setting) -> None:
    """Runs the NATS server of this root, and waits until it answers. Raises ConfigError where there is none."""
    path = setting.root.path
    brokers.start("nats-server", await asyncio.to_thread(prepare, path))
    if not await asyncio.to_thread(wait_until_up, path):
        log = setting.root.logs / "nats-server.log"
        setting.screen.warn(f"the NATS server does not answer yet; its log is {log}")


class _Cards:
    """The cards that the config names: their probe, and the locks by which this daemon alone uses them (R14).

    A card without its driver counts as absent, and models elsewhere are served.
    """

    def __init__(self, catalog: Catalog, setting: _Setting) -> None:
        self.probe: PatientProbe | None = None
        self.locks = setting.placing.locks  # of cards that were found, beside those that the config names
        self._owner = _owner(setting.root)
        if any(name.startswith("gpu:") for name in catalog.devices):
            cards, why = find_cards()
            if cards is not None:
                self.probe = PatientProbe(cards)
            else:
                setting.screen.warn(
                    f"no card can be read, so no model is loaded on a card until the next start: {why}"
                )

    def uuids(self) -> Mapping[str, str]:
        """Device -> UUID, of the cards that were read at least once."""
        return {} if self.probe is None else self.probe.uuids

    async def own(self, catalog: Catalog) -> None:
        """Takes the cards of this config. Raises OursError when one belongs to another process."""
        if self.probe is None:
            return
        readings = await self.probe.look()
        uuids = {name: readings[name].uuid for name in catalog.devices if name in readings}
        self.locks.take({name: uuid for name, uuid in uuids.items() if uuid}, self._owner)


def _tell_of_failures(driver: Driver, setting: _Setting) -> None:
    """Warns about each bad model file; the other models are served. Raises ConfigError when none is left."""
    failures = _failures(driver)
    for failure in failures.values():
        setting.screen.warn(failure)
    if len(failures) == len(driver.catalog.models):
        named = [] if setting.file is None else [str(setting.file)]
        check = setting.root.command("config", "check", *named)
        raise ConfigError(f"no model can be loaded; see: {check}")


def _first_to_try(catalog: Catalog) -> str:
    """A model for the first question: one that answers."""
    talking = (name for name, model in catalog.models.items() if not model.embedding)
    return next(talking, next(iter(catalog.models)))


def _failures(driver: Driver) -> dict[str, str]:
    """Model -> the sentence with the reason why it cannot be loaded."""
    return {name: f"model {name} cannot be loaded: {why}" for name, why in driver.failures().items()}


def _relieve_collector() -> None:
    """Exempts the objects of the start from garbage collection, and makes collections rare.

    These objects stay, and almost none of the later ones is part of a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


async def _open(driver: Driver, server: Server, setting: _Setting, batches: Batches) -> Serving:
    access_log = _ACCESS.info if _ACCESS.isEnabledFor(logging.INFO) else None  # writing its lines costs time
    kept = setting.root.responses
    gateway = Gateway(
        driver,
        server,
        access_log=access_log,
        metrics=driver.metrics,
        responses=kept,
        batches=batches,
        library=setting.library,
    )
    if (traces := driver.catalog.traces).endpoint is not None:
        gateway.tracing = Tracing(
            Exporter(traces.endpoint, traces.service, __version__, traces.token), traces
        )
    await gateway.start_batches()
    await gateway.resume_responses()
    try:
        serving = await serve(gateway, server.host, server.port)
    except socket.gaierror as error:
        raise ConfigError(
            f"cannot listen on {server.host}: {error.strerror}; choose another --host"
        ) from error
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            raise
        where = f"{server.host}:{server.port}"
        raise ConfigError(
            f"cannot listen on {where}: {os.strerror(error.errno).lower()}; "
            f"choose another with --port, or 0 for any that is free"
        ) from error
    if (ollama_port := setting.options.ollama_port) is not None:
        await _open_for_ollama(serving, server.host, ollama_port)
    return serving


async def _open_for_ollama(serving: Serving, host: str, port: int) -> None:
    """Also listens on the port where apps look for Ollama."""
    try:
        await serving.listen_also(host, port)
    except OSError as error:
        await serving.close(grace_ms=0)
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
            raise
        raise ConfigError(
            f"cannot listen on {host}:{port} for Ollama's apps: {os.strerror(error.errno).lower()}; "
            f"if Ollama itself runs there, stop it or leave --ollama-port out"
        ) from error


class _Stopping:
    """Whether the daemon was told to stop, and whether it was told again."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._again = asyncio.Event()
        self.exit_code = 0

    def hear(self, exit_code: int) -> None:
        """Takes one signal that stops the daemon, with the exit code for it."""
        if self.asked.is_set():
            self._again.set()
        else:
            self.exit_code = exit_code
            self.asked.set()

    async def unless_again(self, act: Coroutine[None, None, None]) -> None:
        """Lets something end by itself, or ends it at the second signal."""
        acting, again = asyncio.ensure_future(act), asyncio.ensure_future(self._again.wait())
        await asyncio.wait([acting, again], return_when=asyncio.FIRST_COMPLETED)
        for task in (acting, again):
            task.cancel()
        await asyncio.wait([acting, again])


_NONE_CAPTURED = {"stored": 0, "waiting": 0, "dropped": 0}


@dataclass(frozen=True, slots=True)
class _Spools:
    """The drains and captures of all spools."""

    drains: Drains
    captures: SpoolCapture

    def reconfigure(self, spools: Mapping[str, SpoolRules]) -> list[str]:
        """Takes over new tables; returns the changes as sentences. Blocks."""
        self.captures.reconfigure(spools)
        return self.drains.reconfigure(spools)

    def view(self) -> dict[str, object]:
        """The part of `status` about each spool."""
        captured = self.captures.view()
        return {
            name: told
            | {f"capture_{key}": count for key, count in captured.get(name, _NONE_CAPTURED).items()}
            for name, told in self.drains.view().items()
        }

    def close(self) -> list[str]:
        """Ends both. Blocks. Returns a text for each spool that lost captured events."""
        lost = self.captures.close()  # first: the last captured events may still go through the drains
        self.drains.close()
        return lost


@dataclass(frozen=True, slots=True)
class _Reloaded:
    """All parts that take over a changed config."""

    driver: Driver
    spools: "_Spools"
    serving: Serving
    cards: _Cards
    batches: Batches


class _Reloading:
    """Takes over a changed config while the daemon runs, or refuses it as a whole."""

    def __init__(self, parts: _Reloaded, setting: _Setting, asked: asyncio.Event) -> None:
        self._parts, self._asked = parts, asked
        self._options, self._screen, self._withheld = setting.options, setting.screen, setting.withheld
        self._notifier, self._library = setting.notifier, setting.library
        # The file of the start, not the one that would be found now: without it that would be the embedded default.
        self._file = None if setting.file is None else config.ConfigFile(setting.file)
        self._seen: config.Stamp | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # an older config must not overtake a newer one

    async def begin(self) -> None:
        """Starts watching the file."""
        if self._file is None:
            return
        self._seen = await self._stamp(self._file)
        self._parts.serving.gateway.reload = self.reload
        self._task = asyncio.create_task(self._watch(self._file), name="config")

    async def _stamp(self, file: config.ConfigFile) -> config.Stamp | None:
        try:
            return await asyncio.to_thread(file.stamp)
        except OSError:
            return None  # an editor is replacing it, its folder is missing for a while, or its mount hangs

    async def _watch(self, file: config.ConfigFile) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONFIG_LOOK_MS / 1000):
                    await self._asked.wait()
            stamp = await self._stamp(file)
            changed = stamp is not None and stamp != self._seen
            if changed or self._asked.is_set():
                self._asked.clear()
                self._seen = stamp
                await self._try()

    async def _try(self) -> None:
        """Reloads the config. After a failure the next change is still noticed."""
        self._notifier.reloading()
        try:
            await self.reload()
        except (WatchbillError, OSError) as error:
            self._screen.warn(f"the changed config was refused, the old one stays:\n{error}")
        except Exception:  # noqa: BLE001  a fault of ours in one config must not end the watch for the next
            _LOG.exception("the changed config could not be taken over")
            self._screen.warn("the changed config was refused, the old one stays: Watchbill failed on it")
        finally:
            count = len(self._parts.driver.catalog.models)
            self._notifier.ready(f"serving {count} models at {self._parts.serving.url}")

    async def reload(self) -> list[str]:
        """Reads the config again and takes it over. Raises ConfigError and changes nothing when it is wrong."""
        if self._file is None:
            return []
        async with self._turn:
            return await self._reload(self._file)

    async def _reload(self, file: config.ConfigFile) -> list[str]:
        loaded = await asyncio.to_thread(
            config.read, file.path, root=self._options.root, source=lambda _: file.read()
        )
        if not loaded.catalog.models:  # more likely an editor that has not written yet than an empty config
            raise ConfigError(problems=[loaded.problem(("models",), "there is no model")])
        catalog = _with_address(loaded.catalog, self._options)
        await self._parts.cards.own(catalog)
        self._withheld.key_variables = catalog.server.key_variables
        driver = self._parts.driver
        before, before_fleet = _failures(driver), driver.catalog.fleet
        changes = await self._library.declare(driver, catalog)
        changes += await asyncio.to_thread(self._parts.spools.reconfigure, catalog.spools)
        changes += [text for name, text in _failures(driver).items() if before.get(name) != text]
        changes += self._parts.batches.reconfigure(catalog.batches)
        if catalog.fleet != before_fleet:
            changes.append("fleet, coordinator and agents change when the daemon is restarted")
        self._parts.serving.gateway.reconfigure(catalog.server)
        if changes:
            self._parts.serving.gateway.config_since = time.time()
        _LOG.info("config reloaded: %s", "; ".join(changes) or "nothing changed")
        return changes

    async def close(self) -> None:
        """Stops watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
