"""Limited lanes: only so many of their requests run at once, on all models together (LANE-02).

Such a lane is served in its own order, whichever models its requests wait for: otherwise the model that has just
answered would take each place, and starve the others. A request gives way to an earlier one of its lane that another
model could start now. It also gives way to an earlier one whose model is not in memory, if that model can be there
before its own answer would end. The place is kept for it meanwhile, and no longer than such an answer takes. If no
plan for that model follows in the same step, because others have to end their turn first, the place is free again:
nothing would be served until then.

The first request of a lane needs two things at once, a place of its lane and a slot of its model. Where others take
each of them as soon as it is free, it would never find both. So whichever is free first is kept for it until the
other one is, if that takes less time than the answer that has to wait.

So a model that is needed only for such a lane comes when the place is free. Where answers are short, no place is kept:
then it comes a little earlier.
"""

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

from watchbill.catalog import WorkClass
from watchbill.core.candidate import CandidateState
from watchbill.core.companions import Candidate
from watchbill.core.forecast import (
    ahead_in_lane,
    can_forecast,
    finds_place_kept,
    place_in_ms,
    room_in_ms,
    slot_in_ms,
    until_lane,
    way_in_ms,
)
from watchbill.core.messages import Request
from watchbill.core.model_state import ModelState
from watchbill.core.stages import AWAY, LEAVING, Stage
from watchbill.core.state import State

__all__ = ["LaneHold", "LimitedLanes", "is_kept_out", "what_holds"]

#: A model whose lanes are full, and that finds no place kept, is on its way into memory so many of its load times
#: before one of them has a place.
EARLY_LOADS = 2.0


class _First(NamedTuple):
    """The first request of a lane in one line."""

    rank: tuple[float, tuple[WorkClass, bool, int, str]]
    line: Candidate
    id: str
    way_ms: float  # until its model could start it
    places: int  # how many of that lane its model could then start in this line


class _Kept(NamedTuple):
    """A place that is kept, first for this request, while its model comes into memory, or has no free slot. Or a
    slot that is kept while its lane has no free place."""

    id: str
    since: int
    way_ms: float  # how much longer that takes
    until: float = 0.0


class LaneHold(NamedTuple):
    """What keeps a request of a limited lane from starting on a model that is in memory."""

    places: int  # of the lane
    before: int  # how many of the lane wait before it
    kept_for: str  # the earlier request that the free place is kept for; empty where no place is free
    waits_for: str  # the model of that one
    is_coming: bool  # that model is on its way into memory; otherwise all of its slots are taken


