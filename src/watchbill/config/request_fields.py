"""Fields of requests that the operator sets or drops for a model: `set_fields`, `drop_fields`, `set_fields_by_name`."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, cast

from pydantic import AfterValidator

from watchbill.catalog import RequestRules
from watchbill.config.values import refused
from watchbill.quoting import quoted

__all__ = ["FieldName", "RequestFields", "build_rules"]

#: Fields that decide how a request is read and answered here.
_OURS = frozenset({"model", "stream", "stream_options", "n", "messages", "prompt", "input"})


def _check_field_name(name: str) -> str:
    if name in _OURS:
        raise refused(f"{name} is for the caller to say", "remove it")
    return name


def _check_fields(fields: dict[str, object]) -> dict[str, object]:
    for name, value in fields.items():
        if not _is_json(value):
            raise refused(
                f"{quoted(name)} cannot be written as JSON",
                "use texts, numbers, switches, lists, tables",
            )
    return fields


def _is_json(value: object) -> bool:
    match value:
        case str() | bool() | int():
            return True
        case float():
            return math.isfinite(value)
        case list():
            return all(map(_is_json, cast("list[object]", value)))
        case dict():
            return all(map(_is_json, cast("dict[str, object]", value).values()))
        case _:
            return False


FieldName = Annotated[str, AfterValidator(_check_field_name)]
RequestFields = Annotated[dict[FieldName, object], AfterValidator(_check_fields)]


def build_rules(
    set_fields: Mapping[str, object],
    drop_fields: tuple[str, ...],
    by_name: Mapping[str, Mapping[str, object]],
) -> RequestRules | None:
    """The catalog's record; None where requests are passed on as they are."""
    if not (set_fields or drop_fields or by_name):
        return None
    named = {name: MappingProxyType(dict(fields)) for name, fields in by_name.items()}
    return RequestRules(MappingProxyType(dict(set_fields)), frozenset(drop_fields), MappingProxyType(named))
