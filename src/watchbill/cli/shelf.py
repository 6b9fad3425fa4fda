"""`list`, `ps`, `show`, `run`, `cp`, `rm` and `stop`: models as people who come from Ollama handle them.

`list` and `rm` also work without a daemon: the models folder is there before one starts.
"""

import asyncio
import json as jsonlib
import os
import shlex
import stat
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Parameter
from cyclopts.validators import Number

from watchbill.cli.actions import evict
from watchbill.cli.app import WrongUse
from watchbill.cli.chat import Conversation, Verbose, talk, thinking_options
from watchbill.cli.client import Client, DaemonRefused, parse
from watchbill.cli.options import Common, Json
from watchbill.cli.pull import pull_through_daemon
from watchbill.cli.session import Session
from watchbill.cli.status import Fields, fields, figure, rows_of
from watchbill.cli.terminal import Column, Terminal, plain
from watchbill.errors import ModelNotFound, NotReachable, RequestError
from watchbill.root import Root, find_root
from watchbill.suggest import nearest
from watchbill.units import format_bytes

__all__ = ["about", "copy", "list_models", "ps", "remove", "run", "show", "stop"]

_DEFAULTS = Common()
_Name = Annotated[
    str, Parameter(name="MODEL", help="One of the model's names, as `watchbill list` shows them.")
]


#: How it is told that a model does not have a part.
_INSTEAD = {
    "template": "template of its own; its engine uses the one in its file",
    "system": "system text of its own",
}

# ------------------------------------------------------------------ what there is


