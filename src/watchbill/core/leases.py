"""Leases: the right of another machine to have its work done here, which a person at this machine revokes (RES-23).

    asked ──▶ held ◀── renewed (every 20 s, by the peer)
                │
                ├──▶ ended      the peer gave it back
                └──▶ swept      60 s without a renewal, by this machine's own clock: the peer is gone

A leased request runs under a lease and ends with it. A person at work (an interactive request of this machine that
arrives, waits, runs or has just ended, unless another machine is to serve it) revokes all leases at once: running
leased requests go back to their line, those without a byte at once and the others at their next safe boundary, and the
models that only they need leave memory. The leases stay held, and so do the requests; after 60 s of quiet both go on
from where they were. While a person works no leased request starts, and nothing is loaded for one.

Owns the table of leases. Does no I/O: the driver passes on what peers ask.
"""

from watchbill.catalog import WorkClass
from watchbill.core.messages import (
    CutKind,
    Decline,
    JournalEvent,
    LeaseAsked,
    LeaseEnded,
    LeaseRenewed,
    Refusal,
    Reply,
    Request,
)
from watchbill.core.reasons import (
    AT_WORK,
    Cause,
    LeaseGranted,
    LeaseOver,
    LeaseRevoked,
    LeasesPaused,
    LeasesRestored,
)
from watchbill.core.residency import Residency
from watchbill.core.stages import Stage
from watchbill.core.state import Lease, State

__all__ = ["LEASE_MS", "QUIET_MS", "RENEW_MS", "Lease", "Leases"]

#: A lease that was not renewed for this long is swept; the peer renews it this often.
LEASE_MS = 60_000
RENEW_MS = 20_000
#: Leased work goes on after this long without interactive work of this machine.
QUIET_MS = 60_000
#: Leases that one peer may hold at a time.
LEASES_OF_PEER_MAX = 16
_LEASED = WorkClass.LEASED


