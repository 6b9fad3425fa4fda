"""`pull`: fetches a model into the root's models folder, with a bar. Needs no daemon."""

import json as jsonlib
import os
import re
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from watchbill.cli.client import DaemonRefused, parse
from watchbill.cli.limits import CLI_POLL_INTERVAL_S, CLI_SERVED_S
from watchbill.cli.options import Where
from watchbill.cli.progress import byte_bar
from watchbill.cli.session import Session, open_session
from watchbill.cli.status import fields, figure
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import NotReachable, RequestError, WatchbillError
from watchbill.root import Root, find_root
from watchbill.units import format_bytes

if TYPE_CHECKING:
    from watchbill.pull import Pulled

__all__ = ["pull", "pull_through_daemon"]

_DEFAULTS = Where()


def pull(
    source: Annotated[
        str,
        Parameter(
            name="SOURCE",
            help="A name of Ollama's library (qwen2.5:0.5b), hf:OWNER/REPO/FILE, http(s)://... with --sha256, a path, "
            "smollm2 (the embedded model), or ollama:NAME (Ollama itself pulls it).",
        ),
    ],
    /,
    *,
    sha256: Annotated[str | None, Parameter(help="The expected SHA-256 of the file.")] = None,
    name: Annotated[
        str | None, Parameter(help="The name of the file. Default: the one of its source.")
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print path, size and model as JSON.")
    ] = False,
    where: Where = _DEFAULTS,
) -> None:
    """Fetch a model into ROOT/models.

    It is served from then on, without a config; a running daemon notices by itself. After an interruption, the same
    command continues where it stopped.

    Example: watchbill pull qwen2.5:0.5b
    """
    root, terminal = find_root(where.root), Terminal(quiet=where.quiet)
    root.create()
    try:
        if _is_of_registry(source):
            if sha256 or name:
                raise RequestError(
                    f"{plain(source)} has its own hashes and name; leave --sha256 and --name out"
                )
            told = _pull_named(source, root, where)
        else:
            told = _pull_file(source, root, terminal, sha256, name)
    except KeyboardInterrupt:
        terminal.note(f"stopped; the same command continues where it stopped: {root.command('pull', source)}")
        raise
    if told.model is not None and told.path is not None:
        _await_daemon(told.model, where)
    if json:
        terminal.show(jsonlib.dumps(told.fields()))
        return
    if not told.fetched:
        terminal.note("it is here already")
    where_to = str(told.path) if told.path else told.kept
    terminal.show(f"{where_to} ({format_bytes(told.size_bytes)})")
    if told.model is not None:
        terminal.note(f"it is served as: {plain(told.model)}; try: {root.command('run', told.model)}")
    elif told.path is not None and told.path.suffix == ".gguf":
        _tell_how_to_serve(told.path, root, terminal)
    elif told.path is not None:
        terminal.note(
            "it is no .gguf file: nothing serves it, unless a model in watchbill.toml names it as its source"
        )


def _await_daemon(model: str, where: Where) -> None:
    """Waits until a running daemon serves a new file: it looks every few seconds, and who is told a name uses it."""
    until = time.monotonic() + CLI_SERVED_S
    try:
        session = open_session(None, where.root, quiet=where.quiet)
        while time.monotonic() < until:
            try:
                session.client.post("/api/show", {"model": model})
                return
            except DaemonRefused as refused:
                if refused.answered != HTTPStatus.NOT_FOUND:
                    return
            time.sleep(CLI_POLL_INTERVAL_S)
    except NotReachable:
        return  # it is served by the next daemon


class _Told(NamedTuple):
    """What a pull left behind, for the person who asked."""

    path: Path | None
    size_bytes: int
    fetched: bool
    model: str | None  # that serves it, without a further step
    kept: str = "kept by the engine"

    def fields(self) -> dict[str, object]:
        return {
            "path": str(self.path) if self.path else None,
            "bytes": self.size_bytes,
            "fetched": self.fetched,
            "model": self.model,
        }


# ------------------------------------------------------------------ files


def _pull_file(source: str, root: Root, terminal: Terminal, sha256: str | None, name: str | None) -> _Told:
    from watchbill.pull import pull as fetch

    with byte_bar(terminal, f"pulling {source}") as report:
        pulled = fetch(source, root.models, sha256=sha256, name=name, progress=report)
    _judge(pulled)
    model = None if pulled.path is None else _served_as(pulled.path, root)
    return _Told(pulled.path, pulled.size_bytes, pulled.fetched, model)


def _served_as(path: Path, root: Root) -> str | None:
    """The model that a daemon of this root serves the file as; None where the config keeps it from that."""
    from watchbill.config import find_config, read
    from watchbill.runtime.library import Library

    try:
        loaded = read(find_config(None, root), root=root.path)
    except WatchbillError:  # told by the start of a daemon with it
        return None
    catalog = Library.of(root.models, loaded.catalog).catalog
    return next((name for name, model in catalog.models.items() if _is_same(model.source, path)), None)


