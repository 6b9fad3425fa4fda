"""The state of one model: its stage, its line, its running requests, and what was learned about it.

A model is state and questions about it; it decides nothing. `residency` has the table of its stages and the acts that
change them.
"""

import math

from watchbill.catalog import Model, PolicyRules, WorkClass
from watchbill.core.candidate import LOAD_GUESS_FLOOR_MS, NEVER, CandidateState, HeldTurn
from watchbill.core.estimate import OFF_FACTOR, Context, MeanEstimate, MedianEstimate
from watchbill.core.messages import LULL_MS, Cause, Ended, Footprint, Knowledge, Mishap, Parting
from watchbill.core.reasons import Reason
from watchbill.core.resources import Resource
from watchbill.core.running import BOUNDARY_MS, Lingering, Running
from watchbill.core.stages import AWAY, ModelStatus, Stage

__all__ = ["PAUSE_MS", "STALL_MS", "WHOLE_TURNS", "ModelState"]

#: First guesses, marked as guesses until there is a measurement.
LOAD_GUESS_BYTES_PER_MS = 200_000
STOP_GUESS_MS = 1_000
SLOWDOWN_WEIGHT = 0.1
#: Silence is suspicious when it lasts this many times longer than the learned time to the first byte.
SILENCE_FACTOR = 5
SILENCE_MS_MIN = 1_000
FIRST_BYTE_GUESS_MS = 2_000
#: An answer stopped in the middle when nothing came for this long, or for longer than the model's usual silence: the
#: slowest measured model needs 2 s for a token. After the longer time it counts twice.
STALL_MS = 2_500
LONG_STALL_MS = 60_000
#: One slot is kept for the top class when it used the model this recently.
TOP_CLASS_MEMORY_MS = 300_000
#: A load that takes longer than this no longer counts as occupying the bus.
STUCK_FACTOR = 2
STUCK_EXTRA_MS = 2_000
#: A load that takes longer than that and than this is reported, and makes room for other models that wait. Each failure
#: in a row doubles that time: a model that only starts slowly is loaded in the end. A higher class waits less.
SLOW_LOAD_MS_MIN = 30_000
SLOW_LOAD_DOUBLINGS_MAX = 4
#: Limits of a load: this many times the longest that was measured, and at least this. One that was never measured gets
#: more.
LOAD_LIMIT_FACTOR = 3
#: A load that was given up because it took too long is followed by one that may take this many times longer.
LOAD_LIMIT_GROWTH = 2
LOAD_LIMIT_MS_MIN = 10_000
LOAD_LIMIT_UNMEASURED_MS = 300_000
#: The pause of a caller that sends its next request right after an answer.
PAUSE_MS = 20
#: So much later than it was told may a caller come back, and find its model in memory.
RETURN_GRACE_MS = 1_000
#: A model whose answers take this share of its time, pauses included, hardly ever runs dry.
BUSY_SHARE = 0.9
#: A model that ran dry between two requests is not kept busy for this long.
PAUSE_MEMORY_MS = 60_000
#: A turn that was cut short is followed by this many whole ones of the same model.
WHOLE_TURNS = 2
#: The pause of people for which it waits after lost turns is doubled so often.
LOST_TURNS_MAX = 6
#: A model that failed this often in a row is quarantined.
LOAD_ATTEMPTS = 3
QUARANTINE_FIRST_MS = 60_000
QUARANTINE_MAX_MS = 3_600_000
#: A load that failed because of the program that hosts the model is retried after this.
HOST_RETRY_MS = 1_000
#: For this long after such a failure other sites go first. Then a request tries it again, and moves if that fails.
HOST_AWAY_MS = 5_000


#: Read at every start; looking a member up in its enum takes ten times longer.
_INTERACTIVE, _ROTATION = WorkClass.INTERACTIVE, WorkClass.ROTATION


