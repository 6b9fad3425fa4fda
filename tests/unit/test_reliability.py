"""docs/reliability.md: every row is there, and every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()
#: The numbers that were given out; those between were merged into others.
ROWS = {
    *range(1, 5),
    *range(8, 21),
    *range(22, 26),
    27,
    *range(30, 38),
    *range(39, 48),
    *range(49, 56),
    57,
    58,
} - {38, 21}


@cache
def functions_of(file: str) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, functions)
    }


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
    assert len(named) > 50
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


def test_every_fault_has_a_row_and_every_row_its_proof_or_a_word_about_it() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| R")]
    told = {int(number) for row in rows for number in re.findall(r"R(\d+)", row.split("|")[1])}
    assert told == ROWS
    proofs = [line.split("|")[-2] for line in TEXT.splitlines() if re.match(r"\| [^|-]", line)]
    assert all("::" in proof or "not shown" in proof or "shown by" in proof for proof in proofs)
