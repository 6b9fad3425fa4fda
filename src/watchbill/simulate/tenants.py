"""Tenants: other machines that hold leases of a world, work under them, and are lost in many ways.

A tenant has a clock of its own, minutes away from the world's. It counts the time of a lease by that clock, from before
each question. Questions and answers take time on the way, and none arrives while the tenant is cut off. A tenant that
dies says nothing more; its connections are closed, or stay open in silence.

The laws are judged by what was really heard and when, never by the core's own table of leases.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from watchbill.catalog import Catalog, Model, WorkClass
from watchbill.core import messages as m
from watchbill.core.leases import LEASE_MS, LEASES_OF_PEER_MAX, RENEW_MS
from watchbill.core.running import BOUNDARY_MS
from watchbill.simulate.callers import Caller, CallerState

__all__ = ["Tenant", "Tenants", "has_leases", "schedule_leases"]

#: The maximum number of tenants of a world, and of the leases that one asks for.
TENANTS_MAX = 3
LEASES_MAX = 20
#: The share of worlds without leases.
LEASELESS = 0.67
#: How long a message is on its way.
DELAY_MS = (1.0, 400.0)
#: How far clocks are apart.
CLOCKS_APART_MS = 600_000.0
#: The share of requests that another site may serve.
ELSEWHERE = 0.3
#: The share of requests whose tenant may wait only for so long.
HURRIED, HURRY_MS = 0.5, (1_000.0, 120_000.0)
#: The number of the first lease's command; loans are below.
COMMANDS_FROM = 100_000
#: The time that the core may take to notice, and a cut to be carried out.
SLACK_MS = 2_000
#: An answer stops at most this long after it was told to.
YIELDS_MS = BOUNDARY_MS + SLACK_MS


@dataclass(slots=True)
class Tenant:
    """Another machine."""

    name: str
    clock_ms: float  # what its clock shows when the world's shows 0
    cuts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    lives: bool = True

    def is_cut_off(self, now: float) -> bool:
        return any(begin <= now < end for begin, end in self.cuts)


@dataclass(slots=True)
class Tenancy:
    """One lease, as its holder and the world know it."""

    id: str
    tenant: Tenant
    model: str
    asked_ms: float  # by the holder's clock: when the last question was asked that was answered
    heard_at: float | None = None  # by the world: when the last question arrived, since the grant
    is_held: bool = False  # its holder knows of the grant
    is_over: bool = False  # given back, or its holder was told that there is none

    def is_sure(self, own_ms: float) -> bool:
        """Whether its holder counts it as held."""
        return self.is_held and not self.is_over and self.tenant.lives and own_ms < self.asked_ms + LEASE_MS


class Landlord(Protocol):
    """The part of the world that grants leases."""

    @property
    def now(self) -> float: ...

    catalog: Catalog
    declared: dict[str, Model]  # every model that was ever in the config
    open: dict[str, Caller]
    callers: dict[str, Caller]

    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def feed(self, event: m.Event) -> None: ...
    def leave(self, caller: Caller) -> None: ...
    def arrive(
        self,
        model: str,
        work_ms: float,
        *,
        lane: str,
        lease: str | None = None,
        is_elsewhere: bool = False,
        deadline_ms: int | None = None,
    ) -> Caller: ...


class Tenants:
    """All leases of a world."""

    def __init__(self, world: Landlord, say: Callable[[str, str], None]) -> None:
        self._world, self._say = world, say
        self.all: dict[int, Tenancy] = {}  # command -> its lease
        self._by_id: dict[str, Tenancy] = {}
        self._draw = random.Random("leases")
        self._elsewhere = random.Random("elsewhere")
        self._hurry = random.Random("hurry")
        self._paused_since: float | None = None  # a person works here

    # ------------------------------------------------------------------ what tenants do

    def ask(self, tenant: Tenant, model: str, draw: random.Random) -> Tenancy:
        """A tenant asks for a lease."""
        self._draw = draw
        command = COMMANDS_FROM + len(self.all)
        tenancy = Tenancy(f"lease-{command}", tenant, model, self._own(tenant))
        self.all[command] = self._by_id[tenancy.id] = tenancy
        self._send(tenant, lambda: self._world.feed(m.LeaseAsked(command, tenancy.id, tenant.name, model)))
        return tenancy

    def replied(self, reply: m.Reply) -> None:
        """Notes a lease that was granted. A reply to another command is none of ours."""
        tenancy = self.all.get(reply.command)
        if tenancy is None:
            return
        if tenancy.heard_at is not None:
            self._say("a lease was granted twice", tenancy.id)
        tenancy.heard_at = self._world.now
        self._judge_count(tenancy.tenant)
        self._send(tenancy.tenant, lambda: self._learn(tenancy))

    def give_back(self, tenancy: Tenancy) -> None:
        """The holder needs it no more."""
        if tenancy.is_sure(self._own(tenancy.tenant)):
            tenancy.is_over = True
            self._send(tenancy.tenant, lambda: self._world.feed(m.LeaseEnded(tenancy.id)))

    def die(self, tenant: Tenant, *, quietly: bool) -> None:
        """A tenant is gone. Its connections are closed by its kernel, unless it is `quietly` gone."""
        tenant.lives = False
        if not quietly:
            for caller in list(self._world.open.values()):
                if self._tenant_of(caller) is tenant:
                    self._world.leave(caller)

    def work(self, tenancy: Tenancy, work_ms: float) -> None:
        """The holder sends a request, if it counts the lease as held."""
        if tenancy.is_sure(self._own(tenancy.tenant)):
            self._send(tenancy.tenant, lambda: self._arrive(tenancy, work_ms))

    def _arrive(self, tenancy: Tenancy, work_ms: float) -> None:
        now = self._world.now
        is_sure = tenancy.is_sure(self._own(tenancy.tenant))
        heard_at = -float("inf") if tenancy.heard_at is None else tenancy.heard_at
        is_elsewhere = self._elsewhere.random() < ELSEWHERE
        deadline_ms = round(self._hurry.uniform(*HURRY_MS)) if self._hurry.random() < HURRIED else None
        caller = self._world.arrive(
            tenancy.model,
            work_ms,
            lane="leased",
            lease=tenancy.id,
            is_elsewhere=is_elsewhere,
            deadline_ms=deadline_ms,
        )
        if is_sure and caller.outcome is m.Refusal.NO_LEASE:
            self._say("a lease that its holder counts as held is over", f"{tenancy.id} {caller.request.id}")
        if now > heard_at + LEASE_MS + SLACK_MS and caller.outcome not in (
            m.Refusal.NO_LEASE,
            m.Refusal.MODEL_NOT_FOUND,
        ):
            self._say("a request under a lease that is over", f"{tenancy.id} {caller.request.id}")

    def _learn(self, tenancy: Tenancy) -> None:
        tenancy.is_held = True
        self._world.at(self._world.now + RENEW_MS, lambda: self._renew(tenancy))

    def _renew(self, tenancy: Tenancy) -> None:
        tenant, asked_ms = tenancy.tenant, self._own(tenancy.tenant)
        if not tenancy.is_sure(asked_ms):
            return
        self._send(tenant, lambda: self._hear(tenancy, asked_ms))
        self._world.at(self._world.now + RENEW_MS, lambda: self._renew(tenancy))

    def _hear(self, tenancy: Tenancy, asked_ms: float) -> None:
        """A renewal arrives."""
        if tenancy.heard_at is None or self._world.now >= tenancy.heard_at + LEASE_MS:
            self._send(tenancy.tenant, lambda: self._lose(tenancy))
            return
        self._world.feed(m.LeaseRenewed(tenancy.id))
        tenancy.heard_at = self._world.now
        self._send(tenancy.tenant, lambda: self._count_from(tenancy, asked_ms))

    @staticmethod
    def _lose(tenancy: Tenancy) -> None:
        tenancy.is_over = True

    @staticmethod
    def _count_from(tenancy: Tenancy, asked_ms: float) -> None:
        tenancy.asked_ms = max(tenancy.asked_ms, asked_ms)

    def _own(self, tenant: Tenant) -> float:
        """What a tenant's clock shows."""
        return tenant.clock_ms + self._world.now

    def _send(self, tenant: Tenant, arrive: Callable[[], None]) -> None:
        """Carries a message, either way; it is lost where the tenant is cut off at either end of its way."""
        world = self._world
        is_lost = tenant.is_cut_off(world.now)

        def deliver() -> None:
            if not is_lost and not tenant.is_cut_off(world.now):
                arrive()

        world.at(world.now + self._draw.uniform(*DELAY_MS), deliver)

    # ------------------------------------------------------------------ the laws

    def read(self, note: m.Note) -> None:
        """Follows in the journal whether a person works here."""
        if note.event is m.JournalEvent.LEASE_REVOKED:
            self._paused_since = self._world.now
            if not any(map(self._may_be_person_here, self._world.callers.values())):
                self._say("leased work made way for nobody here", "")
        elif note.event is m.JournalEvent.LEASE_RESTORED:
            self._paused_since = None

    @property
    def is_paused(self) -> bool:
        """Whether leased work rests."""
        return self._paused_since is not None

    def _may_be_person_here(self, caller: Caller) -> bool:
        """Whether it is a person who waits, is served or was refused now, and not at another machine."""
        is_over = caller.state is CallerState.ENDED and caller.ended_at != self._world.now
        if caller.request.work_class is not WorkClass.INTERACTIVE or is_over:
            return False
        is_alone = caller.state is CallerState.RUNNING and not caller.request.companions
        return not is_alone or self._world.declared[caller.served_by].site is None

    def granting(self, caller: Caller) -> None:
        """Judges a grant of a leased request."""
        if self._paused_since is not None and caller.request.lease is not None:
            self._say("a leased request started while a person works here", caller.request.id)

    def look(self, open_callers: Iterable[Caller]) -> None:
        """Judges what is open under leases."""
        now = self._world.now
        for caller in open_callers:
            tenancy = self._by_id.get(caller.request.lease or "")
            if tenancy is None or tenancy.heard_at is None:
                continue
            if now > tenancy.heard_at + LEASE_MS + SLACK_MS:
                self._say("a lease outlives its time", f"{tenancy.id} {caller.request.id}")
            may_leave = caller.request.is_elsewhere and not caller.has_words
            if caller.state is CallerState.WAITING and may_leave and self.is_paused:
                self._say("waits for a person where another site may serve it", caller.request.id)
            if caller.state is CallerState.RUNNING and self._must_have_yielded(caller):
                self._say("leased work goes on while a person works here", caller.request.id)

    def _must_have_yielded(self, caller: Caller) -> bool:
        since = self._paused_since
        if since is None or caller.is_indivisible:
            return False
        return self._world.now > max(since, caller.granted_at) + YIELDS_MS

    def _judge_count(self, tenant: Tenant) -> None:
        now = self._world.now
        held = [
            each.id
            for each in self.all.values()
            if each.tenant is tenant and not each.is_over and each.heard_at is not None
            and now < each.heard_at + LEASE_MS
        ]  # fmt: skip
        if len(held) > LEASES_OF_PEER_MAX:
            self._say("a peer holds too many leases", f"{tenant.name}: {len(held)}")

    def _tenant_of(self, caller: Caller) -> Tenant | None:
        tenancy = self._by_id.get(caller.request.lease or "")
        return None if tenancy is None else tenancy.tenant


