"""The watchdog: detects failures that no event reports (RES-20, RES-18).

A model that answers nothing but failures, or uses more memory than its quota, is reset like one that died: its work
returns or fails, and repeated failure leads to quarantine. Failures in a row may be the callers' fault, and one
caller must not take a model from all others. So before the reset the model is asked a simple question. A request that
received not one byte in all its time is reason enough to ask.

A model without a quota of its own may grow while memory is free; the ledger counts it. Where memory is short, a model
that uses far more than it ever needed is reset, before other models have to leave for it. A permanent model has the
memory of idle ones, too: they leave for it.

A missing answer is a proof only where the model had nothing else to do. Engines process one long prompt after the
other, whatever slots they have free, may have fewer slots than the config says, and are silent for minutes: a
question among other requests waits like any of them. So the model takes no new requests while it is asked. Requests
that ran before end well, which settles the question, or end by their own time limit. Then the model is asked alone.
That delays no request for long: a healthy model answers at once, and a fault that keeps it from answering us keeps it
from answering its callers, too.

A simple question proves little about answers that began and stopped in the middle: the engine took those requests. So
after several of them, with no good answer in between, the model is reset even if it answers questions. Where it
answered other callers since its last such reset, the next one has to wait.

A load that takes far longer than expected is reported while it goes on: a first load has a limit of minutes, and until
then nothing else says that its engine hangs.

Silence is also reported: where background rotation should keep the daemon busy, a long time without any event means
that something is wrong.
"""

from dataclasses import dataclass

from watchbill.core.contenders import movable
from watchbill.core.messages import Alert, AlertKind, Check, Checked, JournalEvent
from watchbill.core.model_state import ModelState
from watchbill.core.reasons import AboveUsual, OverQuota, Reason, Stalls, Unwell, Well
from watchbill.core.stages import LEAVING, STAYING, Stage
from watchbill.core.state import State

__all__ = ["Watchdog"]

#: Failed answers in a row that count as a dead engine.
BAD_ANSWERS_MAX = 3
#: A model fails the question when no answer came in this time: the time that a starting model has, and a little more,
#: because the engine layer reports why it failed.
CHECK_MS = 70_000
#: A model that is asked alone and is known to answer faster has less time: this many times its usual silence, the
#: time of a load (its weights may have to be read again), and at least the second figure, because a busy machine
#: answers late. One that is asked beside other requests has as long before it is asked again alone.
ALONE_FACTOR = 4
ALONE_MS_MIN = 10_000
#: A model without a question is reset when its answers have failed for this long: three failures may come in a
#: second, all of one caller.
UNASKED_MS = 60_000
#: A model that answered is not asked again before this is over: a caller that goes on sending bad requests must not
#: keep it busy with our questions.
WELL_MS = 30_000
#: Answers that stopped in the middle, in a row, that count as a hung engine although it answers simple questions.
STALLED_MAX = 6
#: A model that answered callers since it was reset for such answers is not reset for them again before this is over:
#: one caller may send many requests that it cannot serve.
STALL_RESET_PAUSE_MS = 600_000
#: Before that it is waited for the good end of its running answers: each has this many times the usual time of an
#: answer, and at least the second figure. Some may run for an hour, and no other request is served meanwhile.
LONG_ANSWER_FACTOR = 10
LONG_ANSWER_MS_MIN = 600_000
#: Where memory is short a model may use this many times the memory that it needed before.
QUOTA_FACTOR = 1.15
#: Silence is measured against the rotation's interval and this.
SILENCE_EXTRA_MS = 60_000


@dataclass(slots=True)
class _Question:
    """A simple question that a model is asked."""

    since: int
    until: int  # a missing answer counts as a failure from then on
    is_alone: bool  # nothing else ran there, and no request is sent there meanwhile
    number: int  # in a row, each of them a failed answer like any other
    failure: str | None = None  # the failure in place of an answer


