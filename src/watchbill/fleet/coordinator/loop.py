"""The coordinator: one loop that turns what agents report into what they are offered next.

    start   take an epoch; on a mount that hides changes wait until a predecessor has seen it
    take up replay each active batch, begin new journals, hear what was reported, mend the board
    turn    read the inbox, the results and the heartbeats; decide; append; look; act

Decisions become entries of the journals (`active`). The board follows only after they are written, and only if no
successor has taken over meanwhile; `epochs` says why that is enough. A successor may repeat every act, and can mend
whatever a coordinator that dies at any moment leaves behind.

What people ask for is read by `inbox`, results are judged by `judging`, and what is done in the shared folder is
collected by `acts`. Agents, their heartbeats and stuck tasks, offers and the ends of batches are here.

An error of the disk, or a fault of our own, ends this coordinator, because its memory may be ahead of its journal then.
A new one starts from the files, in the same process or in another. The clocks and the disk are given from outside;
nothing here waits.
"""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from watchbill.errors import OursError
from watchbill.fleet import limits
from watchbill.fleet.coordinator.active import ActiveBatches, Fanout, Locked, Offer, denied
from watchbill.fleet.coordinator.acts import Acts
from watchbill.fleet.coordinator.heating import Heating
from watchbill.fleet.coordinator.holding import Holding
from watchbill.fleet.coordinator.inbox import Inbox
from watchbill.fleet.coordinator.judging import Judging
from watchbill.fleet.coordinator.opening import expansion, read_manifest
from watchbill.fleet.coordinator.watchers import Held, Ladder, Step, Stranded
from watchbill.fleet.folder import places
from watchbill.fleet.folder.board import Board, Holdings
from watchbill.fleet.folder.disk import Disk, is_of_the_path
from watchbill.fleet.folder.headway import Headway
from watchbill.fleet.folder.heartbeat import Heartbeat, Pulse, Watcher, read_heartbeat
from watchbill.fleet.folder.results import End, Result, ResultReader
from watchbill.fleet.folder.signals import Order, send, strays
from watchbill.fleet.folder.slips import Slip
from watchbill.fleet.folder.work import Work
from watchbill.fleet.logs import Part
from watchbill.fleet.matching.abilities import Need, ability_of, need_of
from watchbill.fleet.matching.claiming import claimed_ahead
from watchbill.fleet.matching.policy import Crowd, hold_of, window_of
from watchbill.fleet.state import epochs
from watchbill.fleet.state.entries import Cause, Ended, Fail, Hold, Revoke
from watchbill.fleet.state.ledger import Ledger, Phase
from watchbill.fleet.views.pictures import draw, draw_anew, draw_last, summary_of
from watchbill.limits import STUCK_AFTER_MS
from watchbill.plans.batch import ExecutePlan
from watchbill.plans.task import TaskClass
from watchbill.quoting import quoted

__all__ = ["Coordinator", "Turn"]

_LOG = Part.COORDINATOR.logger

