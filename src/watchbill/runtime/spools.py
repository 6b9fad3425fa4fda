"""Spools from their rules: the spool itself, its corpora, its schema, its keys.

It reads files and opens folders, so it blocks: never call it on an event loop. Raises ConfigError for a schema or key
that cannot be used, and the errors of `watchbill.spool` for a folder that cannot be used.
"""

from collections.abc import Callable
from pathlib import Path

from watchbill.catalog import SpoolRules
from watchbill.errors import ConfigError
from watchbill.spool import Corpus, Drain, DrainReport, KeySigner, KeyVerifier, Schema, Spool
from watchbill.spool.schema import AnyObject, BuiltinSchema, JsonSchema

__all__ = [
    "corpora_of", "folder_of", "make_drains", "open_spool", "refuse_corpora", "schema_of", "signer_of",
    "verifier_of",
]  # fmt: skip


def folder_of(rules: SpoolRules, root: Path) -> Path:
    """The folder of the spool."""
    return root / rules.path


def open_spool(rules: SpoolRules, root: Path, *, signed: bool = False) -> Spool:
    """The spool, created where it is missing; `signed` for producers."""
    signer = signer_of(rules) if signed else None
    return Spool(folder_of(rules, root), durability=rules.durability, attempts=rules.attempts, signer=signer)


def corpora_of(rules: SpoolRules, root: Path) -> dict[str, Corpus]:
    """An appender for each corpus; kinds with the same file share it."""
    files: dict[Path, Corpus] = {}
    corpora: dict[str, Corpus] = {}
    for kind, file in rules.corpora.items():
        path = root / file
        corpora[kind] = files.setdefault(path, Corpus(path, id_key=rules.id_key))
    return corpora


def schema_of(rules: SpoolRules) -> Schema:
    """The schema of its events."""
    if rules.schema == "any":
        return AnyObject()
    return BuiltinSchema() if rules.schema == "builtin" else JsonSchema.read(Path(rules.schema))


def verifier_of(rules: SpoolRules) -> KeyVerifier | None:
    """The verifier of signatures; None where none are required."""
    return KeyVerifier(map(Path, rules.verify)) if rules.verify else None


def signer_of(rules: SpoolRules) -> KeySigner | None:
    """The signer of events; None where they are not signed."""
    return KeySigner(Path(rules.sign)) if rules.sign else None


def make_drains(
    rules: SpoolRules, root: Path, *, progress: Callable[[DrainReport], None] | None = None
) -> list[Drain]:
    """As many drain workers as the rules say, each with a spool and corpora of its own. Close their spools."""
    refuse_corpora(rules, root)
    schema, verifier = schema_of(rules), verifier_of(rules)
    drains: list[Drain] = []
    try:
        for _ in range(rules.workers):
            drains.append(
                Drain(
                    open_spool(rules, root),
                    corpora_of(rules, root),
                    schema=schema,
                    verifier=verifier,
                    progress=progress,
                    poll_s=rules.poll_ms / 1000,
                    ordered=rules.ordered,
                )
            )
    except BaseException:
        for drain in drains:
            drain.spool.close()
        raise
    return drains


def refuse_corpora(rules: SpoolRules, root: Path) -> None:
    """Raises ConfigError for a file that cannot be a corpus, or that its own drain would take for an event."""
    spool = folder_of(rules, root).resolve()
    for file in rules.corpora.values():
        if not (root / file).name:
            raise ConfigError(f"{root / file} cannot be a corpus; name a file")
        if (root / file).resolve().is_relative_to(spool):
            raise ConfigError(
                f"the corpus {root / file} lies inside its own spool; put it beside the spool's folder"
            )
