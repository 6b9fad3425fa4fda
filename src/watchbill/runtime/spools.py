"""Spools from their rules: the spool itself, its corpora, its schema, its keys.

It reads files and opens folders, so it blocks: never call it on an event loop. Raises ConfigError for a schema or key
that cannot be used, and the errors of `watchbill.spool` for a folder that cannot be used.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from watchbill.catalog import NatsRules, SpoolRules, stream_of
from watchbill.errors import ConfigError
from watchbill.runtime.broker import own_reach
from watchbill.spool import Corpus, Drain, DrainReport, KeySigner, KeyVerifier, Schema, Spool
from watchbill.spool.backend import AnySpool
from watchbill.spool.jetstream.reach import Reach
from watchbill.spool.schema import AnyObject, BuiltinSchema, JsonSchema

__all__ = [
    "corpora_of", "folder_of", "is_on_broker", "make_drains", "open_spool", "other_side", "reach_of",
    "refuse_corpora", "schema_of", "signer_of", "verifier_of",
]  # fmt: skip


def folder_of(rules: SpoolRules, root: Path) -> Path:
    """The folder of the spool."""
    return root / rules.path


def is_on_broker(rules: SpoolRules) -> bool:
    """Whether its events are on NATS servers."""
    return rules.backend == "nats"


def other_side(rules: SpoolRules, backend: Literal["files", "nats"]) -> SpoolRules:
    """The same spool, stored the other way."""
    return replace(rules, backend=backend)


def open_spool(rules: SpoolRules, root: Path, *, signed: bool = False) -> AnySpool:
    """The spool, created where it is missing; `signed` for producers."""
    signer = signer_of(rules) if signed else None
    if is_on_broker(rules):
        from watchbill.spool.jetstream.spool import JetSpool

        return JetSpool(
            stream_of(rules.name, rules.stream),
            reach_of(rules.nats, root),
            folder=folder_of(rules, root),
            attempts=rules.attempts,
            signer=signer,
            lease_s=rules.lease_ms / 1000,
            replicas=rules.nats.replicas,
            keep_done_s=rules.keep_done_ms / 1000,
        )
    return Spool(
        folder_of(rules, root), durability=rules.durability, attempts=rules.attempts, signer=signer, shared=rules.shared
    )  # fmt: skip


def reach_of(nats: NatsRules, root: Path) -> Reach:
    """Where the broker is. Raises ConfigError if the config names none and `up --with-nats` never ran here."""
    wait_s = nats.timeout_ms / 1000
    if not nats.servers:
        return replace(own_reach(root), wait_s=wait_s)
    return Reach(
        nats.servers, nats.user, nats.password, nats.token, nats.credentials, nats.ca, nats.certificate, nats.key,
        wait_s, nats.variables,
    )  # fmt: skip


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
