"""A copy of the core, on which a decision can be tried without making it.

The operator's declarations and everything that never changes are shared, and so are the learned times: they change with
the answers of engines, and a copy hears of none. Of the rest nothing is shared. The standard library's `deepcopy` takes
a third of a second for a thousand models, because it asks every object how it wants to be copied; no request is served
meanwhile.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import FunctionType, MappingProxyType, MethodType, NoneType
from typing import cast

from msgspec import Struct

from watchbill.core.companions import CompanionSet, CompanionSets
from watchbill.core.estimate import MeanEstimate, MedianEstimate
from watchbill.core.machine import Machine
from watchbill.runtime.limits import COPY_TRIES_MAX
from watchbill.steps import Steps

__all__ = ["duplicate", "duplicate_steps"]

_Way = Callable[[object], object]
_SHARED = (
    bool,
    bytes,
    float,
    frozenset,
    int,
    str,
    FunctionType,
    MappingProxyType,
    MeanEstimate,
    MedianEstimate,
    NoneType,
    type,
)

_BUILT_IN = (dict, list, set, tuple)


def duplicate(core: Machine) -> Machine:
    """A copy of the core, for events of callers and of the clock."""
    return cast("Machine", _Copier(_declared(core)).copy(core))


def duplicate_steps(core: Machine) -> Steps[Machine]:
    """The same a model at a time. An event that the core takes meanwhile makes it begin anew, a few times; then the
    copy is made at once."""
    for _ in range(COPY_TRIES_MAX):
        copier, taken = _Copier(_declared(core)), core.state.out  # every event begins a new list of actions
        for model in list(core.state.models.values()):
            copier.copy(model)
            yield
            if core.state.out is not taken:
                break
        else:
            return cast("Machine", copier.copy(core))
    return duplicate(core)


def _declared(core: Machine) -> list[object]:
    catalog, specs = core.state.catalog, (model.spec for model in core.state.models.values())
    return [catalog, catalog.policy, *catalog.models.values(), *catalog.devices.values(), *specs]


class _Copier:
    """Copies objects that refer to each other, each of them once."""

    def __init__(self, shared: Iterable[object]) -> None:
        self._done = {id(each): each for each in shared}
        self._ways: dict[type, _Way | None] = {
            **dict.fromkeys(_SHARED),  # None: the object itself is used
            dict: self._dict,
            list: self._list,
            tuple: self._tuple,
            deque: self._deque,
            set: self._set,
            MethodType: self._method,
        }

    def copy(self, value: object) -> object:
        kind = type(value)
        try:
            way = self._ways[kind]
        except KeyError:
            way = self._ways[kind] = self._way_of(kind)
        if way is None:
            return value
        done = self._done.get(id(value))
        return way(value) if done is None else done

    def _way_of(self, kind: type) -> _Way | None:
        if issubclass(kind, Enum | type):
            return None
        if issubclass(kind, Struct):
            return None if kind.__struct_config__.frozen else self._struct
        if issubclass(kind, tuple):
            return self._named_tuple
        if kind is CompanionSets:
            return self._companion_sets
        if kind.__module__.startswith("watchbill.") and kind.__base__ not in _BUILT_IN:
            return self._object(cast("type[object]", kind))
        return lambda value: copy.deepcopy(value, self._done)

    def _struct(self, value: object) -> object:
        """Its fields are frozen themselves."""
        made = self._done[id(value)] = copy.copy(value)
        return made

    def _dict(self, value: object) -> object:
        made: dict[object, object] = {}
        self._done[id(value)] = made
        if value:
            copied = self.copy
            for key, each in cast("Mapping[object, object]", value).items():
                made[copied(key)] = copied(each)
        return made

    def _companion_sets(self, value: object) -> object:
        made = self._done[id(value)] = CompanionSets()
        for name, each in cast("CompanionSets", value).items():
            made[name] = cast("CompanionSet", self.copy(each))
        return made

    def _list(self, value: object) -> object:
        made: list[object] = []
        self._done[id(value)] = made
        made += map(self.copy, cast("list[object]", value))
        return made

    def _tuple(self, value: object) -> object:
        return tuple(map(self.copy, cast("tuple[object, ...]", value)))

    def _named_tuple(self, value: object) -> object:
        """Its fields may be models, also one that was replaced since."""
        make = cast("Callable[..., object]", type(value))
        return make(*map(self.copy, cast("tuple[object, ...]", value)))

    def _deque(self, value: object) -> object:
        made = copy.copy(cast("deque[object]", value))  # of numbers
        self._done[id(value)] = made
        return made

    def _set(self, value: object) -> object:
        made: set[object] = set()
        self._done[id(value)] = made
        made.update(map(self.copy, cast("set[object]", value)))
        return made

    def _method(self, value: object) -> object:
        method = cast("MethodType", value)
        return MethodType(method.__func__, self.copy(method.__self__))

    def _object(self, kind: type[object]) -> _Way:
        slots = [
            name for each in kind.__mro__ for name in cast("Iterable[str]", vars(each).get("__slots__", ()))
        ]
        names = [name for name in slots if name not in ("__dict__", "__weakref__")]
        has_dict = kind.__dictoffset__ != 0

        def make(value: object) -> object:
            made = object.__new__(kind)
            ways, copied, done = self._ways, self.copy, self._done
            done[id(value)] = made
            for name in names:
                if hasattr(value, name):
                    object.__setattr__(made, name, copied(getattr(value, name)))
            if has_dict:
                own, fields = cast("dict[str, object]", vars(made)), cast("dict[str, object]", vars(value))
                own.update(fields)
                for name, each in fields.items():
                    # Most attributes are numbers, texts, flags, or empty: the call is left out for them.
                    if each.__class__ is dict and not each:
                        own[name] = done.setdefault(id(each), {})
                    elif ways.get(each.__class__, copied) is not None:
                        own[name] = copied(each)
            return made

        return make
