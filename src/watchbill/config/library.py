"""`[library]`: models that are on this disk and need no table of their own."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from watchbill import catalog, names
from watchbill.config.checks import Draft, Wrong
from watchbill.config.values import Line, Table
from watchbill.errors import NameRefused

__all__ = ["LibraryTable", "build_library", "check_library"]

_DEFAULT = catalog.LibraryRules()


class LibraryTable(Table):
    """Models without a table: files of ROOT/models, and what an installed Ollama keeps on this disk."""

    files: bool = Field(
        default=_DEFAULT.files,
        description="Serve every GGUF file of ROOT/models that no model of the config names.",
    )
    ollama: bool = Field(
        default=_DEFAULT.ollama,
        description="Serve the models of an installed Ollama from its folder, which is never changed; "
        "true where there is no config.",
    )
    ollama_folder: Line | None = Field(
        default=None,
        description="Where Ollama keeps them; $OLLAMA_MODELS, ~/.ollama/models or /usr/share/ollama/.ollama/models "
        "otherwise.",
        examples=["/srv/ollama/models"],
    )


def check_library(table: LibraryTable, draft: Draft) -> Iterator[Wrong]:
    """A folder that cannot be one, or that is not used."""
    path = ("library", "ollama_folder")
    if table.ollama_folder is None:
        return
    if not table.ollama:
        yield path, "means nothing without ollama = true", "add ollama = true, or remove it"
    try:
        names.operator_path(draft.base, table.ollama_folder)
    except NameRefused as error:
        yield path, error.what, error.hint


def build_library(table: LibraryTable, base: Path) -> catalog.LibraryRules:
    """The rules of a table that was found right."""
    folder = table.ollama_folder
    return catalog.LibraryRules(
        files=table.files,
        ollama=table.ollama,
        ollama_folder=None if folder is None else str(names.operator_path(base, folder)),
    )
