"""Loans: memory of a device that a person or a task has for a while (RES-14).

A loan is an amount, not a device: models go on beside it. It is granted when the memory is there and reduces the
device's budget until it ends. Requests for models stay ahead of loans:

- Only models that have been idle for longer than they are worth keeping leave for a loan, and only if it says so. A
  model in use, a permanent one and one for which a request waits never do.
- While a request of a person or of a plan, or a permanent model, waits for memory and could not have it beside the
  loan, the loan is refused. So a chain of short loans keeps no model out.

A loan whose memory is still in use by models on their way out is promised: no plan takes that memory, and the reply
comes when it is free. A refusal says after which time the idle models may have made room.
"""

from watchbill.catalog import WorkClass
from watchbill.core.companions import Candidate
from watchbill.core.cover import cover
from watchbill.core.ledger import DeviceBook, Loan
from watchbill.core.messages import Decline, JournalEvent, LoanAsked, LoanEnded, Observed, Refusal, Reply
from watchbill.core.model_state import ModelState
from watchbill.core.policy import movable
from watchbill.core.reasons import Cause, Lent
from watchbill.core.residency import Residency
from watchbill.core.stages import AWAY
from watchbill.core.state import State
from watchbill.units import format_bytes

__all__ = ["Loans"]

#: A promised loan whose memory did not become free by then is refused: a model does not leave, or others took it.
GRANT_LIMIT_MS = 30_000
#: The shortest time after which a refused loan is worth asking for again.
RETRY_MS_MIN = 1_000


