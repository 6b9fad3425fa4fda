"""`[policy]`: how the models in memory are chosen: a policy of ours, or a class of the operator's own (RES-21).

`name = "package.module:Class"` means a class in a module that Python finds where it finds others, or beside the config
file. The class is made once, without arguments, and looked at: the core takes only what keeps the protocol of
`core.policy`. Nothing of it is called here.
"""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

from watchbill import catalog
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong, did_you_mean
from watchbill.config.values import Rate, Table, refused
from watchbill.quoting import described, quoted
from watchbill.suggest import nearest

__all__ = ["PolicyTable", "WeightsTable", "build_policy", "check_policy"]

# ------------------------------------------------------------------ the tables

#: The policies that come with Watchbill.
POLICIES = ("rate", "turns", "fifo")
_CLASS = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"


def _check_policy_name(text: str) -> str:
    """One of ours, or a class of the operator's own."""
    if text in POLICIES or re.fullmatch(_CLASS, text):
        return text
    near = nearest(text, POLICIES)
    hint = f"did you mean {near}?" if near else "write for example turns, or my_policies:Mine"
    words = ", ".join(POLICIES)
    raise refused(f"must be one of {words}, or package.module:Class, not {quoted(text)}", hint)


PolicyName = Annotated[
    str,
    AfterValidator(_check_policy_name),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{'|'.join(POLICIES)}|{_CLASS})$"}),
]


class WeightsTable(Table):
    """The weight of a waiting request, by its class, when models compete for memory."""

    interactive: Rate = Field(default=10.0, description="A person or live agent waits.")
    normal: Rate = Field(default=3.0, description="Plans and spools.")
    background: Rate = Field(default=1.0, description="Work without a waiting caller.")


class PolicyTable(Table):
    """The policy that chooses the models in memory."""

    name: PolicyName = Field(
        default="rate",
        description="The rule: rate, turns, fifo, or a class of your own as package.module:Class.",
        examples=["turns"],
    )
    alpha: Rate = Field(default=1.0, description="A loaded model stays for at least alpha x its load time.")
    linger: Rate = Field(default=1.0, description="An idle model keeps its price for linger x its load time.")
    inertia: Rate = Field(
        default=1.5, description="How much more urgent other models must be to displace a model, as a factor."
    )
    weights: WeightsTable = Field(default=WeightsTable(), description="What a waiting request weighs.")
    parallel_loads: int = Field(
        default=1, ge=1, le=limits.PARALLEL_LOADS_MAX, description="Loads at a time on the whole machine."
    )


# ------------------------------------------------------------------ checks


class StrategyRefused(Exception):
    """A policy that cannot be used: what is wrong, and what to do."""

    def __init__(self, wrong: str, hint: str) -> None:
        super().__init__(wrong)
        self.wrong, self.hint = wrong, hint


def check_policy(table: PolicyTable, draft: Draft) -> Iterator[Wrong]:
    """What is wrong with the policy that the config names."""
    if table.name not in POLICIES and draft.is_sound("policy"):
        try:
            _find_strategy(table.name, draft.base)
        except StrategyRefused as error:
            yield ("policy", "name"), error.wrong, error.hint


# ------------------------------------------------------------------ the catalog's record


def build_policy(policy: PolicyTable, base: Path) -> catalog.PolicyRules:
    """The rules, with the class that the name means where it is not one of ours."""
    weights = policy.weights
    _, _, _, leased, rotation = catalog.PolicyRules().weights
    return catalog.PolicyRules(
        policy.name,
        alpha=policy.alpha,
        linger=policy.linger,
        inertia=policy.inertia,
        weights=(weights.interactive, weights.normal, weights.background, leased, rotation),
        parallel_loads=policy.parallel_loads,
        strategy=_find_strategy(policy.name, base),
    )


# ------------------------------------------------------------------ a class of the operator's own

_FLAGS = ("refuses_late", "in_order")
#: Method -> what it is called with.
_METHODS = {"forecast": ("state", "model", "request", "now"), "choose": ("state", "now")}
_WHERE = "docs/scheduling.md says what a policy has"


def _find_strategy(name: str, base: Path) -> type[object] | None:
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
    return StrategyRefused(f"the module {module} cannot be imported: {described(error)}", f"see {at}")


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
        return f"{kind.__name__}() raises {described(error)}"
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
