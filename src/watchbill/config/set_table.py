"""`[sets.NAME]`: models that are in memory together or not at all."""

from pydantic import Field

from watchbill.config.fields import ModelName
from watchbill.config.table import Table

__all__ = ["SetTable"]


class SetTable(Table):
    """Companions: a request that names the set in `X-Watchbill-With` starts when all of its models are warm."""

    models: tuple[ModelName, ...] = Field(
        strict=False,
        description="Those that are needed at the same time; one of a family may be a smaller one of it.",
        examples=[["vision", "big"]],
    )