def _tell_how_to_serve(path: Path, root: Root, terminal: Terminal) -> None:
    """Prints the lines of config that would serve a file which the config keeps from being served by itself."""
    from watchbill.config import find_config, read

    try:
        loaded = read(find_config(None, root), root=root.path)
    except WatchbillError as error:
        terminal.note(f"whether a model serves it cannot be told: {plain(error)}")
        return
    if loaded.file is None or loaded.catalog.library.files:
        return  # it is no model, and that was said
    lines = "\n".join(_table_for(path))
    terminal.note(f"no model of the config serves it yet; these lines would:\n\n{lines}\n")
    terminal.note(f"add them to {plain(loaded.file.absolute())}; a running daemon notices by itself")


# ------------------------------------------------------------------ models of a registry


def _is_of_registry(source: str) -> bool:
    """Whether a source is a name as Ollama's library has them, and not a file or an address."""
    from watchbill.errors import NameRefused
    from watchbill.pull.registry import read_reference

    if source == "smollm2" or source.startswith(("hf:", "http:", "https:", "ollama:", "/", "./", "../", "~")):
        return False
    if source.lower().endswith(".gguf") or Path(source).exists():
        return False
    try:
        read_reference(source)
    except NameRefused:
        return False
    return True


def _pull_named(name: str, root: Root, where: Where) -> _Told:
    """Pulls through the daemon, which serves the model at once; without one into the models folder."""
    try:
        session = open_session(None, where.root, quiet=where.quiet)
        size_bytes, grown = pull_through_daemon(session, name)
    except NotReachable:
        if os.environ.get("WATCHBILL_URL") and where.root is None:
            raise
        return _pull_alone(name, root, where)
    return _Told(None, size_bytes, grown, name, f"{plain(name)} is in the library of the daemon")


def pull_through_daemon(session: Session, name: str) -> tuple[int, bool]:
    """Has the daemon pull a model. Returns its size, and whether anything was fetched. Raises DaemonRefused."""
    layers: dict[str, tuple[int, int]] = {}
    grown = False
    with (
        byte_bar(session.terminal, f"pulling {name}") as report,
        session.client.stream("POST", "/api/pull", {"model": name}) as lines,
    ):
        for line in lines:
            step = fields(parse(line.encode() or b"{}"))
            if "error" in step:
                raise DaemonRefused(plain(step["error"]), answered=200, reason="")
            if digest := step.get("digest"):
                done, whole = figure(step.get("completed")), figure(step.get("total"))
                grown = grown or (str(digest) in layers and done > layers[str(digest)][0])
                layers[str(digest)] = (done, whole)
                report(sum(each[0] for each in layers.values()), sum(each[1] for each in layers.values()))
            if step.get("status") == "success":
                return sum(whole for _, whole in layers.values()), grown
    raise DaemonRefused(
        f"the pull of {plain(name)} broke off; the same command continues", answered=200, reason=""
    )


def _pull_alone(name: str, root: Root, where: Where) -> _Told:
    import asyncio

    from watchbill.config import find_config, read
    from watchbill.errors import RootInUse
    from watchbill.processes import RootLock
    from watchbill.pull.registry import Step, pull_layers, read_reference, registry_address
    from watchbill.runtime.library import BLOBS, Library, entry_of

    terminal, fetched = Terminal(quiet=where.quiet), False
    with byte_bar(terminal, f"pulling {name}") as report:

        def tell(step: Step) -> None:
            nonlocal fetched
            if step.digest is not None and step.completed is not None:
                fetched = fetched or step.completed < (step.total or 0)
                report(step.completed, step.total)

        layers = pull_layers(read_reference(name, registry=registry_address()), root.models / BLOBS, tell)
    entry = entry_of(name.removesuffix(":latest"), layers, root.models)
    try:
        with RootLock(root.lock_file):  # a daemon keeps the library in its memory
            catalog = read(find_config(None, root), root=root.path).catalog
            asyncio.run(Library.of(root.models, catalog).put(None, entry))
    except RootInUse:  # it started meanwhile; all layers are there already
        pull_through_daemon(open_session(None, where.root, quiet=where.quiet), name)
    return _Told(layers.file, layers.file.stat().st_size, fetched, entry.name)


def _is_same(source: str | None, path: Path) -> bool:
    return source is not None and Path(source).resolve() == path.resolve()


def _table_for(path: Path) -> list[str]:
    from watchbill.toml import spell_key

    name = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-._") or "model"
    return [
        f"[{spell_key(('models', name))}]",
        'engine = "llamacpp"',
        f"source = {jsonlib.dumps(str(path), ensure_ascii=False)}",
    ]


def _judge(pulled: "Pulled") -> None:
    """Warns if a file that arrived intact is not a model: a web page, half a download."""
    from watchbill.gguf import GgufError, read_header

    if pulled.path is None or pulled.path.suffix != ".gguf":
        return
    try:
        read_header(pulled.path)
    except GgufError as error:
        if error.path == pulled.path:  # and not another part of the model that is still to be pulled
            print(f"warning: {plain(error.path)} cannot be loaded: {plain(error.what)}", file=sys.stderr)
