"""Usage: the tokens of several choices or runs, added up to those of one answer. Pure.

llama.cpp tells the tokens of each choice by themselves, in an event without choices at the end of each one; other
engines tell those of all choices once, or the sum so far with every piece. So what comes without choices is added, and
what comes beside some stands in for what came before it.
"""

from typing import cast

from watchbill.gateway.typed import count_of

__all__ = ["UsageSum"]

Fields = dict[str, object]


class UsageSum:
    """The tokens of a request so far."""

    __slots__ = ("_beside", "_is_counted", "_is_new", "_sum")

    def __init__(self) -> None:
        self._sum: Fields = {}
        self._is_new = True  # the prompt of this run was not counted before
        self._is_counted = False  # something came by itself in this run
        self._beside: object = None  # the last that came beside choices in this run

    def begin(self, *, is_new: bool) -> None:
        """A further run comes; `is_new`: with another prompt."""
        self._sum = self.total
        self._is_new, self._is_counted, self._beside = is_new, False, None

    def take(self, told: object, *, beside_choices: bool) -> None:
        """What an event says."""
        if not isinstance(told, dict):
            return
        if beside_choices:
            self._beside = told
            return
        self._sum = _added(self._sum, cast("Fields", told), is_new=self._is_new and not self._is_counted)
        self._is_counted = True

    @property
    def total(self) -> Fields:
        """All that was told, as one; empty where nothing was."""
        if self._is_counted or self._beside is None:
            return self._sum
        return _added(self._sum, cast("Fields", self._beside), is_new=self._is_new)


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
        inner = cast("Fields", before) if isinstance(before, dict) else {}
        return {
            **inner,
            **{name: _sum(inner.get(name), each) for name, each in cast("Fields", value).items()},
        }
    return count_of(before) + count_of(value) if isinstance(value, int) else value