def has_leases(seed: int) -> bool:
    """Whether other machines hold leases in the world of this seed: in every third one."""
    return random.Random(f"leases {seed}").random() >= LEASELESS


def schedule_leases(seed: int, world: Landlord, tenants: Tenants, until_ms: float) -> None:
    """Lets other machines ask for leases, use them, and vanish."""
    draw = random.Random(f"tenants {seed}")
    lendable = [x.name for x in world.catalog.models.values() if x.site is None and not x.shared]
    if not has_leases(seed) or not lendable:
        return
    for number in range(draw.randint(1, TENANTS_MAX)):
        tenant = Tenant(f"peer-{number}", draw.uniform(-CLOCKS_APART_MS, CLOCKS_APART_MS))
        for _ in range(draw.randint(0, 3)):
            begin = draw.uniform(0, until_ms)
            tenant.cuts.append((begin, begin + draw.choice((500.0, 15_000.0, 90_000.0))))
        for _ in range(draw.choice((1, 2, 4, LEASES_MAX))):
            # Most ask before the first person comes: afterwards they would be declined.
            asks_at = draw.uniform(0, draw.choice((2_000.0, 2_000.0, until_ms)))
            world.at(asks_at, _lease(draw, world, tenants, tenant, draw.choice(lendable)))
        if draw.random() < 0.4:
            quietly = draw.random() < 0.5
            world.at(draw.uniform(0, until_ms), lambda t=tenant, q=quietly: tenants.die(t, quietly=q))


def _lease(
    draw: random.Random, world: Landlord, tenants: Tenants, tenant: Tenant, model: str
) -> Callable[[], None]:
    """A lease, the requests under it, and perhaps its end."""
    every_ms, service_ms = draw.uniform(2_000, 20_000), draw.choice((500.0, 4_000.0, 30_000.0))
    count, is_given_back = draw.randint(1, 8), draw.random() < 0.5

    def ask() -> None:
        if not tenant.lives or model not in world.catalog.models:
            return
        tenancy = tenants.ask(tenant, model, draw)
        for number in range(1, count + 1):
            work_ms = draw.uniform(0.2, 2.0) * service_ms
            world.at(world.now + number * every_ms, lambda w=work_ms: tenants.work(tenancy, w))
        if is_given_back:
            world.at(world.now + (count + 2) * every_ms, lambda: tenants.give_back(tenancy))

    return ask
