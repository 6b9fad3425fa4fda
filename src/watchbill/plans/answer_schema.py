"""The JSON Schema of an answer, and the faults of it that make every answer fail. Pure, standard library only.

The agent checks answers with a real validator; this finds the mistakes that people make before anything runs.
"""

from collections.abc import Mapping
from typing import cast

from watchbill.suggest import did_you_mean

__all__ = ["fault_in"]

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # of schemas
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")


def fault_in(schema: object, where: str = "") -> str:
    """What is wrong with a schema, with the path to it; "" where nothing is seen."""
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, dict):
        return f"{where or 'it'} is not an object"
    fields = cast("Mapping[str, object]", schema)
    return _fault_of_words(fields, where) or _fault_below(fields, where)


def _fault_of_words(fields: Mapping[str, object], where: str) -> str:
    kinds = fields.get("type", [])
    for kind in cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES and "{" not in str(kind):  # a placeholder is filled in later
            return f"{where or 'its'} type cannot be {kind}; {did_you_mean(str(kind), list(_TYPES))}"
    for key in ("required", "enum"):
        if key in fields and not isinstance(fields[key], list):
            return f"{f'{where} ' if where else ''}{key} is not a list"
    return ""


def _fault_below(fields: Mapping[str, object], where: str) -> str:
    parts: list[tuple[str, object]] = [(key, fields[key]) for key in _SINGLE if key in fields]
    for key in _MAPS:
        if key in fields and not isinstance(fields[key], dict):
            return f"{f'{where} ' if where else ''}{key} is not an object"
        parts += cast("Mapping[str, object]", fields.get(key, {})).items()
    for key in _LISTS:
        if key in fields and not isinstance(fields[key], list):
            return f"{f'{where} ' if where else ''}{key} is not a list"
        parts += [(key, each) for each in cast("list[object]", fields.get(key, []))]
    found = (fault_in(part, f"{where}.{name}" if where else name) for name, part in parts)
    return next(filter(None, found), "")
