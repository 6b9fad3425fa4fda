"""Spools between the config's tables and the catalog: what is wrong about them, and their records."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from watchbill import catalog, names
from watchbill.config.draft import Draft
from watchbill.config.locate import KeyPath
from watchbill.config.problems import Wrong
from watchbill.config.spool_table import ANY_KIND, SpoolTable
from watchbill.errors import NameRefused

__all__ = ["build_spools", "check_captures", "check_spools", "corpora_of", "path_of", "settle_spool"]

#: Words that stand for a schema; anything else is a file.
_SCHEMAS = ("builtin", "any")


def settle_spool(name: str, table: SpoolTable) -> SpoolTable:
    """The same table with the defaults that come from its name."""
    return table.model_copy(
        update={"path": table.path or f"spool/{name}", "corpus": table.corpus or f"corpus/{name}.jsonl"}
    )


def path_of(name: str, table: SpoolTable) -> str:
    return table.path or f"spool/{name}"


def corpora_of(name: str, table: SpoolTable) -> dict[str, str]:
    """The corpus of each kind; "*" stands for every other kind."""
    corpus = table.corpus or f"corpus/{name}.jsonl"
    return {ANY_KIND: corpus} if isinstance(corpus, str) else dict(corpus)


def check_captures(draft: Draft) -> Iterator[Wrong]:
    """Captures into spools that do not exist."""
    document = draft.document
    captures: dict[KeyPath, str | None] = {
        **{
            ("server", "keys", name, "capture"): table.capture for name, table in document.server.keys.items()
        },
        **{("models", name, "capture"): table.capture for name, table in document.models.items()},
        **{("lanes", name, "capture"): table.capture for name, table in document.lanes.items()},
        **{("process", name, "capture"): table.capture for name, table in document.process.items()},
    }
    for path, spool in captures.items():
        if spool is not None and spool not in document.spool:
            yield path, f"there is no spool {spool}", f"add [spool.{spool}]"


def check_spools(draft: Draft) -> Iterator[Wrong]:
    """Paths that cannot be, two spools in one folder, and a corpus that its own spool would eat."""
    owners: dict[Path, str] = {}
    for name, table in draft.document.spool.items():
        wrongs = list(_check_paths(draft.base, name, table))
        yield from wrongs
        if wrongs:
            continue
        folder = _normal(draft.base, path_of(name, table))
        if owners.setdefault(folder, name) != name:
            yield (
                ("spool", name, "path"),
                f"is the folder of the spool {owners[folder]}, too",
                "choose another",
            )
        for kind, corpus in corpora_of(name, table).items():
            if _normal(draft.base, corpus).is_relative_to(folder):
                at: KeyPath = ("spool", name, "corpus")
                at = (*at, kind) if isinstance(table.corpus, dict) else at
                yield at, "lies inside its own spool", "put it beside the spool's folder"


def _check_paths(base: Path, name: str, table: SpoolTable) -> Iterator[Wrong]:
    said: list[tuple[KeyPath, str]] = [(("path",), path_of(name, table))]
    corpora = corpora_of(name, table)
    keyed = isinstance(table.corpus, dict)
    said += [(("corpus", kind) if keyed else ("corpus",), file) for kind, file in corpora.items()]
    said += [(("schema",), table.schema_file)]
    said += [((key,), text) for key, text in (("archive", table.archive), ("sign", table.sign)) if text]
    said += [(("verify", place), file) for place, file in enumerate(table.verify)]
    for at, text in said:
        try:
            names.operator_path(base, text)
        except NameRefused as error:
            what, _, hint = str(error).partition("; ")
            yield ("spool", name, *at), what, hint


def _normal(base: Path, text: str) -> Path:
    """The place a text means, as far as that can be told without the root."""
    parts: list[str] = []
    for part in names.operator_path(base, text).parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return Path(*parts)


def build_spools(tables: Mapping[str, SpoolTable], base: Path) -> dict[str, catalog.SpoolRules]:
    """The records of tables that were found right."""
    return {name: _build(name, table, base) for name, table in tables.items()}


def _build(name: str, table: SpoolTable, base: Path) -> catalog.SpoolRules:
    schema = table.schema_file
    corpora = {kind: _below_root(base, file) for kind, file in corpora_of(name, table).items()}
    return catalog.SpoolRules(
        name,
        path=_below_root(base, path_of(name, table)),
        corpora=MappingProxyType(corpora),
        schema=schema if schema in _SCHEMAS else str(names.operator_path(base, schema)),
        id_key=table.id_key,
        attempts=table.attempts,
        poll_ms=table.poll,
        workers=table.workers,
        ordered=table.ordered,
        durability=table.durability,
        drain=table.drain,
        keep_done_ms=table.keep_done,
        archive=_below_root(base, table.archive) if table.archive else None,
        verify=tuple(str(names.operator_path(base, key)) for key in table.verify),
        sign=str(names.operator_path(base, table.sign)) if table.sign else None,
        kinds=tuple(table.kinds.items()),
    )


def _below_root(base: Path, text: str) -> str:
    """What Watchbill writes belongs to its root, which is not known here; only ~ and / lead elsewhere."""
    return str(names.operator_path(base, text)) if text.startswith(("~", "/")) else text
