"""Policies of somebody else's: from `[policy] name = "package.module:Class"` to the class (RES-21).

The module is found where Python finds others, or beside the config file. The class is made once, without arguments, and
looked at: the core takes only what keeps the protocol of `core.policy`. Nothing of it is called here.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from watchbill.config.draft import Draft
from watchbill.config.fields import POLICIES
from watchbill.config.problems import Wrong, did_you_mean

__all__ = ["StrategyRefused", "check_strategy", "find_strategy"]

_FLAGS = ("refuses_late", "in_order")
#: Method -> what it is called with.
_METHODS = {"forecast": ("state", "model", "request", "now"), "choose": ("state", "now")}
_WHERE = "docs/scheduling.md says what a policy has"


class StrategyRefused(Exception):
    """A policy that cannot be used: what is wrong, and what to do."""

    def __init__(self, wrong: str, hint: str) -> None:
        super().__init__(wrong)
        self.wrong, self.hint = wrong, hint


def check_strategy(draft: Draft) -> Iterator[Wrong]:
    """What is wrong with the policy that the config names."""
    name = draft.document.policy.name
    if name not in POLICIES and draft.is_sound("policy"):
        try:
            find_strategy(name, draft.base)
        except StrategyRefused as error:
            yield ("policy", "name"), error.wrong, error.hint


def find_strategy(name: str, base: Path) -> type[object] | None:
    """The class that the name means, or None for a shipped policy. Raises StrategyRefused."""
    if name in POLICIES:
        return None
    module_name, _, class_name = name.partition(":")
    found: object = getattr(_import(module_name, base), class_name, None)
    if not inspect.isclass(found):
        raise StrategyRefused(*_no_class(module_name, class_name))
    if (wrong := _breach(found)) is not None:
        raise StrategyRefused(f"{class_name} is no policy: {wrong}", _WHERE)
    return found


def _import(name: str, base: Path) -> object:
    importlib.invalidate_caches()  # it may have been written a moment ago
    sys.path.append(str(base))  # last: a file beside the config takes the place of no module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "install it where Watchbill is installed, or put it beside the config file"
            raise StrategyRefused(f"there is no module {error.name}", hint) from error
        raise _broken(name, error) from error
    except Exception as error:  # whatever a module does when it is imported, the operator reads why
        raise _broken(name, error) from error
    finally:
        sys.path.remove(str(base))


def _broken(module: str, error: Exception) -> StrategyRefused:
    if isinstance(error, SyntaxError):
        at = f"{Path(error.filename or '').name}:{error.lineno}"
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{Path(last.filename).name}:{last.lineno}"
    said = " ".join(str(error).split())[:200]
    return StrategyRefused(
        f"the module {module} cannot be imported: {type(error).__name__}: {said}", f"see {at}"
    )


def _no_class(module: str, name: str) -> tuple[str, str]:
    there = [
        each
        for each, kind in inspect.getmembers(sys.modules[module], inspect.isclass)
        if kind.__module__ == module
    ]
    return f"the module {module} has no class {name}", did_you_mean(name, there)


def _breach(kind: type[object]) -> str | None:
    """What a class lacks to be a policy."""
    try:
        made = kind()
    except Exception as error:  # noqa: BLE001  the same: its own words are for the operator
        return f"{kind.__name__}() raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    for flag in _FLAGS:
        if not isinstance(getattr(made, flag, None), bool):
            return f"it lacks {flag}, which is True or False"
    for method, arguments in _METHODS.items():
        spelled = f"{method}({', '.join(arguments)})"
        bound = getattr(made, method, None)
        if not callable(bound):
            return f"it lacks {spelled}"
        try:
            inspect.signature(bound).bind(*arguments)
        except (TypeError, ValueError):
            return f"its {method} cannot be called as {spelled}"
    return None
