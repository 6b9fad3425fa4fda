"""Random worlds: devices, models, traffic and faults drawn from one seed.

Faults happen during the first part of a run. Then the faults and the traffic stop, and every open request must end
within its bound. A seed that breaks an invariant is pasted into a test.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from watchbill.catalog import (
    LOCAL_SITE,
    ROTATION_LANE,
    Catalog,
    Device,
    EngineRules,
    Lane,
    Model,
    PolicyRules,
    RoutingRules,
    Tier,
    TierRules,
    WorkClass,
)
from watchbill.core.messages import EvictAsked, Footprint, Knowledge
from watchbill.core.reasons import Bar
from watchbill.simulate.borrowers import schedule_loans
from watchbill.simulate.engine import TrueModel
from watchbill.simulate.hosts import schedule_silence
from watchbill.simulate.reloads import schedule_reloads
from watchbill.simulate.tenants import schedule_leases
from watchbill.simulate.world import Faults, World
from watchbill.units import Bytes, Millis

__all__ = ["TROUBLE_MS", "contended_world", "limited_world", "random_world", "run_out"]

#: How long faults happen, and how long traffic lasts.
TROUBLE_MS = 90_000
TRAFFIC_MS = 120_000
#: How long the traffic of a contended world lasts: long enough for many turns.
CONTENDED_MS = 900_000
GB = 10**9
#: The program that holds several models.
HOST = "host"
#: The companions of the next request for a model.
Companions = Callable[[Model], tuple[str, ...]]

FAULTS = Faults(
    load_fails=0.08, load_hangs=0.02, dies=0.08, freezes=0.08, stalls=0.05, answer_fails=0.03, site_fails=0.25,
    caller_leaves=0.1,
    lingers=0.3,
    memory_late=0.1,
    answer_lost=0.03, answer_twice=0.1, probe_stuck=0.05, foreign_use=0.02, jitter=(0.5, 1.8),
    until_ms=TROUBLE_MS,
)  # fmt: skip


def random_world(
    seed: int,
    *,
    faults: bool = True,
    policy: str = "rate",
    strategy: type[object] | None = None,
    loans: bool = True,
) -> World:
    """A random world. A policy from outside is named by its class. Memory is lent only where faults happen, too."""
    draw = random.Random(seed)
    devices = _devices(draw)
    time_limits = random.Random(f"time limits {seed}")
    limits = random.Random(f"limited lanes {seed}")
    models = _sleepers(random.Random(f"sleep {seed}"), _models(draw, devices))
    models = _with_priorities(random.Random(f"priorities {seed}"), models)
    models = _hosted(random.Random(f"hosted {seed}"), models)
    lanes = {
        work_class.word: Lane(
            work_class.word,
            work_class,
            max_wait_ms=Millis(draw.choice((10_000, 30_000, 60_000, 120_000))),
            timeout_ms=Millis(time_limits.choice((3_000, 20_000, 120_000))),
            queue_max=draw.choice((4, 64, 10_000)),
            concurrency=limits.choice((None, None, None, None, None, 1, 2, 3)),
        )
        for work_class in WorkClass
    }
    rules = PolicyRules(policy, parallel_loads=draw.choice((1, 1, 2)), strategy=strategy)
    engines = {
        "scripted": EngineRules("scripted", "scripted"),
        "far": EngineRules("far", "remote", shared=True),
        HOST: EngineRules(HOST, "ollama"),
    }
    sites = random.Random(f"sites {seed}")
    copies = _copies(sites, models)
    copies += _more_copies(random.Random(f"more sites {seed}"), models, copies)
    catalog = Catalog(devices, engines, {m.name: m for m in (*models, *copies)}, lanes, rules)
    catalog = replace(catalog, routing=_routing(sites, copies), tiers=_tiers(copies))
    truth = {m.name: _truth(draw, m) for m in models}
    known = {name: _guess(draw, true) for name, true in truth.items()}
    truth |= {m.name: _truth(sites, m) for m in copies}
    known |= {m.name: _guess(sites, truth[m.name]) for m in copies}
    capacity = {name: int(device.capacity or 0) for name, device in devices.items()}
    troubles = _with_hangs(random.Random(f"hangs {seed}"), FAULTS) if faults else None
    world = World(catalog, truth, capacity, seed=seed, faults=troubles, known=known)
    world.mute = seed % 5 == 0
    world.indivisible = 0.3 if seed % 3 == 1 else 0.0
    world.kept = 0.3 if copies and seed % 2 else 0.0
    sets = _sets(random.Random(f"sets {seed}"), models, devices)
    for model in models:
        _traffic(draw, world, model, sets)
    if faults:
        _operator(draw, world, models)
        _spend(sites, world, copies)
        _trouble(seed, world, loans=loans)
    return world


def _trouble(seed: int, world: World, *, loans: bool) -> None:
    """What else may happen to a world in which faults happen."""
    schedule_reloads(random.Random(f"reload {seed}"), world, TROUBLE_MS)
    _fill_disk(random.Random(f"disk {seed}"), world)
    if any(model.engine == HOST for model in world.catalog.models.values()):
        schedule_silence(random.Random(f"silence {seed}"), world, world.hosts, HOST, TROUBLE_MS)
    if loans:
        schedule_loans(random.Random(f"loans {seed}"), world, world.borrowers, TROUBLE_MS)
        schedule_leases(seed, world, world.tenants, TROUBLE_MS)


def contended_world(seed: int, *, policy: str = "rate", alpha: float = 1.0, known: bool = True) -> World:
    """A world in which requests for mutually exclusive models come all the time, and nothing fails.

    Their load times vary, and the core's first figures are wrong or, without `known`, missing.
    """
    draw = random.Random(seed)
    device = Device("gpu:0", capacity=Bytes(24 * GB))
    models = [
        Model(
            f"m{i}", "scripted", memory={"gpu:0": Bytes(16 * GB)}, devices=("gpu:0",),
            concurrency=draw.choice((1, 2, 4)),
        )
        for i in range(draw.randint(2, 5))
    ]  # fmt: skip
    models = _with_priorities(random.Random(f"priorities {seed}"), models)
    lanes = {
        "person": Lane(
            "person", WorkClass.INTERACTIVE, max_wait_ms=Millis(draw.choice((30_000, 60_000, 120_000)))
        ),
        "batch": Lane("batch", WorkClass.BACKGROUND, max_wait_ms=Millis(600_000), queue_max=10_000),
    }
    rules = PolicyRules(policy, alpha=alpha)
    engines = {"scripted": EngineRules("scripted", "scripted")}
    catalog = Catalog({"gpu:0": device}, engines, {m.name: m for m in models}, lanes, rules)
    truth = {m.name: TrueModel(m.name, draw.uniform(1_000, 12_000), m.memory, slowdown=0.3) for m in models}
    told = {name: _guess(draw, true) for name, true in truth.items()} if known else None
    faults = Faults(jitter=(0.7, 1.4))
    world = World(catalog, truth, {"gpu:0": 24 * GB}, seed=seed, faults=faults, known=told)
    _loops(random.Random(f"loops {seed}"), world, models, CONTENDED_MS)
    for model in models:
        for lane in draw.choice((("person",), ("batch",), ("person", "batch"))):
            service, every = draw.uniform(300, 4_000), draw.uniform(3_000, 30_000)
            when = draw.expovariate(1 / every)
            while when < CONTENDED_MS:
                work = draw.lognormvariate(0, 0.6) * service
                world.at(when, lambda m=model, w=work, lane=lane: _ask(world, m, w, lane, ()))
                when += draw.expovariate(1 / every)
    return world


def limited_world(seed: int) -> World:
    """A world of limited lanes: in most of them only so many requests may run at once, over models of which not all
    fit, with long and short loads and answers. Nothing fails."""
    draw = random.Random(f"limited {seed}")
    room = draw.choice((1, 1, 2))
    device = Device("gpu:0", capacity=Bytes(room * 10 * GB))
    models = [
        Model(
            f"m{i}", "scripted", memory={"gpu:0": Bytes(10 * GB)}, devices=("gpu:0",),
            concurrency=draw.choice((1, 2, 4)), priority=draw.choice((1, 3, 3, 3, 5)),
        )
        for i in range(room + draw.randint(0, 3))
    ]  # fmt: skip
    classes = (WorkClass.INTERACTIVE, WorkClass.NORMAL, WorkClass.BACKGROUND)
    lanes = {
        f"lane-{i}": Lane(
            f"lane-{i}",
            draw.choice(classes),
            max_wait_ms=Millis(draw.choice((20_000, 40_000, 120_000))),
            timeout_ms=Millis(60_000),
            concurrency=draw.choice((None, 1, 1, 2, 3)),
        )
        for i in range(draw.randint(1, 3))
    }
    engines = {"scripted": EngineRules("scripted", "scripted")}
    catalog = Catalog({"gpu:0": device}, engines, {m.name: m for m in models}, lanes, PolicyRules())
    truth = {
        m.name: TrueModel(m.name, draw.choice((300, 1_000, 3_000, 8_000)), m.memory, slowdown=0.3)
        for m in models
    }
    told = {name: _guess(draw, true) for name, true in truth.items()}
    faults = Faults(jitter=(0.7, 1.4))
    world = World(catalog, truth, {"gpu:0": room * 10 * GB}, seed=seed, faults=faults, known=told)
    for model in models:
        for lane in draw.sample(sorted(lanes), draw.randint(1, len(lanes))):
            times = (draw.choice((50, 200, 500, 2_000, 8_000)), draw.choice((5, 500, 3_000, 10_000)))
            for _ in range(draw.choice((1, 1, 2, 4))):
                _loop(world, model, lane, times)
    return world


def _with_hangs(draw: random.Random, faults: Faults) -> Faults:
    """In every fifth world many loads hang, first ones included."""
    return replace(faults, load_hangs=0.3) if draw.random() < 0.2 else faults


def _with_priorities(draw: random.Random, models: list[Model]) -> list[Model]:
    """In every second world some models have a better priority than others."""
    if draw.random() < 0.5:
        return models
    return [replace(model, priority=draw.randint(1, 5)) for model in models]


def _loops(draw: random.Random, world: World, models: list[Model], until_ms: float) -> None:
    """In every second world clients send one request after another to a model whose answers are short against its
    load.
    """
    if draw.random() < 0.5:
        return
    model, lane = draw.choice(models), draw.choice(("person", "batch"))
    for _ in range(draw.choice((1, 4))):
        times = (draw.uniform(100, 500), draw.choice((5, 100)))
        _loop(world, model, lane, times, until_ms=until_ms)


def run_out(world: World) -> World:
    """Runs a world until every request must have had its answer."""
    world.run(TRAFFIC_MS)
    world.run(TRAFFIC_MS + 600_000)
    lanes = (*world.catalog.lanes.values(), ROTATION_LANE)
    bounds = [lane.max_wait_ms + lane.timeout_ms for lane in lanes]
    # An answer that hangs ends at its time limit, and that of another machine's request is its own.
    bounds += [c.request.max_wait_ms + c.request.timeout_ms for c in world.open.values()]
    return world.run(TRAFFIC_MS + 2 * max(bounds)) if world.open else world


def _devices(draw: random.Random) -> dict[str, Device]:
    names = ["ram", "gpu:0", "gpu:1"][: draw.choice((1, 1, 2, 3))]
    return {
        name: Device(
            name,
            capacity=Bytes(draw.choice((12, 16, 24)) * GB),
            reserve=Bytes(draw.choice((0, 2)) * GB if name == "ram" else 0),
            max_resident=draw.choice((None, None, None, 2)),
            parallel_loads=draw.choice((1, 1, 2)),
        )
        for name in names
    }


def _models(draw: random.Random, devices: dict[str, Device]) -> list[Model]:
    models: list[Model] = []
    for i in range(draw.randint(2, 6)):
        on = draw.sample(sorted(devices), draw.choice((1, 1, min(2, len(devices)))))
        memory = {d: Bytes(int(draw.uniform(1, 0.9 * (devices[d].capacity or 0) / GB) * GB)) for d in on}
        small = all(size <= (devices[d].capacity or 0) / 4 for d, size in memory.items())
        models.append(
            Model(
                f"m{i}", "scripted", memory=memory, devices=tuple(on), concurrency=draw.choice((1, 2, 4)),
                group=draw.choice((None, None, "heavy")), idle_ms=Millis(draw.choice((5_000, 60_000, 300_000))),
                permanent=small and i < 2 and draw.random() < 0.3, family=draw.choice((None, None, "tiers")),
            )
        )  # fmt: skip
    if sum(m.permanent and m.group is not None for m in models) > 1:
        models = [_rotating(m) for m in models]
    if draw.random() < 0.2:
        models.append(Model("far", "far", devices=(), shared=True, concurrency=2))
    return models


def _hosted(draw: random.Random, models: list[Model]) -> list[Model]:
    """In every third world most models are held by one program, which is silent now and then where faults happen."""
    if draw.random() < 0.67:
        return models
    return [
        replace(model, engine=HOST) if model.engine == "scripted" and draw.random() < 0.7 else model
        for model in models
    ]


def _copies(draw: random.Random, models: list[Model]) -> list[Model]:
    """In every third world some models are served by a burst or an external tier, too."""
    if draw.random() < 0.67:
        return []
    return _served_at(draw, models, {"box": Tier.BURST, "cloud": Tier.EXTERNAL})


def _more_copies(draw: random.Random, models: list[Model], copies: list[Model]) -> list[Model]:
    """In every second of these worlds some are served by a peer, or by a second external tier."""
    if not copies or draw.random() < 0.5:
        return []
    return _served_at(draw, models, {"rig": Tier.PEER, "spare": Tier.EXTERNAL})


def _served_at(draw: random.Random, models: list[Model], sites: dict[str, Tier]) -> list[Model]:
    copies: list[Model] = []
    for model in models:
        for site, tier in sites.items():
            if model.site is None and not model.shared and draw.random() < 0.4:
                is_far = tier is Tier.EXTERNAL
                copies.append(
                    Model(
                        f"{model.name}@{site}", "far" if is_far else "scripted", devices=(), shared=is_far,
                        concurrency=draw.choice((1, 4)), idle_ms=Millis(draw.choice((5_000, 60_000))), where=tier,
                        site=site, copy_of=model.name, writes_here=False,
                    )
                )  # fmt: skip
    return copies


def _routing(draw: random.Random, copies: list[Model]) -> RoutingRules:
    order = [LOCAL_SITE, *dict.fromkeys(copy.site for copy in copies if copy.site is not None)]
    if draw.random() < 0.2:
        draw.shuffle(order)
    return RoutingRules(tuple(order), draw.choice((None, Millis(1_000), Millis(10_000))))


def _tiers(copies: list[Model]) -> dict[str, TierRules]:
    return {
        copy.site: TierRules(copy.site, copy.where)
        for copy in copies
        if copy.site is not None and copy.where is not Tier.PEER
    }


def _spend(draw: random.Random, world: World, copies: list[Model]) -> None:
    """Daily limits are reached, and raised again."""
    for site in _tiers(copies):
        for _ in range(draw.randint(0, 3)):
            begins = draw.uniform(0, TROUBLE_MS)
            world.at(begins, partial(world.sites.close, site, Bar.LIMIT))
            ends = begins + draw.uniform(0, TROUBLE_MS)
            world.at(ends, partial(world.sites.open_again, site))


def _sleepers(draw: random.Random, models: list[Model]) -> list[Model]:
    """In every second world some models sleep, by themselves or when told; some declare their size asleep."""
    if draw.random() < 0.5:
        return models
    return [
        replace(
            model,
            sleep_ms=Millis(draw.choice((1_000, 4_000, 20_000))),
            sleeps_when_told=draw.random() < 0.5,
            asleep={d: Bytes(size // 50) for d, size in model.memory.items()} if draw.random() < 0.7 else {},
        )
        if not model.permanent and not model.shared and draw.random() < 0.7
        else model
        for model in models
    ]


def _rotating(model: Model) -> Model:
    return Model(
        model.name, model.engine, memory=model.memory, devices=model.devices, concurrency=model.concurrency,
        group=model.group, idle_ms=model.idle_ms,
    )  # fmt: skip


def _truth(draw: random.Random, model: Model) -> TrueModel:
    load_ms, slowdown = draw.uniform(500, 12_000), draw.choice((0.0, 0.3, 0.9))
    asleep = {device: size // 50 for device, size in model.memory.items()}
    return TrueModel(
        model.name, load_ms, dict(model.memory), slowdown, asleep=asleep, wake_ms=max(100.0, load_ms / 6)
    )


def _guess(draw: random.Random, true: TrueModel) -> Knowledge:
    known = draw.random() < 0.5
    return Knowledge(
        Footprint(true.memory, true.memory),
        true.load_ms * draw.uniform(0.3, 3) if known else None,
        draw.uniform(200, 8_000) if known else None,
    )


def _sets(draw: random.Random, models: list[Model], devices: dict[str, Device]) -> Companions:
    """In every second world some requests name companions: sets overlap, and one in ten can never be resident."""
    if draw.random() < 0.5 or len(models) < 2:
        return lambda model: ()
    drawn = [draw.sample(models, draw.choice((2, 2, min(3, len(models))))) for _ in range(24)]
    sets = [each for each in drawn if _fit(each, devices) or draw.random() < 0.1][: draw.randint(1, 4)]
    share = draw.choice((0.1, 0.5, 1.0))

    def beside(model: Model) -> tuple[str, ...]:
        mine = [each for each in sets if model in each]
        if not mine or draw.random() >= share:
            return ()
        return tuple(other.name for other in draw.choice(mine) if other is not model)

    return beside


def _fit(models: list[Model], devices: dict[str, Device]) -> bool:
    grouped = [(m.group, d) for m in models for d in m.memory if m.group is not None]
    sizes = {d: sum(m.memory.get(d, 0) for m in models) for d in devices}
    return len(set(grouped)) == len(grouped) and all(
        size <= (devices[d].capacity or 0) - devices[d].reserve for d, size in sizes.items()
    )


def _traffic(draw: random.Random, world: World, model: Model, beside: Companions) -> None:
    for _ in range(draw.randint(0, 2)):
        lane = draw.choice(sorted(world.catalog.lanes))
        service = draw.choice((draw.uniform(100, 500), draw.uniform(200, 5_000)))
        if draw.random() < 0.6:
            every = draw.uniform(1_000, 20_000)
            when = draw.expovariate(1 / every)
            while when < TRAFFIC_MS:
                work = draw.lognormvariate(0, 0.8) * service
                world.at(when, lambda work=work, lane=lane: _ask(world, model, work, lane, beside(model)))
                when += draw.expovariate(1 / every)
        else:
            for _ in range(draw.randint(1, 4)):
                _loop(world, model, lane, (service, draw.choice((100, 3_000, 20_000))), beside=beside)


def _ask(world: World, model: Model, work: float, lane: str, companions: tuple[str, ...]) -> None:
    world.arrive(model.name, work, lane=lane, companions=companions)


def _loop(
    world: World,
    model: Model,
    lane: str,
    times: tuple[float, float],
    *,
    beside: Companions = lambda _: (),
    until_ms: float = TRAFFIC_MS,
) -> None:
    service, pause = times

    def again(_: object = None) -> None:
        when = world.now + world.random.uniform(0, pause) + 1
        if when < until_ms:
            world.at(when, lambda: _go(when))

    def _go(_: float) -> None:
        work = world.random.lognormvariate(0, 0.8) * service
        world.arrive(model.name, work, lane=lane, then=again, companions=beside(model))

    again()


def _operator(draw: random.Random, world: World, models: list[Model]) -> None:
    """An operator evicts by hand now and then, sometimes by force."""
    for number in range(draw.randint(0, 4)):
        model = draw.choice(models).name
        event = EvictAsked(number, model, draw.random() < 0.3)
        world.at(draw.uniform(0, TROUBLE_MS), lambda event=event: _evict(world, event))


def _fill_disk(draw: random.Random, world: World) -> None:
    """In every second world the room on the disk comes and goes, sometimes faster than the machine is read."""
    if draw.random() < 0.5:
        return

    def turn(fault: str | None) -> None:
        world.disk_fault = fault  # the core is not told: it has to look

    when, longest_ms = draw.uniform(0, TROUBLE_MS / 4), draw.choice((1_500, 1_500, 40_000))
    while when < TROUBLE_MS:
        world.at(when, lambda: turn("No space left on device"))
        when += draw.uniform(100, longest_ms)
        world.at(when, lambda: turn(None))
        when += draw.uniform(100, 6_000)


def _evict(world: World, event: EvictAsked) -> None:
    if event.model in world.catalog.models:  # the driver passes no other names to the core
        world.feed(event)