def list_models(
    prefix: Annotated[
        str | None,
        Parameter(
            name="PREFIX", show_default=False, help="Only models of which a name begins so. Default: all."
        ),
    ] = None,
    /,
    *,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """List every model that can be run, its size, and where it is from.

    From the config, from the files of ROOT/models, from an installed Ollama, and under names that callers made. Files
    that are broken or still arrive are listed below, with the reason. Needs no daemon.
    """
    terminal = Terminal(quiet=common.quiet)
    root = find_root(common.root)
    try:
        told = common.session().client.get("/wb/v1/library")
    except NotReachable:
        if common.url or os.environ.get("WATCHBILL_URL"):
            raise
        told = jsonlib.dumps(_without_daemon(root)).encode()
        terminal.note(f"no daemon runs; this is what it would serve: {root.command_to_start()}")
    if prefix:
        told = jsonlib.dumps(_beginning(prefix, fields(parse(told)))).encode()
    if json:
        terminal.show_json(told)
    else:
        terminal.show(*_draw_library(fields(parse(told)), root, terminal, prefix))


def _beginning(prefix: str, told: Fields) -> dict[str, object]:
    """The models of which a name begins so, in large or small letters, and such files."""
    wanted = prefix.casefold()
    return {
        **told,
        "models": [
            each
            for each in rows_of(told, "models")
            if any(name.casefold().startswith(wanted) for name in _names_of(each))
        ],
        "passed": [
            each for each in rows_of(told, "passed") if str(each.get("file")).casefold().startswith(wanted)
        ],
    }


def _without_daemon(root: Root) -> dict[str, object]:
    """What a daemon would serve if it started now."""
    from watchbill.config import find_config, read
    from watchbill.runtime.library import Library, listed, without_missing

    loaded = read(find_config(None, root), root=root.path)
    catalog = without_missing(loaded.catalog, root.models) if loaded.file is None else loaded.catalog
    library = Library.of(root.models, catalog, is_default=loaded.file is None)
    return listed(library, library.catalog)


def _draw_library(told: Fields, root: Root, terminal: Terminal, prefix: str | None) -> list[str]:
    models = rows_of(told, "models")
    lines: list[str] = []
    if models:
        columns = [
            Column("NAME"), Column("SIZE", right=True), Column("MODIFIED"), Column("FROM"), Column("ALSO CALLED"),
        ]  # fmt: skip
        head, *rows = terminal.table(columns, [_row(each) for each in models])
        lines += [terminal.mark(head, "bold"), *rows]
    elif prefix:
        lines.append(f"no model has a name that begins with {plain(prefix)}; see: {root.command('list')}")
    else:
        lines.append(f"no models; fetch one with: {root.command('pull', 'qwen2.5:0.5b')}")
    if passed := rows_of(told, "passed"):
        lines += ["", terminal.mark("not served", "bold")]
        for each in passed:
            text = f"{plain(each.get('file'))}: {plain(each.get('why'))}"
            detail = plain(each.get("detail") or "")
            lines += terminal.wrapped(f"{text}: {detail}" if detail else text, 2)
    return lines


def _row(model: Fields) -> list[str]:
    aliases = model.get("aliases")
    called = [plain(each) for each in cast("list[object]", aliases)] if isinstance(aliases, list) else []
    size, modified = model.get("size"), model.get("modified_s")
    age_ms = max(0, int((time.time() - modified) * 1000)) if isinstance(modified, int | float) else None
    return [
        plain(model.get("name")),
        format_bytes(figure(size)) if size is not None else "-",
        "-" if age_ms is None else f"{about(age_ms)} ago",
        plain(model.get("origin") or ""),
        ", ".join(called) or "-",
    ]


def ps(*, json: Json = False, common: Common = _DEFAULTS) -> None:
    """List the models in memory, where they are, and until when."""
    session = common.session()
    told = session.client.get("/api/ps")
    if json:
        session.terminal.show_json(told)
        return
    models = rows_of(parse(told), "models")
    if not models:
        session.terminal.show("no model is in memory; the next request loads one")
        return
    columns = [
        Column("NAME"), Column("SIZE", right=True), Column("PROCESSOR"), Column("CONTEXT", right=True), Column("UNTIL"),
    ]  # fmt: skip
    head, *rows = session.terminal.table(columns, [_running_row(each) for each in models])
    session.terminal.show(session.terminal.mark(head, "bold"), *rows)


def _running_row(model: Fields) -> list[str]:
    size, on_cards = figure(model.get("size")), figure(model.get("size_vram"))
    share = round(100 * on_cards / size) if size else 0
    where = {0: "100% CPU", 100: "100% GPU"}.get(share, f"{100 - share}%/{share}% CPU/GPU")
    if not size:  # it is served elsewhere: nothing of it is here
        where = "-"
    name = plain(model.get("name")).removesuffix(":latest")
    context = figure(model.get("context_length"))
    return [
        name,
        format_bytes(size) if size else "-",
        where,
        str(context),
        _until(str(model.get("expires_at") or "")),
    ]


def _until(moment: str) -> str:
    try:
        left = datetime.fromisoformat(moment) - datetime.now(UTC)
    except (ValueError, TypeError):
        return "-"
    if left.days > 365:
        return "Forever"
    left_ms = int(left.total_seconds() * 1000)
    return f"{about(left_ms)} from now" if left_ms > 0 else "Stopping..."


def about(span_ms: int) -> str:
    """A span of time in the words of Ollama's `list` and `ps`, which people and their scripts know."""
    seconds = span_ms // 1000
    minutes, hours = seconds // 60, round(span_ms / 3_600_000)
    if seconds < 1:
        return "Less than a second"
    if seconds < 60:
        return "1 second" if seconds == 1 else f"{seconds} seconds"
    if minutes < 60:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    for unit, of_hours, until in (("days", 24, 14), ("weeks", 24 * 7, 60), ("months", 24 * 30, 730)):
        if hours < 24 * until:
            return f"{hours // of_hours} {unit}"
    return f"{hours // 24 // 365} years"


# ------------------------------------------------------------------ run


_Think = Annotated[
    bool | Literal["low", "medium", "high"] | None,
    Parameter(
        negative="",
        show_choices=False,
        help="Let the model think first, and show its thoughts on standard error. --think=false: without; "
        "--think=low, medium, high: how much.",
    ),
]
_HideThinking = Annotated[
    bool, Parameter(negative="", show_default=False, help="Do not show the model's thoughts.")
]
_NoWordWrap = Annotated[
    bool, Parameter(negative="", show_default=False, help="Changes nothing: lines are never wrapped here.")
]


def run(
    model: Annotated[str, Parameter(name="MODEL", help="Which model. One that is not here is pulled first.")],
    /,
    *prompt: Annotated[
        str,
        Parameter(
            name="PROMPT",
            help="The question; what is piped in comes before it. Without either, on a terminal: a conversation.",
        ),
    ],
    system: Annotated[str | None, Parameter(help="The system prompt.")] = None,
    max_tokens: Annotated[
        int | None, Parameter(help="Longest answer, in tokens.", validator=Number(gte=1))
    ] = None,
    verbose: Verbose = False,
    format: Annotated[Literal["json"] | None, Parameter(help="Answer as JSON.", show_choices=True)] = None,
    keepalive: Annotated[
        str | None,
        Parameter(
            help="How long the model stays in memory after the answer: 10m, 0, or -1 for as long as it may."
        ),
    ] = None,
    think: _Think = None,
    hidethinking: _HideThinking = False,
    nowordwrap: _NoWordWrap = False,
    common: Common = _DEFAULTS,
) -> None:
    """Talk to a model, or ask it one question.

    Example: watchbill run qwen2.5:0.5b "Why is the sky blue?"
    """
    session = common.session()
    _fetch_missing(session, model)
    asked = _asked(" ".join(prompt))
    options: dict[str, object] = {} if format is None else {"response_format": {"type": "json_object"}}
    if keepalive is not None:
        options["keep_alive"] = keepalive
    if think is not None:
        options |= thinking_options(think)
    shows = think not in {None, False} and not hidethinking
    conversation = Conversation(
        session, model, system, max_tokens, verbose=verbose, shows_thoughts=shows, options=options
    )
    if asked:
        conversation.ask(asked)
    elif sys.stdin.isatty():
        talk(conversation, session)
    else:
        raise RequestError(
            f"nothing to ask; write: {session.root.command('run', model, 'Why is the sky blue?')}"
        )


def _asked(prompt: str) -> str:
    """The question: what is piped in, then the words of the command."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if prompt and not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind)):
        return prompt
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    return "\n\n".join(part for part in (piped, prompt) if part)


def _fetch_missing(session: Session, model: str) -> None:
    """Pulls a model that the daemon does not know. Raises ModelNotFound when it cannot be had."""
    try:
        session.client.post("/api/show", {"model": model})
    except DaemonRefused as refused:
        if refused.answered != 404:
            raise
    else:
        return
    if unserved := _unserved(model, _library_at(session.client), session.root):
        raise ModelNotFound(unserved)
    session.terminal.note(f"{plain(model)} is not here yet; pulling it")
    try:
        pull_through_daemon(session, model)
    except DaemonRefused as refused:
        near = nearest(model, sorted(_names_at(session.client)))
        meant = f"did you mean {plain(near)}? " if near else ""
        raise ModelNotFound(
            f"no model is called {plain(model)}, and it cannot be pulled: {refused}; "
            f"{meant}see: {session.root.command('list')}"
        ) from refused


# ------------------------------------------------------------------ rm and stop


def remove(
    model: _Name,
    /,
    *more: Annotated[str, Parameter(name="MORE", help="Further ones.")],
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Delete models: their names, and their files where no other name needs them.

    A name that `watchbill cp` made goes alone. A name of a file goes with the file, and so do the file's other names:
    the message says which. Models of the config and of an installed Ollama are not touched: the message says where
    they can be removed.
    """
    terminal, gone = Terminal(quiet=common.quiet), list[str]()
    for each in (model, *more):
        others = _remove(each, common)
        gone += [each, *others]
        if not json:
            beside = f", and with its file its other names: {plain(', '.join(others))}" if others else ""
            terminal.show(f"removed {plain(each)}{beside}")
    if json:
        terminal.show(jsonlib.dumps({"removed": gone}))


def _remove(model: str, common: Common) -> list[str]:
    """The other names that went with it."""
    try:
        client = common.session().client
        before = _names_at(client)
        client.delete("/api/delete", {"model": model})
        return sorted(before - _names_at(client) - _spellings(model))
    except NotReachable:
        if common.url or os.environ.get("WATCHBILL_URL"):
            raise
        return _remove_without_daemon(find_root(common.root), model)
    except DaemonRefused as refused:
        if refused.answered != 404:
            raise
        raise _unknown(model, _library_at(common.session().client), find_root(common.root)) from refused


def _names_at(client: Client) -> set[str]:
    """Every name that the daemon serves; none where an older one does not list them."""
    return _names_in(_library_at(client))


def _library_at(client: Client) -> object:
    """What the daemon's library holds; nothing where an older one does not tell."""
    try:
        return client.get_json("/wb/v1/library")
    except DaemonRefused:
        return {}


def _names_in(told: object) -> set[str]:
    return {name for model in rows_of(told, "models") for name in _names_of(model)}


def _names_of(model: Fields) -> list[str]:
    aliases = model.get("aliases")
    return [str(model.get("name")), *map(str, cast("list[object]", aliases) if aliases else [])]


def _unknown(model: str, told: object, root: Root) -> ModelNotFound:
    """Why a name is not there, by what the library holds: a file that is not served, or a name that is near."""
    if unserved := _unserved(model, told, root):
        return ModelNotFound(unserved)
    near = nearest(model, sorted(_names_in(told)))
    meant = f"did you mean {plain(near)}? " if near else ""
    return ModelNotFound(f"no model is called {plain(model)}; {meant}see: {root.command('list')}")


def _unserved(model: str, told: object, root: Root) -> str | None:
    """Why the file of this name is not served, and how it is deleted; None where there is no such file."""
    for each in rows_of(told, "passed"):
        file = str(each.get("file"))
        if model.casefold() in {file.casefold(), Path(file).name.casefold(), Path(file).stem.casefold()}:
            why = ": ".join(plain(part) for part in (each.get("why"), each.get("detail")) if part)
            path = plain(shlex.quote(str(root.models / file)))
            return f"{plain(file)} is not served: {why}; pull it again, or delete it with: rm {path}"
    return None


def _spellings(model: str) -> set[str]:
    bare = model.removesuffix(":latest")
    return {bare, f"{bare}:latest"}


def _remove_without_daemon(root: Root, model: str) -> list[str]:
    from watchbill.config import find_config, read
    from watchbill.processes import RootLock
    from watchbill.runtime.library import Library, listed

    with RootLock(root.lock_file):  # no daemon starts meanwhile
        loaded = read(find_config(None, root), root=root.path)
        library = Library.of(root.models, loaded.catalog, is_default=loaded.file is None)
        found = library.catalog.find_model(model)
        if found is None:
            raise _unknown(model, listed(library, library.catalog), root)
        if not library.may_remove(found):
            raise RequestError(f"{found.name} is a model of the config; take it out of {loaded.origin}")
        before = _names_in(listed(library, library.catalog))
        asyncio.run(library.remove(None, model))
        return sorted(before - _names_in(listed(library, library.catalog)) - _spellings(model))


def copy(
    model: _Name,
    name: Annotated[str, Parameter(name="NAME", help="The new name.")],
    /,
    *,
    common: Common = _DEFAULTS,
) -> None:
    """Give a model another name; its file is not copied.

    Example: watchbill cp qwen2.5:0.5b gpt-4o-mini
    """
    session = common.session()
    with _hinting(session, model):
        session.client.post("/api/copy", {"source": model, "destination": name})
    session.terminal.show(f"{plain(name)} is another name of {plain(model)}")


@contextmanager
def _hinting(session: Session, model: str) -> Generator[None]:
    """Turns the daemon's "not found" into one that says which name was meant, or where the names are."""
    try:
        yield
    except DaemonRefused as refused:
        if refused.answered != 404:
            raise
        raise _unknown(model, _library_at(session.client), session.root) from refused


def _flag(text: str) -> Parameter:
    return Parameter(negative="", show_default=False, help=text)


def show(
    model: _Name,
    /,
    *,
    modelfile: Annotated[bool, _flag("Print only its Modelfile.")] = False,
    parameters: Annotated[bool, _flag("Print only the parameters that its requests get.")] = False,
    system: Annotated[bool, _flag("Print only its system text.")] = False,
    template: Annotated[bool, _flag("Print only its template, where it came with one of its own.")] = False,
    license: Annotated[bool, _flag("Print only its license.")] = False,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Show what a model is: its family, size, context, abilities and parameters.

    At most one of the options that print a part of it.
    """
    session = common.session()
    flags = {
        "modelfile": modelfile, "parameters": parameters, "system": system, "template": template, "license": license,
    }  # fmt: skip
    parts = [name for name, wanted in flags.items() if wanted]
    if len(parts) + json > 1:
        both = " and ".join(f"--{name}" for name in (*parts, *(["json"] if json else [])))
        raise WrongUse(f"{both} cannot be shown together; choose one. See: watchbill show --help")
    with _hinting(session, model):
        content = session.client.post("/api/show", {"model": model})
    if json:
        session.terminal.show_json(content)
        return
    told = fields(parse(content))
    if not parts:
        session.terminal.show(*_details(told))
    elif said := str(told.get(parts[0]) or "").rstrip("\n"):
        session.terminal.write(f"{said}\n")
    else:
        session.terminal.note(f"{plain(model)} has no {_INSTEAD.get(parts[0], f'{parts[0]} of its own')}")


def _details(told: Fields) -> list[str]:
    facts, more = fields(told.get("details")), fields(told.get("model_info"))
    context = next((value for key, value in more.items() if key.endswith(".context_length")), None)
    abilities = told.get("capabilities")
    rows = {
        "family": facts.get("family"), "parameters": facts.get("parameter_size"),
        "quantization": facts.get("quantization_level"), "format": facts.get("format"), "trained context": context,
        "abilities": ", ".join(map(str, cast("list[object]", abilities))) if isinstance(abilities, list) else None,
        "system": told.get("system"), "license": str(told.get("license") or "").strip().partition("\n")[0],
    }  # fmt: skip
    lines = [f"{name.ljust(15)}  {plain(value)}" for name, value in rows.items() if value]
    for line in str(told.get("parameters") or "").splitlines():
        lines.append(f"{'sent with it'.ljust(15)}  {plain(' '.join(line.split()))}")
    return lines


def stop(
    model: _Name,
    /,
    *,
    json: Json = False,
    common: Common = _DEFAULTS,
) -> None:
    """Take a model out of memory; its file stays.

    Its running requests end first. The same as `watchbill evict`.
    """
    evict(model, json=json, common=common)
