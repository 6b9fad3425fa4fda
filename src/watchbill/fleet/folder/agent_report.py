"""Agent reports: what an agent says about itself in each heartbeat (FLEET-06), read once with its types.

A key that this version does not know, such as one more reading of a card, is kept as it was: it is for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from watchbill.fleet.folder.headway import Headway
from watchbill.fleet.folder.values import Fields
from watchbill.plans.task import TaskClass

__all__ = ["HELD", "STOPPED", "ActiveTask", "AgentReport", "HeldWhy", "OnHold"]

#: The constraint of an agent that was told to claim nothing: it says nothing about its device.
HELD = "held"
#: The state of an agent that has left.
STOPPED = "stopped"


class HeldWhy(Enum):
    """Why an agent claims nothing."""

    PERSON = "person"  # until a person lets it go on, also after a new start
    FAILURES = "failures"  # tasks failed on it that run elsewhere: for some time, in this life of the agent
    DISK_FULL = "disk_full"  # a disk that its tasks need takes nothing more: until there is room


@dataclass(frozen=True, slots=True)
class OnHold:
    """An agent claims nothing."""

    why: HeldWhy
    left_ms: int | None = None  # until it goes on by itself; None: until something has changed
    folder: str = ""  # on the disk that is full, as the agent's machine has it

    @classmethod
    def of(cls, fields: Fields) -> "OnHold":
        word = fields.text("why")
        why = next((each for each in HeldWhy if each.value == word), HeldWhy.PERSON)
        return cls(why, fields.optional_whole("left_ms"), fields.text("folder"))

    def fields(self) -> dict[str, object]:
        folder = {"folder": self.folder} if self.folder else {}
        return {"why": self.why.value, "left_ms": self.left_ms, **folder}


@dataclass(frozen=True, slots=True)
class ActiveTask:
    """A task that runs on an agent."""

    task: str = ""
    batch: str = ""
    task_class: TaskClass | None = None  # None for one of a later version
    worker: str = ""
    attempt: int = 0
    vram_mb: int = 0  # as estimated
    peak_vram_mb: int = 0
    peak_rss_mb: int = 0
    pid: int = 0
    started_at: str = ""
    headway: Headway = field(default_factory=Headway)

    @classmethod
    def of(cls, fields: Fields) -> "ActiveTask":
        word = fields.text("task_class")
        return cls(
            fields.text("task_id"), fields.text("batch_id"),
            next((each for each in TaskClass if each.value == word), None), fields.text("worker_id"),
            fields.whole("attempt"), fields.whole("vram_estimate_mb"), fields.whole("peak_vram_mb"),
            fields.whole("peak_rss_mb"), fields.whole("pid"), fields.text("started_at"),
            Headway.of(fields.all().get("progress")),
        )  # fmt: skip

    def fields(self) -> dict[str, object]:
        return {
            "worker_id": self.worker, "task_id": self.task, "batch_id": self.batch, "attempt": self.attempt,
            "task_class": "" if self.task_class is None else self.task_class.value, "task_name": self.task,
            "vram_estimate_mb": self.vram_mb, "peak_vram_mb": self.peak_vram_mb, "peak_rss_mb": self.peak_rss_mb,
            "pid": self.pid, "started_at": self.started_at, "progress": self.headway.fields(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AgentReport:
    """An agent at one moment, by its own word."""

    name: str = ""
    state: str = ""  # hot, cold, stopped
    is_hot: bool = False
    updated_at: str = ""  # for people
    claimed_mb: int = 0
    available_mb: int = 0
    tasks: tuple[ActiveTask, ...] = ()
    completed: int = 0
    failed: int = 0
    constraints: tuple[str, ...] = ()
    hold: OnHold | None = None
    cpu_slots: int | None = None  # None where it does not tell
    sandbox: str = ""
    host: str = ""
    devices: tuple[str, ...] = ()
    model: str = ""  # its own
    models: tuple[str, ...] = ()
    hot_models: tuple[str, ...] = ()
    llm_slots: int = 0
    load_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    readings: Mapping[str, object] = field(default_factory=dict[str, object])  # of its card, and unknown keys

    @classmethod
    def of(cls, fields: Fields) -> "AgentReport":
        """Read a heartbeat of any version. A value of another kind counts as absent."""
        stats, loads = fields.fields("stats"), fields.fields("load_ms")
        tasks = (
            cast("dict[str, object]", each) for each in fields.items("active_tasks") if isinstance(each, dict)
        )
        constraints = fields.texts("constraints")
        return cls(
            fields.text("name"), fields.text("state"), fields.flag("model_loaded"), fields.text("last_updated"),
            max(0, fields.whole("claimed_vram_mb")), max(0, fields.whole("budget_available_mb")),
            tuple(ActiveTask.of(Fields(each)) for each in tasks), stats.whole("tasks_completed"),
            stats.whole("tasks_failed"), constraints, OnHold.of(fields.fields("hold")) if HELD in constraints else None,
            fields.optional_whole("cpu_slots"), fields.text("sandbox"), fields.text("host"), fields.texts("devices"),
            fields.text("model"), fields.texts("models"), fields.texts("hot_models"), fields.whole("llm_slots"),
            {model: loads.whole(model) for model in loads.all()},
            {key: value for key, value in fields.all().items() if key not in _KEYS},
        )  # fmt: skip

    def fields(self) -> dict[str, object]:
        """The keys of FLEET-06."""
        return {
            **self.readings,
            "name": self.name, "state": self.state, "model_loaded": self.is_hot, "last_updated": self.updated_at,
            "claimed_vram_mb": self.claimed_mb, "budget_available_mb": self.available_mb,
            "active_workers": len(self.tasks), "active_tasks": [each.fields() for each in self.tasks],
            "stats": {"tasks_completed": self.completed, "tasks_failed": self.failed},
            "constraints": list(self.constraints), "hold": None if self.hold is None else self.hold.fields(),
            "cpu_slots": self.cpu_slots, "sandbox": self.sandbox, "host": self.host, "devices": list(self.devices),
            "model": self.model, "models": list(self.models), "hot_models": list(self.hot_models),
            "llm_slots": self.llm_slots, "load_ms": dict(self.load_ms),
        }  # fmt: skip


#: The last four keys are those of the pulse.
_KEYS = frozenset(AgentReport().fields()) | {
    "boot_id",
    "pid",
    "start_time",
    "seq",
}
