"""What an event must look like before it may enter the corpus.

The built-in schema requires an id, a kind and a time and leaves the rest free. A JSON Schema file can
require more; it needs the extra `watchbill[schema]`, which is imported only when such a file is named.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from watchbill.errors import ConfigError
from watchbill.files.given import read_given
from watchbill.packages import how_to_install
from watchbill.spool.limits import SCHEMA_BYTES_MAX

__all__ = ["AnyObject", "BuiltinSchema", "JsonSchema", "Schema"]

#: A validator's text may quote the whole event; the reason file keeps this much of it.
_REASON_CHARS_MAX = 500


class Schema(Protocol):
    """Checks events."""

    def refuse(self, event: Mapping[str, Any]) -> str | None:
        """Return why this event is invalid, or None if it is valid."""
        ...


class AnyObject:
    """Every JSON object is valid."""

    def refuse(self, event: Mapping[str, Any]) -> str | None:
        return None


class BuiltinSchema:
    """An object with `id` (text or integer), `kind` (text) and `ts` (number or text); the rest is free."""

    def refuse(self, event: Mapping[str, Any]) -> str | None:
        identifier, kind, time = event.get("id"), event.get("kind"), event.get("ts")
        if not (isinstance(identifier, str) and identifier) and type(identifier) is not int:
            return "`id` must be a text or an integer" if "id" in event else "`id` is missing"
        if not isinstance(kind, str) or not kind:
            return "`kind` must be a text" if "kind" in event else "`kind` is missing"
        if not isinstance(time, (int, float, str)) or isinstance(time, bool) or time == "":
            return "`ts` must be a number or a text" if "ts" in event else "`ts` is missing"
        return None


class JsonSchema:
    """A JSON Schema. Raises ConfigError if it cannot be used or the extra is not installed."""

    def __init__(self, text: str, name: str) -> None:
        try:
            import jsonschema_rs
        except ImportError as error:
            raise ConfigError(f"a JSON Schema needs a package: {how_to_install('schema')}") from error
        try:
            self._validator: Any = jsonschema_rs.validator_for(text)
        except ValueError as error:
            raise ConfigError(
                f"{name} is no usable JSON Schema: {str(error).partition(chr(10))[0]}"
            ) from error

    @classmethod
    def read(cls, path: Path) -> "JsonSchema":
        """The schema in a file."""
        try:
            text = read_given(path, SCHEMA_BYTES_MAX).decode("utf-8")
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
            raise ConfigError(f"{path} is no usable JSON Schema: {said}") from error
        return cls(text, str(path))

    def refuse(self, event: Mapping[str, Any]) -> str | None:
        try:
            if self._validator.is_valid(event):
                return None
            first: Any = next(iter(self._validator.iter_errors(event)))
        except ValueError as error:  # nested too deep for the validator
            return f"event: {error}"[:_REASON_CHARS_MAX]
        where = "/".join(str(step) for step in first.instance_path)
        return f"{where or 'event'}: {first.message}"[:_REASON_CHARS_MAX]
