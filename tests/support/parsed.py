"""Python files as their parser sees them, each parsed once in a process, for tests that read the sources."""

import ast
import gc
from functools import cache
from pathlib import Path

__all__ = ["parsed"]


@cache
def parsed(folder: Path) -> dict[Path, ast.Module]:
    """Every Python file below a folder, in the order of their paths."""
    # Most of the time went to the collector, which finds no garbage in trees and looks at them again and again.
    gc.disable()
    try:
        return {file: ast.parse(file.read_text(), str(file)) for file in sorted(folder.rglob("*.py"))}
    finally:
        gc.freeze()
        gc.enable()
