"""The layers of the package, and the list of its modules in docs/structure.md: `make docs`.

A module's line is the first sentence of its own docstring, so the list cannot tell something else than the
code does. A test compares the list with the modules that exist.
"""

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "watchbill"
DOCUMENT = ROOT / "docs" / "structure.md"
BEGIN = "<!-- modules: written by `make docs` from the docstrings; do not edit -->"
END = "<!-- end of modules -->"
LINE_CHARS_MAX = 160
#: A module's docstring, behind comments. To parse the whole module for it takes a hundred times as long.
_DOCSTRING = re.compile(r'(?:\s|#[^\n]*\n)*(r?""".*?""")', re.DOTALL)


class Layer(NamedTuple):
    """A layer imports itself and the ones before it, nothing above."""

    title: str
    units: tuple[str, ...]


LAYERS = (
    Layer(
        "L0 foundation",
        (
            "__init__",
            "errors",
            "interrupts",
            "units",
            "names",
            "packages",
            "limits",
            "steps",
            "decodable",
            "quoting",
            "suggest",
            "blocking_http",
            "toml",
            "files",
        ),
    ),
    Layer("L1 declarations", ("templates", "ladder", "plans", "config", "catalog", "root")),
    Layer("L2 core: pure decisions", ("core",)),
    Layer(
        "L3 edges: where the world is touched",
        (
            "processes",
            "engines",
            "probes",
            "spool",
            "journal",
            "metrics",
            "otlp",
            "gguf",
            "footprint",
            "sizes",
            "pull",
            "shelf",
            "listeners",
            "notify",
            "reactor",
        ),
    ),
    Layer("L4 runtime: events to the core, actions to the world", ("runtime",)),
    Layer("L4 batches and fleet: work that outlives its caller", ("batches", "fleet")),
    Layer("L5 gateway: HTTP", ("gateway",)),
    Layer("L6 surface", ("daemon", "cli", "watch", "simulate", "testing", "__main__")),
)


def modules_of(unit: str) -> list[Path]:
    """The files of one part of the package that have anything in them, the package's own first."""
    single = PACKAGE / f"{unit}.py"
    if single.is_file():
        return [single]
    return sorted(path for path in (PACKAGE / unit).rglob("*.py") if path.read_text().strip())


def first_sentence(path: Path) -> str:
    """What a module says of itself first."""
    found = _DOCSTRING.match(path.read_text())
    paragraph = "" if found is None else ast.literal_eval(found[1]).partition("\n\n")[0]
    text = " ".join(paragraph.split())
    if len(text) > LINE_CHARS_MAX and ". " in text:
        text = text.partition(". ")[0] + "."
    return text


def listing() -> str:
    """Every module with its line, layer by layer."""
    lines: list[str] = []
    for layer in LAYERS:
        paths = [path for unit in layer.units for path in modules_of(unit)]
        if not paths:
            continue
        lines += ["", f"### {layer.title}", ""]
        lines += [f"- `{path.relative_to(PACKAGE)}` {first_sentence(path)}" for path in paths]
    return "\n".join([*lines, ""])


def with_listing(text: str) -> str:
    """The document with the list as it should be."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{listing()}\n{END}{after}"


def main() -> int:
    DOCUMENT.write_text(with_listing(DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
