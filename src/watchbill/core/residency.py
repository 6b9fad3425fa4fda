"""Residency: what occupies memory, as the engines and the machine report it.

Believes only answers that carry the attempt that was asked for; late ones are dropped and counted. Every stage that
waits for an answer has a deadline, and what happens at the deadline is defined here. Idle models leave here, too.
"""

from collections.abc import Mapping

from watchbill.core.messages import (
    Alert,
    Blame,
    Cause,
    Died,
    HostSeen,
    Loaded,
    LoadFailed,
    Mishap,
    ModelReading,
    Observed,
    Proof,
    Slept,
    Stopped,
)
from watchbill.core.model_state import HOLDING, ModelState, Stage
from watchbill.core.state import State
from watchbill.core.transition import Transitions

__all__ = ["Residency"]

#: The engine layer ends a load at its limit and says why; the core waits a little longer for that answer.
LOAD_ANSWER_MS = 15_000
#: The engine layer's own stop ladder ends well before this.
STOP_LIMIT_MS = 20_000
STOP_TRIES = 3
#: A planned load that still does not fit is given up so long after the last of what stood in its way is gone.
PLAN_LIMIT_MS = 15_000
#: What the journal says of a model that is warm: no more than was proved.
_PROVEN = {
    Proof.CHAT: "warm: healthy, and a real prompt was answered",
    Proof.EMBED: "warm: healthy, and a real text was embedded",
    Proof.HTTP: 'healthy, and no real request was tried (probe = "http")',
    Proof.NONE: 'started, and nothing was asked (probe = "none")',
}


