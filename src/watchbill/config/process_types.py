"""Types of work for POST /process between the config's tables and the catalog: what is wrong, and the records."""

from collections.abc import Iterator, Mapping

from watchbill import catalog
from watchbill.config.draft import Draft
from watchbill.config.problems import Wrong, did_you_mean
from watchbill.config.process_table import ProcessTable

__all__ = ["build_process_types", "check_process_types"]


def check_process_types(draft: Draft, types: Mapping[str, ProcessTable]) -> Iterator[Wrong]:
    """Lanes and models that do not exist."""
    aliases = {alias for table in draft.document.models.values() for alias in table.aliases}
    models = [*draft.names("models"), *sorted(aliases)]
    for name, table in types.items():
        if not draft.knows("lanes", table.lane):
            lanes = sorted(draft.names("lanes"))
            hint = did_you_mean(table.lane, lanes) or "add one to [lanes]"
            yield ("process", name, "lane"), f"there is no lane {table.lane}", hint
        if table.model.removesuffix(":latest") not in {each.removesuffix(":latest") for each in models}:
            hint = did_you_mean(table.model, models) or "add one to [models]"
            yield ("process", name, "model"), f"there is no model {table.model}", hint


def build_process_types(types: Mapping[str, ProcessTable]) -> dict[str, catalog.ProcessType]:
    """The records that the gateway reads."""
    return {
        name: catalog.ProcessType(
            name, table.model, table.lane, table.prompt, table.fallback, table.max_tokens, table.capture
        )
        for name, table in types.items()
    }
