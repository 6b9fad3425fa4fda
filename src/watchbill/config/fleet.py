"""`[fleet]`, `[coordinator]`, `[agents.NAME]`: the shared folder of plans, and the programs that `up` runs for it.

The tables of coordinator and agents say that there is one: `up` starts it as a program of its own. What they say
becomes options of that program, so one that is started by hand takes the same.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from watchbill import catalog, names
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong
from watchbill.config.models import DeviceNames, ModelName
from watchbill.config.values import Duration, Line, Table, passing, refused
from watchbill.errors import NameRefused
from watchbill.limits import AGENT_NAME_CHARS_MAX, AGENT_SLOTS_MAX, BRAIN_SLOTS, STUCK_AFTER_MS
from watchbill.quoting import quoted
from watchbill.units import Millis

__all__ = ["AgentName", "AgentTable", "CoordinatorTable", "FleetTable", "build_fleet", "check_fleet"]

_DAY_MS = 86_400_000


_SUBJECT = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64}){0,7}", re.ASCII)


def _check_subject(text: str) -> str:
    if not _SUBJECT.fullmatch(text):
        raise refused(
            "must be a subject of NATS", 'use words of letters, digits, _ and -, as "watchbill_fleet"'
        )
    return text


Subject = Annotated[str, AfterValidator(_check_subject)]


class FleetTable(Table):
    """The folder that plans, coordinator and agents share."""

    root: Line | None = Field(
        default=None,
        description="The shared folder, also for `plan`, `coordinator` and `agent`; fleet below the daemon's root "
        "otherwise.",
        examples=["/mnt/shared"],
    )
    keep_complete: Duration = Field(
        default=Millis(7 * _DAY_MS), description="Slips of tasks that ended are deleted after this."
    )
    keep_history: Duration | None = Field(
        default=None,
        description="Batches are reduced to their summary, results and output after this; kept whole otherwise.",
        examples=["90d"],
    )
    nats: Literal["serve", "use"] | None = Field(
        default=None,
        description="Agents without the shared folder, over the brokers of [nats]. serve: this machine has the folder, "
        "and `up` runs its door. use: this machine has none, and its agents go through the door.",
        examples=["serve"],
    )
    subject: Subject = Field(
        default=catalog.FLEET_SUBJECT,
        description="With nats: the subject at which the door answers; one for each shared folder.",
    )


class CoordinatorTable(Table):
    """The coordinator of the shared folder: with this table `up` runs it."""

    slots: int = Field(
        default=BRAIN_SLOTS, ge=1, le=AGENT_SLOTS_MAX,
        description="Tasks with `executor: brain` that run at a time.",
    )  # fmt: skip
    model: ModelName | None = Field(
        default=None,
        description="The model that decides and evaluates: tasks of type decide, and answers with `evaluate`.",
        examples=["qwen14b"],
    )
    stuck_after: Duration = Field(
        default=Millis(STUCK_AFTER_MS),
        ge=60_000,
        description="A task without a sign of progress for this long is aborted; the task's timeout wins.",
    )
    training_samples: bool = Field(
        default=True,
        description="Keep the questions of tasks and the accepted answers in logs/training_samples.jsonl.",
    )


def _read_cards(value: object) -> object:
    """One card, or the cards of a pair."""
    return [value] if isinstance(value, str) else value


Cards = Annotated[
    DeviceNames,
    BeforeValidator(_read_cards),
    WithJsonSchema(
        {"type": ["string", "array"], "items": {"type": "string"}, "description": "a device, or a list"}
    ),
]


class AgentTable(Table):
    """An agent that runs tasks of plans: with this table `up` runs it."""

    cpu_slots: int | None = Field(
        default=None, ge=0, le=AGENT_SLOTS_MAX,
        description="Tasks of class cpu that run at a time; one for each processor otherwise.", examples=[4],
    )  # fmt: skip
    device: Cards | None = Field(
        default=None,
        description="The card whose memory its tasks borrow, or the cards of a pair; none: no tasks of class script.",
        examples=["gpu:1"],
    )
    model: ModelName | None = Field(
        default=None, description="The model that its tasks ask unless they name one.", examples=["qwen7b"]
    )
    port: int | None = Field(
        default=None, ge=1, le=limits.PORT_MAX,
        description="Its own address: requests there are in the lane plans and for its model; any free port otherwise.",
        examples=[11435],
    )  # fmt: skip
    llm_slots: int = Field(
        default=1, ge=1, le=AGENT_SLOTS_MAX, description="Tasks of class llm that run at a time."
    )


#: The coordinator's own agent has this name.
_BRAIN = "brain"


def _check_agent(text: str) -> str:
    names.check_plain_name(text, "an agent")
    if not text.replace("-", "").isalnum() or not text.isascii() or len(text) > AGENT_NAME_CHARS_MAX:
        raise NameRefused(
            f"{quoted(text)} cannot be an agent; use at most 40 letters, digits and -, as in cpu-1"
        )
    return text


AgentName = Annotated[str, passing(_check_agent)]


def check_fleet(
    fleet: FleetTable, coordinator: CoordinatorTable | None, agents: Mapping[str, AgentTable], draft: Draft
) -> Iterator[Wrong]:
    """What is wrong with the shared folder, and with the agents' names, cards and ports."""
    try:
        names.operator_path(draft.base, fleet.root or ".")
    except NameRefused as error:
        yield ("fleet", "root"), error.what, error.hint
    if fleet.nats == "use" and fleet.root is not None:
        yield (
            ("fleet", "root"),
            'means nothing with nats = "use": this machine has no shared folder',
            "remove one",
        )
    if fleet.nats == "use" and coordinator is not None:
        hint = 'remove [coordinator], or set nats = "serve" with the root of the folder'
        yield ("fleet", "nats"), "use means that the folder is elsewhere, and the coordinator needs it", hint
    if _BRAIN in agents:
        hint = "rename it; [coordinator] has the slots of that one"
        yield ("agents", _BRAIN), "is the coordinator's own agent", hint
    yield from _check_cards(agents)
    yield from _check_ports(agents)