class Residency:
    """The table of what occupies memory."""

    def __init__(self, state: State, transitions: Transitions) -> None:
        self._state, self._do = state, transitions

    # ------------------------------------------------------------------ answers of the engines

    def loaded(self, event: Loaded, now: int) -> None:
        """A model is warm."""
        model = self._current(event.model, event.attempt, Stage.LOADING)
        if model is None:
            return
        taken, woke = now - model.since, model.load is model.wake
        model.load.learn(taken)
        model.failures, model.failure, model.trouble, model.hopeless = 0, None, None, False
        self._state.enter(model, Stage.READY, now)
        model.ready_at = model.last_used = self._state.active_at = now
        model.loads, model.wakings = model.loads + (not woke), model.wakings + woke
        model.bad_answers, model.is_suspect, model.is_benched = 0, False, False
        self._measure(model, event.measured)
        model.seen = {}
        size = sum(model.sizes().values())
        self._state.note(
            "awake" if woke else "loaded",
            _PROVEN[event.proof],
            model,
            ms=taken,
            size=size,
        )

    def load_failed(self, event: LoadFailed, now: int) -> None:
        """A model could not be brought up. What may be left of it counts until it was stopped."""
        model = self._current(event.model, event.attempt, Stage.LOADING)
        if model is None:
            return
        if not event.remains:
            self._state.enter(model, Stage.ABSENT, now)
        if event.blame is Blame.HOST:
            self._do.put_off(model, event.reason, now)
        elif event.blame is Blame.DISK:
            self._do.await_disk(model, event.reason, now)
        else:
            self._do.fail(model, event.reason, hopeless=event.hopeless, now=now)
        if event.remains:
            self._do.halt(model, event.reason, now, hard=True)

    def stopped(self, event: Stopped, now: int) -> None:
        """A model is gone and its memory is back."""
        model = self._current(event.model, event.attempt, Stage.STOPPING)
        if model is None:
            return
        model.halt.learn(now - model.since)
        self._state.note("stopped", model.leaving_why, model, ms=now - model.since)
        self._state.enter(model, Stage.ABSENT, now)

    def slept(self, event: Slept, now: int) -> None:
        """A model sleeps as it was told."""
        model = self._current(event.model, event.attempt, Stage.STOPPING)
        if model is not None:
            self._fall_asleep(model, event.measured, model.leaving_why, now)

    def _fall_asleep(self, model: ModelState, memory: Mapping[str, int], why: str, now: int) -> None:
        taken = now - model.since if model.stage is Stage.STOPPING else None
        model.leaving_for, model.stop_tries = "", 0
        model.asleep_size = dict(memory) or model.asleep_size
        model.held = dict(memory) or model.held
        self._state.enter(model, Stage.ASLEEP, now)
        self._state.weigh(model)
        self._state.note("asleep", why, model, ms=taken, size=sum(model.sizes_asleep().values()))

    def died(self, event: Died, now: int) -> None:
        """An engine went without being asked: its work returns or fails, its remains are cleared away."""
        stages = (Stage.LOADING, Stage.READY, Stage.DRAINING, Stage.ASLEEP, Stage.PLANNED)
        model = self._current(event.model, event.attempt, *stages)
        if model is not None and model.stage is Stage.PLANNED and model.sleeps:
            self._do.unplan(model, now)  # what was to be woken is gone
        if model is None or model.stage is Stage.PLANNED:
            return
        if event.blame is Blame.HOST:
            self._do.lose(model, event.reason, now)
        else:
            self._do.reset(model, f"its engine died: {event.reason}", now, mishap=Mishap.DIED)

    def host_seen(self, event: HostSeen, now: int) -> None:
        """What a program that hosts models says of itself, or that it says nothing.

        In its silence its models count as they were last seen, memory included: one that is only stopped for a while
        still has them. Nobody is sent there and nothing is loaded there until it has said what it holds."""
        hosted = [s for s in self._state.managed if s.spec.engine == event.engine]
        was_silent = self._state.silent.pop(event.engine, None) is not None
        if event.silence is not None:
            self._state.silent[event.engine] = event.silence
        for model in hosted:
            model.silence = event.silence
            if was_silent and event.silence is None and not model.is_quarantined(now):
                model.retry_at = now
        if self._state.ledger.set_places(event.engine, event.places):
            for model in hosted:
                self._state.weigh(model)
            if event.places is not None:
                self._state.note("places", f"{event.engine} holds {event.places} of our models at once")
        if was_silent is not (event.silence is not None):
            self._tell_silence(event, hosted)
        for model in hosted:
            if model.name in event.leaving and model.stage is Stage.READY:
                self._do.close(
                    model,
                    "",
                    f"{event.engine} unloads it when its answers have ended",
                    now,
                    cause=Cause.HOST,
                )
        self._state.remeasured()

    def _tell_silence(self, event: HostSeen, hosted: list[ModelState]) -> None:
        if event.silence is None:
            self._state.note("host_back", f"{event.engine} answers again")
            return
        self._state.note("host_silent", event.silence)
        names = ", ".join(s.name for s in hosted if s.line or s.stage is not Stage.ABSENT) or "nobody"
        text = f"{event.engine}: {event.silence}; {names} waits until it answers again"
        self._state.out.append(Alert("host", text))

    def _current(self, name: str, attempt: int, *stages: Stage) -> ModelState | None:
        model = self._state.models.get(name)
        if model is None or model.attempt != attempt or model.stage not in stages:
            self._state.late_answers += 1
            return None
        return model

    # ------------------------------------------------------------------ looks at the machine

    def observed(self, event: Observed, now: int) -> None:
        """Takes over what the machine says, and notices what nobody told."""
        self._state.remeasured()
        for name, reading in event.devices.items():
            if name in self._state.ledger.books:
                self._state.ledger.books[name].reading = reading
        for name, reading in event.models.items():
            model = self._state.models.get(name)
            if model is None or model.attempt != reading.attempt or model.stage not in HOLDING:
                continue
            if (
                not reading.alive
                and model.stage in (Stage.READY, Stage.DRAINING, Stage.ASLEEP)
                and event.taken_at > model.since
            ):
                self.died(Died(name, reading.attempt, "its process is gone"), now)
                continue
            model.held = dict(reading.memory)
            if reading.asleep is not None:
                self._see_sleep(model, reading, event.taken_at, now)
            if model.stage is Stage.READY:
                self._measure(model, reading.memory)
                if event.taken_at > model.since:
                    model.seen = dict(reading.memory)

    def _see_sleep(self, model: ModelState, reading: ModelReading, taken_at: int, now: int) -> None:
        """An engine may fall asleep by itself. Its memory is given away only from here on, where no request
        can reach it any more before that memory was promised to it again; until then it counts as warm."""
        fresh = taken_at > max(model.since, model.last_used)
        if model.stage is Stage.READY and reading.asleep and model.is_idle and fresh:
            self._fall_asleep(model, reading.memory, "its engine fell asleep by itself", now)
        elif model.stage is Stage.ASLEEP and fresh and not reading.asleep:
            self._state.enter(model, Stage.READY, now)  # its memory counts again, whoever has it now
            self._state.note("awake", "its engine woke by itself", model)
        elif model.stage is Stage.ASLEEP and reading.memory:
            model.asleep_size = dict(reading.memory)
            self._state.weigh(model)

    def _measure(self, model: ModelState, memory: Mapping[str, int]) -> None:
        if not memory:
            return
        model.held = dict(memory)
        model.measured = {d: max(size, model.measured.get(d, 0)) for d, size in memory.items()}
        self._state.weigh(model)

    # ------------------------------------------------------------------ the clock

    def close_idle(self, now: int) -> None:
        """RES-07: an idle model leaves after its time to live."""
        for model in self._state.in_stage(Stage.READY, Stage.ASLEEP):
            if model.silence is not None:
                continue  # it cannot be told to leave
            if self._is_sleepy(model, now):
                self._do.close(model, "", "nobody used it; it sleeps", now, cause=Cause.SLEEP, sleep=True)
                continue
            if not model.is_idle or not self._state.is_leaving_when_idle(model):
                continue
            if now >= model.last_used + model.idle_ms:
                wished = ", as its last caller wished" if model.keep_alive_ms is not None else ""
                why = f"idle for {model.idle_ms // 1000} s{wished}"
                self._do.close(model, "", why, now, cause=Cause.IDLE)

    @staticmethod
    def _is_sleepy(model: ModelState, now: int) -> bool:
        """Whether it is time to tell an idle model to sleep. One that sleeps by itself is only watched."""
        sleep_ms = model.spec.sleep_ms
        is_told = model.spec.sleeps_when_told and model.stage is Stage.READY and model.is_idle
        return is_told and sleep_ms is not None and now >= model.last_used + sleep_ms

    def enforce_deadlines(self, now: int) -> None:
        """What waits for an answer that does not come is ended here."""
        for model in self._state.in_stage(Stage.LOADING, Stage.STOPPING, Stage.PLANNED):
            deadline = self.deadline(model)
            if deadline is None or now < deadline:
                continue
            if model.stage is Stage.LOADING:
                late = f"not warm after {(now - model.since) // 1000} s"
                if model.silence is not None:
                    self._do.put_off(model, model.silence, now)
                else:
                    self._do.fail(model, late, hopeless=False, now=now)
                self._do.halt(model, "its load took too long", now, hard=True)
            elif model.stage is Stage.STOPPING:
                self._stop_again(model, now)
            elif model.stage is Stage.PLANNED:
                self._do.unplan(model, now)
                model.retry_at = now + PLAN_LIMIT_MS

    def deadline(self, model: ModelState) -> int | None:
        """When a model that waits for an answer stops waiting."""
        if model.stage is Stage.LOADING:
            return model.since + self._do.load_limit(model) + LOAD_ANSWER_MS
        if model.stage is Stage.STOPPING:
            return model.since + STOP_LIMIT_MS
        if model.stage is Stage.PLANNED and model.clear_since is not None:
            return model.clear_since + PLAN_LIMIT_MS
        return None

    def _stop_again(self, model: ModelState, now: int) -> None:
        """Tells it once more. A host that cannot be asked has not refused: its models count until it answers."""
        model.stop_tries += model.silence is None
        if model.stop_tries < STOP_TRIES:
            self._do.halt(model, model.leaving_why, now, hard=True)
            return
        text = f"{model.name} does not go away; what it holds is counted as foreign use from now on"
        self._state.out.append(Alert("stuck", text, model.name))
        self._state.enter(model, Stage.ABSENT, now)
        why = "its engine could not be stopped"
        self._do.fail(model, why, hopeless=True, now=now, mishap=Mishap.STUCK)
