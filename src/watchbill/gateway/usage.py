"""Usage: the tokens of several choices or runs, added up to those of one answer. Pure.

llama.cpp tells the tokens of each choice by themselves: of a chat in an event without choices, of a completion beside
the choice. Other engines tell those of all choices once, or of each choice so far with every piece. So what comes
without choices is added, and where nothing does, the last that came beside each choice.
"""

from typing import cast

from watchbill.gateway.typed import count_of, object_of

__all__ = ["UsageSum"]

Fields = dict[str, object]


class UsageSum:
    """The tokens of a request so far."""

    __slots__ = ("_beside", "_is_counted", "_is_new", "_sum")

    def __init__(self) -> None:
        self._sum: Fields = {}
        self._is_new = True  # the prompt of this run was not counted before
        self._is_counted = False  # something came by itself in this run
        self._beside: dict[int, Fields] = {}  # the last that came beside each choice of this run

    def begin(self, *, is_new: bool) -> None:
        """A further run comes; `is_new`: with another prompt."""
        self._sum = self.total
        self._is_new, self._is_counted, self._beside = is_new, False, {}

    def take(self, told: object, choices: object = None) -> None:
        """What an event says, and the choices that it has."""
        if not isinstance(told, dict):
            return
        usage = cast("Fields", told)
        if isinstance(choices, list) and choices:
            first = cast("object", choices[0])
            index = cast("Fields", first).get("index") if isinstance(first, dict) else 0
            self._beside[count_of(index)] = usage
            return
        self._sum = _added(self._sum, usage, is_new=self._is_new and not self._is_counted)
        self._is_counted = True

    @property
    def total(self) -> Fields:
        """All that was told, as one; empty where nothing was."""
        summed, is_new = self._sum, self._is_new
        for usage in () if self._is_counted else self._beside.values():
            summed, is_new = _added(summed, usage, is_new=is_new), False
        return summed


def _added(usage: Fields, told: Fields, *, is_new: bool) -> Fields:
    """Tokens of one more choice or run. Those of a prompt count once."""
    kept = told if is_new else {name: told[name] for name in told if not name.startswith("prompt_")}
    summed = {**usage, **{name: _sum(usage.get(name), value) for name, value in kept.items()}}
    if "total_tokens" in summed:
        prompt, answer = count_of(summed.get("prompt_tokens")), count_of(summed.get("completion_tokens"))
        summed["total_tokens"] = prompt + answer
    return summed


def _sum(before: object, value: object) -> object:
    if isinstance(value, dict):
        inner = object_of(before)
        return {
            **inner,
            **{name: _sum(inner.get(name), each) for name, each in cast("Fields", value).items()},
        }
    return count_of(before) + count_of(value) if isinstance(value, int) else value
