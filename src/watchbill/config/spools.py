"""`[spool.NAME]`: a spool that the daemon drains, or that the command line knows by its name.

Folder and corpus of a spool come from its name unless they are given. Watchbill writes both, so they are relative to
its root, which is not known here: only a path that begins with ~ or / leads elsewhere.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from watchbill import catalog, names
from watchbill.config import limits
from watchbill.config.checks import Draft, Wrong
from watchbill.config.values import Duration, Line, Table, below_root, refused
from watchbill.errors import NameRefused
from watchbill.limits import DRAIN_WORKERS_MAX
from watchbill.toml import KeyPath
from watchbill.units import Millis

__all__ = ["SpoolTable", "build_spool", "check_spools", "settle_spool"]

# ------------------------------------------------------------------ the table

#: The corpus of every kind that has none of its own.
ANY_KIND = "*"


def _read_corpus(value: object) -> object:
    """A file, or a table of kind and file."""
    if isinstance(value, dict):
        for kind, file in cast("dict[str, object]", value).items():
            if not kind.strip() or not isinstance(file, str) or not file.strip() or "\0" in file:
                hint = (
                    'write for example { "draft-created" = "corpus/drafts.jsonl", "*" = "corpus/rest.jsonl" }'
                )
                raise refused("must name a file for each kind", hint, at=kind if kind.isprintable() else None)
        if not value:
            raise refused("must not be empty", "name a file, or leave the key out")
    elif not isinstance(value, str) or not value.strip() or "\0" in value:
        raise refused(
            "must be a file, or a table of files by kind", 'write for example "corpus/corpus.jsonl"'
        )
    return cast("object", value)


def _read_kinds(value: object) -> object:
    if isinstance(value, dict):
        for pattern, kind in cast("dict[str, object]", value).items():
            if not pattern.strip() or not isinstance(kind, str) or not kind.strip():
                hint = 'write for example { "creative/*" = "creative-edited" }'
                raise refused(
                    "must name a kind for each path", hint, at=pattern if pattern.isprintable() else None
                )
    return cast("object", value)


Corpora = Annotated[
    str | dict[str, str],
    BeforeValidator(_read_corpus),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {"type": "string", "minLength": 1},
                },
            ]
        }
    ),
]


def _check_stream(text: str) -> str:
    if not _STREAM.fullmatch(text):
        raise refused("is no name of a stream", "use letters, digits, - and _, at most 128")
    return text


_STREAM = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
StreamName = Annotated[str, AfterValidator(_check_stream)]
Kinds = Annotated[
    dict[str, str],
    BeforeValidator(_read_kinds),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}),
]


class SpoolTable(Table):
    """A durable queue, and the corpus it is drained into. Watchbill writes both, so `path`,
    `corpus` and `archive` are relative to its root; `schema` and `verify` are relative to the config file."""

    backend: Literal["files", "nats"] = Field(
        default="files",
        description="Where events are: in plain files, or on the NATS servers of [nats], for several machines.",
    )
    stream: StreamName | None = Field(
        default=None,
        description="With backend nats: the name of its stream; watchbill_NAME otherwise.",
        examples=["watchbill_jobs"],
    )
    lease: Duration = Field(
        default=Millis(30_000),
        ge=1_000,
        le=3_600_000,
        description="With backend nats: events of a worker that is silent for this long go to others.",
    )
    path: Line | None = Field(
        default=None, description="The spool's folder; spool/NAME otherwise.", examples=["spool/corpus"]
    )
    corpus: Corpora | None = Field(
        default=None,
        description='The JSONL file it is drained into; corpus/NAME.jsonl otherwise. A table names one per kind, "*" '
        "for the rest.",
        examples=["corpus/corpus.jsonl"],
    )
    schema_file: Line = Field(
        default="builtin",
        alias="schema",
        description="What an event must look like: builtin (id, kind and ts), any (any object), or a JSON Schema file.",
        examples=["event.schema.json"],
    )
    id_key: Line = Field(default="id", description="The key of an event that holds its id.")
    attempts: int = Field(
        default=3,
        ge=1,
        le=limits.SPOOL_ATTEMPTS_MAX,
        description="Attempts of one event before it is poisoned.",
    )
    poll: Duration = Field(
        default=Millis(1_000),
        ge=10,
        le=3_600_000,
        description="The longest pause between two looks at the queue.",
    )
    workers: int = Field(default=1, ge=1, le=DRAIN_WORKERS_MAX, description="Drain workers at a time.")
    ordered: bool = Field(
        default=False, description="One worker at a time on the whole spool, so that arrival order is kept."
    )
    durability: Literal["wal", "event", "none"] = Field(
        default="wal",
        description="How an event is made safe: by a log, by syncing each file (network mounts), or not at all.",
    )
    shared: bool | None = Field(
        default=None,
        description="Whether other hosts use its folder, too; if it is on a network mount otherwise.",
        examples=[True],
    )
    drain: bool = Field(
        default=True, description="Whether `watchbill up` drains it; other processes always may."
    )
    keep_done: Duration = Field(
        default=Millis(7 * 86_400_000), description="Finished events are deleted after this."
    )
    archive: Line | None = Field(
        default=None, description="A folder they are moved to instead.", examples=["archive/corpus"]
    )
    verify: tuple[Line, ...] = Field(
        default=(),
        strict=False,
        description="Public keys (PEM); with any, an event that none of them signed is poisoned.",
        examples=[["keys/editor.pub.pem"]],
    )
    sign: Line | None = Field(
        default=None,
        description="A private key (PEM); events that `watchbill spool` and its git hook enqueue are signed with it.",
        examples=["keys/editor.pem"],
    )
    kinds: Kinds = Field(
        default={},
        description="For the git hook: path pattern = kind; the first that matches a file of a commit wins.",
        examples=[{"creative/*": "creative-edited"}],
    )


# ------------------------------------------------------------------ defaults


def settle_spool(name: str, table: SpoolTable) -> SpoolTable:
    """The same table with the defaults that come from its name."""
    return table.model_copy(
        update={"path": table.path or f"spool/{name}", "corpus": table.corpus or f"corpus/{name}.jsonl"}
    )


def _path_of(table: SpoolTable) -> str:
    return table.path or ""  # never empty in a settled table


def _corpora_of(table: SpoolTable) -> dict[str, str]:
    """The corpus of each kind; "*" stands for every other kind."""
    corpus = table.corpus or {}  # never empty in a settled table
    return {ANY_KIND: corpus} if isinstance(corpus, str) else dict(corpus)


# ------------------------------------------------------------------ checks

#: Words that stand for a schema; anything else is a file.
_SCHEMAS = ("builtin", "any")


def check_spools(spools: Mapping[str, SpoolTable], draft: Draft) -> Iterator[Wrong]:
    """Paths that cannot be, two spools in one folder, and a corpus that its own spool would eat."""
    owners: dict[Path, str] = {}
    streams: dict[str, str] = {}
    for name, table in spools.items():
        if table.backend == "nats":
            yield from _check_broker(name, table)
            stream = catalog.stream_of(name, table.stream or "")
            if streams.setdefault(stream, name) != name:
                text = f"is the stream of the spool {streams[stream]}, too"
                yield ("spool", name, "stream"), text, "choose another"
        wrongs = list(_check_paths(draft.base, name, table))
        yield from wrongs
        if wrongs:
            continue
        folder = _normal(draft.base, _path_of(table))
        if owners.setdefault(folder, name) != name:
            yield (
                ("spool", name, "path"),
                f"is the folder of the spool {owners[folder]}, too",
                "choose another",
            )
        for kind, corpus in _corpora_of(table).items():
            if _normal(draft.base, corpus).is_relative_to(folder):
                at: KeyPath = ("spool", name, "corpus")
                at = (*at, kind) if isinstance(table.corpus, dict) else at
                yield at, "lies inside its own spool", "put it beside the spool's folder"


def _check_broker(name: str, table: SpoolTable) -> Iterator[Wrong]:
    """Keys of a spool of files in one that is on a broker."""
    if table.durability != "wal":
        text = "means nothing with backend nats: the servers decide it (sync_interval: always)"
        yield ("spool", name, "durability"), text, "remove it"
    if table.shared is not None:
        text = "means nothing with backend nats: a spool there is always for several hosts"
        yield ("spool", name, "shared"), text, "remove it"
    if table.archive is not None:
        text = "cannot be used with backend nats: the servers delete finished events"
        yield ("spool", name, "archive"), text, "remove it"


def _check_paths(base: Path, name: str, table: SpoolTable) -> Iterator[Wrong]:
    said: list[tuple[KeyPath, str]] = [(("path",), _path_of(table))]
    corpora = _corpora_of(table)
    keyed = isinstance(table.corpus, dict)
    said += [(("corpus", kind) if keyed else ("corpus",), file) for kind, file in corpora.items()]
    said += [(("schema",), table.schema_file)]
    said += [((key,), text) for key, text in (("archive", table.archive), ("sign", table.sign)) if text]
    said += [(("verify", place), file) for place, file in enumerate(table.verify)]
    for at, text in said:
        try:
            names.operator_path(base, text)
        except NameRefused as error:
            yield ("spool", name, *at), error.what, error.hint


def _normal(base: Path, text: str) -> Path:
    """The place a text means, as far as that can be told without the root."""
    parts: list[str] = []
    for part in names.operator_path(base, text).parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return Path(*parts)


# ------------------------------------------------------------------ the catalog's record


def build_spool(name: str, table: SpoolTable, base: Path, nats: catalog.NatsRules) -> catalog.SpoolRules:
    """The record of a table that was settled and found right."""
    schema = table.schema_file
    corpora = {kind: below_root(base, file) for kind, file in _corpora_of(table).items()}
    return catalog.SpoolRules(
        name,
        path=below_root(base, _path_of(table)),
        corpora=MappingProxyType(corpora),
        schema=schema if schema in _SCHEMAS else str(names.operator_path(base, schema)),
        id_key=table.id_key,
        attempts=table.attempts,
        poll_ms=table.poll,
        workers=table.workers,
        ordered=table.ordered,
        durability=table.durability,
        shared=table.shared,
        drain=table.drain,
        keep_done_ms=table.keep_done,
        archive=below_root(base, table.archive) if table.archive else None,
        verify=tuple(str(names.operator_path(base, key)) for key in table.verify),
        sign=str(names.operator_path(base, table.sign)) if table.sign else None,
        kinds=tuple(table.kinds.items()),
        backend=table.backend,
        stream=table.stream or "",
        lease_ms=table.lease,
        nats=nats,
    )
