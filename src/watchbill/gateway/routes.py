"""Which handler serves an address. Does no I/O."""

import re
from collections.abc import Awaitable
from urllib.parse import unquote

from watchbill.gateway.http.connection import Handle
from watchbill.gateway.http.messages import Answer, Request

__all__ = ["Routes"]

_VARIABLE = re.compile(r"\{(\w+)(?::([^{}]+))?\}")


class Routes:
    """The handler of each address. Fixed addresses are found at once; those with variables are tried in order.

    `/v1/models/{id:.+}`: a variable may hold slashes where its pattern says so; else it ends at the next one. What
    matches none goes to `other`."""

    def __init__(self, other: Handle) -> None:
        self._fixed: dict[tuple[str, str], Handle] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Handle]] = []
        self._other = other

    def add(self, method: str, pattern: str, handle: Handle) -> None:
        """Serves an address."""
        if "{" in pattern:
            self._patterns.append((method, _compile(pattern), handle))
        else:
            self._fixed[method, pattern] = handle

    def enter(self, request: Request) -> Awaitable[Answer]:
        """Answers a request by the handler of its address."""
        found = self._fixed.get((request.method, request.target))
        return (found or self._find(request))(request)

    def _find(self, request: Request) -> Handle:
        fixed = self._fixed.get((request.method, request.path))
        if fixed is not None:
            return fixed
        path = request.target.partition("?")[0]
        for method, pattern, handle in self._patterns:
            if method == request.method and (found := pattern.fullmatch(path)):
                request.match = {name: unquote(value) for name, value in found.groupdict().items()}
                return handle
        return self._other

    def methods(self, request: Request) -> set[str]:
        """The methods that the address of a request has; none for an unknown address."""
        path = request.target.partition("?")[0]
        fixed = {method for method, known in self._fixed if known in (path, request.path)}
        return fixed | {method for method, pattern, _ in self._patterns if pattern.fullmatch(path)}


def _compile(pattern: str) -> re.Pattern[str]:
    parts = _VARIABLE.split(pattern)
    text = re.escape(parts[0])
    for name, inner, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        text += f"(?P<{name}>{inner or '[^/]+'}){re.escape(after)}"
    return re.compile(text, re.DOTALL)
