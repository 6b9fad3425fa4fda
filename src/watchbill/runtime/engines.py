"""Engines at runtime: carries out loads and stops, and reports their results to the core.

There is one task per attempt. A load that is still under way when its stop comes is cancelled first, and the engine
promises that nothing of it is left; so a stop never races a start. Every task ends in exactly one event for the core.
The machine is read before memory is reported as back, so that the core decides on fresh figures. A load that became
warm is reported at once, because its process may die right after, and the death must be reported after the load.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from watchbill.catalog import Catalog, EngineRules, Model
from watchbill.core.messages import (
    Blame,
    Check,
    Checked,
    Died,
    Event,
    HostSeen,
    Load,
    Loaded,
    LoadFailed,
    Proof,
    Sleep,
    Slept,
    Stop,
    Stopped,
    WakeModel,
)
from watchbill.engines.base import (
    DeathCallback,
    Engine,
    HostCallback,
    HostState,
    LoadError,
    Router,
    Sleeper,
    Successor,
    Warm,
    Watched,
)
from watchbill.engines.burst import left_behind
from watchbill.engines.foreign import ForeignEngine
from watchbill.engines.readiness import ask_again, can_be_asked, is_there
from watchbill.errors import ConfigError, EngineFailed
from watchbill.files.disk import DISK_FAULTS
from watchbill.probes import Cards, Reading
from watchbill.probes.trees import pids_of_tree, pids_of_unit
from watchbill.runtime.limits import LOAD_OVERTIME_MS, RETRY_PAUSE_MS
from watchbill.units import Millis

__all__ = ["Engines"]

Feed = Callable[[Event], None]
#: device -> the report of its driver
MakeEngine = Callable[[EngineRules, DeathCallback, HostCallback], Engine]
_LOG = logging.getLogger("watchbill.engines")


class Engines:
    """Every engine of the catalog, and the process of each model."""

    def __init__(
        self, catalog: Catalog, make: MakeEngine, feed: Feed, look: Callable[[], Awaitable[None]]
    ) -> None:
        self._make, self._feed, self._look = make, feed, look
        self._engines: dict[str, Engine] = {}
        self._rules: dict[str, EngineRules] = {}  # the rules that each engine was made from
        # Replaced by a config change, with models that still run; or of a former config.
        self._retired: list[Engine] = []
        self._hosts: dict[str, Engine] = {}  # model -> the engine that holds it, also after a config change
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._checks: dict[str, asyncio.Task[None]] = {}  # model -> its last question
        self.warm: dict[str, Warm] = {}  # includes sleeping models: they get no grants
        self._up: dict[str, Warm] = {}  # every model of ours that is or was warm, until its memory is back
        self._cards: dict[str, dict[str, int]] = {}  # the last reading of each model on the cards
        self._routed: set[str] = set()  # the shared ones among them
        self.attempts: dict[str, int] = {}  # of the process that runs or starts
        self.reconfigure(catalog)

    def continues(self, model: str) -> bool:
        """Whether the engine of a model continues an assistant's message that a request begins."""
        rules = self._catalog.models.get(model)
        engine = None if rules is None else self._engines.get(rules.engine)
        return engine is not None and engine.capabilities.continues

    def reconfigure(self, catalog: Catalog) -> None:
        """Makes the engines that are new or changed. Old ones stay until their models are gone.

        Raises ConfigError before anything has changed.
        """
        names = sorted({model.engine for model in catalog.models.values()})
        changed = [name for name in names if self._rules.get(name) != catalog.engines[name]]
        rekeyed = [name for name in changed if self._only_key_differs(catalog.engines[name])]
        made = {name: self._make_one(catalog.engines[name]) for name in changed if name not in rekeyed}
        routes = _routes(catalog, {**self._engines, **made})
        replaced = [name for name in made if name in self._engines]
        for name in rekeyed:
            self._show_key(catalog.engines[name])
        for name in replaced:
            if isinstance(engine := made[name], Successor):
                engine.succeed(self._engines[name])
        self._retired += [self._engines[name] for name in replaced]
        self._engines.update(made)
        self._rules.update({name: catalog.engines[name] for name in made})
        for name in replaced:
            self._feed(HostSeen(name))  # the state of the old host says nothing about the new one
        self._catalog = catalog
        # Shared models are routed to the address in the config from now on, without a load.
        for name in self._routed - routes.keys():
            self.warm.pop(name, None)
        self._routed = set(routes)
        self.warm.update(routes)

    def _only_key_differs(self, rules: EngineRules) -> bool:
        """Whether an engine goes on under another key."""
        before, engine = self._rules.get(rules.name), self._engines.get(rules.name)
        shows = isinstance(engine, ForeignEngine) and engine.shows_keys
        return shows and before is not None and replace(before, key=rules.key) == rules

    def _show_key(self, rules: EngineRules) -> None:
        """Has an engine show another key from its next request on, also for what is warm."""
        engine = self._engines[rules.name]
        assert isinstance(engine, ForeignEngine)
        engine.show_key(rules.key)
        self._rules[rules.name] = rules
        for name, warm in self.warm.items():
            if self._hosts.get(name) is engine:
                told = replace(warm, endpoint=replace(warm.endpoint, key=rules.key))
                self.warm[name] = self._up[name] = told

    def take_back(self, root: Path) -> None:
        """Has the machines stopped that a former daemon left running, and that no tier of the config means any more."""
        for rules in left_behind(root, self._rules.values()):
            tier = rules.name.removeprefix("@")
            _LOG.warning("the tier %s is gone or has another machine: its former one is stopped", tier)
            self._retired.append(self._make_one(rules))

    def _make_one(self, rules: EngineRules) -> Engine:
        return self._make(rules, self._on_death, partial(self._on_host, rules))

    def view(self, silent: Mapping[str, str], places: Mapping[str, int]) -> dict[str, object]:
        """Every engine, with the abilities of its driver and the state of its host; for `status`."""
        return {
            name: {
                "driver": self._rules[name].driver,
                "capabilities": asdict(engine.capabilities),
                "silence": silent.get(name),
                "places": places.get(name),
            }
            for name, engine in self._engines.items()
        }

    # ------------------------------------------------------------------ start

    def load(self, action: Load, look_first: Callable[[str], Awaitable[None]]) -> None:
        """Begins to load a model, after a look at its file."""
        model = self._catalog.models[action.model]
        self.attempts[model.name] = action.attempt
        task = asyncio.create_task(self._load(model, action, look_first), name=f"load {model.name}")
        self._loads[model.name] = task

    async def _load(self, model: Model, action: Load, look_first: Callable[[str], Awaitable[None]]) -> None:
        engine = self._hosts[model.name] = self._engines[model.engine]
        # The engine's driver knows best why a load takes too long, so the driver enforces the limit.
        limited = replace(model, load_timeout_ms=Millis(action.deadline_ms))

        async def come() -> Warm:
            await look_first(model.name)
            return await engine.load(limited, action.attempt, action.expected_ms)

        await self._bring_up(engine, action, come())

    async def _bring_up(self, engine: Engine, action: Load, coming: Awaitable[Warm]) -> None:
        """Tells the core how a load or a waking ended. A failed one leaves nothing behind."""
        try:
            async with asyncio.timeout((action.deadline_ms + LOAD_OVERTIME_MS) / 1000):
                warm = await coming
        except LoadError as error:
            await self._failed(action, LoadFailed(
                action.model, action.attempt, str(error), error.hopeless, error.blame, error.remains
            ))  # fmt: skip
        except ConfigError as error:
            await self._failed(action, LoadFailed(action.model, action.attempt, str(error), hopeless=True))
        except TimeoutError:
            await self._broken_off(engine, action, f"not warm after {action.deadline_ms // 1000} s")
        except Exception as error:  # noqa: BLE001  a driver's bug must not leave the core waiting
            blame = _blame(error)
            if blame is Blame.MODEL:
                _LOG.exception("load of %s broke", action.model)
            await self._broken_off(engine, action, f"{type(error).__name__}: {error}", blame)
        else:
            self.warm[action.model] = self._up[action.model] = warm
            self._feed(Loaded(action.model, action.attempt, dict(warm.memory), Proof(warm.probe)))

    async def _broken_off(
        self, engine: Engine, action: Load, reason: str, blame: Blame = Blame.MODEL
    ) -> None:
        """Stops what is left of a load whose driver did not keep its promise."""
        remains = False
        try:
            await engine.stop(action.model, hard=True)
        except Exception as error:  # noqa: BLE001  the load has failed, and that must be told in any case
            remains = True
            is_bug = not isinstance(error, EngineFailed)
            _LOG.warning("the rest of %s could not be stopped: %s", action.model, error, exc_info=is_bug)
        await self._failed(
            action, LoadFailed(action.model, action.attempt, reason, blame=blame, remains=remains)
        )

    async def _failed(self, action: Load, failure: LoadFailed) -> None:
        if not failure.remains:
            self._forget(action.model, action.attempt)
        await self._look()
        self._feed(failure)

    def _on_death(self, model: str, attempt: int, reason: str, blame: Blame = Blame.MODEL, /) -> None:
        if self.attempts.get(model, attempt) == attempt:
            self._cool(model)
        self._feed(Died(model, attempt, reason, blame))

    def _on_host(self, rules: EngineRules, state: HostState) -> None:
        if (
            self._rules.get(rules.name) is rules
        ):  # an engine that was replaced by a config change no longer counts
            self._feed(HostSeen(rules.name, state.silence, state.places, state.leaving, state.serves))

    def _forget(self, model: str, attempt: int) -> None:
        """Forgets an attempt that no longer runs. A newer attempt is kept."""
        if self.attempts.get(model, 0) <= attempt:
            self.attempts.pop(model, None)
            self._up.pop(model, None)

    # ------------------------------------------------------------------ health

    async def verify(self, model: str) -> None:
        """Returns when the core knows whether a model is still there, at whose engine a request has just failed.

        The end of our own processes is noticed at once. Another program is looked at every few seconds only, so it is
        looked at now.
        """
        engine = self._hosts.get(model)
        if isinstance(engine, Watched):
            await engine.look_again()
        else:
            await asyncio.sleep(RETRY_PAUSE_MS / 1000)

    def check(self, action: Check) -> None:
        """Begins to ask a warm model a simple question.

        A question that is still open is dropped: the core has given it up, and its late end would be taken for the
        answer to this one.
        """
        if (before := self._checks.get(action.model)) is not None:
            before.cancel()
        self._checks[action.model] = self._run(self._check(action), f"check {action.model}")

    async def _check(self, action: Check) -> None:
        warm = self.warm.get(action.model)
        if warm is None:
            return  # it is gone, which is reported elsewhere
        try:
            await (ask_again(warm) if can_be_asked(warm) else is_there(warm))
        except LoadError as error:
            self._feed(Checked(action.model, action.attempt, str(error)))
            return
        if can_be_asked(warm):
            self._feed(Checked(action.model, action.attempt))
        else:
            reason = f"its probe is {warm.probe!r}, which asks for no answer"
            self._feed(Checked(action.model, action.attempt, reason, was_asked=False))

    # ------------------------------------------------------------------ asleep

    def sleep(self, action: Sleep) -> None:
        """Begins to put a model to sleep; one that does not fall asleep is stopped instead."""
        self.attempts[action.model] = action.attempt
        self._run(self._sleep(action), f"sleep {action.model}")

    async def _sleep(self, action: Sleep) -> None:
        engine = self._hosts.get(action.model)
        try:
            if not isinstance(engine, Sleeper):
                raise LoadError("cannot be put to sleep")
            memory = await engine.sleep(action.model, action.attempt)
        except Exception as error:  # noqa: BLE001  any error: the memory was promised to another model
            reason = str(error)
            is_bug = not isinstance(error, LoadError)
            _LOG.warning(
                "%s is stopped, because it does not sleep: %s", action.model, reason, exc_info=is_bug
            )
            self._cool(action.model)
            await self._stop(Stop(action.model, action.attempt, hard=False))
            return
        await self._look()
        self._feed(Slept(action.model, action.attempt, {**memory, **self._held_on_cards(action.model)}))

    def wake(self, action: WakeModel) -> None:
        """Begins to wake a model."""
        self.attempts[action.model] = action.attempt
        model = replace(self._catalog.models[action.model], load_timeout_ms=Millis(action.deadline_ms))
        self._loads[action.model] = asyncio.create_task(
            self._wake(model, action), name=f"wake {action.model}"
        )

    async def _wake(self, model: Model, action: WakeModel) -> None:
        engine, tried = self._hosts.get(model.name), Load(model.name, action.attempt, action.deadline_ms)
        if isinstance(engine, Sleeper):
            await self._bring_up(engine, tried, engine.wake(model, action.attempt))
        else:
            text = f"the engine of {model.name} cannot be woken"
            await self._failed(tried, LoadFailed(model.name, action.attempt, text))

    async def asleep(self) -> dict[str, bool]:
        """Whether each model that can sleep does so."""
        sleepers = {
            model: engine
            for model, engine in self._hosts.items()
            if isinstance(engine, Sleeper) and self._may_sleep(model)
        }
        said = await asyncio.gather(*(engine.is_asleep(model) for model, engine in sleepers.items()))
        return {
            model: is_asleep for model, is_asleep in zip(sleepers, said, strict=True) if is_asleep is not None
        }

    def _may_sleep(self, model: str) -> bool:
        rules = self._catalog.models.get(model)
        return rules is not None and rules.sleep_ms is not None

    # ------------------------------------------------------------------ stop

    def stop(self, action: Stop) -> None:
        """Begins to stop a model."""
        self._cool(action.model)
        self._run(self._stop(action), f"stop {action.model}")

    def _run(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        return task

    async def _stop(self, action: Stop) -> None:
        load = self._loads.pop(action.model, None)
        if load is not None and not load.done():
            load.cancel()
            await asyncio.wait([load])
        engine = self._hosts.get(action.model)
        try:
            if engine is not None:
                await engine.stop(action.model, hard=action.hard)
        except Exception as error:  # noqa: BLE001  the core's deadline stops it again
            is_bug = not isinstance(error, EngineFailed)
            _LOG.warning("model=%s was not stopped yet: %s", action.model, error, exc_info=is_bug)
            return
        self._forget(action.model, action.attempt)
        await self._look()
        self._feed(Stopped(action.model, action.attempt))

    def _cool(self, model: str) -> None:
        if model not in self._routed:  # a model that became shared answers at its new address already
            self.warm.pop(model, None)

    async def close(self) -> None:
        """Stops every engine of ours in any state."""
        for task in [*self._loads.values(), *self._stops]:
            task.cancel()
        await asyncio.gather(*self._loads.values(), *self._stops, return_exceptions=True)
        engines = [*self._engines.values(), *self._retired]
        await asyncio.gather(*(engine.close() for engine in engines), return_exceptions=True)

    # ------------------------------------------------------------------ readings

    def memory(self, cards: Cards) -> dict[str, tuple[int, Mapping[str, int]]]:
        """The memory of each process, with the attempt it belongs to. Blocks on /proc: call it in a thread.

        `cards` holds the report of each card's driver per process. A model's share is what its process tree, or its
        unit, holds there.
        """
        found: dict[str, tuple[int, Mapping[str, int]]] = {}
        for model, attempt in list(self.attempts.items()):
            engine = self._hosts.get(model)
            if engine is not None:
                self._cards[model] = self._on_cards(model, cards)
                found[model] = (attempt, {**engine.memory(model), **self._cards[model]})
        return found

    def held_on_cards(self, cards: Cards, own: Collection[int]) -> dict[str, int]:
        """Device -> what our models hold there in this very reading, those that still load included. `own` are the
        daemon's processes and its engines'. Blocks on /proc: call it in a thread."""
        up = list(self._up.items())
        pids = set(own).union(*(pids_of_tree(warm.pid) for _, warm in up if warm.pid not in (None, *own)))
        held = {
            device: sum(size for pid, size in card.processes.items() if pid in pids)
            for device, card in cards.items()
        }
        for model in (model for model, warm in up if warm.pid is None):
            engine = self._hosts.get(model)
            told = dict(engine.memory(model)) if isinstance(engine, Watched) else dict[str, int]()
            for device, size in (told | self._on_cards(model, cards)).items():
                held[device] = held.get(device, 0) + size
        return held

    def _held_on_cards(self, model: str) -> dict[str, int]:
        """The memory of a model on the cards in the last reading."""
        return self._cards.get(model, {})

    def _on_cards(self, model: str, cards: Cards) -> dict[str, int]:
        warm = self._up.get(model)
        if warm is None or not cards:
            return {}
        tree = None if warm.pid is None else pids_of_tree(warm.pid)
        held = {device: self._on_card(model, warm, tree, device, card) for device, card in cards.items()}
        return {device: size for device, size in held.items() if size}

    def _on_card(self, model: str, warm: Warm, tree: list[int] | None, device: str, card: Reading) -> int:
        if tree is not None:
            return sum(card.processes.get(pid, 0) for pid in tree)
        if not warm.unit:
            return 0
        pids = pids_of_unit(warm.unit, card.processes)
        if pids:
            return sum(card.processes[pid] for pid in pids)
        # The processes of the host cannot be seen from inside a container, nor those of a unit that hides them. Then
        # the memory that the unit declares is ours; otherwise a card that it fills would count as filled by others
        # and take no loads.
        rules = self._catalog.models.get(model)
        declared = rules.memory.get(device, 0) if rules is not None and rules.memory else 0
        return min(declared, card.capacity - card.available)


def _routes(catalog: Catalog, engines: Mapping[str, Engine]) -> dict[str, Warm]:
    """The address of each shared model. Raises ConfigError for an engine that cannot be shared."""
    routes: dict[str, Warm] = {}
    for name, model in catalog.models.items():
        if model.shared:
            engine = engines[model.engine]
            if not isinstance(engine, Router):
                raise ConfigError(f"{name}: the engine {model.engine} cannot be shared")
            routes[name] = engine.route(model)
    return routes


def _blame(error: Exception) -> Blame:
    """Which part is at fault when an engine's driver failed."""
    return Blame.DISK if isinstance(error, OSError) and error.errno in DISK_FAULTS else Blame.MODEL
