"""What every table of the config file is: no coercion, no unknown keys, never changed after reading."""

from pydantic import BaseModel, ConfigDict

__all__ = ["Table"]


class Table(BaseModel):
    """A table of the file: no coercion, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
