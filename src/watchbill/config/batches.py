"""`[batches]`: bounds of uploaded files and of batches, and how long both are kept."""

from collections.abc import Iterator

from pydantic import Field

from watchbill import catalog
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong
from watchbill.config.values import Duration, Size, Table
from watchbill.limits import DURATION_MS_MAX, SIZE_BYTES_MAX
from watchbill.units import spell_bytes

__all__ = ["BatchesTable", "build_batches", "check_batches"]

_DEFAULT = catalog.BatchRules()


class BatchesTable(Table):
    """Bounds of /v1/files, /v1/batches and /v1/messages/batches. Lines of batches wait in the lane `batches`."""

    file_max: Size = Field(
        default=_DEFAULT.file_max,
        ge=1024,
        le=limits.BATCH_FILE_BYTES_MAX,
        description="The largest uploaded file.",
    )
    files_max: int = Field(
        default=_DEFAULT.files_max, ge=1, le=limits.BATCH_FILES_MAX, description="Files of one key."
    )
    storage_max: Size = Field(
        default=_DEFAULT.storage_max,
        ge=1024,
        le=SIZE_BYTES_MAX,
        description="Bytes of one key's files. Results are kept beyond it; uploads are not.",
    )
    disk_max: Size = Field(
        default=_DEFAULT.disk_max,
        ge=1024,
        le=SIZE_BYTES_MAX,
        description="Bytes of the files and results of all keys. Beyond it uploads get 507 and batches pause.",
    )
    lines_max: int = Field(
        default=_DEFAULT.lines_max, ge=1, le=limits.BATCH_LINES_MAX, description="Lines of one batch."
    )
    open_max: int = Field(
        default=_DEFAULT.open_max,
        ge=1,
        le=limits.BATCHES_OPEN_MAX,
        description="Batches of one key that have not ended; more get 429.",
    )
    window_max: Duration = Field(
        default=_DEFAULT.window_max_ms,
        ge=60_000,
        le=DURATION_MS_MAX,
        description="The longest completion_window. What is not answered by then expires.",
    )
    keep: Duration = Field(
        default=_DEFAULT.keep_ms,
        ge=60_000,
        le=DURATION_MS_MAX,
        description="How long files are kept after their upload, and batches after their end.",
    )
    attempts: int = Field(
        default=_DEFAULT.attempts,
        ge=1,
        le=limits.BATCH_ATTEMPTS_MAX,
        description="How often a line is asked when its engine fails.",
    )


def check_batches(table: BatchesTable, draft: Draft) -> Iterator[Wrong]:
    """Bounds that contradict each other."""
    if table.file_max > table.storage_max:
        key = "file_max" if "file_max" in draft.keys_at("batches") else "storage_max"
        text = f"a file of {spell_bytes(table.file_max)} is larger than a key may have in all"
        yield ("batches", key), text, "make file_max smaller than storage_max"


def build_batches(table: BatchesTable) -> catalog.BatchRules:
    """The rules of a table that was found right."""
    return catalog.BatchRules(
        file_max=table.file_max,
        files_max=table.files_max,
        storage_max=table.storage_max,
        disk_max=table.disk_max,
        lines_max=table.lines_max,
        open_max=table.open_max,
        window_max_ms=table.window_max,
        keep_ms=table.keep,
        attempts=table.attempts,
    )
