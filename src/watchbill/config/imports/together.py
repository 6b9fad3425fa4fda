"""Which models llama-swap runs at the same time, as exclusive groups. Does no I/O.

Watchbill's `group` keeps its members apart: at most one of them is in memory. llama-swap says the same in two ways: in
`groups` (swap, exclusive, persistent), and in a `matrix` of allowed combinations. Both become a group per model where
"apart" is transitive; otherwise memory decides, and a comment says so.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from watchbill.config.limits import MATRIX_SETS_MAX
from watchbill.quoting import quoted

__all__ = ["Together", "of_groups", "of_matrix", "without_either"]

_SWAP = "swap"
#: Names of models may stand there as well as short ones.
_TOKEN = re.compile(r"\s*(\+?[A-Za-z0-9_@][A-Za-z0-9_.:/@+-]*|[&|()])")


@dataclass
class Together:
    """Model -> its group; models that stay; and what a person should know."""

    groups: dict[str, str] = field(default_factory=dict[str, str])
    staying: set[str] = field(default_factory=set[str])
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Group:
    """One of llama-swap's groups."""

    members: tuple[str, ...]
    swap: bool = True
    exclusive: bool = True
    persistent: bool = False


def without_either(models: Iterable[str]) -> Together:
    """llama-swap's default: one model at a time."""
    named = list(models)
    return Together(dict.fromkeys(named, _SWAP) if len(named) > 1 else {})


def of_groups(groups: Mapping[str, Group], models: Iterable[str]) -> Together:
    """Groups with their three switches."""
    found = Together()
    grouped = {member for group in groups.values() for member in group.members}
    found.groups = {model: _SWAP for model in models if model not in grouped}
    for name, group in groups.items():
        if group.persistent:
            found.staying |= set(group.members) if not group.swap or len(group.members) == 1 else set()
        if group.swap and len(group.members) > 1:
            apart = _SWAP if group.exclusive and not group.persistent else name
            found.groups |= dict.fromkeys(group.members, apart)
        elif group.exclusive and not group.persistent:
            if len(group.members) == 1:
                found.groups[group.members[0]] = _SWAP
            else:
                found.notes.append(
                    f"group {name} (swap: false, exclusive: true): its models may run together here and also beside "
                    "others, as far as memory allows"
                )
    found.groups = _without_single(found.groups)
    return found


def of_matrix(variables: Mapping[str, str], sets: Mapping[str, str], models: Iterable[str]) -> Together:
    """A matrix of combinations. Raises ValueError for a set that cannot be read."""
    allowed: dict[str, list[frozenset[str]]] = {}
    for name, text in sets.items():
        allowed[name] = _Combinations(text, variables, allowed).read()
    pairs = {
        frozenset(pair)
        for listed in allowed.values()
        for each in listed
        for pair in combinations(sorted(each), 2)
    }
    named = list(models)
    apart = {
        model: {other for other in named if other != model and frozenset((model, other)) not in pairs}
        for model in named
    }
    return _cliques(named, apart)


def _cliques(models: list[str], apart: Mapping[str, set[str]]) -> Together:
    found, left, number = Together(), list(models), 0
    while left:
        first = left[0]
        component = _component(first, apart)
        left = [model for model in left if model not in component]
        if len(component) == 1:
            continue
        if all(component - {model} <= apart[model] for model in component):
            number += 1
            found.groups |= dict.fromkeys(sorted(component), f"{_SWAP}-{number}" if number > 1 else _SWAP)
        else:
            listed = ", ".join(sorted(component))
            found.notes.append(
                f"matrix: {listed}: some of them are apart and some together, which one `group` per model cannot "
                "say; memory decides here"
            )
    return found


def _component(first: str, apart: Mapping[str, set[str]]) -> set[str]:
    seen, waiting = set[str](), [first]
    while waiting:
        model = waiting.pop()
        if model not in seen:
            seen.add(model)
            waiting += apart[model] - seen
    return seen


def _without_single(groups: dict[str, str]) -> dict[str, str]:
    sizes = list(groups.values())
    return {model: group for model, group in groups.items() if sizes.count(group) > 1}


class _Combinations:
    """Reads one set of a matrix: & binds closer than |, parentheses group, +name is another set."""

    def __init__(
        self, text: str, variables: Mapping[str, str], earlier: Mapping[str, list[frozenset[str]]]
    ) -> None:
        self._tokens = self._split(text)
        self._variables, self._earlier = variables, earlier

    def read(self) -> list[frozenset[str]]:
        """Every combination that the set allows."""
        found = self._either()
        if self._tokens:
            raise ValueError(f"unexpected {quoted(self._tokens[0])}")
        return found

    def _split(self, text: str) -> list[str]:
        tokens, at = list[str](), 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{quoted(text[at:].strip()[:20])} cannot be read")
            tokens.append(found[1])
            at = found.end()
        return tokens

    def _either(self) -> list[frozenset[str]]:
        found = self._all()
        while self._tokens[:1] == ["|"]:
            self._tokens.pop(0)
            found = found + self._all()
        return found

    def _all(self) -> list[frozenset[str]]:
        found = self._one()
        while self._tokens[:1] == ["&"]:
            self._tokens.pop(0)
            others = self._one()
            if len(found) * len(others) > MATRIX_SETS_MAX:
                raise ValueError(f"more than {MATRIX_SETS_MAX} combinations")
            found = [each | other for each in found for other in others]
        return found

    def _one(self) -> list[frozenset[str]]:
        if not self._tokens:
            raise ValueError("it ends too early")
        token = self._tokens.pop(0)
        if token == "(":
            found = self._either()
            if self._tokens[:1] != [")"]:
                raise ValueError("a parenthesis is not closed")
            self._tokens.pop(0)
            return found
        if token.startswith("+"):
            if token[1:] not in self._earlier:
                raise ValueError(f"{token} is no set above it")
            return self._earlier[token[1:]]
        if token not in self._variables:
            raise ValueError(f"{token} is neither among vars nor a model")
        return [frozenset({self._variables[token]})]
