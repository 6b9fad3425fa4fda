"""The agent: claims tasks, runs each in a process tree of its own, and reports how it ended. It never retries.

    join        refuse to be the second of its name (`rivals`); report what the former life held as lost
    work        report and claim, at once when a task ends or the queue changes
    care        every 5 s: signals, revoked tasks, its `hold`, health; the heartbeat, at the latest every 30 s
    leave       let tasks end or end them, report, show that the agent has left

Files are touched by one thread only (`file_thread`, `board_client`), processes by one guard only (`processes.crew`);
what needs no process (questions to models, orders to load one) runs in `model_work`. Each
heartbeat that reaches the shared folder renews the guard's lease. An agent that cannot reach the folder, hangs or is
stopped for 60 s has no tasks any more: the guard ends them by itself, and 30 s later others take them.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from watchbill.files.disk import DISK_FULL
from watchbill.files.host import boot_id, host_name, start_time
from watchbill.fleet import limits
from watchbill.fleet.agent.board_client import BoardClient, Look
from watchbill.fleet.agent.claimed_ahead import ClaimedAhead
from watchbill.fleet.agent.file_thread import FileThread
from watchbill.fleet.agent.hold import Hold
from watchbill.fleet.agent.memory import Memory, NoDevice
from watchbill.fleet.agent.model_work import ModelWork
from watchbill.fleet.agent.rivals import Rivals
from watchbill.fleet.agent.room import Room
from watchbill.fleet.agent.shared_folder import SharedFolder
from watchbill.fleet.agent.unclear_signals import UnclearSignals
from watchbill.fleet.agent.work import ON_GPU, Fate, Finished, Prepared, Setting
from watchbill.fleet.door.arrivals import Arrivals
from watchbill.fleet.folder import places
from watchbill.fleet.folder.agent_report import HELD, STOPPED, ActiveTask, AgentReport
from watchbill.fleet.folder.headway import Headway
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse
from watchbill.fleet.folder.results import End, Result
from watchbill.fleet.folder.signals import Order, Signal
from watchbill.fleet.logs import Part
from watchbill.fleet.matching.claiming import Health, Standing, is_for
from watchbill.plans.task import Sandbox, TaskClass
from watchbill.processes import limits as processes_limits
from watchbill.processes.crew import Cause, Crew, CrewEvent, Ended, LeaseHeard, Measured, Started, Stuck
from watchbill.processes.environment import Withheld
from watchbill.processes.sandbox import can_bubblewrap, can_landlock
from watchbill.quoting import quoted

__all__ = ["Agent", "AgentOptions"]

_T = TypeVar("_T")

_LOG, _WORKER = Part.AGENT.logger, Part.WORKER.logger
#: What a cpu task counts for in the figures of a heartbeat (FLEET-02).
_CPU_TASK_MB = 1024


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent is started with."""

    name: str
    root: Path  # the shared folder
    folder: Path  # private to this agent on this machine; its lock is held by the caller
    cpu_slots: int
    once: bool = False  # leave when the queue has nothing for this agent
    key: str = ""  # for the host daemon
    shared: SharedFolder | None = None  # where the shared folder is not at `root`
    secrets: frozenset[str] = frozenset()  # variables of our environment that no task gets

    @property
    def only_addressed(self) -> bool:
        """Whether it takes only what is addressed to it: that of the coordinator does."""
        return self.name == places.BRAIN

    @property
    def told_root(self) -> str:
        """The shared folder in commands for people."""
        return str(self.root) if self.shared is None else self.shared.told_root


@dataclass(slots=True)
class _Running:
    """A task in our hands."""

    prepared: Prepared
    began: datetime
    pid: int = 0
    fate: Fate = Fate.NONE
    is_revoked: bool = False
    rss_bytes: int = 0  # the most that was seen
    headway: Headway = field(default_factory=Headway)


