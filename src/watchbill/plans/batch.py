"""A batch: one run of a plan. Its id, its inputs and the file that asks for it.

Pure. Writing the execute_plan file and the batch folder is the submitter's business.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import NamedTuple, cast

from watchbill.errors import NameRefused, OursError
from watchbill.names import check_folder_name, check_plain_name
from watchbill.plans import limits
from watchbill.plans.check import Plan
from watchbill.plans.expand import text_of
from watchbill.plans.findings import shown
from watchbill.plans.inputs import BUILT_INS
from watchbill.plans.task import PRIORITIES
from watchbill.suggest import did_you_mean

__all__ = [
    "BelowRoot", "ExecutePlan", "batch_id", "decoded_inputs", "encoded_inputs", "inputs_from_json",
    "inputs_from_pairs", "settle_inputs", "shared_inputs",
]  # fmt: skip

#: Where neither the plan nor the submitter says anything: priority normal.
PRIORITY = 3
_TOKEN = re.compile(r"[0-9a-f]{4,16}")


def batch_id(now: datetime, token: str) -> str:
    """A name for a new batch: sorts by time, and two submitters in the same second differ by their random token."""
    if not _TOKEN.fullmatch(token):
        raise NameRefused(f"{token!a} cannot be the token of a batch id; use 4 to 16 hexadecimal digits")
    return f"{now:%Y%m%d-%H%M%S}-{token}"


# ------------------------------------------------------------------ inputs


def inputs_from_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Reads `--set KEY=VALUE`. Raises OursError for one without a name or an equals sign."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OursError(f"--set {shown(pair)} sets nothing; write --set NAME=VALUE")
        found[name.strip()] = value
    return found


def inputs_from_json(text: str) -> dict[str, str]:
    """Reads `--inputs`: a JSON object. What is not a text is written as JSON. Raises OursError."""
    if len(text) > limits.PLAN_INPUTS_BYTES_MAX:
        raise OursError(
            f"the inputs are longer than {limits.PLAN_INPUTS_BYTES_MAX:,} characters; put them into files"
        )
    try:
        value = cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise OursError(f"the inputs are not valid JSON: {shown(str(error))}") from None
    if not isinstance(value, dict):
        raise OursError('the inputs must be a JSON object, as in {"NAME": "value"}')
    return {name: text_of(each) for name, each in cast("dict[str, object]", value).items()}


def settle_inputs(plan: Plan, given: Mapping[str, str]) -> dict[str, str]:
    """The value of every input, defaults included. Raises OursError with everything that is wrong, a line each."""
    wrong: list[str] = []
    known = [each.name for each in plan.inputs]
    for name, value in given.items():
        if name in BUILT_INS:
            wrong.append(f"{name} is filled in by Watchbill; leave it out")
        elif name not in known:
            hint = did_you_mean(name, known) or "the plan has no inputs"
            wrong.append(f"{shown(name)} is not an input of this plan; {hint}")
        elif "\0" in value or len(value.encode("utf-8", "replace")) > limits.PLAN_VALUE_BYTES_MAX:
            wrong.append(f"the value of {name} cannot be an argument of a program; give the path of a file")
    settled = {each.name: given.get(each.name, each.default) for each in plan.inputs}
    missing = [name for name, value in settled.items() if value is None and name in plan.used]
    wrong += [f"the input {name} is missing; add --set {name}=VALUE" for name in missing]
    if wrong:
        raise OursError("\n".join(wrong))
    return {name: value for name, value in settled.items() if value is not None}


def priority_of(inputs: Mapping[str, str]) -> int:
    """The priority of the batch: what the input PRIORITY says in words or as 1 to 5, else normal."""
    word = inputs.get("PRIORITY", "").strip().lower()
    if word in ("1", "2", "3", "4", "5"):
        return int(word)
    return PRIORITIES.get(word, PRIORITY)


class BelowRoot(NamedTuple):
    """An input that names a place in the shared folder: every machine puts its own path of the folder before it."""

    path: str


def shared_inputs(inputs: Mapping[str, str], root: PurePosixPath) -> dict[str, "str | BelowRoot"]:
    """The inputs as they travel: absolute paths below the submitter's root become relative to it."""
    return {name: _shared(value, root) for name, value in inputs.items()}


def _shared(value: str, root: PurePosixPath) -> "str | BelowRoot":
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or not path.is_relative_to(root):
        return value
    return BelowRoot(str(path.relative_to(root)))


# ------------------------------------------------------------------ the execute_plan file


@dataclass(frozen=True, slots=True)
class ExecutePlan:
    """What a submitter asks the coordinator for: ROOT/brain/inbox/BATCH.json."""

    batch: str
    plan: str
    inputs: Mapping[str, "str | BelowRoot"]
    priority: int = PRIORITY

    def encode(self) -> bytes:
        """The content of the file."""
        fields = {
            "type": "execute_plan", "format": 1, "batch": self.batch, "plan": self.plan, "priority": self.priority,
            "inputs": encoded_inputs(self.inputs),
        }  # fmt: skip
        return json.dumps(fields, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> "ExecutePlan":
        """Reads the file. Raises OursError: any program may have written it."""
        if len(content) > limits.PLAN_INPUTS_BYTES_MAX * 2:
            raise OursError("the execute_plan file is too large")
        try:
            value = cast("object", json.loads(content))
        except (ValueError, RecursionError) as error:
            raise OursError(f"the execute_plan file is not valid JSON: {shown(str(error))}") from None
        fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        if fields.get("type") != "execute_plan" or fields.get("format") != 1:
            raise OursError("the file is not an execute_plan of format 1; submit the plan with this version")
        batch, plan, priority = fields.get("batch"), fields.get("plan"), fields.get("priority")
        if not isinstance(batch, str) or not isinstance(plan, str):
            raise OursError("the execute_plan file names no batch or no plan")
        if not isinstance(priority, int) or isinstance(priority, bool) or not 1 <= priority <= 5:
            raise OursError("the execute_plan file has no priority from 1 to 5")
        named = check_plain_name(batch, "a batch"), check_folder_name(plan, "a plan")
        return cls(*named, decoded_inputs(fields.get("inputs")), priority)


def encoded_inputs(inputs: Mapping[str, "str | BelowRoot"]) -> dict[str, object]:
    """Inputs as they travel in a file."""
    return {
        name: {"below_root": value.path} if isinstance(value, BelowRoot) else value
        for name, value in inputs.items()
    }


def decoded_inputs(value: object) -> dict[str, "str | BelowRoot"]:
    """Read them. Raises OursError: any program may have written the file."""
    if not isinstance(value, dict):
        raise OursError("the execute_plan file has no inputs")
    return {name: _decoded_input(name, each) for name, each in cast("dict[str, object]", value).items()}


def _decoded_input(name: str, value: object) -> "str | BelowRoot":
    if isinstance(value, str):
        return value
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    below = fields.get("below_root")
    if (
        isinstance(below, str)
        and not PurePosixPath(below).is_absolute()
        and ".." not in PurePosixPath(below).parts
    ):
        return BelowRoot(below)
    raise OursError(
        f"the input {shown(name)} of the execute_plan file is neither a text nor a path below the root"
    )