#: A slot of an agent, in MiB of its budget: what a cpu task counts for (FLEET-02).
_SLOT_MB = 1024
_AGENTS_LOOK_MS = 1_000
_MANIFEST_AGAIN_MS = 1_000
_MANIFEST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did, and when the next one has something to do by the clock alone."""

    entries: int
    dropped: int  # results whose token does not count
    next_at_ms: int | None
    batches: int  # that have not ended
    #: There is something to do at once: files in the inbox, templates without dependencies.
    has_more: bool = False
    #: Agents have enough to claim: the next turn may wait until several results are there.
    may_gather: bool = False


class Coordinator:
    """One coordinator, from the moment it has taken an epoch."""

    def __init__(
        self,
        disk: Disk,
        watcher: Watcher,
        pulse: Pulse,
        *,
        host: str = "",
        root: str = "",
        fleet: str = "",
        wall_ms: Callable[[], int],
        stuck_after_ms: int = STUCK_AFTER_MS,
        summary_every_ms: int = limits.SUMMARY_EVERY_MS,
        produces_ms: int = limits.PRODUCES_MS_MAX,
        hides_ms: int = 0,
        set_aside: Mapping[str, str] = MappingProxyType({}),
        locked: Iterable[Locked] = (),
    ) -> None:
        """`wall_ms`, `host` and `root`, where this machine has the shared folder, are for people and decide nothing.

        `fleet` is the id of the shared folder, by which batches of another one are told. `set_aside`: batches at which
        earlier coordinators failed, and how; `locked`: those whose files failed them. `hides_ms`: how long the
        mount may hide what other machines have done.
        """
        self._disk = disk
        self._board = Board(disk)
        self._watcher = watcher
        self._pulse = pulse
        self._host = host
        self._root = root
        self._wall_ms = wall_ms
        self._summary_every_ms = summary_every_ms
        self._results = ResultReader(disk)
        self._ladder = Ladder(stuck_after_ms)
        self._heating = Heating()
        self._stranded = Stranded()
        self._has_no_signals = False  # this user may not read them
        self._hidden: set[str] = set()  # agents whose folder of slips cannot be read
        self._unread: frozenset[str] = frozenset()  # result logs that cannot be read
        self._strays: frozenset[str] = frozenset()  # files among the signals that no agent obeys
        self._stuck: set[str] = set()  # slips whose agents were asked to abort them
        self._active = ActiveBatches(disk, wall_ms, fleet, pulse.boot_id, set_aside=set_aside, locked=locked)
        self._acts = Acts(disk, self._board, self._active, wall_ms)
        self._inbox = Inbox(disk, self._active, self._acts)
        self._holding = Holding(disk, self._acts)
        self._judging = Judging(
            disk, self._board, self._active, self._acts, self._holding, produces_ms=produces_ms
        )
        self._hides_ms = hides_ms
        self._takes_up_at_ms: int | None = None  # while it waits for what its mount hides
        self._missing: dict[
            str, int
        ] = {}  # tokens whose slips are not to be seen -> when they are offered again
        self._living: dict[str, Heartbeat] = {}
        self._crowd = Crowd()
        self._dropped = 0
        self._agents_at_ms = self._beat_at_ms = self._stuck_at_ms = 0
        self._puts_away_stale = False
        self._drawn: dict[str, str] = {}  # batch -> plan: what was drawn since the last look
        self._undrawn: set[str] = set()  # batches of which a picture cannot be drawn

    @property
    def epoch(self) -> int:
        """The epoch that it has taken; 0 before its start."""
        return self._active.epoch

    @property
    def left_alone(self) -> Mapping[str, str]:
        """The batches that this coordinator does not touch, and why: their journals cannot be replayed, or earlier
        coordinators failed at them."""
        return self._active.left_alone

    @property
    def locked(self) -> list[Locked]:
        """Of those, the ones whose files cannot be used: they are tried again."""
        return [Locked(order, self.left_alone[batch]) for batch, order in self._active.locked.items()]

    @property
    def at(self) -> str:
        """The batch that it works on; "" for none."""
        return self._active.at

    def order_of(self, batch: str) -> ExecutePlan | None:
        """An active batch, as it is taken up again."""
        found = self._active.batches.get(batch)
        return None if found is None else ExecutePlan(batch, found.ledger.plan, {})

    # ------------------------------------------------------------ start

    def start(self, now_ms: int) -> None:
        """Take over. Raises Superseded when another one is faster still, OSError when the disk fails."""
        self._active.epoch = epochs.take_epoch(self._disk)
        has_to_wait = self._hides_ms > 0 and epochs.may_still_act(
            self._disk, self.epoch, self._pulse, self._watcher.kernel
        )
        self._takes_up_at_ms = now_ms + self._hides_ms if has_to_wait else None
        self._beat(now_ms)
        if has_to_wait:
            _LOG.info("action=wait epoch=%d seconds=%d why=another coordinator may not have seen it yet",
                      self.epoch, self._hides_ms // 1000)  # fmt: skip
        else:
            self._take_up(now_ms)

    def _take_up(self, now_ms: int) -> None:
        if self._takes_up_at_ms is not None:
            self._takes_up_at_ms = None
            self._beat(now_ms)
        self._agents_at_ms = now_ms
        self._stuck_at_ms = now_ms + limits.STUCK_LOOK_MS
        for order in self._inbox.batches():
            if order.batch in self._active.batches or order.batch in self._active.left_alone:
                continue
            if self._inbox.was_opened(order):
                self._active.take_up_or_leave(order, now_ms)
                self._active.at = ""
            elif order.batch in self._inbox.active and order.batch not in self._active.left_alone:
                own = places.batch_folder(order.plan, order.batch)
                self._active.lock_out(order, f"{own} has no journal any more; put the folder back")
        epochs.refuse_if_superseded(self._disk, self.epoch)
        # Before the board is mended: a token whose slip is gone is not offered again when its result is here. It would
        # run twice, and an answer could be replaced while the score of the first one is asked for.
        self._hear_all(now_ms)
        self._puts_away_stale = True
        self._mend(now_ms)
        self._finish()
        self._active.at = ""
        for batch, why in self.left_alone.items():
            _LOG.error("batch %s is left alone: %s", batch, why)

    def close(self) -> None:
        """Close the journals and keep them."""
        self._active.close()

    def offer_of(self, name: str) -> Offer | None:
        """The task that a token is for, if the token counts."""
        return self._active.offer_of(name)

    # ------------------------------------------------------------ mending

    def _mend(self, now_ms: int) -> None:
        """Let the board agree with the journals again: after a kill, and after a power cut that lost its names."""
        self._board.sweep_drafts()
        holdings = self._board.look_around()
        for name in sorted(holdings.queue):
            if self._active.is_locked(name):
                continue
            if name not in self._active.tokens:
                self._acts.put_away(name, self._resting_place(name))
            elif not self._board.is_readable(name):
                # A power cut leaves the name and takes the content. Its agent may be taking it in this moment: it is
                # never written again in place, or two slips would bear one token.
                self._revoke(name, Cause.UNREADABLE, "", now_ms)
        for agent, held in holdings.processing.items():
            for name in sorted(held - self._active.tokens.keys()):
                if not self._active.is_locked(name):
                    self._acts.put_away(name, self._resting_place(name), agent)
        self._publish_again([batch.ledger for batch in self._active.batches.values()], holdings, now_ms)

    def _mend_for(self, ledgers: list[Ledger], now_ms: int) -> None:
        """The same for batches that were taken up since: another coordinator may have died, or was superseded, between
        its decisions about them and its acts. What was reported while one could not be taken up is heard now."""
        if not ledgers:
            return
        self._hear_all(now_ms)
        for result in ResultReader(self._disk).read():
            offer = self._active.offer_of(result.name)
            if offer is not None and offer.ledger in ledgers and not self._judging.is_waiting(result.name):
                self._hear(result, now_ms)
        self._active.at = ""
        self._publish_again(ledgers, self._board.look_around(), now_ms)

    def _publish_again(self, ledgers: list[Ledger], holdings: Holdings, now_ms: int) -> None:
        """Show what was decided. What was accepted comes before anything is offered that may read it."""
        for ledger in ledgers:
            self._publish_answers_again(ledger)
        missing = [name for ledger in ledgers for name in ledger.by_token if name not in holdings]
        self._missing |= dict.fromkeys(missing, now_ms + self._hides_ms)
        self._look_for_missing(now_ms)

    def _look_for_missing(self, now_ms: int) -> None:
        """Offer the tokens again whose slips are nowhere. Once more is looked before that, and a mount gets the time to
        show what it hides: a slip that moved meanwhile would else be there twice, and two agents would run it."""
        if not self._missing:
            return
        holdings = self._board.look_around()
        for agent in holdings.hidden:
            self._tell_hidden(agent)
        for name, until_ms in list(self._missing.items()):
            self._active.at = ""
            is_found = (
                name in holdings or self._active.offer_of(name) is None or self._judging.is_waiting(name)
            )
            if is_found or (now_ms >= until_ms and not holdings.hidden):
                del self._missing[name]
                if not is_found:
                    self._publish(name)

    def _publish_answers_again(self, ledger: Ledger) -> None:
        self._active.at = ledger.batch
        for task in ledger.tasks():
            if ledger.phase(task) is Phase.COMPLETE:
                self._judging.publish_answer(ledger, task)

    def _resting_place(self, name: str) -> str:
        """Where a slip belongs whose token does not count any more."""
        for batch in self._active.batches.values():
            self._active.at = batch.ledger.batch
            task = batch.ledger.task_of_last(name)
            if task is not None:
                return self._acts.folder_of(batch.ledger.phase(task))
        return places.EXPIRED

    # ------------------------------------------------------------ a turn

    def turn(self, now_ms: int) -> Turn:
        """Read, decide, append, look, act. Raises Superseded and OSError: then this coordinator has ended."""
        self._active.at = ""
        epochs.refuse_if_superseded(self._disk, self.epoch)
        if now_ms >= self._beat_at_ms:
            self._beat(now_ms)
        if self._takes_up_at_ms is not None:
            if now_ms < self._takes_up_at_ms:
                return Turn(0, 0, self._takes_up_at_ms, 0)
            self._take_up(now_ms)
        self._dropped = 0
        has_more = self._inbox.read(now_ms)
        self._mend_for(self._inbox.taken_up(), now_ms)
        self._judging.look_again(self._crowd, now_ms)
        self._active.at = ""
        self._hear_all(now_ms)
        self._look_for_missing(now_ms)
        self._judging.accept_unscored(self._crowd, now_ms)
        self._look_at_agents(now_ms)
        self._look_for_stuck_tasks(now_ms)
        self._expand(now_ms)
        self._release(now_ms)
        self._judging.put_away_accepted()
        self._end_batches(now_ms)
        self._draw(now_ms)
        has_more |= any(fanout.not_before_ms <= now_ms for fanout in self._active.fanouts.values())
        written = self._finish()
        self._active.at = ""  # what happens between two turns is of no batch
        return Turn(
            written, self._dropped, self._active.lineup.next_at_ms, len(self._active.batches), has_more,
            may_gather=self._active.out.total() > 2 * max(1, self._crowd.slots),
        )  # fmt: skip

    def _finish(self) -> int:
        """Write, look, act: in this order, and nothing is acted on that does not count."""
        written = self._active.write()
        if self._acts:
            epochs.refuse_if_superseded(self._disk, self.epoch)
            self._acts.carry_out()
        if self._drawn:
            self._look_behind_drawing()
        return written

    def _look_behind_drawing(self) -> None:
        """Have no old picture stay over that of a successor. Every other act may be late: what it does is over then."""
        drawn, self._drawn = self._drawn, {}
        try:
            epochs.refuse_if_superseded(self._disk, self.epoch)
        except epochs.Superseded:
            for batch, plan in drawn.items():
                with contextlib.suppress(OSError, OursError):  # it leaves all the same: the successor counts
                    draw_anew(self._disk, plan, batch, self._wall_ms(), self._root)
            raise

    def _beat(self, now_ms: int) -> None:
        self._pulse = replace(self._pulse, seq=self._pulse.seq + 1)
        waits = self._takes_up_at_ms is not None
        epochs.announce(self._disk, self.epoch, self._host, self._pulse, waits=waits)
        self._beat_at_ms = now_ms + limits.COORDINATOR_BEAT_MS

    # ------------------------------------------------------------ results

    def _hear_all(self, now_ms: int) -> None:
        for result in self._results.read():
            self._hear(result, now_ms)
            self._active.at = ""
        if self._results.unread or self._unread:
            for path in self._results.unread.keys() - self._unread:
                _LOG.error("action=unread file=%s why=%s; what this agent reports waits until it can be read",
                           quoted(path), self._results.unread[path])  # fmt: skip
            self._unread = frozenset(self._results.unread)

    def _hear(self, result: Result, now_ms: int) -> None:
        """Have a result judged, if its token is the one that counts. Everything else is of an attempt that is over."""
        if result.end is End.ABORTED and result.name in self._stuck:
            result = replace(result, tail="stuck: it showed no sign of progress for too long and was aborted")
        self._stuck.discard(result.name)
        if self._heating.hear(result, now_ms):
            self._acts.put_away(result.name, places.EXPIRED, result.agent)
        elif not self._judging.hear(result, self._crowd, now_ms):
            self._dropped += 1
            if self._puts_away_stale and not self._active.is_locked(result.name):
                # What was stale when this epoch began is mended by then.
                # Not EXPIRED: its token may have been accepted in this turn, with the slip still to be put away.
                self._acts.put_away(result.name, self._resting_place(result.name), result.agent)

    # ------------------------------------------------------------ agents

    def _look_at_agents(self, now_ms: int) -> None:
        if now_ms < self._agents_at_ms:
            return
        self._agents_at_ms = now_ms + _AGENTS_LOOK_MS
        self._active.at = ""
        living: dict[str, Heartbeat] = {}
        for agent in self._board.agents():
            heartbeat = read_heartbeat(self._disk, agent)
            pulse = None if heartbeat is None else heartbeat.pulse
            if self._watcher.is_dead(agent, pulse, now_ms):
                self._revoke_all_of(agent, heartbeat, now_ms)
                self._active.at = ""
            elif heartbeat is not None:
                living[agent] = heartbeat
        budgets = [heartbeat.budget_mb for heartbeat in living.values()]
        slots = sum(max(1, budget // _SLOT_MB) for budget in budgets)
        self._living = living
        self._holding.look(living, now_ms)
        free = self._holding.free_of(living)
        self._crowd = Crowd(free, max(budgets, default=0), slots, _has_judge(living))
        self._look_at_waiting_tasks(now_ms)

    def _revoke_all_of(self, agent: str, heartbeat: Heartbeat | None, now_ms: int) -> None:
        """Take back what a dead agent holds, but what it has reported. A task that had not started there cannot be what
        killed the agent."""
        held = [name for name in self._held_by(agent) if not self._judging.is_waiting(name)]
        slots = 0 if heartbeat is None else heartbeat.report.cpu_slots or 0
        ahead = claimed_ahead([name for name in held if name in self._active.tokens], slots)
        for name in held:
            cause = Cause.UNSTARTED if name in ahead else Cause.AGENT_DEAD
            self._revoke(name, cause, agent, now_ms)

    def _held_by(self, agent: str) -> list[str]:
        """What an agent holds, as far as that can be seen: a folder that its user keeps private stops no others."""
        try:
            return self._board.held_by(agent)
        except PermissionError:
            self._tell_hidden(agent)
            return []

    def _tell_hidden(self, agent: str) -> None:
        if agent not in self._hidden:
            self._hidden.add(agent)
            _LOG.error("action=hidden folder=%s why=permission denied; let the user of the coordinator, %d, read and "
                       "write there; until then nobody else gets what may lie there",
                       places.processing_folder(agent), os.geteuid())  # fmt: skip

    def _look_at_waiting_tasks(self, now_ms: int) -> None:
        """Have models loaded for tasks that wait for one, and tell of those that no living agent could run."""
        names = self._board.offered() if self._active.tokens else []
        needs = [need_of(*offer) for name in names if (offer := self._active.offer_of(name)) is not None]
        self._active.at = ""  # what agents say of themselves is no batch's fault
        living = [ability_of(name, beat) for name, beat in self._living.items()]
        for need, lack in self._stranded.look(needs, living, now_ms):
            _LOG.warning("action=alert why=no living agent lacks=%s class=%s model=%s vram_mb=%d tasks=%d", lack.value,
                         need.task_class.value, need.model or "-", need.vram_mb, needs.count(need))  # fmt: skip
        self._heat([need for need in needs if not need.for_brain], now_ms)

    def _heat(self, waiting: list[Need], now_ms: int) -> None:
        agents = {
            name: beat for name, beat in self._living.items() if name != places.BRAIN and beat.report.models
        }
        if agents:
            for name, slip in self._heating.look(agents, waiting, self.epoch, now_ms).items():
                self._acts.later(lambda name=name, slip=slip: self._board.publish(name, slip))

    def _look_for_stuck_tasks(self, now_ms: int) -> None:
        if now_ms < self._stuck_at_ms:
            return
        self._stuck_at_ms = now_ms + limits.STUCK_LOOK_MS
        self._active.at = ""
        self._tell_of_strays()
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
                self._acts.put_away(held.name, places.MANUAL, held.agent)
            else:
                self._stuck.add(held.name)
                order = Order.ABORT if step is Step.ABORT else Order.KILL
                self._acts.later(
                    lambda held=held, order=order, task=task: send(self._disk, held.agent, order, task)
                )

    def _tell_of_strays(self) -> None:
        """Say once which files among the signals no agent obeys."""
        try:
            found = dict(strays(self._disk, self._living.keys()))
        except PermissionError as error:  # agents say what becomes of signals
            if not self._has_no_signals:
                _LOG.error("action=signal file=%s why=%s", places.SIGNALS, error.strerror)
            self._has_no_signals = True
            return
        self._has_no_signals = False
        for name in found.keys() - self._strays:
            _LOG.warning("action=signal file=%s why=%s", quoted(name), found[name].value)
        self._strays = frozenset(found)

    def _held(self) -> Iterator[Held]:
        """The tasks that living agents hold."""
        for agent, heartbeat in self._living.items():
            headway = heartbeat.headway
            for name in self._held_by(agent):
                offer = self._active.offer_of(name)
                if offer is not None and not self._judging.is_waiting(name):
                    ledger, task = offer
                    timeout_ms = ledger.spec(task).work.timeout_ms
                    got_to = headway.get((ledger.batch, task), Headway())
                    yield Held(name, agent, got_to, timeout_ms, heartbeat.is_constrained)

    def _revoke(self, name: str, cause: Cause, holder: str, now_ms: int) -> None:
        """Take a token back. Its slip leaves the board before the next one is offered."""
        offer = self._active.offer_of(name)
        if offer is None:  # over, or accepted in this turn
            if not self._active.is_locked(name):
                self._acts.put_away(name, self._resting_place(name), holder)
                self._judging.lose(name, self._crowd, now_ms)
            return
        ledger, task = offer
        self._active.decide(ledger.batch, Revoke(task, ledger.state(task).attempt, cause, holder), now_ms)
        self._acts.put_away(name, places.EXPIRED, holder)

    # ------------------------------------------------------------ offers

    def _expand(self, now_ms: int) -> None:
        """Give templates their tasks. A manifest that is being written is looked at again, a few times."""
        for (batch, template), fanout in list(self._active.fanouts.items()):
            self._active.at, ledger = batch, self._active.batches[batch].ledger
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
        self._active.at = batch
        ledger = self._active.batches[batch].ledger if batch in self._active.batches else None
        if ledger is None or task not in ledger or ledger.phase(task) is not Phase.READY:
            return  # cancelled, held, or gone with its fan-out, since it was lined up
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
        self._acts.shelve(f"{places.EXPIRED}/{last}", f"{places.MANUAL}/{last}")

    # ------------------------------------------------------------ ends

    def _end_batches(self, now_ms: int) -> None:
        for name, batch in self._active.batches.items():
            self._active.at, ledger = name, batch.ledger
            if batch.may_have_ended and ledger.outcome is None and ledger.is_settled:
                self._active.decide(name, Ended(summary_of(ledger, 0).outcome), now_ms)
            batch.may_have_ended = False
            if ledger.outcome is not None:
                self._acts.later(lambda name=name: self._close_batch(name))

    def _close_batch(self, name: str) -> None:
        batch = self._active.batches[name]
        self._drawn[name] = batch.ledger.plan
        with self._drawing(name):
            draw_last(self._disk, batch.ledger, self._wall_ms(), self._root)
        self._inbox.show_ended(name)
        self._active.forget(name)

    def _draw(self, now_ms: int) -> None:
        """Refresh the pictures of batches that changed, now and then."""
        for name, batch in self._active.batches.items():
            self._active.at = name
            if not batch.draw_at_ms:
                batch.draw_at_ms = now_ms + min(limits.SUMMARY_FIRST_MS, self._summary_every_ms)
            if batch.is_drawn or now_ms < batch.draw_at_ms or batch.ledger.outcome is not None:
                continue
            batch.is_drawn, batch.draw_at_ms = True, now_ms + self._summary_every_ms
            self._acts.later(lambda ledger=batch.ledger: self._draw_now(ledger))

    def _draw_now(self, ledger: Ledger) -> None:
        self._drawn[ledger.batch] = ledger.plan
        with self._drawing(ledger.batch):
            draw(self._disk, ledger, self._wall_ms())

    @contextlib.contextmanager
    def _drawing(self, batch: str) -> Generator[None]:
        """Say once of a batch that a picture of it cannot be drawn, because of what lies in its place or who may write
        there: no decision reads one."""
        try:
            yield
        except OSError as error:
            if not (is_of_the_path(error) or isinstance(error, FileNotFoundError)):
                raise
            if batch not in self._undrawn:
                self._undrawn.add(batch)
                _LOG.error("action=draw batch=%s why=%s", batch, denied(error))

    # ------------------------------------------------------------ acts on the board

    def _publish(self, name: str) -> None:
        self._acts.later(lambda: self._publish_now(name))

    def _publish_now(self, name: str) -> None:
        offer = self._active.offer_of(name)
        if offer is None:
            return  # taken back in the same turn
        ledger, task = offer
        state = ledger.state(task)
        slip = Slip(
            task, ledger.batch, ledger.plan, state.attempt, self.epoch, state.vram_mb, state.avoid, ledger.inputs,
            ledger.items(task), _work_of(ledger, task), ledger.approved.get(task, ""), state.since,
        )  # fmt: skip
        self._board.publish(name, slip)


def _work_of(ledger: Ledger, task: str) -> Work:
    """What an agent is told; after a poor answer also what was wrong with it."""
    work, state = ledger.spec(task).work, ledger.state(task)
    return replace(work, remark=state.tail) if state.end is End.POOR else work


def _has_judge(living: Mapping[str, Heartbeat]) -> bool:
    """Whether the coordinator has a model, or its agent has not shown yet whether it has."""
    brain = living.get(places.BRAIN)
    return brain is None or bool(brain.report.model)
