"""`[process.NAME]`: types of work that POST /process takes."""

from pydantic import Field

from watchbill import catalog
from watchbill.config import limits
from watchbill.config.values import ModelName, PlainName, Table, TemplateText

__all__ = ["ProcessTable", "build_process_type"]


class ProcessTable(Table):
    """A type of work for POST /process: its model, its lane, and the answer when the model cannot give one."""

    model: ModelName = Field(description="The model that answers it.", examples=["smollm2"])
    lane: PlainName = Field(default=catalog.DEFAULT_LANE, description="The lane it waits in.")
    prompt: TemplateText = Field(
        default="{summary}",
        description="What the model is asked: {summary}, {type}, {id} and {payload.NAME} are filled in.",
    )
    fallback: TemplateText | None = Field(
        default=None,
        description="The answer without a model, filled in like the prompt; the lane's fallback otherwise.",
        examples=["I notice {summary}."],
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=limits.CONTEXT_TOKENS_MAX, description="The longest answer, in tokens."
    )
    capture: PlainName | None = Field(
        default=None, description="The spool that its finished requests go into.", examples=["corpus"]
    )


def build_process_type(name: str, table: ProcessTable) -> catalog.ProcessType:
    """The record that the gateway reads."""
    return catalog.ProcessType(
        name,
        model=table.model,
        lane=table.lane,
        prompt=table.prompt,
        fallback=table.fallback,
        max_tokens=table.max_tokens,
        capture=table.capture,
    )
