"""Patience: when every waiting request must have been answered, whatever becomes of its model.

A line belongs to a model, and a model may be removed from the config, renamed or replaced while requests wait for it.
Their deadlines are kept here, once for all lines: a request that no line serves any more still ends at its deadline.
"""

from heapq import heapify, heappop, heappush

__all__ = ["Patience"]

#: The heap is made anew when it holds this many times more entries than requests wait.
HEAP_SLACK = 4


class Patience:
    """The deadlines of everything that waits."""

    __slots__ = ("_dues", "_heap")

    def __init__(self) -> None:
        self._dues: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []  # entries of requests that no longer wait are skipped

    def __len__(self) -> int:
        return len(self._dues)

    def begin(self, request_id: str, due: int) -> None:
        """A request waits from now on, until `due` at the latest."""
        self._dues[request_id] = due
        heappush(self._heap, (due, request_id))

    def end(self, request_id: str) -> None:
        """A request waits no longer."""
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
