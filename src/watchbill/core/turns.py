"""Turns: which models have waited long enough for a place in memory, and in which order they get it (RES-11, LANE-06).

A model has its turn when its requests have waited long enough behind the resident models (a soft turn), and always
before their patience ends (a hard turn, whose time `hard_turns` computes). Class first, then priority; a better one
passes the first where all others can wait for it.

Questions only: `policy` makes plans of the turns, and `forecast` promises by them.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from watchbill.catalog import WorkClass
from watchbill.core.candidate import AGING_STEPS
from watchbill.core.companions import Candidate, total_needs
from watchbill.core.contenders import movable, share_room, uncertainty, wanting
from watchbill.core.cover import can_cover
from watchbill.core.hard_turns import Due, HardTurn, hard_turns
from watchbill.core.messages import Request
from watchbill.core.model_state import WHOLE_TURNS, ModelState
from watchbill.core.stages import Stage
from watchbill.core.state import State

__all__ = [
    "SOFT_TURN",
    "SOFT_TURN_LOWER",
    "Rank",
    "Returns",
    "Turn",
    "by_class_and_age",
    "coming_in",
    "dues_of",
    "finishing_ms",
    "gives_way",
    "goes_first",
    "is_cut_short",
    "passed_until",
    "quiet_at",
    "returns_before",
    "soft_at",
    "turns_before",
    "turns_of",
    "waiting_before",
]

#: A soft turn: the oldest request of a model's highest class has waited this many of the model's own load times. The
#: first figure holds behind a lower class, the second behind equals where an interactive request waits. Two equals
#: that are both kept busy then load a third of the time. Behind equals the time since its own last turn counts at most:
#: all of a burst is old after the first turn, and each further turn would last a quantum only. Background work has no
#: soft turn behind equals: swapping batches sooner makes each of them later.
SOFT_TURN_LOWER = 1.0
SOFT_TURN = 3.0
#: The slots of an equal are idle until its last answer has ended. Where answers take longer than a quantum, that is a
#: part of what the swap costs, too: a soft turn waits for so many answers, and for so many where one is always long.
ANSWERS_FIRST = 3.0
ANSWERS_MAX = 6.0
#: An overdue model is still overtaken by a better class or priority that would run out of patience, for this many times
#: the patience of that request. Then its turn comes, whatever else waits.
OVERTAKEN_PATIENCES = 2.0
Rank = tuple[WorkClass, bool, int]


class Turn(NamedTuple):
    """A model whose turn has come."""

    model: Candidate
    is_hard: bool  # its oldest request would run out of patience otherwise
    due: float
    hard: HardTurn  # when its hard turn comes
    since: float = 0.0  # when it came
    keeps_waiting: WorkClass = WorkClass.ROTATION  # the best class of the turns that have come behind it


class Returns(NamedTuple):
    """Models that come back before a request that waits."""

    models: tuple[ModelState, ...]
    until: float  # when the request has aged so far that they no longer do

    @property
    def ms(self) -> float:
        """How long their turns take."""
        return sum(s.load.ms + max(s.quantum_ms, s.service.ms) + s.halt.ms for s in self.models)


def turns_of(state: State, now: int) -> list[Turn]:
    """The models whose turn has come, in the order of their turns.

    Hard turns go first: without one a request would run out of patience. Then class, then priority.
    """
    wanted = wanting(state)
    dues = dues_of(wanted)
    if not dues:
        return []
    due: list[Turn] = []
    later: list[Turn] = []
    unsure = uncertainty(state, wanted) is not None
    hard = hard_turns(state, dues, movable(state), now)
    for each in dues:
        model, oldest, its = each.model, each.due, hard[each.model.name]
        if model.in_epoch:
            oldest, its = min(oldest, now), its._replace(begins=now, latest=now)
        top = model.line.oldest_of_top()
        softly = math.inf if top is None else soft_at(state, model, top, now, unsure=unsure)
        turn = Turn(model, now >= its.begins or its.is_pressing(now), oldest, its, softly)
        if turn.is_hard or now >= softly:
            due.append(turn)
        else:
            state.wakes.append(min(its.begins, softly))
        state.wakes += [at for at in (its.squeezed, its.latest) if now < at]
        if not turn.is_hard:
            later.append(turn)
    due.sort(key=lambda turn: (not turn.is_hard, turn.model.rank(now), turn.due, turn.model.name))
    passes = _passing(due, later, now) if due else None
    turns = due if passes is None else [passes, *(t for t in due if t.model is not passes.model)]
    if turns and turns[0].is_hard:
        behind = (t.model.turn_class() for t in turns if share_room(t.model, turns[0].model))
        turns[0] = turns[0]._replace(keeps_waiting=min(behind))
    return turns


def _passing(due: Sequence[Turn], later: Sequence[Turn], now: int) -> Turn | None:
    """The model that goes before the first one, if any does."""
    if due[0].is_hard:
        return _passing_hard(due, later, now)
    return _passing_soft(due[0], later, now)


def _passing_soft(head: Turn, waiting: Iterable[Turn], now: int) -> Turn | None:
    """Gives a turn to the best class and priority that waits for this room, even before its own turn has come."""
    first = head.model.rank(now)
    better = [
        (turn.model.rank(now), turn.due, turn.model.name, turn)
        for turn in waiting
        if (turn.model.rank(now) < first or _would_miss(turn, head, now))
        and share_room(turn.model, head.model)
    ]
    return min(better)[3] if better else None


def _passing_hard(due: Sequence[Turn], later: Sequence[Turn], now: int) -> Turn | None:
    """A model of a better class or priority goes before the first turn if it cannot wait for the end of that turn,
    or if all the others can wait for its own.

    Without this rule a backlog near the end of its fifteen minutes takes the one minute that a person has left, and
    where several are due together, the order of arrival decides instead of the priorities. An overdue model is
    overtaken only so, and for a bounded time: the turns of a lower class or priority are delayed, not dropped.
    """
    head = due[0]
    every = {t.model.name: t for t in (*due, *later)}.values()  # a soft turn is in both
    rivals = [t for t in every if share_room(t.model, head.model)]
    mine, is_overdue = head.model.rank(now), head.due <= now
    better = [
        t
        for t in rivals
        if (
            _would_miss(t, head, now)
            or (not is_overdue and t.model.rank(now) < mine and (t.is_hard or _all_can_wait(rivals, t, now)))
        )
        and not _both_are_served(head, t, now)
    ]
    first = min(better, key=lambda t: (t.model.asked_rank(), t.due, t.model.name), default=None)
    return None if first is None else first._replace(is_hard=True)


def _would_miss(turn: Turn, head: Turn, now: int) -> bool:
    """Whether a better class or priority is in time now and would not be after the turn of `head`.

    Age does not count here: where one of two must run out of patience, it is the one of the lesser priority, until that
    one is long overdue.
    """
    return (
        turn.model.asked_rank() < head.model.asked_rank()
        and now <= turn.hard.latest + turn.hard.margin_ms
        and not _can_wait_for(head, turn.hard.latest, now)
        and now < head.due + OVERTAKEN_PATIENCES * turn.hard.patience_ms
    )


def waiting_before(
    state: State, model: Candidate, request: Request, counted: Sequence[Candidate], now: int
) -> list[Candidate]:
    """The models that wait for the same room and whose turn comes first, though it has not begun yet."""
    mine, first = _rank_with(model, request, now), model.line.oldest_arrival()
    mine_came = request.arrived_at if first is None else min(first, request.arrived_at)
    return [
        other
        for other in wanting(state)
        if other is not model
        and other not in counted
        and (came := other.line.oldest_arrival()) is not None
        and (other.rank(now), came) <= (mine, mine_came)
        and share_room(other, model)
    ]


def coming_in(state: State, model: Candidate) -> list[ModelState]:
    """The models on their way in that may leave for this one later."""
    return [
        s
        for s in state.in_stage(Stage.PLANNED, Stage.LOADING)
        if s not in model.members and not s.spec.permanent
    ]


def returns_before(
    state: State, model: Candidate, request: Request, ahead: Sequence[Candidate], now: int
) -> Returns:
    """The busy models that leave for the turns ahead and come back before this one: their callers wait again.

    They do so until the request has aged to their priority.
    """
    better = [
        s
        for s in (*movable(state, model), *coming_in(state, model))
        if s not in ahead
        and share_room(s, model)
        and (s.worth_class(now), s.spec.priority) < (request.work_class, request.priority)
        and s.is_kept_busy(now)
    ]
    if not ahead or not better or request.operator:
        return Returns((), 0.0)
    if can_cover(state.shortage_of(ahead[0]), [s for s in movable(state, model) if s not in better]):
        return Returns((), 0.0)  # the room of others is enough
    work_class, priority = min((s.worth_class(now), s.spec.priority) for s in better)
    steps = math.inf if work_class < request.work_class else request.priority - priority
    return Returns(tuple(better), request.arrived_at + steps * request.max_wait_ms / AGING_STEPS)


def dues_of(waiting: Iterable[Candidate]) -> list[Due]:
    """What is due of these models: rotation is promised no turn."""
    dues = (Due.of(model) for model in waiting if model.is_promised)
    return [each for each in dues if each is not None]


def by_class_and_age(request: Request) -> tuple[WorkClass, int]:
    return (request.work_class, request.arrived_at)


def soft_at(
    state: State,
    model: Candidate,
    oldest: Request,
    now: int,
    *,
    unsure: bool,
    coming: Sequence[ModelState] = (),
) -> float:
    """When a model has waited long enough behind the resident models, although its patience is not over.

    `oldest` is the oldest request of the highest class that waits. While load times are unknown, turns go by age. A
    forecast also counts the models that are `coming`: they will be resident by then.
    """
    mine = oldest.work_class
    since = max(oldest.arrived_at, quiet_at(state, model))
    if unsure:
        return since
    short = state.shortage_of(model)
    others = [(s.worth_class(now), s) for s in (*movable(state, model), *coming)]
    if can_cover(short, [s for work_class, s in others if work_class > mine]):
        return since + SOFT_TURN_LOWER * model.load.ms
    is_person = mine is WorkClass.INTERACTIVE
    if is_person and can_cover(short, [s for work_class, s in others if work_class >= mine]):
        return max(since, model.left_at) + SOFT_TURN * model.load.ms
    return math.inf


def quiet_at(state: State, model: Candidate) -> float:
    """When people who use its room have been quiet for long enough, after turns that were lost as they came back."""
    if not model.serving.quiet_ms or model.top_class() is WorkClass.INTERACTIVE:
        return -math.inf
    seen = (s.person_at for s in movable(state, model) if share_room(s, model))
    return max(seen, default=-math.inf) + model.serving.quiet_ms


def passed_until(state: State, model: Candidate, request: Request, now: int) -> float:
    """When a request stops being passed by models that take turns before it; 0 when there are no such models.

    One busy model of a better class or priority stays in memory, and its turn ends by itself; so do several that fit
    beside each other. Otherwise they replace each other, and each time the one that waits goes first, until the request
    has aged to the priority of the lesser of the best two. Class does not age: behind a better one only its patience
    helps.
    """
    busy = [
        s
        for s in state.managed
        if s not in model.members
        and not s.spec.permanent
        and share_room(s, model)
        and (s.worth_class(now), s.spec.priority) < (request.work_class, request.priority)
        and s.is_kept_busy(now)
    ]
    if len(busy) < 2 or request.operator:
        return 0.0
    if can_cover(state.shortage_of(model), [s for s in movable(state, model) if s not in busy]):
        return 0.0  # the room of others is enough
    if state.ledger.fits_ever(total_needs(busy), state.permanents()):
        return 0.0  # none of them waits while the request does
    work_class, priority = sorted((s.worth_class(now), s.spec.priority) for s in busy)[1]
    if work_class < request.work_class:
        return math.inf
    return request.arrived_at + (request.priority - priority) * request.max_wait_ms / AGING_STEPS


def gives_way(victim: ModelState, turn: Turn, now: int) -> bool:
    """Whether a model whose quantum is over makes room for this turn.

    For a hard turn it does, unless it holds a request of the same or a higher class with less patience, or serves its
    line of the same class first, while no higher class waits behind that turn. For a soft turn it does, unless it
    serves a higher class. Against an equal it may finish: a line that is served within one more quantum would only have
    to come back, and while one answer takes longer than a quantum the other slots would be idle until it ends. That is
    put off for some answers, and then done. An answer that has not begun would be lost, and the load for it, too: a
    turn lasts for one answer.
    """
    mine, its = turn.model.turn_class(), victim.worth_class(now)
    if turn.is_hard:
        if its == mine and its <= turn.keeps_waiting and _serves_first(victim, turn, now):
            return False
        due = turn.model.due()
        return its > mine or due is None or (victim.due() or due) >= due
    if its != mine or victim.is_idle:
        return its > mine or victim.is_idle
    if _line_ends_soon(victim) and now < turn.since + victim.quantum_ms:
        return False
    if not victim.has_answered(now) and not all(running.begun for running in victim.running.values()):
        return False
    ends_ms, usual_ms = victim.residual(now), victim.usual_ms
    if not _leaves_slots_idle(victim):
        return ends_ms <= max(victim.quantum_ms, usual_ms)
    waited_ms = now - turn.since
    return waited_ms >= (ANSWERS_FIRST if ends_ms <= usual_ms else ANSWERS_MAX) * usual_ms


def _leaves_slots_idle(model: ModelState) -> bool:
    """Whether several answers run that take longer than a quantum: they do not end together."""
    return model.beside > 1 and model.usual_ms > model.quantum_ms


def _serves_first(victim: ModelState, turn: Turn, now: int) -> bool:
    """Whether a model serves the requests of the same class in its line before a hard turn takes its place.

    It does while the turn can wait for that: they would run out of patience until the model is back. Where the turn
    comes too late for its own request, it can wait for one more quantum.
    """
    waiting = sum(victim.line.counts[: turn.model.turn_class() + 1])
    if not waiting:
        return False
    until, too_late = turn.hard.latest, turn.hard.latest + turn.hard.margin_ms
    if now > too_late:
        until = max(too_late, victim.ready_at + victim.quantum_ms) + victim.quantum_ms
    return now + victim.service_of(waiting + len(victim.running)) <= until


def _line_ends_soon(model: ModelState) -> bool:
    """Whether those that wait for it are served within one more quantum."""
    return bool(model.line) and model.service_of(len(model.line)) <= model.quantum_ms


def finishing_ms(state: State, model: Candidate, oldest: Request, now: int) -> float:
    """How much longer an equal goes on when a soft turn comes (`gives_way`), if its callers come back all the time.

    Each of them is away for a moment after its answer, and the equal gives way where too few others are left then.
    """
    others = [*movable(state, model), *(s for s in coming_in(state, model) if _keeps_slots_busy(s))]
    finishing = {s.name: s for s in others if s.worth_class(now) is oldest.work_class and _finishes(s, now)}
    if not finishing or can_cover(state.shortage_of(model), [s for s in others if s.name not in finishing]):
        return 0.0
    return max(_finishing_ms(s) for s in finishing.values())


def _finishes(model: ModelState, now: int) -> bool:
    ends_soon = len(model.line) > 1 and _line_ends_soon(model)
    return (ends_soon or _keeps_slots_busy(model)) and model.is_kept_busy(now)


def _finishing_ms(model: ModelState) -> float:
    return ANSWERS_FIRST * model.usual_ms if _keeps_slots_busy(model) else model.quantum_ms


def _keeps_slots_busy(model: ModelState) -> bool:
    """Whether closing it would leave slots idle, also in the moment in which one of its callers is away."""
    return model.beside > 2 and _leaves_slots_idle(model)


def is_cut_short(victim: ModelState, turn: Turn, now: int) -> bool:
    """Whether a quantum ends after one answer, because a request of a better class or priority would run out of its
    patience without need."""
    if not turn.is_hard or not victim.has_answered(now):
        return False
    model = turn.model
    if model.asked_rank() >= (victim.worth_class(now), True, victim.spec.priority):
        return False
    return turn.hard.is_last_call(now) or (turn.hard.is_pressing(now) and victim.whole_turns >= WHOLE_TURNS)


def turns_before(
    turns: Iterable[Turn], model: Candidate, request: Request, *, hard_at: float, room_at: float, now: int
) -> list[Candidate]:
    """The models whose turns come before that of a request that joins now, and need the same room.

    The first of them begins when there is room, each further one when the one before it is over. A model of a lesser
    class or priority whose turn would end too late for the request is passed by it.
    """
    before: list[Candidate] = []
    begins = room_at
    for turn in turns:
        if _is_before(turn, model, request, hard_at=hard_at, begins=begins, now=now):
            before.append(turn.model)
            begins += turn.model.load.ms + turn.model.quantum_ms
    return before


def _is_before(
    turn: Turn, model: Candidate, request: Request, *, hard_at: float, begins: float, now: int
) -> bool:
    other = turn.model
    if other is model or not share_room(other, model):
        return False
    if turn.is_hard and _can_wait_for(turn, hard_at, begins):
        return True
    if turn.is_hard:
        is_lesser = _asked_with(model, request) < other.asked_rank()
        return not is_lesser and other.rank(now) <= _rank_with(model, request, now)
    return other.turn_class() <= request.work_class


def goes_first(
    state: State, model: Candidate, request: Request, ahead: Sequence[Candidate], now: int
) -> bool:
    """Whether a request has a better class or priority than every model that waits, serves or is loaded in its room."""
    asked = _asked_with(model, request)
    there = [s for s in (*movable(state, model), *coming_in(state, model)) if share_room(s, model)]
    return all(asked < s.asked_rank() for s in ahead) and all(
        asked < (s.worth_class(now), True, s.spec.priority) for s in there
    )


def _asked_with(model: Candidate, request: Request) -> Rank:
    """A model's rank as its callers ask for it, once the request has joined its line."""
    mine = (request.work_class, not request.operator, request.priority)
    return min(mine, model.asked_rank()) if model.line else mine


def _rank_with(model: Candidate, request: Request, now: int) -> Rank:
    """A model's rank once the request has joined its line."""
    mine = (request.work_class, not request.operator, request.priority)
    return min(mine, model.rank(now)) if model.line else mine


def _can_wait_for(turn: Turn, hard_at: float, begins: float) -> bool:
    """Whether a model whose own turn must begin at `hard_at` is still in time after this turn."""
    return hard_at >= begins + turn.model.load.ms + turn.model.quantum_ms


def _both_are_served(first: Turn, second: Turn, now: int) -> bool:
    """Whether two are in time in this order, and not in the other one. Their turns are as short as can be."""
    return (
        now + second.hard.shortest_ms > first.hard.latest >= now - first.hard.margin_ms
        and now + first.hard.shortest_ms <= second.hard.latest
    )


def _all_can_wait(turns: Iterable[Turn], first: Turn, now: int) -> bool:
    """Whether every turn that would begin before this one is still in time after it."""
    return all(
        max(now, turn.hard.begins) + first.hard.lasts_ms <= turn.hard.latest
        for turn in turns
        if turn is not first and turn.hard.begins <= first.hard.begins
    )