class ModelState(CandidateState):
    """One model."""

    serving: "ModelState"  # itself: the model that answers the requests of its line
    members: "tuple[ModelState, ...]"  # itself: the models that must be in memory for it
    left: Cause | None = None  # why it was last unloaded
    is_routed = False  # the routing rule has a say even while it is free; kept by the state
    good_at = NEVER  # its last good answer
    callers = 1  # how many it has at least: the most answers that ran at once in this stay in memory
    away_until = NEVER  # as long as its host counts as away
    is_put_off = False  # its last load failed without a fault of its own, which the journal has said
    person_at = NEVER  # the last interactive request that needed it
    lost_turns = 0  # at whose end none of its answers had a word, less those in which one had
    paused_at = NEVER  # when a request last found it in memory without work
    stall_reset_at = NEVER  # when it was last reset for answers that stopped in the middle
    given_up_ms = 0.0  # the longest load since the last good one that was given up because it took so long
    doubted_until = NEVER  # of a suspect model: when the watchdog's question is over at the latest
    kept_until: float = NEVER  # for the caller of a held turn, of this class
    kept_class = WorkClass.ROTATION

    def __init__(self, spec: Model, rules: PolicyRules, known: Knowledge) -> None:
        super().__init__(spec.name, spec, rules)
        self.serving, self.members = self, (self,)
        self.stage = Stage.READY if spec.shared else Stage.ABSENT
        self.attempt = self.plan_order = 0
        self.lingering: dict[str, Lingering] = {}  # cut runs that the engine still works on, by their name
        self.users: dict[str, Running] = {}  # requests that run elsewhere and need it beside their own model
        self.awaited: WorkClass | None = None  # the highest class that waits for it and others together
        self.is_kept_for_set = False  # its set is being loaded: no swap evicts it
        self.companion_sets: list[CandidateState] = []  # the ready sets whose next request it would serve
        self.footprint = known.footprint
        self.measured: dict[str, int] = {}  # the most memory it was seen to occupy while warm
        self.seen: dict[
            str, int
        ] = {}  # its memory in the last reading since its load and its last good answer
        self.healthy: dict[str, int] = {}  # the most memory seen before a good answer
        self.held: dict[str, int] = {}  # its memory in the last reading of the machine
        self.sleeps = False  # it sleeps, is going to, or is planned to wake: its process keeps running
        self.asleep_needs: dict[Resource, int] = {}  # of the ledger's resources while it sleeps
        self.asleep_size = dict(known.asleep)  # the memory it was last seen to occupy asleep
        size = sum(known.footprint.expected.values())
        self.load_from_disk_ms = LOAD_GUESS_FLOOR_MS + size / LOAD_GUESS_BYTES_PER_MS
        self.cold_load_ms = known.cold_load_ms  # the same, as earlier runs measured it
        #: `load` is `wake` while it sleeps.
        self.load = self.cold_load = MedianEstimate(self.load_from_disk_ms)
        self.wake = MedianEstimate(self.load_from_disk_ms)
        #: To its first byte, and to its stop.
        self.first, self.halt = MeanEstimate(FIRST_BYTE_GUESS_MS), MeanEstimate(STOP_GUESS_MS)
        self.person_gap = MeanEstimate(TOP_CLASS_MEMORY_MS)  # between two interactive requests that need it
        self.context = Context(spec.concurrency)
        self.plan_class = WorkClass.ROTATION  # the class that it is loaded for
        self.keep_alive_ms: int | None = None  # asked for by its last caller, in place of its own idle time
        self.idle_ms: int = spec.idle_ms  # how long it stays without work: one or the other
        self.ready_at = NEVER
        self.whole_turns = WHOLE_TURNS  # since one was cut short
        # -- the way in and out
        self.clear_since: int | None = None  # since when nothing is in the way of its plan
        #: Its own plan, or that of a set; and whether others were closed for it.
        self.plan_for, self.plan_costs = self.name, False
        self.leaving_for = ""  # the model that replaces it
        self.leaving_why: Reason | str = ""
        self.aborts = self.reversals = 0
        self.emergency, self.grace_ms = False, 0.0  # in an emergency: how long it may drain
        self.is_evicted_by_hand = False  # the operator unloaded it
        self.successor: Model | None = None  # its new definition, once it is out of memory
        self.is_retired = False  # no longer in the config
        # -- trouble
        self.failures, self.trouble = 0, None if known.failure is None else Mishap.LOAD_FAILED
        self.failure = known.failure  # the last reason, for people
        self.hopeless = known.failure is not None  # the same load fails again: its file is missing or corrupt
        self.retry_at = QUARANTINE_FIRST_MS if self.hopeless else NEVER
        self.stop_tries = self.bad_answers = self.bad_since = 0  # in a row, and since when
        self.unheard_ms = 0  # total time of runs without a byte, since the last byte or bad answer
        self.stalled = self.stalled_long = 0  # answers that stopped in the middle, since the last good one
        self.resets = 0  # without a good answer or long health in between: being warm alone proves little
        self.is_suspect = False  # the watchdog's question to it is open: it gets no request before its answer
        self.loads = self.evictions = self.wakings = 0  # for people
        self._recall(known)

    def _recall(self, known: Knowledge) -> None:
        """Takes over the figures that earlier runs learned."""
        for kind, ms in (
            (self.load, known.load_ms),
            (self.wake, known.wake_ms),
            (self.service, known.service_ms),
        ):
            if ms is not None:
                kind.learn(ms)

    @property
    def arriving(self) -> tuple["ModelState", ...]:
        """Itself."""
        return (self,)

    def enter(self, stage: Stage, now: int) -> None:
        """Enters the next stage. While it sleeps, `load` means waking; the first guess for that is its load time."""
        if stage is Stage.READY:
            self.rate.came(now)
        elif self.stage is Stage.READY:
            self.rate.left(now, self.linger_ms, self.callers)
            self.left_at = now
            self.callers = 1
        if stage not in (Stage.READY, Stage.DRAINING):
            self.context.forget()
        self.stage, self.since = stage, now
        if self.lingering and stage not in (Stage.READY, Stage.DRAINING):
            self.lingering = {}  # the runs of its process end with it
        if stage is Stage.ASLEEP:
            if self.wake.is_guess:
                self.wake = MedianEstimate(self.cold_load.ms)
            self.sleeps, self.load = True, self.wake
        elif stage in (Stage.ABSENT, Stage.READY):
            self.sleeps, self.load = False, self.cold_load
        elif stage is Stage.LOADING:
            self.sleeps = False

    # ------------------------------------------------------------------ sizes

    def sizes(self) -> dict[str, int]:
        """The memory it occupies, or will: measured where possible, never below its floor."""
        if not self.measured:
            return dict(self.footprint.expected)
        floor = self.footprint.floor
        return {d: max(size, floor.get(d, 0)) for d, size in self.measured.items()}

    def usual(self, device: str) -> int:
        """The memory it needs of a device: as declared, predicted, or seen while healthy; 0 where that is unknown."""
        return max(self.healthy.get(device, 0), self.footprint.expected.get(device, 0))

    def shrink(self) -> None:
        """Drops the readings above what it needs: it was reset because of them."""
        self.measured = {device: min(size, self.usual(device)) for device, size in self.measured.items()}

    @property
    def may_begin_anew(self) -> bool:
        """Whether its expected size is one that an earlier daemon saw it grow to, and a load needs less."""
        return bool(self.footprint.fresh) and not self.measured and self.stage is Stage.ABSENT

    def begin_anew(self) -> None:
        """Drops the growth that an earlier daemon saw."""
        fresh = self.footprint.fresh
        self.footprint = Footprint(
            fresh, {d: min(s, fresh.get(d, s)) for d, s in self.footprint.floor.items()}
        )

    def sizes_asleep(self) -> dict[str, int]:
        """The memory it occupies asleep: as seen, as declared, or, where that is unknown, all that it occupies warm."""
        known = self.asleep_size or self.spec.asleep
        return {d: min(known.get(d, size), size) for d, size in self.sizes().items()}

    def frees(self) -> dict[Resource, int]:
        """The resources that are free again when it leaves."""
        return self.asleep_needs if self.stage is Stage.ASLEEP else self.needs

    # ------------------------------------------------------------------ trouble

    def is_quarantined(self, now: int) -> bool:
        """Whether it failed so often, or so surely, that no request should wait for it now."""
        return now < self.retry_at and (self.hopeless or self.failures >= LOAD_ATTEMPTS)

    def status(self, now: int) -> ModelStatus:
        """Its stage, or its failure where that keeps it out of memory."""
        if self.stage is Stage.ABSENT and self.failure is not None:
            if self.hopeless:
                return ModelStatus.FAILED
            if self.is_quarantined(now):
                return ModelStatus.QUARANTINED
        return ModelStatus(self.stage.value)

    def put_off(self, reason: str, now: int) -> bool:
        """Records a failure that is not its own: it is retried soon, and never quarantined for it. Returns whether that
        is news."""
        is_news = not self.is_put_off or self.failure != reason
        if self.hopeless:  # it was, and now waiting may help: a peer that knew no such key has no lease now
            self.hopeless, self.failures = False, 0
        self.failure, self.retry_at, self.away_until = reason, now + HOST_RETRY_MS, now + HOST_AWAY_MS
        self.is_put_off = True
        return is_news

    def forgive(self, now: int) -> None:
        """Forgets every failure: it may be tried at once."""
        self.failures = self.resets = 0
        self.failure, self.hopeless, self.retry_at, self.away_until = None, False, now, NEVER
        self.is_put_off = False

    def fail(self, reason: str, *, hopeless: bool, now: int) -> None:
        """Counts a failure and backs off: seconds at first, then 1, 2, 4 ... 60 minutes."""
        self.failures += 1
        self.failure, self.hopeless, self.is_put_off = reason, hopeless, False
        if hopeless or self.failures >= LOAD_ATTEMPTS:
            doublings = min(max(0, self.failures - LOAD_ATTEMPTS), 6)
            pause = min(QUARANTINE_FIRST_MS * 2**doublings, QUARANTINE_MAX_MS)
        else:
            pause = 1_000 * 2**self.failures
        self.retry_at = now + pause

    # ------------------------------------------------------------------ the work

    @property
    def is_idle(self) -> bool:
        """Whether it has no waiting or running requests, and no request elsewhere needs it."""
        return not self.line and not self.running and not self.users and self.awaited is None

    def keep_alive(self, wished_ms: int | None) -> None:
        """Takes over the idle time that a caller asked for; None: its own idle time."""
        self.keep_alive_ms = wished_ms
        self.idle_ms = self.spec.idle_ms if wished_ms is None else wished_ms

    @property
    def wants_memory(self) -> bool:
        """Whether it has work for which it must be loaded."""
        return self.stage in AWAY and bool(self.line or self.held_turn)

    @property
    def is_planned_for(self) -> bool:
        """Whether there is still a reason to load it."""
        return bool(self.line or self.held_turn is not None or self.spec.permanent or self.is_kept_for_set)

    @property
    def must_return(self) -> bool:
        """Whether it is permanent, not in memory, and was not unloaded by hand."""
        return self.spec.permanent and self.stage is Stage.ABSENT and not self.is_evicted_by_hand

    def top_class(self) -> WorkClass:
        """The highest class of its work; rotation when there is none. Held turns do not count."""
        top = self.line.top_class()
        for running in self.running.values():
            top = min(top, running.request.work_class)
        if self.users or self.awaited is not None:
            beside = (r.request.work_class for r in self.users.values())
            top = min(top, *beside, WorkClass.ROTATION if self.awaited is None else self.awaited)
        return top

    def worth_class(self, now: int) -> WorkClass:
        """The class that it is kept for: the highest class of its work, or of its last caller while it lingers."""
        if not self.is_idle:
            return self.top_class()
        return WorkClass.ROTATION if self.has_lingered(now) else self.last_class

    def slots_for(self, work_class: WorkClass, now: int) -> int:
        """The slots that a request of this class may use. One slot is kept for a top class seen lately."""
        slots = 0 if self.is_suspect or self.is_cut_off else self.spec.concurrency
        if work_class is _INTERACTIVE or slots <= 1:
            return slots
        return slots - 1 if now - self.top_class_at < TOP_CLASS_MEMORY_MS else slots

    def count_use(self, work_class: WorkClass, now: int) -> None:
        """Counts an arrival that asks for it and is served by it as demand. Rotation is no demand."""
        if work_class is _ROTATION:
            return
        self.note_pause(now)
        self.last_used, self.last_class = now, work_class
        if work_class is _INTERACTIVE:
            self.top_class_at = now
            self.note_person(now)
        self.rate.learn(self.rules.weights[work_class], now)

    def note_person(self, now: int) -> None:
        """Notes an interactive request that needs it, alone or beside others."""
        if self.person_at != NEVER:
            self.person_gap.learn(now - self.person_at)
        self.person_at = now

    def next_person_ms(self, now: int) -> float:
        """How long it usually takes until the next interactive request; infinite where that is not known."""
        return math.inf if self.person_gap.is_guess else max(self.person_gap.ms, now - self.person_at)

    def note_pause(self, now: int) -> None:
        """Notes that a request came after the model had run dry."""
        if self.has_paused(now) and self.stage is Stage.READY:
            self.paused_at = now

    def can_start(self, work_class: WorkClass, now: int) -> bool:
        """Whether a request of this class would start at once: the model is ready, no request waits, a slot is free."""
        return self.stage is Stage.READY and not self.line and self.has_slot_for(work_class, now)

    def has_slot_for(self, work_class: WorkClass, now: int) -> bool:
        """Whether one more request of this class may use a slot."""
        return len(self.running) + len(self.lingering) < self.slots_for(work_class, now)

    @property
    def is_doubted(self) -> bool:
        """Whether it is in memory and gets no request before the watchdog knows whether it is well."""
        return self.stage is Stage.READY and self.is_suspect

    @property
    def is_at_hand(self) -> bool:
        """Whether it is in memory and takes requests."""
        return self.stage is Stage.READY and not self.is_suspect and not self.is_cut_off

    def recovery_ms(self, now: int) -> float:
        """How long a suspect model may take until it serves again: the question, and a reset and a load after it."""
        return max(0, self.doubted_until - now) + self.halt.ms + self.load.ms

    @property
    def in_use(self) -> int:
        """The slots that its engine uses: running requests, and runs that it has not let go of."""
        return len(self.running) + len(self.lingering)

    # ------------------------------------------------------------------ what the end of a run says about its engine

    @property
    def silence_ms(self) -> float:
        """How long the engine may be silent before its first byte without suspicion."""
        usual = max(self.first.ms, self.service.ms / SILENCE_FACTOR) if self.first.is_guess else self.first.ms
        return max(SILENCE_MS_MIN, SILENCE_FACTOR * usual)

    def answered(self, running: Running, answer: Ended, now: int) -> None:
        """Records a good answer: earlier failures are forgotten, and the memory that was seen is what it needs.

        Learns from the time that it took.
        """
        self.bad_answers = self.resets = self.unheard_ms = self.stalled = self.stalled_long = 0
        self.is_suspect, self.good_at = False, now
        if self.seen:
            self._believe_seen()
        ran_ms = now - running.since - running.rested_ms
        if running.beside == 1:
            self.service.learn(ran_ms)
        else:
            self.callers = max(self.callers, running.beside)
            self._learn_beside(ran_ms, running.beside)
        if answer.first_ms is not None:
            self.first.learn(answer.first_ms)
            if answer.prompt_bytes:
                self.context.keep(answer.prompt_bytes, answer.first_ms)

    def _believe_seen(self) -> None:
        for device, size in self.seen.items():
            if size > self.healthy.get(device, 0):
                self.healthy[device] = size
        self.seen = {}

    def failed(self, since: int) -> None:
        """Records a bad answer to a question of that time."""
        if not self.bad_answers:
            self.bad_since = since
        self.bad_answers += 1

    def stall(self, silent_ms: int) -> None:
        """Records an answer that began and stopped in the middle, if that is certain after so short a time."""
        if silent_ms >= min(STALL_MS, self.silence_ms):
            self.stalled += 1
            self.stalled_long += silent_ms >= LONG_STALL_MS

    @property
    def stall_weight(self) -> int:
        """How many answers stopped in the middle; one that did so for long counts twice."""
        return self.stalled + self.stalled_long

    def unanswered(self, parting: Parting, now: int) -> bool:
        """Records a run that its caller or the core ended early. Returns whether it counts as a bad answer.

        It does when the silence without a byte adds up to `silence_ms`, over one run or over several shorter ones,
        and when an answer that had begun has stopped for that long.
        """
        if parting.has_spoken:
            self.unheard_ms = 0
            if parting.silent_ms < max(LULL_MS, self.silence_ms):
                return False
            self.stall(parting.silent_ms)
            self.failed(now - parting.silent_ms)
            return True
        self.unheard_ms += parting.silent_ms
        if self.unheard_ms < self.silence_ms:
            return False
        self.unheard_ms = 0
        self.failed(now - parting.silent_ms)
        return True

    # ------------------------------------------------------------------ durations

    def _learn_beside(self, taken_ms: float, beside: int) -> None:
        """Learns from an answer among others. What they cost it goes into the slow-down, not into the mean.

        One that is long though it ran beside others is long by itself, and says nothing about them.
        """
        service, slots = self.service, self.spec.concurrency
        if service.count and taken_ms <= OFF_FACTOR * slots * service.ms:
            seen = (taken_ms / service.ms - 1) / ((beside if beside < slots else slots) - 1 or 1)
            self.slowdown += SLOWDOWN_WEIGHT * ((0.0 if seen < 0 else min(1.0, seen)) - self.slowdown)
        service.learn(taken_ms / self.batch_factor(beside))

    def ages(self, now: int) -> list[float]:
        """How long its answers have been running, each as if it ran alone."""
        factor = self.batch_factor(len(self.running))
        return [(now - running.since) / factor for running in self.running.values()]

    def likely_ms(self, now: int, *, single: float = 0.0) -> float:
        """How long an answer is likely to take now: answers that run for far longer than usual count at once."""
        return self.service.likely_ms(self.ages(now), single=single)

    @property
    def next_load_ms(self) -> float:
        """How long its next load takes: as usual, or as long as those that were given up, which were too short."""
        return max(self.load.ms, self.given_up_ms)

    @property
    def is_load_unsure(self) -> bool:
        """Whether its load time is a guess: it was never measured, or loads of it were given up since."""
        return self.load.is_guess or self.given_up_ms > 0

    def load_left_ms(self, now: int) -> float:
        """How much longer its load takes: the rest of its usual time, then as long as it has been late.

        A load that hangs would otherwise be over in a moment, at every moment. One that was never measured may take
        as long again as it took so far. One that seems to hang ends at its limit, and the next one follows.
        """
        taken = now - self.since
        if now >= self.hangs_at:
            return max(0.0, self.load_limit_ms - taken) + self.halt.ms + self.next_load_ms
        if self.is_load_unsure:
            return max(self.load.ms - taken, taken)
        return abs(self.load.ms - taken)

    @property
    def load_limit_ms(self) -> int:
        """How long a load may take."""
        if self.spec.load_timeout_ms is not None:
            return self.spec.load_timeout_ms
        if self.load.is_guess:
            return max(round(LOAD_LIMIT_FACTOR * self.load.high_ms), LOAD_LIMIT_UNMEASURED_MS)
        # A model that so far came from the page cache may come from a cold disk next time. Where that was never
        # measured, its size sets the floor.
        # One that was given up may have become slow: the next load has more time.
        longest = max(self.load.high_ms, self.cold_load_ms or 0)
        from_disk = self.load_from_disk_ms if self.cold_load_ms is None else 0
        after_last_ms = LOAD_LIMIT_GROWTH * self.given_up_ms
        return round(max(LOAD_LIMIT_FACTOR * longest, from_disk, LOAD_LIMIT_MS_MIN, after_last_ms))

    def give_up(self, now: int) -> None:
        """Notes that its load is over without a result. One that failed early says nothing about the time."""
        taken = now - self.since
        if self.stage is Stage.LOADING and taken > self.load.ms:
            self.given_up_ms = max(self.given_up_ms, taken)

    @property
    def stuck_at(self) -> float:
        """When its load takes so much longer than usual that it is probably no longer reading its weights."""
        usual = self.load_from_disk_ms if self.load.is_guess else self.load.high_ms
        return self.since + STUCK_FACTOR * usual + STUCK_EXTRA_MS

    def is_stuck(self, now: int) -> bool:
        """Whether its load seems to hang, before its limit is reached."""
        return self.stage is Stage.LOADING and now >= self.stuck_at

    @property
    def slow_at(self) -> float:
        """When its load is slow enough to be reported."""
        return max(self.stuck_at, self.since + SLOW_LOAD_MS_MIN)

    @property
    def hangs_at(self) -> float:
        """The moment after which its load is no longer expected to be over soon."""
        return self.slow_at if self.load.is_guess else self.stuck_at

    @property
    def yields_at(self) -> float:
        """When its load makes room for other models. A time limit in the config says how long it may take."""
        if self.spec.load_timeout_ms is not None:
            return math.inf
        return self.since + (self.slow_at - self.since) * 2 ** min(self.failures, SLOW_LOAD_DOUBLINGS_MAX)

    def yields(self, now: int, work_class: WorkClass | None = None) -> bool:
        """Whether its load makes room for others: it seems to hang, for a long time, with no request waiting for it, or
        while only lower classes than this one do."""
        if self.stage is not Stage.LOADING or self.spec.permanent:
            return False
        return now >= self.yields_at or (
            self.is_stuck(now) and (self.is_idle or self.is_outranked(work_class))
        )

    def is_outranked(self, work_class: WorkClass | None) -> bool:
        """Whether this class is higher than any that its load is for; with a time limit in the config none is."""
        if work_class is None or self.spec.load_timeout_ms is not None:
            return False
        return work_class < min(self.plan_class, self.top_class())

    @property
    def linger_ms(self) -> float:
        """How long an idle model is worth keeping: agents pause between two calls."""
        return self.rules.linger * self.load.ms

    @property
    def finishes_soon(self) -> bool:
        """Whether an answer usually takes less time than a turn: then it may end before the model leaves."""
        return self.service.ms <= self.quantum_ms

    @property
    def usual_ms(self) -> float:
        """The usual time of an answer beside those that run, or that will once it is in memory."""
        return self.service.ms * self.batch_factor(self.beside)

    @property
    def beside(self) -> int:
        """How many answers run at once, now or once it is in memory."""
        return len(self.running) or min(len(self.line), self.spec.concurrency)

    def residual(self, now: int, *, least: bool = False) -> float:
        """Milliseconds until running requests are done or at a boundary.

        Never "mean minus age": a long answer is long. Only the least that may be left is that, and nothing of an
        answer that is late or whose usual time is unknown.
        """
        longest = 0.0
        beside = self.running.values() if not self.users else (*self.running.values(), *self.users.values())
        for running in beside:
            usual, age = self.service.ms * self.batch_factor(len(self.running)), now - running.since
            left = max(usual, age)
            if least:
                left = 0.0 if self.service.is_guess else max(0.0, usual - age)
            if running.request.work_class is _INTERACTIVE:
                stops_early = not running.begun and not self.finishes_soon
            else:
                stops_early = running.makes_way
            if stops_early:
                left = min(left, BOUNDARY_MS)
            longest = max(longest, left)
        return longest

    def drain_ms(self, now: int, *, least: bool = False) -> float:
        """Milliseconds until its memory would be back if it were closed now."""
        return self.residual(now, least=least) + self.halt.ms

    # ------------------------------------------------------------------ its turn and its cost

    def has_lingered(self, now: int) -> bool:
        """Whether it has been idle for so long that its callers are unlikely to come back."""
        return self.is_idle and now - self.last_used >= self.linger_ms

    def has_had_turn(self, now: int) -> bool:
        """Whether its quantum is over, so that it may be swapped out. Rotation work has no quantum."""
        if self.stage is Stage.ASLEEP:
            return True  # it ended its turn by itself
        only_rotation = not self.is_idle and self.top_class() is WorkClass.ROTATION
        return only_rotation or now - self.ready_at >= self.quantum_ms or self.has_lingered(now)

    @property
    def quiet_ms(self) -> float:
        """How long people must have been quiet before its next turn. One that was lost is chance. After two of them a
        further one would be for nothing, too, where its answers begin too late for people's pauses."""
        more = min(self.lost_turns, LOST_TURNS_MAX) - 1
        return self.quantum_ms * 2**more if more > 0 else 0.0

    def has_answered(self, now: int) -> bool:
        """Whether its turn has lasted for one answer."""
        return now >= self.ready_at + self.service.ms

    def demand(self, now: int) -> float:
        """The weight of requests per millisecond while it is resident."""
        return self.rate.expected(now, self.load.ms)

    def rhythm(self, now: int) -> float:
        """The price of a model that people ask in a rhythm, whether it is resident or not. Its demand is unknown until
        it has been resident for a while."""
        return self.inertia * self.rules.weights[_INTERACTIVE] / self.next_person_ms(now)

    def is_frequented(self, now: int) -> bool:
        """Whether requests keep coming: at least one would come during a turn and its last answer.

        Before anything was learned about it, several requests at once are taken for callers that come again.
        """
        if not self.rate.seen(now):
            return len(self.line) + len(self.running) > 1
        return self._comes_again(self.quantum_ms + self.service.ms, 1.0, now)

    def is_kept_busy(self, now: int) -> bool:
        """Whether its callers come back so fast that it does not run dry: it has not done so lately."""
        if now - self.paused_at < PAUSE_MEMORY_MS:
            return False
        return self._comes_again(self.service.ms + PAUSE_MS, BUSY_SHARE, now)

    def _comes_again(self, within_ms: float, count: float, now: int) -> bool:
        """Whether so many requests are likely to come within this time."""
        return self.rate.seen(now) * within_ms >= count * self.rules.weights[self.worth_class(now)] > 0

    def keep_for(self, held_turn: HeldTurn, now: int) -> None:
        """Keeps its place for a caller that was told to ask again soon, for a quantum at most: nobody may come."""
        back_at = min(held_turn.back_at + RETURN_GRACE_MS, now + self.quantum_ms)
        self.kept_until, self.kept_class = back_at, held_turn.work_class

    def is_kept_from(self, work_class: WorkClass, now: int) -> bool:
        """Whether it stays for a caller that is about to come back, and not for work of a lower class than this."""
        is_unused = self.last_used <= self.ready_at
        return is_unused and now < self.kept_until and self.kept_class <= work_class

    def has_paused(self, now: int) -> bool:
        """Whether it has been idle for longer than the pause of a caller that sends its next request at once."""
        return now - self.last_used >= PAUSE_MS and self.is_idle

    @property
    def inertia(self) -> float:
        """The factor by which its own work outweighs another model's, so that a near tie changes nothing."""
        return self.spec.inertia if self.spec.inertia is not None else self.rules.inertia

    def price(self, now: int) -> float:
        """The useful work per millisecond that would be lost by closing it now, scaled by its inertia."""
        if self.yields(now):
            return 0.0
        if self.is_idle:
            return 0.0 if self.has_lingered(now) else self.inertia * self.demand(now)
        return self.inertia * max(self.demand(now), self._best_work_rate())

    def _best_work_rate(self) -> float:
        weight = sum(self.rules.weights[r.request.work_class] for r in self.running.values())
        weight += sum(self.rules.weights[r.request.work_class] for r in self.users.values())
        count = len(self.running) + len(self.users)
        best = weight / self.service_of(count) if count else 0.0
        for work_class, waiting in enumerate(self.line.counts):
            if waiting:
                weight, count = weight + waiting * self.rules.weights[work_class], count + waiting
                best = max(best, weight / self.service_of(count))
        return best
