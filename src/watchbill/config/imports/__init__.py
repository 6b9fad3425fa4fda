"""Imports: configs of other programs, rewritten as a `watchbill.toml` with comments on what changed.

Reads what it is given and writes nothing: a text goes in and a text comes out. What has no counterpart here becomes a
comment at its place, never a silent loss.
"""

from watchbill.config.imports.draft import Draft
from watchbill.config.imports.llama_swap import import_llama_swap
from watchbill.config.imports.ollama import KeptModel, import_ollama

__all__ = ["Draft", "KeptModel", "import_llama_swap", "import_ollama"]
