"""The fleet at one moment, from its shared folder alone: coordinator, agents, and how far each batch is.

For people on any machine that mounts the folder, and for the daemon's page. Changes nothing. Standard library only.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from watchbill.errors import OursError
from watchbill.files.host import boot_id
from watchbill.fleet import limits
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import OnHold
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, heartbeats, kernel_says
from watchbill.fleet.folder.requests import has_request
from watchbill.fleet.folder.values import fields_at
from watchbill.fleet.permissions.rules import SandboxRules
from watchbill.fleet.permissions.ruling import load_book
from watchbill.fleet.state.ledger import Ledger
from watchbill.fleet.state.reading import BatchPlace, Follower, batches_of, refusal_of, was_cancelled_unopened
from watchbill.fleet.views.progress import BatchProgress, BatchState, TaskStage, progress_of
from watchbill.fleet.views.room import Shortage, shortage_of

__all__ = [
    "AgentView", "BatchView", "CoordinatorView", "Overview", "agents_of", "coordinator_of", "limits_fields", "overview",
    "overview_fields", "short_fields", "shortage_field",
]  # fmt: skip

# ------------------------------------------------------------------ coordinator and agents


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """The coordinator of the folder, by its own record."""

    host: str = ""
    pid: int = 0
    epoch: int = 0
    #: Known to be dead, or there never was one; a coordinator of another machine may be alive.
    is_dead: bool = True
    silent_ms: int = 0  # since its record was last written, by this machine's clock

    @property
    def is_here(self) -> bool:
        """Whether it works, as far as a single look can tell."""
        return not self.is_dead and self.silent_ms <= limits.COORDINATOR_STIRS_MS

    def fields(self) -> dict[str, object]:
        return {
            "host": self.host, "pid": self.pid, "epoch": self.epoch, "is_dead": self.is_dead,
            "silent_ms": self.silent_ms,
        }  # fmt: skip


def coordinator_of(disk: FolderDisk) -> CoordinatorView:
    """The present coordinator, as far as a single look can tell."""
    fields = fields_at(disk, places.COORDINATOR)
    if fields is None:
        return CoordinatorView()
    pulse = Pulse.of(fields)
    is_dead, silent_ms = _is_known_dead(pulse), disk.age_ms(places.COORDINATOR)
    return CoordinatorView(fields.text("host"), pulse.pid, fields.whole("epoch"), is_dead, silent_ms)


def _is_known_dead(pulse: Pulse) -> bool:
    return pulse.boot_id == boot_id() and not kernel_says(pulse.pid, pulse.start_time)


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as its last heartbeat shows it."""

    name: str
    state: str
    running: int
    is_dead: bool
    constraints: tuple[str, ...]
    sandbox: str = ""
    hold: OnHold | None = None
    silent_ms: int = 0  # since its heartbeat was last written, by this machine's clock

    def fields(self) -> dict[str, object]:
        return {
            "state": self.state,
            "running": self.running,
            "is_dead": self.is_dead,
            "constraints": list(self.constraints),
            "sandbox": self.sandbox,
            "hold": None if self.hold is None else self.hold.fields(),
            "silent_ms": self.silent_ms,
        }


def agents_of(disk: FolderDisk) -> list[AgentView]:
    return [_agent(disk, name, each) for name, each in heartbeats(disk).items()]


def _agent(disk: FolderDisk, name: str, heartbeat: Heartbeat) -> AgentView:
    report = heartbeat.report
    return AgentView(
        name, report.state, len(report.tasks), _is_known_dead(heartbeat.pulse), report.constraints, report.sandbox,
        report.hold, disk.age_ms(places.heartbeat_path(name)),
    )  # fmt: skip


# ------------------------------------------------------------------ one batch


