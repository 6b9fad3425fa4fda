"""All parts of the daemon, composed by hand in one readable place.

    lock the root -> reap processes of a dead daemon -> read the config -> start the driver -> open the server
    close the server -> let running answers end -> stop the engines -> release the root

SIGTERM and Ctrl-C drain and end within DRAIN_MS and a little; a second one ends at once. SIGHUP and a changed config
file reload it.
"""

import asyncio
import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial

from watchbill import __version__, config
from watchbill.batches.service import Batches
from watchbill.catalog import Catalog, FleetRules, Server
from watchbill.daemon.cards import Cards
from watchbill.daemon.notices import tell_of_cards, tell_of_engines, tell_of_failures, tell_of_files
from watchbill.daemon.reloading import Reconfigured, Reloading
from watchbill.daemon.setting import Options, Screen, Setting, owner_of, with_address
from watchbill.daemon.spools import Spools, close_spools, start_spools
from watchbill.engines.registry import make_engine
from watchbill.errors import ConfigError, DiskFailed, PullFailed
from watchbill.files.atomic import make_folder
from watchbill.files.disk import DISK_FULL
from watchbill.fleet.command_lines import fleet_folder, programs_of
from watchbill.gateway.app import Gateway
from watchbill.gateway.limits import DRAIN_MS
from watchbill.gateway.server import Serving, serve
from watchbill.gateway.tracing import Tracing
from watchbill.journal import Journal
from watchbill.notify import Notifier
from watchbill.otlp import Exporter
from watchbill.probes.disk import DiskProbe
from watchbill.probes.patient import PatientProbe
from watchbill.probes.ram import RamProbe
from watchbill.processes import Keeper, RootLock, Signals, Withheld, reap, try_to_listen, watch_own_log
from watchbill.pull import pull
from watchbill.pull.registry import registry_address
from watchbill.root import Root
from watchbill.runtime.alerts import Alerts, Deliverer
from watchbill.runtime.capture import SpoolCapture
from watchbill.runtime.children import Children
from watchbill.runtime.drains import Drains
from watchbill.runtime.driver import Driver, Parts
from watchbill.runtime.heap import map_large_blocks
from watchbill.runtime.knowledge import LearnedSizes
from watchbill.runtime.library import Library, without_missing
from watchbill.runtime.placing import find_places
from watchbill.runtime.probe_loop import ProbeLoop
from watchbill.runtime.recorder import Recorder
from watchbill.runtime.traffic import Traffic
from watchbill.shelf.limits import SHELF_LOOK_MS
from watchbill.sizes import Sizes

__all__ = ["run"]

_ACCESS = logging.getLogger("watchbill.access")
#: Python's own thresholds are (700, 10, 10): a pass over the young objects every few requests.
COLLECTOR_THRESHOLDS = (20_000, 20, 20)
_LOG = logging.getLogger("watchbill.daemon")
_ANOTHER_PORT = "choose another with --port, or 0 for any that is free"
_NOT_OLLAMAS_PORT = "if Ollama itself runs there, stop it or leave --ollama-port out"
_FOR_OLLAMAS_APPS = " for Ollama's apps"


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
            end = "it was stopped" if reaped.is_gone else "it does not end, and its memory is not free"
            screen.warn(f"a dead daemon left {reaped.label} (pid {reaped.pid}) behind; {end}")
        loaded = config.read(config.find_config(options.config, None), root=root.path)
        catalog = with_address(loaded.catalog, options)
        _check_addresses(catalog.server, options)
        declared = catalog
        if loaded.file is None and not options.no_fetch:
            catalog = _with_embedded(catalog, root, screen)
        withheld = Withheld(catalog.server.key_variables)
        library = Library.of(root.models, catalog, registry_address(), is_default=loaded.file is None)
        library.expect(declared)
        placing = find_places(library.catalog, owner_of(root), options.cards)
        library.place_with(placing)
        tell_of_files(library, screen)
        tell_of_engines(library.catalog, screen)
        tell_of_cards(placing, library.catalog, screen)
        _sweep(library)
        setting = Setting(root, lock, loaded.file, options, screen, withheld, Notifier(), library, placing)
        with _event_loop() as runner:
            return runner.run(_serve(setting, library.catalog))


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


def _sweep(library: Library) -> None:
    """Removes what earlier daemons left in the models folder; a disk that refuses delays no start."""
    try:
        if removed := library.sweep():
            _LOG.info("models: removed %d files that no name uses", removed)
    except (OSError, DiskFailed) as error:  # whichever errno: the next start tries again
        _LOG.warning("models: unused files are left: %s", error)