class LimitedLanes:
    """The places of all limited lanes, in one round of starts after the other."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._firsts: dict[str, list[_First]] = {}  # found in this round, until something starts
        self._kept: dict[str, _Kept] = {}  # lane -> the request that a place is kept for
        self._slots: dict[str, _Kept] = {}  # model -> the request that its last slot is kept for
        self._is_planned = False  # in this step no further plan follows
        self.awaits_plan = False  # in this round a place is kept for a model that no plan brings yet
        self.keeps_more = False  # a slot is kept that others of this round gave way to

    def begin(self, *, is_planned: bool) -> None:
        """Begins a round of starts: what was found in the last one may not be true any more."""
        self._firsts.clear()
        self._is_planned, self.awaits_plan = is_planned, False

    def started(self, request: Request) -> None:
        """Notes that a request has taken a place of its lane. One that is over in time has not passed anybody."""
        self._firsts.clear()
        self._give_up(self._kept, request.lane, request)
        self._give_up(self._slots, self._state.home[request.id].serving.name, request)

    def _give_up(self, places: dict[str, _Kept], name: str, request: Request) -> None:
        """A place or slot is kept no longer once the one has it, or one that is not over in time."""
        kept, home = places.get(name), self._state.home
        is_for_it = kept is not None and (kept.id == request.id or kept.id not in home)
        if kept is not None and (is_for_it or home[request.id].service.ms >= kept.way_ms):
            del places[name]

    def keeps_slot(self, line: CandidateState, model: ModelState, now: int) -> bool:
        """Whether the last slot of a model is kept for the first of its line, whose lane has no free place yet."""
        first = line.line.first()
        if first is None or self.has_room(first.lane) or _runs_in(first.lane, model):
            return False
        if model.slots_for(first.work_class, now) - model.in_use != 1:
            return False
        rank = line.line.rank(first.id, now + model.service.ms)
        if any(f.rank < rank for f in self._firsts_of(first.lane, now) if f.line is not line):
            return False
        way_ms = max(1.0, place_in_ms(self._state, first, now))
        before = self._slots.get(model.name)
        if not self._keeps(self._slots, model.name, _Kept(first.id, now, way_ms), model.service.ms):
            return False
        if before is None or self._slots[model.name].since != before.since:
            self._firsts.clear()
            self.keeps_more = True
        return True

    def has_room(self, lane: str) -> bool:
        """Whether one more of this lane may run."""
        return self._places_left(lane) > 0

    def _places_left(self, lane: str) -> float:
        rules = self._state.catalog.lanes.get(lane)
        if rules is None or rules.concurrency is None:
            return math.inf
        ran = (r.request.lane for s in self._state.models.values() for r in s.running.values())
        return rules.concurrency - sum(name == lane for name in ran)

    def gives_way(self, request: Request, now: int) -> bool:
        """Whether a free place belongs to an earlier request of its lane."""
        own = self._state.home[request.id]
        if not self._is_behind(own, own.line.rank(request.id, now + own.service.ms), request.lane, now):
            return False
        urgent_at = own.line.due_of(request.id) - own.service.ms
        if now < urgent_at:
            self._state.wakes.append(math.ceil(urgent_at))  # then it goes before those that are not
        return True

    def _is_behind(
        self, own: Candidate, rank: tuple[float, object], lane: str, now: int, *, only_kept: bool = False
    ) -> bool:
        """Whether those before it take or keep all places that are left."""
        before = [f for f in self._firsts_of(lane, now) if f.line is not own and f.rank < rank]
        left = self._places_left(lane)
        if sum(first.places for first in before) < left:
            return False
        taken = 0
        for first in before:
            if first.way_ms:
                takes = self._is_kept_for(first, lane, own.service.ms, now)
            else:
                # One that gives way itself keeps no later one, whose answer may be shorter.
                takes = not only_kept and not self._is_behind(
                    first.line, first.rank, lane, now, only_kept=True
                )
            taken += first.places if takes else 0
        return taken >= left

    def _is_kept_for(self, first: _First, lane: str, answer_ms: float, now: int) -> bool:
        """Whether the place waits for a model on its way into memory, in place of an answer that takes so long."""
        is_away = first.line.stage in AWAY
        if is_away and self._is_planned:
            return False
        if not self._keeps(self._kept, lane, _Kept(first.id, now, first.way_ms), answer_ms):
            return False
        self.awaits_plan = self.awaits_plan or is_away
        return True

    def _keeps(self, places: dict[str, _Kept], name: str, new: _Kept, answer_ms: float) -> bool:
        """Whether a place or slot is kept for this request, in place of an answer that takes so long.

        Those that it is kept for one after the other have no longer together: else they would keep it for ever.
        """
        kept, now = places.get(name), new.since
        if kept is None or kept.id not in self._state.home:
            kept = new
        until = kept.since + answer_ms - new.way_ms
        if now >= until:
            return False
        way_ms = new.way_ms if kept.id == new.id else kept.way_ms
        places[name] = kept._replace(way_ms=way_ms, until=until)
        self._state.wakes.append(math.ceil(until))
        return True

    def kept_before(self, request: Request, now: int) -> tuple[str, Candidate] | None:
        """The earlier request of its lane that the last free place is kept for, and what it waits for."""
        own = self._state.home[request.id]
        rank = own.line.rank(request.id, now + own.service.ms)
        before = [f for f in self._firsts_of(request.lane, now) if f.line is not own and f.rank < rank]
        coming = [f for f in before if f.way_ms and f.line.stage not in AWAY]
        if not coming or sum(f.places for f in before) < self._places_left(request.lane):
            return None
        first = min(coming, key=lambda f: f.rank)
        return first.id, first.line

    def _firsts_of(self, lane: str, now: int) -> list[_First]:
        found = self._firsts.get(lane)
        if found is None:
            found = self._firsts[lane] = list(self._look_for_firsts(lane, now))
        return found

    def _look_for_firsts(self, lane: str, now: int) -> Iterator[_First]:
        for each in self._state.lines():
            line, urgent_at = each.line, now + each.service.ms
            if lane in line.lanes:
                of_lane = (id for id in line.ids() if line.get(id).lane == lane)
                first = min(of_lane, key=lambda id: line.rank(id, urgent_at))
                way_ms = self._way_ms(each, line.get(first), now)
                if way_ms < math.inf:
                    is_busy = way_ms > 0 and each.stage is Stage.READY
                    places = 1 if is_busy else min(line.lanes[lane], each.serving.spec.concurrency)
                    yield _First(line.rank(first, urgent_at), each, first, way_ms, places)

    def _way_ms(self, line: Candidate, request: Request, now: int) -> float:
        """Until the model of a line could start one more request. A companion whose host is silent keeps a set from
        starting, too."""
        is_away = line.silence is not None and line.stage is not Stage.READY
        if is_away or line.is_cut_off or line.serving.is_suspect:
            return math.inf
        if line.stage is Stage.READY:
            if line.serving.has_slot_for(request.work_class, now):
                return self._until_kept_slot_ms(line, request, now)
            if _runs_in(request.lane, line.serving):
                return math.inf  # the end of that answer gives it both, a place and a slot
            return max(1.0, slot_in_ms(line.serving, request, line.line.position(request.id), now))
        may_come = now >= line.retry_at and line.stage not in LEAVING and self._state.may_load(line, now)
        if not may_come or not can_forecast(self._state, line):
            return math.inf
        before = line.line.position(request.id)  # all of other lanes: they take the slots when it is there
        return way_in_ms(self._state, line, now) + slot_in_ms(line.serving, request, before, now)

    def _until_kept_slot_ms(self, line: Candidate, request: Request, now: int) -> float:
        """Until the last slot, which is kept for the first of the line, has been used by that one."""
        model = line.serving
        kept, first = self._slots.get(model.name), line.line.first()
        if kept is None or kept.id not in self._state.home or now >= kept.until or first is None:
            return 0.0
        is_last = model.slots_for(first.work_class, now) - model.in_use == 1
        is_for_another = is_last and first.id != request.id and not self.has_room(first.lane)
        return kept.way_ms + model.service.ms if is_for_another else 0.0


def what_holds(state: State, request: Request, now: int) -> LaneHold | None:
    """What keeps a request from starting although its model is in memory, where that is its lane."""
    lane = state.catalog.lanes.get(request.lane)
    if lane is None or lane.concurrency is None:
        return None
    lanes = LimitedLanes(state)
    before = sum(count for _, count in ahead_in_lane(state, request, now))
    if not lanes.has_room(lane.name):
        return LaneHold(lane.concurrency, before, "", "", is_coming=False)
    kept = lanes.kept_before(request, now)
    if kept is None:
        return None
    kept_for, waits_for = kept
    is_coming = waits_for.stage is not Stage.READY
    return LaneHold(lane.concurrency, before, kept_for, waits_for.name, is_coming)


def is_kept_out(state: State, model: Candidate, now: int, leaving: Collection[Candidate] = ()) -> bool:
    """Whether all its requests find their lanes full for longer than its way into memory takes, also once these models
    have left.

    It would take the room of others, do nothing until its turn is over, leave for them and come back. A model that fits
    is loaded all the same, and so is one whose request runs out of patience.
    """
    limited = [name for name in model.line.lanes if _is_limited(state, name)]
    if not limited or len(limited) < len(model.line.lanes) or not state.shortage_of(model):
        return False
    firsts = filter(None, map(model.line.first_of, limited))
    left_ms = min(_until_load(state, model, each, now, leaving) for each in firsts)
    due = model.due()
    if due is not None:
        left_ms = min(left_ms, due - now - model.service.ms - _early_ms(state, model, now))
    if left_ms > 0:
        state.wakes.append(now + math.ceil(left_ms))
    return left_ms > 0


def _early_ms(state: State, model: Candidate, now: int) -> float:
    """How long before the place is free a model is on its way into memory that finds none kept."""
    return EARLY_LOADS * model.load.ms + room_in_ms(state, model, now)


def _until_load(
    state: State, model: Candidate, request: Request, now: int, leaving: Collection[Candidate]
) -> float:
    """Until it is time to load a model for this request of a limited lane: where its place will be kept, until that is
    free."""
    ahead = list(_go_first(state, model, request, now, leaving))
    place_ms = until_lane(state, model, request, now, ahead=ahead).ms
    is_kept = finds_place_kept(state, model, request, now)
    return place_ms if is_kept else place_ms - _early_ms(state, model, now)


def _go_first(
    state: State, model: Candidate, request: Request, now: int, leaving: Collection[Candidate]
) -> Iterator[tuple[Candidate, int]]:
    """The requests before it in its lane whose models are in memory and stay there, where they have a slot for the
    first before this one could come and answer: otherwise no place is kept for them."""
    has_room = LimitedLanes(state).has_room(request.lane)
    place_ms = 0.0 if has_room else place_in_ms(state, request, now)
    over_ms = max(place_ms, way_in_ms(state, model, now)) + model.service.ms
    ready = [s for s in state.lines() if s.stage is Stage.READY and s.serving not in leaving]
    sound = [s for s in ready if not s.is_cut_off and not s.serving.is_suspect]
    for line, count in ahead_in_lane(state, request, now, sound):
        first = line.line.first_of(request.lane)
        if first and slot_in_ms(line.serving, first, line.line.position(first.id), now) < over_ms:
            yield line, count


def _runs_in(lane: str, model: ModelState) -> bool:
    """Whether a model answers a request of this lane."""
    return any(r.request.lane == lane for r in model.running.values())


def _is_limited(state: State, name: str) -> bool:
    """Whether only so many requests of a lane may run at once."""
    lane = state.catalog.lanes.get(name)
    return lane is not None and lane.concurrency is not None