class Watchdog:
    """Runs in every step and rarely acts."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._silent_since: int | None = None  # of the silence that was already reported
        self._asked: dict[tuple[str, int], _Question] = {}  # models and attempts with an open question
        self._well: dict[tuple[str, int], int] = {}  # those that gave a good answer -> when
        self._slow: set[tuple[str, int]] = set()  # loads that were already reported as slow

    def faults(self, now: int) -> list[tuple[ModelState, Reason]]:
        """The ready models that must be reset, and why."""
        found: list[tuple[ModelState, Reason]] = []
        for model in self._state.in_stage(Stage.READY):
            if model.is_cut_off:
                continue  # nothing is known about it until the program that hosts it answers again
            if over := self._over_quota(model):
                found.append((model, over))
            elif self._is_stalling(model, now):
                model.is_suspect = True  # running answers may be well: a good end settles it
                if not self._awaits_good_end(model, now):
                    model.stall_reset_at = now
                    found.append((model, Stalls(model.stalled)))
            elif (model.is_suspect or model.bad_answers >= BAD_ANSWERS_MAX) and (
                unwell := self._examine(model, now)
            ):
                found.append((model, unwell))
        return found

    @staticmethod
    def _is_stalling(model: ModelState, now: int) -> bool:
        """Whether its answers stop in the middle, so many in a row that no simple question can outweigh them."""
        is_first = model.resets or now - model.stall_reset_at >= STALL_RESET_PAUSE_MS
        return model.stall_weight >= STALLED_MAX and bool(is_first)

    def _awaits_good_end(self, model: ModelState, now: int) -> bool:
        """Whether an answer runs that may still be well: one that takes far longer than usual has stopped, too."""
        allowed_ms = max(LONG_ANSWER_MS_MIN, round(LONG_ANSWER_FACTOR * model.service.ms))
        ends = max((running.since + allowed_ms for running in model.running.values()), default=now)
        if now < ends:
            self._state.wakes.append(ends)
        return now < ends

    def _examine(self, model: ModelState, now: int) -> Unwell | None:
        """Has a model asked a simple question. Returns why it is not well, once that is known."""
        which = (model.name, model.attempt)
        question = self._asked.get(which)
        if question is None:
            if now < self._well.get(which, -WELL_MS) + WELL_MS:
                model.is_suspect = False
            elif model.lingering and not model.running:
                # It is asked once it has let go of cut requests: alone, which is a proof.
                model.is_suspect = True
                let_go_at = max(each.until for each in model.lingering.values())
                model.doubted_until = let_go_at + round(_alone_ms(model))
            else:
                self._ask(model, now)
            return None
        is_over = now >= question.until
        if not question.is_alone:
            # It may have been busy with other requests. A good end of one of them settles the question.
            had_time = question.failure is not None or now >= question.since + ALONE_MS_MIN
            if is_over or (had_time and not model.in_use):
                self._ask(model, now)
            return None
        if question.failure is None and not is_over:
            return None
        if model.bad_answers + question.number < BAD_ANSWERS_MAX:
            self._ask(model, now, question.number + 1)
            return None
        self._forget(which)
        return Unwell(model.bad_answers, model.stalled, question.failure)

    def _ask(self, model: ModelState, now: int, number: int = 1) -> None:
        which, is_alone = (model.name, model.attempt), not model.in_use
        until = now + (_alone_ms(model) if is_alone else CHECK_MS)
        self._asked[which] = _Question(now, until, is_alone, number)
        model.is_suspect, model.doubted_until = True, until
        self._state.out.append(Check(*which))

    def _forget(self, which: tuple[str, int]) -> None:
        del self._asked[which]
        if (model := self._state.models.get(which[0])) is not None:
            model.is_suspect = False

    def checked(self, event: Checked, now: int) -> None:
        """Handles the answer to a question. If the model answered, its callers had sent requests that it cannot
        serve.
        """
        self._tidy()
        which = (event.model, event.attempt)
        if which not in self._asked:
            self._state.late_answers += 1
            return
        model, question = self._state.models[event.model], self._asked[which]
        is_proven = model.bad_answers >= BAD_ANSWERS_MAX and now - model.bad_since >= UNASKED_MS
        if event.failure is not None and (event.was_asked or is_proven):
            question.failure = event.failure
            return
        self._forget(which)
        self._well[which] = now
        if event.was_asked:
            self._state.note(JournalEvent.WELL, Well(model.bad_answers, model.stalled), model)
            model.bad_answers = model.unheard_ms = 0

    def deadlines(self) -> list[int]:
        """When an asked model must have answered, or may be asked again."""
        self._tidy()
        asked = [question.until for question in self._asked.values()]
        asked += [question.since + ALONE_MS_MIN for question in self._asked.values() if not question.is_alone]
        return asked + [at + WELL_MS for at in self._well.values()]

    def _tidy(self) -> None:
        """Forgets models that are no longer ready, and questions to those that gave a good answer since."""
        if not (self._asked or self._well):
            return
        ready = {(model.name, model.attempt): model for model in self._state.in_stage(Stage.READY)}
        self._well = {which: at for which, at in self._well.items() if which in ready}
        for which in list(self._asked):
            if which not in ready or not ready[which].is_suspect:
                self._forget(which)

    def _over_quota(self, model: ModelState) -> OverQuota | AboveUsual | None:
        for device, held in model.held.items():
            quota, usual = model.spec.quota, model.usual(device)
            if quota is not None and held > quota:
                return OverQuota(model.name, device, held, quota)
            if quota is None and usual and held > QUOTA_FACTOR * usual and self._is_short(model, device):
                return AboveUsual(model.name, device, held, usual)
        return None

    def _is_short(self, model: ModelState, device: str) -> bool:
        """Whether a device holds more than it may, or has less free than its reserve. Growth alone is no fault."""
        state, book = self._state, self._state.ledger.books.get(device)
        if book is None or book.reading is None or book.in_maintenance:
            return False
        idle = coming = 0
        if model.spec.permanent:
            idle = sum(s.frees().get(device, 0) for s in movable(state, model) if s.is_idle)
            coming = idle + state.used(device, *LEAVING)
        over = state.used(device, *STAYING) - idle > state.ledger.limit(device)
        return over or book.reading.available + coming < book.device.reserve

    def watch_loads(self, now: int) -> None:
        """Raises an alert for each load that takes far longer than expected."""
        loading = {(model.name, model.attempt): model for model in self._state.in_stage(Stage.LOADING)}
        self._slow &= loading.keys()
        for which, model in loading.items():
            if which in self._slow:
                continue
            if now < model.slow_at:
                self._state.wakes.append(model.slow_at)
                continue
            self._slow.add(which)
            self._state.out.append(Alert(AlertKind.SLOW_LOAD, _slow_text(model, now), model.name))

    def listen(self, interval_ms: int | None, now: int) -> None:
        """Raises an alert when nothing has happened for too long."""
        rules, last = self._state.catalog.rotation, self._state.active_at
        bound = rules.silence_ms or (None if interval_ms is None else interval_ms + SILENCE_EXTRA_MS)
        if not rules.silence or bound is None:
            return
        lent = any(book.in_maintenance for book in self._state.ledger.books.values())
        if last is None or lent:  # maintenance by the operator is no silence
            last = self._state.active_at = now
        if now - last < bound:
            self._state.wakes.append(last + bound)
        elif self._silent_since != last:
            self._silent_since = last
            text = f"no load, no grant and no background task for {(now - last) // 1000} s"
            self._state.out.append(Alert(AlertKind.SILENCE, text))


def _alone_ms(model: ModelState) -> int:
    """How long a model that has nothing else to do may take for a simple question."""
    load_ms = model.load_from_disk_ms if model.load.is_guess else model.load.high_ms
    return round(min(CHECK_MS, max(ALONE_MS_MIN, ALONE_FACTOR * model.silence_ms, load_ms)))


def _slow_text(model: ModelState, now: int) -> str:
    taken, usual = (now - model.since) / 1000, model.load.ms / 1000
    guess = " (a guess)" if model.load.is_guess else ""
    return (
        f"{model.name} has been loading for {taken:.0f} s, where {usual:.0f} s were expected{guess}; "
        f"see `watchbill logs {model.name}`, and set models.{model.name}.load_timeout if it needs that long"
    )
