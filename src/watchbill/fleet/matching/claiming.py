"""Claiming: may this agent take this slip now? Pure.

An agent decides by the name of a slip and its own standing. The two tables of FLEET-04 and FLEET-05 together:

    healthy, hot            meta  llm  cpu             the model fills the card
    healthy, cold           meta  llm  cpu  script
    constrained             meta       cpu

Then the amounts: `llm` takes the whole budget, so it needs a card without other GPU tasks and a free slot; `script`
takes its MiB; `cpu` takes a slot of its own count, so that it runs beside an `llm` task; `meta` takes nothing and is
for the agent that it names, or for any with a model where it names none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from watchbill.fleet.folder.slips import Headline, asks_for_model, headline_of
from watchbill.plans.task import TaskClass

__all__ = ["Health", "Refusal", "Standing", "choose", "is_for", "may_claim", "needs_heat"]


class Health(Enum):
    """What a device can take."""

    HEALTHY = "healthy"
    CONSTRAINED = "constrained"  # too hot, too full or at its power limit


class Refusal(Enum):
    """Why an agent leaves a slip in the queue."""

    NOT_A_SLIP = "not_a_slip"
    ADDRESSED_ELSEWHERE = "addressed_elsewhere"
    NOT_ADDRESSED = "not_addressed"  # the agent takes only what is addressed to it
    HELD = "held"
    NO_DEVICE = "no_device"
    CONSTRAINED = "constrained"
    HOT = "hot"  # the model fills the card
    OTHER_MODEL = "other_model"
    NO_SLOT = "no_slot"
    NO_MEMORY = "no_memory"


@dataclass(frozen=True, slots=True)
class Standing:
    """An agent as far as a claim depends on it."""

    agent: str
    cpu_slots_free: int
    is_held: bool = False
    takes_one: bool = False  # on probation after a hold: one task at a time
    only_addressed: bool = False
    has_device: bool = False
    is_pair: bool = False  # of cards: its slips' bodies may demand that
    health: Health = Health.HEALTHY
    is_hot: bool = False
    own_model: str = ""  # that of tasks which name none
    models: tuple[str, ...] = ()  # that the agent's device can serve
    hot_models: tuple[str, ...] = ()  # of these, those in its memory
    llm_slots_free: int = 0
    gpu_tasks: int = 0  # running on the device
    llm_tasks: int = 0  # of these
    vram_mb_free: int = 0  # of the budget

    def after(self, headline: Headline) -> "Standing":
        """The standing once a slip of this name is claimed as well."""
        match headline.task_class:
            case TaskClass.META:
                return self
            case TaskClass.CPU:
                return replace(self, cpu_slots_free=self.cpu_slots_free - 1)
            case TaskClass.SCRIPT:
                return replace(
                    self, gpu_tasks=self.gpu_tasks + 1, vram_mb_free=self.vram_mb_free - headline.vram_mb
                )
            case TaskClass.LLM:
                return replace(
                    self, gpu_tasks=self.gpu_tasks + 1, llm_tasks=self.llm_tasks + 1,
                    llm_slots_free=self.llm_slots_free - 1,
                )  # fmt: skip


def may_claim(name: str, standing: Standing) -> Refusal | None:
    """Why this slip is not for this agent now; None where the agent may claim it."""
    headline = headline_of(name)
    if headline is None:
        return Refusal.NOT_A_SLIP
    elsewhere = _goes_elsewhere(headline, standing.agent, only_addressed=standing.only_addressed)
    if elsewhere is not None:
        return elsewhere
    # A held agent still loads and unloads when it is told to: only so can its memory be had back.
    if standing.is_held and headline.task_class is not TaskClass.META:
        return Refusal.HELD
    return _fits(name, headline, standing)


def is_for(name: str, agent: str, *, only_addressed: bool) -> bool:
    """Whether this agent could ever claim a slip, as far as the addressee tells."""
    headline = headline_of(name)
    return headline is not None and _goes_elsewhere(headline, agent, only_addressed=only_addressed) is None


def _goes_elsewhere(headline: Headline, agent: str, *, only_addressed: bool) -> Refusal | None:
    if headline.addressee and headline.addressee != agent:
        return Refusal.ADDRESSED_ELSEWHERE
    return Refusal.NOT_ADDRESSED if not headline.addressee and only_addressed else None


def _fits(name: str, headline: Headline, standing: Standing) -> Refusal | None:
    match headline.task_class:
        case TaskClass.META:
            return None if standing.own_model or headline.addressee else Refusal.OTHER_MODEL
        case TaskClass.CPU:
            return Refusal.NO_SLOT if standing.cpu_slots_free <= 0 else None
        case TaskClass.SCRIPT:
            return _on_device(standing) or _script(headline, standing)
        case TaskClass.LLM:
            return _on_device(standing) or _llm(name, standing)


def _on_device(standing: Standing) -> Refusal | None:
    if not standing.has_device:
        return Refusal.NO_DEVICE
    return Refusal.CONSTRAINED if standing.health is Health.CONSTRAINED else None


def _script(headline: Headline, standing: Standing) -> Refusal | None:
    if standing.is_hot:
        return Refusal.HOT
    return Refusal.NO_MEMORY if standing.llm_tasks or headline.vram_mb > standing.vram_mb_free else None


def _llm(name: str, standing: Standing) -> Refusal | None:
    # A slip that names no model asks for the agent's own.
    is_served = (
        bool(standing.own_model) if asks_for_model(name, ()) else asks_for_model(name, standing.models)
    )
    if not is_served:
        return Refusal.OTHER_MODEL
    if standing.gpu_tasks > standing.llm_tasks:
        return Refusal.NO_MEMORY
    return Refusal.NO_SLOT if standing.llm_slots_free <= 0 else None


def needs_heat(name: str, standing: Standing) -> bool:
    """Whether an agent may claim a slip and would have to load a model for it first. One that is for this agent alone
    does not wait for another."""
    headline = headline_of(name)
    if headline is None or headline.task_class is not TaskClass.LLM or headline.addressee:
        return False
    is_hot = standing.is_hot if asks_for_model(name, ()) else asks_for_model(name, standing.hot_models)
    return not is_hot and may_claim(name, standing) is None


def claimed_ahead(held: Iterable[str], cpu_slots: int) -> frozenset[str]:
    """The slips in the hands of a dead agent that had hardly started: those of class cpu behind the first of each slot.

    Agents start in the order of their claims. A wrong guess does no harm: a loss is then not counted, or counted.
    """
    headlines = ((name, headline_of(name)) for name in sorted(held))
    of_cpu = [name for name, found in headlines if found is not None and found.task_class is TaskClass.CPU]
    return frozenset(of_cpu[cpu_slots:]) if cpu_slots > 0 else frozenset()


def choose(offered: Iterable[str], standing: Standing, declined: Iterable[str] = ()) -> list[str]:
    """The slips to claim now, in the order of the queue, as if every claim succeeded."""
    skipped = frozenset(declined)
    full: set[TaskClass] = set()  # without a slot for one slip of a class there is none for another
    chosen: list[str] = []
    for name in offered:
        headline = headline_of(name)
        if headline is None or headline.task_class in full or name in skipped:
            continue
        refusal = may_claim(name, standing)
        if refusal is None:
            standing = standing.after(headline)
            chosen.append(name)
            if standing.takes_one:
                break
        elif refusal is Refusal.NO_SLOT:
            full.add(headline.task_class)
    return chosen
