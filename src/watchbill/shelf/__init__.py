"""The shelf: models that are on this disk and need no config, from the models folder and from an installed Ollama.

Reads and never writes. `runtime/library.py` serves what is found here.
"""

from watchbill.shelf.folder import Folder, OnShelf, Passed, Why, parts_of
from watchbill.shelf.ollama_store import OllamaModel, OllamaStore, find_store

__all__ = [
    "Folder", "OllamaModel", "OllamaStore", "OnShelf", "Passed", "Why", "find_store", "parts_of",
]  # fmt: skip
