"""`pull`: fetches a model file into the root's models folder, with a bar. Needs no daemon."""

import json as jsonlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from watchbill.cli.options import Where
from watchbill.cli.progress import byte_bar
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import WatchbillError
from watchbill.root import Root, find_root
from watchbill.units import format_bytes

if TYPE_CHECKING:
    from watchbill.pull import Pulled

__all__ = ["pull"]

_DEFAULTS = Where()


def pull(
    source: Annotated[
        str,
        Parameter(
            name="SOURCE",
            help="smollm2 (the embedded model), hf:OWNER/REPO/FILE, http(s)://... with --sha256, ollama:NAME, "
            "or a path.",
        ),
    ],
    /,
    *,
    sha256: Annotated[str | None, Parameter(help="The expected SHA-256 of the file.")] = None,
    name: Annotated[
        str | None, Parameter(help="The name of the file. Default: the one of its source.")
    ] = None,
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print path and size as JSON.")
    ] = False,
    where: Where = _DEFAULTS,
) -> None:
    """Fetch a model file into ROOT/models.

    After an interruption, the same command continues where it stopped.

    Example: watchbill pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_k_m.gguf
    """
    from watchbill.pull import pull as fetch

    root, terminal = find_root(where.root), Terminal(quiet=where.quiet)
    root.create()
    try:
        with byte_bar(terminal, f"pulling {source}") as report:
            pulled = fetch(source, root.models, sha256=sha256, name=name, progress=report)
    except KeyboardInterrupt:
        terminal.note(f"stopped; the same command continues where it stopped: {root.command('pull', source)}")
        raise
    _judge(pulled)
    if json:
        told = {
            "path": str(pulled.path) if pulled.path else None,
            "bytes": pulled.size_bytes,
            "fetched": pulled.fetched,
        }
        terminal.show(jsonlib.dumps(told))
        return
    if not pulled.fetched:
        terminal.note("it is here already")
    where_to = str(pulled.path) if pulled.path else "kept by the engine"
    terminal.show(f"{where_to} ({format_bytes(pulled.size_bytes)})")
    if pulled.path is not None and pulled.path.suffix == ".gguf":
        _tell_how_to_serve(pulled.path, root, terminal)


def _tell_how_to_serve(path: Path, root: Root, terminal: Terminal) -> None:
    """Prints the lines of config that would serve the file, if no model of the config names it."""
    from watchbill.config import find_config, read

    try:
        loaded = read(find_config(None, root), root=root.path)
    except WatchbillError as error:
        terminal.note(f"whether a model serves it cannot be told: {plain(error)}")
        return
    serving = [name for name, model in loaded.catalog.models.items() if _is_same(model.source, path)]
    if serving:
        terminal.note(f"it is served as: {plain(', '.join(serving))}")
        return
    lines = "\n".join(_table_for(path))
    terminal.note(f"no model of the config serves it yet; these lines would:\n\n{lines}\n")
    if loaded.file is not None:
        terminal.note(f"add them to {plain(loaded.file.absolute())}; a running daemon notices by itself")
    else:
        start = root.command("up", "--config", "watchbill.toml")
        terminal.note(f"save them as watchbill.toml, then: {start}")


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