class BatchView:
    """One batch, read repeatedly."""

    def __init__(self, disk: FolderDisk, place: BatchPlace) -> None:
        self._disk = disk
        self._place = place
        self._follower = Follower(disk, place)

    def look(self) -> BatchProgress:
        """Its present progress."""
        # Read before the journal: the request is in one of the two.
        is_to_go_on = has_request(self._disk, self._place.batch)
        ledger = self._follower.read()
        if ledger.is_open:
            living = {name: beat for name, beat in heartbeats(self._disk).items() if beat.may_live}
            found = progress_of(
                ledger,
                Board(self._disk).look_around(),
                living,
                is_coordinated=coordinator_of(self._disk).is_here,
            )
            return replace(found, state=BatchState.RUNNING) if is_to_go_on else found
        found = _without_journal(self._disk, self._place)
        if found.state is BatchState.NOT_SUBMITTED and self._follower.read().is_open:
            return self.look()  # opened between the two looks
        return found

    def look_or_say(self) -> BatchProgress:
        """The same among other batches: one that cannot be read hides none of them."""
        try:
            return self.look()
        except OursError as error:
            return BatchProgress(
                self._place.batch, self._place.plan, BatchState.UNREADABLE, {}, [], why=str(error)
            )

    @property
    def ledger(self) -> Ledger:
        """What the last look has read."""
        return self._follower.ledger

    @property
    def root(self) -> Path:
        """The shared folder."""
        return self._disk.root

    @property
    def disk(self) -> FolderDisk:
        """The way to read it."""
        return self._disk

    @property
    def limits(self) -> SandboxRules:
        """What a task of the batch may have at most."""
        return load_book(self.root, self._place.plan).sandbox

    @property
    def refusal(self) -> str:
        """Why it was refused; "" where it was not."""
        return refusal_of(self._disk, f"{self._place.batch}.json")


def _without_journal(disk: FolderDisk, place: BatchPlace) -> BatchProgress:
    """A batch that no coordinator has opened, or that retention has reduced to its summary."""
    refusal = refusal_of(disk, f"{place.batch}.json")
    fields = fields_at(disk, f"{place.folder}/RUN_SUMMARY.json", limits.SLIP_BYTES_MAX)
    if fields is None:
        state = BatchState.REFUSED if refusal else _submitted(disk, place.batch)
        if was_cancelled_unopened(disk, place.batch):
            state = BatchState.CANCELLED
        return BatchProgress(place.batch, place.plan, state, {}, [])
    listed = fields.mapping("counts")
    counts = {
        stage: value for stage in TaskStage if isinstance(value := listed.get(stage.value), int) and value
    }
    outcome = fields.text("outcome")
    state = next((each for each in BatchState if each.value == outcome), BatchState.FAILED)
    if fields.flag("is_cancelled"):
        state = BatchState.CANCELLED
    return BatchProgress(place.batch, place.plan, state, counts, [])


def _submitted(disk: FolderDisk, batch: str) -> BatchState:
    """Whether a batch without a journal waits for a coordinator, or was never submitted as a whole."""
    # The inbox first: a coordinator moves the file from there to the active ones.
    is_there = any(
        batch in places.batches_shown(disk.names(folder)) for folder in (places.INBOX, places.ACTIVE)
    )
    return BatchState.SUBMITTED if is_there else BatchState.NOT_SUBMITTED


# ------------------------------------------------------------------ all of them


@dataclass(frozen=True, slots=True)
class Overview:
    """The fleet at one moment."""

    root: Path
    coordinator: CoordinatorView
    agents: list[AgentView]
    batches: list[BatchProgress]
    limits: SandboxRules  # of every task; those of a plan may be tighter
    shortage: Shortage | None = None  # why the folder takes no more files


def overview(root: Path, disk: FolderDisk, batches_max: int) -> Overview:
    """Coordinator, agents, and the batches that run and the last ones that ended."""
    places_found = batches_of(disk)
    active = [each for each in places_found if each.is_active or each.is_submitted]
    rest = [each for each in places_found if each not in active][-batches_max:]
    progress = [BatchView(disk, each).look_or_say() for each in sorted([*active, *rest])]
    return Overview(
        root, coordinator_of(disk), agents_of(disk), progress, load_book(root, "").sandbox,
        shortage_of(root),
    )  # fmt: skip


def overview_fields(found: Overview) -> dict[str, object]:
    """Its JSON."""
    return {
        "root": str(found.root), "coordinator": found.coordinator.fields(),
        "agents": {each.name: each.fields() for each in found.agents}, "limits": limits_fields(found.limits),
        "batches": [short_fields(each) for each in found.batches],
        "shortage": shortage_field(found.shortage),
    }  # fmt: skip


def shortage_field(shortage: Shortage | None) -> str | None:
    """Why the folder takes no more files, in JSON; null where it takes them."""
    return None if shortage is None else shortage.name.lower()


def limits_fields(rules: SandboxRules) -> dict[str, object]:
    """The limits of a task as JSON; null where there is none."""
    return {"memory_bytes": rules.memory_bytes or None, "processes": rules.processes or None}


def short_fields(progress: BatchProgress) -> dict[str, object]:
    """Its JSON without the tasks."""
    return {key: value for key, value in progress.fields().items() if key != "tasks"}