def _event_loop() -> "asyncio.Runner":
    """uvloop where it is installed; otherwise asyncio's own loop, which is slower."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


# ------------------------------------------------------------------ a running daemon


async def _serve(setting: Setting, catalog: Catalog) -> int:
    root, stopping = setting.root, _Stopping()
    reload_asked = asyncio.Event()
    signals = Signals(stopping.hear, reload_asked.set)
    notifier = setting.notifier
    journal = Journal(root.path, catalog.journal)
    alerts = Alerts(catalog.alerts, journal.write, Deliverer(root.path).deliver)
    tell = partial(asyncio.get_running_loop().call_soon_threadsafe, alerts.raise_)
    spools = Spools(Drains(root.path, tell), SpoolCapture(root.path, catalog.spools, tell))
    keeper = Keeper(root.path, withheld=setting.withheld)
    # Brokers are kept apart: they end after the drains.
    programs, brokers = (Children(keeper, root.logs, {"WATCHBILL_HOME": str(root.path)}) for _ in range(2))
    batches = Batches(root.batches, catalog.batches, note=journal.write, tell=alerts.raise_)
    cards = Cards(catalog, setting)
    beside = _Beside(spools, (programs, brokers), batches)
    driver = _make_driver(setting, catalog, journal, alerts, beside, cards=cards)
    try:
        await cards.own(catalog)
        await driver.start()
        tell_of_failures(driver, setting)
        serving = await _open(driver, catalog.server, setting, batches)
        map_large_blocks()
        _relieve_collector()
        setting.lock.publish(serving.url)
        root.write_config_path(setting.file)
        root.write_daemon(serving.url)
        if not setting.options.no_fleet:
            # The agents look for the address that was just written.
            _start_fleet(programs, root, catalog.fleet)
        await start_spools(spools, brokers, serving, catalog, setting)
        reloading = Reloading(Reconfigured(driver, spools, serving, cards, batches), setting, reload_asked)
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
        await close_spools(spools, brokers, setting)
        await batches.close()
        await driver.close()
        cards.locks.release()
        journal.close()
        root.forget_daemon()
    pings.cancel()
    signals.leaving(stopping.exit_code)
    return stopping.exit_code


def _begin_watches(setting: Setting, driver: Driver) -> list[asyncio.Task[None]]:
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
    setting: Setting,
    catalog: Catalog,
    journal: Journal,
    alerts: Alerts,
    beside: "_Beside",
    *,
    cards: Cards,
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

    spools: Spools
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
        # Withheld from engines; what goes through the broker needs them to read the same config.
        secrets = rules.broker.variables if "--nats" in words else ()
        own = {name: os.environ[name] for name in secrets if name in os.environ}
        # `signal AGENT stop` means it: an agent that was told to leave stays away, as under systemd.
        argv = (sys.executable, "-m", "watchbill", *words)
        programs.start(label, argv, own, may_leave=words[0] == "agent")


def _first_to_try(catalog: Catalog) -> str:
    """A model for the first question: one that answers."""
    talking = (name for name, model in catalog.models.items() if not model.embedding)
    return next(talking, next(iter(catalog.models)))


def _relieve_collector() -> None:
    """Exempts the objects of the start from garbage collection, and makes collections rare.

    These objects stay, and almost none of the later ones is part of a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


async def _open(driver: Driver, server: Server, setting: Setting, batches: Batches) -> Serving:
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
        raise _refused_address(error, server.host, server.port, _ANOTHER_PORT) from error
    if (ollama_port := setting.options.ollama_port) is not None:
        await _open_for_ollama(serving, server.host, ollama_port)
    return serving


async def _open_for_ollama(serving: Serving, host: str, port: int) -> None:
    """Also listens on the port where apps look for Ollama."""
    try:
        await serving.listen_also(host, port)
    except OSError as error:
        await serving.close(grace_ms=0)
        raise _refused_address(error, host, port, _NOT_OLLAMAS_PORT, _FOR_OLLAMAS_APPS) from error


def _check_addresses(server: Server, options: Options) -> None:
    """Raises ConfigError when a port is taken now: that is said before a model is fetched.

    An address that cannot be tried this way (a name of several, IPv6) is found out when it is opened.
    """
    wanted = [(server.port, _ANOTHER_PORT, "")]
    if options.ollama_port is not None:
        wanted.append((options.ollama_port, _NOT_OLLAMAS_PORT, _FOR_OLLAMAS_APPS))
    for port, mend, what in wanted:
        try:
            try_to_listen(server.host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _refused_address(error, server.host, port, mend, what) from error


def _refused_address(error: OSError, host: str, port: int, mend: str, what: str = "") -> Exception:
    """The error for the operator; the same one where it is no matter of addresses."""
    if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
        return error
    return ConfigError(f"cannot listen on {host}:{port}{what}: {os.strerror(error.errno).lower()}; {mend}")


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
