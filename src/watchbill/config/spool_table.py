"""`[spool.NAME]`: a spool that the daemon drains, or that the command line knows by its name."""

from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, WithJsonSchema

from watchbill import limits
from watchbill.config.fields import Duration, Line, refused
from watchbill.config.table import Table
from watchbill.units import Millis

__all__ = ["ANY_KIND", "SpoolTable"]

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
Kinds = Annotated[
    dict[str, str],
    BeforeValidator(_read_kinds),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}),
]


class SpoolTable(Table):
    """A durable queue of plain files, and the corpus it is drained into. Watchbill writes both, so `path`,
    `corpus` and `archive` are relative to its root; `schema` and `verify` are relative to the config file."""

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
        default=3, ge=1, le=limits.SPOOL_ATTEMPTS_MAX, description="Tries of one event before it is poisoned."
    )
    poll: Duration = Field(
        default=Millis(1_000),
        ge=10,
        le=3_600_000,
        description="The longest pause between two looks at the queue.",
    )
    workers: int = Field(default=1, ge=1, le=limits.DRAIN_WORKERS_MAX, description="Drain workers at a time.")
    ordered: bool = Field(
        default=False, description="One worker at a time on the whole spool, so that arrival order is kept."
    )
    durability: Literal["wal", "event", "none"] = Field(
        default="wal",
        description="How an event is made safe: by a log, by syncing each file (network mounts), or not at all.",
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