class Agent:
    """One agent, from its start to its end."""

    def __init__(self, options: AgentOptions, memory: Memory | None = None) -> None:
        self._options = options
        self._memory = memory or NoDevice()
        self._files = FileThread()
        self._crew = Crew(options.folder, self._on_crew, Withheld(options.secrets))
        self._model_work = ModelWork(self._memory, options.key, self._on_end)
        self._board: BoardClient | None = None
        self._watch: Arrivals | None = None
        self._running: dict[str, _Running] = {}  # by the id of the job
        self._ahead = ClaimedAhead(options.cpu_slots)
        self._finished: deque[Finished] = deque()
        self._finished_at = 0.0  # when the first of these ended
        self._said_so_far: dict[str, str] = {}  # job -> the end of its output, not shown yet
        self._givings: set[asyncio.Task[None]] = set()  # talks with the host daemon about loans
        self._obeying: list[Signal] = []  # abort and kill, until their task has ended
        self._stay: set[Signal] = set()  # obeyed, and this user may not remove them
        self._unclear = UnclearSignals(options.name, options.told_root)
        self._pulse = Pulse(boot_id(), os.getpid(), start_time(os.getpid()) or 0, 0)
        self._reached_at = 0.0  # when a heartbeat last reached the shared folder
        self._beat_due_at = 0.0
        self._fault: OSError | None = None
        self._lease = self._lease_heard = 0
        self._lease_sent_at = 0.0
        self._completed = self._failed = 0
        self._sandboxes: frozenset[Sandbox] = frozenset()
        self._hold = Hold(options.name, options.told_root, options.folder, self._on_hold)
        self._room = Room((options.root / places.DRAFTS, options.folder))
        self._health = Health.HEALTHY  # of the device, as it was last told
        self._is_leaving = False
        self._found_nothing = False
        self._may_have_more = False  # the queue, when it was last looked at or heard of
        self._work = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None  # that sets it
        self._care = asyncio.Event()
        self._left = asyncio.Event()

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Serves until it is told to leave. Raises OursError when it must not start, OSError when it cannot."""
        options = self._options
        self._board = board = await self._once_possible(
            lambda: self._files.do(lambda: BoardClient(options.root, options.name, options.shared))
        )
        rivals = Rivals(options.name, options.told_root, options.folder, self._files, board.former)
        await self._once_possible(lambda: rivals.refuse_namesake(self._goes_on))
        others = await self._once_possible(lambda: self._files.do(board.others))
        rivals.refuse_taken_card(self._memory.state.devices, others)
        self._sandboxes = await asyncio.to_thread(_sandboxes)
        self._crew.open()
        try:
            lost = await self._once_possible(lambda: self._files.do(lambda: board.join(options.cpu_slots)))
            for name in lost:
                _LOG.info("reported as lost, from the life before: %s", name)
            await self._files.do(rivals.note_boot)
            self._listen(await self._files.do(board.watch))
            await self._serve(board)
        finally:
            await self._model_work.close()
            await self._crew.close()
            self._stop_listening()

    async def _once_possible(self, act: Callable[[], Awaitable[_T]]) -> _T:
        """Does something in the shared folder at the start. What is odd or private there is waited for, as later on.
        Raises OSError where it is told to leave meanwhile, and for a full disk."""
        has_told = False
        while True:
            try:
                return await act()
            except OSError as error:
                if error.errno in DISK_FULL:
                    raise
                if not has_told:
                    path = os.path.join(self._options.told_root, error.filename or "")
                    _LOG.error("%s: %s; it starts when that is mended", path, error.strerror or error)
                has_told = True
                if not await self._goes_on():
                    raise

    def leave(self, within_ms: int | None = None) -> None:
        """Claim nothing more and leave when the running tasks have ended, or when this time is over."""
        _LOG.info("leaving: %s tasks are running", len(self._running))
        self._is_leaving = True
        if within_ms is not None:
            # By the clock of the loop, not by a cycle: those wait for a folder that may hang.
            loop = asyncio.get_running_loop()
            loop.call_later(within_ms / 1000, self._give_up)
            loop.call_later(
                (within_ms + processes_limits.STOP_TERM_MS + processes_limits.STOP_KILL_MS) / 1000,
                self._left.set,
            )
        self._wake()

    def _give_up(self) -> None:
        """Ends the tasks of an agent that has to leave now."""
        for job, task in list(self._running.items()):
            task.fate = Fate.GIVEN_UP if task.fate is Fate.NONE else task.fate
            self._stop(job)

    async def _serve(self, board: BoardClient) -> None:
        await self._once_possible(lambda: self._beat(board))
        _LOG.info("%s is ready: %s cpu slots", self._options.name, self._options.cpu_slots)
        self._hold.tell_at_start()
        async with asyncio.TaskGroup() as cycles:
            work = cycles.create_task(self._work_cycle(board))
            care = cycles.create_task(self._care_cycle(board))
            await self._left.wait()
            work.cancel()
            care.cancel()
        await self._say_goodbye(board)

    async def _say_goodbye(self, board: BoardClient) -> None:
        """The last report. A folder that does not take it is not waited for: the next life reports what is missing."""
        try:
            async with asyncio.timeout(processes_limits.LEAVE_LAST_MS_MAX / 1000):
                if self._finished:
                    await self._round(board, None)
                heartbeat = self._heartbeat(STOPPED)
                await self._files.do(lambda: board.close(heartbeat))
        except (OSError, TimeoutError) as error:
            _LOG.warning("left without a last report: %s", error or "the shared folder hangs")

    # ------------------------------------------------------------ waking

    async def _goes_on(self) -> bool:
        """Waits a moment, and says whether the agent is not to leave."""
        await self._pause(self._care, limits.AGENT_POLL_BUSY_MS)
        return not self._is_leaving

    def _wake(self) -> None:
        self._work.set()
        self._care.set()

    def _listen(self, watch: Arrivals) -> None:
        self._watch = watch
        if not watch.is_blind:
            asyncio.get_running_loop().add_reader(watch.fileno(), self._on_arrival)

    def _on_arrival(self) -> None:
        if self._watch is None:
            return
        arrived = self._watch.arrivals()
        slips = arrived.get(places.QUEUE)
        # The coordinator's own agent would else look at the queue for every task of others.
        if slips is not None and (not slips or any(map(self._is_for_us, slips))):
            self._may_have_more = True
            self._work.set()
        if places.SIGNALS in arrived:  # a care cycle looks at every process: not for each slip in the queue
            self._care.set()

    def _is_for_us(self, slip: str) -> bool:
        return is_for(slip, self._options.name, only_addressed=self._options.only_addressed)

    def _stop_listening(self) -> None:
        if self._watch is not None:
            if not self._watch.is_blind:
                asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None

    @staticmethod
    async def _pause(event: asyncio.Event, millis: int) -> None:
        """Waits for an event, at most this long, and takes it."""
        # Not wait_for: until Python 3.12 it swallows a cancellation that meets the event, and the cycle went on.
        alarm = asyncio.get_running_loop().call_later(millis / 1000, event.set)
        try:
            await event.wait()
        finally:
            alarm.cancel()
        event.clear()

    # ------------------------------------------------------------ the work cycle

    async def _work_cycle(self, board: BoardClient) -> None:
        while True:
            await self._try(lambda: self._work_once(board))
            if self._is_done():
                self._left.set()
            await self._pause(self._work, self._poll_ms())

    def _is_done(self) -> bool:
        is_carrying = self._board is not None and self._board.is_carrying
        is_idle = not self._running and not self._finished and not self._ahead and not is_carrying
        return is_idle and (self._is_leaving or (self._options.once and self._found_nothing))

    def _poll_ms(self) -> int:
        is_blind = self._watch is None or self._watch.is_blind
        is_busy = bool(self._running) or not self._found_nothing
        return (
            limits.AGENT_POLL_BUSY_MS if self._fault or (is_blind and is_busy) else limits.AGENT_POLL_IDLE_MS
        )

    async def _work_once(self, board: BoardClient) -> None:
        await self._return_what_waits(board)
        standing = self._standing()
        if standing is None and not self._finished and not board.is_carrying:
            return
        await self._round(board, standing)

    async def _round(self, board: BoardClient, standing: Standing | None) -> None:
        """Report and claim. Where the queue is likely to have more, the next tasks run while the reports of the last
        ones are synced. Where it is not, nothing comes before the report: the next task of a chain waits for it."""
        if standing is not None and self._finished and self._may_have_more:
            await self._report_and_claim(board, deque(), standing)
            standing = None
        if standing is None and self._gathers_reports():
            return
        await self._report_and_claim(board, self._finished, standing)

    def _gathers_reports(self) -> bool:
        """Whether more results are about to come that can be synced together with those that wait."""
        has_more = bool(self._running) and (bool(self._ahead) or self._may_have_more)
        left_s = self._finished_at + limits.REPORT_GATHER_MS / 1000 - time.monotonic()
        if not has_more or self._is_leaving or left_s <= 0 or len(self._finished) >= limits.REPORT_GATHER_MAX:
            return False
        self._work_again_in(left_s)
        return True

    def _work_again_in(self, seconds: float) -> None:
        """Wake the work cycle by the clock. One timer at a time, the earliest: one for each of thousands of short tasks
        made the loop slow."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._alarm is not None and not self._alarm.cancelled():
            if loop.time() < self._alarm.when() <= when:
                return
            self._alarm.cancel()
        self._alarm = loop.call_at(when, self._work.set)

    async def _return_what_waits(self, board: BoardClient) -> None:
        """Return the tasks that were claimed ahead and did not start in time, or that are not to start any more."""
        if self._fault is not None:
            return
        waiting = self._ahead.overdue() if self._may_start() else self._ahead.clear()
        if waiting:
            await self._files.do(lambda: board.give_back_unstarted([each.name for each in waiting]))
        if (left_s := self._ahead.left_s()) is not None:
            self._work_again_in(left_s)

    def _may_start(self) -> bool:
        is_held = bool(self._hold) or self._room.is_short
        return not self._is_leaving and not is_held and self._fault is None and self._crew.is_open

    async def _report_and_claim(
        self, board: BoardClient, finished: deque[Finished], standing: Standing | None
    ) -> None:
        setting, now_ms = self._setting(), _now_ms()
        done = await self._files.do(lambda: board.round(setting, finished, standing, now_ms))
        for result in done.reported:
            self._count(result)
        if self._room.is_suspect:
            await self._look_for_room()
        for prepared in done.prepared:
            await self._start(board, prepared)
        self._crew.flush()  # first: the tasks start while the rest is written down here
        if done.reported:
            _LOG.info("reported %s", " ".join(result.name for result in done.reported))
        if done.prepared:
            _LOG.info("claimed %s", " ".join(prepared.name for prepared in done.prepared))
        if standing is not None:
            _LOG.debug(
                "looked at the queue: cpu_slots_free=%d llm_slots_free=%d vram_mb_free=%d claimed=%d has_later=%s",
                standing.cpu_slots_free, standing.llm_slots_free, standing.vram_mb_free, len(done.prepared),
                done.has_later,
            )  # fmt: skip
            self._found_nothing = done.is_empty and not done.has_later
            self._may_have_more = done.leaves_more
        if done.was_cut or (not done.is_empty and (self._watch is None or self._watch.is_blind)):
            self._work.set()  # there may be more that fits; whatever arrives later is heard
        if done.fault is not None:
            raise done.fault

    def _standing(self) -> Standing | None:
        """The agent as a claim sees it; None when it claims nothing at all."""
        if self._is_leaving or self._fault is not None or not self._crew.is_open:
            return None
        state = self._memory.state
        classes = [each.prepared.task_class for each in self._running.values()]
        gpu_tasks = [each for each in self._running.values() if each.prepared.task_class in ON_GPU]
        llm_tasks = classes.count(TaskClass.LLM)
        standing = Standing(
            self._options.name,
            cpu_slots_free=self._slots_free() + (0 if self._hold.is_on_probation else self._ahead.room()),
            is_held=bool(self._hold) or self._room.is_short,
            takes_one=self._hold.is_on_probation,
            only_addressed=self._options.only_addressed,
            has_device=state.is_open,
            is_pair=len(state.devices) > 1,
            health=state.health,
            is_hot=state.is_hot,
            own_model=state.own_model,
            models=state.models,
            hot_models=state.hot,
            llm_slots_free=state.llm_slots - llm_tasks,
            gpu_tasks=len(gpu_tasks),
            llm_tasks=llm_tasks,
            vram_mb_free=state.budget_mb - sum(each.prepared.slip.vram_mb for each in gpu_tasks),
        )
        is_full = standing.cpu_slots_free <= 0 and not standing.has_device
        is_trying = self._hold.is_on_probation and bool(self._running)
        return None if is_full or is_trying else standing

    def _setting(self) -> Setting:
        state, options = self._memory.state, self._options
        return Setting(
            options.root, options.name, self._crew.outputs, state.cards, state.own_model, state.models, state.model_url,
            self._sandboxes,
        )  # fmt: skip

    def _slots_free(self) -> int:
        used = sum(each.prepared.task_class is TaskClass.CPU for each in self._running.values())
        return self._options.cpu_slots - used

    async def _start(self, board: BoardClient, prepared: Prepared) -> None:
        job, slip = prepared.job, prepared.slip
        if prepared.task_class is TaskClass.CPU and self._slots_free() <= 0:
            self._ahead.put(prepared)
            self._work_again_in(limits.AHEAD_MS_MAX / 1000)
            return
        if prepared.task_class is TaskClass.SCRIPT and not await self._memory.borrow(job.id, slip.vram_mb):
            await self._files.do(lambda: board.give_back(prepared.name, _now_ms(), limits.LOAN_AGAIN_MS))
            self._work.set()  # something smaller may fit
            self._work_again_in(limits.LOAN_AGAIN_MS / 1000)
            return
        self._begin(prepared)

    def _begin(self, prepared: Prepared) -> None:
        job, slip = prepared.job, prepared.slip
        self._running[job.id] = _Running(prepared, datetime.now(UTC))
        self._beat_soon()
        if prepared.question is not None:
            self._model_work.ask(job, prepared.question)
        elif prepared.order is not None:
            self._model_work.obey(job, prepared.order, slip.work.model)
        else:
            self._crew.start(job)
            return
        self._on_start(job.id, os.getpid())

    def _stop(self, job: str, grace_ms: int = processes_limits.STOP_TERM_MS) -> None:
        """Ends a task, with time to end by itself where it is a process."""
        if job in self._model_work:
            self._model_work.stop(job)
        else:
            self._crew.stop(job, grace_ms)

    def _count(self, result: Result) -> None:
        if result.end is End.DONE:
            self._completed += 1
            self._hold.is_on_probation = False
        elif not result.end.comes_again:
            self._failed += 1
        self._room.is_suspect |= result.end is End.DISK_FULL
        _WORKER.log(
            logging.INFO if result.end is End.DONE else logging.WARNING,
            "ended %s after %d ms: %s", result.name, result.ms, result.end.value,
        )  # fmt: skip

    # ------------------------------------------------------------ the crew

    def _on_crew(self, event: CrewEvent) -> None:
        match event:
            case Started(job, pid):
                self._on_start(job, pid)
            case Ended():
                self._on_end(event)
            case Stuck(job, pids):
                _LOG.error("processes %s of %s survive SIGKILL", pids, job)
            case LeaseHeard(number):
                self._lease_heard = number
            case Measured(job, output, written, cpu_ms, rss_bytes, tails):
                if (task := self._running.get(job)) is not None:
                    task.rss_bytes = rss_bytes
                    task.headway = Headway(output, written, cpu_ms, task.headway.touched)
                    if tails:
                        self._said_so_far[job] = "".join(tails)

    def _on_start(self, job: str, pid: int) -> None:
        task = self._running.get(job)
        if task is None:
            return
        task.pid = pid
        self._beat_soon()
        prepared, slip = task.prepared, task.prepared.slip
        _WORKER.info("started %s of %s, attempt %s", slip.task, slip.batch, slip.attempt)
        _WORKER.debug("%s: class=%s vram_mb=%d timeout_ms=%s items=%d", slip.task, prepared.task_class.value,
                      slip.vram_mb, prepared.job.timeout_ms, len(slip.items))  # fmt: skip
        if task.prepared.task_class is TaskClass.SCRIPT:
            self._in_background(self._memory.used_by(job, pid))

    def _in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._givings.add(task)
        task.add_done_callback(self._givings.discard)

    def _on_end(self, ended: Ended) -> None:
        if self._running[ended.id].prepared.task_class is TaskClass.SCRIPT:
            self._in_background(self._give_back(ended))
        else:
            self._finish(ended, 0)

    async def _give_back(self, ended: Ended) -> None:
        self._finish(ended, await self._memory.give_back(ended.id))

    def _finish(self, ended: Ended, peak_vram_mb: int) -> None:
        task = self._running.pop(ended.id)
        if task.prepared.task_class is TaskClass.CPU:
            if ended.cause is Cause.EXIT:
                self._ahead.ended(ended.ms)
            self._begin_next()
        self._said_so_far.pop(ended.id, None)
        self._beat_soon()
        if not task.is_revoked:
            self._finished_at = self._finished_at if self._finished else time.monotonic()
            self._finished.append(Finished(task.prepared, ended, task.fate, peak_vram_mb))
        self._work.set()
        if self._obeying or ended.cause is Cause.GUARD_LOST:
            self._care.set()

    def _begin_next(self) -> None:
        while self._may_start() and self._slots_free() > 0 and (prepared := self._ahead.take()) is not None:
            self._begin(prepared)

    # ------------------------------------------------------------ the care cycle

    async def _care_cycle(self, board: BoardClient) -> None:
        while True:
            await self._try(lambda: self._care_once(board))
            await self._pause(self._care, limits.AGENT_INTERNAL_MS)

    async def _care_once(self, board: BoardClient) -> None:
        self._mind_the_guard()
        if self._running:
            self._crew.measure()
        # What is claimed while the folder is read may not be in the list.
        before, waiting = list(self._running), self._ahead.names
        look = await self._files.do(board.look)
        self._ahead.drop(waiting - look.held)
        self._end_revoked(look, before)
        self._unclear.look(look.signals)
        self._stay.intersection_update(look.signals)
        for signal in look.signals:
            if signal in self._stay:
                continue
            if signal in self._obeying or not self._unclear.has(signal, len(self._running)):
                await self._obey(board, signal)
        await self._confirm(board)
        await self._show_output_so_far(board)
        self._hold.end_in_time()
        if self._room.is_due:
            await self._look_for_room()
        self._tell_health()
        if time.monotonic() >= self._beat_due_at or self._fault is not None:
            await self._beat(board)
            self._forgive()

    def _tell_health(self) -> None:
        """Say when the device becomes constrained, and when it recovers: in the log and in the heartbeat."""
        before, self._health = self._health, self._memory.state.health
        if self._health is not before:
            self._beat_due_at = 0.0
            level = logging.WARNING if self._health is Health.CONSTRAINED else logging.INFO
            why = ", ".join(self._memory.state.constraints)
            _LOG.log(level, "the device is %s%s", self._health.value, f": {why}" if why else "")

    async def _look_for_room(self) -> None:
        if await self._files.do(self._room.look):
            self._on_hold()

    def _beat_soon(self) -> None:
        """What people see has changed; not more often than the cycle goes."""
        self._beat_due_at = min(self._beat_due_at, self._reached_at + limits.AGENT_INTERNAL_MS / 1000)

    async def _show_output_so_far(self, board: BoardClient) -> None:
        """Let people see what running tasks have written. A folder that does not take it has taken no result either."""
        said, self._said_so_far = self._said_so_far | self._model_work.said_so_far(), {}
        shown = [(self._running[job].prepared, text) for job, text in said.items() if job in self._running]
        if shown:
            await self._files.do(lambda: board.show_so_far(shown))

    def _mind_the_guard(self) -> None:
        """Replaces a guard that is dead or does not answer."""
        is_silent = self._lease != self._lease_heard and (
            time.monotonic() - self._lease_sent_at > limits.CREW_SILENCE_MS / 1000
        )
        if is_silent:
            _LOG.error("the guard of the tasks does not answer: replacing it")
            self._lease_heard = self._lease
            self._crew.give_up_guard()
        if not self._crew.is_open:
            _LOG.error("the guard of the tasks was killed: its tasks are reported as lost")
            self._crew.open()
            self._beat_due_at = 0.0  # its lease comes with the next heartbeat
            self._work.set()

    def _end_revoked(self, look: Look, before: list[str]) -> None:
        """A slip that is not in our hands any more was taken back: its task is over, whatever it does."""
        for job in before:
            task = self._running.get(job)
            if task is not None and task.prepared.name not in look.held and not task.is_revoked:
                _LOG.info("revoked: %s of %s", task.prepared.slip.task, task.prepared.slip.batch)
                task.is_revoked = True
                self._stop(job)

    async def _beat(self, board: BoardClient) -> None:
        """Shows that we live, and renews the lease of the tasks once that has reached the folder."""
        await self._look_at_files(board)
        self._pulse = Pulse(self._pulse.boot_id, self._pulse.pid, self._pulse.start_time, self._pulse.seq + 1)
        heartbeat = self._heartbeat()
        asked_at = time.monotonic()
        # Before the folder takes it: what begins or ends meanwhile is not in it, and makes the next one due sooner.
        self._beat_due_at = asked_at + limits.AGENT_EXTERNAL_MS / 1000
        await self._files.do(lambda: board.beat(heartbeat))
        self._reached_at = asked_at
        self._lease += 1
        self._lease_sent_at = time.monotonic()
        self._crew.lease(self._lease, limits.AGENT_LEASE_MS - int((self._lease_sent_at - asked_at) * 1000))

    async def _look_at_files(self, board: BoardClient) -> None:
        prepared = [task.prepared for task in self._running.values()]
        for job, changed_at in (await self._files.do(lambda: board.touched(prepared))).items():
            if (task := self._running.get(job)) is not None:
                task.headway = replace(task.headway, touched=changed_at)

    # ------------------------------------------------------------ signals

    async def _obey(self, board: BoardClient, signal: Signal) -> None:
        match signal.order:
            case Order.STOP:
                self.leave()
            case Order.HOLD | Order.RESUME:
                await self._hold.obey(signal, self._files)
            case Order.ABORT | Order.KILL:
                if self._is_ahead(signal.task) or board.is_bringing(signal.task):
                    return  # it starts or goes back in a moment: the next look at the signals finds the task or not
                if self._end_task(signal):
                    self._obeying.append(signal)
                    return
        await self._remove_obeyed(board, signal)

    async def _remove_obeyed(self, board: BoardClient, signal: Signal) -> None:
        """Remove a signal. One that this user may not remove is not obeyed again while it stays, and stops nothing."""
        try:
            await self._files.do(lambda: board.obeyed(signal))
        except PermissionError as error:
            self._stay.add(signal)
            _LOG.error("%s was obeyed and cannot be removed: %s; remove it, and let this user remove files there",
                       quoted(f"signals/{signal.file}"), error.strerror)  # fmt: skip

    def _on_hold(self) -> None:
        """The agent is held, or goes on: people see it at once."""
        self._beat_due_at = 0.0
        self._work.set()

    def _end_task(self, signal: Signal) -> bool:
        """Ends the tasks that a signal names; False where there is none."""
        jobs = self._named(signal.task)
        for job in jobs:
            self._running[job].fate = Fate.ABORTED
            if signal.order is Order.KILL and job not in self._model_work:
                self._crew.kill(job)
            elif signal not in self._obeying:
                self._stop(job, limits.TASK_ABORT_MS)
        return bool(jobs)

    def _named(self, task: str) -> list[str]:
        """The running tasks that a signal means: by task, by BATCH.TASK, or the only one that runs."""
        if not task:
            return list(self._running) if len(self._running) == 1 else []
        return [job for job, each in self._running.items() if _is_named(task, each.prepared)]

    def _is_ahead(self, task: str) -> bool:
        return any(_is_named(task, each) for each in self._ahead)

    async def _confirm(self, board: BoardClient) -> None:
        """Removes the signals whose tasks have ended: a file that is still there was not obeyed yet."""
        obeyed = [signal for signal in self._obeying if not self._named(signal.task)]
        for signal in obeyed:
            await self._remove_obeyed(board, signal)
            self._obeying.remove(signal)

    # ------------------------------------------------------------ faults of the folder

    async def _try(self, act: Callable[[], Awaitable[None]]) -> None:
        """Does a part of a cycle. A folder that fails is an alert and no end: nothing is claimed until it is back."""
        try:
            await act()
        except OSError as error:
            if self._fault is None or self._fault.errno != error.errno:
                _LOG.error("the shared folder fails: %s; claiming nothing until it is back", error)
            self._fault = error

    def _forgive(self) -> None:
        if self._fault is not None:
            _LOG.info("the shared folder is back")
            self._fault = None
            self._work.set()

    # ------------------------------------------------------------ the heartbeat

    def _heartbeat(self, state: str = "") -> Heartbeat:
        """What people and decisions read of this agent (FLEET-06)."""
        device = self._memory.state
        tasks = list(self._running.values())
        cpu_tasks = sum(each.prepared.task_class is TaskClass.CPU for each in tasks)
        hold = self._hold.shown() or self._room.shown()
        if device.devices:
            claimed_mb = sum(each.prepared.slip.vram_mb for each in tasks)
            free_mb = device.budget_mb - claimed_mb
        else:
            claimed_mb = cpu_tasks * _CPU_TASK_MB
            free_mb = (self._options.cpu_slots - cpu_tasks) * _CPU_TASK_MB
        report = AgentReport(
            self._options.name,
            state or ("hot" if device.is_hot else "cold"),
            device.is_hot,
            datetime.now(UTC).isoformat(timespec="seconds"),
            claimed_mb,
            max(0, free_mb),
            tuple(self._active_task(job, each) for job, each in self._running.items()),
            self._completed,
            self._failed,
            (*device.constraints, *([] if hold is None else [HELD])),
            hold,
            self._options.cpu_slots,
            max(self._sandboxes, default=Sandbox.NONE, key=lambda each: each.strength).value,
            host_name(),
            device.devices,
            device.own_model,
            device.models,
            device.hot,
            device.llm_slots,
            device.load_ms,
            {**_NO_CARD, **device.readings},
        )
        return Heartbeat(self._pulse, report)

    def _active_task(self, job: str, task: _Running) -> ActiveTask:
        slip = task.prepared.slip
        return ActiveTask(
            slip.task, slip.batch, task.prepared.task_class, job, slip.attempt, slip.vram_mb,
            self._memory.peak_mb(job), task.rss_bytes // 2**20, task.pid, task.began.isoformat(timespec="seconds"),
            self._headway(job, task),
        )  # fmt: skip

    def _headway(self, job: str, task: _Running) -> Headway:
        """How far a task has got; one that asks a model by what the daemon said to it.

        A question that waits in its lane is not stuck: the lane's own bounds end it, and a daemon that hangs is silent.
        """
        if job not in self._model_work:
            return task.headway
        return Headway(output_bytes=self._model_work.heard_bytes(job))


#: The keys of a card in the heartbeat of an agent that has none.
_NO_CARD: dict[str, object] = {
    "gpu_id": None, "temperature_c": None, "power_draw_w": None, "vram_used_mb": 0, "vram_total_mb": 0,
    "vram_percent": 0, "gpu_util_percent": None, "clock_mhz": None, "throttle_status": "None",
}  # fmt: skip


def _sandboxes() -> frozenset[Sandbox]:
    """What this machine can do, each tried with a real program."""
    tries = {Sandbox.LIGHT: can_landlock, Sandbox.STRICT: can_bubblewrap}
    return frozenset(level for level, can in tries.items() if can())


def _is_named(task: str, prepared: Prepared) -> bool:
    return task in (prepared.slip.task, f"{prepared.slip.batch}.{prepared.slip.task}")


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