class Leases:
    """All leases of this machine."""

    def __init__(self, state: State, residency: Residency) -> None:
        self._state, self._residency = state, residency

    # ------------------------------------------------------------------ events

    def asked(self, event: LeaseAsked, now: int) -> None:
        """Grants a lease, or declines it: the model is not here or can never be, or the peer holds too many."""
        state = self._state
        model = state.models.get(event.model)
        held = sum(lease.peer == event.peer for lease in state.leases.values())
        if model is None or model.is_retired or model.spec.site is not None:
            self._decline(event, Refusal.MODEL_NOT_FOUND, f"{event.model} is not served here")
        elif model.is_quarantined(now):
            self._decline(
                event, Refusal.MODEL_FAILED, f"{event.model}: {model.failure}", model.retry_at - now
            )
        elif not state.can_ever_fit(model):
            self._decline(event, Refusal.NEVER_FITS, f"{event.model} can never fit here")
        elif held >= LEASES_OF_PEER_MAX:
            self._decline(event, Refusal.LANE_FULL, f"{event.peer} already holds {held} leases", RENEW_MS)
        elif (quiet_in_ms := self._quiet_in_ms(now)) > 0:
            self._decline(event, Refusal.NO_LEASE, AT_WORK, quiet_in_ms)
        else:
            state.leases[event.id] = Lease(event.id, event.peer, event.model, now)
            state.wakes.append(now + LEASE_MS)
            state.note(JournalEvent.LEASE, LeaseGranted(event.peer, LEASE_MS), model)
            state.out.append(Reply(event.command, True, event.id))

    def _decline(self, event: LeaseAsked, code: Refusal, text: str, retry_ms: int | None = None) -> None:
        self._state.out.append(Decline(event.command, code, text, retry_ms))

    def _quiet_in_ms(self, now: int) -> int:
        """How long a person counts as at work here, if none comes: also where no lease was held that she could
        revoke."""
        state = self._state
        person_at = now if self._is_person_at_work() else state.person_at
        return max(0, person_at + QUIET_MS - now)

    def renewed(self, event: LeaseRenewed, now: int) -> None:
        """The peer lives."""
        lease = self._state.leases.get(event.id)
        if lease is not None:
            lease.renewed_at = now

    def ended(self, event: LeaseEnded, now: int) -> None:
        """The peer gave it back."""
        if event.id in self._state.leases:
            lease = self._state.leases[event.id]
            self._drop(lease, LeaseOver(lease.peer), now)

    def refuses(self, request: Request) -> bool:
        """Refuses a leased request whose lease is over or for another model, and one that another site serves while a
        person works here; False: it may wait."""
        state, lease = self._state, self._state.leases.get(request.lease or "")
        if lease is not None and lease.model == request.model:
            if not (request.is_elsewhere and state.leases_held_back):
                return False
            # Its lease goes on. One that waits, perhaps in a stream that has begun, is told that it has none: only that
            # lets its machine ask elsewhere.
            state.refuse(request.id, Refusal.LANE_FULL, AT_WORK, RENEW_MS)
            return True
        self._state.refuse(request.id, Refusal.NO_LEASE, "there is no such lease; ask for one first")
        return True

    # ------------------------------------------------------------------ people

    def make_way(self, now: int) -> None:
        """A person uses this machine: leased work makes way at once."""
        state = self._state
        if not state.leases_held_back:
            state.leases_held_back = True
            state.note(JournalEvent.LEASE_REVOKED, LeasesPaused(len(state.leases)))
        state.quiet_at = now + QUIET_MS
        state.wakes.append(state.quiet_at)
        for model in state.models.values():
            for running in model.running.values():
                if running.request.work_class is _LEASED and running.cut is None:
                    state.cut(running, CutKind.BOUNDARY if running.begun else CutKind.REQUEUE, now)
        for each in state.lines():  # not only of leased models: what waits may have gone to another one
            if each.line.counts[_LEASED]:
                for request_id in list(each.line.ids()):
                    self.send_away(request_id)
        self._hand_over(now)

    def send_away(self, request_id: str) -> None:
        """Refuses a leased request that waits, has no byte of its answer, and need not wait for the person here: its
        machine has another site for it."""
        state, model = self._state, self._state.home.get(request_id)
        if model is None or request_id not in model.line or not state.leases_held_back:
            return
        request = model.line.get(request_id)
        if request.is_elsewhere:
            state.withdraw(model, request_id)
            state.refuse(request_id, Refusal.NO_LEASE, AT_WORK)

    def _hand_over(self, now: int) -> None:
        """Has the models leave that only leased work needs: their memory is the person's."""
        state = self._state
        for model in state.in_stage(Stage.READY, Stage.LOADING, Stage.PLANNED):
            if model.spec.permanent or state.is_reserved_core(model) or model.users:
                continue
            work = [r.request.work_class for r in model.running.values()]
            highest = min(model.top_class(), model.turn_class())
            only_leased = all(each is _LEASED for each in work) and highest >= _LEASED
            if only_leased and model.last_class is _LEASED:
                peers = sorted({x.peer for x in state.leases.values() if x.model == model.name})
                self._residency.close(model, LeaseRevoked(tuple(peers)), now, cause=Cause.LEASE)

    # ------------------------------------------------------------------ time

    def turn(self, now: int) -> None:
        """Sweeps leases that were not renewed, and lets leased work go on after a time of quiet."""
        state = self._state
        if not state.leases and not state.leases_held_back:
            return
        for lease in list(state.leases.values()):
            if now >= lease.renewed_at + LEASE_MS:
                self._drop(lease, LeaseOver(lease.peer, LEASE_MS), now)
            else:
                state.wakes.append(lease.renewed_at + LEASE_MS)
        if state.leases and self._is_person_at_work():
            state.person_at = now
            if not state.leases_held_back:
                self.make_way(now)  # a request that another machine was to serve waits here now
        if not state.leases_held_back:
            return
        state.quiet_at = state.person_at + QUIET_MS
        if now >= state.quiet_at or not state.leases:
            state.leases_held_back = False
            state.note(JournalEvent.LEASE_RESTORED, LeasesRestored(len(state.leases)))
        else:
            state.wakes.append(state.quiet_at)

    def _is_person_at_work(self) -> bool:
        if self._state.local_interactive_waits():
            return True
        models = self._state.models.values()
        return any(running.serves_person for model in models for running in model.running.values())

    def _drop(self, lease: Lease, why: LeaseOver, now: int) -> None:
        """Ends a lease and the requests under it."""
        state = self._state
        del state.leases[lease.id]
        state.note(JournalEvent.LEASE_END, why, state.models.get(lease.model))
        for model in state.lines():
            for request_id in model.line.ids():
                if model.line.get(request_id).lease == lease.id:
                    state.withdraw(model, request_id)
                    state.refuse(request_id, Refusal.NO_LEASE, f"its lease has ended: {why.how}")
            for running in list(model.running.values()):
                if running.request.lease == lease.id:
                    state.cut(running, CutKind.PREEMPTED, now)
