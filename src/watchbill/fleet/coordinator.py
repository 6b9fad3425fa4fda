"""The coordinator: one loop that turns what agents report into what they are offered next.

    start   take an epoch, replay each active batch, begin new journals, mend the board
    turn    read the inbox, the results and the heartbeats; decide; append; look; act

Decisions become entries of the journals (`active`). The board follows only after they are written, and only if no
successor has taken over meanwhile; `epochs` says why that is enough. A successor may repeat every act, and can mend
whatever a coordinator that dies at any moment leaves behind.

An error of the disk ends this coordinator, because its memory may be ahead of its journal then. A new one starts from
the files, in the same process or in another. A request to reopen a batch that has ended needs a new one, too: journals
are files of epochs, and this epoch may have closed its own. The clocks and the disk are given from outside; nothing
here waits.
"""

import contextlib
import glob
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from watchbill import limits
from watchbill.errors import IllegalTransition, OursError
from watchbill.files.atomic import NotAFile
from watchbill.fleet import epochs, places
from watchbill.fleet.abilities import Need, ability_of, need_of
from watchbill.fleet.active import ActiveBatches, Fanout
from watchbill.fleet.approving import Answer, entries_of
from watchbill.fleet.board import Board
from watchbill.fleet.disk import Disk
from watchbill.fleet.entries import (
    Accept,
    Cancel,
    Cause,
    Ended,
    Fail,
    Hold,
    Lost,
    Revoke,
)
from watchbill.fleet.evaluation import Evaluations, is_evaluated
from watchbill.fleet.headway import Headway
from watchbill.fleet.heartbeat import Heartbeat, Pulse, Watcher, read_heartbeat
from watchbill.fleet.heating import Heating
from watchbill.fleet.ledger import Ledger, Phase
from watchbill.fleet.opening import expansion, opening, read_manifest, reopening
from watchbill.fleet.pictures import draw, draw_last, summary_of
from watchbill.fleet.policy import Crowd, hold_of, judge, window_of
from watchbill.fleet.publication import answer_path, make_draft, publication_of, publish
from watchbill.fleet.requests import Reopening
from watchbill.fleet.results import End, Result, ResultReader
from watchbill.fleet.shared_paths import patterns_of
from watchbill.fleet.signals import Order, send
from watchbill.fleet.slips import Slip
from watchbill.fleet.values import Fields, encode
from watchbill.fleet.watchers import BadAgents, Held, Ladder, Step, Stranded
from watchbill.plans.batch import BelowRoot, ExecutePlan, decoded_inputs
from watchbill.plans.task import TaskClass

__all__ = ["Coordinator", "StartAnew", "Turn"]

_LOG = logging.getLogger("watchbill.coordinator")

#: A slot of an agent, in MiB of its budget: what a cpu task counts for (FLEET-02).
_SLOT_MB = 1024
_AGENTS_LOOK_MS = 1_000
_MANIFEST_AGAIN_MS = 1_000
_MANIFEST_TRIES = 3


class StartAnew(Exception):
    """What was asked for needs the next epoch: close this coordinator and start another one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did, and when the next one has something to do by the clock alone."""

    entries: int
    dropped: int  # results whose token does not count
    next_at_ms: int | None
    batches: int  # that have not ended


@dataclass(frozen=True, slots=True)
class _Unseen:
    """A task that succeeded, and whose files are not to be seen yet."""

    result: Result
    until_ms: int


_Act = Callable[[], object]


