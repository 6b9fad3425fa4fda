"""`config import`: the config of another program, rewritten as a watchbill.toml. Needs no daemon."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast

from cyclopts import App, Parameter

from watchbill.cli.facts import look_at, with_named_variables
from watchbill.cli.limits import IMPORT_BYTES_MAX, IMPORT_ROUNDS_MAX, IMPORT_VALUES_MAX
from watchbill.cli.options import Where
from watchbill.cli.terminal import Terminal, plain
from watchbill.config import examine
from watchbill.config.imports import Draft, KeptModel, import_llama_swap, import_ollama
from watchbill.config.load import read_text
from watchbill.errors import ConfigError, Problem
from watchbill.root import Root, find_root
from watchbill.shelf import OllamaStore, find_store

__all__ = ["app"]

app = App(name="import", help="Rewrite the config of llama-swap or Ollama for Watchbill.")

_DEFAULTS = Where()
_Output = Annotated[
    str,
    Parameter(
        name=["--output", "-o"], allow_leading_hyphen=True, help="Where to write it; - is standard output."
    ),
]
_Force = Annotated[
    bool, Parameter(negative="", show_default=False, help="Overwrite the file if there is one.")
]
_Json = Annotated[
    bool,
    Parameter(negative="", show_default=False, help="Print the file, its path and the notes as JSON."),
]


@app.command(name="llama-swap")
def llama_swap(
    file: Annotated[Path, Parameter(name="FILE", help="The config.yaml of llama-swap.")],
    /,
    *,
    output: _Output = "watchbill.toml",
    force: _Force = False,
    json: _Json = False,
    where: Where = _DEFAULTS,
) -> int:
    """Rewrite a config of llama-swap.

    Commands, macros, groups, matrix, ttl, aliases, environment, keys and peers. What changed and what has no
    counterpart is said here and in the comments of the new file, and so is what you have to fill in: the new file is
    checked as `config check` does.

    Example: watchbill config import llama-swap config.yaml
    """
    return _finish(
        import_llama_swap(_read_yaml(file), str(file), os.environ), output, where, force=force, json=json
    )


@app.command(name="ollama")
def ollama(
    *,
    output: _Output = "watchbill.toml",
    force: _Force = False,
    json: _Json = False,
    where: Where = _DEFAULTS,
) -> int:
    """Write a config for the models and settings of an installed Ollama.

    Reads the variables OLLAMA_* and the folder of its models, and changes neither.
    """
    store = find_store()
    if store is None:
        named = os.environ.get("OLLAMA_MODELS")
        looked = named or "~/.ollama/models and the folder of its service"
        raise ConfigError(
            f"no models of an Ollama are here (looked in {looked})",
            hint="name their folder: OLLAMA_MODELS=DIR watchbill config import ollama; without Ollama you need no "
            "import: watchbill up",
        )
    draft = import_ollama(os.environ, str(store), list(_kept(store)))
    return _finish(draft, output, where, force=force, json=json)


def _kept(store: Path) -> Iterator[KeptModel]:
    models, _ = OllamaStore(store).look()
    for model in models:
        layers = model.layers
        has_texts = bool(
            layers.text("system") or layers.parameters() or layers.messages() or layers.projector
        )
        yield KeptModel(model.name, str(layers.file), has_texts, model.embedding)


def _finish(draft: Draft, output: str, where: Where, *, force: bool, json: bool) -> int:
    import json as jsonlib

    from watchbill.cli.config import write_config

    root, terminal = find_root(where.root), Terminal(quiet=where.quiet)
    text = _settled(draft, root)
    if output != "-":
        write_config(Path(output), text, force=force)
    wanting = _wanting(text, output, root)
    if json:
        told = {
            "file": output,
            "text": text,
            "notes": draft.notes,
            "wanting": [each._asdict() for each in wanting],
        }
        terminal.show(jsonlib.dumps(told))
        return 0
    if output == "-":
        terminal.write(text)
    for note in draft.notes:
        terminal.note(f"look at: {plain(note)}")
    for problem in wanting:
        terminal.note(f"fill in: {plain(problem)}")
    if output != "-":
        path = str(Path(output).absolute())
        before = f"; fill in what is named above ({len(wanting)}) before you start it" if wanting else ""
        check = root.command("config", "check", "--config", path)
        terminal.note(f"wrote {plain(output)}{before}; check it with: {check}")
    return 0


def _settled(draft: Draft, root: Root) -> str:
    """The text of a file that can be read: values that would be refused are comments in it, with the reason.

    Raises ConfigError where even that does not help."""
    for _ in range(IMPORT_ROUNDS_MAX):
        text = draft.text()
        try:
            read_text(
                text,
                base=Path.cwd(),
                origin="the new file",
                environment=with_named_variables(text),
                root=root.path,
            )
        except ConfigError as error:
            refused = {each.line: each for each in error.problems if each.line is not None}
            # From the end on: a comment that is added moves the lines below it.
            done = [
                draft.leave_out(line, f"{refused[line].key}: {refused[line].text}")
                for line in sorted(refused, reverse=True)
            ]
            if not any(done):
                print(text, file=sys.stderr)
                raise ConfigError(
                    f"the new file, printed above, would be refused; correct the old one:\n{error}"
                ) from error
        else:
            return text
    raise ConfigError("too many values of the old file would be refused; correct it")


def _wanting(text: str, output: str, root: Root) -> list[Problem]:
    """What `config check` says against the new file on this machine: a person has to fill it in."""
    file = None if output == "-" else Path(output).absolute()
    base = Path.cwd() if file is None else file.parent
    unset: list[Problem] = []
    try:
        read_text(text, base=base, origin=output, environment=os.environ, file=file, root=root.path)
    except ConfigError as error:  # variables that are not set in this shell
        unset += error.problems
    environment = with_named_variables(text)
    loaded = read_text(text, base=base, origin=output, environment=environment, file=file, root=root.path)
    return unset + [finding.problem for finding in examine(loaded, look_at(loaded, root)) if finding.is_grave]


# ------------------------------------------------------------------ YAML


def _read_yaml(file: Path) -> object:
    """The values of a YAML file. Raises ConfigError."""
    import yaml  # here alone: no other command needs it

    try:
        with file.open("rb") as opened:
            text = opened.read(IMPORT_BYTES_MAX + 1)
    except OSError as error:  # whichever errno: the operator named this file and is told why
        raise _refusal(file, f"cannot be read: {(error.strerror or '').lower()}") from error
    if len(text) > IMPORT_BYTES_MAX:
        raise _refusal(file, f"is larger than {IMPORT_BYTES_MAX} bytes, so it is no config")
    try:
        found = cast("object", yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise _refusal(file, f"is not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, RecursionError) as error:
        raise _refusal(file, f"cannot be read as YAML: {type(error).__name__}") from error
    _refuse_many(found, file)
    return found


def _refuse_many(value: object, file: Path) -> None:
    """An alias of YAML costs nothing to read and may stand for a billion values."""
    waiting, count = [value], 0
    while waiting:
        each = waiting.pop()
        count += 1
        if count > IMPORT_VALUES_MAX:
            raise _refusal(file, f"has more than {IMPORT_VALUES_MAX} values, aliases counted each time")
        if isinstance(each, dict):
            waiting += cast("dict[object, object]", each).values()
        elif isinstance(each, list):
            waiting += cast("list[object]", each)


def _refusal(file: Path, text: str) -> ConfigError:
    return ConfigError(problems=[Problem(str(file), None, "", text, "name the config of llama-swap")])
