"""Lines: the waiting requests of a model in the order of service, and the due time of each.

The order is by class, then the operator's own calls first, then arrival, where each step of priority is worth a fixed
head start. That head start is aging: a request of priority 5 that has waited long enough goes before a fresh one of
priority 1 of its class. The order of two requests never changes while they wait, so the line stays sorted. Costs are
computed from counts per class, so that they take the same time for a line of any length.

A line belongs to a model, and a model may be removed from the config, renamed or replaced while requests wait for it.
Their deadlines are therefore kept once for all lines (`Patience`): a request that no line serves any more still ends
at its deadline.
"""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush

from watchbill.catalog import WorkClass
from watchbill.core.messages import Request

__all__ = ["Line", "Patience"]

#: How much earlier than its arrival a request counts, per step of priority above the lowest.
HEAD_START_MS = 30_000
#: A heap is rebuilt when it holds this many times more entries than requests wait.
HEAP_SLACK = 4

_Key = tuple[WorkClass, bool, int, str]


class Line:
    """The waiting requests of one model. Everything is O(log n) or better, except memory moves of a flat list."""

    __slots__ = ("_arrivals", "_dues", "_keys", "_waiting", "counts", "lanes")

    def __init__(self) -> None:
        self._keys: list[_Key] = []
        self._waiting: dict[str, tuple[Request, int, _Key]] = {}  # id -> request, due, key
        self._dues: list[tuple[int, str]] = []  # a heap; entries of requests that left are skipped
        # The same by arrival, a heap for each class. A heap is built when the oldest request is needed, and dropped
        # when too many of its requests have left.
        self._arrivals: dict[WorkClass, list[tuple[int, str]]] | None = None
        self.counts = [0] * len(WorkClass)
        self.lanes: dict[str, int] = {}  # how many of each lane

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def join(self, request: Request, due: int) -> None:
        """Adds a request at its place."""
        key = _key(request)
        insort(self._keys, key)
        self._waiting[request.id] = (request, due, key)
        heappush(self._dues, (due, request.id))
        if self._arrivals is not None:
            heappush(self._arrivals.setdefault(request.work_class, []), (request.arrived_at, request.id))
        self.counts[request.work_class] += 1
        self.lanes[request.lane] = self.lanes.get(request.lane, 0) + 1

    def leave(self, request_id: str) -> Request:
        """Removes a request from any place in the line."""
        request, _, key = self._waiting.pop(request_id)
        del self._keys[bisect_left(self._keys, key)]
        self.counts[request.work_class] -= 1
        self.lanes[request.lane] -= 1
        if not self.lanes[request.lane]:
            del self.lanes[request.lane]
        if len(self._dues) > HEAP_SLACK * (len(self._keys) + 16):
            self._dues = [(due, id) for id, (_, due, _) in self._waiting.items()]
            heapify(self._dues)
        if self._arrivals is not None:
            entries = sum(map(len, self._arrivals.values()))
            if entries > HEAP_SLACK * (len(self._keys) + 16):
                self._arrivals = None
        return request

    def first(self) -> Request | None:
        """The request whose turn it is."""
        return self._waiting[self._keys[0][3]][0] if self._keys else None

    def first_of(self, lane: str) -> Request | None:
        """The first request of a lane."""
        if lane not in self.lanes:
            return None
        each = (self._waiting[key[3]][0] for key in self._keys)
        return next(request for request in each if request.lane == lane)

    def earliest_due(self) -> tuple[int, Request] | None:
        """The request that runs out of patience first, and when."""
        while self._dues:
            due, request_id = self._dues[0]
            entry = self._waiting.get(request_id)
            if entry is not None and entry[1] == due:
                return due, entry[0]
            heappop(self._dues)
        return None

    def position(self, request_id: str) -> int:
        """The number of requests before this one."""
        return bisect_left(self._keys, self._waiting[request_id][2])

    def rank(self, request_id: str, urgent_at: float) -> tuple[float, _Key]:
        """Its place among the requests of several lines: those due by then first, the others in their order."""
        _, due, key = self._waiting[request_id]
        return (due if due <= urgent_at else float("inf"), key)

    def ahead_of(self, request: Request) -> int:
        """How many requests would stand before one that is not in the line yet."""
        return bisect_left(self._keys, _key(request))

    def top_class(self) -> WorkClass:
        """The highest class that waits; rotation for an empty line."""
        return self._keys[0][0] if self._keys else WorkClass.ROTATION

    def due_of(self, request_id: str) -> int:
        """When this request runs out of patience."""
        return self._waiting[request_id][1]

    def oldest_arrival(self) -> int | None:
        """The arrival time of the first request in the line."""
        first = self.first()
        return None if first is None else first.arrived_at

    def oldest(self) -> Request:
        """The request that has waited longest, of any class. The line must not be empty."""
        classes = (work_class for work_class in WorkClass if self.counts[work_class])
        return min(map(self._oldest_of, classes), key=lambda request: (request.arrived_at, request.id))

    def oldest_of_top(self) -> Request | None:
        """The oldest request of the highest class that waits."""
        return self._oldest_of(self._keys[0][0]) if self._keys else None

    def _oldest_of(self, work_class: WorkClass) -> Request:
        if self._arrivals is None:
            self._arrivals = {}
            for request, _, _ in self._waiting.values():
                self._arrivals.setdefault(request.work_class, []).append((request.arrived_at, request.id))
            for heap in self._arrivals.values():
                heapify(heap)
        heap = self._arrivals[work_class]
        while (entry := self._waiting.get(heap[0][1])) is None or entry[0].work_class is not work_class:
            heappop(heap)  # it left, or came back with another class
        return entry[0]

    def ids(self) -> list[str]:
        """All request ids, in order."""
        return [key[3] for key in self._keys]

    def get(self, request_id: str) -> Request:
        """The request with this id."""
        return self._waiting[request_id][0]


def _key(request: Request) -> _Key:
    head_start = (5 - request.priority) * HEAD_START_MS
    return (request.work_class, not request.operator, request.arrived_at - head_start, request.id)


class Patience:
    """The deadlines of everything that waits."""

    __slots__ = ("_dues", "_heap")

    def __init__(self) -> None:
        self._dues: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # entries of requests that no longer wait are skipped

    def __len__(self) -> int:
        return len(self._dues)

    def begin(self, request_id: str, due: int) -> None:
        """Starts the wait of a request, until `due` at the latest."""
        self._dues[request_id] = due
        heappush(self._heap, (due, request_id))

    def end(self, request_id: str) -> None:
        """Ends the wait of a request."""
        del self._dues[request_id]
        if len(self._heap) > HEAP_SLACK * (len(self._dues) + 16):
            self._heap = [(due, id) for id, due in self._dues.items()]
            heapify(self._heap)

    def first(self) -> tuple[int, str] | None:
        """The request whose deadline comes first."""
        while self._heap:
            due, request_id = self._heap[0]
            if self._dues.get(request_id) == due:
                return due, request_id
            heappop(self._heap)
        return None
