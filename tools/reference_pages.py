"""Pages of reference that are made from the code, as Markdown: commands, addresses, errors, metrics, limits.

What a page says is what the code has: the texts of `--help` that a test compares with the commands, the schema of every
address, the docstrings of errors, the help of metrics, the constants with their comments. The keys of the config stand
in docs/config.md, which `watchbill config reference` writes.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from watchbill import errors, metrics
from watchbill.steps import Steps, at_once

__all__ = ["reference_pages"]

_REPOSITORY = Path(__file__).resolve().parent.parent
_PACKAGE = _REPOSITORY / "src" / "watchbill"
_HELP = _REPOSITORY / "tests" / "unit" / "help"
_OPENAPI = _REPOSITORY / "docs" / "openapi.json"
_COMMENT = re.compile(r"^#: ?(.*)$")


def reference_pages() -> dict[str, str]:
    """Every page by its name."""
    return {
        "reference-cli": _commands(),
        "reference-http": _addresses(),
        "reference-errors": _errors(),
        "reference-metrics": _metrics(),
        "reference-limits": _limits(),
    }


def _commands() -> str:
    """Every `--help`, as it is on a terminal of 80 columns."""
    names = sorted(path.stem for path in _HELP.glob("*.txt") if path.stem != "watchbill")
    parts = [
        "# Every command\n\nMade from the help texts of the commands. [cli.md](docs/cli.md) has examples.\n"
    ]
    for name in ["watchbill", *names]:
        title = name if name == "watchbill" else f"watchbill {name.replace('-', ' ', 1)}"
        parts.append(f"## {title}\n\n```text\n{(_HELP / f'{name}.txt').read_text().strip()}\n```\n")
    return "\n".join(parts)


def _addresses() -> str:
    schema = json.loads(_OPENAPI.read_text())
    head = "# Every address\n\nMade from [openapi.json](docs/openapi.json), which a test compares with the router."
    rows = ["| method | address | |", "|---|---|---|"]
    for path, methods in cast("dict[str, dict[str, dict[str, object]]]", schema["paths"]).items():
        for method, told in methods.items():
            rows.append(f"| {method.upper()} | `{path}` | {told.get('summary', '')} |")
    return f"{head}\n\n" + "\n".join(rows) + "\n"


def _errors() -> str:
    """The closed list of codes that scripts match."""
    rows = ["| code | status | class | default message |", "|---|---|---|---|"]
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.TheirsError) and kind.__module__ == errors.__name__:
            text = " ".join((kind.__doc__ or "").split()).replace("|", "\\|")
            rows.append(f"| `{kind.code}` | {kind.status or ''} | {name} | {text} |")
    head = "# Errors\n\nMade from [errors.py](src/watchbill/errors.py). `error.code` in an answer is one of these."
    return f"{head}\n\n" + "\n".join(rows) + "\n"


def _metrics() -> str:
    found = at_once(metrics.Metrics(_empty).families())
    rows = ["| metric | kind | |", "|---|---|---|"]
    for family in sorted(found, key=lambda each: each.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    head = "# Metrics\n\nMade from [metrics.py](src/watchbill/metrics.py). `GET /metrics` has them for Prometheus."
    return f"{head}\n\n" + "\n".join(rows) + "\n"


def _empty() -> Steps[dict[str, object]]:
    """A daemon with nothing in it: the families are there all the same."""
    yield
    return {}


def _limits() -> str:
    """The bounds of every folder, with the reason where one is given."""
    head = (
        "# Limits\n\nMade from the `limits.py` of each folder. Names end in their unit; a count has none.\n"
    )
    files = sorted(_PACKAGE.rglob("limits.py"))
    return head + "\n".join(_limit_table(path) for path in files) + "\n"


def _limit_table(path: Path) -> str:
    name = path.relative_to(_REPOSITORY).as_posix()
    rows = "\n".join(_limit_rows(path.read_text()))
    return f"\n## {path.parent.name}\n\n[{name}]({name})\n\n| bound | figure | why |\n|---|---|---|\n{rows}\n"


def _limit_rows(source: str) -> Iterator[str]:
    lines, why = source.splitlines(), list[str]()
    values = {node.lineno: node for node in ast.parse(source).body if isinstance(node, ast.Assign)}
    for number, line in enumerate(lines, 1):
        if comment := _COMMENT.match(line):
            why.append(comment[1])
        elif (node := values.get(number)) is not None:
            name, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
            if name.isupper():
                yield f"| `{name}` | `{_cell(value)}` | {_cell(' '.join(why))} |"
            why = []
        elif not line.startswith("#"):
            why = []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