class Coordinator:
    """The coordinator of one epoch, from the moment it has taken it."""

    def __init__(
        self,
        disk: Disk,
        watcher: Watcher,
        pulse: Pulse,
        *,
        host: str = "",
        wall_ms: Callable[[], int],
        stuck_after_ms: int = limits.STUCK_AFTER_MS,
    ) -> None:
        """`wall_ms` is for people: no decision depends on it."""
        self._disk = disk
        self._board = Board(disk)
        self._watcher = watcher
        self._pulse = pulse
        self._host = host
        self._wall_ms = wall_ms
        self._results = ResultReader(disk)
        self._ladder = Ladder(stuck_after_ms)
        self._bad_agents = BadAgents()
        self._heating = Heating()
        self._evaluations = Evaluations()
        self._stranded = Stranded()
        self._unseen: list[_Unseen] = []
        self._requests: set[str] = set()  # those that this epoch knows since its start
        self._active = ActiveBatches(disk, wall_ms)
        self._living: dict[str, Heartbeat] = {}
        self._crowd = Crowd()
        self._acts: list[_Act] = []
        self._folders: set[str] = set()
        self._dropped = 0
        self._agents_at_ms = self._beat_at_ms = self._stuck_at_ms = 0
        self._puts_away_stale = False
        self.epoch = 0
        self.left_alone: dict[str, str] = {}  # batches whose journal cannot be replayed, and why

    # ------------------------------------------------------------ start

    def start(self, now_ms: int) -> None:
        """Take over. Raises Superseded when another one is faster still, OSError when the disk fails."""
        self.epoch = epochs.take_epoch(self._disk)
        self._agents_at_ms = self._beat_at_ms = now_ms
        self._stuck_at_ms = now_ms + limits.STUCK_LOOK_MS
        self._beat(now_ms)
        for folder in (places.ACTIVE, places.INBOX):
            for name in self._disk.names(folder):
                order = self._order(folder, name)
                if order is not None and order.batch not in self._active.batches and self._was_opened(order):
                    self._take_up_or_leave(order, now_ms)
        epochs.refuse_if_superseded(self._disk, self.epoch)
        self._mend(now_ms)
        self._finish(now_ms)

    def close(self) -> None:
        """Close the journals and keep them."""
        self._active.close()

    def _order(self, folder: str, name: str) -> ExecutePlan | None:
        """The batch that a file is about, whether it submits or reopens one; None where it says nothing sensible."""
        try:
            content = self._disk.read(f"{folder}/{name}", limits.FLEET_FILE_BYTES_MAX * 4)
            if not name.endswith((".reopen", ".approve")):
                return ExecutePlan.decode(content)
            self._requests.add(name)
            request = (Reopening if name.endswith(".reopen") else Answer).decode(content)
            return ExecutePlan(request.batch, request.plan, {})
        except (FileNotFoundError, NotAFile, OursError):
            return None

    def _was_opened(self, order: ExecutePlan) -> bool:
        """Whether a batch has a journal: a submitted one has, when its coordinator died before it moved the file."""
        listed = self._disk.names(places.batch_folder(order.plan, order.batch))
        return any(places.epoch_of_journal(name) is not None for name in listed)

    def _take_up_or_leave(self, order: ExecutePlan, now_ms: int) -> None:
        """One batch whose journal makes no sense, damaged or of a later version, does not stop the others."""
        try:
            self._active.take_up(order, self.epoch, now_ms)
        except (IllegalTransition, ValueError, KeyError) as error:
            self.left_alone[order.batch] = str(error)

    # ------------------------------------------------------------ mending

    def _mend(self, now_ms: int) -> None:
        """Let the board agree with the journals again: after a kill, and after a power cut that lost its names."""
        self._board.sweep_drafts()
        holdings = self._board.look_around()
        for name in sorted(holdings.queue):
            if name not in self._active.tokens:
                self._put_away(name, self._resting_place(name))
            elif not self._board.is_readable(name):
                # A power cut leaves the name and takes the content. Its agent may be taking it in this moment: it is
                # never written again in place, or two slips would bear one token.
                self._revoke(name, Cause.UNREADABLE, "", now_ms)
        for agent, held in holdings.processing.items():
            for name in sorted(held - self._active.tokens.keys()):
                self._put_away(name, self._resting_place(name), agent)
        for batch in self._active.batches.values():
            self._publish_answers_again(batch.ledger)
        for name in [name for name in self._active.tokens if name not in holdings]:
            self._publish(name)

    def _publish_answers_again(self, ledger: Ledger) -> None:
        """Before anything is offered that may read them."""
        for task in ledger.tasks():
            if ledger.phase(task) is Phase.COMPLETE:
                self._publish_answer(ledger, task)

    def _resting_place(self, name: str) -> str:
        """Where a slip belongs whose token does not count any more."""
        for batch in self._active.batches.values():
            task = batch.ledger.task_of_last(name)
            if task is not None:
                phase = batch.ledger.phase(task)
                return (
                    _FOLDERS.get(phase, places.EXPIRED) if phase is not Phase.COMPLETE else self._complete()
                )
        return places.EXPIRED

    # ------------------------------------------------------------ a turn

    def turn(self, now_ms: int) -> Turn:
        """Read, decide, append, look, act. Raises Superseded and OSError: then this coordinator has ended."""
        epochs.refuse_if_superseded(self._disk, self.epoch)
        if now_ms >= self._beat_at_ms:
            self._beat(now_ms)
        self._dropped = 0
        self._read_inbox(now_ms)
        self._look_again(now_ms)
        for result in self._results.read():
            self._hear(result, now_ms)
        self._accept_unscored(now_ms)
        self._puts_away_stale = True
        self._look_at_agents(now_ms)
        self._look_for_stuck_tasks(now_ms)
        self._expand(now_ms)
        self._release(now_ms)
        self._end_batches(now_ms)
        self._draw(now_ms)
        written = self._finish(now_ms)
        return Turn(written, self._dropped, self._active.lineup.next_at_ms, len(self._active.batches))

    def _finish(self, now_ms: int) -> int:
        """Write, look, act: in this order, and nothing is acted on that does not count."""
        written = self._active.write()
        if self._acts:
            epochs.refuse_if_superseded(self._disk, self.epoch)
            self._act()
        return written

    def _act(self) -> None:
        acts, self._acts = self._acts, []
        for act in acts:
            act()

    def _beat(self, now_ms: int) -> None:
        self._pulse = replace(self._pulse, seq=self._pulse.seq + 1)
        epochs.announce(self._disk, self.epoch, self._host, self._pulse)
        self._beat_at_ms = now_ms + limits.COORDINATOR_BEAT_MS

    # ------------------------------------------------------------ the inbox

    def _read_inbox(self, now_ms: int) -> None:
        listed = self._disk.names(places.INBOX)
        # Plans first: a request about a batch waits until the batch is open.
        for name in sorted(listed, key=_urgency)[: limits.INBOX_PER_TURN_MAX]:
            batch, _, kind = name.rpartition(".")
            if kind in ("json", "reopen", "approve"):
                self._obey(name, kind, now_ms)
            elif kind == "cancel" and f"{batch}.json" not in listed:
                self._cancel(batch, name, now_ms)

    def _obey(self, name: str, kind: str, now_ms: int) -> None:
        """Read a file of the inbox and do what it says. One that makes no sense is put aside, with the reason."""
        try:
            content = self._disk.read(f"{places.INBOX}/{name}", limits.FLEET_FILE_BYTES_MAX * 4)
            if kind == "json":
                self._open(name, ExecutePlan.decode(content), now_ms)
            elif kind == "reopen":
                self._reopen(name, Reopening.decode(content), now_ms)
            else:
                self._answer(name, Answer.decode(content), now_ms)
        except FileNotFoundError:
            return
        except (NotAFile, OursError, ValueError) as error:
            why = str(error)
            self._acts.append(lambda: self._refuse(name, why))

    def _open(self, name: str, order: ExecutePlan, now_ms: int) -> None:
        """Open a submitted batch. One whose journal is there already was opened by a coordinator that died since."""
        if f"{order.batch}.json" != name:
            raise OursError(f"the file names the batch {order.batch}", hint="submit it again")
        if order.batch in self.left_alone:
            return
        known = self._active.batches.get(order.batch)
        if known is None or not known.ledger.is_open:
            self._open_new(order, now_ms)
        self._acts.append(lambda: self._move(f"{places.INBOX}/{name}", f"{places.ACTIVE}/{name}"))

    def _open_new(self, order: ExecutePlan, now_ms: int) -> None:
        entries = opening(self._disk, order)
        if order.batch not in self._active.batches:
            self._disk.make_folder(places.batch_folder(order.plan, order.batch))
            self._active.take_up(order, self.epoch, now_ms)
        if not self._active.batches[order.batch].ledger.is_open:
            for entry in entries:
                self._active.decide(order.batch, entry, now_ms)

    def _reopen(self, name: str, request: Reopening, now_ms: int) -> None:
        """Go on with a batch. One that has ended is taken up by the next epoch, when it starts."""
        ledger = self._to_go_on(name, request.batch)
        if request.id not in ledger.requests:
            self._reopen_now(ledger, request, now_ms)
        self._show_active_later(ledger, name)

    def _to_go_on(self, name: str, batch: str) -> Ledger:
        """The batch that a request is about. Raises StartAnew where the next epoch has to take it up, and OursError."""
        found = self._active.batches.get(batch)
        if found is None and name not in self._requests:
            raise StartAnew
        if found is None or not found.ledger.is_open:
            raise OursError(f"{batch} cannot go on: {self.left_alone.get(batch, 'no such batch was opened')}")
        return found.ledger

    def _answer(self, name: str, given: Answer, now_ms: int) -> None:
        """Obey a person's answer about tasks that wait for one."""
        ledger = self._to_go_on(name, given.batch)
        lasts = [(task, ledger.state(task).last) for task in given.tasks if task in ledger]
        for entry in entries_of(ledger, given):
            self._active.decide(ledger.batch, entry, now_ms)
        for task, last in lasts:
            target = _FOLDERS.get(ledger.phase(task), places.EXPIRED)
            self._acts.append(
                lambda last=last, target=target: self._move(f"{places.MANUAL}/{last}", f"{target}/{last}")
            )
        if ledger.outcome is None:
            self._show_active_later(ledger, name)
        else:
            self._acts.append(lambda: self._disk.remove(f"{places.INBOX}/{name}"))

    def _reopen_now(self, ledger: Ledger, request: Reopening, now_ms: int) -> None:
        if request.reads_plan and ledger.outcome is None:
            raise OursError(
                f"{ledger.batch} still runs", hint=f"cancel it first: watchbill plan cancel {ledger.batch}"
            )
        for entry in reopening(self._disk, ledger, request):
            self._active.decide(ledger.batch, entry, now_ms)

    def _show_active_later(self, ledger: Ledger, request: str) -> None:
        order = ExecutePlan(ledger.batch, ledger.plan, _inputs_of(ledger), ledger.priority)
        self._acts.append(lambda: self._show_active(order, request))

    def _show_active(self, order: ExecutePlan, request: str) -> None:
        self._disk.put(f"{places.ACTIVE}/{order.batch}.json", order.encode(), durable=True)
        self._disk.remove(f"{places.INBOX}/{request}")

    def _refuse(self, name: str, why: str) -> None:
        """Put a plan that cannot be run aside, with the reason."""
        _LOG.warning("action=refuse file=%s why=%s", name, why)
        self._disk.put(f"{places.REFUSED}/{name}", encode({"error": why}) + b"\n", durable=True)
        self._disk.remove(f"{places.INBOX}/{name}")

    def _cancel(self, batch: str, name: str, now_ms: int) -> None:
        found = self._active.batches.get(batch)
        if found is not None and not found.ledger.is_cancelled:
            recalled = list(found.ledger.by_token)
            self._active.decide(batch, Cancel(), now_ms)
            self._acts.append(lambda: self._recall(recalled))
        self._acts.append(lambda: self._disk.remove(f"{places.INBOX}/{name}"))

    def _recall(self, names: list[str]) -> None:
        """Take slips off the board, wherever they are. An agent whose slip is gone ends its worker."""
        holdings = self._board.look_around()
        for name in names:
            for agent in holdings.holders_of(name):
                self._board.put_away(name, places.EXPIRED, holder=agent)

    # ------------------------------------------------------------ results

    def _hear(self, result: Result, now_ms: int) -> None:
        """Judge a result, if its token is the one that counts. Everything else is of an attempt that is over."""
        if self._heating.hear(result, now_ms):
            self._put_away(result.name, places.EXPIRED, result.agent)
            return
        scored = self._evaluations.hear(result)
        if scored is not None:
            self._put_away(result.name, places.EXPIRED, result.agent)
            self._judge_scored(scored, now_ms)
            return
        offer = self._active.offer_of(result.name)
        if offer is None:
            self._dropped += 1
            if self._puts_away_stale:  # what was stale when this epoch began was mended then
                self._put_away(result.name, places.EXPIRED, result.agent)
            return
        if result.end is End.DONE and self._missing(*offer):
            self._unseen.append(_Unseen(result, now_ms + limits.PRODUCES_MS_MAX))
        else:
            self._evaluate_or_judge(*offer, result, now_ms)

    def _evaluate_or_judge(self, ledger: Ledger, task: str, result: Result, now_ms: int) -> None:
        """Have an answer scored first, where the plan wants that and there is a model for it."""
        if result.end is not End.DONE or not is_evaluated(ledger, task) or not self._has_judge():
            self._judge(ledger, task, result, now_ms)
            return
        try:
            answer = self._disk.read(answer_path(ledger, task), limits.ANSWER_CHARS_MAX * 4)
        except NotAFile:
            answer = b""  # whoever put something else there gets a low score
        asked = self._evaluations.examine(ledger, task, result, answer, epoch=self.epoch, now_ms=now_ms)
        self._acts.append(lambda: self._disk.put(asked.path, asked.prompt))
        self._acts.append(lambda: self._board.publish(asked.name, asked.slip))

    def _has_judge(self) -> bool:
        """Whether the coordinator has a model, or its agent has not shown yet whether it has."""
        brain = self._living.get(places.BRAIN)
        return brain is None or bool(Fields(brain.values).text("model"))

    def _judge_scored(self, result: Result, now_ms: int) -> None:
        offer = self._active.offer_of(result.name)
        if offer is not None:
            self._judge(*offer, result, now_ms)

    def _accept_unscored(self, now_ms: int) -> None:
        for name, result in self._evaluations.overdue(now_ms).items():
            self._acts.append(lambda name=name: self._recall([name]))
            self._judge_scored(result, now_ms)

    def _judge(self, ledger: Ledger, task: str, result: Result, now_ms: int) -> None:
        if result.end is End.DONE:
            result = self._prepared_for_publication(ledger, task, result)
        entry = judge(task, ledger.state(task), ledger.spec(task), result, self._crowd)
        if isinstance(entry, Accept):
            self._publish_answer(ledger, task)
        self._active.decide(ledger.batch, entry, now_ms)
        self._put_away(result.name, self._folder_after(entry), result.agent)
        if self._bad_agents.hear(result.agent, task, result.end):
            _LOG.warning("action=hold agent=%s why=%d different tasks failed in a row", result.agent,
                         limits.FAILURES_IN_A_ROW_MAX)  # fmt: skip
            self._acts.append(lambda: send(self._disk, result.agent, Order.HOLD))

    def _prepared_for_publication(self, ledger: Ledger, task: str, result: Result) -> Result:
        """The result, or that of a failed attempt where its answer cannot be written to `output`."""
        try:
            publication = publication_of(ledger, task)
            if publication is not None:
                make_draft(self._disk, publication)
        except OursError as error:
            return replace(result, end=End.MISSING_OUTPUT, tail=str(error))
        return result

    def _publish_answer(self, ledger: Ledger, task: str) -> None:
        publication = publication_of(ledger, task)
        if publication is not None:
            self._acts.append(lambda: publish(self._disk, publication))

    def _missing(self, ledger: Ledger, task: str) -> str:
        """A file that the task promised to produce and that is not to be seen; "" where all are there."""
        work = Fields(ledger.spec(task).work)
        awaited = list(patterns_of(ledger, task, work.texts("produces")))
        if work.text("output") or work.text("evaluate"):
            awaited.append(glob.escape(answer_path(ledger, task)))
        return next((path for path in awaited if not self._disk.has(path)), "")

    def _look_again(self, now_ms: int) -> None:
        """Judge what waited for its files: caches of a network mount may show them late."""
        unseen, self._unseen = self._unseen, []
        for each in unseen:
            offer = self._active.offer_of(each.result.name)
            if offer is None:
                continue
            missing = self._missing(*offer)
            if not missing:
                self._evaluate_or_judge(*offer, each.result, now_ms)
            elif now_ms < each.until_ms:
                self._unseen.append(each)
            else:
                tail = f"{missing} is not there, and the task promises to produce it"
                failed = replace(each.result, end=End.MISSING_OUTPUT, tail=tail)
                self._judge(*offer, failed, now_ms)

    def _folder_after(self, entry: Accept | Fail | Lost | Hold) -> str:
        if isinstance(entry, Accept):
            return self._complete()
        if isinstance(entry, Hold):
            return places.MANUAL
        return places.FAILED if isinstance(entry, Fail) and entry.is_final else places.EXPIRED

    # ------------------------------------------------------------ agents

    def _look_at_agents(self, now_ms: int) -> None:
        if now_ms < self._agents_at_ms:
            return
        self._agents_at_ms = now_ms + _AGENTS_LOOK_MS
        living: dict[str, Heartbeat] = {}
        for agent in self._board.agents():
            heartbeat = read_heartbeat(self._disk, agent)
            pulse = None if heartbeat is None else heartbeat.pulse
            if self._watcher.is_dead(agent, pulse, now_ms):
                for name in self._board.held_by(agent):
                    self._revoke(name, Cause.AGENT_DEAD, agent, now_ms)
            elif heartbeat is not None:
                living[agent] = heartbeat
        budgets = [heartbeat.budget_mb for heartbeat in living.values()]
        slots = sum(max(1, budget // _SLOT_MB) for budget in budgets)
        self._living = living
        self._crowd = Crowd(frozenset(living), max(budgets, default=0), slots)
        self._look_at_waiting_tasks(now_ms)

    def _look_at_waiting_tasks(self, now_ms: int) -> None:
        """Have models loaded for tasks that wait for one, and tell of those that no living agent could run."""
        names = self._board.offered() if self._active.tokens else []
        needs = [need_of(*offer) for name in names if (offer := self._active.offer_of(name)) is not None]
        living = [ability_of(name, beat) for name, beat in self._living.items()]
        for need, lack in self._stranded.look(needs, living, now_ms):
            _LOG.warning("action=alert why=no living agent lacks=%s class=%s model=%s vram_mb=%d tasks=%d", lack.value,
                         need.task_class.value, need.model or "-", need.vram_mb, needs.count(need))  # fmt: skip
        self._heat([need for need in needs if not need.for_brain], now_ms)

    def _heat(self, waiting: list[Need], now_ms: int) -> None:
        agents = {
            name: beat
            for name, beat in self._living.items()
            if name != places.BRAIN and Fields(beat.values).items("models")
        }
        if agents:
            for name, slip in self._heating.look(agents, waiting, self.epoch, now_ms).items():
                self._acts.append(lambda name=name, slip=slip: self._board.publish(name, slip))

    def _look_for_stuck_tasks(self, now_ms: int) -> None:
        if now_ms < self._stuck_at_ms:
            return
        self._stuck_at_ms = now_ms + limits.STUCK_LOOK_MS
        for held, step in self._ladder.look(list(self._held()), now_ms):
            offer = self._active.offer_of(held.name)
            if offer is None:
                continue  # taken back in this turn
            batch, task = offer.ledger.batch, offer.task
            _LOG.warning(
                "action=%s agent=%s batch=%s task=%s why=stuck", step.name.lower(), held.agent, batch, task
            )
            if step is Step.GIVE_UP:
                self._active.decide(batch, Hold(task, Cause.STUCK), now_ms)
                self._put_away(held.name, places.MANUAL, held.agent)
            else:
                order = Order.ABORT if step is Step.ABORT else Order.KILL
                self._acts.append(
                    lambda held=held, order=order, task=task: send(self._disk, held.agent, order, task)
                )

    def _held(self) -> Iterator[Held]:
        """The tasks that living agents hold."""
        for agent, heartbeat in self._living.items():
            headway = heartbeat.headway
            for name in self._board.held_by(agent):
                offer = self._active.offer_of(name)
                if offer is not None and not self._evaluations.is_under_way(name):
                    ledger, task = offer
                    timeout_ms = Fields(ledger.spec(task).work).whole("timeout_ms")
                    got_to = headway.get((ledger.batch, task), Headway())
                    yield Held(name, agent, got_to, timeout_ms, heartbeat.is_constrained)

    def _revoke(self, name: str, cause: Cause, holder: str, now_ms: int) -> None:
        """Take a token back. Its slip leaves the board before the next one is offered."""
        offer = self._active.offer_of(name)
        if offer is not None:
            ledger, task = offer
            self._active.decide(ledger.batch, Revoke(task, ledger.state(task).attempt, cause, holder), now_ms)
        self._put_away(name, places.EXPIRED, holder)

    # ------------------------------------------------------------ offers

    def _expand(self, now_ms: int) -> None:
        """Give templates their tasks. A manifest that is being written is looked at again, a few times."""
        for (batch, template), fanout in list(self._active.fanouts.items()):
            ledger = self._active.batches[batch].ledger
            if ledger.is_cancelled or ledger.is_expanded(template):
                del self._active.fanouts[batch, template]
            elif now_ms >= fanout.not_before_ms:
                self._try_to_expand(ledger, template, fanout, now_ms)

    def _try_to_expand(self, ledger: Ledger, template: str, fanout: Fanout, now_ms: int) -> None:
        fanout.tries += 1
        fanout.not_before_ms = now_ms + _MANIFEST_AGAIN_MS
        try:
            manifest = read_manifest(self._disk, ledger, template)
            if read_manifest(self._disk, ledger, template).sha256 != manifest.sha256:
                raise OursError("the manifest changes while it is read")
            entries = expansion(ledger, template, manifest)
        except OursError as error:
            if fanout.tries < _MANIFEST_TRIES:
                return
            text = f"plan.md:{ledger.spec(template).line}: {error}"
            entries = [Fail(template, 0, "", End.FAILED, None, text, is_final=True)]
        del self._active.fanouts[ledger.batch, template]
        for entry in entries:
            self._active.decide(ledger.batch, entry, now_ms)

    def _release(self, now_ms: int) -> None:
        """Offer what is ready, as far as the window has room."""
        window = window_of(self._crowd)
        for task_class in TaskClass:
            while self._active.out[task_class] < window:
                found = self._active.lineup.take(task_class, now_ms)
                if found is None:
                    break
                self._offer(*found, now_ms)

    def _offer(self, batch: str, task: str, now_ms: int) -> None:
        ledger = self._active.batches[batch].ledger if batch in self._active.batches else None
        if ledger is None or ledger.phase(task) is not Phase.READY:
            return  # cancelled, or held, since it was lined up
        hold = hold_of(task, ledger.state(task))
        if hold is not None:
            self._hold(ledger, hold, now_ms)
            return
        issue = self._active.next_token(ledger, task)
        self._active.decide(batch, issue, now_ms)
        self._publish(issue.name)

    def _hold(self, ledger: Ledger, hold: Hold, now_ms: int) -> None:
        last = ledger.state(hold.task).last
        self._active.decide(ledger.batch, hold, now_ms)
        self._acts.append(lambda: self._move(f"{places.EXPIRED}/{last}", f"{places.MANUAL}/{last}"))

    # ------------------------------------------------------------ ends

    def _end_batches(self, now_ms: int) -> None:
        for name, batch in self._active.batches.items():
            ledger = batch.ledger
            if batch.may_have_ended and ledger.outcome is None and ledger.is_settled:
                self._active.decide(name, Ended(summary_of(ledger, 0).outcome), now_ms)
            batch.may_have_ended = False
            if ledger.outcome is not None:
                self._acts.append(lambda name=name: self._close_batch(name))

    def _close_batch(self, name: str) -> None:
        batch = self._active.batches[name]
        draw_last(self._disk, batch.ledger, self._wall_ms())
        self._disk.remove(f"{places.ACTIVE}/{name}.json")
        self._active.forget(name)

    def _draw(self, now_ms: int) -> None:
        """Refresh the pictures of batches that changed, now and then."""
        for batch in self._active.batches.values():
            if not batch.draw_at_ms:
                batch.draw_at_ms = now_ms + limits.SUMMARY_EVERY_MS
            if batch.is_drawn or now_ms < batch.draw_at_ms or batch.ledger.outcome is not None:
                continue
            batch.is_drawn, batch.draw_at_ms = True, now_ms + limits.SUMMARY_EVERY_MS
            self._acts.append(lambda ledger=batch.ledger: draw(self._disk, ledger, self._wall_ms()))

    # ------------------------------------------------------------ acts on the board

    def _publish(self, name: str) -> None:
        self._acts.append(lambda: self._publish_now(name))

    def _publish_now(self, name: str) -> None:
        offer = self._active.offer_of(name)
        if offer is None:
            return  # taken back in the same turn
        ledger, task = offer
        state = ledger.state(task)
        slip = Slip(
            task, ledger.batch, ledger.plan, state.attempt, self.epoch, state.vram_mb, state.avoid, ledger.inputs,
            ledger.items(task), _work_of(ledger, task), ledger.approved.get(task, ""),
        )  # fmt: skip
        self._board.publish(name, slip)

    def _put_away(self, name: str, folder: str, holder: str = "") -> None:
        self._acts.append(lambda: self._board.put_away(name, folder, holder=holder))

    def _complete(self) -> str:
        """The folder of today's complete tasks, which is made when it is first needed."""
        today = datetime.fromtimestamp(self._wall_ms() / 1000, UTC).date().isoformat()
        folder = places.complete_folder(today)
        if folder not in self._folders:
            self._disk.make_folder(folder)
            self._folders.add(folder)
        return folder

    def _move(self, source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # moved by a predecessor, or its reply was lost
            self._disk.move(source, target)


#: Where the last slip of a task that has ended lies.
_FOLDERS = {Phase.FAILED: places.FAILED, Phase.MANUAL: places.MANUAL}

#: In which order the inbox is read.
_KINDS = ("json", "reopen", "approve", "cancel")


def _work_of(ledger: Ledger, task: str) -> Mapping[str, object]:
    """What an agent is told; after a poor answer also what was wrong with it."""
    work, state = ledger.spec(task).work, ledger.state(task)
    return {**work, "remark": state.tail} if state.end is End.POOR else work


def _urgency(name: str) -> tuple[int, str]:
    kind = name.rpartition(".")[2]
    return (_KINDS.index(kind) if kind in _KINDS else len(_KINDS)), name


def _inputs_of(ledger: Ledger) -> dict[str, str | BelowRoot]:
    return decoded_inputs(dict(ledger.inputs))
