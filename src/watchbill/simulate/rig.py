"""A rig in virtual time: the real coordinator, and agents that claim as real ones do and only pretend to work.

The coordinator, the board, the tables of claiming, heat and policy are those of a real fleet; the shared folder is in
memory. A task takes the time that the caller says, and succeeds. A model that is not in memory is loaded first, one
after the other on a host. There is no chat meanwhile, nothing fails, and neither processes nor files take time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from watchbill.errors import OursError
from watchbill.fleet import limits
from watchbill.fleet.coordinator.loop import Coordinator, Turn
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import ActiveTask, AgentReport
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, Watcher, write_heartbeat
from watchbill.fleet.folder.results import End, Result, ResultLog
from watchbill.fleet.folder.slips import Headline, Slip, headline_of
from watchbill.fleet.folder.values import fields_of
from watchbill.fleet.matching.claiming import Standing, choose, needs_heat
from watchbill.names import file_stem
from watchbill.plans.batch import ExecutePlan
from watchbill.plans.task import MetaCommand, TaskClass
from watchbill.simulate.agenda import Agenda
from watchbill.simulate.shared_folder import FolderInMemory

__all__ = ["Played", "Rig", "Share", "SimAgent", "WorkOf"]

#: The coordinator looks at its agents each second; a tick has to come after that.
_TICK_MS = 1_001
#: How long a model takes to leave its card.
_UNLOAD_MS = 500
_BOOT = "simulated"
#: No simulated task is stuck.
_NEVER_MS = 10**15
_ON_GPU = (TaskClass.SCRIPT, TaskClass.LLM)
#: What the coordinator's model says to every answer.
_SCORE = '{"score": 5, "reason": ""}'


@dataclass(frozen=True, slots=True)
class SimAgent:
    """An agent as the simulator needs it."""

    name: str
    cpu_slots: int
    devices: tuple[str, ...] = ()
    budget_mb: int = 0
    own_model: str = ""
    models: tuple[str, ...] = ()
    llm_slots: int = 0
    host: str = ""  # agents of one host load one after the other
    load_ms: int = 0
    hot: tuple[str, ...] = ()  # models in its memory when the run begins


class WorkOf(Protocol):
    """How long tasks take."""

    def __call__(self, template: str, items: int) -> int:
        """The time of the next run of a task with so many items, in ms; `template` is "" for an evaluation."""
        ...


@dataclass(slots=True)
class Share:
    """What one agent did."""

    tasks: int = 0
    work_ms: int = 0  # of all its tasks, those that ran side by side counted each
    busy_ms: int = 0  # while at least one ran
    loads: int = 0


@dataclass(frozen=True, slots=True)
class Played:
    """How a batch went."""

    elapsed_ms: int
    turns: int
    entries: int  # lines of the journal: each is a decision
    shares: Mapping[str, Share]
    tasks: Mapping[str, int]  # template -> tasks
    work_ms: Mapping[str, int]  # template -> time of all its tasks


@dataclass(slots=True)
class _Working:
    """A simulated agent at work."""

    about: SimAgent
    log: ResultLog
    running: dict[str, Headline] = field(default_factory=dict[str, Headline])  # slip -> what its name says
    hot: tuple[str, ...] = ()
    coming: dict[str, float] = field(default_factory=dict[str, float])  # model -> when it is loaded
    cold_until: dict[str, float] = field(default_factory=dict[str, float])
    share: Share = field(default_factory=Share)
    busy_since: float = 0.0
    seq: int = 0
    beat_at: float = 0.0  # when its heartbeat is due though nothing has changed

    def standing(self) -> Standing:
        """The agent as a claim sees it."""
        about, running = self.about, self.running.values()
        classes = [each.task_class for each in running]
        return Standing(
            about.name,
            cpu_slots_free=about.cpu_slots - classes.count(TaskClass.CPU),
            only_addressed=about.name == places.BRAIN,
            has_device=bool(about.devices) or bool(about.models),
            is_hot=self._is_hot,
            own_model=about.own_model,
            models=about.models,
            hot_models=self.hot,
            llm_slots_free=about.llm_slots - classes.count(TaskClass.LLM),
            gpu_tasks=sum(each in _ON_GPU for each in classes),
            llm_tasks=classes.count(TaskClass.LLM),
            vram_mb_free=about.budget_mb - sum(each.vram_mb for each in running),
        )

    @property
    def _is_hot(self) -> bool:
        return self.about.own_model in self.hot if self.about.own_model else bool(self.hot)

    def heartbeat(self) -> Heartbeat:
        """The keys of a heartbeat that decisions read."""
        about = self.about
        claimed = sum(each.vram_mb for each in self.running.values())
        budget = about.budget_mb if about.devices else about.cpu_slots * 1024
        self.seq += 1
        return Heartbeat(
            Pulse(_BOOT, 1, 1, self.seq),
            AgentReport(
                about.name, claimed_mb=claimed, available_mb=max(0, budget - claimed),
                tasks=tuple(ActiveTask(task_class=each.task_class) for each in self.running.values()),
                cpu_slots=about.cpu_slots, host=about.host, devices=about.devices, model=about.own_model,
                models=about.models, hot_models=self.hot, llm_slots=about.llm_slots,
            ),
        )  # fmt: skip


class Rig:
    """Agents, a coordinator and one batch."""

    def __init__(self, agents: list[SimAgent], work_of: WorkOf) -> None:
        self._agenda, self._disk = Agenda(), FolderInMemory()
        self._board = Board(self._disk)
        self._work_of = work_of
        self._brain = Coordinator(
            self._disk, Watcher(_BOOT, lambda _pid, _started: True), Pulse(_BOOT, 1, 1, 0), host=_BOOT,
            wall_ms=lambda: int(self._agenda.now), stuck_after_ms=_NEVER_MS, summary_every_ms=_NEVER_MS,
        )  # fmt: skip
        self._agents: list[_Working] = []
        for about in agents:
            self._board.join(about.name)
            self._agents.append(_Working(about, ResultLog(self._disk, about.name), hot=about.hot))
        self._bus_free_at: dict[str, float] = {}  # host -> when its bus is free
        self._tasks: dict[str, int] = {}
        self._work_ms: dict[str, int] = {}
        self._turns = self._entries = self._batches = 0
        self._is_turn_due = False
        self._changed: dict[str, _Working] = {}  # agents whose heartbeat is to be shown anew
        self._tick_no = 0

    def put(self, path: str, content: bytes) -> None:
        """Put a file of a plan into the shared folder."""
        self._disk.put(path, content)

    def play(self, order: ExecutePlan) -> Played:
        """Run a batch to its end. Raises OursError for a plan that is refused, and for one that cannot go on."""
        self._changed = {agent.about.name: agent for agent in self._agents}
        self._show_heartbeats()
        self._brain.start(0)
        self._disk.put(f"{places.INBOX}/{order.batch}.json", order.encode())
        self._call_turn()
        while self._agenda.has_before(_NEVER_MS):
            self._agenda.step()
            if not self._batches and self._turns:
                break
        self._brain.close()
        self._refuse_half_a_run(order)
        return Played(
            int(self._agenda.now), self._turns, self._entries,
            {each.about.name: each.share for each in self._agents}, self._tasks, self._work_ms,
        )  # fmt: skip

    def _refuse_half_a_run(self, order: ExecutePlan) -> None:
        refused = f"{places.REFUSED}/{order.batch}.json"
        if order.batch + ".json" in self._disk.names(places.REFUSED):
            raise OursError(fields_of(self._disk.read(refused, limits.FLEET_FILE_BYTES_MAX)).text("error"))
        assert not self._disk.names(places.INBOX), "a plan was neither opened nor refused"
        if self._batches:
            waiting = [offer.task for name in self._board.offered() if (offer := self._brain.offer_of(name))]
            raise OursError(
                f"these agents never run {waiting[0] if waiting else 'some of its tasks'}",
                hint="name other agents with --agents",
            )

    # ------------------------------------------------------------ the coordinator

    def _call_turn(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._agenda.at(self._agenda.now, self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        self._show_heartbeats()
        turn = self._brain.turn(int(self._agenda.now))
        self._turns, self._entries, self._batches = (
            self._turns + 1,
            self._entries + turn.entries,
            turn.batches,
        )
        has_claimed = self._claim()
        self._plan_tick(turn, is_busy=bool(turn.entries) or has_claimed)

    def _show_heartbeats(self) -> None:
        now = self._agenda.now
        due = {each.about.name: each for each in self._agents if each.beat_at <= now} | self._changed
        for name, agent in due.items():
            write_heartbeat(self._disk, name, agent.heartbeat())
            agent.beat_at = now + limits.AGENT_EXTERNAL_MS
        self._changed = {}

    def _plan_tick(self, turn: Turn, *, is_busy: bool) -> None:
        """One more turn once everybody has been looked at, and one when a task that was put off is due."""
        self._tick_no += 1
        number = self._tick_no
        if is_busy:
            self._agenda.at(self._agenda.now + _TICK_MS, lambda: self._tick(number))
        if turn.next_at_ms is not None:
            self._agenda.at(turn.next_at_ms, lambda: self._tick(number))

    def _tick(self, number: int) -> None:
        if number == self._tick_no:  # nothing happened since
            self._turn()

    # ------------------------------------------------------------ claims

    def _claim(self) -> bool:
        offered = self._board.offered()
        has_claimed = False
        for agent in self._agents:
            if not offered:
                break
            standing = agent.standing()
            passed = self._left_to_others(agent, offered, standing)
            for name in choose(offered, standing, passed):
                slip = self._board.read(agent.about.name, name) if self._take(agent, name) else None
                if slip is not None:
                    offered.remove(name)
                    self._start(agent, name, slip)
                    has_claimed = True
        return has_claimed

    def _take(self, agent: _Working, name: str) -> bool:
        return self._board.claim(agent.about.name, name)

    def _left_to_others(self, agent: _Working, offered: list[str], standing: Standing) -> list[str]:
        """The slips whose model is not in this agent's memory: it takes them when no other agent has for a while."""
        if not agent.about.models:
            return []
        now, cold = self._agenda.now, [name for name in offered if needs_heat(name, standing)]
        known = agent.cold_until
        agent.cold_until = {name: known.get(name, now + limits.HEAT_GRACE_MS) for name in cold}
        for name in agent.cold_until.keys() - known.keys():
            self._agenda.at(agent.cold_until[name], self._call_turn)
        return [name for name, until in agent.cold_until.items() if until > now]

    # ------------------------------------------------------------ work

    def _start(self, agent: _Working, name: str, slip: Slip) -> None:
        headline = headline_of(name)
        assert headline is not None
        now = self._agenda.now
        if not agent.running:
            agent.busy_since = now
        agent.running[name] = headline
        ends_at, work_ms = self._ends_at(agent, name, slip, headline)
        self._agenda.at(ends_at, lambda: self._finish(agent, name, slip, work_ms))
        self._changed[agent.about.name] = agent

    def _ends_at(self, agent: _Working, name: str, slip: Slip, headline: Headline) -> tuple[float, int]:
        """When a task ends, and how long it works."""
        now, work = self._agenda.now, slip.work
        if headline.task_class is TaskClass.META:
            model = work.model or agent.about.own_model
            if work.command.split()[:1] == [MetaCommand.UNLOAD.value]:
                agent.hot = ()
                return now + _UNLOAD_MS, _UNLOAD_MS
            loaded_at = self._load(agent, model)
            return loaded_at, int(loaded_at - now)
        begins_at = now
        if headline.task_class is TaskClass.LLM:
            model = work.model or agent.about.own_model
            begins_at = now if model in agent.hot else self._load(agent, model)
        offer = self._brain.offer_of(name)
        template = offer.ledger.template_of(offer.task) if offer is not None else ""
        work_ms = self._work_of(template, len(slip.items))
        work_ms = min(work_ms, work.timeout_ms) if work.timeout_ms else work_ms
        if template:
            self._tasks[template] = self._tasks.get(template, 0) + 1
            self._work_ms[template] = self._work_ms.get(template, 0) + work_ms
        return begins_at + work_ms, work_ms

    def _load(self, agent: _Working, model: str) -> float:
        """Load a model; when it is in memory. It takes the place of whatever is there."""
        if model in agent.coming:
            return agent.coming[model]
        host = agent.about.host
        loaded_at = max(self._agenda.now, self._bus_free_at.get(host, 0.0)) + agent.about.load_ms
        self._bus_free_at[host] = agent.coming[model] = loaded_at
        agent.share.loads += 1
        self._agenda.at(loaded_at, lambda: self._heated(agent, model))
        return loaded_at

    def _heated(self, agent: _Working, model: str) -> None:
        agent.hot = (model,)
        del agent.coming[model]
        self._changed[agent.about.name] = agent
        self._call_turn()

    def _finish(self, agent: _Working, name: str, slip: Slip, work_ms: int) -> None:
        now, headline = self._agenda.now, agent.running.pop(name)
        if headline.task_class is not TaskClass.META:
            agent.share.tasks += 1
            agent.share.work_ms += work_ms
        if not agent.running:
            agent.share.busy_ms += int(now - agent.busy_since)
        is_question = slip.work.is_question
        if is_question:
            folder = places.batch_folder(slip.plan, slip.batch)
            self._disk.put(f"{folder}/tasks/{file_stem(slip.task)}/a{slip.attempt}/stdout", b"")
        agent.log.commit([Result(
            name, agent.about.name, agent.log.life, End.DONE, 0, work_ms, answer=_SCORE if is_question else "",
        )])  # fmt: skip
        self._changed[agent.about.name] = agent
        self._call_turn()
