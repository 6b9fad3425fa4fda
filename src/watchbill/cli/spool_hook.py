"""`spool hook install|remove|status`: git commits as events. `spool key`: the keys that events are signed with."""

import json as jsonlib
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from watchbill.cli import FAILED
from watchbill.cli.app import WrongUse
from watchbill.cli.options import QUIET
from watchbill.cli.spool_choice import AsJson, Which
from watchbill.cli.terminal import Terminal, plain
from watchbill.errors import ConfigError, TheirsError
from watchbill.spool import githook

__all__ = ["app", "key"]

app = App(name="hook", help="Make every git commit an event.")

_DEFAULTS = Which()
_Repository = Annotated[Path, Parameter(name="REPOSITORY", help="The repository.")]
_Hooks = Annotated[
    Path | None,
    Parameter(help="Git's hooks folder, if it is not where git looks by default.", show_default=False),
]
_Quiet = Annotated[bool, QUIET]


@app.command
def install(
    repository: _Repository = Path(),
    /,
    *,
    kind: Annotated[
        list[str] | None,
        Parameter(
            name="--kind",
            negative="",
            help="PATTERN=KIND: the kind of commits that change a matching path; the first match wins.",
            show_default=False,
        ),
    ] = None,
    sign: Annotated[
        Path | None, Parameter(help="A private key (PEM) to sign the events with.", show_default=False)
    ] = None,
    hooks: _Hooks = None,
    json: AsJson = False,
    which: Which = _DEFAULTS,
) -> None:
    """Install hooks that enqueue an event for each commit and each merge.

    They return within milliseconds. The kind is the commit's trailer `Event-Kind:`, else the first match of --kind or
    of `kinds` in the config, else draft-created for a commit with a new file and draft-refined for others. A hook that
    is already there is kept and run first, under its own name. Run this again after another program (husky) has
    rewritten the hooks: `hook status` says when that is needed.
    """
    chosen, terminal = which.choose(), which.terminal
    repository = repository.expanduser()
    if hooks is None:
        _refuse_hooks_elsewhere(repository)
    key_file = sign.expanduser() if sign else Path(chosen.rules.sign) if chosen.rules.sign else None
    if key_file is not None:
        from watchbill.spool import KeySigner

        KeySigner(key_file)  # report an unusable key now, not in the background of a commit
    chosen.make().close()
    table = [_pair(text) for text in kind or ()] or list(chosen.rules.kinds)
    try:
        hook = githook.install(repository, chosen.folder, table=table, hooks=hooks, sign=key_file)
    except OSError as error:
        raise TheirsError(f"cannot install the hook: {error}") from error
    if json:
        terminal.show(jsonlib.dumps({"hook": str(hook), "spool": str(chosen.folder)}))
    else:
        terminal.show(f"{hook}: each commit becomes an event in {chosen.folder}")
        _warn(githook.status(repository, hooks=hooks))


@app.command
def remove(repository: _Repository = Path(), /, *, hooks: _Hooks = None, quiet: _Quiet = False) -> int:
    """Remove the hooks and put back the ones that were there before."""
    try:
        removed = githook.remove(repository.expanduser(), hooks=hooks)
    except OSError as error:
        raise TheirsError(f"cannot remove the hook: {error}") from error
    if not removed:
        raise TheirsError(f"no hook of Watchbill is installed in {repository.absolute()}")
    Terminal(quiet=quiet).note("the hooks are removed; commits are no events any more")
    return 0


@app.command
def status(
    repository: _Repository = Path(),
    /,
    *,
    hooks: _Hooks = None,
    json: AsJson = False,
    quiet: _Quiet = False,
) -> int:
    """Report whether the commits of a repository become events.

    Exit code 1 when they do not: the hook is not installed, was removed or replaced, or git looks elsewhere.
    """
    try:
        found = githook.status(repository.expanduser(), hooks=hooks)
    except OSError as error:
        raise TheirsError(f"cannot look at the hook: {error}") from error
    if json:
        told = {
            "state": found.state.value, "repository": str(found.repository), "hook": str(found.hook),
            "spool": str(found.spool) if found.spool else None, "waiting": found.waiting,
            "strays": [str(each) for each in found.strays],
        }  # fmt: skip
        Terminal(quiet=quiet).show(jsonlib.dumps(told))
    elif not found.problem:
        waiting = f"; {found.waiting} noted and not enqueued yet" if found.waiting else ""
        Terminal(quiet=quiet).show(f"{found.hook}: each commit becomes an event in {found.spool}{waiting}")
    if not json:
        _warn(found)
    return FAILED if found.problem else 0


def _warn(found: githook.Status) -> None:
    if found.problem:
        print(f"watchbill: {plain(found.problem)}", file=sys.stderr, flush=True)


def key(
    private: Annotated[Path, Parameter(name="PRIVATE", help="The file to write the private key to.")],
    public: Annotated[
        Path | None,
        Parameter(
            name="PUBLIC", help="The file for the public key. Default: PRIVATE.pub.", show_default=False
        ),
    ] = None,
    /,
) -> int:
    """Make a pair of keys to sign events with and to verify them.

    Both are Ed25519 in PEM, as openssl writes them. Prints the fingerprint that signatures name.
    """
    from watchbill.spool import make_key

    private = private.expanduser()
    public = public.expanduser() if public else private.with_name(private.name + ".pub")
    if public.exists():
        raise TheirsError(f"{public} exists; name another file")
    try:
        Terminal().show(make_key(private, public))
    except FileExistsError as error:
        raise TheirsError(f"{private} exists; name another file") from error
    except OSError as error:
        raise TheirsError(f"cannot write {error.filename or private}: {error.strerror}") from error
    return 0


def _pair(text: str) -> tuple[str, str]:
    pattern, equals, kind = text.rpartition("=")
    if not equals or not pattern.strip() or not kind.strip():
        raise WrongUse(
            f"--kind {text} is not PATTERN=KIND; write for example --kind 'creative/*=creative-edited'"
        )
    return pattern, kind


def _refuse_hooks_elsewhere(repository: Path) -> None:
    """Refuses a repository whose user has set `core.hooksPath` globally: its hook would never run."""
    own = githook.hooks_folder(repository)
    if not (own.parent / "HEAD").is_file() or githook.hooks_path_in(own.parent / "config"):
        return  # the repository itself says where
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    chosen = os.environ.get("GIT_CONFIG_GLOBAL")
    for config in (
        [Path(chosen)] if chosen is not None else [Path.home() / ".gitconfig", home / "git" / "config"]
    ):
        elsewhere = githook.hooks_path_in(config)
        if elsewhere:
            raise ConfigError(
                f"git looks for your hooks in {elsewhere} (core.hooksPath in {config}), so one in {own} would not run; "
                f"run: git -C {repository} config core.hooksPath {own}, or name the folder with --hooks"
            )