def _check_cards(agents: Mapping[str, AgentTable]) -> Iterator[Wrong]:
    """A card has one agent: two would each count its whole budget, and both ask its model at once."""
    owners: dict[str, str] = {}
    for name, table in agents.items():
        for card in (each for each in table.device or () if each.startswith("gpu")):
            if (owner := owners.setdefault(card, name)) != name:
                yield (
                    ("agents", name, "device"),
                    f"{card} belongs to the agent {owner} already",
                    "give every card to one agent, and that one more cpu_slots or llm_slots",
                )


def _check_ports(agents: Mapping[str, AgentTable]) -> Iterator[Wrong]:
    owners: dict[int, str] = {}
    for name, table in agents.items():
        if table.port is not None and (owner := owners.setdefault(table.port, name)) != name:
            yield (
                ("agents", name, "port"),
                f"{table.port} is the port of the agent {owner} already",
                "choose another one, or none for any that is free",
            )


def build_fleet(
    fleet: FleetTable,
    coordinator: CoordinatorTable | None,
    agents: Mapping[str, AgentTable],
    base: Path,
    broker: catalog.NatsRules,
) -> catalog.FleetRules:
    """What `up` runs beside itself."""
    return catalog.FleetRules(
        None if fleet.root is None else str(names.operator_path(base, fleet.root)),
        fleet.keep_complete,
        fleet.keep_history,
        None if coordinator is None else _coordinator(coordinator),
        tuple(_agent(name, table) for name, table in agents.items()),
        fleet.nats,
        fleet.subject,
        broker,
    )


def _coordinator(table: CoordinatorTable) -> catalog.CoordinatorRules:
    return catalog.CoordinatorRules(table.slots, table.stuck_after, table.model, table.training_samples)


def _agent(name: str, table: AgentTable) -> catalog.AgentRules:
    return catalog.AgentRules(
        name, table.cpu_slots, table.device or (), table.model, table.port, table.llm_slots
    )