class Loans:
    """Grants, promises and refuses loans."""

    def __init__(self, state: State, residency: Residency) -> None:
        self._state, self._residency = state, residency

    # ------------------------------------------------------------------ events

    def asked(self, event: LoanAsked, now: int) -> None:
        """Promises a loan, or refuses it at once. A promise is granted by `turn`, in this step where possible."""
        book = self._state.ledger.books.get(event.device)
        if book is None:
            self._state.out.append(Reply(event.command, False, f"there is no device {event.device}"))
            return
        loan = Loan(event.id, event.device, event.bytes, event.why, event.command, now)
        victims = self._refusal(book, loan, now) or self._make_room(book, loan, event.evict_idle, now)
        if isinstance(victims, Decline):
            self._state.out.append(victims)
            return
        book.loans[loan.id] = loan
        self._state.remeasured()
        for victim in victims:
            self._residency.close(victim, Lent(loan.device, loan.size, loan.why), now, cause=Cause.LOAN)

    def ended(self, event: LoanEnded, now: int) -> None:
        """Takes a loan back. One that is unknown is over already: its device left the config, or it was refused."""
        for book in self._state.ledger.books.values():
            loan = book.loans.pop(event.id, None)
            if loan is None:
                continue
            self._state.remeasured()
            if loan.is_granted:
                self._note(JournalEvent.LOAN_END, loan, event.why, now - loan.asked_at)

    def observed(self, event: Observed) -> None:
        """Takes over how much of each loan is in use."""
        for book in self._state.ledger.books.values():
            for id, loan in book.loans.items():
                loan.used = event.loans.get(id, loan.used)

    # ------------------------------------------------------------------ the step

    def turn(self, now: int) -> None:
        """Grants every promised loan whose memory is there, in the order in which they were asked for."""
        for book in self._state.ledger.books.values():
            for loan in [loan for loan in book.loans.values() if not loan.is_granted]:
                self._settle(book, loan, now)

    def _settle(self, book: DeviceBook, loan: Loan, now: int) -> None:
        if refusal := self._obstacle(book, loan):
            self._drop(book, loan, refusal)
        elif self._is_there(book, loan):
            loan.is_granted = True
            self._state.remeasured()
            self._note(JournalEvent.LOAN, loan, loan.why, now - loan.asked_at)
            text = f"{format_bytes(loan.size)} of {loan.device} is lent to you"
            self._state.out.append(Reply(loan.command, True, text))
        elif now >= loan.asked_at + GRANT_LIMIT_MS:
            self._drop(book, loan, self._short(book, loan, RETRY_MS_MIN))
        else:
            self._state.wakes.append(loan.asked_at + GRANT_LIMIT_MS)

    def _is_there(self, book: DeviceBook, loan: Loan) -> bool:
        """Whether the memory is free now, and no plan counts on it."""
        name = book.device.name
        return self._state.actual_free()[name] >= loan.size and self._state.planned_free()[name] >= 0

    def _drop(self, book: DeviceBook, loan: Loan, refusal: Decline) -> None:
        del book.loans[loan.id]
        self._state.remeasured()
        self._state.out.append(refusal)

    # ------------------------------------------------------------------ why not

    def _refusal(self, book: DeviceBook, loan: Loan, now: int) -> Decline | None:
        if obstacle := self._obstacle(book, loan):
            return obstacle
        name, ledger = book.device.name, self._state.ledger
        kept = sum(needs.get(name, 0) for needs in self._state.permanents())
        room = ledger.capacity_of(name) - kept
        if loan.size > room and ledger.capacity_known(name):
            most = f"{format_bytes(max(0, room))} is all there is beside the reserve and permanent models"
            text = f"{format_bytes(loan.size)} of {name} can never be lent: {most}"
            return Decline(loan.command, Refusal.NEVER_FITS, text)
        if not book.has_fresh_reading:
            text = f"memory of {name} cannot be lent: {name} cannot be read; watchbill doctor says why"
            return Decline(loan.command, Refusal.DEVICE_UNREADABLE, text)
        if now < book.settled_at:
            return self._short(book, loan, book.settled_at - now, f"{name} ran out of memory a moment ago")
        if (owed := self._owed(book, loan)) is not None:
            return self._short(book, loan, None, f"a request waits for {owed.name}, which needs that memory")
        return None

    def _obstacle(self, book: DeviceBook, loan: Loan) -> Decline | None:
        """A reason that also ends a promise."""
        if self._state.is_closing:
            return Decline(loan.command, Refusal.SHUTTING_DOWN, "Watchbill is shutting down")
        if book.in_maintenance:
            text = f"{book.device.name} is in maintenance: {book.lent_for}"
            return Decline(loan.command, Refusal.MAINTENANCE, text)
        return None

    def _owed(self, book: DeviceBook, loan: Loan) -> Candidate | None:
        """The model that waits for memory of this device and could not have it beside this loan and the others."""
        name, state = book.device.name, self._state
        beside = book.lent + book.promised + loan.size
        for model in (*state.in_stage(*AWAY), *state.companion_sets.values()):
            needed = sum(member.needs.get(name, 0) for member in model.members)
            if not needed or not _comes_first(model):
                continue
            kept = sum(needs.get(name, 0) for needs in state.permanents(*model.members))
            if needed + kept + beside > state.ledger.capacity_of(name):
                return model
        return None

    def _make_room(
        self, book: DeviceBook, loan: Loan, evict_idle: bool, now: int
    ) -> tuple[ModelState, ...] | Decline:
        """The idle models that must leave for a loan; a refusal where they are not enough."""
        name = book.device.name
        lacking = loan.size - self._state.planned_free()[name]
        if lacking <= 0:
            return ()
        idle = [s for s in self._unwanted() if self._is_free(s, now)] if evict_idle else []
        victims = cover({name: lacking}, idle, lambda s: s.price(now))
        if victims is not None:
            return victims
        return self._short(book, loan, self._room_in_ms(name, lacking, evict_idle, now))

    @staticmethod
    def _is_free(model: ModelState, now: int) -> bool:
        """Whether a model may leave for a loan: it has no work, and its callers are unlikely to come back."""
        return model.has_lingered(now)

    def _unwanted(self) -> list[ModelState]:
        """The models that may leave, less those for which a request waits as companions of another."""
        awaited = {s.name for each in self._state.companion_sets.values() if each.line for s in each.members}
        return [s for s in movable(self._state) if s.name not in awaited]

    def _room_in_ms(self, device: str, lacking: int, evict_idle: bool, now: int) -> int | None:
        """When enough models will have been idle for long enough, if no further request comes."""
        leaving = [s for s in self._unwanted() if s.frees().get(device)]
        if not evict_idle:
            leaving = [s for s in leaving if self._state.is_leaving_when_idle(s)]
        for ms, model in sorted(
            ((_gone_in_ms(s, evict_idle, now), s) for s in leaving), key=lambda each: (each[0], each[1].name)
        ):
            lacking -= model.frees()[device]
            if lacking <= 0:
                return max(RETRY_MS_MIN, round(ms))
        return None

    def _short(self, book: DeviceBook, loan: Loan, retry_ms: int | None, why: str | None = None) -> Decline:
        """The refusal of a loan for which there is no memory now."""
        if why is None:
            free = format_bytes(max(0, self._state.planned_free()[book.device.name]))
            lent = f" and {format_bytes(book.lent)} is lent" if book.lent else ""
            why = f"{free} is free{lent}, and the models there are in use"
        text = f"{format_bytes(loan.size)} of {book.device.name} cannot be lent now: {why}"
        return Decline(loan.command, Refusal.NO_MEMORY, text, retry_ms)

    def _note(self, event: JournalEvent, loan: Loan, why: str, ms: int) -> None:
        self._state.note(event, why, device=loan.device, size=loan.size, request=loan.id, ms=ms)


def _comes_first(model: Candidate) -> bool:
    """Whether the memory that it waits for may not be lent: a request of a person or a plan, or a permanent model."""
    if isinstance(model, ModelState) and model.must_return:
        return not model.hopeless
    return model.wants_memory and model.turn_class() <= WorkClass.NORMAL


def _gone_in_ms(model: ModelState, evict_idle: bool, now: int) -> float:
    """Until a model could have left for a loan, if it gets no further request."""
    stays_ms = model.linger_ms if evict_idle else model.idle_ms
    if model.is_idle:
        return max(0.0, model.last_used + stays_ms - now) + model.halt.ms
    return model.residual(now) + stays_ms + model.halt.ms
